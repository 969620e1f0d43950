"""The state of a Key_Shared dispatcher as one struct of arrays, on which the data plane works.

Everything that a rule may change between two membership changes is kept here, in three groups of arrays and one of
scalars. Entries are *ordinals* of the message log (0 = first stored entry, ascending by position), hashes are ids into
the log's distinct sticky key hashes, consumers are *slots* (0, 1, … in the order of their first appearance). That makes
every per-entry step an array access, in compiled and in interpreted runs alike.

Mark-delete and read position are ordinals as well: ``MARK_DELETE`` = last entry of the acknowledged prefix (-1 = none),
``READ_POSITION`` = next entry a normal read starts from. "No entry lies between" thus holds by construction, also where
positions cross ledgers.

Source of the fields: PersistentDispatcherMultipleConsumers, PersistentStickyKeyDispatcherMultipleConsumers,
MessageRedeliveryController, DrainingHashesTracker, PendingAcksMap, Consumer (4.x).
"""

from __future__ import annotations

import operator
from typing import Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.structs import by_address

I8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

NOBODY: Final = -1
NO_HASH: Final = -1  # hash of a replay position that is not known yet (nack, ack time-out)
WIDE: Final = (
    0  # a number plus WIDE has 64 bits: numba compiles a function anew for each width of its arguments
)
LISTED_BITS: Final = 30  # slots per word of drain_listed
NOT_TRACKED: Final = -2  # a last sent position that is not known; -1 = the position before the first entry

# --- scalars: indexes into State.s -------------------------------------------------------------------------------
MARK_DELETE: Final = 0
READ_POSITION: Final = 1
TOTAL_PERMITS: Final = 2  # totalAvailablePermits; may drift negative
TOTAL_UNACKED: Final = 3
BLOCKED_ON_UNACKED: Final = 4  # blockedDispatcherOnUnackedMsgs
PENDING_READ: Final = 5  # havePendingRead
PENDING_REPLAY: Final = 6  # havePendingReplayRead
MIN_REPLAYED: Final = 7  # minReplayedPosition when the read was issued; -1 = none
REWIND_DUE: Final = 8  # shouldRewindBeforeReadingOrReplaying
SEND_IN_PROGRESS: Final = 9
SKIP_NEXT_REPLAY: Final = 10  # skipNextReplayToTriggerLookAhead
READ_BATCH_SIZE: Final = 11
N_CONSUMERS: Final = 12
N_REPLAY: Final = 13
REPLAY_LOW: Final = 14  # no position below it is in the replay set
REPLAY_HIGH: Final = 15  # no position at or above it is in the replay set
STAMP: Final = 16  # number of the current scan or round; makes scratch arrays valid
# settings of the broker
MAX_UNACKED_CONSUMER: Final = 17
MAX_UNACKED_SUBSCRIPTION: Final = 18
MAX_READ_BATCH_SIZE: Final = 19
LOOK_AHEAD_PER_CONSUMER: Final = 20
LOOK_AHEAD_PER_SUBSCRIPTION: Final = 21
# rules
IN_ORDER: Final = 22
TRACK_DRAINING: Final = 23
BLOCKED_HASH_MEMORY: Final = 24
LAZY_RELEASE_COUNTS: Final = 25
UNBLOCK_TEST: Final = 26  # when the unblock rule is tested on an ack: one of the three below
TRACK_LAST_SENT: Final = 27  # PIP-282
LAST_SENT: Final = 28  # lastSentPosition; NOT_TRACKED = null
SENT_LOW: Final = 29  # no entry below it is in individuallySentPositions
SENT_HIGH: Final = 30  # nor one at or above it
DRAIN_BATCH: Final = 31  # batchLevel of the draining hashes
DRAIN_UNBLOCKED: Final = 32  # unblockedWhileBatching
DRAIN_NOTICE: Final = 33  # unblock notice not taken yet: 0 = none, 1 = end of a batch, 2 + hash id
REPLAY_BY_PERMITS: Final = (
    34  # out of order: replay positions keep their hash, the replay filter looks at permits
)
TRIMS_TO_MARK_DELETE: Final = 35  # a read attempt drops everything up to mark-delete when that has moved
TRIMMED_TO: Final = 36  # mark-delete at the last such attempt
STORED_HASH: Final = 37  # hash id stored with every pending ack; NO_HASH = the entry's own
PRE_FILTERS_REPLAY: Final = (
    38  # what cannot be sent is left out of a replay read (#22245), read position only
)
N_RECENT: Final = 39  # recently joined consumers (read position, last sent position)
STUCK_MEMORY: Final = 40  # consumers without permits in one round are passed over in the next (until #20335)
SORTS_RECENT: Final = 41  # recently joined consumers are kept in position order (#23795, #23802)
REDELIVERS_IN_ONE_BATCH: Final = 42  # redelivery counts what is pending and always flows (#25589)
LOOK_AHEAD_NEEDS_MORE: Final = 43  # a round looks ahead only if the cursor has more entries (#26236, #26268)
LEAKED_LOW: Final = (
    44  # no position below it left the replay set while its hash stays counted; NONE_LEAKED = none did
)
READ_SIZE: Final = 45  # entries that the last normal read asked for
CLOSED: Final = 46  # IS_CLOSED: the topic is unloaded, or the subscription deleted
HAS_READ: Final = 47  # a normal read of the cursor has returned entries
COUNTS_REMAINING: Final = 48  # a pending ack keeps how many of its messages are unacknowledged (#25592)
NO_REPLAY_ORDER: Final = 49  # without R0 (until #10762)
NO_MIN_REPLAY: Final = 50  # without R1 (until #12890)
NEVER_STUCK: Final = 51  # a round that sends nothing never makes the next read a normal one (until #7105)
# Shared, see ``round_robin``
ROUND_ROBIN_INDEX: Final = 52  # currentConsumerRoundRobinIndex
TURN_RULE: Final = 53
TURN_SIZE: Final = 54  # dispatcherMaxRoundRobinBatchSize
READS_WHEN_ADDED: Final = 55  # see ``replay_set.reads_when_added``
N_SCALARS: Final = 56

