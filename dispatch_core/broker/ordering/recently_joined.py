"""The list of recently joined consumers, which the rules of read position and last sent position hold back.

A consumer that joins while others hold unacknowledged entries is added to the list with a *position*. It is held back until
that position is *reached*, which means that everything before it is acknowledged. The two rules differ in the position
(``consumer_joined`` of each rule) and in the highest position that is reached (``reached`` of each rule). The list, its
order and the limit of a consumer are the same for both and stand here.

The list is freed from its front: a consumer whose position is reached stays held back while one before it does. In a replay
read every consumer of the list is held to the position of the first one, because what is replayed may have been delivered to
anybody.

Invariant: ``joined_at`` is NOT_TRACKED for all slots but the first ``N_RECENT`` of ``recent``. The list is as long as there
are recently joined consumers, however many were ever connected.

Source: recentlyJoinedConsumers of PersistentStickyKeyDispatcherMultipleConsumers (3.x, 4.0.0-preview.1), …Classic (4.x).

Consumer 1 joined at position 3 and consumer 2 at position 7; then position 3 is reached:

>>> import numpy as np
>>> from dispatch_core.broker.state import new_state
>>> st = new_state(np.zeros(9, np.int32), np.ones(9, np.int32), 1, 3)
>>> hold_back(st, 1, 3)
>>> hold_back(st, 2, 7)
>>> [int(limit_now(st, slot, is_replay, 2)) for slot, is_replay in ((1, False), (2, False), (2, True))]
[3, 7, 3]
>>> free_reached(st, 3), positions(st), int(limit_now(st, 2, True, 3)), limit_now(st, 1, False, 3) == UNRESTRICTED
(True, {2: 7}, 7, True)
"""

from __future__ import annotations

from typing import Final

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.state import N_RECENT, NOT_TRACKED, State

#: Position limit of a consumer that has none.
UNRESTRICTED: Final = 1 << 62


@compiled
def hold_back(st: State, slot: int, position: int) -> None:
    """Append a consumer to the list: it is held back until ``position`` is reached."""
    st.recent[st.s[N_RECENT]] = slot
    st.joined_at[slot] = position
    st.s[N_RECENT] += 1


@compiled
def forget(st: State, slot: int) -> None:
    """Take a consumer that has left off the list, if it is on it; the others keep their order."""
    if st.joined_at[slot] == NOT_TRACKED:
        return
    kept = 0
    for at in range(st.s[N_RECENT]):
        if st.recent[at] != slot:
            st.recent[kept] = st.recent[at]
            kept += 1
    st.s[N_RECENT] = kept
    st.joined_at[slot] = NOT_TRACKED


@compiled
def free_first(st: State, count: int) -> None:
    """Free the first ``count`` consumers of the list."""
    if count == 0:
        return
    for at in range(count):
        st.joined_at[st.recent[at]] = NOT_TRACKED
    for at in range(count, st.s[N_RECENT]):
        st.recent[at - count] = st.recent[at]
    st.s[N_RECENT] -= count


@compiled
def free_reached(st: State, reached: int) -> bool:
    """Free the consumers at the front of the list whose positions are at or below ``reached``; True if there were any."""
    count = first_reached(st, reached)
    free_first(st, count)
    return count > 0


@compiled
def first_reached(st: State, reached: int) -> int:
    """Count the consumers at the front of the list whose positions are at or below ``reached``."""
    count = 0
    while count < st.s[N_RECENT] and st.joined_at[st.recent[count]] <= reached:
        count += 1
    return count


@compiled
def limit_now(st: State, slot: int, is_replay: bool, reached: int) -> int:
    """Return the position that limits a consumer, UNRESTRICTED for one that is free; nobody is freed by asking.

    ``is_replay``: in a replay read the limit is that of the first consumer held back, if that is lower. ``reached``: see
    ``free_reached``; a consumer that it would free is free.
    """
    if st.joined_at[slot] == NOT_TRACKED:
        return UNRESTRICTED
    first = first_reached(st, reached)
    for at in range(first):
        if st.recent[at] == slot:
            return UNRESTRICTED
    limit = st.joined_at[slot]
    if is_replay:
        limit = min(limit, st.joined_at[st.recent[first]])
    return limit


def positions(st: State) -> dict[int, int]:
    """Return slot → position of the consumers that are still held back (not freed), in the order of the list."""
    return {int(slot): int(st.joined_at[slot]) for slot in st.recent[: st.s[N_RECENT]]}
