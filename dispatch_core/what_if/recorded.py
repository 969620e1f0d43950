"""Read the load of a log: the acts of its producers and clients, and none of its broker's decisions.

``load_of`` reads the message log, joins and leaves, permits, acknowledgements and redelivery requests. It reads neither
``sent`` lines nor lines of level T, so a trace and a log without a trace give the same load.

Assumptions about times that the log does not show:

* an entry is stored ``STORED_AFTER_US`` after it was published, in the order of the positions, and before it is
  acknowledged;
* a removal takes effect ``LEAVES_BEFORE_US`` before its line, which a broker writes at the end of the removal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.positions import locate
from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState
from dispatch_core.broker import hashing
from dispatch_core.broker.profiles import Profile, partition_index
from dispatch_core.errors import DispatchAuditError, ProfileError
from dispatch_core.recording.batch_sizes import batch_sizes
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, subscription_type
from dispatch_core.simulation.world import NEVER, PART, UP_TO, WHOLE

Ints = npt.NDArray[np.int64]

#: From an entry's publish time until a read can return it: the median of recorded traces.
STORED_AFTER_US: Final = 4_000
#: From a removal's effect to its line: the median of recorded traces.
LEAVES_BEFORE_US: Final = 200
#: An entry is stored so long before it is acknowledged, at least.
_ACKED_AFTER_US: Final = 1_000
_KINDS: Final = ("consumer_added", "consumer_removed", "flow", "ack", "redeliver")


class NotSimulableError(DispatchAuditError):
    """A log that cannot be simulated: no clients, no messages, or a subscription type without rules."""


@dataclass(frozen=True, slots=True)
class Join:
    """A connection that was made. ``number``: the log's. ``ranges``: those it announced (STICKY)."""

    at_us: int
    number: int
    name: str
    consumer_id: int
    address: str | None
    priority_level: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Acks:
    """Acknowledgements of entries in the order of the log; columns of equal length.

    ``kind``: ``WHOLE``, ``PART`` (of its messages, see ``words``) or ``UP_TO`` (cumulative). ``words``: by row.
    """

    at_us: Ints
    consumer: Ints
    entry: Ints  # ordinal
    kind: Ints
    words: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Request:
    """A redelivery request. ``entries``: ordinals; None = all pending entries of the consumer."""

    at_us: int
    consumer: int
    entries: tuple[int, ...] | None


@dataclass(frozen=True)
class RecordedLoad:
    """The input of a simulation. Entries are ordinals of ``messages``, consumers are the log's numbers."""

    recording: str
    cluster: str
    topic: str
    subscription: str
    subscription_type: str
    partition_index: int
    broker: str | None
    incarnation: int
    profile: Profile | None  # the recorded rules; None = the header does not give them
    header: Mapping[str, Any] = field(repr=False)
    messages: pa.Table = field(repr=False)
    stored_us: Ints = field(repr=False)  # by ``stored_after`` with its default
    published_us: Ints = field(repr=False)
    h31: Mapping[bool, Ints] = field(
        repr=False
    )  # masked murmur hash; key: key-less entries by producer and sequence id
    num_messages: Ints = field(repr=False)
    size_bytes: Ints = field(repr=False)
    begin: int  # the first entry that the subscription has not acknowledged at the start of the log
    settled: Ints = field(repr=False)  # later entries that it has acknowledged
    joins: Sequence[Join] = field(repr=False)
    leaves: Sequence[tuple[int, int]] = field(repr=False)  # time, number
    flows: tuple[Ints, Ints, Ints] = field(repr=False)  # time, consumer, permits
    acks: Acks = field(repr=False)
    requests: Sequence[Request] = field(repr=False)
    unknown: int  # positions acknowledged or requested again that are not in the message log
    until_us: int  # end of the log

    def with_priorities(self, levels: Mapping[str, int], everybody: str) -> RecordedLoad:
        """Return the load with other priority levels, by name; ``everybody``: the name that stands for all others.

        Raises ``NotSimulableError`` for a name that no consumer has.
        """
        unknown = sorted(levels.keys() - {join.name for join in self.joins} - {everybody})
        if unknown:
            raise NotSimulableError(
                f"no consumer is called {unknown[0][:80]!r}, whose priority level was given; "
                f"there are {', '.join(sorted({join.name for join in self.joins})[:5])}"
            )
        if not levels:
            return self
        level_of = {join.name: levels.get(join.name, levels.get(everybody)) for join in self.joins}
        joins = [
            join if (level := level_of[join.name]) is None else replace(join, priority_level=level)
            for join in self.joins
        ]
        return replace(self, joins=joins)

    @property
    def is_single_active(self) -> bool:
        """Failover or Exclusive."""
        return self.subscription_type in ("Failover", "Exclusive")


