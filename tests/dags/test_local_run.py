"""The local Airflow: its parts, and one whole run as a person starts it."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from configparser import ConfigParser
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatch_airflow.home import Home
from dispatch_airflow.local_run import control, outcome, watch
from dispatch_airflow.local_run.sample import read_source
from dispatch_airflow.local_run.settings import (
    PORT_VARIABLE,
    SAMPLE,
    LocalRunError,
    Place,
    choose_port,
    environment,
    make_secrets,
)
from dispatch_airflow.local_run.watch import Screen, failure
from dispatch_airflow.processes import processes
from dispatch_core.errors import DispatchAuditError
from spark_jobs.location import Location
from tests.checkout import PYTHONPATH

ROOT = Path(__file__).resolve().parents[2]


def test_days_and_stated_verdicts_come_from_the_sample_itself():
    source = read_source(SAMPLE)
    assert source.recordings == len(source.stated) == 5
    assert source.days == (datetime(2026, 11, 21, tzinfo=UTC),)
    stated = {statement.verdicts["all"] for statement in source.stated.values()}
    assert stated == {"PASS", "FAIL"}


def test_a_source_without_recordings_starts_nothing(tmp_path):
    with pytest.raises(DispatchAuditError, match=re.escape(str(tmp_path))):
        read_source(tmp_path)


def test_a_taken_port_is_named_before_anything_starts(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv(PORT_VARIABLE, str(other.getsockname()[1]))
        with pytest.raises(
            LocalRunError, match=rf"port {other.getsockname()[1]} .* is used.*{PORT_VARIABLE}"
        ):
            choose_port(usual_first=True)


@pytest.mark.parametrize("named", ["http", "0", "70000", "-1"])
def test_what_is_no_port_is_refused(monkeypatch, named):
    monkeypatch.setenv(PORT_VARIABLE, named)
    with pytest.raises(LocalRunError, match="is not a port"):
        choose_port(usual_first=False)


def test_another_airflows_settings_are_not_inherited_but_connections_are(monkeypatch, tmp_path):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW__API__HOST", "0.0.0.0")
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "somewhere.else")
    monkeypatch.setenv("AIRFLOW_CONN_DISPATCH_AUDIT_SMTP", "smtp://mail")
    env = environment(Place(Home(tmp_path)), 4711, "m", scheduled=False)
    assert env["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert env["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert env["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:4711"
    assert "AIRFLOW__SECRETS__BACKEND" not in env
    assert env["AIRFLOW_CONN_DISPATCH_AUDIT_SMTP"] == "smtp://mail"


def test_secrets_are_made_once_before_any_process_starts(tmp_path):
    """Two processes that start together would make different ones, and the tasks' tokens would be refused."""
    place = Place(Home(tmp_path))
    place.airflow.mkdir()
    make_secrets(place)
    assert stat.S_IMODE(place.config.stat().st_mode) == 0o600
    config = ConfigParser(interpolation=None)
    config.read(place.config)
    assert len(base64.urlsafe_b64decode(config["core"]["fernet_key"])) == 32
    assert len(config["api_auth"]["jwt_secret"]) >= 64
    assert config["api"]["secret_key"] != config["api_auth"]["jwt_secret"]
    before = place.config.read_bytes()
    make_secrets(place)
    assert place.config.read_bytes() == before, "connections in the database are encrypted with its key"


def test_only_an_airflow_that_stays_checks_its_database_and_reads_changed_dag_files(tmp_path):
    once, stays = (
        environment(Place(Home(tmp_path)), 1, "m", scheduled=scheduled) for scheduled in (False, True)
    )
    assert once["AIRFLOW__DATABASE__CHECK_MIGRATIONS"] == "False", (
        "its API server starts before the database is made"
    )
    assert "AIRFLOW__DATABASE__CHECK_MIGRATIONS" not in stays
    assert "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL" not in stays


