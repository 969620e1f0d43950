"""Verdicts on real Delta tables: Great Expectations decides; every promise can PASS, FAIL and stay UNKNOWN."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.catalogue import HANDOVER, KINDS, ORDER_NOT_PROMISED
from dispatch_core.audit.promises.counts import Counts
from dispatch_core.audit.verdict import verdicts as audit_verdicts
from dispatch_expectations.policy import Policy, load_policy
from dispatch_expectations.validate import main, overall, read_verdicts, validate_interval
from dispatch_expectations.verdict import Verdict
from spark_jobs.warehouse.delta_tables import has_table
from tests.checkout import PYTHONPATH
from tests.expectations.make import DAY, NEXT_DAY, TOPIC, Day

Spoil = Callable[[Day, dict[str, Any]], Any]


def judged(folder: Path, day: Day, policy: Policy | None = None) -> dict[tuple[str, str], Verdict]:
    """Verdicts by (topic, promise)."""
    verdicts = validate_interval(day.write(folder / "warehouse"), DAY, folder / "docs", policy)
    return {(verdict.topic, verdict.promise): verdict for verdict in verdicts}


def command(warehouse: Path, folder: Path) -> list[str]:
    """Arguments of the command for the day of the tests."""
    docs = str(folder / "docs")
    return ["--warehouse", str(warehouse), "--interval-start", "2026-11-21", "--data-docs", docs]


def first(table: str, **fields: Any) -> Spoil:
    return lambda day, who: day.of(table, who)[0].update(fields)


def state(**fields: Any) -> Spoil:
    return first("dispatcher_state", **fields)


def finding(kind: str, **fields: Any) -> Spoil:
    return lambda day, who: day.anomaly(who, kind, **fields)


def skewed(messages: int, keys: int) -> Spoil:
    """One of the two consumers gets nine tenths of the load for a fifth of the hash space."""

    def spoil(day: Day, who: dict[str, Any]) -> None:
        busy, idle = day.of("balance", who)
        busy.update(messages=messages * 9 // 10, keys=keys, message_share=0.9, hash_share=0.2)
        idle.update(messages=messages // 10, keys=keys, message_share=0.1, hash_share=0.8)

    return spoil


def quarantine(day: Day, who: dict[str, Any]) -> None:
    file = day.of("consumer_events", who)[0]["source_file"]
    day.add(
        "quarantine", source_file=file, source_line=7, field="seq", reason="is no number", raw_truncated=False
    )


def both(*spoils: Spoil) -> Spoil:
    return lambda day, who: [spoil(day, who) for spoil in spoils]


def drop(table: str, last: int | None = None) -> Spoil:
    return lambda day, who: day.drop(table, who, last)


DIFFERS = {"t_us": 1, "decision_class": "dispatch", "status": "divergent", "expected": "a", "recorded": "b"}
CASES: dict[str, tuple[Spoil, str, str, str]] = {
    "order": (
        finding("out_of_order"),
        "per_key_order",
        "FAIL",
        "entries sent after a later entry of their key: 1",
    ),
    "split": (finding("split_key"), "per_key_order", "FAIL", "outstanding at another: 1"),
    "maybe order": (finding("out_of_order", uncertain=True), "per_key_order", "UNKNOWN", "cannot prove: 1"),
    "gap": (finding("log_gap", key=None), "per_key_order", "UNKNOWN", "gaps in the log: 1"),
    "stranger": (
        finding("unknown_consumer", key=None),
        "input_quality",
        "FAIL",
        "that the log does not show as connected: 1",
    ),
    "overtaken": (
        finding("overtaken_redelivery"),
        "per_key_order",
        "PASS",
        "tolerated: 1 overtaken_redelivery",
    ),
    "double": (finding("double_outstanding"), "duplicate_delivery", "FAIL", "at two consumers at once: 1"),
    "after ack": (
        finding("duplicate_after_ack"),
        "duplicate_delivery",
        "FAIL",
        "after their acknowledgement: 1",
    ),
    "no cause": (finding("redelivered"), "duplicate_delivery", "FAIL", "cause unexplained: 1"),
    "nack": (
        finding("redelivered", cause="nack"),
        "duplicate_delivery",
        "PASS",
        "tolerated: 1 redelivered_nack",
    ),
    "maybe double": (
        finding("double_outstanding", uncertain=True),
        "duplicate_delivery",
        "UNKNOWN",
        "cannot prove",
    ),
    "lost": (
        finding("never_delivered"),
        "completeness",
        "FAIL",
        "never delivered although no limit held them back: 1",
    ),
    "stuck": (
        finding("stuck_key"),
        "completeness",
        "FAIL",
        "keys that waited longer than the policy allows: 1",
    ),
    "waiting": (
        first("waits", never_delivered=2),
        "completeness",
        "UNKNOWN",
        "no finding says why: 2",
    ),
    "waiting, more than evidence lists": (
        both(first("waits", never_delivered=50), finding("never_delivered", unsent=45, uncertain=True)),
        "completeness",
        "UNKNOWN",
        "no finding says why: 5",
    ),
    "waiting, an earlier load's": (
        both(first("waits", never_delivered=2), finding("stuck_key", unsent=2, incarnation=-1)),
        "completeness",
        "FAIL",
        "no finding says why: 2",
    ),
    "no waits": (drop("waits"), "completeness", "UNKNOWN", "no waiting times"),
    "not replayed": (drop("dispatcher_state"), "completeness", "UNKNOWN", "no replay of it was published"),
    "deliveries lost": (
        drop("deliveries", last=1),
        "per_key_order",
        "UNKNOWN",
        "did not reach the audit: 1 of 3",
    ),
    "divergent": (state(divergent=2), "conformance", "FAIL", "differ from the rule: 2 of 100"),
    "never recorded": (
        both(
            drop("consumer_events"),
            drop("deliveries"),
            drop("balance"),
            state(last_seq=0, decisions=0, exact=0, entries_sent=0, events=0),
        ),
        "completeness",
        "UNKNOWN",
        "no event: there was nothing to judge",
    ),
    "a segment that stands twice": (
        lambda day, who: [
            day.add("consumer_events", **(line | {"source_file": "landing/orders/trace-copy.jsonl"}))
            for line in day.of("consumer_events", who)
        ],
        "per_key_order",
        "PASS",
        "",
    ),
    "a segment that stands twice, of which a delivery is missing": (
        both(
            lambda day, who: [
                day.add("consumer_events", **(line | {"source_file": "landing/orders/trace-copy.jsonl"}))
                for line in day.of("consumer_events", who)
            ],
            drop("deliveries", 1),
        ),
        "per_key_order",
        "UNKNOWN",
        "did not reach the audit: 1 of 3",
    ),
    "quiet day": (
        both(
            drop("consumer_events"),
            drop("deliveries"),
            drop("balance"),
            state(decisions=0, exact=0, entries_sent=0, events=0),
        ),
        "all",
        "PASS",
        "every promise was kept",
    ),
    "divergent behind a gap": (
        both(
            state(divergent=1),
            finding("log_gap", key=None, seqs=[5]),
            lambda day, who: day.add("divergences", **who, **DIFFERS, seq=5),
        ),
        "conformance",
        "UNKNOWN",
        "which lines that are missing or cannot be may explain: 1 of 100",
    ),
    "divergent by unlogged behaviour": (
        both(
            state(divergent=2),
            finding("divergence", uncertain=True, reason="dispatch", seqs=[5]),
            lambda day, who: [day.add("divergences", **who, **DIFFERS, seq=seq) for seq in (5, 6)],
        ),
        "conformance",
        "UNKNOWN",
        "which behaviour that the log cannot show may explain: 2 of 100",
    ),
    "divergent behind a loss by unlogged behaviour": (
        both(
            state(divergent=1),
            finding("never_delivered", uncertain=True, reason="unlogged_behaviour", seqs=[4, 9]),
            lambda day, who: day.add("divergences", **who, **DIFFERS, seq=5),
        ),
        "conformance",
        "UNKNOWN",
        "which behaviour that the log cannot show may explain: 1 of 100",
    ),
    "divergent beside an acknowledgement of a transaction": (
        both(
            state(divergent=1),
            finding("duplicate_after_ack", uncertain=True, reason="unlogged_behaviour", seqs=[4, 5]),
            lambda day, who: day.add("divergences", **who, **DIFFERS, seq=5),
        ),
        "conformance",
        "FAIL",
        "differ from the rule: 1 of 100",
    ),
    "divergent before a gap": (
        both(
            state(divergent=1),
            finding("log_gap", key=None, seqs=[5]),
            lambda day, who: day.add("divergences", **who, **DIFFERS, seq=4),
        ),
        "conformance",
        "FAIL",
        "differ from the rule: 1 of 100",
    ),
    "racy": (state(uncertain=6), "conformance", "UNKNOWN", "does not show: 6 % of 100"),
    "a little racy": (state(uncertain=5), "conformance", "PASS", "every decision"),
    "no rule": (state(not_judged_reason="classic rule"), "conformance", "UNKNOWN", "classic rule"),
    "no decision": (state(decisions=0), "conformance", "UNKNOWN", "without any decision"),
    "skewed": (skewed(10_000, 50), "balance", "FAIL", "worker-1 got 4.50 times its share"),
    "too few messages": (skewed(9_990, 50), "balance", "PASS", "too few messages to judge"),
    "too few keys": (skewed(10_000, 49), "balance", "PASS", "too few messages to judge"),
    "no balance": (drop("balance"), "balance", "UNKNOWN", "no balance of them was published"),
    "bad row": (quarantine, "input_quality", "FAIL", "trace.jsonl:7: seq: is no number"),
    "odd kind": (finding("haunted"), "input_quality", "UNKNOWN", "kinds that this version does not know: 1"),
}


@pytest.fixture(scope="module")
def spoilt_day(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Verdict]:
    """All cases as dispatchers of one day: none may touch another's verdict."""
    day = Day()
    for name, (spoil, *_expected) in CASES.items():
        spoil(day, day.dispatcher(f"persistent://t/n/{name}"))
    return judged(tmp_path_factory.mktemp("cases"), day)


