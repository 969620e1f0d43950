"""docs/helm/values.yaml agrees with itself, with docs/install.md and with the names that Airflow and the code have.

The chart's own schema is not part of the repository; the values were checked with it when they were written.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.checkout import ROOT

INSTALL = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
DOCKERFILE = re.findall(r"```dockerfile\n(.*?)```", INSTALL, flags=re.S)[0]


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docs" / "helm" / "values.yaml").read_text(encoding="utf-8"))


def test_versions_are_those_of_the_project_and_of_the_image(values: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert values["defaultAirflowTag"] == project["version"]
    assert f"apache-airflow=={values['airflowVersion']}\n" in pinned
    assert f"FROM apache/airflow:{values['airflowVersion']}\n" in DOCKERFILE


def test_secrets_are_those_that_the_page_makes_and_none_is_a_value(values: dict[str, Any]) -> None:
    made = set(re.findall(r"create secret generic ([\w-]+) ", INSTALL))
    named = {values[name] for name in ("fernetKeySecretName", "apiSecretKeySecretName", "jwtSecretName")}
    named |= {values["data"]["metadataSecretName"]}
    named |= {volume["secret"]["secretName"] for volume in values["volumes"]}
    assert named == made
    # With these the chart would make a database and an admin with passwords that everybody knows.
    assert not values["postgresql"]["enabled"]
    assert not values["createUserJob"]["enabled"]
    assert not re.search(r"password|secretKey:|fernetKey:", json.dumps(values), flags=re.I)


def test_connections_are_read_where_their_secret_is_mounted(values: dict[str, Any]) -> None:
    (mount,) = values["volumeMounts"]
    (volume,) = values["volumes"]
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    read = json.loads(values["config"]["secrets"]["backend_kwargs"])["connections_file_path"]
    assert read == f"{mount['mountPath']}/connections.json"
    assert "--from-file=connections.json=" in INSTALL


def test_variables_are_those_of_the_code(values: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "airflow.md").read_text(encoding="utf-8")
    assert not [entry["name"] for entry in values["env"] if f"| `{entry['name']}` |" not in page]


def test_options_are_those_of_airflow(values: dict[str, Any]) -> None:
    from airflow.configuration import conf

    known = conf.configuration_description
    for section, options in values["config"].items():
        assert set(options) <= set(known[section]["options"]), section


def test_every_component_has_resources(values: dict[str, Any]) -> None:
    components = [values[name] for name in ("apiServer", "scheduler", "dagProcessor", "triggerer")]
    for component in (*components, values["workers"]["kubernetes"]):
        assert set(component["resources"]) == {"requests", "limits"}


def test_the_override_for_fab_is_for_all_services_of_airflow() -> None:
    page = (ROOT / "docs" / "login.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    override, compose = yaml.safe_load(text), yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    of_airflow = {
        name
        for name, service in compose["services"].items()
        if "AIRFLOW__CORE__AUTH_MANAGER" in (service.get("environment") or {})
    }
    assert set(override["services"]) == of_airflow
    (config,) = re.findall(r"```py\n(.*?)```", page, flags=re.S)
    compile(config, "webserver_config.py", "exec")
    for name in override["secrets"]:
        assert f'"/run/secrets/{name}"' in config
    settings = dict(
        re.findall(r"^    (AIRFLOW__FAB__\w+|AIRFLOW__CORE__\w+)='?([^'\n]+)'?$", page, flags=re.M)
    )
    assert settings.items() <= override["services"]["scheduler"]["environment"].items()
