"""Effects of a membership change on pending entries, entry by entry: the loops behind a join and a leave.

Data plane: one pass over the window of entries per step, whatever the number of consumers. The selector says which consumer
lost or won which hashes (``selectors``), ``ordering.draining_hashes`` has the rule of draining, ``key_shared`` and
``key_shared_classic`` the order of the steps.

Source: PersistentStickyKeyDispatcherMultipleConsumers.registerDrainingHashes and .removeConsumer, PendingAcksMap (4.x).
"""

from __future__ import annotations

import numpy as np

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker import cursor
from dispatch_core.broker.ordering.draining_hashes import drain, release
from dispatch_core.broker.pending_acks import let_go
from dispatch_core.broker.permits import add_unacked
from dispatch_core.broker.read_loop import requeue
from dispatch_core.broker.replay_set import add_to_replay, clear_replay
from dispatch_core.broker.state import (
    BLOCKED_ON_UNACKED,
    I32,
    I64,
    N_CONSUMERS,
    NOBODY,
    PENDING_READ,
    PENDING_REPLAY,
    READ_POSITION,
    REWIND_DUE,
    TOTAL_PERMITS,
    TOTAL_UNACKED,
    WIDE,
    State,
)


@compiled
def add_member(st: State, slot: int) -> None:
    """Add a consumer to the list; the first one finds a rewound cursor and an empty replay set (addConsumer).

    The list is sorted by priority level, else by time of joining. A read that is still in flight would move the cursor
    again: it is rewound when that read completes.

    >>> from dispatch_core.broker.state import new_state
    >>> st = new_state(np.zeros(3, np.int32), np.ones(3, np.int32), n_hashes=1, n_consumers=2)
    >>> st.s[READ_POSITION] = 2
    >>> add_member(st, 1)
    >>> int(st.s[N_CONSUMERS]), int(st.order[0]), int(st.s[READ_POSITION])
    (1, 1, 0)
    >>> st.level[1] = 1
    >>> add_member(st, 0)
    >>> st.order.tolist()
    [0, 1]
    """
    if st.s[N_CONSUMERS] == 0:
        if st.s[PENDING_READ] == 1 or st.s[PENDING_REPLAY] == 1:
            st.s[REWIND_DUE] = 1
        else:
            cursor.rewind(st)
        clear_replay(st)
    place = st.s[N_CONSUMERS]
    while place > 0 and st.level[st.order[place - 1]] > st.level[slot]:
        st.order[place] = st.order[place - 1]
        place -= 1
    st.order[place] = slot
    st.s[N_CONSUMERS] += 1
    st.connected[slot] = 1


@compiled
def drop_member(st: State, slot: int) -> None:
    """Take a consumer off the list, and what it held and had granted off the counters of the dispatcher (removeConsumer).

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(consumers=2)
    >>> st.permits[1], st.s[TOTAL_PERMITS] = 5, 12
    >>> drop_member(st, 1)
    >>> int(st.s[N_CONSUMERS]), int(st.s[TOTAL_PERMITS])
    (1, 7)
    """
    kept = 0
    for at in range(st.s[N_CONSUMERS]):
        if st.order[at] != slot:
            st.order[kept] = st.order[at]
            kept += 1
    st.s[N_CONSUMERS] = kept
    st.connected[slot] = 0
    if kept > 0:
        add_unacked(st, slot, -st.unacked[slot])
        st.s[TOTAL_PERMITS] -= st.permits[slot]
    else:
        st.redelivery_count[:] = 0
        st.s[TOTAL_PERMITS] = st.s[TOTAL_UNACKED] = st.s[BLOCKED_ON_UNACKED] = 0


@compiled
def pending_among(st: State, slot_of_hash: I32, overtaken: I64, first: int, last: int, out: I64) -> int:
    """Write into ``out`` the entries pending on the consumer that ``slot_of_hash`` names for their hash; returns how many.

    Looked at are ``overtaken``, all below ``first``, then [first, last): both ascending, and so is ``out``.
    """
    # Arrays, not the state, in the loop: passing the state to a function costs more than the test itself.
    holder, pending_hash = st.holder, st.pending_hash
    n = 0
    for at in range(len(overtaken) + max(last - first, 0)):
        entry = overtaken[at] if at < len(overtaken) else first + at - len(overtaken)
        slot = holder[entry]
        if slot != NOBODY and slot_of_hash[pending_hash[entry]] == slot:
            out[n] = entry
            n += 1
    return n


def pending_elsewhere(st: State) -> I64:
    """Return the entries pending on another consumer than the owner of their hash, ascending.

    Entries of a hash that several consumers hold are left out: it can drain for one consumer only.
    """
    pending = np.flatnonzero(st.holder[: st.s[READ_POSITION]] != NOBODY)
    hashes, holders = st.pending_hash[pending], st.holder[pending]
    one_holder = np.full(len(st.hash_owner), NOBODY, st.holder.dtype)
    one_holder[hashes] = holders
    shared = np.zeros(len(one_holder), bool)
    shared[hashes[holders != one_holder[hashes]]] = True
    return pending[(st.hash_owner[hashes] != holders) & ~shared[hashes]].astype(np.int64)


@compiled
def drain_all(st: State, entries: I64) -> int:
    """Let the hashes of pending ``entries`` drain for who holds them, because they moved away; each entry is counted.

    Returns how many were counted; fewer than there are where the next one's hash drains for another consumer.
    """
    for i in range(len(entries)):
        if not drain(st, st.holder[entries[i]] + WIDE, st.pending_hash[entries[i]] + WIDE):
            return i
    return len(entries)


@compiled
def release_returned(st: State, entries: I64, before: I64) -> int:
    """Release pending ``entries`` whose hashes came back to who holds them, each as long as its hash drains there (#24736).

    ``entries`` is cut to those that were released, ``before`` has the reference count before each; returns how many.
    """
    n = 0
    for i in range(len(entries)):
        slot = st.holder[entries[i]] + WIDE
        hash_id = st.pending_hash[entries[i]] + WIDE
        if st.drain_owner[hash_id] == slot:
            entries[n] = entries[i]
            before[n] = release(st, slot, hash_id)
            n += 1
    return n


@compiled
def replay_pending(st: State, entries: I64) -> None:
    """Add the pending entries of a leaving consumer to the replay set, with their hashes (4.x)."""
    for entry in entries:
        add_to_replay(st, entry, st.pending_hash[entry] + WIDE)


@compiled
def requeue_pending(st: State, entries: I64) -> None:
    """Add them in 3.x and classic: with the hash that pending acks keep there, and only if order is kept."""
    for entry in entries:
        requeue(st, entry, st.pending_hash[entry] + WIDE)


@compiled
def let_go_all(st: State, slot: int, entries: I64, closing: bool, hashes: I64, before: I64) -> int:
    """Remove all pending acks of ``entries`` from a consumer (see ``let_go``).

    ``hashes``, ``before``: hash id and draining reference count before, of each. Returns how many went; fewer than there
    are where the last one's hash drains for another consumer.
    """
    for i in range(len(entries)):
        hashes[i] = st.pending_hash[entries[i]]
        before[i] = let_go(st, slot, entries[i], closing)
        if before[i] < 0:
            return i
    return len(entries)
