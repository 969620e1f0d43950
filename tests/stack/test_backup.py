"""Airflow's database is dumped while it is in use and restored into a new cluster, by the commands of docs/operate.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatch_airflow.local_run.client import ApiError
from tests.stack.airflow import Airflow
from tests.stack.compose import ROOT
from tests.stack.native import Stack
from tests.stack.stand_ins import Postgres, program

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

COMMAND = re.compile(r"^    docker compose exec -T postgres (pg_\w+) (.*) ([<>])airflow\.dump$", flags=re.M)
COMMANDS = {
    name: (shlex.split(words), way)
    for name, words, way in COMMAND.findall((ROOT / "docs" / "operate.md").read_text(encoding="utf-8"))
}
PASSWORD = "of a connection"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("backup") / "stack", {})
    try:
        made.start(only=["api-server"])
        yield made
    finally:
        made.end()


def run(postgres: Postgres, name: str, file: Path) -> None:
    """Run a command of the page at the server, with the dump as its input or output."""
    words, way = COMMANDS[name]
    with file.open("rb" if way == "<" else "wb") as dump:
        streams = {"stdin" if way == "<" else "stdout": dump}
        environment = os.environ | postgres.environment()
        done = subprocess.run(
            [program(name), *words],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            **streams,
        )
    assert done.returncode == 0, done.stderr


def airflow(stack: Stack, *words: str) -> str:
    """Run a command of Airflow on the machine of the API server."""
    server = stack.running["api-server"]
    done = subprocess.run(
        stack.inside("api-server", ["airflow", *words]),
        cwd=stack.machine("api-server"),
        env=server.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def log_in(stack: Stack) -> Airflow | None:
    try:
        return Airflow.login(stack)
    except ApiError:
        return None


def test_airflow_comes_up_on_a_restored_database_with_its_runs(stack: Stack, tmp_path: Path) -> None:
    assert set(COMMANDS) == {"pg_dump", "pg_restore"}
    airflow(stack, "dags", "reserialize")
    before = stack.until(lambda: log_in(stack), "the login", 60)
    days = [datetime(2026, 11, day, tzinfo=UTC) for day in (20, 21)]
    runs = {before.trigger({"source": "/recordings"}, day=day) for day in days}
    words = ("--conn-type", "http", "--conn-host", "https://example.org", "--conn-password", PASSWORD)
    airflow(stack, "connections", "add", "kept", *words)
    dump = tmp_path / "airflow.dump"
    run(stack.postgres, "pg_dump", dump)

    lost = stack.postgres
    lost.end()
    assert not lost.folder.exists()
    stack.postgres = Postgres(lost.port, lost.password)
    stack.postgres.start()
    stack.until(stack.postgres_is_healthy, "Postgres", 60)
    stack.postgres.create_database()
    run(stack.postgres, "pg_restore", dump)
    stack.kill("api-server")

    airflow(stack, "db", "check-migrations", "--migration-wait-timeout", "0")
    after = stack.until(lambda: log_in(stack), "the login", 180)
    found = {run["dag_run_id"]: run["conf"]["source"] for run in after.runs("manual")}
    assert found == dict.fromkeys(runs, "/recordings")
    assert after.trigger({}, day=days[0]) not in runs
    # The password can be read, because the secret files are those of before.
    assert PASSWORD in airflow(stack, "connections", "get", "kept", "--output", "json")
