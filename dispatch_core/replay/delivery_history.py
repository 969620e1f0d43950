"""Dispatch rates, keys that changed consumer, and entries read per delivery, from the lines of a log.

All of it follows from lines that every log has (``sent``, joins and leaves), so it is exact without a trace, too. Only the
number of entries read needs the trace; without it there is a lower bound (``Reads``).

Example: key k was sent to c1 five times, then c2 joined, and k was sent to c2. The join of c2 moved one key. If c2 leaves
and k is sent to c1 again, k has changed its consumer twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints, valid
from dispatch_core.arrays.line_kinds import of_kinds, rows_of_kind
from dispatch_core.audit.deliveries.keys import Keys
from dispatch_core.recording.checkpoint import joins
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Entries

I64 = npt.NDArray[np.int64]

#: Most steps of time in which rates are counted.
MAX_STEPS: Final = 60
#: Keys that are listed with the consumers they went to.
WORST_KEYS: Final = 10
_MEMBERSHIP: Final = ("consumer_added", "consumer_removed")


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Every delivery of a log in the order of its lines, one element each.

    ``row``: of its line. ``entry``: ordinal in ``entries``, -1 = the message log lacks it. ``messages``: in the entry.
    """

    row: I64
    seq: I64
    t_us: I64
    consumer: I64
    entry: I64
    messages: I64
    entries: Entries

    @classmethod
    def of(cls, log: DispatcherLog) -> Deliveries:
        """Read the ``sent`` lines of a log."""
        entries = Entries(log.messages)
        rows = rows_of_kind(log.events, "sent")
        sent = log.events.select(["seq", "t_us", "consumer", "positions", "batch_sizes"]).take(pa.array(rows))
        lengths = ints(pc.list_value_length(sent["positions"]))
        flat = pc.list_flatten(sent["positions"])
        ledgers, ids = (ints(pc.struct_field(flat, name)) for name in ("ledger_id", "entry_id"))
        entry = np.array(entries.ordinals(zip(ledgers.tolist(), ids.tolist(), strict=True)), np.int64)
        stored = np.append(np.asarray(log.messages["num_messages"], dtype=np.int64), 1)
        messages = stored[entry]  # the last one stands for entries that are not stored
        sizes = ints(pc.list_value_length(sent["batch_sizes"]), -1)
        given = np.repeat(sizes == lengths, lengths)
        written = ints(pc.list_flatten(sent["batch_sizes"].filter(pa.array(sizes == lengths))))
        messages[given] = written
        each = np.repeat(np.arange(len(rows)), lengths)
        return cls(
            rows[each].astype(np.int64),
            ints(sent["seq"])[each],
            ints(sent["t_us"])[each],
            ints(sent["consumer"], -1)[each],
            entry,
            messages,
            entries,
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages delivered per consumer and step of time: ``messages[i]`` are those of ``consumers[i]``."""

    from_us: int
    step_us: int
    consumers: tuple[int, ...]
    messages: I64


@dataclass(frozen=True, slots=True)
class Reads:
    """Entries read and delivered. ``read``: ``None`` = the log does not show reads.

    ``at_least``: entries that were certainly read. Each delivery needs a read. An entry that is delivered for the first
    time after a later one was sent to the same connection was read once before: reads pass entries in order.
    """

    delivered: int
    read: int | None
    at_least: int

    @property
    def amplification(self) -> float | None:
        """Entries read per entry delivered; ``None`` = not known."""
        return None if self.read is None or not self.delivered else self.read / self.delivered

    @property
    def amplification_at_least(self) -> float | None:
        """The lower bound of the same; ``None`` = nothing was delivered."""
        return self.at_least / self.delivered if self.delivered else None


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """A join or leave, and how many keys went to another consumer between it and the next one. ``seq`` 0: before all."""

    seq: int
    t_us: int
    joined: bool | None
    consumer: int | None
    keys: int


@dataclass(frozen=True, slots=True)
class MovedKey:
    """A key that changed its consumer. ``consumers``: those it was sent to, in order, each when it changed."""

    key: str
    key_b64: bool
    changes: int
    consumers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """Keys that changed their consumer: from one delivery of the key to the next one.

    ``keys``: how many keys did; ``changes``: how often; ``by_change``: by the join or leave before it; ``worst``: the keys
    that changed most often.
    """

    keys: int
    changes: int
    by_change: tuple[MembershipChange, ...]
    worst: tuple[MovedKey, ...]


def names_of(events: pa.Table) -> dict[int, str]:
    """Return the name of every consumer of a log by its number."""
    return {row["consumer"]: row["name"] or "" for row in joins(events, ("consumer", "name"))}


def rates(deliveries: Deliveries, from_us: int, until_us: int) -> Rates:
    """Count messages per consumer from ``from_us`` to ``until_us``, in at most ``MAX_STEPS`` steps of a round length."""
    step_us = step_for(max(until_us - from_us + 1, 1), MAX_STEPS)
    inside = (deliveries.t_us >= from_us) & (deliveries.t_us <= until_us)
    consumer, place = np.unique(deliveries.consumer[inside], return_inverse=True)
    steps = max(-(-(until_us - from_us + 1) // step_us), 1)
    counts = np.zeros((len(consumer), steps), np.int64)
    np.add.at(counts, (place, (deliveries.t_us[inside] - from_us) // step_us), deliveries.messages[inside])
    return Rates(from_us, step_us, tuple(consumer.tolist()), counts)


def step_for(span_us: int, most: int) -> int:
    """Return the shortest step of 1, 2 or 5 times a power of ten that divides a span into at most ``most`` steps.

    >>> step_for(4_530_000, 60), step_for(60_000_000, 60), step_for(1, 60)
    (100000, 1000000, 1)
    """
    step = 1
    while True:
        for times in (1, 2, 5):
            if -(-span_us // (times * step)) <= most:
                return times * step
        step *= 10


def messages_since(deliveries: Deliveries, since_us: Mapping[int, int], until_us: int) -> dict[int, int]:
    """Count the messages delivered to each consumer after a moment of its own, up to ``until_us``."""
    counted: dict[int, int] = {}
    for consumer, since in since_us.items():
        own = (deliveries.consumer == consumer) & (deliveries.t_us > since) & (deliveries.t_us <= until_us)
        counted[consumer] = int(deliveries.messages[own].sum())
    return counted


def reads_of(log: DispatcherLog, deliveries: Deliveries, from_us: int, until_us: int) -> Reads:
    """Count the entries read and delivered from ``from_us`` to ``until_us``."""
    inside = (deliveries.t_us >= from_us) & (deliveries.t_us <= until_us)
    delivered = int(inside.sum())
    at_least = delivered + int((_read_before(deliveries) & inside).sum())
    rows = rows_of_kind(log.events, "read_done")
    if not len(rows):
        return Reads(delivered, None, at_least)
    lines = log.events.select(["t_us", "positions"]).take(pa.array(rows))
    t_us, lengths = ints(lines["t_us"]), ints(pc.list_value_length(lines["positions"]))
    return Reads(delivered, int(lengths[(t_us >= from_us) & (t_us <= until_us)].sum()), at_least)


def _read_before(deliveries: Deliveries) -> npt.NDArray[np.bool_]:
    """Mask the first deliveries of entries behind a later entry, in an earlier line of the same connection."""
    entry, found = deliveries.entry, np.zeros(len(deliveries.entry), np.bool_)
    first = np.zeros(len(entry), np.bool_)
    first[np.unique(entry, return_index=True)[1]] = True
    first &= entry >= 0
    for consumer in np.unique(deliveries.consumer).tolist():
        own = np.flatnonzero(deliveries.consumer == consumer)
        starts = np.flatnonzero(np.append(True, np.diff(deliveries.row[own]) > 0))
        highest = np.maximum.reduceat(entry[own], starts)
        before = np.append(-1, np.maximum.accumulate(highest)[:-1])
        line = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(own))))
        found[own] = entry[own] < before[line]
    return found & first


def key_changes(log: DispatcherLog, deliveries: Deliveries, from_us: int, until_us: int) -> KeyChanges:
    """Find the keys that changed their consumer from ``from_us`` to ``until_us``."""
    keys = Keys(streaming=False)
    of_entry = np.append(keys.encode(log.messages), -1)
    key = of_entry[deliveries.entry].astype(np.int64)
    order = np.argsort(key, kind="stable")
    order = order[key[order] >= 0]
    same_key = np.diff(key[order], prepend=-1) == 0
    other = np.diff(deliveries.consumer[order], prepend=-1) != 0
    moved = order[same_key & other]
    moved = np.sort(moved[(deliveries.t_us[moved] >= from_us) & (deliveries.t_us[moved] <= until_us)])
    counts = np.bincount(key[moved], minlength=1)
    worst = np.argsort(-counts, kind="stable")[:WORST_KEYS]
    return KeyChanges(
        int((counts > 0).sum()),
        len(moved),
        tuple(_by_change(log.events, deliveries, key, moved, from_us, until_us)),
        tuple(
            MovedKey(
                keys.text(number),
                bool(keys.base64[number]),
                int(counts[number]),
                _consumers_in_turn(deliveries.consumer[order[key[order] == number]]),
            )
            for number in worst.tolist()
            if counts[number]
        ),
    )


def _consumers_in_turn(consumers: I64) -> tuple[int, ...]:
    return tuple(consumers[np.append(True, np.diff(consumers) != 0)].tolist())


def _by_change(
    events: pa.Table, deliveries: Deliveries, key: I64, moved: I64, from_us: int, until_us: int
) -> list[MembershipChange]:
    """Attribute the deliveries ``moved`` to the joins and leaves before them; those without any key are listed, too."""
    rows = np.flatnonzero(of_kinds(events, *_MEMBERSHIP) & valid(events["consumer"]))
    lines = events.select(["seq", "t_us", "kind", "consumer"]).take(pa.array(rows)).to_pylist()
    place = np.searchsorted(rows, deliveries.row[moved]) - 1
    keys_of: dict[int, set[int]] = {}
    for at, number in zip(place.tolist(), key[moved].tolist(), strict=True):
        keys_of.setdefault(at, set()).add(number)
    found = [
        MembershipChange(
            line["seq"],
            line["t_us"] or 0,
            line["kind"] == "consumer_added",
            line["consumer"],
            len(keys_of.get(at, ())),
        )
        for at, line in enumerate(lines)
        if at in keys_of or from_us <= (line["t_us"] or 0) <= until_us
    ]
    if -1 in keys_of:
        found.insert(0, MembershipChange(0, from_us, None, None, len(keys_of[-1])))
    return found


def backlog_at_least(log: DispatcherLog, deliveries: Deliveries) -> int:
    """Count the entries that were certainly stored by the last line, for the subscription, and not acknowledged.

    These lie between the lowest entry that was sent and the highest that was sent or read. What was stored behind that one
    is not told by a line. Acknowledgements count from their arrival.
    """
    sent = np.unique(deliveries.entry[deliveries.entry >= 0])
    if not len(sent):
        return 0
    low, high = int(sent[0]), max(int(sent[-1]), _highest_read(log, deliveries.entries))
    acked = np.zeros(high + 1, np.bool_)
    rows = rows_of_kind(log.events, "ack")
    lines: list[dict[str, Any]] = (
        log.events.select(["positions", "ack_type"]).take(pa.array(rows)).to_pylist()
    )
    for line in lines:
        named = deliveries.entries.ordinals(
            (position["ledger_id"], position["entry_id"]) for position in line["positions"] or ()
        )
        # An entry that is acknowledged in part counts as acknowledged, so that the sum is not too high.
        for entry in named:
            if line["ack_type"] == "Cumulative":
                acked[: entry + 1] = True
            elif 0 <= entry <= high:
                acked[entry] = True
    return int((~acked[low:]).sum())


def _highest_read(log: DispatcherLog, entries: Entries) -> int:
    """Return the highest entry of the results of reads; -1 without a trace."""
    rows = rows_of_kind(log.events, "read_done")
    flat = pc.list_flatten(log.events["positions"].take(pa.array(rows)))
    ledgers, ids = (ints(pc.struct_field(flat, name)).tolist() for name in ("ledger_id", "entry_id"))
    return max(entries.ordinals(zip(ledgers, ids, strict=True)), default=-1)
