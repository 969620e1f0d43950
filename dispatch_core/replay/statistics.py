"""Statistics of a subscription as ``pulsar-admin topics stats`` shows them, at any point of a log.

Theory of operation
-------------------
A dispatcher's state is a fold of its log, so its statistics after any line are the fold up to that line, written down
under the broker's names. ``subscription_stats`` writes down a dispatcher; ``stats_at`` folds a log and does so.

Names and formats are those of the release:

=================  ====================================  =========================================  ====================
                   3.x, and the classic dispatcher       4.0.0-preview.1 (PIP-282)                  4.x (PIP-379)
=================  ====================================  =========================================  ====================
hash ranges        ``keyHashRanges``: ``"[0, 99]"``      ``keyHashRanges``                          ``keyHashRangeArrays``
joined             ``readPositionWhenJoining``           ``lastSentPositionWhenJoining``            nothing
recently joined    ``consumersAfterMarkDeletePosition``  the same, ``consumerName=…, consumerId=…,  the same, always empty
                   by name: equal names overwrite        address=…`` as name
sent               nothing                               ``lastSentPosition``,                      nothing
                                                         ``individuallySentPositions``
draining           nothing (4.x classic: counters of 0)  nothing                                    all of it
=================  ====================================  =========================================  ====================

``msgInReplay`` came with #23224. A value that the broker has as null stands in no answer, here as there; ``drainingHashes``
is an empty list from the start. Not shown is what a log does not determine: rates, times, sizes, the backlog.

Added to every consumer: ``consumer``, its number in the log, as names need not be unique.

Sources: PersistentSubscription.getStats, ConsumerStatsImpl, SubscriptionStatsImpl, Consumer.getStats, StickyKeyDispatcher,
DrainingHashesTracker, ConcurrentOpenLongPairRangeSet; PIP-282, PIP-379.

>>> import numpy as np
>>> import pyarrow as pa
>>> from dispatch_core.broker import profiles
>>> from dispatch_core.verify.inputs import Entries
>>> core = KeySharedDispatcher(profiles.resolve("4.2.4"), np.array([8785, 8785]), np.ones(2, np.int64), 2)
>>> core.join(1, "c1")
>>> _ = core.join_selector(1)
>>> _ = core.flow(1, 10)
>>> entries = Entries(pa.table({"ledger_id": [1, 1], "entry_id": [0, 1]}))
>>> shown = subscription_stats(core, entries)
>>> shown["type"], shown["msgInReplay"], shown["drainingHashesCount"]
('Key_Shared', 0, 0)
>>> shown["consumers"][0]["availablePermits"], shown["consumers"][0]["keyHashRangeArrays"]
(10, [[1, 65535]])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.multiple_consumers import MultipleConsumersDispatcher
from dispatch_core.broker.ordering import draining_hashes, last_sent_position
from dispatch_core.broker.permits import messages_per_entry
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.selectors.assignments import Range
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.recording.checkpoint import Position, joins
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.traced_state import Core, state_at

#: PIP-379's own names, in snake case, for what the broker calls differently.
PIP_379_NAMES: Final = {
    "draining_hashes_count": "drainingHashesCount",
    "draining_hashes_cleared_total": "drainingHashesClearedTotal",
    "draining_hashes_pending_messages": "drainingHashesUnackedMessages",
    "draining_hashes": "drainingHashes",  # of consumers only
}

#: Counters of a consumer that the subscription shows as a sum.
_SUMMED: Final = ("drainingHashesCount", "drainingHashesClearedTotal", "drainingHashesUnackedMessages")


@dataclass(frozen=True, slots=True)
class Client:
    """Identity of a consumer for the broker beside its name; None where the log does not say."""

    consumer_id: int | None = None
    address: str | None = None


# --- at a line of a log ------------------------------------------------------------------------------------------


def stats_at(log: DispatcherLog, seq: int, *, pip_379_names: bool = False) -> dict[str, Any]:
    """The subscription's statistics after the line ``seq`` of ``log``.

    The broker takes a read attempt, a dispatch round or a membership change as a whole: a ``seq`` in the middle of one
    shows the state after it. A ``seq`` without a line shows the state after the line before it. ``pip_379_names``: see
    ``with_pip_379_names``.

    Raises:
        NoStateError: the log cannot be replayed, or ``seq`` lies before its first line.
    """
    core, entries = state_at(log, seq)
    stats = subscription_stats(core, entries, clients_of(log))
    return with_pip_379_names(stats) if pip_379_names else stats


def draining_pending_acks_at(
    log: DispatcherLog, seq: int, consumer: int | None = None
) -> list[dict[str, Any]]:
    """``draining_pending_acks`` after the line ``seq`` of ``log``. Raises ``NoStateError`` as ``stats_at`` does."""
    core, entries = state_at(log, seq)
    return draining_pending_acks(core, entries, consumer)


class Positions(Protocol):
    """Positions of the entries that a dispatcher numbers: ``ledger_ids`` and ``entry_ids``, by ordinal."""

    @property
    def ledger_ids(self) -> npt.NDArray[np.int64]:
        """Ledger of each entry."""
        ...

    @property
    def entry_ids(self) -> npt.NDArray[np.int64]:
        """Id of each entry in its ledger."""
        ...

    @property
    def dropped_to(self) -> Position | None:
        """The last entry that was dropped in front of the first one; ``None`` = none was."""
        ...

    def __len__(self) -> int:
        """Number of entries."""
        ...

    def position(self, ordinal: int) -> str:
        """``"L:E"`` of an entry."""
        ...


def clients_of(log: DispatcherLog) -> dict[int, Client]:
    """Consumer id and address of every consumer of a log."""
    rows = joins(log.events, ("consumer", "consumer_id", "address"))
    return {row["consumer"]: Client(row["consumer_id"], row["address"]) for row in rows}


# --- of a dispatcher ---------------------------------------------------------------------------------------------


class WhenJoining:
    """The positions that the rule remembered when each consumer joined, as fields of its statistics.

    A broker shows them for as long as the consumer is connected, so they outlive the entries of a window. Call ``note``
    before entries leave the window.
    """

    def __init__(self) -> None:
        self._fields: dict[int, dict[str, str]] = {}

    def note(self, core: Core, entries: Positions) -> None:
        """Note the positions of consumers that joined since the last call, as far as the window holds their entries."""
        if not isinstance(core, KeySharedDispatcher):
            return
        connected = core.connected()
        self._fields = {number: self._fields[number] for number in connected if number in self._fields}
        for number in connected:
            read, sent = core.read_when_joining(number), core.sent_when_joining(number)
            entry = sent if read is None else read
            if number not in self._fields and entry is not None and entry < len(entries):
                self._fields[number] = _when_joining(core, entries, number)

    def of(self, core: KeySharedDispatcher, entries: Positions, consumer: int) -> dict[str, str]:
        """Return the field of a consumer; empty where its rule remembers none."""
        return self._fields.get(consumer) or _when_joining(core, entries, consumer)


def subscription_stats(
    core: Core,
    entries: Positions,
    clients: Mapping[int, Client] | None = None,
    *,
    ranges: bool = True,
    when_joining: WhenJoining | None = None,
) -> dict[str, Any]:
    """Make what ``pulsar-admin topics stats`` would show of a dispatcher; consumers in its own order.

    ``entries``: positions of the entries the dispatcher numbers. ``clients``: consumer id and address of its consumers,
    as far as they are known. ``ranges``: with everybody's hash ranges. ``when_joining``: of consumers that joined before
    entries left the window.
    """
    clients = clients or {}
    when_joining = when_joining or WhenJoining()
    if isinstance(core, SingleActiveDispatcher):
        return _single_active(core, clients)
    if isinstance(core, SharedDispatcher):
        return _shared(core, clients)
    changes = core.profile.changes
    owned = _ranges_by_consumer(core) if ranges else {}
    draining = bool(np.any(core.state.drain_owner != st_.NOBODY))
    consumers = [
        {
            **_counters(core, number),
            **when_joining.of(core, entries, number),
            **_draining(core, number, listed=draining),
            **_hash_ranges(core.profile, owned.get(number)),
            **_address(clients, number),
        }
        for number in core.connected()
    ]
    stats = _of_several_consumers(core, "Key_Shared")
    stats["allowOutOfOrderDelivery"] = core.profile.allow_out_of_order
    stats["keySharedMode"] = core.profile.key_shared_mode
    stats["consumersAfterMarkDeletePosition"] = _recently_joined(core, entries, clients, when_joining)
    if "draining_hashes" in changes:
        stats |= {name: sum(consumer[name] for consumer in consumers) for name in _SUMMED}
    stats |= _sent(core, entries)
    stats["consumers"] = consumers
    return stats


def with_pip_379_names(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The same statistics, with the names of PIP-379's text beside those of the broker that mean the same.

    >>> with_pip_379_names({"drainingHashesCount": 2, "consumers": [{"drainingHashes": []}]})["draining_hashes_count"]
    2
    """
    both = dict(stats)
    both |= {alias: stats[name] for alias, name in PIP_379_NAMES.items() if name in stats}
    if "consumers" in stats:
        both["consumers"] = [with_pip_379_names(consumer) for consumer in stats["consumers"]]
    return both


