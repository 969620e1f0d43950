"""The compose file and the image keep their rules: pinned, built once, limited, without rights, secrets in files only."""

from __future__ import annotations

import json
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
IMAGE = ROOT / ".ci" / "image"
MAKE_SECRETS = IMAGE / "secrets"
PORTS = ("DISPATCH_AUDIT_PORT", "DISPATCH_AUDIT_MAIL_PORT", "OBJECT_STORE_PORT")
#: Services that end by themselves and have no health check.
ONCE = {"airflow-init", "object-store-bucket", "object-store-volume"}
OWN_IMAGE = "pulsar-dispatch-audit:0.1.0"
OF_AIRFLOW = {"airflow-init", "api-server", "scheduler", "dag-processor", "triggerer"}
#: A file that a service reads, in its command or in a variable.
SECRET_PATH = re.compile(r"/run/secrets/([\w.-]+)")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def services(document: dict[str, Any]) -> dict[str, Any]:
    return document["services"]


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile: name and the rest, continued lines joined, without comments."""
    text = (IMAGE / "Dockerfile").read_text(encoding="utf-8")
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.M))
    return [(line.split()[0], line.split(None, 1)[1]) for line in joined.splitlines() if line]


def words_of(service: dict[str, Any]) -> str:
    """Return all that a service is started with: command and environment."""
    return json.dumps([service.get(part) for part in ("entrypoint", "command", "environment")])


def test_the_services_of_the_design_are_there(services: dict[str, Any]) -> None:
    assert set(services) == {
        "postgres", "airflow-init", "api-server", "scheduler", "dag-processor", "triggerer", "spark-master",
        "spark-worker", "object-store", "object-store-bucket", "object-store-volume", "mail",
    }  # fmt: skip
    assert services["spark-worker"]["deploy"]["replicas"] >= 2


def test_one_service_builds_the_image_and_nobody_pulls_it(services: dict[str, Any]) -> None:
    ours = {name: service for name, service in services.items() if service["image"] == OWN_IMAGE}
    assert set(ours) == OF_AIRFLOW | {"spark-master", "spark-worker", *ONCE}
    assert [name for name, service in services.items() if "build" in service] == ["airflow-init"]
    assert {service["pull_policy"] for service in ours.values()} == {"never"}


def test_every_image_is_pinned(services: dict[str, Any], instructions: list[tuple[str, str]]) -> None:
    images = {service["image"] for service in services.values()}
    images |= {rest for name, rest in instructions if name == "FROM"}
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
        for folder in ("dags", "dispatch_core", "expectations", "spark_jobs")
        for file in (ROOT / folder).rglob("*.py")
    )
    assert passed
    assert not [name for name in passed if f'"{name}"' not in code]


def test_only_loopback_ports_are_published(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


# secrets -------------------------------------------------------------------------------------------------------------


def test_one_command_makes_all_secret_files_and_keeps_those_that_exist(
    document: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "secrets"
    subprocess.run([MAKE_SECRETS, folder], check=True)
    made = {file.name: file.read_text() for file in folder.iterdir()}
    assert {name: secret["file"] for name, secret in document["secrets"].items()} == {
        name: f"./secrets/{name}" for name in made
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {(folder / name).stat().st_mode & 0o777 for name in made} == {0o644}
    assert len(set(made.values())) == len(made)
    (folder / "postgres_password").unlink()
    (folder / "airflow_passwords.json").write_text('{"admin": "mine"}')
    subprocess.run([MAKE_SECRETS, folder], check=True)
    again = {file.name: file.read_text() for file in folder.iterdir()}
    assert {name for name in made if again[name] != made[name]} == {
        "postgres_password",
        "airflow_passwords.json",
    }
    assert again["airflow_passwords.json"] == '{"admin": "mine"}'


def test_files_with_several_secrets_agree(tmp_path: Path) -> None:
    subprocess.run([MAKE_SECRETS, tmp_path], check=True)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    source = json.loads(made["airflow_connections.json"])["dispatch_audit_source"]
    assert (source["login"], source["password"]) == (made["object_store_key"], made["object_store_secret"])
    assert f":{made['postgres_password']}@postgres:5432/airflow" in made["airflow_database_url"]
    assert re.fullmatch(r"[\w-]{43}=", made["airflow_fernet_key"])
    assert not [name for name, text in made.items() if "." not in name and re.search(r"\s", text)]


def test_every_service_gets_the_secret_files_that_it_reads_and_no_others(services: dict[str, Any]) -> None:
    for name, service in services.items():
        named = set(SECRET_PATH.findall(words_of(service)))
        if "/run/secrets/object_store_{name}" in words_of(service):
            named = {"object_store_key", "object_store_secret"}
        if "SPARK_CONF_DIR" in (service.get("environment") or {}):
            named.add("spark-defaults.conf")
        assert set(service.get("secrets", ())) == named, name


def test_no_secret_is_a_variable_or_an_argument(services: dict[str, Any]) -> None:
    """Variables of these names hold a path or a command that reads a file; only ports are taken from ``.env``."""
    secret = re.compile(r"PASSWORD|SECRET|FERNET|ROOT_ACCESS|SQL_ALCHEMY_CONN")
    for name, service in services.items():
        for variable, value in (service.get("environment") or {}).items():
            if secret.search(variable) and not variable.startswith("AIRFLOW__SECRETS__"):
                assert variable.endswith(("_CMD", "_FILE")), (name, variable)
                assert str(value).removeprefix("cat ").startswith("/"), (name, variable)
            if variable.startswith("AIRFLOW_CONN_"):
                assert not {"login", "password"} & set(json.loads(value)), (name, variable)
    text = COMPOSE.read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{([A-Z_]+):-\d+\}", text)) == set(PORTS)
    assert len(re.findall(r"\$\{", text)) == len(re.findall(r"\$\{[A-Z_]+:-\d+\}", text))
    example = (IMAGE / "env.example").read_text(encoding="utf-8")
    assert set(re.findall(r"^([A-Z_]+)=\d+$", example, re.M)) == set(PORTS)


def test_options_that_are_read_by_a_command_may_be(services: dict[str, Any]) -> None:
    """Airflow takes ``_CMD`` only for options that it calls sensitive, and passes over all others."""
    from airflow.configuration import conf

    given = {
        tuple(variable.removeprefix("AIRFLOW__").removesuffix("_CMD").lower().split("__"))
        for variable in services["scheduler"]["environment"]
        if variable.endswith("_CMD")
    }
    assert len(given) == 4
    assert given <= conf.sensitive_config_values


# the image -----------------------------------------------------------------------------------------------------------


def test_the_image_is_built_by_the_same_script_as_the_environment_here(
    instructions: list[tuple[str, str]],
) -> None:
    assert [rest for name, rest in instructions if name == "RUN" and ".ci/setup" in rest]


def test_the_image_installs_packages_once_and_leaves_no_lists(instructions: list[tuple[str, str]]) -> None:
    (packages,) = (rest for name, rest in instructions if name == "RUN" and "apt-get" in rest)
    steps = packages.split(" && ")
    assert steps[0] == "apt-get update"
    assert steps[1].startswith("apt-get install --yes --no-install-recommends ")
    assert "rm -rf /var/lib/apt/lists/*" in steps


def test_the_image_runs_as_the_user_of_the_services(
    services: dict[str, Any], instructions: list[tuple[str, str]]
) -> None:
    users = [rest for name, rest in instructions if name == "USER"]
    assert users == [services["scheduler"]["user"]]
    assert not re.search(r"\bsudo\b|\bsetuid\b", json.dumps(instructions))


def test_the_image_has_no_secret(instructions: list[tuple[str, str]]) -> None:
    given = [rest for name, rest in instructions if name in {"ARG", "ENV"}]
    assert not re.search(r"SECRET|PASSWORD|TOKEN|FERNET|_KEY", " ".join(given))
    assert {name for name, _ in instructions} <= {
        "FROM", "RUN", "USER", "WORKDIR", "ARG", "COPY", "ENV", "VOLUME", "ENTRYPOINT"
    }  # fmt: skip
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    assert not [line for line in ignored if re.search(r"^!.*(secret|env)", line)]


# tools of others, where they are ----------------------------------------------------------------------------------------


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
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_hadolint_has_no_complaint() -> None:
    if not shutil.which("hadolint"):
        pytest.skip("no hadolint on this machine")
    done = subprocess.run(["hadolint", IMAGE / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
