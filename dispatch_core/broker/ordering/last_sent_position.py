"""Last sent position (PIP-282, only in 4.0.0-preview.1): a newcomer gets nothing not sent before it joined.

Theory of operation
-------------------
The dispatcher knows up to where *everything* was handed to somebody (``LAST_SENT``), and which entries above that
were handed out singly (``sent_above``, the broker's ``individuallySentPositions``). A consumer that joins while
others hold unacknowledged entries remembers that position; until mark-delete has reached it, the newcomer gets
nothing beyond it, of any key. So it gets what was sent before it joined (when that comes back) before anything
later. The price: every key of the newcomer waits, and one key may still be pending at two consumers at a time (#23307),
which is why draining hashes replaced this rule.

==========================  ====================================================================================
event                       transition
==========================  ====================================================================================
a round begins              unknown: LAST_SENT = mark-delete, acknowledged entries above it count as sent;
                            else LAST_SENT is raised to mark-delete
an entry is chosen          it is noted as sent, unless it is at or below LAST_SENT
all of a round are chosen   LAST_SENT moves over the entries noted as sent that follow it
a consumer joins            LAST_SENT is raised to mark-delete and remembered for the newcomer, if others are
                            connected and the read position is more than one entry past mark-delete
a consumer leaves           forgotten; one left: all are forgotten; none left: LAST_SENT unknown, nothing sent
mark-delete reaches a       that newcomer is free (looked at before every decision: *prune*)
newcomer's position
==========================  ====================================================================================

"Sent" means chosen for a consumer: closed connections and redelivery do not undo it. Entries are ordinals, so the
entry before one is one less, and a range of sent entries touches ``LAST_SENT`` exactly when its first entry is
the next one.

The newcomers are kept in the order they joined and pruned from the front (``ordering.newcomers``). ``LAST_SENT`` never
goes back while anyone is connected, so that order is also the order of the remembered positions: the first is the oldest.

A newcomer is freed by mark-delete, by being the only one left, or it leaves; nothing else is waited for here.
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

from typing import Final

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.ordering.recently_joined import add_newcomer, forget_newcomer, free_first
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

#: Position limit of a consumer that has none.
UNRESTRICTED: Final = 1 << 62


@compiled
def begin_round(st: State) -> None:
    """Before a read result is dispatched: begin to track at mark-delete, or raise the last sent position to it."""
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
    """An entry was chosen for a consumer."""
    if entry > st.s[LAST_SENT]:
        _mark(st, entry)


@compiled
def advance(st: State) -> None:
    """After all of a round were chosen: move the last sent position over the entries sent right after it."""
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
    """A consumer is in the list and in the selector: remember how far was sent, if that can matter to it.

    Returns its ``lastSentPositionWhenJoining``; NOT_TRACKED before the first round.
    """
    raise_to_mark_delete(st)
    if (
        st.s[LAST_SENT] != NOT_TRACKED
        and st.s[N_CONSUMERS] > 1
        and st.s[READ_POSITION] - st.s[MARK_DELETE] > 1
    ):
        add_newcomer(st, slot, st.s[LAST_SENT])
    return st.s[LAST_SENT]


@compiled
def consumer_left(st: State, slot: int) -> bool:
    """A consumer is out of the list, and the read that its entries caused was attempted: now it is forgotten.

    Returns whether newcomers were freed by mark-delete, so that another read is due.
    """
    forget_newcomer(st, slot)
    if st.s[N_CONSUMERS] <= 1:
        free_first(st, st.s[N_RECENT])
    if st.s[N_CONSUMERS] == 0:
        forget_sent(st)
    return prune(st)


@compiled
def forget_sent(st: State) -> None:
    """Nobody is left: the next first consumer gets everything above mark-delete again, or what a reset left."""
    for entry in range(st.s[SENT_LOW], st.s[SENT_HIGH]):
        st.sent_above[entry] = 0
    st.s[SENT_LOW] = st.s[SENT_HIGH] = 0
    st.s[LAST_SENT] = NOT_TRACKED


@compiled
def prune(st: State) -> bool:
    """Free the newcomers whose position mark-delete has reached. Returns whether there were any."""
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
    """True if everything that was sent before a recently joined consumer came is acknowledged."""
    return joined_at <= st.s[MARK_DELETE]


@compiled
def position_limit(st: State, slot: int, is_replay: bool) -> int:
    """The last entry the consumer may be sent now; UNRESTRICTED for all but newcomers.

    In a replay read a newcomer is held to the oldest one's limit: what is replayed may have been anybody's.
    """
    if st.joined_at[slot] == NOT_TRACKED:
        return UNRESTRICTED
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
    """True if a position limit allows an entry: the limit itself was sent before the consumer joined."""
    return entry <= limit


@compiled
def _mark(st: State, entry: int) -> None:
    if st.s[SENT_LOW] >= st.s[SENT_HIGH]:
        st.s[SENT_LOW] = st.s[SENT_HIGH] = entry
    st.sent_above[entry] = 1
    st.s[SENT_LOW] = min(st.s[SENT_LOW], entry)
    st.s[SENT_HIGH] = max(st.s[SENT_HIGH], entry + 1)


def sent_ranges(st: State) -> list[tuple[int, int]]:
    """``individuallySentPositions``: half-open ranges ``(before, last]`` of entries, ascending, coalesced.

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


def newcomers(st: State) -> dict[int, int]:
    """Slot → last sent position when it joined, of those that are still held back (not pruned), oldest first."""
    return {int(slot): int(st.joined_at[slot]) for slot in st.recent[: st.s[N_RECENT]]}