def load_of(log: DispatcherLog) -> RecordedLoad:
    """The load of a log. Raises ``NotSimulableError`` for one that cannot be simulated under any rules."""
    kind = subscription_type(log)
    try:
        profile = profile_of(log)
    except ProfileError:
        profile = None
    if kind not in ("Key_Shared", "Failover", "Exclusive"):
        raise NotSimulableError(
            f"{_name(log)}: {kind} subscriptions are not simulated, only Key_Shared, Failover, Exclusive"
        )
    state = CheckpointState.of(log.events)
    if state is not None and not state.of_a_new_dispatcher:
        consumers, pending = (
            state.checkpoint.consumers or (),
            sum(map(len, state.checkpoint.pending.values())),
        )
        raise NotSimulableError(
            f"{_name(log)}: the log begins with a checkpoint of a running dispatcher ({len(consumers)} consumers connected "
            f"and {pending} entries pending). Their permits and deliveries before that are not in it, and other "
            "rules would have sent them other entries: give the log from the dispatcher's beginning"
        )
    events = log.events.filter(pc.is_in(log.events["kind"].cast(pa.string()), value_set=pa.array(_KINDS)))
    events = events.filter(pc.is_valid(events["t_us"]))
    joins = _joins(_of_kind(events, "consumer_added"))
    if not joins or not log.messages.num_rows:
        what = "no message" if joins else "no consumer"
        raise NotSimulableError(
            f"{_name(log)}: the log holds {what}, so there is nothing to simulate: give the whole log"
        )
    positions = _Positions(log.messages)
    acks = _acks(_of_kind(events, "ack"), positions)
    requests = _requests(_of_kind(events, "redeliver"), positions)
    flows = _of_kind(events, "flow")
    leaves = _leaves(_of_kind(events, "consumer_removed"), joins)
    published = _ints(pc.fill_null(log.messages["publish_time_ms"], 0)) * 1000
    return RecordedLoad(
        recording=log.recording,
        cluster=log.cluster,
        topic=log.topic,
        subscription=log.subscription,
        subscription_type=kind,
        partition_index=partition_index(log.header, log.topic),
        broker=log.broker,
        incarnation=log.incarnation,
        profile=profile,
        header=log.header,
        messages=log.messages,
        stored_us=stored_after(published, acks),
        published_us=published,
        h31={way: hashing.entry_h31(log.messages, fallback=way) for way in (False, True)},
        num_messages=batch_sizes(log.messages),
        size_bytes=_ints(pc.fill_null(log.messages["size_bytes"], 0)),
        begin=0,
        settled=np.zeros(0, np.int64),
        joins=joins,
        leaves=leaves,
        flows=(_ints(flows["t_us"]), _ints(flows["consumer"]), _ints(flows["permits"])),
        acks=acks,
        requests=requests,
        unknown=positions.unknown,
        until_us=int(pc.max(events["t_us"]).as_py()) + 1,
    )


def _name(log: DispatcherLog) -> str:
    return log.recording or log.topic


def _ints(column: pa.ChunkedArray) -> Ints:
    values: Ints = column.to_numpy().astype(np.int64)
    return values


def _of_kind(events: pa.Table, kind: str) -> pa.Table:
    return events.filter(pc.equal(events["kind"].cast(pa.string()), kind))