def draining_pending_acks(
    core: Core, entries: Positions, consumer: int | None = None
) -> list[dict[str, Any]]:
    """List the messages that hold a draining hash: the listing that PIP-379 only considered. Ascending by hash.

    One object per draining hash, of ``consumer`` or of all: ``hash``; ``consumer`` and ``consumerName``, for whom it
    drains; ``waiting`` and ``waitingName``, who owns the hash now and waits (absent: nobody does); ``unackMsgs`` and
    ``blockedAttempts`` as in ``drainingHashes``; ``messageIds``, the positions that the consumer has still to
    acknowledge, ascending. Empty where nothing drains, as in every release without draining hashes.

    Raises ``IllegalTransitionError`` for a consumer that was never added.
    """
    if not isinstance(core, KeySharedDispatcher):
        return []
    if consumer is not None:
        core.slot(consumer)
    st = core.state
    of_hash: dict[tuple[int, int], list[str]] = {}
    draining = core.draining()
    for owner in {owner for owner, _, _ in draining.values()}:
        for entry in core.pending_on(owner):
            key = (owner, core.hash_value(int(st.pending_hash[entry])))
            of_hash.setdefault(key, []).append(entries.position(entry))
    listed = []
    for value, (owner, refs, attempts) in sorted(draining.items()):
        if consumer not in (None, owner):
            continue
        waiting = core.owner_of(value)
        listed.append(
            {
                "hash": value,
                "consumer": owner,
                "consumerName": core.name_of(owner),
                **({} if waiting is None else {"waiting": waiting, "waitingName": core.name_of(waiting)}),
                "unackMsgs": refs,
                "blockedAttempts": attempts,
                "messageIds": of_hash.get((owner, value), []),
            }
        )
    return listed


