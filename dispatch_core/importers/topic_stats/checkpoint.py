"""Cut a log at a snapshot of the broker's statistics, which becomes the checkpoint that the new log begins with.

The two documents are taken one after the other while the broker works, so a snapshot covers a *span* of time. The lines of
the log within the span decide how much of the snapshot still holds at its end, where the log is cut:

* If a consumer joined or left, the connected consumers are not known, and the snapshot is refused.
* The counts of a consumer that was sent an entry, acknowledged or requested redelivery are not used, only the entries that
  the log shows to be pending.
* Acknowledged entries stay acknowledged; entries sent in the span were sent.

If the log begins after the span, the time between is unknown. The checkpoint then gives only the connected consumers and the
acknowledged entries.
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
from dispatch_core.importers.topic_stats.pending import ProvenByLog, pending_of
from dispatch_core.recording.batch_sizes import batch_sizes
from dispatch_core.recording.checkpoint import Position, as_text, upto
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.times import clock
from dispatch_core.verify.without_trace.races import RACE_US

_MEMBERSHIP: Final = ("consumer_added", "consumer_removed")
_TOUCHING: Final = ("sent", "ack", "redeliver")
_NUMBERED: Final = ("seq", "gap_from_seq", "gap_to_seq")
#: A log that begins with seq 1 and no consumer is that of a new dispatcher; this dispatcher is running.
_FIRST_SEQ: Final = 2


@dataclass(frozen=True, slots=True)
class Made:
    """A log that begins with the checkpoint. ``known_pending``: number of its pending positions; ``notes``: open points."""

    log: DispatcherLog
    known_pending: int
    notes: tuple[str, ...]


def from_snapshot(
    log: DispatcherLog, snapshot: Snapshot, taken_us: tuple[int, int], given: Mapping[int, str]
) -> Made:
    """Cut the log at the snapshot.

    Args:
        log: the recorded log; the snapshot was taken within it or before it.
        snapshot: the statistics of the log's subscription.
        taken_us: a time before the first document was taken and one after the last, by the broker's clock.
        given: names of consumers by the log's numbers.

    Raises:
        TopicStatsError: the snapshot does not belong to the log, or consumers cannot be matched to connections.
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
            "snapshot: the time in between is unknown, so the checkpoint has neither permits nor pending entries; begin the "
            "log before the snapshot"
        )
    exactly = within.filter(pc.greater_equal(within["t_us"], taken_us[0]))
    changes = exactly.filter(pc.is_in(exactly["kind"], value_set=pa.array(_MEMBERSHIP)))
    if changes.num_rows:
        raise TopicStatsError(
            f"a consumer joined or left at seq {changes['seq'][0].as_py()}, between {clock(taken_us[0])} and "
            f"{clock(taken_us[1])}, while the snapshot was taken: the connected consumers are not known; take another one"
        )
    profile = _profile(log, snapshot)
    hashes = np.zeros(log.messages.num_rows, np.int64)
    if isinstance(profile, Profile):
        hashes = profile.hash_space.sticky_array(
            hashing.entry_h31(log.messages, fallback=profile.fallback_key)
        )
    else:
        notes.append(f"{profile}: no entry sent before the log begins is known to be pending")
    sent = _sent_hashes(log.messages, hashes, after) if isinstance(profile, Profile) else []
    numbers = numbers_of(snapshot.consumers, before, after, sent, given)
    soon = after.filter(pc.less_equal(after["t_us"], taken_us[1] + RACE_US))
    busy = pa.concat_tables([within, soon])
    touched = set(busy.filter(pc.is_in(busy["kind"], value_set=pa.array(_TOUCHING)))["consumer"].to_pylist())
    granted = touched | set(busy.filter(pc.equal(busy["kind"], "flow"))["consumer"].to_pylist())
    pending: dict[int, list[str]] = {}
    said: dict[str, Any] = {"kind": "checkpoint", "source": "topics stats"}
    if snapshot.cursor is None:
        notes.append("without stats-internal no acknowledged or pending entries are known")
    else:
        said |= _acknowledged(log.messages, snapshot.cursor)
        if covered:
            said["read_position"] = as_text(_unsent(snapshot.cursor, within))
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
    """The rows of the log in the span: the first row, and the row after the last.

    A line shortly before the first document (``RACE_US``) may have taken effect after it, so it counts as in the span.
    """
    first_us, last_us = taken_us[0] - RACE_US, taken_us[1]
    if snapshot.last_us > last_us:
        raise TopicStatsError(
            f"the stats name an event at {clock(snapshot.last_us)}, after {clock(last_us)}, when they were "
            "taken: --taken is wrong, or the clocks differ; give the times of the broker's clock"
        )
    times = np.maximum.accumulate(log.events["t_us"].fill_null(0).to_numpy())
    begin = int(np.searchsorted(times, first_us, side="left"))
    end = int(np.searchsorted(times, last_us, side="right"))
    if end >= len(times):
        raise TopicStatsError(
            f"{log.topic} / {log.subscription}: the log ends at {clock(int(times[-1])) if len(times) else 'its header'}, "
            f"before the snapshot was taken ({clock(last_us)}): the log has no line after the snapshot"
        )
    return begin, end


