"""Failed runs are reported: once per run, with the error's last lines, and not when promises were broken."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from dispatch_airflow import failures, outbox_delivery
from dispatch_airflow.home import Home
from dispatch_expectations.alert_outbox import Outbox
from tests.dags.test_notify import _Posts, _webhook_connection, http_endpoint

pytestmark = pytest.mark.airflow


def context(
    task_id: str = "ingest", error: object = None, *, cleared: int = 0, **more: Any
) -> dict[str, Any]:
    """Make the context that Airflow gives to a callback, as far as it is used."""
    run = SimpleNamespace(clear_number=cleared, data_interval_start=datetime(2026, 11, 21, tzinfo=UTC))
    task = SimpleNamespace(
        task_id=task_id,
        dag_id="dispatch_audit",
        run_id="scheduled__1",
        map_index=-1,
        log_url="https://airflow/log",
    )
    vars(task).update(more)
    found = {"ti": task, "dag_run": run, "exception": error}
    return {name: value for name, value in found.items() if value is not None}


@pytest.fixture
def posts(monkeypatch, tmp_path):
    """An endpoint as the channel ``webhook``, and a home."""
    monkeypatch.setenv("DISPATCH_AUDIT_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow")
    answers = _Posts()
    with http_endpoint(answers) as port:
        _webhook_connection(monkeypatch, port)
        yield answers


def subjects(posts: _Posts) -> list[str]:
    return [body["alert"]["subject"] for _headers, body in posts.seen]


def test_a_red_task_is_reported_with_its_error_and_the_link_to_its_log(posts):
    lines = "\n".join(f"line {number}" for number in range(100))
    failures.report_failure(context(error=RuntimeError(f"{lines}\nno space left on device")))
    ((_headers, body),) = posts.seen
    assert body["alert"]["subject"] == "[dispatch-audit] ingest failed: dispatch_audit, run scheduled__1"
    assert "no space left on device" in body["text"]
    assert "line 99" in body["text"]
    assert "line 50" not in body["text"]
    assert "Log: https://airflow/log" in body["text"]
    assert "Data interval of the run: from 2026-11-21 00:00:00+00:00" in body["text"]


def test_one_message_per_run_and_another_after_it_was_cleared(posts):
    failures.report_failure(context("replay", RuntimeError("a"), map_index=0))
    failures.report_failure(context("replay", RuntimeError("b"), map_index=1))
    failures.report_failure(context("report", RuntimeError("c")))
    assert subjects(posts) == ["[dispatch-audit] replay failed: dispatch_audit, run scheduled__1"]
    assert "The task replay[0] of" in posts.seen[0][1]["text"]
    failures.report_failure(context("replay", RuntimeError("d"), cleared=1))
    assert len(posts.seen) == 2


def test_broken_promises_have_an_alert_of_their_own(posts):
    failures.report_failure(context("validate", failures.BrokenPromisesError("FAIL")))
    assert posts.seen == []


def test_a_task_whose_process_was_killed_is_reported_without_an_error(posts):
    failures.report_failure(context())
    assert "no error was noted; the task's process may have been killed" in posts.seen[0][1]["text"]


def test_a_failure_while_the_channel_is_down_is_sent_when_it_is_back(posts, tmp_path):
    posts.status = 503
    failures.report_failure(context(error=RuntimeError("a")))
    assert [entry.kind for entry in Outbox(Home(tmp_path).outbox).entries()] == ["notice"]
    posts.status = 200
    assert outbox_delivery.deliver_due(Home(tmp_path), at_once=True) == {"file": 0, "webhook": 1}
    assert len(subjects(posts)) == 2


def test_a_home_that_cannot_be_reached_is_reported_all_the_same(posts, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DISPATCH_AUDIT_HOME", str(blocked / "home"))
    with pytest.raises(Exception, match=r"could not be put into the outbox .* it was sent without it"):
        failures.report_failure(context(error=RuntimeError("a")))
    assert len(posts.seen) == 1


def test_without_channels_nothing_waits(monkeypatch, tmp_path):
    monkeypatch.setenv("DISPATCH_AUDIT_HOME", str(tmp_path))
    failures.report_failure(context(error=RuntimeError("a")))
    assert Outbox(Home(tmp_path).outbox).entries() == []
