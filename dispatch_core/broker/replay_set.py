"""The replay set: positions to be delivered again, each with its hash where that is known (MessageRedeliveryController).

Invariants: ``N_REPLAY`` = number of ones in ``in_replay``; ``replay_count[h]`` = number of positions stored with hash
``h``; no position at or below mark-delete is ever *added*; every position lies in [REPLAY_LOW, REPLAY_HIGH).

Entry 4 enters with its hash 0, entry 2 without one:

>>> from dispatch_core.broker.state import new_state
>>> st = new_state(np.zeros(5, np.int32), np.ones(5, np.int32), n_hashes=1, n_consumers=1)
>>> add_to_replay(st, 4, 0), add_to_replay(st, 2, NO_HASH), int(st.s[N_REPLAY]), int(st.replay_count[0])
(True, True, 2, 1)
>>> int(first_in_replay(st)), int(next_in_replay(st, 3))
(2, 4)
>>> remove_from_replay(st, 4)
>>> int(st.s[N_REPLAY]), int(st.replay_count[0])
(1, 0)
"""

from __future__ import annotations

import numpy as np

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.state import (
    BLOCKED_ON_UNACKED,
    IN_ORDER,
    LEAKED_LOW,
    MARK_DELETE,
    N_CONSUMERS,
    N_REPLAY,
    NO_HASH,
    NONE_LEAKED,
    READS_WHEN_ADDED,
    REPLAY_HIGH,
    REPLAY_LOW,
    State,
)


@compiled
def add_to_replay(st: State, entry: int, hash_id: int) -> bool:
    """Add ``entry`` to the set, with ``hash_id`` or NO_HASH; returns False, with nothing changed, up to mark-delete.

    A position that already has a hash is not counted again, even when the new hash differs, as in the broker.
    """
    if entry <= st.s[MARK_DELETE]:
        return False
    if hash_id != NO_HASH:
        if st.replay_hash[entry] == NO_HASH:
            st.replay_count[hash_id] += 1
        st.replay_hash[entry] = hash_id
    if st.in_replay[entry] == 0:
        st.in_replay[entry] = 1
        st.s[N_REPLAY] += 1
        st.s[REPLAY_LOW] = min(st.s[REPLAY_LOW], entry)
        st.s[REPLAY_HIGH] = max(st.s[REPLAY_HIGH], entry + 1)
    return True


def reads_when_added(profile: Profile) -> bool:
    """Check whether a leave or a redelivery request causes a read attempt only if it adds to the replay set (since 4.0).

    Another thread makes that attempt. The classic dispatchers and 3.x attempt a read themselves, whatever was added. Source:
    PersistentDispatcherMultipleConsumers.notifyRedeliveryMessageAdded.

    >>> from dispatch_core.broker.profiles import resolve
    >>> [reads_when_added(resolve(version)) for version in ("3.0.17", "4.0.0-preview.1", "4.0.0", "5.0.1")]
    [False, False, True, True]
    >>> reads_when_added(resolve("4.2.4", {"subscriptionKeySharedUseClassicPersistentImplementation": True}))
    False
    """
    return (
        profile.dispatcher in (Dispatcher.KEY_SHARED, Dispatcher.SHARED)
        and "draining_hashes" in profile.changes
    )


@compiled
def read_follows(st: State, last: int, was_blocked: bool) -> bool:
    """Check whether a read attempt follows a leave or a redelivery request.

    ``last``: the last entry that was pending and has been taken back, NOBODY = none was. ``was_blocked``: the subscription
    was blocked on unacknowledged messages before. Nothing follows when the last consumer leaves.

    >>> from dispatch_core.broker.state import NOBODY, example_state
    >>> st = example_state(entries=2)
    >>> st.s[MARK_DELETE] = 0
    >>> [read_follows(st, last, False) for last in (NOBODY, 0, 1)]
    [True, True, True]
    >>> st.s[READS_WHEN_ADDED] = 1
    >>> [read_follows(st, last, False) for last in (NOBODY, 0, 1)], read_follows(st, NOBODY, True)
    ([False, False, True], True)
    """
    unblocked = was_blocked and st.s[BLOCKED_ON_UNACKED] == 0
    added = last > st.s[MARK_DELETE]
    return st.s[N_CONSUMERS] > 0 and (st.s[READS_WHEN_ADDED] == 0 or added or unblocked)


