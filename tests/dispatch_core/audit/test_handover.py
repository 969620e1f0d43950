"""Failover: a change of the active consumer explains what it delivers again, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.audit.catalogue import HANDOVER, MAYBE_HANDOVER
from dispatch_core.audit.deliveries.rows import Audit
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.verdict import PromiseVerdict, verdicts
from tests.dispatch_core.audit.judging import counts_of, rule
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    Event,
    ack,
    added,
    audited,
    message,
    numbered,
    of_kind,
    read,
    redeliver,
    removed,
    sent,
    write,
)

KEYS: Final = [message(entry, "a") for entry in range(8)]
#: Consumer 1 holds 5:0 and 5:1, the active consumer changes to 2, and the hand-over delivers both again.
CHANGED: Final = (added(1), sent(1, 0, 1), added(2), sent(2, 0, 1, 2))


@pytest.fixture
def audit(tmp_path: Path) -> Any:
    def run(*events: Event, **header: Any) -> Audit:
        folder = write(
            tmp_path / "a" / "b", KEYS, numbered(events), **{"subscription_type": "Failover", **header}
        )
        return audited(read(folder))

    return run


def at(ms: int, event: Event) -> Event:
    """Date an event some milliseconds after midnight."""
    return event | {"t_us": T0_US + 1000 * ms}


def reasons(result: Audit, kind: str) -> list[tuple[str, str | None, bool]]:
    """Severity, reason and uncertainty of each finding of a kind."""
    return [(row["severity"], row["reason"], row["uncertain"]) for row in of_kind(result, kind)]


def judged(result: Audit, policy: Rule | None = None) -> dict[str, PromiseVerdict]:
    rows = result.anomalies.to_pylist()
    found = verdicts(rows, counts_of(rows, subscription_type="Failover"), rule=policy)
    return {verdict.promise: verdict for verdict in found}


def test_what_a_change_delivers_again_is_counted_and_tolerated(audit: Any) -> None:
    result = audit(*CHANGED)
    assert reasons(result, "double_outstanding") == [("info", HANDOVER, False)] * 2
    assert reasons(result, "split_key") == [("info", HANDOVER, False)] * 3
    found = judged(result)
    assert [found[name].verdict for name in ("per_key_order", "duplicate_delivery")] == ["PASS", "PASS"]
    assert (found["per_key_order"].tolerated, found["duplicate_delivery"].tolerated) == (3, 2)


def test_a_policy_may_not_tolerate_it(audit: Any) -> None:
    none = {"handover": 0}
    found = judged(audit(*CHANGED), rule(per_key_order=none, duplicate_delivery=none))
    assert [found[name].verdict for name in ("per_key_order", "duplicate_delivery")] == ["FAIL", "FAIL"]


def test_new_entries_go_to_the_new_consumer_while_the_old_one_holds_its_own(audit: Any) -> None:
    result = audit(*CHANGED, ack(2, 0, 1, 2), sent(2, 3))
    assert set(reasons(result, "split_key")) == {("info", HANDOVER, False)}


def test_later_requests_of_the_new_consumer_change_nothing(audit: Any) -> None:
    result = audit(*CHANGED, redeliver(2), sent(2, 0, 1, 2))
    assert set(reasons(result, "double_outstanding")) == {("info", HANDOVER, False)}
    assert judged(result)["duplicate_delivery"].verdict == "PASS"


def test_a_change_back_and_forth(audit: Any) -> None:
    result = audit(*CHANGED, added(3), sent(3, 0, 1, 2, 3), removed(3), sent(1, 0, 1, 2, 3))
    assert {
        reason for kind in ("split_key", "double_outstanding") for _, reason, _ in reasons(result, kind)
    } == {HANDOVER}


@pytest.mark.parametrize(
    "events",
    [
        pytest.param((*CHANGED, sent(1, 3), sent(2, 4)), id="the old one gets more"),
        pytest.param((*CHANGED, sent(1, 2)), id="the old one gets what the new one holds"),
        pytest.param((added(1), sent(1, 0), added(2), sent(2, 0), sent(1, 1), sent(2, 1)), id="turns"),
        pytest.param(
            (*CHANGED, removed(1), added(3), sent(3, 3), sent(2, 4), sent(3, 5), sent(2, 5)), id="later"
        ),
    ],
)
def test_deliveries_that_no_change_explains_break_order(audit: Any, events: tuple[Event, ...]) -> None:
    result = audit(*events)
    assert ("critical", None, False) in reasons(result, "split_key")
    assert judged(result)["per_key_order"].verdict == "FAIL"
    (text, *_) = [row["explanation"] for row in of_kind(result, "split_key") if row["reason"] is None]
    assert text.endswith("no change of the active consumer explains it")


def test_an_entry_at_two_consumers_without_a_change_is_a_fault(audit: Any) -> None:
    result = audit(*CHANGED, sent(1, 2))
    assert ("major", None, False) in reasons(result, "double_outstanding")
    assert judged(result)["duplicate_delivery"].verdict == "FAIL"


def test_an_order_break_that_no_rewind_explains_stays_one(audit: Any) -> None:
    result = audit(*CHANGED, ack(2, 0, 1, 2), sent(2, 4, 3))
    assert reasons(result, "out_of_order") == [("critical", None, False)]


def test_a_join_and_a_leave_at_once_may_change_the_active_consumer_twice(audit: Any) -> None:
    """The line of the second join stands before the first consumer's deliveries: lines are written beside the change."""
    result = audit(added(1), sent(1, 0), added(2), added(3), sent(2, 0), sent(3, 0))
    assert reasons(result, "double_outstanding") == [
        ("info", HANDOVER, False),
        ("major", MAYBE_HANDOVER, True),
    ]
    assert judged(result)["duplicate_delivery"].verdict == "UNKNOWN"


