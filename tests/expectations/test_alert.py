"""Alerts say what broke, how often, with evidence; the same news has the same key; names forge no header."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from expectations.alert import Alert, FileAlertSink, alerts_for_interval, build_alerts, read_alerts
from expectations.findings import read_findings
from expectations.validate import read_verdicts, validate_interval
from tests.expectations.make import DAY, TOPIC, Day

FORGED = "t\r\nBcc: all@example.org"


def alerts_of(folder: Path, day: Day) -> list[Alert]:
    warehouse = day.write(folder / "warehouse")
    validate_interval(warehouse, DAY, folder / "docs")
    return alerts_for_interval(warehouse, DAY, folder / "docs")


def broken_day() -> Day:
    day = Day()
    day.dispatcher("persistent://public/default/healthy")
    who = day.dispatcher()
    day.anomaly(who, "out_of_order")
    day.anomaly(who, "out_of_order", seqs=[9, 10], positions=["5:9", "5:8"])
    day.anomaly(who, "split_key", key="order-18", seqs=[5, 6])
    day.anomaly(who, "redelivered", cause="nack")
    day.anomaly(day.dispatcher(FORGED), "out_of_order", key="k\nVerdict: PASS")
    day.dispatcher("blind")
    day.rows["dispatcher_state"][-1]["not_judged_reason"] = "the rule of 3.x is not replayed"
    return day


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judged day: two broken dispatchers, one not judged, one healthy."""
    folder = tmp_path_factory.mktemp("broken")
    alerts_of(folder, broken_day())
    return folder


@pytest.fixture(scope="module")
def alerts(home: Path) -> list[Alert]:
    return alerts_for_interval(home / "warehouse", DAY, home / "docs")


def test_the_text_has_key_positions_reason_and_where_to_look(home: Path, alerts: list[Alert]) -> None:
    (alert,) = (one for one in alerts if one.topic == TOPIC)
    assert (alert.topic, alert.verdict, alert.severity) == (TOPIC, "FAIL", "critical")
    assert alert.subject == f"[dispatch-audit] FAIL {TOPIC} audit, 2026-11-21"
    for part in (
        "entries sent after a later entry of their key: 2",
        "- out_of_order: 2",
        "out_of_order (critical), key order-17, 2 times",
        "out_of_order: key order-17 went backwards at worker-2: it got 5:2 and then 5:1",
        "positions: 5:2, 5:1",
        "split_key (critical), key order-18, 1 times",
        str(home / "docs/2026-11-21/index.html"),
        str(home / "warehouse"),
    ):
        assert part in alert.body, part
    assert "redelivered" not in alert.body
    assert [(one.kind, one.subject, one.count) for one in alert.findings] == [
        ("out_of_order", "key order-17", 2),
        ("split_key", "key order-18", 1),
    ]


def test_unknown_alerts_too_and_says_why(alerts: list[Alert]) -> None:
    alert = alerts[-1]
    assert (alert.verdict, alert.topic) == ("UNKNOWN", "blind")
    assert "conformance: UNKNOWN: decisions were not compared with the rule: the rule of 3.x" in alert.body


def test_whoever_passed_gets_no_alert(alerts: list[Alert]) -> None:
    assert sorted(alert.topic for alert in alerts) == ["blind", TOPIC, FORGED]


def test_same_news_same_key_and_changed_evidence_another(home: Path, alerts: list[Alert]) -> None:
    verdicts = read_verdicts(home / "warehouse", DAY)
    findings = read_findings(home / "warehouse", DAY, ["out_of_order", "split_key"])

    def alert(**fields: Any) -> Alert:
        changed = [replace(one, **(fields if one.kind == "out_of_order" else {})) for one in findings]
        built = build_alerts(verdicts, changed, home / "docs", home / "warehouse")
        return next(one for one in built if one.topic == TOPIC)

    same, later, milder, more = alert(), alert(first_seq=5), alert(severity="major"), alert(count=9)
    assert same.idempotency_key == more.idempotency_key
    assert same.idempotency_key in {one.idempotency_key for one in alerts}
    assert len({same.idempotency_key, later.idempotency_key, milder.idempotency_key}) == 3
    identities = [{one.identity for one in each.findings} for each in (same, later, milder, more)]
    assert identities == [identities[0]] * 4


def test_names_cannot_forge_a_mail_header(alerts: list[Alert]) -> None:
    (alert,) = (one for one in alerts if one.topic == FORGED)
    assert alert.subject.isprintable()
    assert not any(line.startswith(("Bcc:", "Verdict: PASS")) for line in alert.body.splitlines())


def test_the_file_holds_each_alert_once(tmp_path: Path, alerts: list[Alert]) -> None:
    sink = FileAlertSink(tmp_path / "alerts/alerts.jsonl")
    assert [sink.send(alerts[:1]), sink.send(alerts), sink.send(alerts), sink.send([])] == [1, 2, 0, 0]
    assert read_alerts(sink.path) == [alert.as_json() for alert in alerts]


def test_half_a_line_of_a_killed_writer_spoils_nothing(tmp_path: Path, alerts: list[Alert]) -> None:
    sink = FileAlertSink(tmp_path / "alerts.jsonl")
    sink.path.write_text('{"idempotency_key": "half')
    assert sink.send(alerts) == 3
    assert len(read_alerts(sink.path)) == 3


def test_writers_at_the_same_time_write_each_once(tmp_path: Path, alerts: list[Alert]) -> None:
    with ThreadPoolExecutor(8) as writers:
        sent = [writers.submit(FileAlertSink(tmp_path / "alerts.jsonl").send, alerts) for _ in range(8)]
    assert sorted(one.result() for one in sent) == [0] * 7 + [3]
    assert len(read_alerts(tmp_path / "alerts.jsonl")) == 3
