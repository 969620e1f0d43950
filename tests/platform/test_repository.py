"""The repository works on other machines: it has no hosts or paths of one machine, and pins each version once."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]

#: Spelled in parts, so that this file does not match.
REGISTRY_HOSTS = [
    rf"py{'pi'}\.org", rf"python{'hosted'}\.org", rf"repo1?\.maven\.{'apache'}\.org", rf"maven\.{'org'}",
    rf"sona{'type'}\.org", rf"spark-{'packages'}\.org", rf"npm{'js'}\.(org|com)", rf"(quay|ghcr|gcr)\.{'io'}",
    rf"registry\.{'hub'}", rf"arti{'factory'}", rf"index-{'url'}\s*=", rf"--{'hash'}=sha",
]  # fmt: skip
MACHINE_PATHS = [
    rf"/{'root'}/",
    rf"/{'home'}/[a-z]",
    rf"/{'Users'}/[A-Za-z]",
    rf"/{'work'}/",
    rf"/tmp/{'w'}/",
]


def grep(pattern: str) -> list[str]:
    """List matching lines of the text files in the repository (tracked, or about to be)."""
    done = subprocess.run(
        [
            "git",
            "-C",
            str(ROOT),
            "grep",
            "-I",
            "-n",
            "-i",
            "-E",
            "--untracked",
            "-e",
            pattern,
            "--",
            ":!LICENSE",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout.splitlines()


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def constraints() -> dict[str, str]:
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            # A package may stand at several versions, each for some Pythons.
            if requirement.marker is None or requirement.marker.evaluate():
                pinned[canonicalize_name(requirement.name)] = str(requirement.specifier).removeprefix("==")
    return pinned


def test_grep_finds_what_is_there() -> None:
    assert grep(r"def test_grep_finds_what_is_there")


@pytest.mark.parametrize("pattern", REGISTRY_HOSTS)
def test_no_registry_host_in_the_repository(pattern: str) -> None:
    assert grep(pattern) == []


@pytest.mark.parametrize("pattern", MACHINE_PATHS)
def test_no_path_of_one_machine_in_the_repository(pattern: str) -> None:
    assert grep(pattern) == []


def test_every_dependency_is_pinned_to_a_version_it_allows() -> None:
    pinned, declared = constraints(), project()
    wanted = [Requirement(text) for text in declared["dependencies"]]
    wanted += [Requirement(text) for extra in declared["optional-dependencies"].values() for text in extra]
    wanted = [r for r in wanted if r.name != declared["name"]]  # an extra that has others
    missing = [str(r) for r in wanted if canonicalize_name(r.name) not in pinned]
    assert not missing
    assert not [
        str(r) for r in wanted if not r.specifier.contains(Version(pinned[canonicalize_name(r.name)]))
    ]


def test_this_environment_is_the_pinned_one() -> None:
    from importlib.metadata import distributions

    installed = {canonicalize_name(d.metadata["Name"]): d.version for d in distributions()}
    # Python installs these into every environment; they are pinned for the extra that requires them.
    installed.pop("setuptools", None)
    pinned = constraints()
    assert not {n: (v, pinned[n]) for n, v in installed.items() if n in pinned and v != pinned[n]}


def test_this_python_is_one_that_was_resolved() -> None:
    assert ".".join(map(str, sys.version_info[:3])) in SpecifierSet(project()["requires-python"])


def test_what_set_up_and_runs_leave_behind_is_ignored() -> None:
    left_behind = [
        ".venv/x", ".venv.lock", ".dispatch-audit/warehouse/x", "dags/__pycache__/x.pyc", "spark-warehouse/x",
        "metastore_db/x", "derby.log", "pulsar_dispatch_audit.egg-info/x", ".hypothesis/x", ".mypy_cache/x",
        ".ruff_cache/x", ".pytest_cache/x", "mlruns/x", ".env", "secrets/x",
    ]  # fmt: skip
    done = subprocess.run(
        ["git", "-C", str(ROOT), "check-ignore", "--no-index", *left_behind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == left_behind


def test_nothing_that_is_kept_is_ignored() -> None:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--ignored", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.findall(r".+", done.stdout) == []
