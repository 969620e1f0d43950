"""Read the load of a log: the acts of its producers and clients, and none of its broker's decisions.

``load_of`` reads the message log, joins and leaves, permits, acknowledgements and redelivery requests. Of ``sent`` lines it
reads when entries were sent first, never to whom: an entry was stored by then. It reads no lines of level T, so a trace and
a log without a trace give the same load.

Assumptions about times that the log does not show:

* entries are stored in the order of their positions, before a later one is sent or they are acknowledged: just before that
  if permits were left all the time since they were published, else ``STORED_AFTER_US`` after that at the latest;
* a log that begins with a checkpoint of a dispatcher at work is simulated as after a restart of the broker: the consumers
  connect again, each with the permits that it had and room for what was pending, which is sent again;
* a removal takes effect ``LEAVES_BEFORE_US`` before its line, which a broker writes at the end of the removal;
* a connection that the recorded rules refuse, and that was granted no permits, never was a consumer.
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
from dispatch_core.simulation.dispatcher_run import UnackedLimit
from dispatch_core.simulation.world import NEVER, PART, UP_TO, WHOLE
from dispatch_core.what_if.connections import Join, refused
from dispatch_core.what_if.policies import unacked_limits

Ints = npt.NDArray[np.int64]

#: From an entry's publish time until a read can return it: the median of recorded traces.
STORED_AFTER_US: Final = 4_000
#: From a read of an entry that is stored to the line of its delivery.
_SENT_AFTER_US: Final = 300
#: A storage takes no longer than this for an entry: what waits longer was held back by something else.
_STORED_WITHIN_US: Final = 300_000
#: From a removal's effect to its line: the median of recorded traces.
LEAVES_BEFORE_US: Final = 200
#: An entry is stored so long before it is acknowledged, at least.
_ACKED_AFTER_US: Final = 1_000
_KINDS: Final = ("consumer_added", "consumer_removed", "flow", "ack", "redeliver")


class NotSimulableError(DispatchAuditError):
    """A log that cannot be simulated: no clients, no messages, or a subscription type without rules."""


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
    begins_at_work: bool  # the log begins with a checkpoint of a dispatcher at work
    joins: Sequence[Join] = field(repr=False)
    refused: Sequence[Join] = field(repr=False)  # connections that the recorded broker refused
    leaves: Sequence[tuple[int, int]] = field(repr=False)  # time, number
    flows: tuple[Ints, Ints, Ints] = field(repr=False)  # time, consumer, permits
    acks: Acks = field(repr=False)
    requests: Sequence[Request] = field(repr=False)
    unacked_limits: Sequence[UnackedLimit]  # those of policies
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
    if kind not in ("Key_Shared", "Failover", "Exclusive", "Shared"):
        raise NotSimulableError(
            f"{_name(log)}: {kind} subscriptions are not simulated, only Key_Shared, Failover, Exclusive, Shared"
        )
    state = CheckpointState.of(log.events)
    running = state if state is not None and not state.of_a_new_dispatcher else None
    messages = log.messages if running is None else _unacknowledged(log.messages, running)
    events = log.events.filter(pc.is_in(log.events["kind"].cast(pa.string()), value_set=pa.array(_KINDS)))
    events = events.filter(pc.is_valid(events["t_us"]))
    joins = _joins(_of_kind(events, "consumer_added"))
    if running is not None:
        joins = [*_connected(running), *joins]
    if not joins or not messages.num_rows:
        what = "no message" if joins else "no consumer"
        raise NotSimulableError(
            f"{_name(log)}: the log holds {what}, so there is nothing to simulate: give the whole log"
        )
    positions = _Positions(messages)
    acks = _acks(_of_kind(events, "ack"), positions)
    requests = _requests(_of_kind(events, "redeliver"), positions)
    flows = _of_kind(events, "flow")
    shut_out = _refused(log, profile, joins, events) - set(flows["consumer"].to_pylist())
    shut_out_joins = [join for join in joins if join.number in shut_out]
    joins = [join for join in joins if join.number not in shut_out]
    leaves = _leaves(_of_kind(events, "consumer_removed"), joins)
    published = _ints(pc.fill_null(messages["publish_time_ms"], 0)) * 1000
    sent_us = _first_sent(_of_kind(log.events, "sent"), positions, len(published))
    permits = _ints(flows["t_us"]), _ints(flows["consumer"]), _ints(flows["permits"])
    sizes = batch_sizes(messages)
    if running is not None:
        permits = _with_first_permits(permits, running, positions, sizes)
    unsent_us = _without_permits(permits, leaves, acks, sent_us, sizes)
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
        messages=messages,
        stored_us=stored_after(published, acks, sent_us=sent_us, without_permits_us=unsent_us),
        published_us=published,
        h31={way: hashing.entry_h31(messages, fallback=way) for way in (False, True)},
        num_messages=sizes,
        size_bytes=_ints(pc.fill_null(messages["size_bytes"], 0)),
        begins_at_work=running is not None,
        joins=joins,
        refused=shut_out_joins,
        leaves=leaves,
        flows=permits,
        acks=acks,
        requests=requests,
        unacked_limits=unacked_limits(log),
        unknown=positions.unknown,
        until_us=int(pc.max(events["t_us"]).as_py() or joins[-1].at_us) + 1,
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

    def ordinal(self, position: tuple[int, int]) -> int:
        """Ordinal of one position, -1 = not stored."""
        ledger, entry = (np.array([part], np.int64) for part in position)
        return int(locate(self._ledger, self._entry, ledger, entry)[0])

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


def _refused(
    log: DispatcherLog, profile: Profile | None, joins: Sequence[Join], events: pa.Table
) -> frozenset[int]:
    """The connections that the recorded rules refuse, in the order of the lines."""
    if profile is None:
        return frozenset()
    lines = events.filter(
        pc.is_in(events["kind"].cast(pa.string()), pa.array(["consumer_added", "consumer_removed"]))
    )
    added = set(_of_kind(lines, "consumer_added")["consumer"].to_pylist())
    changes: list[Join | int] = [join for join in joins if join.number not in added]  # of a checkpoint
    of_number = {join.number: join for join in joins if join.number in added}
    for kind, number in zip(lines["kind"].to_pylist(), lines["consumer"].to_pylist(), strict=True):
        if kind == "consumer_removed":
            changes.append(number)
        elif number in of_number:
            changes.append(of_number.pop(number))
    return refused(profile, log.topic, subscription_type(log), changes)


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


#: Permits of a consumer whose permits a checkpoint does not give: the default of receiverQueueSize.
_USUAL_QUEUE: Final = 1000


def _unacknowledged(messages: pa.Table, state: CheckpointState) -> pa.Table:
    """The entries that are not acknowledged by the time of the checkpoint."""
    ledger, entry = _ints(messages["ledger_id"]), _ints(messages["entry_id"])
    left = [
        not state.acknowledged(position) for position in zip(ledger.tolist(), entry.tolist(), strict=True)
    ]
    return messages.filter(pa.array(left, pa.bool_()))


def _connected(state: CheckpointState) -> list[Join]:
    """The consumers that a checkpoint names, as if they connected at its time."""
    return [
        Join(
            state.t_us,
            consumer.number,
            consumer.name or "",
            consumer.consumer_id or 0,
            consumer.address,
            consumer.priority_level or 0,
            consumer.ranges or (),
        )
        for consumer in state.checkpoint.consumers or ()
    ]


def _with_first_permits(
    flows: tuple[Ints, Ints, Ints], state: CheckpointState, positions: _Positions, sizes: Ints
) -> tuple[Ints, Ints, Ints]:
    """The permits with those of the consumers of a checkpoint: what is left of them, and room for what they hold."""
    numbers, granted = [], []
    for consumer in state.checkpoint.consumers or ():
        pending = state.checkpoint.pending.get(consumer.number, ())
        outstanding = sum(int(sizes[at]) for position in pending if (at := positions.ordinal(position)) >= 0)
        left = _USUAL_QUEUE - outstanding if consumer.permits is None else consumer.permits
        numbers.append(consumer.number)
        granted.append(max(left, 0) + outstanding)
    first = [state.t_us] * len(numbers)
    at_us, to, permits = (
        np.concatenate([np.array(new, np.int64), known])
        for new, known in zip((first, numbers, granted), flows, strict=True)
    )
    return at_us, to, permits


def _first_sent(lines: pa.Table, positions: _Positions, count: int) -> Ints:
    """The time at which each entry was sent first, to whomever; ``NEVER`` for others."""
    listed = lines["positions"].combine_chunks()
    lengths = np.asarray(pc.fill_null(pc.list_value_length(listed), 0), np.int64)
    unknown = positions.unknown
    entry = positions.ordinals(pc.list_flatten(listed))
    positions.unknown = unknown  # a delivery of what is not in the message log is no request
    at_us = np.repeat(_ints(lines["t_us"]), lengths)
    first = np.full(count, NEVER, np.int64)
    np.minimum.at(first, entry[entry >= 0], at_us[entry >= 0])
    return first


def _without_permits(
    flows: tuple[Ints, Ints, Ints],
    leaves: Sequence[tuple[int, int]],
    acks: Acks,
    sent_us: Ints,
    num_messages: Ints,
) -> Ints:
    """The last time up to each entry's first delivery at which no permits were left to all consumers together; 0 = never.

    A consumer that leaves takes its permits along: what it was granted and has not acknowledged, which is more than it had.
    """
    at_us, consumer, permits = flows
    gone = [
        (
            time_us,
            -int(permits[consumer == number].sum() - num_messages[acks.entry[acks.consumer == number]].sum()),
        )
        for time_us, number in leaves
    ]
    sent = sent_us < NEVER
    times = np.concatenate([at_us, sent_us[sent], np.array([time_us for time_us, _ in gone], np.int64)])
    change = np.concatenate([permits, -num_messages[sent], np.array([count for _, count in gone], np.int64)])
    order = np.argsort(times, kind="stable")
    times, left = times[order], np.cumsum(change[order])
    # while nothing is left: until the next change, and at the beginning until the first
    until = np.append(times, NEVER)
    ends = np.maximum.accumulate(np.where(np.append(0, left) <= 0, until, 0))
    before = np.searchsorted(times, sent_us, side="left")
    return np.minimum(ends[before], sent_us)


def stored_after(
    published_us: Ints,
    acks: Acks,
    after_us: int = STORED_AFTER_US,
    *,
    sent_us: Ints | None = None,
    without_permits_us: Ints | None = None,
) -> Ints:
    """The time at which each entry was stored, in order.

    A publish time of 0 means not known: such an entry was stored together with the previous one.

    Args:
        published_us: publish times.
        acks: an entry was stored before its first acknowledgement.
        after_us: how long the storage takes where nothing shows it.
        sent_us: when each entry was sent first; ``None`` = not known.
        without_permits_us: when permits were missing last before that. An entry for which none were missing since it was
            published waited for the storage alone.
    """
    acked = np.full(len(published_us), NEVER, np.int64)
    np.minimum.at(acked, acks.entry, acks.at_us - _ACKED_AFTER_US)
    latest = np.minimum.accumulate(acked[::-1])[::-1]
    published = np.maximum.accumulate(published_us)
    stored: Ints = np.minimum(published + after_us, latest)
    if sent_us is None or without_permits_us is None or not len(stored):
        return stored
    # the first delivery of this entry or of a later one
    later = np.minimum.accumulate(sent_us[::-1])[::-1]
    place = np.where(sent_us == later, np.arange(len(sent_us)), len(sent_us) - 1)
    place = np.minimum.accumulate(place[::-1])[::-1]
    shown = np.minimum(later - _SENT_AFTER_US, latest)
    waited = without_permits_us[place] <= published
    within = (shown > published) & (shown <= published + _STORED_WITHIN_US)
    usual = np.minimum(stored, np.maximum(shown, published))
    return np.maximum.accumulate(np.where(waited & within, shown, usual))
