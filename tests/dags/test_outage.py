"""A channel that is down for hours: nothing is lost or comes twice, others are not held up. The clock is the test's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatch_airflow import notify, outbox_delivery
from dispatch_airflow.home import Home
from dispatch_airflow.outbox_delivery import ChannelsError
from dispatch_expectations import dispatcher_results
from dispatch_expectations.alert import read_alerts
from dispatch_expectations.alert_outbox import Outbox
from tests.dags.test_notify import (
    _Posts,
    _serving,
    _smtp_connection,
    _SmtpServer,
    _webhook_connection,
    http_endpoint,
    result,
)

pytestmark = pytest.mark.airflow
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def interval(hour: int) -> dict[str, str]:
    """One hour of the day before."""
    start = datetime(2026, 11, 21, tzinfo=UTC) + hour * HOUR
    return {"interval_start": start.isoformat(), "interval_end": (start + HOUR).isoformat()}


class Intervals:
    """The results of hours, which a test sets."""

    def __init__(self) -> None:
        self.results: dict[str, list[Any]] = {}

    def set(self, hour: int, *names: str, clean: bool = False, evidence: str = "e") -> None:
        found = [result(name, clean=clean, evidence=evidence) for name in names]
        start = datetime.fromisoformat(interval(hour)["interval_start"])
        self.results[start.isoformat()] = [
            dispatcher_results.DispatcherResult(
                {
                    name: dispatcher_results.replace(verdict, interval_start=start)
                    for name, verdict in made.verdicts.items()
                },
                made.findings,
            )
            for made in found
        ]


@pytest.fixture
def hours(monkeypatch) -> Intervals:
    intervals = Intervals()
    monkeypatch.setattr(
        dispatcher_results,
        "read_results",
        lambda _warehouse, start, *_: intervals.results.get(start.isoformat(), []),
    )
    return intervals


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("DISPATCH_AUDIT_HOME", str(tmp_path))
    return Home(tmp_path)


@pytest.fixture
def posts(monkeypatch):
    """An endpoint that answers as the test says, as the channel ``webhook``."""
    answers = _Posts()
    with http_endpoint(answers) as port:
        _webhook_connection(monkeypatch, port)
        yield answers


def delivered(posts: _Posts) -> list[str]:
    """Subjects of what was posted."""
    return [body["alert"]["subject"].removeprefix("[dispatch-audit] ") for _headers, body in posts.seen]


def attempts(posts: _Posts, home: Home, *minutes: float) -> list[int]:
    """Make a pass at each of these minutes after noon; return the number of posts of each."""
    made = []
    for minute in minutes:
        before = len(posts.seen)
        outbox_delivery.deliver_due(home, now=NOON + minute * MINUTE)
        made.append(len(posts.seen) - before)
    return made


def test_the_webhook_is_down_for_an_hour_over_several_runs_and_back(hours, home, posts):
    posts.status = 503
    hours.set(0, "a", "b")
    done = notify.alert(interval(0), home, now=NOON)
    assert (done["file"], done["webhook"], done["waiting"]["webhook"]["waiting"]) == (2, 0, 1)
    # 1, 5 and 30 minutes after a failure, and not in between.
    assert attempts(posts, home, 0.5, 1, 2, 5, 6, 20, 36) == [0, 2, 0, 0, 2, 0, 2]
    # The next hour's run tries sooner, and finds the service still down; the alert of b is clear by then.
    hours.set(1, "a")
    hours.results[interval(1)["interval_start"]].append(_at(result("b", clean=True), 1))
    done = notify.alert(interval(1), home, now=NOON + 50 * MINUTE)
    assert (done["webhook"], done["waiting"]["webhook"]["waiting"]) == (0, 2)
    assert done["waiting"]["webhook"]["next_attempt"] == "2026-11-22 18:50 UTC"
    posts.status, posts.seen = 200, []
    hours.set(2, "c")
    done = notify.alert(interval(2), home, now=NOON + 65 * MINUTE)
    assert "waiting" not in done
    assert done["webhook"] == 4
    topic = "persistent://public/default"
    assert delivered(posts) == [
        f"FAIL {topic}/a audit, 2026-11-21: 1 new",
        f"FAIL {topic}/b audit, 2026-11-21: 1 new",
        f"CLEAR {topic}/b audit, 2026-11-21T01-00-00Z: 1 clear",
        f"FAIL {topic}/c audit, 2026-11-21T02-00-00Z: 1 new",
    ], "oldest first, each once; the finding of a goes on, which is no news"
    assert outbox_delivery.deliver_due(home, now=NOON + 70 * MINUTE) == {}
    assert Outbox(home.outbox).outages() == {}
    assert len({headers["Idempotency-Key"] for headers, _body in posts.seen}) == 4
    assert len(read_alerts(home.alerts)) == 4, "the file had each at once"


def _at(found: Any, hour: int) -> Any:
    start = datetime.fromisoformat(interval(hour)["interval_start"])
    verdicts = {
        name: dispatcher_results.replace(verdict, interval_start=start)
        for name, verdict in found.verdicts.items()
    }
    return dispatcher_results.DispatcherResult(verdicts, found.findings)


def test_a_channel_that_is_down_holds_up_no_other(hours, home, posts, monkeypatch):
    posts.status = 503
    server = _SmtpServer()
    hours.set(0, "a")
    hours.set(1, "b")
    with _serving(server) as port:
        _smtp_connection(monkeypatch, port)
        assert notify.alert(interval(0), home, now=NOON)["mail"] == 1
        assert notify.alert(interval(1), home, now=NOON + HOUR)["mail"] == 1
    assert [entry.channel for entry in Outbox(home.outbox).entries()] == ["webhook", "webhook"]


def test_a_message_that_the_service_refuses_holds_up_only_its_subscription(hours, home, posts, monkeypatch):
    refused = {"a"}
    real = outbox_delivery.send_message

    def send(found, message):
        posts.status = 422 if any(f"/{name} " in message.subject for name in refused) else 200
        real(found, message)

    monkeypatch.setattr(outbox_delivery, "send_message", send)
    hours.set(0, "a", "b")
    done = notify.alert(interval(0), home, now=NOON)
    assert (done["webhook"], done["waiting"]["webhook"]["waiting"]) == (1, 1)
    hours.set(1, "a", "c", evidence="other")
    done = notify.alert(interval(1), home, now=NOON + HOUR)
    assert (done["webhook"], done["waiting"]["webhook"]["waiting"]) == (1, 2)
    refused.clear()
    posts.seen = []
    done = outbox_delivery.deliver_due(home, now=NOON + 2 * HOUR)
    assert done == {"file": 0, "webhook": 2}
    assert [subject.rpartition(", ")[2] for subject in delivered(posts)] == [
        "2026-11-21: 1 new",
        "2026-11-21T01-00-00Z: 1 changed",
    ]


def test_a_dead_server_is_not_asked_once_per_interval_of_a_backfill(hours, home, posts):
    posts.status = 503
    for hour in range(20):
        hours.set(hour, f"t{hour}")
        notify.alert(interval(hour), home, now=NOON + hour * timedelta(seconds=10))
    assert len(posts.seen) <= 3 * 4
    posts.status, posts.seen = 200, []
    assert outbox_delivery.deliver_due(home, now=NOON + HOUR)["webhook"] == 20
    assert [subject.split()[1].rpartition("/")[2] for subject in delivered(posts)] == [
        f"t{n}" for n in range(20)
    ]


def test_after_a_day_the_other_channels_are_told_once_and_the_task_is_red(hours, home, posts, monkeypatch):
    server = _SmtpServer()
    hours.set(0, "a")
    with _serving(server) as port:
        _smtp_connection(monkeypatch, 1)
        notify.alert(interval(0), home, now=NOON)
        for hours_later in (1, 8, 16):
            assert "mail" in outbox_delivery.deliver_due(home, now=NOON + hours_later * HOUR)["waiting"]
        posts.seen = []
        for hours_later in (25, 32):
            with pytest.raises(
                ChannelsError, match=r"mail: failing since 2026-11-22 12:00 UTC.*ConnectionRefused"
            ):
                outbox_delivery.deliver_due(home, now=NOON + hours_later * HOUR)
        assert delivered(posts) == ["The channel mail has not taken alerts since 2026-11-22 12:00 UTC"]
        _smtp_connection(monkeypatch, port)
        assert outbox_delivery.deliver_due(home, at_once=True, now=NOON + 33 * HOUR)["mail"] == 1
    assert len(server.mails) == 1
    assert Outbox(home.outbox).outages() == {}


def test_an_interval_whose_run_died_before_its_alerts_is_sent_by_another(hours, home, posts):
    hours.set(0, "a")
    notify.announce(interval(0), home, "https://airflow/run", now=NOON)
    assert outbox_delivery.deliver_due(home, now=NOON + 59 * MINUTE) == {"file": 0, "webhook": 0}
    assert outbox_delivery.deliver_due(home, now=NOON + HOUR) == {"file": 1, "webhook": 1}
    assert posts.seen[0][1]["alert"]["links"]["Airflow run"] == "https://airflow/run"


def test_a_process_that_dies_after_sending_sends_the_same_message_again(hours, home, posts, monkeypatch):
    hours.set(0, "a")
    with monkeypatch.context() as dies:
        dies.setattr(
            "dispatch_expectations.alert.record_sent",
            lambda _warehouse, channel, _rows: (
                None if channel == "file" else (_ for _ in ()).throw(KeyboardInterrupt)
            ),
        )
        with pytest.raises(KeyboardInterrupt):
            notify.alert(interval(0), home, now=NOON)
    assert outbox_delivery.deliver_due(home, now=NOON + MINUTE) == {"file": 0, "webhook": 1}
    keys = [headers["Idempotency-Key"] for headers, _body in posts.seen]
    assert (len(keys), len(set(keys))) == (2, 1)


def test_what_waits_for_a_channel_that_is_gone_is_kept_until_it_is_discarded(
    hours, home, posts, monkeypatch, caplog
):
    posts.status = 503
    hours.set(0, "a")
    notify.alert(interval(0), home, now=NOON)
    kept = monkeypatch.delenv("AIRFLOW_CONN_DISPATCH_AUDIT_WEBHOOK")
    assert kept is None
    caplog.set_level("INFO")
    assert outbox_delivery.deliver_due(home, now=NOON + HOUR) == {"file": 0}
    assert "1 intervals or messages wait for the channel webhook, which there is no more" in caplog.text
    outbox_delivery.discard(home, "webhook")
    assert "discarded for webhook: interval 2026-11-21T00:00:00+00:00" in caplog.text
    assert Outbox(home.outbox).entries() == []


def test_a_broken_policy_keeps_alerts_waiting_and_lets_messages_about_runs_pass(
    hours, home, posts, monkeypatch, tmp_path
):
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\ndefaults: {per_key_order: {out_of_ordr: 1}}\n")
    monkeypatch.setenv("DISPATCH_AUDIT_POLICY", str(policy))
    hours.set(0, "a")
    with pytest.raises(ChannelsError, match="out_of_ordr"):
        notify.alert(interval(0), home, now=NOON)
    notify.send_notice("[dispatch-audit] plan failed", "why", "failed:1", now=NOON)
    assert delivered(posts) == ["plan failed"]
    policy.write_text("version: 1\n")
    assert outbox_delivery.deliver_due(home, now=NOON + 2 * HOUR) == {"file": 1, "webhook": 1}


def test_a_channel_of_the_policy_without_a_connection_is_named_and_its_alerts_wait(
    hours, home, posts, monkeypatch, tmp_path
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nalerts:\n  channels:\n    hook: {connection: dispatch_audit_webhook}\n"
        "    night: {connection: no_such}\n  operations: [hook]\n"
    )
    monkeypatch.setenv("DISPATCH_AUDIT_POLICY", str(policy))
    hours.set(0, "a")
    with pytest.raises(ChannelsError, match=r"night: .*no connection 'no_such'; create it, or take"):
        notify.alert(interval(0), home, now=NOON)
    assert len(posts.seen) == 1
    notify.send_notice("late", "b", "late:1", now=NOON)
    assert [entry.channel for entry in Outbox(home.outbox).entries()] == ["night"]


def test_a_pass_reads_the_outbox_once(hours, home, posts, monkeypatch):
    read = []
    for name in ("entries", "outages"):
        real = getattr(Outbox, name)
        monkeypatch.setattr(Outbox, name, lambda outbox, n=name, real=real: read.append(n) or real(outbox))
    hours.set(0, "a")
    posts.status = 503
    notify.alert(interval(0), home, now=NOON)
    assert sorted(read) == ["entries", "outages"]
    read.clear()
    # A day later another interval is overdue, and the outage is reported: what is put in is known without a look.
    hours.set(1, "b")
    notify.announce(interval(1), home, "run", now=NOON)
    with pytest.raises(ChannelsError, match="webhook: failing since"):
        outbox_delivery.deliver(home, NOON + 25 * HOUR).conclude()
    assert sorted(read) == ["entries", "outages"]
    assert [entry.key[:13] for entry in Outbox(home.outbox).entries()] == ["2026-11-21T00", "2026-11-21T01"]


def test_maintenance_looks_after_the_tables_of_the_outbox(hours, home, posts):
    from spark_jobs.maintenance.maintain import _all_tables

    hours.set(0, "a")
    posts.status = 503
    notify.alert(interval(0), home, now=NOON)
    assert {"entries", "outages", "turns"} <= {place.name for place in _all_tables(home.place)}
