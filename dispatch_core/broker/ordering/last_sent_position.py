"""Last sent position (PIP-282, only in 4.0.0-preview.1): a joining consumer gets only entries sent before it joined.

Theory of operation
-------------------
Example: entries 0 to 3 and 5 were sent, 4 waits for permits. ``LAST_SENT`` is 3, and ``sent_above`` marks 5. A consumer that
joins now remembers 3: until entries 0 to 3 are acknowledged it gets nothing above 3.

In general: the dispatcher knows up to where *every* entry was sent (``LAST_SENT``), and which entries above that were sent
(``sent_above``, the broker's ``individuallySentPositions``). A consumer that joins while others hold unacknowledged entries
remembers ``LAST_SENT``. Until mark-delete has reached that position, the consumer gets nothing above it, whatever the key.
So entries sent before it joined come before any later entry, if they come back at all. The price: all keys of the recently
joined consumer wait, and one key may still be pending at two consumers at a time (#23307), which is why draining hashes
replaced this rule.

==========================  ====================================================================================
event                       transition
==========================  ====================================================================================
a round begins              unknown: LAST_SENT = mark-delete, acknowledged entries above it count as sent;
                            else LAST_SENT is raised to mark-delete
an entry is chosen          it is marked as sent, unless it is at or below LAST_SENT
all of a round are chosen   LAST_SENT moves over the marked entries that follow it
a consumer joins            LAST_SENT is raised to mark-delete and remembered for the consumer, if others are
                            connected and the read position is more than one entry past mark-delete
a consumer leaves           forgotten; one left: all are forgotten; none left: LAST_SENT unknown, nothing sent
mark-delete reaches a       the consumer is freed (*prune*; done before every decision)
remembered position
==========================  ====================================================================================

"Sent" means chosen for a consumer: closed connections and redelivery do not undo it. Entries are ordinals, so the entry
before another is one less, and a range of sent entries touches ``LAST_SENT`` exactly when its first entry is the next one.

Recently joined consumers are kept in the order they joined and freed from the front (``ordering.recently_joined``).
``LAST_SENT`` never goes back while anyone is connected, so that order is also the order of the remembered positions.

Source: PersistentStickyKeyDispatcherMultipleConsumers between #21953 and #23352.

The example of the proposal, ten entries, nothing acknowledged:

>>> import numpy as np
>>> from dispatch_core.broker.state import LAST_SENT, new_state
>>> st = new_state(np.zeros(11, np.int32), np.ones(11, np.int32), 1, 1)
>>> def send(*entries):
...     begin_round(st)
...     for entry in entries:
...         note_sent(st, entry)
...     advance(st)
...     return int(st.s[LAST_SENT]), sent_ranges(st)
>>> send(0, 1, 2, 3, 5, 8, 9, 10)
(3, [(4, 5), (7, 10)])
>>> send(7)
(3, [(4, 5), (6, 10)])
>>> send(6)
(3, [(4, 10)])
>>> send(4)
(10, [])
"""

from __future__ import annotations

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_with_caller
from dispatch_core.broker.ordering import recently_joined
from dispatch_core.broker.state import (
    LAST_SENT,
    MARK_DELETE,
    N_CONSUMERS,
    N_RECENT,
    NOT_TRACKED,
    READ_POSITION,
    SENT_HIGH,
    SENT_LOW,
    State,
)


@compiled
def begin_round(st: State) -> None:
    """Begin to track at mark-delete before a read result is dispatched, or raise the last sent position to it."""
    if st.s[LAST_SENT] != NOT_TRACKED:
        raise_to_mark_delete(st)
        return
    st.s[LAST_SENT] = st.s[MARK_DELETE]
    # a rewind leaves some beyond the read position
    for entry in range(st.s[MARK_DELETE] + 1, len(st.deleted)):
        if st.deleted[entry] == 1:
            _mark(st, entry)


@compiled
def raise_to_mark_delete(st: State) -> None:
    """Raise the last sent position to the mark-delete position; an unknown one stays unknown."""
    if st.s[LAST_SENT] != NOT_TRACKED and st.s[MARK_DELETE] > st.s[LAST_SENT]:
        st.s[LAST_SENT] = st.s[MARK_DELETE]


@compiled
def note_sent(st: State, entry: int) -> None:
    """Mark an entry as sent: it was chosen for a consumer."""
    if entry > st.s[LAST_SENT]:
        _mark(st, entry)