def _profile(log: DispatcherLog, snapshot: Snapshot) -> Profile | str:
    """The profile of the log, or the reason why it is not known."""
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
    """(number, sticky hash) of the entries sent until a consumer joins or leaves."""
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
    """Mark-delete and acknowledgement holes. The entries of a range over several ledgers are read from the message log."""
    holes: list[Position] = []
    ledger, entry = messages["ledger_id"].to_numpy(), messages["entry_id"].to_numpy()
    for lower, upper in cursor.acked:
        if lower[0] == upper[0]:
            holes += [(lower[0], at) for at in range(lower[1] + 1, upper[1] + 1)]
        else:
            rows = range(upto(ledger, entry, lower), upto(ledger, entry, upper))
            holes += [(int(ledger[at]), int(entry[at])) for at in rows]
    return {
        "mark_delete": as_text(cursor.mark_delete),
        "ack_holes": [as_text(position) for position in holes],
    }


def _unsent(cursor: Cursor, within: pa.Table) -> Position:
    """The position from which on no entry was sent by the end of the span: the first one not stored at its beginning.

    The cursor's read position cannot be used: a rewind moves it before entries that were sent.
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
    """Pending positions by the log's numbers. Counts are used only for consumers without a line in the span (``touched``).

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
    shown = ProvenByLog()
    shown.take(lines[0])
    seen = [np.intersect1d(rows, shown.rows(number, row_of)) for number in numbers]
    behind = upto(ledger, entry, (cursor.read_position[0], cursor.read_position[1] - 1))
    nothing = rows[:0]
    proven = [nothing for _ in numbers]
    if profile is not None:
        read = rows[rows < behind]
        proven = pending_of(snapshot, profile, read, seen, hashes, batch_sizes(messages))
    shown.take(lines[1])
    pending: dict[int, list[str]] = {}
    for number, its in zip(numbers, proven, strict=True):
        rows_of = shown.rows(number, row_of)
        if number not in touched:
            rows_of = np.union1d(rows_of, its)
        gone = [row_of[position] for position in shown.settled if position in row_of]
        kept = np.setdiff1d(np.intersect1d(rows_of, rows), np.array(gone, np.int64))
        if len(kept):
            pending[number] = [as_text((int(ledger[at]), int(entry[at]))) for at in kept.tolist()]
    return pending


def _as_line(number: int, consumer: ConsumerStats, snapshot: Snapshot, *, permits: bool) -> dict[str, Any]:
    """A consumer of a checkpoint. The statistics give neither priority nor consumer id."""
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
    """The checkpoint, with the number of the line before row ``end``, and the events from row ``end`` on."""
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
