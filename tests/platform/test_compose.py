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
)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]


def test_the_services_of_the_design_are_there(services: dict[str, Any]) -> None:
    assert set(services) == {
        "postgres", "airflow-init", "api-server", "scheduler", "dag-processor", "triggerer", "spark-master",
        "spark-worker",
    }  # fmt: skip
    assert services["spark-worker"]["deploy"]["replicas"] >= 2


def test_every_image_is_pinned(services: dict[str, Any]) -> None:
    images = {service["image"] for service in services.values()}
    images |= set(
        re.findall(r"^FROM (\S+)", (ROOT / ".ci/image/Dockerfile").read_text(encoding="utf-8"), re.M)
    )
    assert len(images) == 3
    assert not [image for image in images if not re.search(r":\d+\.\d+", image)]


def test_every_service_is_limited_unprivileged_and_watched(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["user"].split(":")[0] not in {"", "0", "root"}, name
        assert service["healthcheck"].get("test") or name == "airflow-init", name
    assert "\nUSER audit\n" in (ROOT / ".ci/image/Dockerfile").read_text(encoding="utf-8")


def test_only_loopback_ports_are_published(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_secret_has_a_default() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    uses = re.findall(r"\$\{([A-Z_]+)(:?[-?])?", text)
    assert {name for name, _ in uses} == {*SECRETS, "DISPATCH_AUDIT_PORT"}
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
