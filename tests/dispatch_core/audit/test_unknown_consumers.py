"""A connection that no line added is reported once, from the first line of a trace that names it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.verify.divergence_findings import of_decisions
from tests.dispatch_core.logs_without_trace import DRAIN, log_of

FAILOVER = "recordings/4.2.4/designed-failover-modulo-p1"


def without_join(log: DispatcherLog, consumer: int, *also: str) -> DispatcherLog:
    own = pc.equal(log.events["consumer"], consumer)
    kinds = pc.is_in(log.events["kind"], value_set=pa.array(["consumer_added", *also]))
    return replace(log, events=log.events.filter(pc.invert(pc.fill_null(pc.and_(own, kinds), False))))


def line(log: DispatcherLog, kind: str, consumer: int) -> int:
    lines = pc.and_(pc.equal(log.events["kind"], kind), pc.equal(log.events["consumer"], consumer))
    return int(log.events.filter(lines)["seq"][0].as_py())


def renumbered(log: DispatcherLog) -> DispatcherLog:
    at = log.events.schema.get_field_index("seq")
    numbers = pa.array(range(1, log.events.num_rows + 1), log.events.schema.field(at).type)
    return replace(log, events=log.events.set_column(at, log.events.schema.field(at), numbers))


def test_doubt_begins_where_the_selector_of_key_shared_takes_it_in() -> None:
    log = renumbered(without_join(log_of(DRAIN), 2))
    joined = line(log, "selector_added", 2)
    found = audit_whole(log).anomalies.to_pylist()
    first, *others = [row for row in found if row["kind"] == "unknown_consumer"]
    assert (first["seqs"][0], first["consumers"]) == (joined, [2])
    assert f"the trace tells of it from seq {joined} on" in first["explanation"]
    assert all(len(row["seqs"]) == 1 for row in others)
    assert "divergence" not in {row["kind"] for row in found}
    assert audit_whole(log_of(DRAIN)).anomalies.filter(pc.field("kind") == "unknown_consumer").num_rows == 0


@pytest.mark.parametrize("consumer", [1, 2, 3])
def test_doubt_begins_with_the_choice_that_failover_makes_when_it_joins(consumer: int) -> None:
    log = log_of(FAILOVER)
    joined = line(log, "consumer_added", consumer)
    found = audit_whole(renumbered(without_join(log, consumer))).anomalies.to_pylist()
    first = next(row for row in found if row["kind"] == "unknown_consumer")
    assert first["seqs"][0] < joined
    assert "divergence" not in {row["kind"] for row in found}


def test_a_connection_that_only_lines_of_a_trace_tell_of_is_unknown_too() -> None:
    log = log_of(DRAIN)
    users = ("flow", "sent", "ack", "redeliver", "consumer_removing", "consumer_removed")
    log = renumbered(without_join(log, 2, *users))
    found = [row for row in audit_whole(log).anomalies.to_pylist() if row["kind"] == "unknown_consumer"]
    assert [(row["consumers"], row["seqs"]) for row in found] == [([2], [line(log, "selector_added", 2)])]


def test_a_decision_names_the_entry_that_stands_first_in_another_s_place() -> None:
    row = {
        "seq": 9, "t_us": 0, "decision_class": "dispatch", "status": "divergent", "reason": None, "racing_seq": None,
        "expected": "consumer 2 gets [5:3, 5:4, 5:5] (3)", "recorded": "consumer 2 gets [5:3, 5:5, 5:4] (3)",
    }  # fmt: skip
    entries = {
        "ledger_id": [5, 5],
        "entry_id": [4, 8],
        "key": ["k", "x"],
        "key_b64": [False] * 2,
        "hash": [7, 8],
    }
    beside = [
        {"kind": "split_key", "positions": ["5:8"], "seqs": [2, 9], "cause": None},
        {"kind": "out_of_order", "positions": ["5:4", "5:5"], "seqs": [9], "cause": None},
    ]
    for anomalies in (beside, beside[:1]):
        found = of_decisions(pa.Table.from_pylist([row]), pa.table(entries), "rules", anomalies)
        assert [(finding.positions, finding.key) for finding in found] == [(["5:4", "5:5"], "k")]
