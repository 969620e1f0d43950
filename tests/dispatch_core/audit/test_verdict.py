"""Findings to verdicts: what fails a promise, what leaves it open, what is borne."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dispatch_core.audit.assumptions import BEHAVIOURS, Assumptions
from dispatch_core.audit.catalogue import CAUSES, KINDS, PROMISES
from dispatch_core.audit.verdict import (
    Policy,
    PromiseVerdict,
    Quarantined,
    Seen,
    overall,
    verdicts,
)


def row(kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "severity": KINDS[kind].severity,
        "key": "k",
        "cause": None,
        "reason": None,
        "uncertain": False,
        "explanation": f"a {kind}",
    } | fields


def judged(*rows: dict[str, Any], **options: Any) -> dict[str, PromiseVerdict]:
    return {verdict.promise: verdict for verdict in verdicts(rows, **options)}


def test_nothing_found_is_a_pass() -> None:
    result = judged()
    assert {v.verdict for v in result.values()} == {"PASS"}
    assert overall(result.values()) == "PASS"
    assert list(result) == ["per_key_order", "duplicate_delivery", "input_quality"]


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        ("out_of_order", "per_key_order"),
        ("split_key", "per_key_order"),
        ("double_outstanding", "duplicate_delivery"),
        ("duplicate_after_ack", "duplicate_delivery"),
        ("unknown_consumer", "input_quality"),
    ],
)
def test_one_finding_fails_its_promise_and_no_other(kind: str, promise: str) -> None:
    result = judged(row(kind))
    assert {p: v.verdict for p, v in result.items() if v.verdict != "PASS"} == {promise: "FAIL"}
    assert result[promise].reason.partition("; assumed absent: ")[0] == f"1 {kind}"
    assert result[promise].top_findings == (f"a {kind}",)
    assert overall(result.values()) == "FAIL"


@pytest.mark.parametrize("cause", CAUSES)
def test_redelivery_with_a_cause_is_counted_and_borne(cause: str) -> None:
    result = judged(row("redelivered", cause=cause), row("overtaken_redelivery", cause="nack"))
    assert overall(result.values()) == "PASS"
    assert (result["duplicate_delivery"].findings, result["duplicate_delivery"].tolerated) == (0, 1)
    assert result["per_key_order"].reason == "tolerated: 1 overtaken_redelivery"


def test_redelivery_without_a_cause_is_not_borne() -> None:
    assert judged(row("redelivered", reason="unexplained"))["duplicate_delivery"].verdict == "FAIL"


def test_uncertain_findings_leave_a_promise_open() -> None:
    result = judged(row("duplicate_after_ack", uncertain=True))
    assert result["duplicate_delivery"].verdict == "UNKNOWN"
    assert result["per_key_order"].verdict == "PASS"
    assert overall(result.values()) == "UNKNOWN"
    certain_too = judged(row("duplicate_after_ack", uncertain=True), row("double_outstanding"))
    assert certain_too["duplicate_delivery"].verdict == "FAIL"
    borne = judged(row("duplicate_after_ack", uncertain=True), policy=Policy(uncertain_tolerated=1))
    assert borne["duplicate_delivery"].verdict == "PASS"


def test_a_gap_touches_every_promise_but_hides_no_failure() -> None:
    assert {v.verdict for v in judged(row("log_gap")).values()} == {"UNKNOWN"}
    result = judged(row("log_gap"), row("split_key"))
    assert result["per_key_order"].verdict == "FAIL"
    assert result["duplicate_delivery"].verdict == "UNKNOWN"


def test_entries_of_unknown_keys_leave_order_open() -> None:
    result = judged(row("unknown_position"))
    assert {p: v.verdict for p, v in result.items()} == {
        "per_key_order": "UNKNOWN",
        "duplicate_delivery": "PASS",
        "input_quality": "FAIL",
    }


def test_disorder_that_was_allowed_is_borne() -> None:
    assert judged(row("out_of_order", reason="out_of_order_allowed"))["per_key_order"].verdict == "PASS"


def test_a_policy_may_bear_a_number_or_a_cause() -> None:
    two = [row("split_key"), row("split_key")]
    assert judged(*two, policy=Policy(tolerated={"split_key": 2}))["per_key_order"].verdict == "PASS"
    assert judged(*two, policy=Policy(tolerated={"split_key": 1}))["per_key_order"].verdict == "FAIL"
    hand_over = row("double_outstanding", cause="rewind")
    lenient = Policy(tolerated_causes={"double_outstanding": frozenset({"rewind"})})
    assert judged(hand_over)["duplicate_delivery"].verdict == "FAIL"
    assert judged(hand_over, policy=lenient)["duplicate_delivery"].verdict == "PASS"


def test_the_first_findings_named_are_of_different_keys_and_uncertain_ones_stand_apart() -> None:
    rows = [row("split_key", key="a", explanation=f"a{n}") for n in range(5)]
    rows.append(row("split_key", key="b", explanation="b0"))
    rows.insert(0, row("split_key", key="c", explanation="unsure", uncertain=True))
    top = judged(*rows)["per_key_order"].top_findings
    assert top == ("6 split_key: 0 entries of 2 keys; the worst are a and b: a0", "unsure")


def test_a_shared_subscription_is_not_judged_by_order() -> None:
    result = judged(subscription_type="Shared")
    assert "promises no order" in result["per_key_order"].reason


ALL_SEEN = Seen(
    decisions=100, divergent=0, uncertain=0, doubted=0, not_judged=None, sent=100, undelivered=0, balance=None
)


def test_with_the_rules_replayed_every_promise_is_judged() -> None:
    result = judged(seen=ALL_SEEN)
    assert tuple(result) == PROMISES
    assert {v.verdict for v in result.values()} == {"PASS"}
    assert result["conformance"].reason == "100 decisions compared, 0 uncertain"


@pytest.mark.parametrize(
    ("kind", "promise", "verdict"),
    [
        ("divergence", "conformance", "FAIL"),
        ("stuck_key", "completeness", "FAIL"),
        ("stuck_consumer", "completeness", "FAIL"),
        ("stuck_subscription", "completeness", "FAIL"),
        ("never_delivered", "completeness", "FAIL"),
        ("ack_hole", "completeness", "FAIL"),
        ("imbalance", "balance", "FAIL"),
        ("failover_imbalance", "balance", "FAIL"),
        ("hot_key", "balance", "PASS"),
        ("unnecessary_blocking", "balance", "PASS"),
    ],
)
def test_what_the_rules_prove_decides_its_promise(kind: str, promise: str, verdict: str) -> None:
    result = judged(row(kind), seen=ALL_SEEN)
    assert result[promise].verdict == verdict
    assert {v.verdict for v in result.values() if v.promise != promise} == {"PASS"}


@pytest.mark.parametrize(
    ("changed", "promise", "reason"),
    [
        ({"undelivered": 3}, "completeness", "stored entries that were not sent, and no finding says why: 3"),
        ({"uncertain": 6}, "conformance", "6.0 % of 100 decisions"),
        ({"doubted": 2}, "conformance", "2 decisions differ from the rules, which lines"),
        ({"decisions": 0}, "conformance", "none of 100 deliveries"),
    ],
)
def test_what_was_not_seen_leaves_a_promise_open(changed: dict[str, Any], promise: str, reason: str) -> None:
    result = judged(seen=replace(ALL_SEEN, **changed))
    assert {p: v.verdict for p, v in result.items() if v.verdict != "PASS"} == {promise: "UNKNOWN"}
    assert reason in result[promise].reason


def test_rules_that_cannot_be_replayed_leave_open_what_needs_them() -> None:
    seen = replace(ALL_SEEN, decisions=0, not_judged="release 9.9.9 is not known")
    result = judged(seen=seen)
    assert {p for p, v in result.items() if v.verdict == "UNKNOWN"} == {"completeness", "conformance"}
    assert "release 9.9.9" in result["conformance"].reason
    shared = judged(seen=seen, subscription_type="Shared")
    assert {v.verdict for v in shared.values()} == {"PASS"}
    assert "not replayed" in shared["conformance"].reason


def test_decisions_of_a_shared_trace_count() -> None:
    compared = judged(seen=ALL_SEEN, subscription_type="Shared")["conformance"]
    assert (compared.verdict, "decisions compared" in compared.reason) == ("PASS", True)
    stopped = judged(seen=replace(ALL_SEEN, not_judged="a delay"), subscription_type="Shared")
    assert {promise for promise, v in stopped.items() if v.verdict == "UNKNOWN"} == {"conformance"}
    assert "a delay" in stopped["conformance"].reason


def test_too_little_for_balance_is_said() -> None:
    result = judged(seen=replace(ALL_SEEN, balance="12 messages were sent"))
    assert (result["balance"].verdict, result["balance"].reason) == (
        "PASS",
        "not judged: 12 messages were sent",
    )


def test_two_loads_at_once_leave_open_what_each_did_not_know() -> None:
    result = judged(row("overlapping_incarnations"), seen=ALL_SEEN)
    assert result["input_quality"].verdict == "FAIL"
    assert {p for p, v in result.items() if v.verdict == "UNKNOWN"} == {
        "per_key_order",
        "duplicate_delivery",
        "completeness",
    }
    assert "two loads of the topic" in result["per_key_order"].reason


def test_what_follows_from_other_findings_still_breaks_conformance() -> None:
    result = judged(row("duplicate_after_ack"), seen=replace(ALL_SEEN, divergent=4))
    assert result["conformance"].verdict == "FAIL"
    reason, assumed = result["conformance"].reason.split("; assumed absent: ")
    assert reason == "4 decisions differ from the rules, as follows from other findings"
    assert tuple(assumed.split(", ")) == result["conformance"].assumes


def test_of_a_log_without_events_nothing_is_known_and_the_next_step_is_said() -> None:
    given = {verdict.promise: verdict for verdict in verdicts([], seen=ALL_SEEN, recorded=False)}
    assert overall(given.values()) == "UNKNOWN"
    unknown = {name for name, verdict in given.items() if verdict.verdict == "UNKNOWN"}
    assert unknown == {"per_key_order", "duplicate_delivery", "completeness", "conformance"}
    assert all("see that the recorder ran" in given[name].reason for name in unknown)
    assert overall(verdicts([], recorded=False)) == "UNKNOWN", "without the rules, too"
    assert overall(verdicts([], seen=ALL_SEEN)) == "PASS"


def test_rows_that_could_not_be_read_fail_input_quality_and_leave_loss_open() -> None:
    seen = Seen(
        decisions=9, divergent=0, uncertain=0, doubted=0, not_judged=None, sent=9, undelivered=0, balance=None
    )
    result = judged(seen=seen, quarantined=Quarantined(3, "messages.jsonl:8: a reason"))
    assert {p: v.verdict for p, v in result.items() if v.verdict != "PASS"} == {
        "input_quality": "FAIL",
        "completeness": "UNKNOWN",
    }
    assert (
        result["input_quality"].reason == "unreadable rows, quarantined: 3; first: messages.jsonl:8: a reason"
    )
    assert (
        result["completeness"].reason == "unreadable rows may hide entries that were never sent, or events: 3"
    )


def test_a_verdict_names_the_assumptions_that_it_rests_on() -> None:
    loss = row("never_delivered")
    for assumptions, assumes in (
        (Assumptions("Failover"), {"dispatch_rate", "entry_filter", "compacted_read", "transactions"}),
        (Assumptions("Failover", records=frozenset(BEHAVIOURS)), set()),
        (Assumptions("Failover", assume_absent=frozenset({"entry_filter"})), {"entry_filter"}),
    ):
        completeness = judged(loss, seen=ALL_SEEN, assumptions=assumptions)["completeness"]
        assert assumes <= set(completeness.assumes)
        assert bool(assumes) == ("assumed absent: " in completeness.reason)


@pytest.mark.parametrize(
    ("decisions", "uncertain", "verdict"),
    [(99, 99, "PASS"), (100, 6, "UNKNOWN"), (100, 5, "PASS"), (101, 5, "PASS")],
)
def test_a_share_of_uncertain_decisions_is_judged_from_a_hundred_on(
    decisions: int, uncertain: int, verdict: str
) -> None:
    seen = replace(ALL_SEEN, decisions=decisions, uncertain=uncertain)
    assert judged(seen=seen)["conformance"].verdict == verdict


def test_counts_are_judged_over_all_loads_of_a_dispatcher() -> None:
    """As in the pipeline; what is still unsent is known with the last load."""
    load = Seen(60, 1, 3, 0, None, 70, 5, "too few messages")
    judged_load = replace(load, undelivered=2, balance=None, not_judged="no rules")
    both = Seen.over([load, judged_load])
    assert both == Seen(120, 2, 6, 0, "no rules", 140, 2, None)
    assert Seen.over([load]) == load
    uncertain = Seen(60, 0, 6, 0, None, 70, 0, None)
    alone, together = (judged(seen=Seen.over([uncertain] * loads)) for loads in (1, 2))
    assert (alone["conformance"].verdict, together["conformance"].verdict) == ("PASS", "UNKNOWN")