@pytest.mark.parametrize("name", CASES)
def test_each_promise(spoilt_day: dict[tuple[str, str], Verdict], name: str) -> None:
    _spoil, promise, verdict, reason = CASES[name]
    result = spoilt_day[f"persistent://t/n/{name}", promise]
    assert (result.verdict, reason in result.reason) == (verdict, True), result.reason


def test_the_pipeline_and_the_command_line_agree(tmp_path: Path) -> None:
    """``dispatch-audit audit`` judges anomalies without Great Expectations; both must say the same of each kind."""
    day = Day()
    variants: list[dict[str, Any]] = [
        {
            "kind": kind,
            "uncertain": uncertain,
            "cause": "nack" if kind == "redelivered" else None,
            "reason": reason,
        }
        for kind in KINDS
        for uncertain in (False, True)
        for reason in {
            "per_key_order": (None, ORDER_NOT_PROMISED, HANDOVER),
            "duplicate_delivery": (None, HANDOVER),
        }.get(KINDS[kind].promise, (None,))
    ]
    for number, variant in enumerate(variants):
        day.anomaly(day.dispatcher(f"t{number:03}", entries=1), **variant)
    result = judged(tmp_path, day)
    for number, variant in enumerate(variants):
        rows = [row for row in day.rows["anomalies"] if row["topic"] == f"t{number:03}"]
        counts = Counts(in_log=True, rules=False)
        for row in rows:
            counts.add(row["kind"], row["cause"], row["reason"], row["uncertain"])
        for said in audit_verdicts(rows, counts):
            here = result[f"t{number:03}", said.promise]
            assert here.verdict == said.verdict, (variant, said, here)


