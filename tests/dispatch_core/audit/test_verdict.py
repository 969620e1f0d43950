"""Findings to verdicts: what fails a promise, what leaves it open, what is borne."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch_core.audit.assumptions import BEHAVIOURS, Assumptions
from dispatch_core.audit.catalogue import CAUSES, KINDS, PROMISES
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.counts import Counts
from dispatch_core.audit.verdict import PromiseVerdict, overall, verdicts
from tests.dispatch_core.audit.judging import counts_of, replayed, rule


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


def judged(
    *rows: dict[str, Any],
    policy: Rule | None = None,
    assumptions: Assumptions | None = None,
    **counts: Any,
) -> dict[str, PromiseVerdict]:
    """Verdicts by promise; ``counts``: fields of ``Counts``."""
    found = verdicts(rows, counts_of(rows, **counts), rule=policy, assumptions=assumptions)
    return {verdict.promise: verdict for verdict in found}


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
    assert result[promise].reason.partition("; assumed absent: ")[0].endswith(": 1")
    assert result[promise].top_findings == (f"a {kind}",)
    assert overall(result.values()) == "FAIL"


@pytest.mark.parametrize("cause", CAUSES)
def test_redelivery_with_a_cause_is_counted_and_borne(cause: str) -> None:
    result = judged(row("redelivered", cause=cause), row("overtaken_redelivery", cause="nack"))
    assert overall(result.values()) == "PASS"
    assert (result["duplicate_delivery"].findings, result["duplicate_delivery"].tolerated) == (0, 1)
    assert result["per_key_order"].reason.endswith("; tolerated: 1 overtaken_redelivery")


def test_redelivery_without_a_cause_is_not_borne() -> None:
    assert judged(row("redelivered", reason="unexplained"))["duplicate_delivery"].verdict == "FAIL"


def test_uncertain_findings_leave_a_promise_open() -> None:
    result = judged(row("duplicate_after_ack", uncertain=True))
    assert result["duplicate_delivery"].verdict == "UNKNOWN"
    assert result["per_key_order"].verdict == "PASS"
    assert overall(result.values()) == "UNKNOWN"
    certain_too = judged(row("duplicate_after_ack", uncertain=True), row("double_outstanding"))
    assert certain_too["duplicate_delivery"].verdict == "FAIL"
    borne = judged(
        row("duplicate_after_ack", uncertain=True), policy=rule(duplicate_delivery={"uncertain": 1})
    )
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
    assert judged(*two, policy=rule(per_key_order={"split_key": 2}))["per_key_order"].verdict == "PASS"
    assert judged(*two, policy=rule(per_key_order={"split_key": 1}))["per_key_order"].verdict == "FAIL"
    nacked = row("redelivered", cause="nack")
    assert judged(nacked)["duplicate_delivery"].verdict == "PASS"
    strict = rule(duplicate_delivery={"redelivered_nack": 0})
    assert judged(nacked, policy=strict)["duplicate_delivery"].verdict == "FAIL"


def test_the_first_findings_named_are_of_different_keys_and_uncertain_ones_stand_apart() -> None:
    rows = [row("split_key", key="a", explanation=f"a{n}") for n in range(5)]
    rows.append(row("split_key", key="b", explanation="b0"))
    rows.insert(0, row("split_key", key="c", explanation="unsure", uncertain=True))
    top = judged(*rows)["per_key_order"].top_findings
    assert top == ("6 split_key: 0 entries of 2 keys; the worst are a and b: a0", "unsure")


def test_a_shared_subscription_is_not_judged_by_order() -> None:
    result = judged(subscription_type="Shared")
    assert "promises no order" in result["per_key_order"].reason


def test_with_the_rules_replayed_every_promise_is_judged() -> None:
    result = judged(**replayed())
    assert tuple(result) == PROMISES
    assert {v.verdict for v in result.values()} == {"PASS"}
    assert result["conformance"].reason.endswith("; decisions compared: 100, uncertain: 0")


@pytest.mark.parametrize(
    ("kind", "promise", "verdict"),
    [
        ("stuck_key", "completeness", "FAIL"),
        ("stuck_consumer", "completeness", "FAIL"),
        ("stuck_subscription", "completeness", "FAIL"),
        ("never_delivered", "completeness", "FAIL"),
        ("ack_hole", "completeness", "FAIL"),
        ("imbalance", "balance", "PASS"),
        ("failover_imbalance", "balance", "FAIL"),
        ("hot_key", "balance", "PASS"),
        ("unnecessary_blocking", "balance", "PASS"),
    ],
)
def test_what_the_rules_prove_decides_its_promise(kind: str, promise: str, verdict: str) -> None:
    result = judged(row(kind), **replayed())
    assert result[promise].verdict == verdict
    assert {v.verdict for v in result.values() if v.promise != promise} == {"PASS"}


@pytest.mark.parametrize(
    ("changed", "promise", "reason"),
    [
        ({"never_delivered": 3}, "completeness", "stored entries not delivered by then"),
        ({"uncertain": 6}, "conformance", "6 % of 100"),
        (
            {"divergent": 2, "doubted": 2, "doubted_by": {"lines": None}},
            "conformance",
            "which lines may explain: 2",
        ),
        ({"decisions": 0}, "conformance", "without any decision that could be compared: 100"),
    ],
)
def test_what_was_not_seen_leaves_a_promise_open(changed: dict[str, Any], promise: str, reason: str) -> None:
    result = judged(**replayed(**changed))
    assert {p: v.verdict for p, v in result.items() if v.verdict != "PASS"} == {promise: "UNKNOWN"}
    assert reason in result[promise].reason


def test_rules_that_cannot_be_replayed_leave_open_what_needs_them() -> None:
    counts = replayed(decisions=0, not_judged_reason="release 9.9.9 is not known")
    result = judged(**counts)
    assert {p for p, v in result.items() if v.verdict == "UNKNOWN"} == {"conformance"}
    assert "release 9.9.9" in result["conformance"].reason
    shared = judged(**counts, subscription_type="Shared")
    assert {v.verdict for v in shared.values()} == {"PASS"}
    assert "not replayed" in shared["conformance"].reason


def test_decisions_of_a_shared_trace_count() -> None:
    stopped = judged(**replayed(not_judged_reason="a delay"), subscription_type="Shared")
    assert {promise for promise, v in stopped.items() if v.verdict == "UNKNOWN"} == {"conformance"}
    assert "a delay" in stopped["conformance"].reason


def test_a_consumer_with_more_than_its_share_fails_balance_from_enough_messages_on() -> None:
    few = judged(**replayed(message_share=0.9, hash_share=0.1, messages=12))["balance"]
    assert (few.verdict, few.reason) == (
        "PASS",
        "too few messages to judge: 12 messages and 10 keys per consumer",
    )
    many = judged(**replayed(message_share=0.9, hash_share=0.1, messages=10_000, keys=50))["balance"]
    assert many.verdict == "FAIL"
    assert "w1 got 9 times its share" in many.reason


def test_two_loads_at_once_leave_open_what_each_did_not_know() -> None:
    result = judged(row("overlapping_incarnations"), **replayed())
    assert result["input_quality"].verdict == "FAIL"
    assert {p for p, v in result.items() if v.verdict == "UNKNOWN"} == {
        "per_key_order",
        "duplicate_delivery",
        "completeness",
    }
    assert "overlaps of two brokers' logs" in result["per_key_order"].reason


def test_what_follows_from_other_findings_still_breaks_conformance() -> None:
    conformance = judged(row("duplicate_after_ack"), **replayed(divergent=4))["conformance"]
    assert conformance.verdict == "FAIL"
    reason, assumed = conformance.reason.split("; assumed absent: ")
    assert reason == "decisions that differ from the rule: 4 of 100"
    assert tuple(assumed.split(", ")) == conformance.assumes


def test_of_a_log_without_events_nothing_is_known_and_the_next_step_is_said() -> None:
    nothing = replayed(last_seq=0, last_t_us=None, decisions=0, sent_in_log=0, delivered=0)
    given = judged(**nothing, in_log=False)
    assert overall(given.values()) == "UNKNOWN"
    unknown = {name for name, verdict in given.items() if verdict.verdict == "UNKNOWN"}
    assert unknown == {"per_key_order", "duplicate_delivery", "completeness", "conformance"}
    assert all("see that the recorder ran" in given[name].reason for name in unknown)
    assert overall(judged(in_log=False).values()) == "UNKNOWN", "without the rules, too"
    assert overall(judged(**replayed()).values()) == "PASS"


def test_rows_that_could_not_be_read_fail_input_quality_and_leave_loss_open() -> None:
    result = judged(**replayed(), quarantined=3, first_quarantined="; first: messages.jsonl:8: a reason")
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
        completeness = judged(loss, **replayed(), assumptions=assumptions)["completeness"]
        assert assumes <= set(completeness.assumes)
        assert bool(assumes) == ("assumed absent: " in completeness.reason)


@pytest.mark.parametrize(
    ("decisions", "uncertain", "verdict"),
    [(99, 99, "PASS"), (100, 6, "UNKNOWN"), (100, 5, "PASS"), (101, 5, "PASS")],
)
def test_a_share_of_uncertain_decisions_is_judged_from_a_hundred_on(
    decisions: int, uncertain: int, verdict: str
) -> None:
    counts = replayed(decisions=decisions, uncertain=uncertain)
    assert judged(**counts)["conformance"].verdict == verdict


def test_counts_are_judged_over_all_loads_of_a_dispatcher() -> None:
    """As in the pipeline."""
    load = replayed(decisions=60, uncertain=6)
    both = load | {name: load[name] * 2 for name in ("states", "waits", "balance")}
    alone, together = judged(**load), judged(**both)
    assert (alone["conformance"].verdict, together["conformance"].verdict) == ("PASS", "UNKNOWN")


def test_findings_of_a_table_count_as_rows_do() -> None:
    counts = Counts("Key_Shared", in_log=True)
    counts.add("split_key", None, None, False, 3)
    counts.add("redelivered", "nack", None, False, 2)
    counts.add("log_gap", None, None, True)
    found = counts.row(rule())
    assert [found[name] for name in ("split_key", "redelivered_nack", "log_gap", "log_gap_uncertain")] == [
        3,
        2,
        1,
        1,
    ]
