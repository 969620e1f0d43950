"""Log in with FAB as docs/login.md says: users of the database, and an OpenID Connect provider of the test."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkout import ROOT
from tests.install.test_installed import Environment, as_json, wheel
from tests.stack.stand_ins import HOST, free_port

pytestmark = [pytest.mark.slow, pytest.mark.airflow]
__all__ = ["wheel"]

PAGE = (ROOT / "docs" / "login.md").read_text(encoding="utf-8")
DAG = "dispatch_audit"
REPORT = "reports/2026-11-21/index.html"
START_S = 180
USERS = {
    "reader": {"groups": ["audit-readers"]},
    "admin": {"groups": ["audit-admins", "everybody"]},
    "stranger": {"groups": ["everybody"]},
}


class Pages:
    """An Airflow with FAB: environment, address, and the run that its admin has triggered."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.port = free_port()
        self.base = f"http://{HOST}:{self.port}"
        self.run = ""

    def must(self, *arguments: str) -> str:
        done = self.environment.run("airflow", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def served(self, **settings: str) -> Iterator[None]:
        """Serve Airflow's pages, with further settings."""
        folder = self.environment.folder
        with (folder / "api-server.log").open("ab") as log:
            server = subprocess.Popen(
                [
                    str(folder / "bin" / "airflow"),
                    "api-server",
                    "--host",
                    HOST,
                    "--port",
                    str(self.port),
                    "--workers",
                    "1",
                ],
                cwd=folder,
                env=self.environment.variables | settings,
                stdout=log,
                stderr=log,
            )
        try:
            until_answered(f"{self.base}/api/v2/monitor/health")
            yield
        finally:
            server.terminate()
            server.wait(60)

    def client(self, token: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.base, headers=headers, timeout=60, trust_env=False)

    def trigger(self, client: httpx.Client) -> httpx.Response:
        return client.post(
            f"/api/v2/dags/{DAG}/dagRuns", json={"logical_date": datetime.now(UTC).isoformat()}
        )


def until_answered(url: str) -> None:
    give_up = time.monotonic() + START_S
    while True:
        try:
            if httpx.get(url, timeout=10, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < give_up, f"{url} does not answer"
        time.sleep(0.5)


def settings_of_the_page() -> dict[str, str]:
    """Return the variables that the page gives for FAB."""
    return {
        name: value.strip("'") for name, value in re.findall(r"^    (AIRFLOW__\w+)=(\S.*)$", PAGE, flags=re.M)
    }


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Pages:
    """A database with an admin, a viewer with the tab and a user without rights; a report; a run."""
    made = Environment(
        tmp_path_factory.mktemp("login") / "venv", wheel, "airflow,fab", "oidc-provider-mock==0.3.4"
    )
    folder = made.folder
    (folder / "dags").mkdir()
    (folder / "dags" / "dispatch.py").write_text("from dispatch_airflow.dags import every_dag\nevery_dag()\n")
    (folder / "home" / REPORT).parent.mkdir(parents=True)
    (folder / "home" / REPORT).write_text("<p>a report</p>")
    made.variables |= settings_of_the_page() | {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 64,
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__FAB__AUTH_RATE_LIMITED": "False",
        "DISPATCH_AUDIT_HOME": str(folder / "home"),
        "DISPATCH_AUDIT_SCHEDULE": "none",
    }
    airflow = Pages(made)
    airflow.must("db", "migrate")
    airflow.must("dags", "reserialize")
    for name, role in (("db-admin", "Admin"), ("db-viewer", "Viewer"), ("db-nobody", "Public")):
        words = ["--username", name, "--role", role, "--password", name, "--email", f"{name}@example.org"]
        airflow.must("users", "create", *words, "--firstname", name, "--lastname", "Example")
    airflow.must("users", "add-role", "--username", "db-viewer", "--role", "Tabs")
    return airflow


def assert_sees_and_cannot_trigger(pages: Pages, client: httpx.Client) -> None:
    """Assert the rights of a viewer."""
    assert client.get(f"/api/v2/dags/{DAG}/dagRuns/{pages.run}").status_code == 200
    plugins = client.get("/api/v2/plugins")
    assert plugins.status_code == 200, plugins.text
    (views,) = [p["external_views"] for p in plugins.json()["plugins"] if p["name"] == "dispatch_audit"]
    assert {view["destination"] for view in views} == {"nav", "dag_run"}
    assert "Reports" in client.get("/dispatch-audit/").text
    assert client.get(f"/dispatch-audit/{REPORT}").text == "<p>a report</p>"
    tab = client.get(f"/dispatch-audit/runs/{DAG}/{pages.run}")
    assert (tab.status_code, "has not published a page yet" in tab.text) == (200, True)
    assert pages.trigger(client).status_code == 403
    paused = client.patch(f"/api/v2/dags/{DAG}", json={"is_paused": True})
    assert paused.status_code == 403
    assert client.get("/api/v2/connections").status_code == 403


def assert_sees_nothing(pages: Pages, client: httpx.Client) -> None:
    """Assert that somebody is logged in and has no rights."""
    for path in ("/dispatch-audit/", f"/dispatch-audit/{REPORT}", f"/dispatch-audit/runs/{DAG}/{pages.run}"):
        answer = client.get(path)
        assert answer.status_code == 403, (path, answer.status_code)
        assert "a report" not in answer.text
    assert client.get(f"/api/v2/dags/{DAG}/dagRuns/{pages.run}").status_code == 403


def test_users_of_the_database_have_the_rights_of_their_roles(pages: Pages) -> None:
    with pages.served():

        def logged_in(name: str) -> httpx.Client:
            answer = pages.client().post("/auth/token", json={"username": name, "password": name})
            assert answer.status_code == 201, answer.text
            return pages.client(answer.json()["access_token"])

        triggered = pages.trigger(logged_in("db-admin"))
        assert triggered.status_code == 200, triggered.text
        pages.run = triggered.json()["dag_run_id"]
        assert_sees_and_cannot_trigger(pages, logged_in("db-viewer"))
        assert_sees_nothing(pages, logged_in("db-nobody"))
        wrong = pages.client().post("/auth/token", json={"username": "db-admin", "password": "guessed"})
        assert wrong.status_code == 401
        anonymous = pages.client().get("/dispatch-audit/")
        assert anonymous.status_code == 401
        assert (
            '<a href="/auth/login/' in anonymous.text or f'<a href="{pages.base}/auth/login' in anonymous.text
        )


@pytest.fixture
def provider(pages: Pages) -> Iterator[str]:
    """The address of an OpenID Connect provider with three users."""
    port = free_port()
    command = [str(pages.environment.folder / "bin" / "oidc-provider-mock"), "--port", str(port)]
    for name, claims in USERS.items():
        user = {"sub": name, "preferred_username": name, "email": f"{name}@example.org", **claims}
        command += ["--user-claims", json.dumps(user)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_answered(f"http://{HOST}:{port}/.well-known/openid-configuration")
        yield f"http://{HOST}:{port}"
    finally:
        server.terminate()
        server.wait(20)


def test_groups_of_an_openid_connect_provider_give_the_rights(pages: Pages, provider: str) -> None:
    folder = pages.environment.folder
    (folder / "oidc_client_secret").write_text("a secret\n")
    (written,) = re.findall(r"```py\n(.*?)```", PAGE, flags=re.S)
    config = written.replace("https://login.example.org", provider)
    config = config.replace("/run/secrets/oidc_client_secret", str(folder / "oidc_client_secret"))
    (folder / "webserver_config.py").write_text(config)
    with pages.served(AIRFLOW__FAB__CONFIG_FILE=str(folder / "webserver_config.py")):

        def logged_in(name: str) -> httpx.Client:
            client = pages.client()
            asked = client.get("/auth/login/oidc", params={"next": f"{pages.base}/dispatch-audit/"})
            assert asked.status_code == 302, asked.text
            allowed = client.post(asked.headers["location"], data={"sub": name})
            assert allowed.headers["location"].startswith(f"{pages.base}/auth/oauth-authorized/oidc?")
            back = client.get(allowed.headers["location"])
            assert back.status_code == 302, back.text
            client.get(back.headers["location"], follow_redirects=True)
            return client

        assert_sees_and_cannot_trigger(pages, logged_in("reader"))
        assert_sees_nothing(pages, logged_in("stranger"))
        assert pages.trigger(logged_in("admin")).status_code == 200
        users: Any = as_json(pages.must("users", "list", "--output", "json"))
        roles = {user["username"]: user["roles"] for user in users}
        assert set(roles["reader"]) == {"Viewer", "Tabs", "Public"}
        assert set(roles["stranger"]) == {"Public"}