def test_the_run_is_asked_for_its_state_only_when_all_its_tasks_have_ended(tmp_path, monkeypatch):
    """Each call costs the API server a tenth of a second, on the cores that the tasks need."""
    tasks = [("running", None), ("success", "scheduled"), ("success", "running"), ("success", "failed")]
    states = ["running", "failed"]
    asked = []

    class Client:
        def task_instances(self, _dag_id, _run_id):
            now = tasks.pop(0) if tasks else ("success", "failed")
            names = ("pull", "ingest")
            return [{"task_id": name, "state": state} for name, state in zip(names, now, strict=True)]

        def run_state(self, _dag_id, _run_id):
            asked.append(len(tasks))
            return states.pop(0)

    monkeypatch.setattr(watch, "_POLL_S", 0.0)
    monkeypatch.setattr(watch, "is_running", lambda _state: True)
    seen = watch.watch_run(Client(), Place(Home(tmp_path)), "r", Screen(io.StringIO()), 60)
    assert seen == {"": "failed", "pull": "success", "ingest": "failed"}
    assert asked == [0, 0]


def test_two_commands_do_not_work_on_one_home(tmp_path):
    place = Place(Home(tmp_path))
    with control.only_one(place), pytest.raises(LocalRunError, match="at work"), control.only_one(place):
        pass
    with control.only_one(place):
        pass


def test_what_a_killed_run_left_is_ended_by_its_marker_alone(tmp_path):
    place = Place(Home(tmp_path))
    marker = "left-by-a-test"
    env = {**os.environ, "DISPATCH_AUDIT_LOCAL_RUN": marker}
    with (
        subprocess.Popen(["sleep", "600"], env=env, start_new_session=True) as left,
        subprocess.Popen(["sleep", "600"], start_new_session=True) as foreign,
    ):
        state = {"pid": 2**22 + 1, "port": 1, "marker": marker, "stays": True}
        place.state.write_text(json.dumps(state))
        control.end(place)
        assert left.wait(5) == -signal.SIGTERM
        assert foreign.poll() is None
        foreign.kill()
    assert not place.state.exists()


def test_plain_lines_on_a_pipe_and_no_control_character_of_a_log():
    out = io.StringIO()
    screen = Screen(out)
    screen.moving("not on a pipe")
    screen.say("key \x1b]0;title\x07 \x1b[2J\r gone")
    screen.line("FAIL")
    shown = r"\[ +\d+\.\d s\] key \\x1b]0;title\\x07 \\x1b\[2J\\r gone\nFAIL\n"
    assert re.fullmatch(shown, out.getvalue())


@pytest.mark.parametrize(
    ("name", "folder"), [("pull", "task_id=pull"), ("replay[1]", "task_id=replay/map_index=1")]
)
def test_a_failed_task_is_reported_with_its_reason_and_its_log(tmp_path, name, folder):
    place = Place(Home(tmp_path))
    log = place.task_logs("r1") / folder / "attempt=1.log"
    log.parent.mkdir(parents=True)
    detail = [{"exc_type": "AirflowFailException", "exc_value": "/gone: no such file or folder"}]
    entries = [
        {"level": "info", "event": "fine"},
        {"level": "error", "event": "Task failed", "error_detail": detail},
    ]
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + "not JSON\n")
    text = failure(place, "r1", name)
    assert f"task {name} failed:\n  AirflowFailException: /gone: no such file or folder" in text
    assert str(log) in text


def test_an_alert_of_a_verdict_that_was_replaced_is_not_shown(tmp_path):
    day = datetime(2026, 11, 21, tzinfo=UTC)
    alert = {"topic": "t", "subscription": "s", "interval_start": day.isoformat(), "verdict": "FAIL"}
    lines = [alert, {**alert, "verdict": "UNKNOWN"}, {**alert, "interval_start": "2026-11-20T00:00:00+00:00"}]
    path = Location.of(tmp_path / "alerts")
    for number, line in enumerate(lines):
        (path / line["interval_start"][:10] / f"{number}.json").write_text(json.dumps(line))
    assert outcome.current_alerts(path, [day], {("t", "s"): {"all": "UNKNOWN"}}) == [lines[1]]
    assert outcome.current_alerts(path, [day], {("t", "s"): {"all": "PASS"}}) == []


