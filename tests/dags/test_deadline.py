"""Notices about scheduled runs without a verdict in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dispatch_airflow import deadline, notify
from dispatch_airflow.home import Home
from dispatch_core.errors import DispatchAuditError

RUN = {
    "dag_id": "dispatch_audit",
    "dag_run_id": "scheduled__2026-11-22T00:00:00+00:00",
    "run_type": "scheduled",
    "state": "running",
    "logical_date": "2026-11-21T00:00:00Z",
    "data_interval_start": "2026-11-21T00:00:00Z",
    "start_date": "2026-11-22T00:00:01Z",
}
DUE = {"id": "1", "deadline_time": datetime(2026, 11, 22, 6, tzinfo=UTC)}


@pytest.fixture
def notices(monkeypatch) -> list[tuple[str, str, str]]:
    """Collect notices instead of sending them."""
    sent: list[tuple[str, str, str]] = []
    monkeypatch.setattr(
        notify, "send_notice", lambda subject, body, key: sent.append((subject, body, key)), raising=False
    )
    return sent


@pytest.mark.parametrize(
    ("state", "says"),
    [("running", "still running"), ("queued", "waiting to start"), ("failed", "ended without a verdict")],
)
def test_a_late_scheduled_run_is_reported_with_what_to_do(notices, monkeypatch, state, says):
    monkeypatch.setattr(deadline, "judged", lambda _home, _start: False)
    deadline.report_if_late({"dag_run": {**RUN, "state": state}, "deadline": DUE})
    [(subject, body, key)] = notices
    assert subject == "No verdict in time: dispatch audit of 2026-11-21T00:00:00Z"
    assert "judged by 2026-11-22 06:00:00+00:00" in body
    assert RUN["dag_run_id"] in body
    assert says in body
    assert RUN["dag_run_id"] in key


def test_a_run_that_failed_because_of_its_verdict_is_not_late(notices, monkeypatch):
    monkeypatch.setattr(deadline, "judged", lambda _home, start: start == "2026-11-21T00:00:00Z")
    deadline.report_if_late({"dag_run": {**RUN, "state": "failed"}, "deadline": DUE})
    assert notices == []


@pytest.mark.parametrize("run_type", ["backfill", "manual", "asset_triggered"])
def test_only_scheduled_runs_are_reported(notices, monkeypatch, run_type):
    monkeypatch.setattr(deadline, "judged", lambda _home, _start: False)
    deadline.report_if_late({"dag_run": {**RUN, "run_type": run_type}, "deadline": DUE})
    assert notices == []


def test_the_verdicts_of_another_source_are_looked_for_in_its_own_tables(notices, monkeypatch, tmp_path):
    monkeypatch.setenv("DISPATCH_AUDIT_HOME", str(tmp_path))
    monkeypatch.setenv("DISPATCH_AUDIT_SOURCES", '{"orders": "s3://logs/orders"}')
    looked_in = []
    monkeypatch.setattr(deadline, "judged", lambda home, _start: looked_in.append(home.namespace))
    for dag_id in ("dispatch_audit", "dispatch_audit_orders"):
        deadline.report_if_late({"dag_run": {**RUN, "dag_id": dag_id}, "deadline": DUE})
    assert looked_in == ["", "sources/orders"]


def test_an_interval_without_a_warehouse_is_not_judged(tmp_path):
    assert deadline.judged(Home(tmp_path), "2026-11-21T00:00:00Z") is False


@pytest.mark.parametrize(
    ("schedule", "allowed"),
    [
        ("0 0 * * *", timedelta(hours=30)),
        ("0 0 * * 1", timedelta(days=7, hours=6)),
        ("0 * * * *", timedelta(minutes=75)),
        ("@hourly", timedelta(minutes=75)),
        ("*/30 * * * *", timedelta(minutes=45)),
        # From 18:00 to 8:00.
        ("0 8-18 * * *", timedelta(hours=14, minutes=15)),
    ],
)
def test_the_time_allowed_is_that_of_the_longest_interval_or_the_environments(monkeypatch, schedule, allowed):
    monkeypatch.delenv(deadline.HOURS_VARIABLE, raising=False)
    assert deadline.time_allowed(schedule) == allowed
    monkeypatch.setenv(deadline.HOURS_VARIABLE, "1.5")
    assert deadline.time_allowed(schedule) == timedelta(minutes=90)


def test_a_schedule_that_is_no_cron_expression_is_named(monkeypatch):
    monkeypatch.delenv(deadline.HOURS_VARIABLE, raising=False)
    with pytest.raises(DispatchAuditError, match="'every hour' is no cron expression"):
        deadline.time_allowed("every hour")


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "1e9"])
def test_what_is_no_time_is_refused_by_name(monkeypatch, text):
    monkeypatch.setenv(deadline.HOURS_VARIABLE, text)
    with pytest.raises(DispatchAuditError, match=f"{deadline.HOURS_VARIABLE} is '{text}'"):
        deadline.time_allowed("0 0 * * *")
