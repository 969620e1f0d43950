# Runs programs of recorder/trace's tests on brokers in process. Sourced by .ci/states and .ci/zoo, which name themselves in $me.
# Maven brings the brokers. Both functions end the script with 2 if Maven cannot.

target=$PWD/recorder/trace/target
log=$target/$me.log

# Compiles the programs.
compile_programs() {
    command -v mvn >/dev/null || {
        echo "$me: there is no Maven here, so nothing was tried. On Debian or Ubuntu: apt-get install maven." >&2
        exit 2
    }
    mkdir -p "$target"
    mvn -B -f recorder/trace test-compile >"$log" 2>&1 || {
        grep -E '^\[ERROR\]' "$log" | head -20 >&2
        echo "$me: Maven failed; all of its output: $log" >&2
        exit 2
    }
}

# on_broker RELEASE CLASS ARGUMENT...: runs a program with the classes of a release; the broker logs to stderr.
on_broker() {
    local classpath=$target/broker-$1.classpath opens
    mvn -B -f recorder/trace "-Dpulsar.version=$1" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath \
        -Dmdep.outputFile="$classpath" >>"$log" 2>&1 || {
        echo "$me: Maven has no broker $1; all of its output: $log" >&3
        exit 2
    }
    opens=$(sed -n '/<broker.opens>/,/<\/broker.opens>/p' recorder/pom.xml | sed 's/<[^>]*>//g')
    # shellcheck disable=SC2086 # several options
    java -Xmx1500m -XX:MaxDirectMemorySize=1g $opens -cp "$target/test-classes:$(<"$classpath")" "${@:2}"
}
exec 3>&2