def test_a_healthy_day_passes_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    day = Day()
    day.dispatcher()
    warehouse = day.write(tmp_path / "warehouse")
    verdicts = validate_interval(warehouse, DAY, tmp_path / "docs")
    assert {verdict.verdict for verdict in verdicts} == {"PASS"}
    assert verdicts[0].promise == "all"
    assert len(verdicts) == 7
    page = (tmp_path / "docs/2026-11-21/index.html").read_bytes()
    assert main(command(warehouse, tmp_path)) == 0
    assert read_verdicts(warehouse, DAY) == verdicts
    assert (tmp_path / "docs/2026-11-21/index.html").read_bytes() == page
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == ["2026-11-21", "index.html"]


@pytest.mark.slow
def test_one_dispatchers_fail_hides_no_other(tmp_path: Path) -> None:
    day = Day()
    day.dispatcher("persistent://t/n/good")
    bad = day.dispatcher("persistent://t/n/bad")
    day.dispatcher("persistent://t/n/blind")
    day.rows["dispatcher_state"][2]["not_judged_reason"] = "no rule"
    day.anomaly(bad, "split_key", explanation="second", seqs=[9])
    day.anomaly(bad, "out_of_order", explanation="first", seqs=[4])
    day.anomaly(bad, "out_of_order", explanation="repeat of the key", seqs=[5])
    result = judged(tmp_path, day)
    totals = {
        topic.rpartition("/")[2]: verdict for (topic, promise), verdict in result.items() if promise == "all"
    }
    assert {name: verdict.verdict for name, verdict in totals.items()} == {
        "good": "PASS",
        "bad": "FAIL",
        "blind": "UNKNOWN",
    }
    assert totals["bad"].findings == 3
    assert totals["bad"].top_findings == (
        "2 out_of_order, 1 split_key at connection 0 at 09:58:55.000: 2 entries of 1 key, which connection 1 held: first",
    )
    assert overall(list(result.values())) == "FAIL"


