"""Read position (3.x, classic dispatchers of 4.x): a joining consumer gets only entries read before it joined.

Theory of operation
-------------------
Example: consumer 1 holds entries 0 to 4, and the cursor's read position is 5. Consumer 2 joins. Until entries 0 to 4 are
acknowledged, consumer 2 gets only entries below 5, which can only be redeliveries.

In general: a consumer that joins while others hold unacknowledged entries remembers the read position of that moment. Until
everything before it is acknowledged, the consumer gets only entries before it, whatever their keys. These entries are meant
to have been delivered to another consumer already. The rule has two holes, which PIP-282 and PIP-379 close:

* the read position runs ahead of what was dispatched;
* an entry that waits in the replay set for permits lies before the read position although it was never delivered.

Through either hole a recently joined consumer can overtake an older one.

==============================  ====================================================================================
event                           transition
==============================  ====================================================================================
a consumer joins                the read position is remembered for it, if others are connected and the read position
                                is more than one entry past mark-delete; since #23802 not while a rewind is due
the same, since #23795          recently joined consumers are kept in the order of their positions, else in the order
                                in which they joined
a consumer leaves               it is forgotten, after the first read attempt that its entries caused; if one consumer
                                is left, all are freed
mark-delete reaches the entry   the consumer is freed, unless one before it is not (*prune*; done before every
before a remembered position    decision, when a consumer has left, and when mark-delete has moved)
==============================  ====================================================================================

The broker keeps recently joined consumers in a map in insertion order and frees them from the front, up to the first that is
still held back (``ordering.recently_joined``). In a replay read each of them is held to the position of the *first* of the
map. Where that order is not the order of the positions (a rewind moves the read position back), one recently joined consumer
can hold up another: #23795 sorts them.

Source: PersistentStickyKeyDispatcherMultipleConsumers (3.x), …Classic (4.x).

A consumer that joined when everything up to entry 4 was read:

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

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_with_caller
from dispatch_core.broker.ordering import recently_joined
from dispatch_core.broker.state import (
    IN_ORDER,
    MARK_DELETE,
    N_CONSUMERS,
    N_RECENT,
    READ_POSITION,
    REWIND_DUE,
    SORTS_RECENT,
    State,
)


@compiled
def consumer_joined(st: State, slot: int) -> int:
    """Remember the read position for a consumer that is in the list and in the selector now, if it is held back.

    Returns its ``readPositionWhenJoining``.
    """
    if is_held_back_when_joining(st):
        recently_joined.hold_back(st, slot, st.s[READ_POSITION])
        if st.s[SORTS_RECENT] == 1:
            sort_last(st)
    return st.s[READ_POSITION]


@compiled
def is_held_back_when_joining(st: State) -> bool:
    """True if a consumer that joins now is held back: others are connected, and more than one entry is unacknowledged."""
    return holds_back_who_joins(st) and st.s[READ_POSITION] - st.s[MARK_DELETE] > 1


@compiled
def holds_back_who_joins(st: State) -> bool:
    """True if a consumer that joins now is held back, whatever the read position: others are connected, in order."""
    if st.s[IN_ORDER] == 0 or (st.s[SORTS_RECENT] == 1 and st.s[REWIND_DUE] == 1):
        return False
    return st.s[N_CONSUMERS] > 1


@compiled
def sort_last(st: State) -> None:
    """Move the last of the list to its place by position; the others are sorted already. Equal ones keep their order."""
    at = st.s[N_RECENT] - 1
    slot = st.recent[at]
    while at > 0 and st.joined_at[st.recent[at - 1]] > st.joined_at[slot]:
        st.recent[at] = st.recent[at - 1]
        at -= 1
    st.recent[at] = slot


@compiled
def consumer_left(st: State, slot: int) -> bool:
    """Forget a consumer that is out of the list, after the read attempt that its entries caused.

    Returns whether mark-delete freed recently joined consumers, so that another read is due.
    """
    recently_joined.forget(st, slot)
    if st.s[N_CONSUMERS] == 1:
        recently_joined.free_first(st, st.s[N_RECENT])
    return prune(st)


@compiled
def prune(st: State) -> bool:
    """Free the first recently joined consumers, as far as mark-delete has reached them; True if there were any."""
    return recently_joined.free_reached(st, reached(st))


@compiled
def reached(st: State) -> int:
    """Return the highest read position that frees a consumer: everything before it is acknowledged."""
    return st.s[MARK_DELETE] + 1


@compiled
def position_limit(st: State, slot: int, is_replay: bool) -> int:
    """Return the first entry the consumer may not be sent yet, UNRESTRICTED if it is free. Prunes first."""
    prune(st)
    return limit_now(st, slot, is_replay)


@compiled
def limit_now(st: State, slot: int, is_replay: bool) -> int:
    """Return the limit of ``position_limit`` without freeing anybody, for those who only ask."""
    return recently_joined.limit_now(st, slot, is_replay, reached(st))


@compiled_with_caller
def within(entry: int, limit: int) -> bool:
    """True if a position limit allows an entry: the limit itself was not read when the consumer joined.

    >>> within(4, 5), within(5, 5)
    (True, False)
    """
    return entry < limit
