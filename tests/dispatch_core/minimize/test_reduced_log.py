"""Rows are left out of a log so that it stays one: lists are aligned, permits in balance, numbers without a hole."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.minimize.reduced_log import ReducibleLog
from dispatch_core.recording.log import DispatcherLog
from tests.dispatch_core.minimize.logs import AT_RISK, AWAY_AND_BACK, log_of

_LOGS = [log_of(AWAY_AND_BACK), log_of(AT_RISK)]


def _permits_left(log: DispatcherLog) -> list[tuple[str, int]]:
    """Return the consumer of each ``sent`` line and its permits behind it."""
    left: Counter[int] = Counter()
    found = []
    for row in log.events.to_pylist():
        if row["kind"] == "flow":
            left[row["consumer"]] += row["permits"]
        elif row["kind"] == "sent":
            left[row["consumer"]] -= sum(row["batch_sizes"])
            found.append((row["consumer"], left[row["consumer"]]))
    return found


@pytest.mark.parametrize("log", _LOGS, ids=("away-and-back", "at-risk"))
@settings(max_examples=20)
@given(data=st.data())
def test_entries_that_are_left_out_are_nowhere_and_nobody_has_other_permits_for_it(
    log: DispatcherLog, data: st.DataObject
) -> None:
    whole = ReducibleLog(log)
    seed = data.draw(st.integers(0, 2**32 - 1))
    entries = np.random.default_rng(seed).random(whole.entries) < data.draw(st.floats(0, 1))
    left, rows = whole.keep(np.ones(whole.lines, bool), entries)
    assert left.messages.equals(whole.log.messages.filter(pa.array(entries)))
    assert left.events["seq"].to_pylist() == [*range(1, left.events.num_rows + 1)]
    kept = {
        (row["ledger_id"], row["entry_id"])
        for row in left.messages.select(["ledger_id", "entry_id"]).to_pylist()
    }
    sizes: dict[tuple[int, int], int] = {}
    for row in log.events.to_pylist():
        if row["kind"] == "sent":
            sizes |= {
                (p["ledger_id"], p["entry_id"]): size
                for p, size in zip(row["positions"], row["batch_sizes"], strict=True)
            }
    for row, number in zip(left.events.to_pylist(), rows.tolist(), strict=True):
        before = log.events.slice(number, 1).to_pylist()[0]
        positions = [(p["ledger_id"], p["entry_id"]) for p in row["positions"] or ()]
        assert positions == [
            place for p in before["positions"] or () if (place := (p["ledger_id"], p["entry_id"])) in kept
        ]
        if row["kind"] == "sent":
            assert row["batch_sizes"] == [sizes[place] for place in positions]
    # Behind each delivery that is left, its consumer has the permits that it had.
    behind = _permits_left(whole.log)
    of_line = dict(
        zip(
            [at for at, row in enumerate(log.events.to_pylist()) if row["kind"] == "sent"],
            behind,
            strict=True,
        )
    )
    lines = [number for number in rows.tolist() if number in of_line]
    for number, (consumer, permits) in zip(lines, _permits_left(left), strict=True):
        assert of_line[number][0] == consumer
        assert 0 <= permits <= of_line[number][1]
    assert _last_of_each(_permits_at_end(left)) <= _last_of_each(_permits_at_end(whole.log))


def _permits_at_end(log: DispatcherLog) -> Counter[int]:
    left: Counter[int] = Counter()
    for row in log.events.to_pylist():
        left[row["consumer"] or 0] += row["permits"] or 0
        if row["kind"] == "sent":
            left[row["consumer"]] -= sum(row["batch_sizes"])
    return left


def _last_of_each(permits: Counter[int]) -> Counter[int]:
    return +permits


def test_without_all_deliveries_all_permits_stay_that_no_delivery_took() -> None:
    whole = ReducibleLog(_LOGS[0])
    left, _ = whole.keep(np.ones(whole.lines, bool), np.zeros(whole.entries, bool))
    assert +_permits_at_end(left) == +_permits_at_end(whole.log)
    assert not {"sent", "ack"} & {*left.events["kind"].to_pylist()}


def test_a_cumulative_acknowledgement_moves_to_the_last_entry_that_is_left() -> None:
    log = _LOGS[0]
    events = log.events.to_pylist()
    ack = next(row for row in events if row["kind"] == "ack")
    third, fifth = ({"ledger_id": 29, "entry_id": number} for number in (2, 4))
    changed = [
        *events,
        {**ack, "ack_type": "Cumulative", "positions": [fifth], "ack_sets": [[0b101]]},
        {**ack, "ack_type": "Cumulative", "positions": [third], "ack_sets": None},
    ]
    whole = ReducibleLog(replace(log, events=pa.Table.from_pylist(changed, schema=log.events.schema)))
    entries = np.ones(whole.entries, bool)
    entries[[2, 3, 4]] = False
    left, _ = whole.keep(np.ones(whole.lines, bool), entries)
    moved, other = left.events.to_pylist()[-2:]
    assert moved["positions"] == other["positions"] == [{"ledger_id": 29, "entry_id": 1}]
    assert moved["ack_sets"] == [[]]  # of the whole entry
    assert other["ack_sets"] is None
    entries[:2] = False
    left, _ = whole.keep(np.ones(whole.lines, bool), entries)
    assert left.events["ack_type"].to_pylist().count("Cumulative") == 0


def test_a_log_of_which_nothing_is_left_out_is_the_same() -> None:
    for log in _LOGS:
        whole = ReducibleLog(log)
        left, rows = whole.keep(np.ones(whole.lines, bool), np.ones(whole.entries, bool))
        assert left.events.equals(log.events)
        assert left.messages.equals(log.messages)
        assert rows.tolist() == [*range(whole.lines)]
