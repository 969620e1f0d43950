"""Read position (3.x, and the classic dispatchers of 4.x): a newcomer gets nothing that was not read before it joined.

Theory of operation
-------------------
A consumer that joins while others hold unacknowledged entries remembers the cursor's read position of that moment. Until
everything before it is acknowledged, the newcomer gets only entries before it, of any key: those are meant to have been
handed to somebody already, so that it can only be sent them again. The rule has two holes, which PIP-282 and PIP-379
close: the read position runs ahead of what was dispatched, and an entry that waits in the replay set for permits lies
before the read position although nobody was sent it. Both let a newcomer overtake an older consumer.

==============================  ====================================================================================
event                           transition
==============================  ====================================================================================
a consumer joins                the read position is remembered for it, if others are connected and the read position
                                is more than one entry past mark-delete; since #23802 not while a rewind is due
the same, since #23795          the newcomers are kept in the order of their positions, else in the order they joined
a consumer leaves               forgotten, after the first read attempt that its entries caused; one left: all are
mark-delete reaches the entry   that newcomer is free, unless an older one is not (*prune*; looked at before every
before a memory                 decision, when a consumer has left, and when mark-delete has moved)
==============================  ====================================================================================

The broker keeps the newcomers in a map in insertion order and prunes it from the front, up to the first that is not free
yet. In a replay read nobody among them gets an entry beyond the position of the *first* of the map. Where that order is
not the order of the positions (a rewind moves the read position back), one newcomer can hold up another: #23795 sorts.

Source: PersistentStickyKeyDispatcherMultipleConsumers (3.x), …Classic (4.x).

A newcomer that joined when everything up to entry 4 was read:

>>> import numpy as np
>>> from dispatch_core.broker.state import IN_ORDER, MARK_DELETE, N_CONSUMERS, READ_POSITION, new_state
>>> st = new_state(np.zeros(9, np.int32), np.ones(9, np.int32), 1, 2)
>>> st.s[IN_ORDER], st.s[N_CONSUMERS], st.s[READ_POSITION] = 1, 2, 5
>>> consumer_joined(st, 1) == 5
True
>>> [entry for entry in range(9) if within(entry, position_limit(st, 1, False))]
[0, 1, 2, 3, 4]
>>> st.s[MARK_DELETE] = 4
>>> [entry for entry in range(9) if within(entry, position_limit(st, 1, False))]
[0, 1, 2, 3, 4, 5, 6, 7, 8]
"""

from __future__ import annotations

from typing import Final

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.ordering.recently_joined import add_newcomer, forget_newcomer, free_first
from dispatch_core.broker.state import (
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

    Returns its ``readPositionWhenJoining``.
    """
    if is_restricted_newcomer(st):
        add_newcomer(st, slot, st.s[READ_POSITION])
        if st.s[SORTS_RECENT] == 1:
            sort_newcomers(st)
    return st.s[READ_POSITION]


@compiled
def is_restricted_newcomer(st: State) -> bool:
    """True if a consumer that joins now is held back: others are connected, and more than one entry is unacknowledged."""
    if st.s[IN_ORDER] == 0 or (st.s[SORTS_RECENT] == 1 and st.s[REWIND_DUE] == 1):
        return False
    return st.s[N_CONSUMERS] > 1 and st.s[READ_POSITION] - st.s[MARK_DELETE] > 1


@compiled
def sort_newcomers(st: State) -> None:
    """Bring the newest newcomer to its place by position; the others are in order already. Equal ones keep their order."""
    at = st.s[N_RECENT] - 1
    slot = st.recent[at]
    while at > 0 and st.joined_at[st.recent[at - 1]] > st.joined_at[slot]:
        st.recent[at] = st.recent[at - 1]
        at -= 1
    st.recent[at] = slot


@compiled
def consumer_left(st: State, slot: int) -> bool:
    """A consumer is out of the list, and the read that its entries caused was attempted: only then it is forgotten.

    Returns whether newcomers were freed by mark-delete, so that another read is due.
    """
    forget_newcomer(st, slot)
    if st.s[N_CONSUMERS] == 1:
        free_first(st, st.s[N_RECENT])
    return prune(st)


@compiled
def prune(st: State) -> bool:
    """Free the first newcomers, as far as mark-delete has reached them. Returns whether there were any."""
    freed = passed(st)
    free_first(st, freed)
    return freed > 0


@compiled
def passed(st: State) -> int:
    """The number of first consumers that mark-delete has passed; ``prune`` frees them, before every decision."""
    count = 0
    while count < st.s[N_RECENT] and is_passed(st, st.joined_at[st.recent[count]]):
        count += 1
    return count


@compiled
def is_passed(st: State, joined_at: int) -> bool:
    """True if everything that was read before a recently joined consumer came is acknowledged."""
    return joined_at <= st.s[MARK_DELETE] + 1


@compiled
def position_limit(st: State, slot: int, is_replay: bool) -> int:
    """The first entry the consumer may not be sent yet; UNRESTRICTED for all but newcomers. Prunes first."""
    prune(st)
    return limit_now(st, slot, is_replay)


@compiled
def limit_now(st: State, slot: int, is_replay: bool) -> int:
    """The limit of ``position_limit``, without freeing anybody: for those who only ask."""
    if st.joined_at[slot] == NOT_TRACKED:
        return UNRESTRICTED
    first = passed(st)
    for at in range(first):
        if st.recent[at] == slot:
            return UNRESTRICTED
    limit = st.joined_at[slot]
    if is_replay:
        limit = min(limit, st.joined_at[st.recent[first]])
    return limit


@compiled
def within(entry: int, limit: int) -> bool:
    """True if a position limit allows an entry: the limit itself was not read when the consumer joined."""
    return entry < limit


def newcomers(st: State) -> dict[int, int]:
    """Slot → read position when it joined, of those that are still held back (not pruned), in the broker's order."""
    return {int(slot): int(st.joined_at[slot]) for slot in st.recent[: st.s[N_RECENT]]}