@pytest.mark.parametrize(
    ("acked_ms", "changed_ms", "expected"),
    [
        (4_995, 3_000, ("info", HANDOVER, False)),
        (4_995, 4_999, ("info", HANDOVER, False)),
        (4_000, 3_000, ("major", MAYBE_HANDOVER, True)),
        (3_000, 4_000, ("major", None, False)),
    ],
    ids=["read when the ack came", "ack not applied yet", "a long read", "acked before the change"],
)
def test_an_ack_while_the_entries_are_read_for_the_new_consumer(
    audit: Any, acked_ms: int, changed_ms: int, expected: tuple[str, str | None, bool]
) -> None:
    middle = sorted([at(acked_ms, ack(1, 0)), at(changed_ms, added(2))], key=lambda event: event["t_us"])
    result = audit(at(0, added(1)), at(1000, sent(1, 0, 1)), *middle, at(5000, sent(2, 0, 1)))
    assert reasons(result, "duplicate_after_ack") == [expected]


def test_an_acknowledged_entry_out_of_its_turn_is_a_duplicate(audit: Any) -> None:
    """The new consumer has gone on; what comes back later is no longer of the hand-over's read."""
    events = [at(0, added(1)), at(1000, sent(1, 0, 1)), at(2000, added(2)), at(3000, sent(2, 1, 2))]
    result = audit(*events, at(4000, ack(1, 0)), at(4010, sent(2, 0)))
    assert reasons(result, "duplicate_after_ack") == [("major", "ack_racing", True)]


def test_a_checkpoint_does_not_say_who_is_active(audit: Any) -> None:
    """Both hold 5:0 from a change before the log begins. Whoever goes on was the active one then."""
    for active in (1, 2):
        result = audit(
            {
                "kind": "checkpoint",
                "seq": 50,
                "consumers": [{"consumer": number, "name": f"worker-{number}"} for number in (1, 2)],
                "mark_delete": "4:9",
                "read_position": "5:3",
                "ack_holes": [],
                "pending_acks": {"1": ["5:0", "5:1"], "2": ["5:0", "5:1", "5:2"]},
            },
            {"seq": 51} | sent(active, 3),
        )
        assert {reason for _, reason, _ in reasons(result, "split_key")} <= {HANDOVER}, active


def test_other_types_know_no_hand_over(audit: Any) -> None:
    result = audit(*CHANGED, subscription_type="Key_Shared")
    assert reasons(result, "double_outstanding") == [("major", None, False)] * 2
    assert judged(result)["duplicate_delivery"].verdict == "FAIL"
