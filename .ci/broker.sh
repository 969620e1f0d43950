# What the scripts share that run brokers in process: Maven, the broker's classes, the options of its JVM. Sourced by scripts that
# name themselves in $me and their log in $log. All functions end the script with 2 if Maven cannot do its part.

exec 3>&2

need_maven() {
    command -v mvn >/dev/null && return
    echo "$me: there is no Maven here, so nothing was tried. On Debian or Ubuntu: apt-get install maven." >&3
    exit 2
}

# maven ARGUMENT...: runs it; its output goes to $log.
maven() {
    mvn -B "$@" >>"$log" 2>&1 && return
    grep -E '^\[ERROR\]' "$log" | head -20 >&3
    echo "$me: Maven failed; all of its output: $log" >&3
    exit 2
}

# Options that a broker's JVM needs: the parts of the JDK that it accesses. Only the pom lists them.
broker_opens() {
    sed -n '/<broker.opens>/,/<\/broker.opens>/p' recorder/pom.xml | sed 's/<[^>]*>//g' | tr -s ' \n' ' '
}

# class_path RELEASE FILE: writes the class path of a release's broker, for the programs of recorder/trace.
class_path() {
    maven -f recorder/trace "-Dpulsar.version=$1" \
        org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath "-Dmdep.outputFile=$2"
}

# compile_programs: compiles the programs of recorder/trace's tests.
compile_programs() {
    need_maven
    target=$PWD/recorder/trace/target
    log=$target/$me.log
    mkdir -p "$target"
    : >"$log"
    maven -f recorder/trace test-compile
}

# use_agent CLASS: makes a jar that names one of them as the agent; on_broker runs with it then.
use_agent() {
    mkdir -p "$target/agent/META-INF"
    printf 'Premain-Class: %s\n' "$1" >"$target/agent/META-INF/MANIFEST.MF"
    (cd "$target/agent" && python -m zipfile -c ../agent.jar META-INF)
    agent=(-javaagent:"$target/agent.jar")
}
agent=()

# on_broker RELEASE CLASS ARGUMENT...: runs one of them with the classes of a release; the broker logs to stderr.
on_broker() {
    local classpath=$target/broker-$1.classpath
    class_path "$1" "$classpath"
    # shellcheck disable=SC2046 # several options
    java -Xmx1500m -XX:MaxDirectMemorySize=1g $(broker_opens) ${agent[@]+"${agent[@]}"} -cp "$target/test-classes:$(<"$classpath")" "${@:2}"
}