@pytest.mark.slow
def test_a_user_level_log_is_judged_by_what_it_can_show(tmp_path: Path) -> None:
    day = Day()
    day.dispatcher("persistent://t/n/user")
    worse = day.dispatcher("persistent://t/n/worse")
    for row in day.rows["dispatcher_state"]:
        row |= {"rounds": 0, "decisions": 3}
    day.rows["dispatcher_state"][1]["divergent"] = 1
    day.anomaly(worse, "divergence")
    result = judged(tmp_path, day)
    found = {
        (t.rpartition("/")[2], p): verdict.verdict
        for (t, p), verdict in result.items()
        if p in ("all", "conformance")
    }
    assert found == {
        ("user", "all"): "PASS",
        ("user", "conformance"): "PASS",
        ("worse", "all"): "FAIL",
        ("worse", "conformance"): "FAIL",
    }
    assert "without a trace, reads are not compared" in result["persistent://t/n/user", "conformance"].reason


@pytest.mark.slow
def test_a_log_that_could_not_be_put_together_is_not_called_empty(tmp_path: Path) -> None:
    day = Day()
    who = day.dispatcher()
    reason = "its log could not be put together: seq 1 stands twice and differs"
    first("dispatcher_state", last_seq=0, decisions=0, exact=0, not_judged_reason=reason)(day, who)
    drop("deliveries")(day, who)
    drop("balance")(day, who)
    result = judged(tmp_path, day)
    for promise in ("per_key_order", "duplicate_delivery", "completeness", "conformance"):
        verdict = result[TOPIC, promise]
        assert (verdict.verdict, "no event" in verdict.reason) == ("UNKNOWN", False), promise
        assert promise == "completeness" or reason in verdict.reason


@pytest.mark.slow
def test_thresholds_follow_the_topic(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        'version: 1\nrules: [{name: lax, topics: "*lax*", per_key_order: {out_of_order: 1, split_key: any}}]\n'
    )
    day = Day()
    for topic, orders in (("lax-one", 1), ("lax-two", 2), ("strict", 1)):
        who = day.dispatcher(topic)
        day.anomaly(who, "split_key") if topic != "strict" else None
        for _ in range(orders):
            day.anomaly(who, "out_of_order")
    result = judged(tmp_path, day, load_policy(path))
    verdicts = {topic: result[topic, "per_key_order"].verdict for topic in ("lax-one", "lax-two", "strict")}
    assert verdicts == {"lax-one": "PASS", "lax-two": "FAIL", "strict": "FAIL"}