NONE_LEAKED: Final = 1 << 62

UNBLOCK_AFTER: Final = 0  # the unacked counter was lowered
UNBLOCK_BEFORE: Final = 1
UNBLOCK_BEFORE_AND_AFTER: Final = 2


@by_address
class State(NamedTuple):
    """Struct of arrays; see the module for what indexes them."""

    s: I64  # scalars
    # per entry
    hash_id: I32  # id of the sticky key hash
    num_messages: I32
    deleted: I8  # acknowledged
    holder: I32  # slot of the consumer in whose pendingAcks it is, or NOBODY
    pending_hash: I32  # hash id stored with the pending ack
    pending_count: I32  # unacked messages left in the pending entry
    in_replay: I8
    replay_hash: I32  # hash id stored with the replay position, or NO_HASH
    redelivery_count: I32
    acked_indexes: I32  # batch indexes of a not yet deleted entry that are acknowledged
    sent_above: I8  # individuallySentPositions: sent while above LAST_SENT (PIP-282)
    # per hash id
    hash_owner: I32  # slot that the selector chooses, or NOBODY
    replay_count: I32  # positions of this hash in the replay set
    drain_owner: I32  # slot that drains this hash, or NOBODY
    drain_refs: I32
    drain_attempts: I32  # blockedCount
    drain_listed: I32  # in whose drainingHashes stats: words per hash, one bit per slot
    hash_blocked: I64  # scratch: stamp of the scan or round in which the hash was blocked
    # per consumer slot
    permits: I64
    parked_permits: I64  # permitsReceivedWhileConsumerBlocked
    unacked: I64
    blocked: I8  # blockedConsumerOnUnackedMsgs
    average: F64  # avgMessagesPerEntry, unrounded
    connected: I8
    level: I64  # priority level
    inactive: I8  # its connection is known not to be active any more; only Shared asks
    available: I8  # scratch: may have the next turn of a round (Shared)
    cleared_total: I64  # drainingHashesClearedTotal
    drain_stats: I8  # the broker keeps draining stats of this consumer
    left: I64  # scratch: entries this consumer may still take in this scan or round
    left_stamp: I64
    limit: I64  # scratch: first entry it may not be sent in this round (read position)
    seen_stamp: I64  # scratch: the round has chosen this consumer
    held_stamp: I64  # scratch: a hash of this consumer was held back although it had permits
    batch_messages: I64  # scratch of a send, 0 between two: messages that the round sends to this consumer …
    batch_acked: I64  # … how many of them are acknowledged already …
    batch_entries: I64  # … and entries
    joined_at: I64  # recently joined consumers: last sent (PIP-282) or read position then; NOT_TRACKED = none of them
    recent: I32  # recently joined consumers, oldest first, or by read position; the first N_RECENT count
    stuck: I8  # had no permits in the last round (read position, until #20335)
    order: I32  # connected consumers in the dispatcher's list order; the first N_CONSUMERS count


