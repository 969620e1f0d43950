# Small functions for .ci/setup and .ci/run. Source it with the repository's root as the working directory.

say() { printf '[setup] %s\n' "$*" >&2; }

# Prints one line with the error and one with the next step; no stack trace.
die() {
    printf '[setup] %s\n' "$@" >&2
    exit 1
}

use_uv() { [[ ${DISPATCH_AUDIT_INSTALLER:-uv} != pip ]] && command -v uv >/dev/null; }

# The minor versions of `requires-python = ">=3.11,<3.14"`: the ones constraints.txt was resolved for.
supported_minors() {
    sed -n 's/^requires-python = ">=3\.\([0-9]*\),<3\.\([0-9]*\)"$/\1 \2/p' pyproject.toml |
        { read -r low high && seq "$low" $((high - 1)); }
}
supported_words() { supported_minors | sed 's/^/3./' | paste -sd, - | sed 's/,/, /g'; }
supported_commands() { supported_minors | sed 's/^/python3./'; }

NOT_RUNNABLE="does not run"

# Prints "3.11.7", or why the interpreter could not be asked.
python_version() {
    "$1" -c 'import sys; print("%d.%d.%d" % tuple(sys.version_info[:3]))' 2>/dev/null || echo "$NOT_RUNNABLE"
}

python_is_resolved() {
    local version minor
    version=$(python_version "$1")
    for minor in $(supported_minors); do
        [[ $version == 3.$minor.* ]] && return 0
    done
    return 1
}

# The interpreter behind a pyenv shim or an active virtual environment (which may be the .venv about to be replaced).
base_interpreter() {
    "$1" -c 'import sys; print(getattr(sys, "_base_executable", None) or sys.executable)'
}

# A hash of the arguments: files by their content, other words as they are.
key_of() {
    local word
    for word in "$@"; do
        if [[ -f $word ]]; then
            printf '%s\0' "$word"
            cat "$word"
        else
            printf '%s\0' "$word"
        fi
    done | sha256sum | cut -c1-32
}

is_stamped() { [[ -e .venv/stamps/$1 && $(<".venv/stamps/$1") == "$2" ]]; }
stamp() { echo "$2" >".venv/stamps/$1"; }

# Allows only one set-up in a folder at a time.
hold_lock() {
    command -v flock >/dev/null || return 0
    exec 9>.venv.lock
    flock --nonblock 9 || {
        say "Waiting for another set-up in this folder"
        flock 9
    }
}

with_environment() {
    # Child processes must not inherit the lock's descriptor.
    (
        . .venv/env.sh
        exec 9>&-
        exec "$@"
    )
}
