"""The compose file parses and keeps its own rules: pinned, guarded, limited, no default password, loopback only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
SECRETS = (
    "POSTGRES_PASSWORD",
    "AIRFLOW_ADMIN_PASSWORD",
    "AIRFLOW_API_SECRET_KEY",
    "AIRFLOW_JWT_SECRET",
    "AIRFLOW_FERNET_KEY",
    "OBJECT_STORE_KEY",
    "OBJECT_STORE_SECRET",
)
PORTS = ("DISPATCH_AUDIT_PORT", "DISPATCH_AUDIT_MAIL_PORT", "OBJECT_STORE_PORT")
#: Services that end by themselves and have no health check.
ONCE = {"airflow-init", "object-store-bucket", "object-store-volume"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]


def test_the_services_of_the_design_are_there(services: dict[str, Any]) -> None:
    assert set(services) == {
        "postgres", "airflow-init", "api-server", "scheduler", "dag-processor", "triggerer", "spark-master",
        "spark-worker", "object-store", "object-store-bucket", "object-store-volume", "mail",
    }  # fmt: skip
    assert services["spark-worker"]["deploy"]["replicas"] >= 2


def test_every_image_is_pinned(services: dict[str, Any]) -> None:
    images = {service["image"] for service in services.values()}
    images |= set(
        re.findall(r"^FROM (\S+)", (ROOT / ".ci/image/Dockerfile").read_text(encoding="utf-8"), re.M)
    )
    assert len(images) == 5
    assert not [image for image in images if not re.search(r":v?\d+\.\d+", image)]


def test_every_service_is_limited_unprivileged_and_watched(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["user"].split(":")[0] not in {"", "0", "root"}, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert (
            service["healthcheck"] == {"disable": True} if name in ONCE else service["healthcheck"]["test"]
        ), name
        assert service["restart"] == ("no" if name in ONCE else "unless-stopped"), name
    assert "\nUSER audit\n" in (ROOT / ".ci/image/Dockerfile").read_text(encoding="utf-8")


def test_landing_and_warehouse_are_one_volume_at_one_path(services: dict[str, Any]) -> None:
    at_work = ("api-server", "scheduler", "dag-processor", "triggerer", "spark-master", "spark-worker")
    for name in at_work:
        assert services[name]["volumes"] == ["audit-home:/var/lib/dispatch-audit"], name
    assert services["scheduler"]["environment"]["DISPATCH_AUDIT_HOME"] == "/var/lib/dispatch-audit"


def test_settings_that_are_passed_through_are_used(services: dict[str, Any]) -> None:
    """An unused name would look like a setting."""
    passed = [name for name, value in services["scheduler"]["environment"].items() if value is None]
    code = "".join(
        file.read_text(encoding="utf-8")
        for folder in ("dags", "expectations", "spark_jobs")
        for file in (ROOT / folder).rglob("*.py")
    )
    named = {f"AIRFLOW_CONN_{name.upper()}" for name in re.findall(r"\"(dispatch_audit_[a-z]+)\"", code)}
    assert passed
    assert not [name for name in passed if f'"{name}"' not in code and name not in named]


def test_only_loopback_ports_are_published(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_secret_has_a_default() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    uses = re.findall(r"\$\{([A-Z_]+)(:?[-?])?", text)
    assert {name for name, _ in uses} == {*SECRETS, *PORTS}
    assert {(name, how) for name, how in uses if name in SECRETS} == {(name, ":?") for name in SECRETS}
    example = (ROOT / ".ci/image/env.example").read_text(encoding="utf-8")
    assert set(re.findall(r"^([A-Z_]+)=$", example, re.M)) == set(SECRETS)


def test_the_image_is_built_by_the_same_script_as_the_environment_here() -> None:
    assert ".ci/setup" in (ROOT / ".ci/image/Dockerfile").read_text(encoding="utf-8")


def test_docker_compose_accepts_the_file() -> None:
    commands = [["docker", "compose"], ["docker-compose"]]
    usable = [
        command
        for command in commands
        if shutil.which(command[0])
        and not subprocess.run([*command, "version"], capture_output=True, check=False).returncode
    ]
    if not usable:
        pytest.skip("no compose client on this machine")
    done = subprocess.run(
        [*usable[0], "--file", str(COMPOSE), "config", "--quiet"],
        env=dict.fromkeys(SECRETS, "x") | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