@pytest.mark.slow
def test_waiting_times_are_judged_where_the_policy_limits_them(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    limits = "{wait_ms_p99: 50, wait_ms_max: 100, blocked_message_ms: 2000}"
    path.write_text(f'version: 1\nrules: [{{name: quick, topics: "quick*", completeness: {limits}}}]\n')
    day = Day()
    slow = {"wait_ms_p50": 1.0, "wait_ms_p99": 50.5, "wait_ms_max": 170.0, "blocked_message_ms": 2000}
    fine = slow | {"wait_ms_p99": 50.0, "wait_ms_max": 100.0}
    blocked = fine | {"blocked_message_ms": 2001}
    unknown: dict[str, float] = {}
    cases = {
        "quick-slow": slow,
        "quick-held": blocked,
        "quick-fine": fine,
        "quick-unknown": unknown,
        "other": slow,
    }
    for topic, measured in cases.items():
        day.dispatcher(topic)
        day.rows["waits"][-1].update(measured)
    result = judged(tmp_path, day, load_policy(path))
    verdicts = {topic: result[topic, "completeness"].verdict for topic in cases}
    assert verdicts == {
        "quick-slow": "FAIL",
        "quick-held": "FAIL",
        "quick-fine": "PASS",
        "quick-unknown": "PASS",
        "other": "PASS",
    }
    reason = result["quick-slow", "completeness"].reason
    assert "99 of 100 entries waited up to 50.50 ms" in reason
    assert "an entry waited 170 ms for its first delivery (the policy allows 100)" in reason


@pytest.mark.slow
def test_active_topics_are_judged_without_a_number_of_messages(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\ndefaults: {balance: {hot_key: 0}}\n")
    day = Day()
    day.anomaly(day.dispatcher("busy"), "hot_key", severity="info")
    who = {"cluster": "standalone", "topic": "t-*", "subscription": "audit", "incarnation": 0}
    day.anomaly(
        who,
        "failover_imbalance",
        severity="minor",
        key=None,
        explanation="w0 is active for 100 of 100 topics",
    )
    result = judged(tmp_path, day, load_policy(path))
    assert result["t-*", "balance"].verdict == "FAIL"
    assert result["t-*", "balance"].top_findings == ("w0 is active for 100 of 100 topics",)
    assert {promise: verdict.verdict for (topic, promise), verdict in result.items() if topic == "t-*"}[
        "all"
    ] == "FAIL"
    assert result["busy", "balance"].verdict == "PASS", "too few messages to judge a key"


@pytest.mark.slow
def test_a_dispatcher_that_only_the_log_knows_is_not_passed_over(tmp_path: Path) -> None:
    day = Day()
    day.dispatcher()
    day.add(
        "consumer_events",
        cluster="standalone",
        topic="lost",
        subscription="s",
        incarnation=0,
        seq=1,
        kind="sent",
        positions=[{"ledger_id": 1, "entry_id": 1}],
    )
    result = judged(tmp_path, day)
    for promise in ("per_key_order", "duplicate_delivery", "completeness", "conformance", "all"):
        assert result["lost", promise].verdict == "UNKNOWN", promise
    assert result[TOPIC, "all"].verdict == "PASS"


@pytest.mark.slow
def test_rows_that_no_count_explains_leave_input_quality_unknown(tmp_path: Path) -> None:
    day = Day()
    day.dispatcher()
    warehouse = day.write(tmp_path / "w", counts=lambda kept: kept | {"rows_in": kept["rows_in"] + 2})
    verdicts = {verdict.promise: verdict for verdict in validate_interval(warehouse, DAY, tmp_path / "docs")}
    assert verdicts["input_quality"].verdict == "UNKNOWN"
    assert "nor of another interval: 2" in verdicts["input_quality"].reason


@pytest.mark.slow
def test_an_unreadable_file_of_nobody_fails_under_its_own_name(tmp_path: Path) -> None:
    day = Day()
    day.dispatcher()
    day.add("quarantine", source_file="landing/else/x.gz", reason="is cut short", raw_truncated=False)
    result = judged(tmp_path, day)
    assert result["*", "input_quality"].verdict == "FAIL"
    assert "landing/else/x.gz: is cut short" in result["*", "all"].reason
    assert result[TOPIC, "all"].verdict == "PASS"


@pytest.mark.slow
def test_an_empty_interval_is_unknown_and_leaves_its_neighbour_alone(tmp_path: Path) -> None:
    day = Day()
    day.dispatcher()
    warehouse = day.write(tmp_path / "warehouse")
    before = validate_interval(warehouse, DAY, tmp_path / "docs")
    empty = validate_interval(warehouse, NEXT_DAY, tmp_path / "docs")
    assert {verdict.topic for verdict in empty} == {"*"}
    assert empty[0].verdict == "UNKNOWN"
    assert "nothing to judge" in empty[0].reason
    assert read_verdicts(warehouse, DAY) == before
    assert "2026-11-22" in (tmp_path / "docs/index.html").read_text()


@pytest.mark.slow
def test_shared_subscriptions_are_judged_for_duplicates_and_loss_only(tmp_path: Path) -> None:
    day = Day()
    day.dispatcher()
    day.rows["dispatcher_state"][0].update(
        subscription_type="Shared", decisions=0, not_judged_reason="Shared"
    )
    result = judged(tmp_path, day)
    assert result[TOPIC, "all"].verdict == "PASS"
    assert "promises no order" in result[TOPIC, "per_key_order"].reason
    assert "not replayed" in result[TOPIC, "conformance"].reason


@pytest.mark.slow
def test_three_hundred_dispatchers_are_all_named(tmp_path: Path) -> None:
    """Great Expectations cuts its lists of unexpected values at 200; verdicts must not be cut with them."""
    day = Day()
    for number in range(300):
        who = day.dispatcher(f"t{number:03}", entries=1)
        day.anomaly(who, "out_of_order")
    result = judged(tmp_path, day)
    assert [
        verdict.verdict for (_topic, promise), verdict in result.items() if promise == "per_key_order"
    ] == ["FAIL"] * 300


@pytest.mark.parametrize(("kind", "code"), [("split_key", 1), ("log_gap", 2)])
def test_command_prints_one_json_line_and_exits_by_the_verdict(
    tmp_path: Path, kind: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    day = Day()
    day.anomaly(day.dispatcher(), kind)
    assert main(command(day.write(tmp_path / "warehouse"), tmp_path)) == code
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert out.count("\n") == 1
    assert err == ""
    assert result["counts"] == {
        name: int(index == code) for index, name in enumerate(("PASS", "FAIL", "UNKNOWN"))
    }
    assert Path(result["data_docs"]).is_file()


def test_a_missing_warehouse_says_what_to_do_and_keeps_earlier_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs/2026-11-21").mkdir(parents=True)
    (tmp_path / "docs/2026-11-21/index.html").write_text("earlier")
    assert main(command(tmp_path / "none", tmp_path)) == 2
    assert "no Delta table consumer_events, dispatcher_state" in capsys.readouterr().err
    assert (tmp_path / "docs/2026-11-21/index.html").read_text() == "earlier"


def test_a_bad_policy_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules: [{topics: x}]\n")
    monkeypatch.setenv("DISPATCH_AUDIT_POLICY", str(policy))
    day = Day()
    day.dispatcher()
    warehouse = day.write(tmp_path / "warehouse")
    assert main(command(warehouse, tmp_path)) == 2
    assert not has_table(warehouse, "verdicts")


def test_importing_the_modules_does_not_import_great_expectations() -> None:
    code = (
        "import sys, dispatch_expectations.validate, dispatch_expectations.alert; "
        "print('great_expectations' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.strip() == "False"


@pytest.mark.slow
def test_hand_overs_are_tolerated_unless_the_policy_limits_them(tmp_path: Path) -> None:
    day = Day()
    for topic in ("usual", "strict"):
        dispatcher = day.dispatcher(topic, entries=1)
        day.anomaly(dispatcher, "split_key", severity="info", cause="rewind", reason=HANDOVER)
        day.anomaly(dispatcher, "double_outstanding", severity="info", cause="rewind", reason=HANDOVER)
    path = tmp_path / "policy.yaml"
    path.write_text(
        "version: 1\nrules: [{name: strict, topics: strict, per_key_order: {handover: 0}, "
        "duplicate_delivery: {handover: 0}}]\n"
    )
    result = judged(tmp_path, day, load_policy(path))
    for promise in ("per_key_order", "duplicate_delivery"):
        assert (result["usual", promise].verdict, result["usual", promise].tolerated) == ("PASS", 1)
        assert (result["strict", promise].verdict, result["strict", promise].findings) == ("FAIL", 1)
        assert "a change of the active consumer" in result["strict", promise].reason


@pytest.mark.slow
def test_a_share_of_uncertain_decisions_is_judged_from_a_hundred_on(tmp_path: Path) -> None:
    """As in the command line (``tests/dispatch_core/audit/test_verdict.py``)."""
    day = Day()
    cases = {"few": (99, 99), "share": (100, 6), "limit": (100, 5), "more": (101, 5)}
    for topic, (decisions, uncertain) in cases.items():
        day.dispatcher(topic)
        day.rows["dispatcher_state"][-1] |= {"decisions": decisions, "uncertain": uncertain}
    result = judged(tmp_path, day)
    assert {topic: result[topic, "conformance"].verdict for topic in cases} == {
        "few": "PASS",
        "share": "UNKNOWN",
        "limit": "PASS",
        "more": "PASS",
    }
