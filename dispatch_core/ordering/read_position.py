"""Recently joined consumers by read position (3.x, and the classic dispatcher of 4.x): a newcomer gets only what is old.

Theory of operation
-------------------
A consumer that joins while others hold unacknowledged entries remembers the cursor's read position: what lies before it
was read for the consumers that were there. Until everything before it is acknowledged the newcomer is *recently joined*:
it is sent only entries strictly before that position, of any key; in a replay read only entries before the position of
the one that joined first.

======================  ==============================================================================================
event                   transition
======================  ==============================================================================================
a consumer joins        remembered with the read position, if it is in order, others are connected, and the read
                        position is more than one entry past mark-delete; not while a rewind is due (#23802)
... sanity sort         if the last two positions descend, the whole map is sorted by position (#23795)
a consumer leaves       forgotten; if one is left, all are forgotten; then prune
*prune*                 from the front of the map: those whose position is at most the entry after mark-delete;
                        it stops at the first that is larger
======================  ==============================================================================================

The map keeps the order of joining, and prune relies on it being the order of positions. Two things break the promise of
order, and PIP-282 and PIP-379 were written for them: the read position runs ahead of what was dispatched, and entries
that waited in the replay set for permits lie before it.

Invariants: remembered consumers are connected; with #23795 their positions ascend. Entries are ordinals, so the valid
position after mark-delete is one more. Source: PersistentStickyKeyDispatcherMultipleConsumers (3.x) and …Classic (4.x);
#20179, #23795, #23802, #24634.

>>> import numpy as np
>>> from dispatch_core.state import IN_ORDER, MARK_DELETE, N_CONSUMERS, READ_POSITION, new_state
>>> st = new_state(np.zeros(20, np.int32), np.ones(20, np.int32), 1, 2)
>>> st.s[IN_ORDER], st.s[N_CONSUMERS], st.s[READ_POSITION] = 1, 2, 12
>>> int(consumer_joined(st, 1)), int(position_limit(st, 1, False))
(12, 12)
>>> st.s[MARK_DELETE] = 11
>>> bool(prune(st)), bool(position_limit(st, 1, False) == UNRESTRICTED)
(True, True)
"""

from __future__ import annotations

from typing import Final

from dispatch_core.jit import compiled
from dispatch_core.state import (
    IN_ORDER,
    MARK_DELETE,
    N_CONSUMERS,
    N_RECENT,
    NOT_TRACKED,
    READ_POSITION,
    REWIND_DUE,
    SORTS_RECENT,
    State,
)

#: Position limit of a consumer that has none.
UNRESTRICTED: Final = 1 << 62


@compiled
def consumer_joined(st: State, slot: int) -> int:
    """A consumer is in the list and in the selector: remember the read position, if that can matter to it.

    Returns its ``readPositionWhenJoining``: the entry that a normal read would begin with.
    """
    position = st.s[READ_POSITION]
    if not remembers(st):
        return position
    last = st.s[N_RECENT]
    st.joined_at[slot] = position
    st.recent[last] = slot
    st.s[N_RECENT] = last + 1
    if st.s[SORTS_RECENT] == 1 and last > 0 and st.joined_at[st.recent[last - 1]] > position:
        sort_by_position(st)
    return position


@compiled
def remembers(st: State) -> bool:
    """Whether a newcomer is held back at all: in order, not alone, and something read is not acknowledged."""
    if st.s[IN_ORDER] == 0 or st.s[N_CONSUMERS] <= 1 or st.s[READ_POSITION] - st.s[MARK_DELETE] <= 1:
        return False
    return st.s[SORTS_RECENT] == 0 or st.s[REWIND_DUE] == 0


@compiled
def sort_by_position(st: State) -> None:
    """Bring the map into the order of positions; equal ones keep their order."""
    for at in range(1, st.s[N_RECENT]):
        slot = st.recent[at]
        to = at
        while to > 0 and st.joined_at[st.recent[to - 1]] > st.joined_at[slot]:
            st.recent[to] = st.recent[to - 1]
            to -= 1
        st.recent[to] = slot


@compiled
def consumer_left(st: State, slot: int) -> bool:
    """A consumer is out of the list, and the read that its entries caused was attempted: only then it is forgotten.

    Returns whether others were freed by mark-delete.
    """
    forget(st, slot)
    if st.s[N_CONSUMERS] == 1:
        for at in range(st.s[N_RECENT]):
            st.joined_at[st.recent[at]] = NOT_TRACKED
        st.s[N_RECENT] = 0
    return prune(st)


@compiled
def forget(st: State, slot: int) -> None:
    """Take one consumer out of the map."""
    if st.joined_at[slot] == NOT_TRACKED:
        return
    st.joined_at[slot] = NOT_TRACKED
    kept = 0
    for at in range(st.s[N_RECENT]):
        if st.recent[at] != slot:
            st.recent[kept] = st.recent[at]
            kept += 1
    st.s[N_RECENT] = kept


@compiled
def prune(st: State) -> bool:
    """Free consumers from the front of the map, up to the first whose position mark-delete has not reached.

    Returns whether there were any.
    """
    gone = 0
    while gone < st.s[N_RECENT] and is_passed(st, st.joined_at[st.recent[gone]]):
        st.joined_at[st.recent[gone]] = NOT_TRACKED
        gone += 1
    if gone == 0:
        return False
    for at in range(gone, st.s[N_RECENT]):
        st.recent[at - gone] = st.recent[at]
    st.s[N_RECENT] -= gone
    return True


@compiled
def is_passed(st: State, joined_at: int) -> bool:
    """Whether everything before a remembered position is acknowledged."""
    return joined_at <= st.s[MARK_DELETE] + 1


@compiled
def position_limit(st: State, slot: int, is_replay: bool) -> int:
    """The first entry the consumer may *not* be sent now; UNRESTRICTED for all but the recently joined."""
    limit = st.joined_at[slot]
    if limit == NOT_TRACKED:
        return UNRESTRICTED
    if is_replay:
        limit = min(limit, st.joined_at[st.recent[0]])
    return limit


@compiled
def within(entry: int, limit: int) -> bool:
    """Whether a position limit allows an entry: it was read before the newcomer joined."""
    return entry < limit


def newcomers(st: State) -> dict[int, int]:
    """Slot → read position when it joined, of those that are still held back (not pruned), in the order of the map."""
    return {int(slot): int(st.joined_at[slot]) for slot in st.recent[: st.s[N_RECENT]]}
