"""Imports point one way: there are no cycles of files or folders, and the folders of each package keep their order."""

from __future__ import annotations

import tomllib
from functools import cache

import pytest

from tests.checkout import PACKAGE_FOLDERS
from tests.platform.imports import Import, cycles, imports_between, module_name
from tests.platform.test_boundaries import ROOT, tracked

#: The folders of ``dispatch_core``, lowest first. A folder imports itself and lower rows only; folders of one row do not
#: import each other.
CORE_ORDER = (
    ("errors",),
    ("extras",),
    ("times",),
    ("tables",),
    ("arrays",),
    ("broker",),
    ("recording",),
    ("audit",),
    ("verify",),
    ("replay",),
    ("explain", "report", "simulation", "golden", "importers"),
    ("diagnose", "what_if"),
    ("hunt", "minimize"),
    ("cli",),
)
#: The folders of ``spark_jobs``, by the same rule.
SPARK_ORDER = (
    ("intervals", "location", "one_process", "progress", "run_stage", "task_grouping", "worker_memory"),
    ("session",),
    ("stage_command",),
    ("warehouse",),
    ("pull",),
    ("ingest",),
    ("replay",),
    ("aggregates",),
    ("hunt", "reports", "stale_intervals", "what_if"),
    ("maintenance",),
)
ORDERS = {"dispatch_core": CORE_ORDER, "spark_jobs": SPARK_ORDER}


@cache
def project_imports() -> list[Import]:
    sources = {
        module_name(path, PACKAGE_FOLDERS): path.read_text(encoding="utf-8") for path in tracked("*.py")
    }
    return imports_between(sources)


def rows_of(package: str) -> dict[str, int]:
    """Return the row of each folder of a package."""
    return {folder: row for row, folders in enumerate(ORDERS[package]) for folder in folders}


def out_of_order(imports: list[Import], package: str) -> list[str]:
    """List imports inside a package that point up or sideways."""
    row_of = rows_of(package)
    found = []
    for edge in imports:
        if not (edge.importer.startswith(f"{package}.") and edge.imported.startswith(f"{package}.")):
            continue
        importer, imported = edge.importer.split(".")[1], edge.imported.split(".")[1]
        if importer != imported and row_of[importer] <= row_of[imported]:
            found.append(
                f"{edge.importer}:{edge.line} imports {edge.imported}: {imported} is not below {importer}"
            )
    return found


def test_no_files_and_no_folders_import_each_other_in_a_circle() -> None:
    assert cycles(project_imports()) == []


@pytest.mark.parametrize("package", ORDERS)
def test_the_folders_of_a_package_keep_their_order(package: str) -> None:
    assert out_of_order(project_imports(), package) == []


@pytest.mark.parametrize("package", ORDERS)
def test_every_part_of_a_package_has_its_place_in_the_order(package: str) -> None:
    parts = {path.relative_to(ROOT).parts[1].removesuffix(".py") for path in tracked(f"{package}/*.py")}
    assert parts - {"__init__"} == set(rows_of(package))


def test_nothing_imports_a_dag_file() -> None:
    dag_files = {path.stem for path in (ROOT / "dags").glob("*.py")}
    assert len(dag_files) == 7
    assert [edge for edge in project_imports() if edge.imported.split(".")[0] in dag_files] == []


def test_the_folders_that_hold_packages_are_none_themselves() -> None:
    """An installed ``dags`` or ``expectations`` would take a name that a user's own Airflow is likely to have."""
    assert [folder for folder in PACKAGE_FOLDERS if (folder / "__init__.py").exists()] == []
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    find = settings["packages"]["find"]
    assert [(ROOT / folder).resolve() for folder in find["where"]] == list(PACKAGE_FOLDERS)
    assert {name for name in find["include"] if "." not in name} == {
        "dispatch_airflow", "dispatch_core", "dispatch_expectations", "spark_jobs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("dispatch_core/broker/hashing.py", "dispatch_core.broker.hashing"),
        ("dags/dispatch_airflow/pages/__init__.py", "dispatch_airflow.pages"),
        ("dags/dispatch_audit.py", "dispatch_audit"),
        ("tests/dags/test_dag.py", "tests.dags.test_dag"),
    ],
)
def test_a_module_is_named_as_it_is_imported(path: str, name: str) -> None:
    assert module_name(ROOT / path, PACKAGE_FOLDERS) == name


@pytest.mark.parametrize(
    ("sources", "named"),
    [
        ({"a.x": "import a.y", "a.y": "from a import x"}, "a: "),
        ({"a.x": "def f():\n    from b import z", "b.z": "import a.w", "a.w": ""}, "the repository: "),
        ({"a.p.x": "import a.q.y", "a.q.y": "import a.p.z", "a.p.z": ""}, "a: "),
    ],
)
def test_a_circle_is_named_with_its_imports(sources: dict[str, str], named: str) -> None:
    (line,) = cycles(imports_between(sources))
    assert line.startswith(named)
    assert ":2 imports b.z" in line or ":1 imports" in line


def test_what_points_one_way_is_no_circle() -> None:
    sources = {"a": "", "a.x": "import a.y\nimport b", "a.y": "", "b": "from c import d", "c.d": "x = 1"}
    assert cycles(imports_between(sources)) == []


def test_an_import_that_points_up_is_named() -> None:
    up = imports_between(
        {"dispatch_core.broker.x": "\nimport dispatch_core.audit.y", "dispatch_core.audit.y": ""}
    )
    assert out_of_order(up, "dispatch_core") == [
        "dispatch_core.broker.x:2 imports dispatch_core.audit.y: audit is not below broker"
    ]