def _of_several_consumers(core: MultipleConsumersDispatcher, kind: str) -> dict[str, Any]:
    """Type and counters of a subscription whose consumers are served side by side."""
    scalars = core.state.s
    stats: dict[str, Any] = {
        "type": kind,
        "unackedMessages": int(scalars[st_.TOTAL_UNACKED]),
        "blockedSubscriptionOnUnackedMsgs": bool(scalars[st_.BLOCKED_ON_UNACKED]),
    }
    if "replay_set_stat" in core.profile.changes:
        stats["msgInReplay"] = int(scalars[st_.N_REPLAY])
    return stats


def _shared(core: SharedDispatcher, clients: Mapping[int, Client]) -> dict[str, Any]:
    """Shared: nobody owns hashes, and nothing is remembered of who joined."""
    consumers = [{**_counters(core, number), **_address(clients, number)} for number in core.connected()]
    return {**_of_several_consumers(core, "Shared"), "consumers": consumers}


def _single_active(core: SingleActiveDispatcher, clients: Mapping[int, Client]) -> dict[str, Any]:
    """Failover and Exclusive: nobody counts unacknowledged messages there, and nobody is blocked by them."""
    consumers = [
        {
            "consumer": number,
            "consumerName": core.name_of(number),
            "availablePermits": core.permits[number],
            "unackedMessages": 0,
            "avgMessagesPerEntry": core.messages_per_entry(number),
            "blockedConsumerOnUnackedMsgs": False,
            **_address(clients, number),
        }
        for number in core.members
    ]
    # While everybody is disconnected, the one that was active may be gone already.
    active = core.active if core.active is not None and core.is_connected(core.active) else None
    return {
        "type": "Exclusive" if core.is_exclusive else "Failover",
        "unackedMessages": 0,
        "blockedSubscriptionOnUnackedMsgs": False,
        "activeConsumer": active,
        "activeConsumerName": "" if active is None else core.name_of(active),
        "consumers": consumers,
    }


