"""Messages of the set-up script for a wrong interpreter, an old Java and a missing module."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Make a folder with only the set-up scripts, in which set-up may fail."""
    folder = tmp_path / "a clone"
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
    return path


def run(clone: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script],
        cwd=clone,
        env={"PATH": os.environ["PATH"], "HOME": str(clone)} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("version", ["3.9.18", "3.10.13", "3.14.0"])
def test_another_python_gets_one_clear_line(clone: Path, version: str) -> None:
    wrong = executable(clone / "bin" / "python-other", f"echo {version}")
    done = run(clone, f"'{clone}/.ci/setup'", PYTHON=str(wrong))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert f"is Python {version}; this project works with Python 3.11, 3.12, 3.13." in lines[0]
    assert "make setup PYTHON=python3.11" in lines[1]
    assert not (clone / ".venv").exists()


def test_an_interpreter_that_does_not_exist(clone: Path) -> None:
    done = run(clone, ".ci/setup python3.99")
    assert (done.returncode, done.stderr) == (
        1,
        "[setup] There is no command 'python3.99' (asked for with PYTHON=python3.99).\n",
    )


JAVA = ". .ci/lib.sh; . .ci/java.sh; "


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17"),
        ('openjdk version "21" 2023-09-19', "21"),
        ('java version "1.8.0_392"', "1"),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "17.0.9" 2023-10-17', "17"),
        ("no such thing", ""),
    ],
)
def test_java_versions_are_read_by_running_it(clone: Path, said: str, major: str) -> None:
    executable(clone / "jdk" / "bin" / "java", f"cat >&2 <<'END'\n{said}\nEND")
    assert run(clone, JAVA + "java_major jdk").stdout.strip() == major


def test_an_old_java_home_is_passed_over_for_a_supported_one_on_path(clone: Path) -> None:
    executable(clone / "old" / "bin" / "java", "echo 'openjdk version \"11.0.2\"' >&2")
    executable(clone / "new" / "bin" / "java", "echo 'openjdk version \"21.0.2\"' >&2")
    done = run(clone, f"PATH='{clone}/new/bin':$PATH; {JAVA} find_java", JAVA_HOME=f"{clone}/old")
    assert done.stdout == f"{clone}/new\n"


def test_the_java_of_an_earlier_set_up_is_not_taken_for_the_machines(clone: Path) -> None:
    own = executable(
        clone / ".venv" / "java" / "bin" / "java", "echo 'openjdk version \"17.0.2\"' >&2"
    ).parents[1]
    done = run(clone, JAVA + "own_java_home; find_java", JAVA_HOME=str(own))
    assert str(own) not in done.stdout.splitlines()


def test_the_wrapper_drops_the_missing_module_and_nothing_else(clone: Path) -> None:
    runtime = executable(clone / "runtime" / "bin" / "java", 'printf "[%s]" "$@"').parents[1]
    done = run(
        clone,
        JAVA
        + f"mkdir -p .venv/java/bin; write_java_wrapper '{runtime}' .venv/java/bin/java; "
        + ".venv/java/bin/java -Dx='a b' --add-modules=jdk.incubator.vector --add-modules jdk.incubator.vector "
        + "--add-modules java.sql -cp 'c:d' Main ''",
    )
    assert done.stdout == "[-Dx=a b][--add-modules][java.sql][-cp][c:d][Main][]", done.stderr
