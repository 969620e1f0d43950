"""The audit batch by batch against the audit of the whole log: the same rows, or a refusal, and bounded memory."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.audit.deliveries.fold import EVENT_COLUMNS, AuditFold
from dispatch_core.audit.deliveries.operations import FLOW
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.schema import EVENTS, POSITION
from tests.dispatch_core.audit.batches import head_of, in_batches, reached, same
from tests.dispatch_core.audit.small_logs import (
    MIDNIGHT,
    T0_US,
    ack,
    added,
    audited,
    message,
    numbered,
    read,
    redeliver,
    removed,
    sent,
    without_trace,
)
from tests.dispatch_core.audit.test_second_opinion import EVENTS as ANY_EVENT
from tests.dispatch_core.audit.test_second_opinion import SAMPLES, TYPES, from_lines

CLEAN = next(folder for folder in SAMPLES if folder.name == "designed-drain-one-by-one-ch")


CUTS = st.lists(st.integers(0, 42), max_size=8)


@pytest.mark.slow
@settings(max_examples=80)
@given(st.lists(ANY_EVENT, min_size=6, max_size=40), TYPES, CUTS, st.integers(0, 2), st.booleans())
def test_any_log_in_any_batches_gives_the_same_or_is_refused(
    events: list[Any], subscription_type: str, cuts: list[int], keep_behind: int, foresight: bool
) -> None:
    log = from_lines(numbered([added(1), added(2), *events]), subscription_type)
    whole = audited(log)
    cuts = [cut for cut in cuts if cut < log.events.num_rows]
    batches = None
    with contextlib.suppress(NotStreamableError):
        batches = in_batches(log, cuts, foresight=foresight, keep_behind=keep_behind, trim_above=0)
    if batches is None and foresight:
        # what is kept is judged; only what was dropped was missing
        batches = in_batches(log, cuts)
    if batches is not None:
        same(batches, whole)


def settling(steps: int, seed: int) -> list[Any]:
    """Make events in which entries are sent, requested again and settled in the end, so that the window moves on."""
    rng = np.random.default_rng(seed)
    events = [added(1), added(2), added(3)]
    pending: dict[int, list[int]] = {1: [], 2: [], 3: []}
    number, entry = 3, 0
    waiting: list[int] = []
    for _ in range(steps):
        consumer = int(rng.choice(list(pending)))
        match int(rng.integers(0, 12)):
            case 0 | 1 | 2 | 3:
                count = int(rng.integers(1, 4))
                fresh = list(range(entry, entry + count))
                entry += count
                if rng.random() < 0.15:
                    fresh.reverse()
                again = [waiting.pop(0) for _ in range(min(len(waiting), 4))]
                events.append(sent(consumer, *again, *fresh))
                pending[consumer] += again + fresh
            case 4 | 5 | 6 | 7 | 8 if pending[consumer]:
                consumer = max(pending, key=lambda c: len(pending[c]))
                count = int(rng.integers(1, len(pending[consumer]) + 1))
                events.append(ack(consumer, *pending[consumer][:count]))
                del pending[consumer][:count]
            case 9 if pending[consumer]:
                requested = [pending[consumer].pop(int(rng.integers(0, len(pending[consumer]))))]
                events.append(redeliver(consumer, *requested))
                waiting += requested
            case 10 if pending[consumer]:
                events.append(redeliver(consumer))
                waiting += pending[consumer]
                pending[consumer] = []
            case 11 if rng.random() < 0.5:
                events.append(removed(consumer))
                waiting += pending.pop(consumer)
                number += 1
                pending[number] = []
                events.append(added(number, f"worker-{number % 4}"))
            case _:
                pass
    return events


def settling_log(steps: int, seed: int, subscription_type: str = "Key_Shared") -> DispatcherLog:
    from tests.dispatch_core.audit import test_second_opinion as small

    events = settling(steps, seed)
    last = max(int(p.split(":")[1]) for e in events for p in e.get("positions") or ["5:0"])
    messages = [
        message(entry, None if entry % 13 == 0 else f"k{entry * 7 % 5}-{entry // 40}")
        for entry in range(last + 1)
    ]
    before = small.MESSAGES
    small.MESSAGES = messages
    try:
        return from_lines(numbered(_at_random_times(events, seed)), subscription_type)
    finally:
        small.MESSAGES = before


def _at_random_times(events: list[Any], seed: int) -> list[Any]:
    """Give the events times of which some lie close enough together for races."""
    rng = np.random.default_rng(seed)
    times = 1_795_219_200_000_000 + np.cumsum(rng.choice([1_000, 15_000, 1_000_000], len(events)))
    return [event | {"t_us": int(t_us)} for event, t_us in zip(events, times, strict=True)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("subscription_type", ["Key_Shared", "Failover", "Shared"])
@pytest.mark.parametrize("seed", range(3))
def test_a_moving_window_finds_what_the_whole_log_shows(subscription_type: str, seed: int) -> None:
    log = settling_log(200, seed, subscription_type)
    whole = audited(log)
    assert set(whole.anomalies["kind"].to_pylist()) - {"redelivered"} or subscription_type == "Shared"
    dropped = []
    for size in (3, 7, 50):
        fold = AuditFold(head_of(log), interval_start=MIDNIGHT, keep_behind=0, trim_above=0)
        needed, batches, stored = reached(log), [], 0
        for start in range(0, log.events.num_rows, size):
            upto = max([*needed[start : start + size], stored])
            batches.append(
                fold.feed(log.messages.slice(stored, upto - stored), log.events.slice(start, size))
            )
            stored = upto
            dropped.append(fold.dropped)
        same(batches, whole)
    assert sum(dropped) > 3 * 30


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [1, 7, 100, 1000])
@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
def test_the_samples_in_batches(folder: Path, size: int) -> None:
    log = without_trace(read(folder))
    cuts = range(size, min(log.events.num_rows, 100 * size), size)
    same(in_batches(log, cuts, keep_behind=20, trim_above=0), audited(log))


LINES = [added(1), added(2), sent(1, 0, 1), ack(1, 0, 1), sent(1, 2, 3), ack(1, 2), sent(2, 4), ack(2, 4)]


def test_what_the_log_says_about_itself_is_carried_over() -> None:
    """Holes, clock steps, missing connections at the border of batches; gaps make findings of later batches uncertain."""
    lines = numbered([*LINES, sent(7, 3), removed(2), sent(2, 5), ack(2, 5)])
    lines[4]["t_us"] -= 5_000_000
    del lines[6]
    log = from_lines(lines, "Key_Shared")
    whole = audited(log)
    kinds = set(whole.anomalies["kind"].to_pylist())
    assert {"log_gap", "clock_step", "unknown_consumer", "double_outstanding"} <= kinds
    for cut in range(1, log.events.num_rows):
        same(in_batches(log, [cut], all_messages=True), whole)


@pytest.mark.parametrize(
    ("lines", "cuts", "says"),
    [
        ([*LINES, sent(1, 0)], (6, 8), "seq 9 names 5:0, which lies before the window"),
        ([*LINES, ack(1, 0), sent(2, 0)], (6, 8), "seq 10 names 5:0, which lies before the window"),
        ([*LINES, sent(1, 99)], (8,), "seq 9 names 5:99, which is not in the message log"),
        ([*LINES, {"kind": "mark_delete", "mark_delete": "5:1"}], (8,), "the log is a trace"),
        ([*LINES, sent(1, 5) | {"seq": 8}], (8,), "seq 8 comes after seq 8"),
        (
            [*LINES, {"kind": "gap", "seq": 9, "from": 3, "to": 8, "lost": 2}],
            (8,),
            "lines behind seq 3 are missing",
        ),
    ],
)
def test_what_a_window_cannot_judge_is_refused(lines: list[Any], cuts: tuple[int, ...], says: str) -> None:
    log = from_lines(numbered(lines), "Key_Shared")
    assert audited(log).deliveries.num_rows
    with pytest.raises(NotStreamableError, match=says):
        in_batches(log, cuts, all_messages=True, keep_behind=0, trim_above=0)


LATE = {
    "ack": ack(1, 0),
    "ack_of_some": ack(1, 0, 3, 1),
    "ack_of_a_part": ack(1, 1) | {"ack_sets": [[2]]},
    "request": redeliver(1, 1, 0),
    "request_of_some": redeliver(1, 3, 0),
    "cumulative": ack(2, 1) | {"ack_type": "Cumulative"},
}


@pytest.mark.parametrize("subscription_type", ["Key_Shared", "Failover", "Shared"])
@pytest.mark.parametrize("name", LATE)
def test_a_late_line_about_what_has_left_the_window_changes_nothing_more_than_in_the_whole_log(
    name: str, subscription_type: str
) -> None:
    lines = [*LINES, LATE[name], sent(2, 3), ack(2, 3), sent(1, 5)]
    log = from_lines(numbered(lines), subscription_type)
    same(in_batches(log, (6, 8), all_messages=True, keep_behind=0, trim_above=0), audited(log))


def test_a_late_line_about_an_entry_that_was_never_stored_is_refused() -> None:
    lines = [added(1), sent(1, 0), ack(1, 0), sent(1, 2), ack(1, 2), sent(1, 3), ack(1, 1)]
    log = from_lines(numbered(lines), "Key_Shared")
    stored = [entry != 1 for entry in log.messages["entry_id"].to_pylist()]
    log = replace(log, messages=log.messages.filter(pa.array(stored)))
    assert "unknown_position" in audited(log).anomalies["kind"].to_pylist()
    with pytest.raises(NotStreamableError, match="names 5:1, which lies before the window"):
        in_batches(log, (5, 6), all_messages=True, keep_behind=0, trim_above=0)


def test_lines_and_entries_that_are_not_in_order_are_refused() -> None:
    log = from_lines(numbered(LINES), "Key_Shared")
    fold = AuditFold(head_of(log), interval_start=MIDNIGHT)
    with pytest.raises(NotStreamableError, match="seq 7 stands behind seq 8"):
        fold.feed(log.messages, log.events.take(pa.array([*range(6), 7, 6])))
    for order in ([0, 2, 1], [0, 1, 1]):
        fold = AuditFold(head_of(log), interval_start=MIDNIGHT)
        with pytest.raises(NotStreamableError, match="not in order of position, or holds a position twice"):
            fold.feed(log.messages.take(pa.array(order)), log.events.slice(0, 1))
    fold = AuditFold(head_of(log), interval_start=MIDNIGHT)
    fold.feed(log.messages, log.events.slice(0, 1))
    with pytest.raises(NotStreamableError, match="not in order of position"):
        fold.feed(log.messages, log.events.slice(1))
    with pytest.raises(NotStreamableError, match="several incarnations"):
        AuditFold(head_of(log), interval_start=MIDNIGHT, earlier=[log])


def test_a_name_that_was_not_foreseen_is_refused_only_where_words_would_change() -> None:
    again = [removed(1), sent(2, 3), added(3, "worker-1"), sent(3, 5)]
    log = from_lines(numbered([*LINES, *again]), "Key_Shared")
    whole = audited(log)
    assert "worker-1 (connection 1)" in whole.anomalies["explanation"][0].as_py()
    same(in_batches(log, [10]), whole)
    with pytest.raises(NotStreamableError, match="has the name of one that findings already name"):
        in_batches(log, [10], foresight=False)
    other = from_lines(numbered([*LINES, removed(1), sent(2, 3), added(3), sent(3, 5)]), "Key_Shared")
    same(in_batches(other, [10], foresight=False), audited(other))


def test_a_key_that_is_given_in_another_way_later_is_refused() -> None:
    log = from_lines(numbered(LINES), "Key_Shared")
    rows = log.messages.to_pylist()
    for row in rows[:2]:
        row |= {"key": None, "ordering_key_b64": "azA="}  # k0, the key of the others
    log = replace(log, messages=pa.Table.from_pylist(rows, log.messages.schema))
    whole = audited(log)
    assert set(whole.deliveries["key"].to_pylist()) == {"k0", "k1"}
    for keep_behind in (0, 100):  # with the first entries dropped, and with them there
        with pytest.raises(NotStreamableError, match="base64"):
            in_batches(log, [4, 5, 6], keep_behind=keep_behind, trim_above=0)


def test_flows_become_operations_that_no_rule_looks_at() -> None:
    flow = {"kind": "flow", "consumer": 1, "permits": 30}
    log = from_lines(numbered([added(1), flow, sent(1, 0), {**flow, "consumer": 9}, ack(1, 0)]), "Key_Shared")
    fold = AuditFold(head_of(log), interval_start=MIDNIGHT, flows=True)
    fold.feed(log.messages, log.events.slice(0, 2))
    assert fold.new_ops == slice(0, 2)
    last = fold.feed(log.messages.slice(0, 0), log.events.slice(2))
    assert fold.operations is not None
    assert fold.new_ops == slice(2, 5)
    assert fold.window.op_code.tolist()[1] == FLOW
    assert fold.operations.value.tolist() == [0, 30, 0]
    assert fold.operations.consumer.tolist() == [0, -1, 0], "nothing else names connection 9"
    assert fold.operations.ordinals.tolist() == [0, 0]
    assert last.anomalies.to_pylist() == audited(log).anomalies.to_pylist()


def clean_batch(first: int, count: int, keys: int) -> tuple[pa.Table, pa.Table]:
    """Entries of ever new keys, each sent and acked; one line each."""
    entries = np.arange(first, first + count)
    messages = pa.table(
        {
            "ledger_id": np.full(count, 5),
            "entry_id": entries,
            "key": [f"k{first // keys}-{entry % keys}" for entry in entries.tolist()],
            "key_b64": pa.nulls(count, pa.bool_()),
            "ordering_key_b64": pa.nulls(count, pa.string()),
            "key_h31": pa.nulls(count, pa.int64()),
            "producer": pa.nulls(count, pa.string()),
            "sequence_id": pa.nulls(count, pa.int64()),
            "num_messages": np.ones(count, dtype=np.int32),
            "size_bytes": np.full(count, 10),
            "publish_time_ms": np.full(count, T0_US // 1000),
        }
    )
    numbers = 2 * first + 3 + np.arange(2 * count)
    flat = pa.array(np.repeat(entries, 2))
    places = pa.StructArray.from_arrays([pa.array(np.full(2 * count, 5)), flat], fields=list(POSITION))
    columns = {
        "seq": pa.array(numbers),
        "t_us": pa.array(T0_US + 10_000_000 + numbers),
        "kind": pa.array(["sent", "ack"] * count).dictionary_encode(),
        "consumer": pa.array(np.repeat(entries % 2 + 1, 2)),
        "ack_type": pa.array([None, "Individual"] * count),
        "positions": pa.ListArray.from_arrays(pa.array(np.arange(2 * count + 1, dtype=np.int32)), places),
    }
    absent = {name: pa.nulls(2 * count, EVENTS.field(name).type) for name in EVENT_COLUMNS}
    return messages, pa.table(absent | columns)


def test_memory_stays_where_it_is_however_long_the_log() -> None:
    """Every batch has keys of its own, and neither rows nor keys pile up."""
    start = from_lines(numbered([added(1), added(2)]), "Key_Shared")
    fold = AuditFold(head_of(start), interval_start=MIDNIGHT, keep_behind=500, trim_above=1000)
    fold.feed(start.messages.slice(0, 0), start.events)
    rooms, dropped, deliveries = [], 0, 0
    for batch in range(120):
        audit = fold.feed(*clean_batch(batch * 1000, 1000, keys=1000))
        assert audit.anomalies.num_rows == 0
        deliveries += audit.deliveries.num_rows
        dropped += fold.dropped
        rooms.append(fold.room)
        assert len(fold.window) <= 500 + 1000 + 1000
        assert len(fold.window.op_seq) <= 2 * len(fold.window) + 2000
    assert deliveries == 120_000
    assert dropped >= 120_000 - 3000
    assert max(rooms[80:]) <= max(rooms[:80])
    assert len(fold.window.keys) <= 2 * 2500 + 65_536


def test_keys_that_no_entry_of_the_window_has_are_forgotten() -> None:
    start = from_lines(numbered([added(1), added(2)]), "Key_Shared")
    fold = AuditFold(head_of(start), interval_start=MIDNIGHT, keep_behind=0, trim_above=0)
    fold.feed(start.messages.slice(0, 0), start.events)
    for batch in range(4):
        fold.feed(*clean_batch(batch * 100, 100, keys=50))
        assert len(fold.window.keys) == 50
        assert fold.window.keys.texts[0].as_py() == f"k{batch * 2}-0"