# --- groups of fields --------------------------------------------------------------------------------------------


def _counters(core: MultipleConsumersDispatcher, number: int) -> dict[str, Any]:
    st, slot = core.state, core.slot(number)
    return {
        "consumer": number,
        "consumerName": core.name_of(number),
        "availablePermits": int(st.permits[slot]),
        "unackedMessages": int(st.unacked[slot]),
        "avgMessagesPerEntry": messages_per_entry(float(st.average[slot])),
        "blockedConsumerOnUnackedMsgs": bool(st.blocked[slot]),
    }


def _when_joining(core: KeySharedDispatcher, entries: Positions, number: int) -> dict[str, str]:
    read, sent = core.read_when_joining(number), core.sent_when_joining(number)
    if read is not None:
        return {"readPositionWhenJoining": next_position(entries, read)}
    return {} if sent is None else {"lastSentPositionWhenJoining": last_position(entries, sent)}


def _draining(core: KeySharedDispatcher, number: int, *, listed: bool) -> dict[str, Any]:
    """A consumer's draining hashes; ``listed``: there may be some."""
    if "draining_hashes" not in core.profile.changes:
        return {}
    slot = core.slot(number)
    own = (
        draining_hashes.statistics(core.state, slot)
        if listed
        else draining_hashes.Statistics([], int(core.state.cleared_total[slot]))
    )
    shown: dict[str, Any] = {
        "drainingHashesCount": own.count,
        "drainingHashesClearedTotal": own.cleared_total,
        "drainingHashesUnackedMessages": own.unacked,
    }
    if not _is_classic(core.profile):
        # Hashes are numbered as they come; the order of the broker's map is none.
        hashes = sorted((core.hash_value(at), refs, attempts) for at, refs, attempts in own.hashes)
        shown["drainingHashes"] = [
            {"hash": hash_value, "unackMsgs": refs, "blockedAttempts": attempts}
            for hash_value, refs, attempts in hashes
        ]
    return shown


def _ranges_by_consumer(core: KeySharedDispatcher) -> dict[int, list[Range]]:
    owned: dict[int, list[Range]] = {}
    for start, end, number in core.assignments().ranges:
        owned.setdefault(number, []).append((start, end))
    return owned


def _hash_ranges(profile: Profile, owned: list[Range] | None) -> dict[str, Any]:
    """A consumer without a range has no such field."""
    if not owned:
        return {}
    if "draining_hashes" not in profile.changes or _is_classic(profile):
        return {"keyHashRanges": [f"[{start}, {end}]" for start, end in owned]}
    return {"keyHashRangeArrays": [[start, end] for start, end in owned]}


def _is_classic(profile: Profile) -> bool:
    """The dispatcher of 3.x, or the classic one of 4.x."""
    return profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC


def _address(clients: Mapping[int, Client], number: int) -> dict[str, str]:
    address = clients.get(number, Client()).address
    return {} if address is None else {"address": address}


def _recently_joined(
    core: KeySharedDispatcher, entries: Positions, clients: Mapping[int, Client], when_joining: WhenJoining
) -> dict[str, str]:
    """Name the recently joined consumers that are held back, each with its position; of equal names the last is left."""
    classic, found = _is_classic(core.profile), {}
    for number, entry in core.recently_joined().items():
        name, client = core.name_of(number), clients.get(number, Client())
        position = next_position(entries, entry) if classic else last_position(entries, entry)
        # The same position, also if its entry has left the window.
        noted = when_joining.of(core, entries, number).values()
        found[name if classic else _long_name(name, client)] = next(iter(noted), position)
    return found