@compiled
def remove_from_replay(st: State, entry: int) -> None:
    """Take ``entry`` out of the set and forget its hash."""
    known = st.replay_hash[entry]
    if known != NO_HASH:
        st.replay_hash[entry] = NO_HASH
        if st.replay_count[known] > 0:  # a position whose hash was replaced is not counted under the new one
            st.replay_count[known] -= 1
    if st.in_replay[entry] == 1:
        st.in_replay[entry] = 0
        st.s[N_REPLAY] -= 1


@compiled
def first_in_replay(st: State) -> int:
    """Return the smallest entry of the set, or -1."""
    if st.s[N_REPLAY] == 0:
        st.s[REPLAY_LOW] = len(st.in_replay)
        st.s[REPLAY_HIGH] = 0
        return -1
    st.s[REPLAY_LOW] = next_in_replay(st, st.s[REPLAY_LOW])
    return st.s[REPLAY_LOW]


@compiled
def next_in_replay(st: State, entry: int) -> int:
    """Return the smallest entry of the set from ``entry`` on; REPLAY_HIGH for none.

    Entries that wait for a slow consumer lie far apart: the entries between them are passed over eight at a time.
    """
    high = st.s[REPLAY_HIGH]
    eights = st.in_replay[: len(st.in_replay) // 8 * 8].view(np.int64)
    while entry < high and st.in_replay[entry] == 0:
        at = entry >> 3
        if entry & 7 == 0 and at < len(eights) and eights[at] == 0:
            while at < len(eights) and eights[at] == 0:
                at += 1
            entry = at << 3
        else:
            entry += 1
    return min(entry, high)


@compiled
def remove_up_to(st: State, entry: int, ledger_start: int) -> None:
    """Drop every position up to and including ``entry`` from the set (removeAllUpTo).

    ``ledger_start``: the first entry of the ledger in which ``entry`` lies. The broker forgets the hashes of the dropped
    positions only if the set is empty in that ledger afterwards, or had positions in an earlier ledger, or had all
    positions of the ledger up to ``entry``. Else the hashes stay counted (``LEAKED_LOW``): normal reads hold back entries
    of them, which go through the replay set instead, until a later drop forgets them or all consumers leave. Source:
    ConcurrentBitmapSortedLongPairSet.removeUpTo.

    Of the positions 1 and 3 the first is dropped, but its hash stays counted; with the second both go:

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(entries=5, hashes=5)
    >>> [add_to_replay(st, entry, entry) for entry in (1, 3)]
    [True, True]
    >>> for entry in (2, 4):
    ...     remove_up_to(st, entry, 0)
    ...     print(int(st.s[N_REPLAY]), st.replay_count.tolist())
    1 [0, 1, 0, 1, 0]
    0 [0, 0, 0, 0, 0]
    """
    low, high = st.s[REPLAY_LOW], min(entry + 1, st.s[REPLAY_HIGH])
    earlier = st.in_replay[
        low : max(low, min(ledger_start, high))
    ].any()  # negative: it began before what is kept
    dropped = st.in_replay[max(low, ledger_start) : high].sum()
    left = next_in_replay(st, max(low, entry + 1))
    forgets = earlier or dropped == entry + 1 - ledger_start
    if dropped > 0 and (left >= st.s[REPLAY_HIGH] or st.s[IN_ORDER] == 0):
        forgets = True
    if not forgets:
        for at in range(low, high):
            if st.in_replay[at] == 1:
                st.in_replay[at] = 0
                st.s[N_REPLAY] -= 1
                if st.replay_hash[at] != NO_HASH:
                    st.s[LEAKED_LOW] = min(st.s[LEAKED_LOW], at)
        return
    for at in range(min(low, st.s[LEAKED_LOW]), max(high, entry + 1 if st.s[LEAKED_LOW] < low else high)):
        remove_from_replay(st, at)
    if st.s[LEAKED_LOW] <= entry:
        st.s[LEAKED_LOW] = NONE_LEAKED


@compiled
def clear_replay(st: State) -> None:
    """Empty the set."""
    for entry in range(st.s[REPLAY_LOW], st.s[REPLAY_HIGH]):
        remove_from_replay(st, entry)
    if st.s[LEAKED_LOW] != NONE_LEAKED:
        st.replay_hash[:] = NO_HASH
        st.s[LEAKED_LOW] = NONE_LEAKED
    st.replay_count[:] = 0
    first_in_replay(st)
