"""The audit of a whole log: the tables of a replay over all of it, on both levels, as of any time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatch_core import tables
from dispatch_core.replay.whole_log import audit_whole
from tests.dispatch_core.audit.small_logs import audited
from tests.dispatch_core.logs_without_trace import CLASSIC, DRAIN, log_of, stripped


@pytest.mark.parametrize("name", [CLASSIC, DRAIN])
def test_a_trace_is_compared_decision_by_decision(name: str) -> None:
    log = log_of(name)
    whole = audit_whole(log)
    assert (whole.level, whole.shortened) == ("T", False)
    order = audited(log).anomalies
    assert [row["seqs"] for row in order.to_pylist()] == [
        row["seqs"] for row in whole.anomalies.to_pylist() if row["kind"] in set(order["kind"].to_pylist())
    ]
    assert whole.state.num_rows == 1
    assert whole.deliveries.schema == tables.DELIVERIES


def test_a_long_trace_is_judged_by_who_was_sent_each_entry() -> None:
    whole = audit_whole(log_of(DRAIN), largest_trace=79)
    assert (whole.level, whole.shortened) == ("E", True)
    assert audit_whole(log_of(DRAIN), largest_trace=80).level == "T"
    by_lines = audit_whole(stripped(log_of(DRAIN)))
    assert (by_lines.level, by_lines.shortened) == ("E", False)
    same = ("t_us", "consumer", "ledger_id", "entry_id", "judgement", "expected_consumer")
    assert whole.deliveries.select(same).equals(by_lines.deliveries.select(same))
    assert set(whole.deliveries["judgement"].to_pylist()) == {"exact"}


def test_without_rules_only_the_log_itself_is_looked_at() -> None:
    whole = audit_whole(log_of(CLASSIC), rules=False)
    assert whole.level == ""
    assert whole.anomalies.num_rows > 0
    assert whole.state.num_rows == whole.ownership.num_rows == 0
    assert set(whole.deliveries["judgement"].to_pylist()) == {"not_judged"}


def test_as_of_a_time_later_lines_do_not_exist() -> None:
    log = log_of(CLASSIC)
    times = log.events["t_us"].to_pylist()
    cut = times[len(times) // 2]
    whole = audit_whole(log, as_of_us=cut, rules=False)
    assert 0 < whole.deliveries.num_rows < audit_whole(log, rules=False).deliveries.num_rows
    assert max(whole.deliveries["t_us"].to_pylist()) <= cut


def test_a_log_without_an_event_says_so() -> None:
    log = log_of(DRAIN)
    whole = audit_whole(replace(log, events=log.events.slice(0, 0)))
    assert whole.deliveries.num_rows == 0
    assert whole.state["entries_sent"].to_pylist() == [0]