@compiled
def advance(st: State) -> None:
    """Move the last sent position over the entries sent right after it, once all of a round are chosen."""
    at = st.s[LAST_SENT] + 1
    while at < st.s[SENT_HIGH] and st.sent_above[at] == 1:
        at += 1
    st.s[LAST_SENT] = at - 1
    for entry in range(st.s[SENT_LOW], min(at, st.s[SENT_HIGH])):
        st.sent_above[entry] = 0
    st.s[SENT_LOW] = at
    st.s[SENT_HIGH] = max(st.s[SENT_HIGH], at)


@compiled
def consumer_joined(st: State, slot: int) -> int:
    """Remember the last sent position for a consumer that is in the list and in the selector now, if it is held back.

    Returns its ``lastSentPositionWhenJoining``; NOT_TRACKED before the first round.
    """
    raise_to_mark_delete(st)
    if (
        st.s[LAST_SENT] != NOT_TRACKED
        and st.s[N_CONSUMERS] > 1
        and st.s[READ_POSITION] - st.s[MARK_DELETE] > 1
    ):
        recently_joined.hold_back(st, slot, st.s[LAST_SENT])
    return st.s[LAST_SENT]


@compiled
def consumer_left(st: State, slot: int) -> bool:
    """Forget a consumer that is out of the list, after the read attempt that its entries caused.

    Returns whether mark-delete freed recently joined consumers, so that another read is due.
    """
    recently_joined.forget(st, slot)
    if st.s[N_CONSUMERS] <= 1:
        recently_joined.free_first(st, st.s[N_RECENT])
    if st.s[N_CONSUMERS] == 0:
        forget_sent(st)
    return prune(st)


@compiled
def forget_sent(st: State) -> None:
    """Forget what was sent, when nobody is left: the next consumer gets everything above mark-delete, or after a reset."""
    for entry in range(st.s[SENT_LOW], st.s[SENT_HIGH]):
        st.sent_above[entry] = 0
    st.s[SENT_LOW] = st.s[SENT_HIGH] = 0
    st.s[LAST_SENT] = NOT_TRACKED


@compiled
def prune(st: State) -> bool:
    """Free the recently joined consumers whose position mark-delete has reached; True if there were any."""
    return recently_joined.free_reached(st, reached(st))


@compiled
def reached(st: State) -> int:
    """Return the highest last sent position that frees a consumer: everything up to it is acknowledged."""
    return st.s[MARK_DELETE]


@compiled
def position_limit(st: State, slot: int, is_replay: bool) -> int:
    """Return the last entry the consumer may be sent now, UNRESTRICTED if it is free. Prunes first, unless it is free."""
    if st.joined_at[slot] == NOT_TRACKED:
        return recently_joined.UNRESTRICTED
    prune(st)
    return limit_now(st, slot, is_replay)


@compiled
def limit_now(st: State, slot: int, is_replay: bool) -> int:
    """Return the limit of ``position_limit`` without freeing anybody, for those who only ask."""
    return recently_joined.limit_now(st, slot, is_replay, reached(st))


@compiled_with_caller
def within(entry: int, limit: int) -> bool:
    """True if a position limit allows an entry: the limit itself was sent before the consumer joined.

    >>> within(4, 4), within(5, 4)
    (True, False)
    """
    return entry <= limit


@compiled
def _mark(st: State, entry: int) -> None:
    if st.s[SENT_LOW] >= st.s[SENT_HIGH]:
        st.s[SENT_LOW] = st.s[SENT_HIGH] = entry
    st.sent_above[entry] = 1
    st.s[SENT_LOW] = min(st.s[SENT_LOW], entry)
    st.s[SENT_HIGH] = max(st.s[SENT_HIGH], entry + 1)


def sent_ranges(st: State) -> list[tuple[int, int]]:
    """Return ``individuallySentPositions``: half-open ranges ``(before, last]`` of entries, ascending, coalesced.

    Between a rise of mark-delete and the end of the next round they may reach below the last sent position, as
    the broker's do.
    """
    ranges: list[tuple[int, int]] = []
    for entry in range(int(st.s[SENT_LOW]), int(st.s[SENT_HIGH])):
        if not st.sent_above[entry]:
            continue
        if ranges and ranges[-1][1] == entry - 1:
            ranges[-1] = (ranges[-1][0], entry)
        else:
            ranges.append((entry - 1, entry))
    return ranges