def new_state(hash_ids: I32, num_messages: I32, n_hashes: int, n_consumers: int) -> State:
    """Make an empty dispatcher over ``len(hash_ids)`` entries, ``n_hashes`` distinct hashes, at most ``n_consumers``."""
    n = len(hash_ids)
    scalars = np.zeros(N_SCALARS, dtype=np.int64)
    scalars[MARK_DELETE] = -1
    scalars[MIN_REPLAYED] = -1
    scalars[TRIMMED_TO] = -2  # no attempt yet
    scalars[LAST_SENT] = NOT_TRACKED
    scalars[REPLAY_LOW] = n
    scalars[LEAKED_LOW] = NONE_LEAKED
    scalars[STORED_HASH] = NO_HASH
    return State(
        s=scalars,
        hash_id=hash_ids.astype(np.int32),
        num_messages=num_messages.astype(np.int32),
        deleted=np.zeros(n, np.uint8),
        holder=np.full(n, NOBODY, np.int32),
        pending_hash=np.full(n, NO_HASH, np.int32),
        pending_count=np.zeros(n, np.int32),
        in_replay=np.zeros(n, np.uint8),
        replay_hash=np.full(n, NO_HASH, np.int32),
        redelivery_count=np.zeros(n, np.int32),
        acked_indexes=np.zeros(n, np.int32),
        sent_above=np.zeros(n, np.uint8),
        hash_owner=np.full(n_hashes, NOBODY, np.int32),
        replay_count=np.zeros(n_hashes, np.int32),
        drain_owner=np.full(n_hashes, NOBODY, np.int32),
        drain_refs=np.zeros(n_hashes, np.int32),
        drain_attempts=np.zeros(n_hashes, np.int32),
        drain_listed=np.zeros(n_hashes * (n_consumers // LISTED_BITS + 1), np.int32),
        hash_blocked=np.full(n_hashes, -1, np.int64),
        permits=np.zeros(n_consumers, np.int64),
        parked_permits=np.zeros(n_consumers, np.int64),
        unacked=np.zeros(n_consumers, np.int64),
        blocked=np.zeros(n_consumers, np.uint8),
        average=np.zeros(n_consumers, np.float64),
        connected=np.zeros(n_consumers, np.uint8),
        level=np.zeros(n_consumers, np.int64),
        inactive=np.zeros(n_consumers, np.uint8),
        available=np.zeros(n_consumers, np.uint8),
        cleared_total=np.zeros(n_consumers, np.int64),
        drain_stats=np.zeros(n_consumers, np.uint8),
        left=np.zeros(n_consumers, np.int64),
        left_stamp=np.full(n_consumers, -1, np.int64),
        limit=np.zeros(n_consumers, np.int64),
        seen_stamp=np.full(n_consumers, -1, np.int64),
        held_stamp=np.full(n_consumers, -1, np.int64),
        batch_messages=np.zeros(n_consumers, np.int64),
        batch_acked=np.zeros(n_consumers, np.int64),
        batch_entries=np.zeros(n_consumers, np.int64),
        joined_at=np.full(n_consumers, NOT_TRACKED, np.int64),
        recent=np.zeros(n_consumers, np.int32),
        stuck=np.zeros(n_consumers, np.uint8),
        order=np.zeros(n_consumers, np.int32),
    )


def example_state(entries: int = 1, hashes: int = 1, consumers: int = 1) -> State:
    """Make a dispatcher for examples: one message per entry, in-order, all consumers connected, the first owns all hashes.

    Entry *i* has hash *i* modulo ``hashes``. Nothing is acknowledged or read; nobody has permits.
    """
    hash_ids = np.arange(entries, dtype=np.int32) % hashes
    st = new_state(hash_ids, np.ones(entries, np.int32), hashes, consumers)
    st.s[IN_ORDER], st.s[N_CONSUMERS] = 1, consumers
    st.connected[:], st.order[:], st.hash_owner[:] = 1, np.arange(consumers), 0
    return st


#: Per-entry arrays that rules change (``hash_id`` and ``num_messages`` never do), and what a new entry has in them.
_NEW_ENTRY: Final = {
    "deleted": 0,
    "holder": NOBODY,
    "pending_hash": NO_HASH,
    "pending_count": 0,
    "in_replay": 0,
    "replay_hash": NO_HASH,
    "redelivery_count": 0,
    "acked_indexes": 0,
    "sent_above": 0,
}
_NEW_HASH: Final = {
    "hash_owner": NOBODY,
    "replay_count": 0,
    "drain_owner": NOBODY,
    "drain_refs": 0,
    "drain_attempts": 0,
    "hash_blocked": -1,
}
_NEW_CONSUMER: Final = {
    "permits": 0,
    "parked_permits": 0,
    "unacked": 0,
    "blocked": 0,
    "average": 0,
    "connected": 0,
    "level": 0,
    "inactive": 0,
    "available": 0,
    "cleared_total": 0,
    "drain_stats": 0,
    "left": 0,
    "left_stamp": -1,
    "limit": 0,
    "seen_stamp": -1,
    "held_stamp": -1,
    "batch_messages": 0,
    "batch_acked": 0,
    "batch_entries": 0,
    "joined_at": NOT_TRACKED,
    "recent": 0,
    "stuck": 0,
    "order": 0,
}
#: Scalars that hold an ordinal, with the lowest value that still means one.
_ORDINALS: Final = {
    MARK_DELETE: -1,
    READ_POSITION: 0,
    MIN_REPLAYED: 0,
    REPLAY_LOW: 0,
    REPLAY_HIGH: 0,
    TRIMMED_TO: -1,
    LAST_SENT: -1,
    SENT_LOW: 0,
    SENT_HIGH: 0,
}


def extended(
    st: State, drop: int, hash_ids: I32, num_messages: I32, n_hashes: int, n_consumers: int
) -> State:
    """Copy the state for the next window of the log: without the first ``drop`` entries, with new ones at the end.

    Ordinals are lowered by ``drop``; the entries dropped must be acknowledged, pending on nobody and not in the replay
    set. ``n_hashes``, ``n_consumers``: as many as there are now, or more. Memory thus follows the entries that can still
    matter, not the log.
    """
    changed: dict[str, npt.NDArray[np.generic]] = {
        "s": st.s.copy(),
        "hash_id": np.concatenate([st.hash_id[drop:], hash_ids]),
        "num_messages": np.concatenate([st.num_messages[drop:], num_messages]),
    }
    for name, value in _NEW_ENTRY.items():
        changed[name] = _grown(getattr(st, name)[drop:], len(changed["hash_id"]), value)
    for name, value in _NEW_HASH.items():
        changed[name] = _grown(getattr(st, name), n_hashes, value)
    for name, value in _NEW_CONSUMER.items():
        changed[name] = _grown(getattr(st, name), n_consumers, value)
    words = n_consumers // LISTED_BITS + 1
    listed = np.zeros((n_hashes, words), np.int32)
    before = st.drain_listed.reshape(len(st.hash_owner), len(st.permits) // LISTED_BITS + 1)
    listed[: before.shape[0], : before.shape[1]] = before
    changed["drain_listed"] = listed.reshape(-1)
    scalars, joined_at = cast("I64", changed["s"]), cast("I64", changed["joined_at"])
    for at, lowest in _ORDINALS.items():
        if scalars[at] >= lowest:
            scalars[at] = max(scalars[at] - drop, lowest)
    if scalars[LEAKED_LOW] != NONE_LEAKED:
        scalars[LEAKED_LOW] -= drop
    joined_at[joined_at >= 0] = np.maximum(joined_at[joined_at >= 0] - drop, -1)
    return State(**changed)  # type: ignore[arg-type]


def _grown(values: npt.NDArray[np.generic], count: int, value: float) -> npt.NDArray[np.generic]:
    """Copy ``values`` and append ``value`` until there are ``count``."""
    grown = np.empty(count, dtype=values.dtype)
    grown[: len(values)] = values
    grown[len(values) :] = value
    return grown


_PER_ENTRY: Final = tuple(_NEW_ENTRY)
#: What changes for hashes that drain: a number per hash, of which a log may have tens of thousands.
_PER_DRAINING_HASH: Final = ("drain_owner", "drain_refs", "drain_attempts")
#: Everything else that rules change. Scratch arrays are left out: the stamp that makes them valid never goes back. So is
#: ``hash_owner``: only the selector changes it. ``replay_count`` and ``drain_listed`` are copied by themselves.
_WHOLE: Final = (
    "permits",
    "parked_permits",
    "unacked",
    "blocked",
    "average",
    "connected",
    "level",
    "inactive",
    "cleared_total",
    "drain_stats",
    "order",
    "joined_at",
    "recent",
    "stuck",
)

Copies = tuple[npt.NDArray[np.generic], ...]

#: Functions that return the arrays of a state, by the names above.
_of_entries, _of_draining, _of_others = (
    operator.itemgetter(*(State._fields.index(name) for name in names))
    for names in (_PER_ENTRY, _PER_DRAINING_HASH, _WHOLE)
)


class Saved(NamedTuple):
    """A copy of all that may change in a state until reads pass its window of entries, from ``low`` to below ``high``.

    Of hashes those of the window's entries are copied, by ``hash_ids``, which may name one several times, and what is kept
    of draining only for those that drain, ``draining_ids``.
    """

    scalars: I64
    low: int
    high: int
    entries: Copies
    hash_ids: npt.NDArray[np.intp]
    replay_counts: I32
    draining_ids: npt.NDArray[np.intp]
    draining: Copies
    listed: I32
    whole: Copies


def save(st: State, low: int, high: int, *, all_hashes: bool = False) -> Saved:
    """Copy the state; of the entries only those from ``low`` to below ``high``, which must not be exceeded meanwhile.

    What is above mark-delete or in the replay set, acknowledged meanwhile or not, is always among them. A rule changes
    what is kept for a hash through an entry of the window that has it. All hashes may change when a consumer leaves
    (``all_hashes``), and those of positions that left the replay set and stay counted are not known. No hash begins to drain
    but when a consumer joins or leaves.
    """
    low = min(low, int(st.s[MARK_DELETE]) + 1, int(st.s[REPLAY_LOW]))
    if all_hashes or st.s[LEAKED_LOW] != NONE_LEAKED:
        hash_ids = np.arange(len(st.hash_owner))
    elif st.s[STORED_HASH] != NO_HASH:
        hash_ids = np.append(st.hash_id[low:high], st.s[STORED_HASH]).astype(np.intp)
    else:
        hash_ids = st.hash_id[low:high].astype(np.intp)
    draining_ids = hash_ids if all_hashes else hash_ids[st.drain_owner.take(hash_ids) != NOBODY]
    return Saved(
        st.s.copy(),
        low,
        high,
        tuple([values[low:high].copy() for values in _of_entries(st)]),
        hash_ids,
        st.replay_count.take(hash_ids),
        draining_ids,
        tuple([values.take(draining_ids) for values in _of_draining(st)]),
        _listed(st).take(draining_ids, axis=0),
        tuple([values.copy() for values in _of_others(st)]),
    )


def _listed(st: State) -> npt.NDArray[np.int32]:
    """Return ``drain_listed`` with a row for each hash."""
    return st.drain_listed.reshape(len(st.hash_owner), len(st.permits) // LISTED_BITS + 1)


def restore(st: State, saved: Saved) -> None:
    """Restore what was saved; only the stamp stays."""
    stamp = int(st.s[STAMP])
    st.s[:] = saved.scalars
    st.s[STAMP] = stamp
    for values, before in zip(_of_entries(st), saved.entries, strict=True):
        values[saved.low : saved.high] = before
    st.replay_count[saved.hash_ids] = saved.replay_counts
    for values, before in zip(_of_draining(st), saved.draining, strict=True):
        values[saved.draining_ids] = before
    _listed(st)[saved.draining_ids] = saved.listed
    for values, before in zip(_of_others(st), saved.whole, strict=True):
        values[:] = before
