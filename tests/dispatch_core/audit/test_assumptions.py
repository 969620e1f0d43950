"""Behaviour that a log may not show: which findings it leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch_core.audit.assumptions import BEHAVIOURS, UNLOGGED, Assumptions
from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.limits import Limits, LimitsError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.schema import EVENTS, MESSAGES
from dispatch_core.tables import ANOMALIES
from tests.dispatch_core.audit.table_rows import table


def finding(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "uncertain": False, "reason": None, "explanation": f"a {kind}"} | fields


def recorded_with(header: dict[str, Any], assume_absent: tuple[str, ...] | None = None) -> Assumptions:
    header = header | {"subscription_type": "Key_Shared"}
    log = DispatcherLog("a/b", "c", "t", "s", None, 0, header, MESSAGES.empty_table(), EVENTS.empty_table())
    return Assumptions.of(log, assume_absent)


def test_by_default_all_is_assumed_absent_unless_the_log_says_what_it_records() -> None:
    assert recorded_with({}).doubts("never_delivered", None) == []
    records = {"records": ["delayed_delivery", "transactions", "something_new"]}
    doubts = recorded_with(records).doubts("never_delivered", None)
    assert doubts == [name for name in doubts if name not in records["records"]]
    assert "entry_filter" in doubts
    assert recorded_with({"records": ["limit"]}).doubts("never_delivered", None) == []
    by_fields = recorded_with({"records": ["deliver_at_ms", "txn"]}).doubts("never_delivered", None)
    assert by_fields == recorded_with({"records": ["delayed_delivery", "transactions"]}).doubts(
        "never_delivered", None
    )
    everything = {"records": list(BEHAVIOURS)}
    assert recorded_with(everything, ()).doubts("never_delivered", None) == []


def test_a_finding_that_behaviour_may_explain_is_uncertain_and_says_why() -> None:
    rows = [
        finding("never_delivered"),
        finding("split_key"),
        finding("ack_hole", reason="log_gap", uncertain=True),
    ]
    before = table(ANOMALIES, rows)
    assert Assumptions("Key_Shared").applied(before) is before
    after = Assumptions("Key_Shared", assume_absent=frozenset()).applied(before).to_pylist()
    assert [row["uncertain"] for row in after] == [True, False, True]
    assert [row["reason"] for row in after] == [UNLOGGED, None, "log_gap"]
    assert after[0]["explanation"].startswith("a never_delivered; but delayed delivery, a dispatch rate, ")
    assert after[0]["explanation"].endswith(" may explain it, which this log cannot show")
    assert after[1:] == before.to_pylist()[1:]


def test_a_stall_that_a_rule_explains_needs_no_other_explanation() -> None:
    nothing = Assumptions("Key_Shared", assume_absent=frozenset())
    assert nothing.doubts("stuck_consumer", "no_permits") == []
    assert "dispatch_rate" in nothing.doubts("stuck_key", None)


def test_what_a_type_does_not_have_explains_nothing() -> None:
    kinds = list(KINDS)
    for kind in kinds:
        failover = Assumptions("Failover", assume_absent=frozenset()).doubts(kind, None)
        key_shared = Assumptions("Key_Shared", assume_absent=frozenset()).doubts(kind, None)
        assert "delayed_delivery" not in failover
        assert "compacted_read" not in key_shared


@pytest.mark.parametrize(
    ("given", "read"),
    [("none", ()), ([], ()), (None, None), ("transactions, entry_filter", ("entry_filter", "transactions"))],
)
def test_the_policy_lists_what_it_rules_out(given: Any, read: tuple[str, ...] | None) -> None:
    limits = Limits.of({"assume_absent": given})
    assert limits.assume_absent == read
    assert Limits.of_json(limits.json()) == limits


def test_an_unknown_behaviour_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(LimitsError, match="no behaviour 'transaction': the nearest name is transactions"):
        Limits.of({"assume_absent": ["transaction"]})
    with pytest.raises(LimitsError, match="must be a list of names"):
        Limits.of({"assume_absent": 7})
