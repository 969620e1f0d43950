"""Each package imports only what it may use. The imports are read from the source, without running it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("dags", "dispatch_core", "expectations", "spark_jobs")

#: Packages that the sources of each folder must not import. Dependencies point one way:
#: DAG files -> dispatch_airflow -> dispatch_expectations -> spark_jobs -> dispatch_core.
FORBIDDEN = {
    "dispatch_core": {
        "airflow",
        "deltalake",
        "dispatch_airflow",
        "dispatch_expectations",
        "great_expectations",
        "pyspark",
    },
    "expectations": {"airflow", "dispatch_airflow", "pyspark"},
    "spark_jobs": {"airflow", "dispatch_airflow", "dispatch_expectations", "great_expectations"},
    "dags": set(),
}
#: Too slow to import in files that Airflow parses again and again, and in commands that only print their help.
HEAVY = {"delta", "deltalake", "great_expectations", "numba", "pandas", "pyspark"}
#: Modules for files, processes, clocks or the network, which the rules of the broker must not use.
INPUT_OUTPUT = {
    "asyncio",
    "fsspec",
    "glob",
    "io",
    "pathlib",
    "requests",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
}
#: Folders of dispatch_core for reading files and for the command line.
IMPURE = ("dispatch_core/recording/", "dispatch_core/cli/", "dispatch_core/importers/topic_messages/")


def tracked(*patterns: str) -> list[Path]:
    """List files that are in the repository or would be after the next ``git add``."""
    listed = subprocess.run(
        [
            "git",
            "-C",
            str(ROOT),
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "--",
            *patterns,
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def sources() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT)) for path in tracked("*.py") if path.relative_to(ROOT).parts[0] in ROOMS
    )


def imports(tree: ast.AST, *, whole: bool) -> Iterator[tuple[str, int]]:
    """Yield top-level package and line of each import: of the whole file, or only of those that run on import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0], node.lineno
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif whole or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(node, whole=whole)


def offences(source: str, forbidden: set[str], *, whole: bool) -> list[str]:
    tree = ast.parse((ROOT / source).read_text(encoding="utf-8"), source)
    return [
        f"{source}:{line} imports {name}" for name, line in imports(tree, whole=whole) if name in forbidden
    ]


def test_imports_are_read_from_the_source() -> None:
    tree = ast.parse(
        "import a.b\ndef f():\n    from c import d\nif TYPE_CHECKING:\n    import e\ntry:\n    import g\nfinally: pass"
    )
    assert [name for name, _ in imports(tree, whole=True)] == ["a", "c", "g"]
    assert [name for name, _ in imports(tree, whole=False)] == ["a", "g"]


def test_every_folder_has_sources() -> None:
    assert {source.split("/")[0] for source in sources()} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_folders_import_only_lower_ones(room: str) -> None:
    found = [
        offence
        for source in sources()
        # The command line registers the pipeline's command, which belongs to the verdicts.
        if source.startswith(f"{room}/") and not source.startswith("dispatch_core/cli/")
        for offence in offences(source, FORBIDDEN[room], whole=True)
    ]
    assert not found


def test_the_core_does_no_input_or_output() -> None:
    found = [
        offence
        for source in sources()
        if source.startswith("dispatch_core/") and not source.startswith(IMPURE)
        for offence in offences(source, INPUT_OUTPUT, whole=True)
    ]
    assert not found


def test_dags_and_commands_load_nothing_heavy_at_import() -> None:
    light = [
        s for s in sources() if s.startswith(("dags/", "dispatch_core/cli/")) or s.endswith("_command.py")
    ]
    assert not [offence for source in light for offence in offences(source, HEAVY, whole=False)]
