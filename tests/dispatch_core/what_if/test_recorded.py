"""Loads taken from logs: all actions of clients and producers, and no decision of the broker."""

from __future__ import annotations

import pickle
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.recording.schema import EVENTS
from dispatch_core.simulation.world import NEVER, PART, UP_TO, WHOLE
from dispatch_core.what_if.clients import RecordedClients, changes_of
from dispatch_core.what_if.recorded import Acks, NotSimulableError, RecordedLoad, load_of, stored_after
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    ack,
    added,
    message,
    numbered,
    read,
    redeliver,
    removed,
    sent,
    write,
)
from tests.dispatch_core.logs_without_trace import DATA, stripped

SAMPLES = sorted(path for part in ("recordings", "verify") for path in (DATA / part).glob("*/*-*"))
SAMPLE_IDS = [f"{path.parent.name}/{path.name}" for path in SAMPLES]


def log_of(path: Path) -> DispatcherLog:
    (log,) = read_recording(find_recordings([str(path)])[0]).logs
    return log


def alike(value: Any, other: Any) -> bool:
    """Return True if two loads, or parts of them, are equal."""
    if isinstance(value, np.ndarray):
        return bool(np.array_equal(value, other))
    if isinstance(value, RecordedLoad | Acks):
        return all(alike(getattr(value, field.name), getattr(other, field.name)) for field in fields(value))
    if isinstance(value, pa.Table):
        return bool(value.equals(other))
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(alike(value[key], other[key]) for key in value)
    if isinstance(value, tuple | list):
        return len(value) == len(other) and all(map(alike, value, other))
    return bool(value == other)


def with_sent(log: DispatcherLog, change: Any) -> DispatcherLog:
    """Return the log with other ``sent`` lines: ``change`` gets a list of them and returns one."""
    rows = log.events.to_pylist()
    at = [i for i, row in enumerate(rows) if row["kind"] == "sent"]
    assert at
    changed = dict(zip(at, change([rows[i] for i in at]), strict=True))
    rows = [changed.get(i, row) for i, row in enumerate(rows)]
    table = pa.Table.from_pylist([row for row in rows if row is not None], schema=EVENTS)
    return replace(log, events=table)


@pytest.mark.parametrize("path", SAMPLES, ids=SAMPLE_IDS)
def test_to_whom_entries_were_sent_is_not_read(path: Path) -> None:
    log = stripped(log_of(path))
    load = load_of(log)

    def shuffled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        consumers = [row["consumer"] for row in rows]
        random.Random(1).shuffle(consumers)
        return [
            row | {"consumer": number, "batch_sizes": []} for row, number in zip(rows, consumers, strict=True)
        ]

    def nobody(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"consumer": 10**9} for row in rows]

    for change in (shuffled, nobody):
        assert alike(load_of(with_sent(log, change)), load)


@pytest.mark.parametrize("path", SAMPLES, ids=SAMPLE_IDS)
def test_of_deliveries_only_the_storage_times_depend(path: Path) -> None:
    log = stripped(log_of(path))
    load = load_of(log)
    without = load_of(with_sent(log, lambda rows: [None] * len(rows)))
    assert alike(replace(without, stored_us=load.stored_us), load)
    assert (np.diff(load.stored_us) >= 0).all()


@pytest.mark.parametrize("path", SAMPLES, ids=SAMPLE_IDS)
def test_a_trace_gives_the_same_load_as_the_log_without_it(path: Path) -> None:
    log = log_of(path)
    assert alike(load_of(log), load_of(stripped(log)))


def test_a_load_can_be_sent_to_another_process() -> None:
    load = load_of(log_of(SAMPLES[0]))
    assert alike(pickle.loads(pickle.dumps(load)), load)


def small_log(folder: Path, events: list[dict[str, Any]], **header: Any) -> DispatcherLog:
    """Make a log of four messages and these lines."""
    write(folder, [message(entry, f"key-{entry}") for entry in range(4)], numbered(events), **header)
    return read(folder)


def flow(consumer: int, permits: int) -> dict[str, Any]:
    return {"kind": "flow", "consumer": consumer, "permits": permits}


def test_acks_of_parts_cumulative_ones_and_positions_that_nobody_stored(tmp_path: Path) -> None:
    load = load_of(
        small_log(
            tmp_path,
            [
                added(1),
                flow(1, 10),
                sent(1, 0),
                ack(1, 0, 77),
                ack(1, 1, sets=[[6]]),
                ack(1, 3, cumulative=True),
                redeliver(1, 2, 99),
                redeliver(1),
            ],
        )
    )
    assert load.acks.entry.tolist() == [0, 1, 3]
    assert load.acks.kind.tolist() == [WHOLE, PART, UP_TO]
    assert dict(load.acks.words) == {1: (6,)}
    assert [request.entries for request in load.requests] == [(2,), None]
    assert load.unknown == 2
    acts = RecordedClients(load).acts
    # the cumulative ack also ends 1 and 2, which have no other ack
    assert [int(acts.acked_us[entry] == NEVER) for entry in range(4)] == [0, 0, 0, 0]


def test_joins_and_leaves_are_in_order_and_a_second_removal_is_none(tmp_path: Path) -> None:
    events = [added(1), added(2), flow(1, 5), removed(1), removed(1), removed(99)]
    load = load_of(small_log(tmp_path, events))
    assert [(change.joins, change.who) for change in changes_of(load)] == [(True, 1), (True, 2), (False, 1)]


def test_what_cannot_be_simulated_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotSimulableError, match="no consumer"):
        load_of(small_log(tmp_path / "a", [flow(1, 5)]))
    log = small_log(tmp_path / "c", [added(1), flow(1, 5)])
    with pytest.raises(NotSimulableError, match="no message"):
        load_of(replace(log, messages=log.messages.slice(0, 0)))


def stored_with_permits(folder: Path, sent_ms: int, permits_ms: float = 0.5) -> int:
    """Return how long the storage took for the last of three entries, us; all are sent at once after ``sent_ms``."""
    after = (0, int(permits_ms * 1000), sent_ms * 1000)
    lines = zip(after, [added(1), flow(1, 10), sent(1, 0, 1, 2)], strict=True)
    events = numbered(line | {"t_us": T0_US + after_us} for after_us, line in lines)
    published = [message(entry, "k", publish_time_ms=T0_US // 1000 + 1) for entry in range(3)]
    load = load_of(read(write(folder, published, events)))
    return int(load.stored_us[2] - load.published_us[2])


def test_a_late_delivery_shows_a_slow_storage_unless_permits_were_missing(tmp_path: Path) -> None:
    """50 ms with permits left: the storage took them. Without permits, or for a second, something else held the entry."""
    assert 45_000 < stored_with_permits(tmp_path / "a", 51) < 50_000
    assert stored_with_permits(tmp_path / "b", 51, permits_ms=50) == 4_000
    assert stored_with_permits(tmp_path / "c", 1001) == 4_000
    assert stored_with_permits(tmp_path / "d", 3) < 2_000


def test_an_entry_is_stored_in_order_and_before_it_is_acknowledged() -> None:
    published = np.array([1_000_000, 3_000_000, 0, 2_000_000])
    acks = Acks(np.array([2_500_000]), np.array([1]), np.array([3]), np.array([WHOLE]), {})
    stored = stored_after(published, acks, 4_000)
    assert stored.tolist() == [1_004_000, 2_499_000, 2_499_000, 2_499_000]
