"""Contents and metadata of the wheel. ``make test-install`` installs it (tests/install)."""

from __future__ import annotations

import ast
import sys
import tomllib
import zipfile
from importlib import import_module
from importlib.metadata import EntryPoint

import pytest
from packaging.requirements import Requirement

from tests.checkout import ROOT
from tests.platform.test_boundaries import imports, tracked
from tests.platform.wheel import build_wheel

OURS = {"dispatch_airflow", "dispatch_core", "dispatch_expectations", "spark_jobs"}
#: Where each package's folder lies.
FOLDERS = (
    ROOT / "dispatch_core", ROOT / "spark_jobs", ROOT / "expectations" / "dispatch_expectations",
    ROOT / "dags" / "dispatch_airflow",
)  # fmt: skip
#: Requirement → the modules that it brings, with those of packages that it cannot be without.
MODULES = {
    "apache-airflow": {"airflow", "asgiref", "fastapi", "sqlalchemy", "starlette"},
    "apache-airflow-providers-http": {"requests"},
    "delta-spark": {"delta"},
    "great-expectations": {"great_expectations"},
    "apache-airflow-providers-openlineage": {"openlineage"},
    "numba": {"numba", "llvmlite"},
    "pulsar-client": {"pulsar"},
    "prometheus-client": {"prometheus_client"},
    "pyspark": {"pyspark", "py4j"},
    "pyyaml": {"yaml"},
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("wheel")))


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def packaged() -> set[str]:
    """List the files of the packages, by their places in the wheel."""
    files = {
        path.relative_to(folder.parent).as_posix() for folder in FOLDERS for path in tracked(f"{folder}/**")
    }
    return {name for name in files if not name.startswith("dispatch_airflow/local_run/")}


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert files == packaged()
    assert {name.split("/")[0] for name in files} == OURS


def test_what_the_code_reads_beside_itself_is_among_them() -> None:
    assert {name for name in packaged() if not name.endswith(".py")} == {
        "dispatch_core/audit/policy/audit-policy.yaml",
        "dispatch_core/broker/broker_conf_names.json",
        "dispatch_core/diagnose/known_issues.toml",
        "dispatch_core/hunt/exhibits.json",
        "dispatch_core/minimize/ReproduceTest.java.template",
        "dispatch_core/report/index.js",
        "dispatch_core/report/page.css",
        "dispatch_core/report/page.js",
        "dispatch_core/what_if/calibration.json",
        "dispatch_core/what_if/upgrade_risk.js",
        "dispatch_expectations/data_docs.css",
        "spark_jobs/log4j2.properties",
    }


def test_entry_points_name_things_that_exist(wheel: zipfile.ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    groups: dict[str, list[EntryPoint]] = {}
    for line in wheel.read(name).decode().splitlines():
        if line.startswith("["):
            group = line.strip("[]")
        elif line:
            entry, _, value = line.partition(" = ")
            groups.setdefault(group, []).append(EntryPoint(entry, value, group))
    assert {group: [entry.name for entry in entries] for group, entries in groups.items()} == {
        "airflow.plugins": ["dispatch_audit"],
        "console_scripts": ["dispatch-audit"],
    }
    for entries in groups.values():
        for entry in entries:
            assert hasattr(import_module(entry.module), entry.attr)


def test_nothing_that_is_installed_for_users_is_pinned_to_one_version() -> None:
    extras = project()["optional-dependencies"]
    texts = [
        *project()["dependencies"],
        *(text for name in ("airflow", "spark", "spark-submit", "record", "s3") for text in extras[name]),
    ]
    for requirement in map(Requirement, texts):
        operators = sorted(part.operator for part in requirement.specifier)
        assert ">=" in operators, f"{requirement} has no lower end"
        assert "<" in operators, f"{requirement} has no upper end"
        assert "==" not in operators, f"{requirement} would collide with the version that an Airflow has"


def modules_of(*extras: str) -> set[str]:
    """List the modules that the base dependencies and some extras bring."""
    declared = project()["optional-dependencies"]
    texts = [*project()["dependencies"], *(text for extra in extras for text in declared[extra])]
    names = [Requirement(text).name for text in texts]
    return {module for name in names for module in MODULES.get(name, {name})}


@pytest.mark.parametrize(
    ("package", "extras"),
    [
        ("dispatch_core", ("record",)),
        ("spark_jobs", ("spark",)),
        ("dispatch_expectations", ("spark",)),
        # Channels and lineage ask if their providers are there before they import a client.
        ("dispatch_airflow", ("airflow", "channels", "openlineage")),
    ],
)
def test_a_package_imports_only_what_its_extra_brings(package: str, extras: tuple[str, ...]) -> None:
    [folder] = [folder for folder in FOLDERS if folder.name == package]
    allowed = modules_of(*extras) | OURS | set(sys.stdlib_module_names)
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in tracked(f"{folder}/**/*.py", f"{folder}/*.py")
        if "local_run" not in path.parts
        for name, line in imports(ast.parse(path.read_text(encoding="utf-8")), whole=True)
        if name not in allowed
    ]
    assert found == []


def test_the_command_line_needs_none_of_the_large_packages() -> None:
    assert not modules_of() & {
        "airflow",
        "delta",
        "deltalake",
        "great_expectations",
        "pandas",
        "pyspark",
        "pulsar",
    }


@pytest.mark.parametrize(
    "name",
    ["dispatch_audit", "dispatch_audit_maintenance", "dispatch_hunt", "dispatch_what_if", "upgrade_risk"],
)
def test_a_dag_file_of_the_repository_is_what_a_user_would_write(name: str) -> None:
    text = (ROOT / "dags" / f"{name}.py").read_text(encoding="utf-8")
    [_, imported, called] = ast.parse(text).body
    assert ast.unparse(imported) == f"from dispatch_airflow.dags.{name} import {name}"
    assert ast.unparse(called) == f"{name}()"
    # Airflow looks into files only if they have both words.
    assert {word in text.lower() for word in ("dag", "airflow")} == {True}