def _long_name(name: str, client: Client) -> str:
    """Name a consumer as PIP-282 does to keep consumers of one name apart."""
    parts = {"consumerName": name, "consumerId": client.consumer_id, "address": client.address}
    return ", ".join(f"{part}={value}" for part, value in parts.items() if value is not None)


def _sent(core: KeySharedDispatcher, entries: Positions) -> dict[str, str]:
    """PIP-282's two positions; nothing where it does not track them."""
    st = core.state
    if not st.s[st_.TRACK_LAST_SENT]:
        return {}
    shown = {}
    if st.s[st_.LAST_SENT] != st_.NOT_TRACKED:
        shown["lastSentPosition"] = last_position(entries, int(st.s[st_.LAST_SENT]))
    shown["individuallySentPositions"] = range_text(entries, last_sent_position.sent_ranges(st))
    return shown


# --- positions ---------------------------------------------------------------------------------------------------


def last_position(entries: Positions, last: int) -> str:
    """``"L:E"`` of the last entry of a prefix; -1 = the last one that was dropped, or the position before the first entry.

    >>> import pyarrow as pa
    >>> from dispatch_core.verify.inputs import Entries
    >>> entries = Entries(pa.table({"ledger_id": [3, 3, 4], "entry_id": [0, 1, 0]}))
    >>> [last_position(entries, last) for last in (-1, 0, 2)]
    ['3:-1', '3:0', '4:0']
    """
    if last < 0 and entries.dropped_to is not None:
        return "{}:{}".format(*entries.dropped_to)
    if last >= 0 or not len(entries):
        return entries.position(last)
    return f"{entries.ledger_ids[0]}:{entries.entry_ids[0] - 1}"


def next_position(entries: Positions, entry: int) -> str:
    """``"L:E"`` of the entry a read begins with; behind the last entry, the position that would follow it.

    >>> import pyarrow as pa
    >>> from dispatch_core.verify.inputs import Entries
    >>> entries = Entries(pa.table({"ledger_id": [3, 3], "entry_id": [0, 1]}))
    >>> [next_position(entries, entry) for entry in (0, 1, 2)]
    ['3:0', '3:1', '3:2']
    """
    if not len(entries) and entries.dropped_to is not None:
        return f"{entries.dropped_to[0]}:{entries.dropped_to[1] + 1}"
    if entry < len(entries) or not len(entries):
        return entries.position(entry)
    return f"{entries.ledger_ids[-1]}:{entries.entry_ids[-1] + 1}"


def range_text(entries: Positions, ranges: list[tuple[int, int]]) -> str:
    """Half-open ranges ``(before, last]`` of entries as the broker writes a set of positions.

    It keeps one set per ledger, so a range ends with its ledger, and one that begins with a ledger begins at -1.

    >>> import pyarrow as pa
    >>> from dispatch_core.verify.inputs import Entries
    >>> entries = Entries(pa.table({"ledger_id": [3] * 11 + [4, 4], "entry_id": [*range(11), 0, 1]}))
    >>> range_text(entries, [(4, 5), (7, 10)])
    '[(3:4..3:5],(3:7..3:10]]'
    >>> range_text(entries, [(9, 12)]), range_text(entries, [])
    ('[(3:9..3:10],(4:-1..4:1]]', '[]')
    """
    runs: list[list[int]] = []  # ledger, entry before, last entry
    for before, last in ranges:
        for at in range(before + 1, last + 1):
            ledger, entry = int(entries.ledger_ids[at]), int(entries.entry_ids[at])
            if at > before + 1 and runs[-1][0] == ledger and runs[-1][2] == entry - 1:
                runs[-1][2] = entry
            else:
                runs.append([ledger, entry - 1, entry])
    return f"[{','.join(f'({ledger}:{before}..{ledger}:{last}]' for ledger, before, last in runs)}]"