class _Positions:
    """Ordinals of positions; counts those that the message log does not hold."""

    def __init__(self, messages: pa.Table) -> None:
        self._ledger, self._entry = _ints(messages["ledger_id"]), _ints(messages["entry_id"])
        self.unknown = 0

    def ordinals(self, positions: pa.Array) -> Ints:
        """Ordinals of a column of positions, -1 = not stored."""
        found = locate(
            self._ledger,
            self._entry,
            np.asarray(positions.field("ledger_id"), np.int64),
            np.asarray(positions.field("entry_id"), np.int64),
        ).astype(np.int64)
        self.unknown += int((found < 0).sum())
        return found


def _joins(added: pa.Table) -> list[Join]:
    """Each connection's first line."""
    found: dict[int, Join] = {}
    names = ["t_us", "consumer", "name", "consumer_id", "address", "priority_level", "ranges"]
    for row in added.select(names).to_pylist():
        ranges = tuple((bounds["start"], bounds["end"]) for bounds in row["ranges"] or ())
        join = Join(
            row["t_us"],
            row["consumer"],
            row["name"] or "",
            row["consumer_id"] or 0,
            row["address"],
            row["priority_level"] or 0,
            ranges,
        )
        found.setdefault(join.number, join)
    return list(found.values())


def _leaves(removed: pa.Table, joins: Sequence[Join]) -> list[tuple[int, int]]:
    """The first removal of each connection, not before its join."""
    joined = {join.number: join.at_us for join in joins}
    found: dict[int, int] = {}
    for at_us, number in zip(removed["t_us"].to_pylist(), removed["consumer"].to_pylist(), strict=True):
        if number in joined:
            found.setdefault(number, max(at_us - LEAVES_BEFORE_US, joined[number]))
    return [(at_us, number) for number, at_us in found.items()]


def _acks(lines: pa.Table, positions: _Positions) -> Acks:
    listed = lines["positions"].combine_chunks()
    lengths = np.asarray(pc.fill_null(pc.list_value_length(listed), 0), np.int64)
    row = np.repeat(np.arange(len(lengths)), lengths)
    entry = positions.ordinals(pc.list_flatten(listed))
    cumulative = np.asarray(pc.equal(lines["ack_type"].cast(pa.string()), "Cumulative").fill_null(False))
    kind = np.where(cumulative[row], UP_TO, WHOLE).astype(np.int64)
    known = entry >= 0
    place = np.cumsum(known) - 1  # of a flat position among those known
    starts = np.cumsum(lengths) - lengths
    words: dict[int, tuple[int, ...]] = {}
    sets = lines["ack_sets"].combine_chunks()
    for at in np.flatnonzero(np.asarray(sets.is_valid())).tolist():
        for i, ack_set in enumerate(sets[at].as_py()[: lengths[at]]):
            flat = int(starts[at]) + i
            if ack_set and known[flat]:
                words[int(place[flat])] = tuple(ack_set)
                kind[flat] = UP_TO if cumulative[at] else PART
    return Acks(
        _ints(lines["t_us"])[row][known],
        _ints(lines["consumer"])[row][known],
        entry[known],
        kind[known],
        words,
    )


def _requests(lines: pa.Table, positions: _Positions) -> list[Request]:
    found = []
    for at_us, consumer, wanted in zip(
        lines["t_us"].to_pylist(), lines["consumer"].to_pylist(), lines["positions"], strict=True
    ):
        entries = None
        if wanted.is_valid:
            ordinals = positions.ordinals(wanted.values)
            entries = tuple(ordinals[ordinals >= 0].tolist())
        found.append(Request(at_us, consumer, entries))
    return found


def stored_after(published_us: Ints, acks: Acks, after_us: int = STORED_AFTER_US) -> Ints:
    """The time at which each entry was stored: ``after_us`` after its publish time, in order, before its first ack.

    A publish time of 0 means not known: such an entry was stored together with the previous one.
    """
    acked = np.full(len(published_us), NEVER, np.int64)
    np.minimum.at(acked, acks.entry, acks.at_us - _ACKED_AFTER_US)
    latest = np.minimum.accumulate(acked[::-1])[::-1]
    stored: Ints = np.minimum(np.maximum.accumulate(published_us) + after_us, latest)
    return stored