def test_every_difference_from_the_expected_verdicts_is_listed(tmp_path):
    source, day = read_source(SAMPLE), datetime(2026, 11, 21, tzinfo=UTC)
    found = {dispatcher: dict(statement.verdicts) for dispatcher, statement in source.stated.items()}
    passing = next(dispatcher for dispatcher, verdicts in found.items() if verdicts["all"] == "PASS")
    failing = next(dispatcher for dispatcher, verdicts in found.items() if verdicts["all"] == "FAIL")
    found[passing]["conformance"] = "FAIL"
    wrong = outcome.differences(found, source, Home(tmp_path), [day])
    assert f"{source.stated[passing].recording}: conformance is FAIL, stated is PASS" in wrong
    no_alert = [line for line in wrong if "no alert of it arrived" in line]
    assert any(line.startswith(source.stated[failing].recording) for line in no_alert)
    assert any("found, which is stated to be there" in line for line in wrong), (
        "the findings are printed, too"
    )
    del found[passing]
    wrong = outcome.differences(found, source, Home(tmp_path), [day])
    assert f"{source.stated[passing].recording}: no verdict, stated is PASS" in wrong


def _ours(home: Path) -> list[str]:
    assignment = f"DISPATCH_AUDIT_HOME={home}"
    return [
        f"{running.pid} {running.command}"
        for running in processes()
        if running.pid != os.getpid() and (running.has_environment(assignment) or running.works_in(home))
    ]


@pytest.mark.airflow
@pytest.mark.spark
def test_make_run_from_elsewhere_after_a_killed_one(tmp_path):
    """A killed run leaves no process; the next one tells every stated verdict, on plain lines, and cleans up."""
    home = tmp_path / "a home of its own"
    env = {**os.environ, "DISPATCH_AUDIT_HOME": str(home), "PYTHONPATH": PYTHONPATH}
    env["JAVA_HOME"] = str(tmp_path / "none")  # the sample is small: no stage starts Spark
    command = [sys.executable, "-m", "dispatch_airflow.local_run", "run"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as killed:
        assert "Airflow starts" in killed.stdout.readline()
        killed.kill()
    deadline = time.monotonic() + 30
    while left := _ours(home):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)

    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "5 of 5 sample verdicts are as stated" in output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", output), "control characters on a pipe"
    stated = {
        dispatcher: statement.verdicts["all"] for dispatcher, statement in read_source(SAMPLE).stated.items()
    }
    for (topic, subscription), verdict in stated.items():
        assert f"  {verdict:<7} {topic} / {subscription}\n" in output
    assert "went backwards" in output, "the sample's order violation in one sentence"
    assert re.search(r"validate +failed", output), "the audit turns its task red"
    for task in ("pull", "ingest", "replay[0]", "publish_tables", "aggregate", "publish", "alert"):
        assert re.search(rf"{re.escape(task)} +success", output), task
    assert _ours(home) == []
    alerts = [json.loads(path.read_text()) for path in (home / "alerts").rglob("*.json")]
    assert {(alert["topic"], alert["subscription"]) for alert in alerts} == {
        dispatcher for dispatcher, verdict in stated.items() if verdict != "PASS"
    }
    for alert in alerts:
        assert alert["findings"][0]["positions"]
        causes = alert["root_causes"] or [alert["findings"][0]["explanation"]]
        assert causes[0] in alert["body"]
    assert (home / "data-docs" / "index.html").is_file()
    assert not control.read_state(Place(Home(home)))
