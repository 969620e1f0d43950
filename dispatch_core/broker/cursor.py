"""The cursor: acknowledged entries, mark-delete and read position (ManagedCursorImpl).

Invariants: every entry at or below ``MARK_DELETE`` is deleted, the entry after it is not; ``MARK_DELETE`` never goes
back; ``READ_POSITION`` > ``MARK_DELETE``.

Entries 0 to 3 are read; 1 is acknowledged, which leaves a hole, then 0; a rewind goes back to the first one left:

>>> import numpy as np
>>> from dispatch_core.broker.state import new_state
>>> st = new_state(np.zeros(5, np.int32), np.ones(5, np.int32), n_hashes=1, n_consumers=1)
>>> moved_by_read(st, 3)
>>> acknowledge(st, 1)
>>> int(st.s[MARK_DELETE]), int(st.s[READ_POSITION])
(-1, 4)
>>> acknowledge(st, 0)
>>> rewind(st)
>>> int(st.s[MARK_DELETE]), int(st.s[READ_POSITION])
(1, 2)
>>> acknowledge_up_to(st, 3)
>>> int(st.s[MARK_DELETE])
3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.state import HAS_READ, MARK_DELETE, READ_POSITION, State


@compiled
def first_left(st: State, at: int) -> int:
    """Return the first entry from ``at`` on that is not acknowledged."""
    while at < len(st.deleted) and st.deleted[at] == 1:
        at += 1
    return at


@compiled
def acknowledge(st: State, entry: int) -> None:
    """Delete one entry (asyncDelete): its batch indexes are forgotten, mark-delete moves over the acknowledged prefix."""
    st.deleted[entry] = 1
    st.acked_indexes[entry] = 0
    at = first_left(st, st.s[MARK_DELETE] + 1)
    st.s[MARK_DELETE] = at - 1
    st.s[READ_POSITION] = max(st.s[READ_POSITION], at)


@compiled
def acknowledge_up_to(st: State, entry: int) -> None:
    """Delete every entry up to and including ``entry`` (asyncMarkDelete): a cumulative ack; a lower one changes nothing."""
    for earlier in range(st.s[MARK_DELETE] + 1, entry + 1):
        acknowledge(st, earlier)


@compiled
def rewind(st: State) -> None:
    """Set the read position to the entry after mark-delete (ManagedCursorImpl.rewind)."""
    st.s[READ_POSITION] = st.s[MARK_DELETE] + 1


@compiled
def moved_by_read(st: State, last_entry: int) -> None:
    """Move the read position past ``last_entry``, the last entry that a normal read returned."""
    st.s[READ_POSITION] = max(st.s[READ_POSITION], last_entry + 1)
    st.s[HAS_READ] = 1


@compiled
def asks_for_one(st: State) -> bool:
    """Check whether the next normal read asks for one entry, whatever the dispatcher asks for: it is the cursor's first.

    The broker bounds reads by bytes, and knows the size of no entry before (ManagedCursorImpl.applyMaxSizeCap). It does if
    the topic is loaded for a minute (managedLedgerStatsPeriodSeconds) and entries were stored in the last one: such a read
    asks for more.
    """
    return bool(st.s[HAS_READ] == 0)


@compiled
def meets_end(st: State, count: int, size: int) -> bool:
    """Check whether a normal read that asked for ``size`` entries and returned ``count`` has come to the end of the topic.

    A read leaves out acknowledged entries and goes on until it has as many as it asked for. So one that returns fewer has
    come to the end; call it before ``moved_by_read``.

    >>> import numpy as np
    >>> from dispatch_core.broker.state import new_state
    >>> st = new_state(np.zeros(4, np.int32), np.ones(4, np.int32), n_hashes=1, n_consumers=1)
    >>> meets_end(st, 1, 10)  # the first read
    False
    >>> moved_by_read(st, 0)
    >>> meets_end(st, 1, 10), meets_end(st, 10, 10)
    (True, False)
    """
    return count < size and not (count == 1 and asks_for_one(st))


@compiled
def read_to_end(st: State) -> None:
    """Move the read position past the acknowledged entries at it: a normal read has come to the end of the topic.

    Source: OpReadEntry, ManagedCursorImpl.getNextAvailablePosition.

    Entry 0 is pending and 1 and 2 are acknowledged when the cursor is rewound; a read of ten returns entry 0 alone:

    >>> import numpy as np
    >>> from dispatch_core.broker.state import new_state
    >>> st = new_state(np.zeros(4, np.int32), np.ones(4, np.int32), n_hashes=1, n_consumers=1)
    >>> st.deleted[1:3] = 1
    >>> moved_by_read(st, 0)
    >>> read_to_end(st)
    >>> int(st.s[READ_POSITION])
    3
    """
    st.s[READ_POSITION] = first_left(st, st.s[READ_POSITION])


@compiled
def moved_by_result(st: State, last_entry: int, count: int, size: int, start: int) -> None:
    """Move the read position of a dispatcher with one active consumer by a read of ``size`` entries that returned ``count``.

    It goes on from behind mark-delete, wherever the cursor was rewound to meanwhile. ``last_entry``: the last one that is
    known to be stored, -1 = none is. ``start``: the read position when the read was issued, -1 = not known, or a release
    before #24898.

    A read that waits at the end of the topic looks again after a while, and goes on from where it was issued, also behind
    a rewind. It finds nothing there, and moves the read position there (ManagedCursorImpl.checkForNewEntries). Before #24898
    it was bounded by the end of the topic as of its issue, and such a read moves nothing.
    """
    if last_entry >= 0:
        is_at_end = meets_end(st, count, size)
        st.s[READ_POSITION] = st.s[MARK_DELETE] + 1
        moved_by_read(st, last_entry)
        if is_at_end:
            read_to_end(st)
    elif count == 0:
        if start >= 0:
            st.s[READ_POSITION] = start
        read_to_end(st)


#: All batch indexes of an entry, whatever their number, as bits.
EVERY_INDEX: Final = -1


def ack_set_bits(words: Sequence[int]) -> int:
    """Join the words of an ack set, 64 bits each, least significant first, to one number; 1 bits are not acknowledged.

    >>> ack_set_bits([0b1100]), ack_set_bits([-1, 1]) == (1 << 65) - 1
    (12, True)
    """
    return sum((word & (1 << 64) - 1) << 64 * at for at, word in enumerate(words))


def indexes_left(left: int, words: Sequence[int]) -> int:
    """Return the batch indexes that stay unacknowledged after an ack with an ack set; ``left``: those before, as bits.

    A batch of four messages, of which the first two were acknowledged before; now the second and the third are:

    >>> bin(indexes_left(0b1100, [0b1001]))
    '0b1000'
    """
    return left & ack_set_bits(words)


def indexes_left_by_cumulative(left: int, words: Sequence[int]) -> int:
    """Return the batch indexes that stay unacknowledged after a cumulative ack with an ack set; ``left``: as above.

    The set *replaces* what was known if it goes further, that is if its first index left is a higher one, and changes
    nothing otherwise (ManagedCursorImpl.asyncMarkDelete). So single indexes that were acknowledged behind it before are
    unacknowledged again. Of a batch of four the last message was acknowledged; a cumulative ack of the first two forgets
    that:

    >>> bin(indexes_left_by_cumulative(0b0111, [0b1100]))
    '0b1100'
    >>> bin(indexes_left_by_cumulative(0b1000, [0b1100]))
    '0b1000'
    """
    bits = ack_set_bits(words)
    return bits if _first_index(bits) > _first_index(left) else left


def _first_index(bits: int) -> int:
    """Return the lowest index of ``bits``, -1 if there is none."""
    return (bits & -bits).bit_length() - 1
