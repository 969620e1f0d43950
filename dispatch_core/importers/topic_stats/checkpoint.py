"""A log from a snapshot of the broker's statistics on: the snapshot becomes the checkpoint that the log begins with.

The two documents are taken one after the other while the broker works, so a snapshot is of a *span* of time. What the log
says of the span decides how much of the snapshot still holds at its end, where the log is cut:

* who joined or left in it leaves open who is connected: that is refused;
* of a consumer that was sent something, acknowledged or asked again in it the counts are not taken, only what the log
  shows to be pending;
* what is acknowledged stays so; what was sent in it was sent.

Where the log begins later than the span, what happened in between is unknown, and nothing is told but who was connected
and what was acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.broker import hashing
from dispatch_core.broker.profiles import Profile, partition_index, resolve
from dispatch_core.errors import ProfileError
from dispatch_core.importers.topic_stats.connections import numbers_of
from dispatch_core.importers.topic_stats.documents import ConsumerStats, Cursor, Snapshot, TopicStatsError
from dispatch_core.importers.topic_stats.pending import pending_of
from dispatch_core.importers.topic_stats.shown import Shown
from dispatch_core.recording.checkpoint import Position, upto
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.times import clock
from dispatch_core.verify.without_trace.races import RACE_US

_MEMBERSHIP: Final = ("consumer_added", "consumer_removed")
_TOUCHING: Final = ("sent", "ack", "redeliver")
_NUMBERED: Final = ("seq", "gap_from_seq", "gap_to_seq")
#: A log that begins with seq 1 and nobody is a new dispatcher's; this one is at work.
_FIRST_SEQ: Final = 2


@dataclass(frozen=True, slots=True)
class Made:
    """A log that begins with the checkpoint. ``told``: positions known to be pending; ``notes``: what was left open, why."""

    log: DispatcherLog
    told: int
    notes: tuple[str, ...]


def from_snapshot(
    log: DispatcherLog, snapshot: Snapshot, taken_us: tuple[int, int], given: Mapping[int, str]
) -> Made:
    """The log from the snapshot on.

    ``taken_us``: a moment before the first document was taken and one after the last, by the broker's clock. ``given``:
    names of consumers by the log's numbers.

    Raises ``TopicStatsError`` where the snapshot does not belong to the log or leaves open who is who.
    """
    kind = subscription_type(log)
    if snapshot.subscription_type not in (None, kind):
        raise TopicStatsError(
            f"{log.topic} / {log.subscription}: the log is of a {kind} subscription, the stats of a "
            f"{snapshot.subscription_type} one; give the stats of the subscription that was recorded"
        )
    begin, end = _span(log, snapshot, taken_us)
    events = log.events
    before_span, within = events.slice(0, begin), events.slice(begin, end - begin)
    before, after = events.slice(0, end), events.slice(end)
    notes = []
    covered = begin > 0
    if not covered:
        notes.append(
            f"the log begins at {clock(events['t_us'][0].as_py() or 0)}, later than {RACE_US // 1000} ms before the "
            "snapshot: what happened in between is unknown, so neither permits nor pending entries are told; begin the "
            "log first"
        )
    exactly = within.filter(pc.greater_equal(within["t_us"], taken_us[0]))
    changes = exactly.filter(pc.is_in(exactly["kind"], value_set=pa.array(_MEMBERSHIP)))
    if changes.num_rows:
        raise TopicStatsError(
            f"a consumer joined or left at seq {changes['seq'][0].as_py()}, between {clock(taken_us[0])} and "
            f"{clock(taken_us[1])}, while the snapshot was taken: who is connected is open; take another one"
        )
    profile = _profile(log, snapshot)
    hashes = np.zeros(log.messages.num_rows, np.int64)
    if isinstance(profile, Profile):
        hashes = profile.hash_space.sticky_array(
            hashing.entry_h31(log.messages, fallback=profile.fallback_key)
        )
    else:
        notes.append(f"{profile}: of what was sent before the log begins nothing is known to be pending")
    sent = _sent_hashes(log.messages, hashes, after) if isinstance(profile, Profile) else []
    numbers = numbers_of(snapshot.consumers, before, after, sent, given)
    soon = after.filter(pc.less_equal(after["t_us"], taken_us[1] + RACE_US))
    busy = pa.concat_tables([within, soon])
    touched = set(busy.filter(pc.is_in(busy["kind"], value_set=pa.array(_TOUCHING)))["consumer"].to_pylist())
    granted = touched | set(busy.filter(pc.equal(busy["kind"], "flow"))["consumer"].to_pylist())
    pending: dict[int, list[str]] = {}
    said: dict[str, Any] = {"kind": "checkpoint", "source": "topics stats"}
    if snapshot.cursor is None:
        notes.append("without stats-internal nothing is known of what is acknowledged or pending")
    else:
        said |= _acknowledged(log.messages, snapshot.cursor)
        if covered:
            said["read_position"] = _text(_unsent(snapshot.cursor, within))
            known = profile if isinstance(profile, Profile) else None
            pending = _pending(log.messages, snapshot, known, hashes, numbers, (before_span, within), touched)
    said["consumers"] = [
        _as_line(number, consumer, snapshot, permits=covered and number not in granted)
        for number, consumer in zip(numbers, snapshot.consumers, strict=True)
    ]
    said["pending_acks"] = pending
    return Made(
        replace(log, events=_with_line(events, end, said, taken_us[1])),
        sum(map(len, pending.values())),
        tuple(notes),
    )


def _span(log: DispatcherLog, snapshot: Snapshot, taken_us: tuple[int, int]) -> tuple[int, int]:
    """The rows of the log in the span: from the first, and before the second.

    What came shortly before the first document was taken may have had its effect after that, and counts as in the span;
    counts are not taken either of those to whom something happens shortly behind it.
    """
    first_us, last_us = taken_us[0] - RACE_US, taken_us[1]
    if snapshot.last_us > last_us:
        raise TopicStatsError(
            f"the stats name something that happened at {clock(snapshot.last_us)}, after {clock(last_us)}, when they were "
            "taken: --taken is not when that was, or the clocks differ; give the times of the broker's clock"
        )
    times = np.maximum.accumulate(log.events["t_us"].fill_null(0).to_numpy())
    begin = int(np.searchsorted(times, first_us, side="left"))
    end = int(np.searchsorted(times, last_us, side="right"))
    if end >= len(times):
        raise TopicStatsError(
            f"{log.topic} / {log.subscription}: the log ends at {clock(int(times[-1])) if len(times) else 'its header'}, "
            f"before the snapshot was taken ({clock(last_us)}): nothing of it comes later"
        )
    return begin, end


def _profile(log: DispatcherLog, snapshot: Snapshot) -> Profile | str:
    """The rules in force, or why they are not known."""
    version = log.header.get("broker_version")
    if version is None:
        return "the log's header names no broker_version (--broker-version gives one)"
    try:
        return resolve(
            version,
            log.header.get("config"),
            subscription_type=subscription_type(log),
            partition_index=partition_index(log.header, log.topic),
            key_shared_mode=snapshot.mode or "AUTO_SPLIT",
            allow_out_of_order=bool(snapshot.allow_out_of_order),
        )
    except ProfileError as error:
        return str(error)


def _sent_hashes(messages: pa.Table, hashes: npt.NDArray[np.int64], after: pa.Table) -> list[tuple[int, int]]:
    """(number, sticky hash) of what is sent until somebody joins or leaves."""
    changes = np.flatnonzero(np.asarray(pc.is_in(after["kind"], value_set=pa.array(_MEMBERSHIP))))
    calm = after.slice(0, int(changes[0]) if len(changes) else None)
    rows = calm.filter(pc.equal(calm["kind"], "sent")).select(["consumer", "positions"]).to_pylist()
    hash_of = dict(zip(_positions(messages), hashes.tolist(), strict=True))
    pairs = {
        (row["consumer"], hash_of.get((position["ledger_id"], position["entry_id"])))
        for row in rows
        for position in row["positions"]
    }
    return [(number, sticky) for number, sticky in pairs if sticky is not None]


def _acknowledged(messages: pa.Table, cursor: Cursor) -> dict[str, Any]:
    """Mark-delete and holes. A range over the end of a ledger is known entry by entry from the message log."""
    holes: list[Position] = []
    ledger, entry = messages["ledger_id"].to_numpy(), messages["entry_id"].to_numpy()
    for lower, upper in cursor.acked:
        if lower[0] == upper[0]:
            holes += [(lower[0], at) for at in range(lower[1] + 1, upper[1] + 1)]
        else:
            rows = range(upto(ledger, entry, lower), upto(ledger, entry, upper))
            holes += [(int(ledger[at]), int(entry[at])) for at in rows]
    return {"mark_delete": _text(cursor.mark_delete), "ack_holes": [_text(position) for position in holes]}


def _unsent(cursor: Cursor, within: pa.Table) -> Position:
    """Nothing from here on was sent by the end of the span: it was not stored when the span began.

    The cursor's read position would say too much: a rewind takes it back behind what was sent.
    """
    sent = within.filter(pc.equal(within["kind"], "sent"))["positions"].to_pylist()
    stored = [cursor.last_confirmed, *((p["ledger_id"], p["entry_id"]) for line in sent for p in line)]
    ledger, entry = max(stored)
    return ledger, entry + 1


def _pending(
    messages: pa.Table,
    snapshot: Snapshot,
    profile: Profile | None,
    hashes: npt.NDArray[np.int64],
    numbers: list[int],
    lines: tuple[pa.Table, pa.Table],
    touched: set[int],
) -> dict[int, list[str]]:
    """Pending positions by the log's numbers; counts prove some only of consumers that nothing happened to in the span.

    ``lines``: the log before the span, and in it.
    """
    cursor = snapshot.cursor
    assert cursor is not None
    ledger, entry = messages["ledger_id"].to_numpy(), messages["entry_id"].to_numpy()
    first = upto(ledger, entry, cursor.mark_delete)
    unacked = np.ones(len(ledger) - first, bool)
    for lower, upper in cursor.acked:
        low, high = (max(upto(ledger, entry, bound) - first, 0) for bound in (lower, upper))
        unacked[low:high] = False
    rows = np.flatnonzero(unacked) + first
    row_of = {position: at for at, position in enumerate(_positions(messages))}
    shown = Shown()
    shown.take(lines[0])
    seen = [np.intersect1d(rows, shown.rows(number, row_of)) for number in numbers]
    behind = upto(ledger, entry, (cursor.read_position[0], cursor.read_position[1] - 1))
    nothing = rows[:0]
    proven = [nothing for _ in numbers]
    if profile is not None:
        read = rows[rows < behind]
        proven = pending_of(snapshot, profile, read, seen, hashes, messages["num_messages"].to_numpy())
    shown.take(lines[1])
    pending: dict[int, list[str]] = {}
    for number, its in zip(numbers, proven, strict=True):
        rows_of = shown.rows(number, row_of)
        if number not in touched:
            rows_of = np.union1d(rows_of, its)
        gone = [row_of[position] for position in shown.settled if position in row_of]
        kept = np.setdiff1d(np.intersect1d(rows_of, rows), np.array(gone, np.int64))
        if len(kept):
            pending[number] = [_text((int(ledger[at]), int(entry[at]))) for at in kept.tolist()]
    return pending


def _as_line(number: int, consumer: ConsumerStats, snapshot: Snapshot, *, permits: bool) -> dict[str, Any]:
    """A consumer of a checkpoint. Priority and consumer id stand in no statistics."""
    line: dict[str, Any] = {"consumer": number, "name": consumer.name, "address": consumer.address}
    if permits:
        line["permits"] = consumer.permits
        line["unacked"] = None if consumer.unacked is None else max(consumer.unacked, 0)
    if consumer.ranges is not None:
        line["hash_ranges"] = [list(pair) for pair in consumer.ranges]
    if snapshot.mode is not None:
        policy: dict[str, Any] = {"mode": snapshot.mode, "allow_out_of_order": snapshot.allow_out_of_order}
        if snapshot.mode == "STICKY" and consumer.ranges is not None:
            policy["ranges"] = [list(pair) for pair in consumer.ranges]
        line["key_shared"] = policy
    return {name: value for name, value in line.items() if value is not None}


def _with_line(events: pa.Table, end: int, said: dict[str, Any], t_us: int) -> pa.Table:
    """The events from row ``end`` on, behind the checkpoint, which takes the number of the last line before them."""
    seq = events["seq"][end - 1].as_py() if end else events["seq"][0].as_py() - 1
    shift = max(_FIRST_SEQ - seq, 0)
    rest = events.slice(end)
    for name in _NUMBERED if shift else ():
        at = rest.column_names.index(name)
        rest = rest.set_column(at, rest.schema.field(name), pc.add(rest[name], shift))
    row = {
        name: events[name][0].as_py()
        for name in ("cluster", "topic", "subscription", "broker", "incarnation")
    }
    row |= {"seq": seq + shift, "t_us": t_us, "kind": "checkpoint"}
    row["checkpoint_json"] = json.dumps(said)
    return pa.concat_tables([pa.Table.from_pylist([row], schema=events.schema), rest])


def _positions(messages: pa.Table) -> list[Position]:
    return list(zip(messages["ledger_id"].to_pylist(), messages["entry_id"].to_pylist(), strict=True))


def _text(position: Position) -> str:
    return f"{position[0]}:{position[1]}"
