"""Operations on the cursor: what skip, clear backlog, expiry, reset and seek do to a dispatcher.

An administrator skips 10 entries, clears a backlog or resets a subscription; a client seeks; the broker expires what is too
old. All of them move the cursor without an acknowledgement. There are two kinds of moves:

* A move *forward* (skip, clear backlog, expiry) marks entries as deleted up to a target, as a cumulative acknowledgement
  does (``asyncMarkDelete``). The consumers stay connected and are not told.
* A *reset* (reset cursor, seek) sets the cursor to any position, forwards or backwards. The broker disconnects consumers
  first: all of Key_Shared, of Failover and Exclusive the active one only. They reconnect by themselves.

=======================  ==========================================  ==================================================
state                    move forward to *t*                         reset to *p*
=======================  ==========================================  ==================================================
mark-delete              *t*, and over acknowledged entries that     before *p*
                         follow; a target before it is refused
read position            behind mark-delete if it was not beyond     *p*
acknowledged entries     all up to *t*; batch indexes up to *t* are  all before *p*, none from *p* on; all batch indexes
above mark-delete        forgotten                                   are forgotten
pending acks up to *t*   see below                                   gone: their consumers have been disconnected
replay set up to *t*     see below                                   empty: it is cleared when the first consumer is back
consumers                stay                                        disconnected, see above; no active consumer is chosen
                                                                     when the reset disconnects one
=======================  ==========================================  ==================================================

What a move forward leaves behind in a Key_Shared or Shared dispatcher depends on the release (Shared has no hashes):

==========================================  ============================================================================
4.0.11+, 4.2.2+ (#25581, #25592)            After the move (``markDeletePositionMoveForward``) everything up to mark-delete
                                            leaves the replay set and the pending acks: hashes stop to drain, and the
                                            consumers' counters of unacknowledged messages are lowered.
4.0.0 to 4.0.10, 4.1, 4.2.0, 4.2.1          The same at the next read attempt, but the counters stay: what was skipped
                                            counts against ``maxUnackedMessagesPerConsumer`` for good.
3.x, classic, 4.0.0-preview.1               Pending acks stay until the client acknowledges. Entries leave the replay set
                                            when a replay read meets them.
==========================================  ============================================================================

A skip counts entries that are not acknowledged. Nothing goes beyond the last stored entry. Mark-delete may be the position
before the first entry (-1).

Source: ManagedCursorImpl.asyncSkipEntries, .asyncClearBacklog, .asyncMarkDelete, .internalResetCursor;
PersistentSubscription.skipMessages, .clearBacklog, .resetCursor; PersistentMessageExpiryMonitor;
PersistentDispatcherMultipleConsumers.markDeletePositionMoveForward;
Consumer.removePendingAcksUpToPositionAndDecrementUnacked; AbstractDispatcherSingleActiveConsumer.disconnectActiveConsumers,
.removeConsumer.

Of eight entries 0 to 4 are read; 1 is acknowledged, 0 and 2 are pending. A skip of two entries passes 0, 1 and 2:

>>> from dispatch_core.broker.cursor import acknowledge, moved_by_read
>>> from dispatch_core.broker.pending_acks import hold
>>> from dispatch_core.broker.state import example_state
>>> st = example_state(entries=8)
>>> moved_by_read(st, 4)
>>> for entry in (0, 2):
...     hold(st, 0, entry, 0)
>>> acknowledge(st, 1)
>>> target_of_skip(st, 2, stored=8)
2
>>> move_forward(st, 2)
[0, 2]
>>> int(st.s[MARK_DELETE]), int(st.s[READ_POSITION])
(2, 5)

A reset goes back to entry 1, and what was acknowledged from there on is not any more:

>>> reset(st, 1)
>>> int(st.s[MARK_DELETE]), int(st.s[READ_POSITION]), st.deleted.tolist()
(0, 1, [1, 0, 0, 0, 0, 0, 0, 0])
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_with_caller
from dispatch_core.broker import cursor
from dispatch_core.broker.pending_acks import unacked_messages
from dispatch_core.broker.permits import add_unacked, unblock_if_due
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.state import COUNTS_REMAINING, MARK_DELETE, NOBODY, READ_POSITION, WIDE, State

#: Dispatchers that drop what mark-delete has passed, at one time or the other.
_TRIMMING: Final = (Dispatcher.KEY_SHARED, Dispatcher.SHARED)


def target_of_skip(st: State, entries: int, stored: int) -> int:
    """Return the last entry that a skip passes: it counts entries that are not acknowledged.

    ``stored``: number of entries in the topic then. With fewer unacknowledged ones than asked for, the last stored entry.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(entries=5)
    >>> st.deleted[[0, 2]] = 1
    >>> st.s[MARK_DELETE] = 0
    >>> [target_of_skip(st, entries, stored=5) for entries in (1, 2, 3, 9)]
    [1, 3, 4, 4]
    """
    first = int(st.s[MARK_DELETE]) + 1
    unacknowledged = first + np.flatnonzero(st.deleted[first:stored] == 0)
    if entries >= len(unacknowledged):
        return max(stored, first) - 1
    return int(unacknowledged[max(entries, 1) - 1])


def target_of_clear(st: State, stored: int) -> int:
    """Return the last entry that clearing the backlog passes: the last stored one.

    >>> from dispatch_core.broker.state import example_state
    >>> target_of_clear(example_state(entries=5), stored=3)
    2
    """
    return max(stored - 1, int(st.s[MARK_DELETE]))


def move_forward(st: State, target: int) -> list[int]:
    """Delete every entry up to ``target``; returns those of them that are pending on a consumer, which stay so.

    How many of their messages were not acknowledged is kept in ``pending_count``. A target before mark-delete changes
    nothing: the cursor refuses it.
    """
    passed = np.arange(int(st.s[MARK_DELETE]) + 1, target + 1)
    pending: list[int] = passed[st.holder[passed] != NOBODY].tolist()
    pass_entries(st, target)
    return pending


@compiled
def pass_entries(st: State, target: int) -> None:
    """Delete every entry up to ``target``, see ``move_forward``.

    The cursor forgets which batch indexes are acknowledged. Since #25592 the pending ack of a passed batch says how many are
    left; before, all of them count again when it goes.

    Of a batch of three, one message is acknowledged before the move:

    >>> from dispatch_core.broker.pending_acks import hold
    >>> from dispatch_core.broker.state import example_state
    >>> for keeps in (0, 1):
    ...     st = example_state()
    ...     st.s[COUNTS_REMAINING], st.num_messages[0] = keeps, 3
    ...     hold(st, 0, 0, 0)
    ...     st.acked_indexes[0] = 1
    ...     pass_entries(st, 0)
    ...     print(int(unacked_messages(st, 0)))
    3
    2
    """
    first = st.s[MARK_DELETE] + 1
    for entry in range(first, target + 1):
        if st.holder[entry] != NOBODY:
            st.pending_count[entry] = unacked_messages(st, entry)
    cursor.acknowledge_up_to(st, target)
    if st.s[COUNTS_REMAINING] == 0:
        return
    for entry in range(first, target + 1):
        if st.holder[entry] != NOBODY:
            st.acked_indexes[entry] = st.num_messages[entry] - st.pending_count[entry]


@compiled
def reset(st: State, entry: int) -> None:
    """Set the read position to ``entry``, and mark-delete right before it. Whoever was connected is disconnected before."""
    st.deleted[:entry] = 1
    st.deleted[entry:] = 0
    st.acked_indexes[:] = 0
    st.redelivery_count[:] = 0
    st.s[MARK_DELETE] = entry - 1
    st.s[READ_POSITION] = entry


def trims_after_a_move(profile: Profile) -> bool:
    """True if replay set and pending acks are trimmed right after a move forward (#25581, #25592).

    >>> from dispatch_core.broker.profiles import resolve
    >>> [trims_after_a_move(resolve(version)) for version in ("4.0.0", "4.0.11", "4.2.1", "4.2.4")]
    [False, True, False, True]
    """
    return profile.dispatcher in _TRIMMING and "trim_only_on_expiry" in profile.changes


def trims_in_attempts(profile: Profile) -> bool:
    """True if a read attempt begins by dropping what mark-delete has passed (4.0.0 to 4.0.10, 4.1, 4.2.1; until #25581).

    >>> from dispatch_core.broker.profiles import resolve
    >>> [trims_in_attempts(resolve(version)) for version in ("3.0.17", "4.0.0", "4.0.11", "4.2.1", "4.2.4")]
    [False, True, False, True, False]
    """
    drains = "draining_hashes" in profile.changes
    return profile.dispatcher in _TRIMMING and drains and "trim_only_on_expiry" not in profile.changes


@compiled
def lower_for_trim(st: State, slot: int, messages: int) -> int:
    """Last step of the trim, for each consumer: lower its unacked counter, and apply the unblock rule.

    Returns how often the dispatcher is notified of permits.

    >>> from dispatch_core.broker.state import MAX_UNACKED_CONSUMER, example_state
    >>> st = example_state()
    >>> st.s[MAX_UNACKED_CONSUMER], st.unacked[0], st.blocked[0], st.parked_permits[0] = 4, 4, 1, 3
    >>> int(lower_for_trim(st, 0, 3)), int(st.unacked[0]), int(st.permits[0])
    (1, 1, 3)
    """
    if messages <= 0:
        return WIDE
    add_unacked(st, slot, -messages)
    return unblock_if_due(st, slot) + WIDE


def disconnects(consumer: int, active: int | None, *, single_active: bool) -> bool:
    """True if a reset disconnects a consumer: of Failover and Exclusive only the active one, else everybody.

    >>> [disconnects(consumer, 1, single_active=True) for consumer in (1, 2)]
    [True, False]
    >>> disconnects(2, None, single_active=False)
    True
    """
    return consumer == active or not single_active


@compiled_with_caller
def chooses_active_consumer(by_reset: bool) -> bool:
    """True if the active consumer is chosen again when one leaves: not while a reset disconnects it (closeFuture).

    The next consumer that joins chooses, or the one that leaves next.

    >>> chooses_active_consumer(False), chooses_active_consumer(True)
    (True, False)
    """
    return not by_reset
