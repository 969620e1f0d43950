"""Expectations on single rows show the rows behind the counts: no more and no fewer, and they decide nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.audit.catalogue import HANDOVER, KINDS
from dispatch_core.audit.promises.every import PROMISES
from dispatch_core.audit.promises.promise import FAIL, UNKNOWN, Check
from dispatch_expectations import data_docs_pages, result_tables
from dispatch_expectations.frames import dispatcher_frame
from dispatch_expectations.policy import load_policy
from dispatch_expectations.promise import gx_severity
from dispatch_expectations.result_tables import rows_over_limits, whole_table
from dispatch_expectations.validate import validate_interval
from tests.expectations.make import DAY, Day


def over_limits(folder: Path, day: Day, policy: Path | None = None) -> dict[str, list[tuple[str, str]]]:
    """The rows over a limit, as (topic, over_limit), by table; tables without any are left out."""
    warehouse, rules = day.write(folder / "warehouse"), load_policy(policy)
    found = rows_over_limits(warehouse, DAY, dispatcher_frame(warehouse, DAY, rules), rules)
    return {
        name: list(zip(table.frame["topic"], table.frame["over_limit"], strict=True))
        for name, table in found.items()
        if len(table.frame)
    }


def test_only_what_breaks_a_promise_is_shown(tmp_path: Path) -> None:
    day = Day()
    broken, tolerated = day.dispatcher("broken"), day.dispatcher("tolerated")
    day.anomaly(broken, "out_of_order")
    day.anomaly(broken, "stuck_key", uncertain=True)
    day.anomaly(broken, "redelivered", severity="info", cause="nack")
    day.anomaly(broken, "redelivered", severity="info")
    day.anomaly(broken, "split_key", severity="info", reason=HANDOVER)
    for kind, fields in (("overtaken_redelivery", {}), ("redelivered", {"cause": "disconnect"})):
        day.anomaly(tolerated, kind, severity="info", **fields)
    assert over_limits(tmp_path, day) == {
        "anomalies": [("broken", "out_of_order"), ("broken", "stuck_key"), ("broken", "redelivered")]
    }


def test_a_number_that_the_policy_tolerates_shows_no_rows(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\ndefaults: {per_key_order: {out_of_order: 2}}\n")
    day = Day()
    for topic, number in (("two", 2), ("three", 3)):
        who = day.dispatcher(topic)
        for _ in range(number):
            day.anomaly(who, "out_of_order")
    assert over_limits(tmp_path, day, policy) == {"anomalies": [("three", "out_of_order")] * 3}


def test_every_table_shows_its_rows(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\ndefaults: {completeness: {wait_ms_p99: 50}}\n")
    day = Day()
    who = day.dispatcher("odd")
    day.dispatcher("even")
    day.of("waits", who)[0].update(wait_ms_p50=1.0, wait_ms_p99=51.0, wait_ms_max=51.0)
    day.of("dispatcher_state", who)[0].update(divergent=1)
    differs = {"t_us": 1, "decision_class": "dispatch", "expected": "w1", "recorded": "w2"}
    day.add("divergences", **who, seq=3, status="divergent", **differs)
    day.add("divergences", **who, seq=4, status="uncertain", **differs)
    busy, idle = day.of("balance", who)
    busy.update(messages=90_000, keys=900, message_share=0.9, hash_share=0.2)
    idle.update(messages=10_000, keys=900, message_share=0.1, hash_share=0.8)
    file = day.of("consumer_events", who)[0]["source_file"]
    day.add(
        "quarantine", source_file=file, source_line=7, field="seq", reason="no number", raw_truncated=False
    )
    found = over_limits(tmp_path, day, policy)
    assert found == {
        "divergences": [("odd", "dispatch")],
        "waits": [("odd", "wait_ms_p99")],
        "balance": [("odd", "max_share_ratio")] * 2,
        "quarantine": [("", "seq")],
    }
    validate_interval(tmp_path / "warehouse", DAY, tmp_path / "docs", load_policy(policy))
    pages = {
        path.parts[-4]: path.read_text() for path in (tmp_path / "docs").rglob("validations/*/*/*/*.html")
    }
    assert "the rule says w1, the broker did w2" in pages["rows_divergences"]
    assert "landing/odd/trace.jsonl:7" in pages["rows_quarantine"]
    assert "4.50" in pages["rows_balance"]
    assert "worker-1" in pages["rows_balance"]
    assert "worker-2" not in pages["rows_balance"], "its share is small enough"
    assert "51" in pages["rows_waits"]


@pytest.mark.slow
def test_a_page_names_topic_key_and_position_of_each_row_and_says_where_the_rest_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_docs_pages, "MOST_SHOWN", 2)
    day = Day()
    who = day.dispatcher()
    for number in range(3):
        day.anomaly(who, "out_of_order", key=f"order-{number}", positions=[f"5:{number}", "5:0"])
    validate_interval(day.write(tmp_path / "warehouse"), DAY, tmp_path / "docs")
    page = next((tmp_path / "docs").rglob("validations/rows_anomalies/*/*/*.html")).read_text()
    for shown in (
        "order-0",
        "5:0, 5:0",
        "order-1",
        "5:1, 5:0",
        "not met (critical)",
        KINDS["out_of_order"].definition,
    ):
        assert shown in page, shown
    assert "order-2" not in page
    assert "2 of 3 rows are shown; all are in the table anomalies." in page
    assert "docs/anomalies.md#out_of_order" in page


def test_frames_are_bounded_and_count_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_tables, "MAX_ROWS", 2)
    monkeypatch.setattr(result_tables, "MAX_OWN_ROWS", 3)
    day = Day()
    who = day.dispatcher()
    for kind in ("ack_hole", "ack_hole", "out_of_order", "ack_hole"):
        day.anomaly(who, kind, severity=KINDS[kind].severity)
    warehouse, policy = day.write(tmp_path / "warehouse"), load_policy()
    found = rows_over_limits(warehouse, DAY, dispatcher_frame(warehouse, DAY, policy), policy)["anomalies"]
    assert list(found.frame["kind"]) == ["out_of_order", "ack_hole"], "the worst first"
    assert (found.total, found.is_cut) == (4, True)
    own = whole_table(warehouse, DAY, "anomalies", policy)
    assert (len(own.frame), own.total, own.is_cut) == (3, 4, True)


def test_expectations_say_what_they_are_about_in_words() -> None:
    described = {check.column: check.describe(3) for promise in PROMISES for check in promise.checks}
    assert described["out_of_order"] == "FAIL above 3: entries sent after a later entry of their key"
    assert described["replay_missing"] == (
        "UNKNOWN where the log of this interval was ingested but no replay of it was published"
    )
    assert described["wait_ms_max"] == "FAIL above 3: ms that an entry waited for its first delivery"
    assert not [words for words in described.values() if "{" in words]


def test_severities_are_those_of_great_expectations() -> None:
    severities = {check.column: gx_severity(check) for promise in PROMISES for check in promise.checks}
    assert (
        severities["out_of_order"]
        == severities["double_outstanding"]
        == severities["quarantined"]
        == "critical"
    )
    assert severities["ack_hole"] == severities["max_share_ratio"] == severities["log_gap"] == "warning"
    assert gx_severity(Check("x", FAIL, "x", kinds=("hot_key",))) == "warning", "it breaks a promise"
    assert gx_severity(Check("x", UNKNOWN, "x", kinds=("out_of_order",))) == "warning", "it proves nothing"
