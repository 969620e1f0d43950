"""Commands of clients and steps of the read loop: flow, ack, redelivery request, read result, end of a round.

Each command is written once, as a whole step over ``State``. The dispatchers (``key_shared``, ``key_shared_classic``), the
simulation and the verification without a trace run whole steps. A trace has lines between the parts of a step, because the
broker runs them on different threads. Its verification calls the same parts:

==================  ================================================================  ==========================
whole step          its parts, in the broker's order                                  Pulsar's source
==================  ================================================================  ==========================
``flow``            ``permits.count_flow``, ``apply_flow``                            Consumer.flowPermits
``ack``             ``begin_ack``, ``end_ack``, ``acknowledge``                       Consumer.individualAckNormal
``ack_indexes``     none                                                              Consumer.individualAckNormal
``redeliver``       ``let_go`` per entry, ``lower_for_redelivery``, ``add_requested``,  Consumer.redeliver-
                    ``flow_parked``                                                   UnacknowledgedMessages
``trim_pending``    ``let_go`` per entry, ``lower_for_trim``                          Consumer.removePendingAcksUpTo-
                                                                                      PositionAndDecrementUnacked
``choose``          none                                                              filterAndGroupEntriesForDispatching
``conclude``        ``end_round`` (4.x)                                               trySendMessagesToConsumers
``conclude``        ``end_classic_round``: ``classic_goes_on``, ``finish_round``      trySendMessagesToConsumers
                    (3.x, classic)
``drop_result``     ``cursor.rewind``, ``finish_round``                               trySendMessagesToConsumers
==================  ================================================================  ==========================

Permits that a step sets free flow to the dispatcher on a thread of its own (``consumerFlow``). A step therefore returns
them as ``Flows`` and leaves ``apply_flow`` to its caller. A cumulative ack (``cursor.acknowledge_up_to``) exists for
Exclusive and Failover only: Key_Shared ignores it. The decisions of reads and rounds are in ``read_loop`` and
``read_loop_classic``.

Source: Consumer, PendingAcksMap, PersistentSubscription, PersistentDispatcherMultipleConsumers,
PersistentStickyKeyDispatcherMultipleConsumers (3.x and 4.x).

A batch of four messages is delivered to consumer 0, who acknowledges the first message, then the rest:

>>> import numpy as np
>>> from dispatch_core.broker.pending_acks import hold
>>> from dispatch_core.broker.permits import charge_send
>>> from dispatch_core.broker.state import new_state
>>> st = new_state(np.zeros(1, np.int32), np.full(1, 4, np.int32), n_hashes=1, n_consumers=1)
>>> st.connected[0] = 1
>>> flow(st, 0, 10)
True
>>> hold(st, 0, 0, 0)
>>> charge_send(st, 0, 4, 0, 1)
>>> int(st.permits[0]), int(st.unacked[0])
(6, 4)
>>> int(ack_indexes(st, 0, 3)), int(st.unacked[0])
(1, 3)
>>> acked = ack(st, 0)
>>> int(acked.holder), int(acked.messages), int(st.unacked[0]), int(st.s[MARK_DELETE])
(0, 3, 0, 0)
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker import cursor, cursor_moves, read_loop, read_loop_classic
from dispatch_core.broker.ordering.draining_hashes import end_batch, start_batch
from dispatch_core.broker.pending_acks import let_go, unacked_messages
from dispatch_core.broker.permits import (
    add_unacked,
    count_flow,
    count_parked,
    lower_unacked,
    unblock_before_lowering,
)
from dispatch_core.broker.replay_set import add_to_replay, remove_from_replay, remove_up_to
from dispatch_core.broker.state import (
    COUNTS_REMAINING,
    I64,
    LOOK_AHEAD_NEEDS_MORE,
    MARK_DELETE,
    N_RECENT,
    NO_HASH,
    NOBODY,
    PENDING_READ,
    PENDING_REPLAY,
    READ_POSITION,
    READ_SIZE,
    REDELIVERS_IN_ONE_BATCH,
    REWIND_DUE,
    SEND_IN_PROGRESS,
    SKIP_NEXT_REPLAY,
    TOTAL_PERMITS,
    TRIMMED_TO,
    TRIMS_TO_MARK_DELETE,
    WIDE,
    State,
)

#: Bits of the answer of ``end_round``, ``end_classic_round`` and ``classic_goes_on``.
RETRIES: Final = 1
WAITS_FOR_WRITES: Final = 2
LOOKS_AHEAD: Final = 4


class Flows(NamedTuple):
    """Notices of permits to the dispatcher (``consumerFlow``): their number, and the permits that the first one carries.

    A notice without permits counts too: each leads to a read attempt.
    """

    notices: int
    permits: int


class Ack(NamedTuple):
    """Effect of an ack on the consumer that holds the entry.

    ``holder``: its slot, NOBODY for an entry that is pending on nobody; then the rest is 0. ``messages``: by how many its
    unacked counter is lowered. ``ref_count_before``: see ``pending_acks.let_go``.
    """

    holder: int
    messages: int
    ref_count_before: int
    flows: int
    permits: int


# --- flow ------------------------------------------------------------------------------------------------------------


@compiled
def flow(st: State, slot: int, permits: int) -> bool:
    """Count a client's permits and pass them to the dispatcher; those of a blocked consumer are parked.

    Returns False when they are parked. Source: Consumer.flowPermits.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> flow(st, 0, 10), int(st.permits[0]), int(st.s[TOTAL_PERMITS])
    (True, 10, 10)
    >>> st.blocked[0] = 1
    >>> flow(st, 0, 5), int(st.permits[0]), int(st.parked_permits[0])
    (False, 10, 5)
    """
    counted = count_flow(st, slot, permits)
    if counted:
        apply_flow(st, slot, permits)
    return counted


@compiled
def apply_flow(st: State, slot: int, permits: int) -> None:
    """Add permits that have reached the dispatcher; those of a consumer that has left do not count.

    Source: PersistentDispatcherMultipleConsumers.consumerFlow.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(consumers=2)
    >>> st.connected[1] = 0
    >>> apply_flow(st, 0, 10)
    >>> apply_flow(st, 1, 5)
    >>> int(st.s[TOTAL_PERMITS])
    10
    """
    if st.connected[slot] == 1:
        st.s[TOTAL_PERMITS] += permits


# --- acks ------------------------------------------------------------------------------------------------------------


@compiled
def ack(st: State, entry: int) -> Ack:
    """Acknowledge a whole entry: pending ack and draining, unblock rule and counter of its holder, then the cursor.

    The holder need not be the consumer that acknowledges. Source: Consumer.individualAckNormal.

    >>> from dispatch_core.broker.pending_acks import hold
    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> hold(st, 0, 0, 0)
    >>> st.unacked[0] = 1
    >>> acked = ack(st, 0)
    >>> int(acked.holder), int(acked.messages), int(st.unacked[0]), int(st.deleted[0])
    (0, 1, 0, 1)
    """
    begun = begin_ack(st, entry)
    flows, permits = begun.flows, begun.permits
    if begun.holder != NOBODY:
        after = finish_ack(st, entry, begun.holder, begun.messages)
        flows += after.notices
        permits += after.permits  # parked permits flow once
    else:
        acknowledge(st, entry)
    return Ack(begun.holder, begun.messages, begun.ref_count_before, flows, permits)


@compiled
def begin_ack(st: State, entry: int) -> Ack:
    """First part of an ack: remove the pending ack; apply the unblock rule where that comes before the counter is lowered.

    Source: Consumer.checkCanRemovePendingAcksAndHandle; #21126, #23796, #25592.

    >>> from dispatch_core.broker.pending_acks import hold
    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> hold(st, 0, 0, 0)
    >>> [int(begin_ack(st, 0).holder) for _ in range(2)]  # the second time it is pending on nobody
    [0, -1]
    """
    slot = st.holder[entry] + WIDE
    if slot == NOBODY:
        return Ack(slot, WIDE, WIDE, WIDE, WIDE)
    messages = unacked_messages(st, entry)
    before = let_go(st, slot, entry) + WIDE
    parked = st.parked_permits[slot]
    flows = unblock_before_lowering(st, slot) + WIDE
    return Ack(slot, messages, before, flows, parked - st.parked_permits[slot])


@compiled
def end_ack(st: State, slot: int, messages: int) -> Flows:
    """Second part of an ack: lower the holder's unacked counter; apply the unblock rule where that comes after.

    Source: Consumer.addAndGetUnAckedMsgs, Consumer.updateBlockedConsumerOnUnackedMsgs.

    A consumer that was blocked at 4 comes down to half of that; its parked permits flow:

    >>> from dispatch_core.broker.state import MAX_UNACKED_CONSUMER, example_state
    >>> st = example_state()
    >>> st.s[MAX_UNACKED_CONSUMER], st.blocked[0], st.unacked[0], st.parked_permits[0] = 4, 1, 3, 7
    >>> flows = end_ack(st, 0, 1)
    >>> int(flows.notices), int(flows.permits), int(st.blocked[0])
    (1, 7, 0)
    """
    parked = st.parked_permits[slot]
    flows = lower_unacked(st, slot, messages) + WIDE
    return Flows(flows, parked - st.parked_permits[slot])


@compiled
def acknowledge(st: State, entry: int) -> None:
    """Last part of an ack: delete the entry at the cursor, and forget its redelivery count.

    ``cursor.acknowledge`` is the part of the cursor alone: Exclusive and Failover count no redeliveries. Source:
    PersistentSubscription.acknowledgeMessage.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> st.redelivery_count[0] = 2
    >>> acknowledge(st, 0)
    >>> int(st.deleted[0]), int(st.redelivery_count[0])
    (1, 0)
    """
    cursor.acknowledge(st, entry)
    st.redelivery_count[entry] = 0


@compiled
def finish_ack(st: State, entry: int, slot: int, messages: int) -> Flows:
    """Apply ``end_ack`` and ``acknowledge``: all parts of an ack of a pending entry after the first."""
    flows = end_ack(st, slot, messages)
    acknowledge(st, entry)
    return flows


@compiled
def ack_indexes(st: State, entry: int, left: int) -> int:
    """Acknowledge messages of a batch, of which ``left`` stay unacknowledged; returns how many are newly acknowledged.

    Only the holder's counter is lowered; the unblock rule is not applied and the pending ack stays. With none left the
    cursor deletes the entry, and it keeps no indexes of a deleted one. Entries are deleted and pending if a move of the
    cursor has passed them, or if they were read before their acknowledgement and sent after it. Their indexes then lower
    the counter, and the acknowledgement of the whole entry lowers it by all messages once more. Since #25592
    (``COUNTS_REMAINING``) the pending ack says how many are left, so no message lowers the counter twice. Source:
    Consumer.individualAckNormal, ManagedCursorImpl.asyncDelete, PendingAcksMap.updateRemainingUnacked.

    Of a batch of four, messages are acknowledged one by one. Then the second half is again, and what is left is asked for:

    >>> from dispatch_core.broker.pending_acks import hold
    >>> from dispatch_core.broker.state import COUNTS_REMAINING, example_state
    >>> for keeps in (0, 1):
    ...     st = example_state()
    ...     st.s[COUNTS_REMAINING], st.num_messages[0] = keeps, 4
    ...     hold(st, 0, 0, 0)
    ...     newly = [int(ack_indexes(st, 0, left)) for left in (3, 1, 0)]
    ...     print(newly, int(st.deleted[0]), int(ack_indexes(st, 0, 2)), int(unacked_messages(st, 0)))
    [1, 2, 1] 1 2 4
    [1, 2, 1] 1 0 0
    """
    newly = max(unacked_messages(st, entry) - left, 0) + WIDE
    slot = st.holder[entry] + WIDE
    if slot != NOBODY and newly > 0:
        add_unacked(st, slot, -newly)
    acked = st.acked_indexes[entry] + newly
    if left == 0:
        acknowledge(st, entry)
    if st.deleted[entry] == 0 or (slot != NOBODY and st.s[COUNTS_REMAINING] == 1):
        st.acked_indexes[entry] = acked
        st.pending_count[entry] = max(st.pending_count[entry] - newly, 0)
    return newly


# --- redelivery requests ---------------------------------------------------------------------------------------------


@compiled
def redeliver(st: State, slot: int, entries: npt.NDArray[Any], everything: bool, before: I64) -> Flows:
    """Handle a redelivery request: move the named ``entries`` that the consumer holds to the replay set, in their order.

    ``everything``: the request names no entries, these are all that is pending. ``before``: room for the draining
    reference count before each entry, in the order of ``entries``; empty if it is not wanted. Entries that the consumer
    does not hold are passed over. Source: Consumer.redeliverUnacknowledgedMessages.

    >>> import numpy as np
    >>> from dispatch_core.broker.pending_acks import hold
    >>> from dispatch_core.broker.state import N_REPLAY, example_state
    >>> st = example_state(entries=2)
    >>> hold(st, 0, 1, 0)
    >>> st.unacked[0] = 1
    >>> flows = redeliver(st, 0, np.array([0, 1]), False, np.zeros(2, np.int64))  # entry 0 is not held
    >>> int(st.s[N_REPLAY]), int(st.in_replay[1]), int(st.redelivery_count[1]), int(st.unacked[0])
    (1, 1, 1, 0)
    """
    messages = WIDE
    for at in range(len(entries)):
        entry = entries[at] + WIDE
        if st.holder[entry] == slot:
            messages += _take_back(st, slot, entry, before, at)
    lower_for_redelivery(st, slot, messages, everything)
    return flow_parked(st, slot, everything)


@compiled
def redeliver_all(st: State, slot: int, first: int, last: int, before: I64) -> Flows:
    """Handle a redelivery request for everything: all entries in [first, last) that the consumer holds. ``before``: empty.

    >>> import numpy as np
    >>> from dispatch_core.broker.pending_acks import hold
    >>> from dispatch_core.broker.state import N_REPLAY, example_state
    >>> st = example_state(entries=3)
    >>> for entry in (0, 2):
    ...     hold(st, 0, entry, 0)
    >>> flows = redeliver_all(st, 0, 0, 3, np.zeros(0, np.int64))
    >>> st.in_replay.tolist(), int(flows.notices)
    ([1, 0, 1], 1)
    """
    messages = WIDE
    for entry in range(first, last):
        if st.holder[entry] == slot:
            messages += _take_back(st, slot, entry, before, 0)
    lower_for_redelivery(st, slot, messages, True)
    return flow_parked(st, slot, True)


@compiled
def _take_back(st: State, slot: int, entry: int, before: I64, at: int) -> int:
    """Move a requested entry from the pending acks to the replay set; returns its unacknowledged messages."""
    released = let_go(st, slot, entry)
    if at < len(before):
        before[at] = released
    add_requested(st, entry)
    return unacked_messages(st, entry)


@compiled
def add_requested(st: State, entry: int) -> None:
    """Add a requested entry above mark-delete to the replay set: without its hash, and counted as a redelivery.

    Source: PersistentDispatcherMultipleConsumers.redeliverUnacknowledgedMessages.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> add_requested(st, 0)
    >>> int(st.in_replay[0]), int(st.replay_hash[0]) == NO_HASH, int(st.redelivery_count[0])
    (1, True, 1)
    """
    if add_to_replay(st, entry, NO_HASH):
        st.redelivery_count[entry] += 1


@compiled
def lower_for_redelivery(st: State, slot: int, messages: int, everything: bool) -> None:
    """Lower the unacked counter for a redelivery request, and clear the consumer's block, whatever is left.

    Until #25589 a request for ``everything`` sets the counter to 0; since then it subtracts ``messages``, those that were
    pending.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> for batch in (0, 1):
    ...     st.s[REDELIVERS_IN_ONE_BATCH], st.unacked[0] = batch, 5
    ...     lower_for_redelivery(st, 0, 3, True)
    ...     print(int(st.unacked[0]))
    0
    2
    """
    if everything and st.s[REDELIVERS_IN_ONE_BATCH] == 0:
        messages = st.unacked[slot]
    add_unacked(st, slot, -messages)
    st.blocked[slot] = 0


@compiled
def flow_parked(st: State, slot: int, everything: bool) -> Flows:
    """Last part of a redelivery request: count the permits that were parked while the consumer was blocked.

    Until #25589 a request that names entries notifies the dispatcher only where permits were parked. A send that blocks the
    consumer again may have come before: the block stays.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> [int(flow_parked(st, 0, everything).notices) for everything in (False, True)]
    [0, 1]
    >>> st.parked_permits[0] = 7
    >>> flows = flow_parked(st, 0, False)
    >>> int(flows.notices), int(flows.permits), int(st.permits[0])
    (1, 7, 7)
    """
    parked = count_parked(st, slot)
    if everything or parked > 0 or st.s[REDELIVERS_IN_ONE_BATCH] == 1:
        return Flows(1 + WIDE, parked)
    return Flows(WIDE, parked)


# --- reads -----------------------------------------------------------------------------------------------------------


@compiled
def trim_is_due(st: State) -> bool:
    """True if a read attempt drops what mark-delete has passed: it has moved since the last such attempt (until #25581).

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> st.s[TRIMS_TO_MARK_DELETE] = 1
    >>> trim_is_due(st)
    True
    >>> trim(st, 0)
    >>> trim_is_due(st)
    False
    """
    return (
        st.s[TRIMS_TO_MARK_DELETE] == 1
        and st.s[SEND_IN_PROGRESS] == 0
        and st.s[MARK_DELETE] != st.s[TRIMMED_TO]
    )


@compiled
def trim(st: State, ledger_start: int) -> None:
    """Drop all up to mark-delete from the replay set; the caller removes the pending acks up to there, too.

    ``ledger_start``: see ``replay_set.remove_up_to``.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> st.in_replay[0], st.s[MARK_DELETE] = 1, 0
    >>> trim(st, 0)
    >>> int(st.s[TRIMMED_TO])
    0
    """
    st.s[TRIMMED_TO] = st.s[MARK_DELETE]
    remove_up_to(st, st.s[MARK_DELETE], ledger_start)


@compiled
def issue_replay(st: State, plan: I64) -> int:
    """Issue the replay read of a plan: entries that are acknowledged already leave the replay set.

    Returns how many those are. If all are, no read is pending. A cursor that was rewound moves past the entries of the read
    that it would read next. Source: asyncReplayEntries of PersistentDispatcherMultipleConsumers and of ManagedCursorImpl.

    A replay read of entries 0 and 1, of which 0 is acknowledged, of a cursor that would read 1 next:

    >>> import numpy as np
    >>> from dispatch_core.broker.state import READ_POSITION, example_state
    >>> st = example_state(entries=2)
    >>> st.deleted[0], st.s[READ_POSITION] = 1, 1
    >>> int(issue_replay(st, np.array([1, 2, 0, 1])))  # the plan: replay read, two entries, their ordinals
    1
    >>> int(st.s[READ_POSITION])
    2
    """
    gone = 0
    for at in range(2, 2 + plan[1]):
        if st.deleted[plan[at]] == 1:
            remove_from_replay(st, plan[at])
            gone += 1
        elif plan[at] == st.s[READ_POSITION]:
            st.s[READ_POSITION] += 1
    if gone == plan[1]:
        st.s[PENDING_REPLAY] = 0
    return gone


@compiled
def read_done(st: State, is_replay: bool, last_entry: int, count: int) -> bool:
    """Take a read result of ``count`` entries; ``last_entry``: the highest, -1 for an empty one.

    Returns False when it is dropped and the cursor rewound instead: the read is from before all consumers left. Source:
    PersistentDispatcherMultipleConsumers.readEntriesComplete.

    >>> from dispatch_core.broker.state import READ_POSITION, example_state
    >>> st = example_state(entries=3)
    >>> read_done(st, False, 1, 2), int(st.s[READ_POSITION])
    (True, 2)
    >>> st.s[REWIND_DUE] = 1
    >>> read_done(st, False, 2, 1), int(st.s[READ_POSITION])
    (False, 0)
    """
    if is_replay:
        st.s[PENDING_REPLAY] = 0
    else:
        st.s[PENDING_READ] = 0
        meets_end = cursor.meets_end(st, count, st.s[READ_SIZE])
        if last_entry >= 0:
            cursor.moved_by_read(st, last_entry)
        if meets_end:
            cursor.read_to_end(st)
        if st.s[REWIND_DUE] == 1:
            st.s[REWIND_DUE] = 0
            cursor.rewind(st)
            return False
    st.s[SEND_IN_PROGRESS] = 1
    return True


@compiled
def trim_pending(st: State, slot: int, entries: npt.NDArray[Any], before: I64) -> Flows:
    """Drop pending ``entries`` of a consumer that a move of the cursor has passed, and lower its counter (#25581, #25592).

    ``before``: as for ``redeliver``. Source: Consumer.removePendingAcksUpToPositionAndDecrementUnacked.

    >>> import numpy as np
    >>> from dispatch_core.broker.pending_acks import hold
    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> hold(st, 0, 0, 0)
    >>> st.unacked[0] = 1
    >>> flows = trim_pending(st, 0, np.array([0]), np.zeros(1, np.int64))
    >>> int(st.unacked[0]), int(st.holder[0]) == NOBODY
    (0, True)
    """
    messages = WIDE
    start_batch(st)
    for at in range(len(entries)):
        messages += st.pending_count[entries[at]]
        released = let_go(st, slot, entries[at])
        if at < len(before):
            before[at] = released
    end_batch(st)
    parked = st.parked_permits[slot]
    notices = cursor_moves.lower_for_trim(st, slot, messages) + WIDE
    return Flows(notices, parked - st.parked_permits[slot])


# --- a round ---------------------------------------------------------------------------------------------------------


@compiled
def choose(st: State, classic: bool, is_replay: bool, entries: I64, outcome: I64, attempts: I64) -> int:
    """Begin a round: choose a consumer for each entry of a read result. Returns a number for ``conclude``.

    ``classic``: the dispatcher of 3.x or the classic one of 4.x. ``outcome``, ``attempts``: see ``read_loop.dispatch``. The
    number says whether the round may look ahead (4.x), or how many consumers own entries of it, -1 = nothing was looked at
    (3.x, classic). ``read_loop.send_groups`` follows.

    An entry whose owner has no permits; a consumer of 4.x could look ahead:

    >>> import numpy as np
    >>> from dispatch_core.broker.state import LOOK_AHEAD_PER_CONSUMER, example_state
    >>> outcome = np.zeros(1, np.int64)
    >>> for classic in (False, True):
    ...     st = example_state(consumers=2)
    ...     st.permits[1], st.s[LOOK_AHEAD_PER_CONSUMER] = 1, 10
    ...     chosen = choose(st, classic, False, np.array([0]), outcome, np.zeros(3, np.int64))
    ...     answer = conclude(st, classic, chosen, np.array([0]), outcome, True, 0)
    ...     print(outcome.tolist(), int(chosen), answer == LOOKS_AHEAD | RETRIES)
    [-1] 1 True
    [-1] 1 True
    """
    if not classic:
        return int(read_loop.group(st, is_replay, entries, outcome, attempts))
    if len(entries) == 0:
        return -1
    return int(read_loop_classic.group(st, is_replay, entries, outcome))


@compiled
def conclude(
    st: State, classic: bool, chosen: int, entries: I64, outcome: I64, has_more: bool, sent_to: int
) -> int:
    """End a round after its sends; returns what follows, as ``end_round`` does. ``chosen``: the answer of ``choose``.

    ``has_more``: the cursor has more entries. ``sent_to``: number of consumers with deliveries.
    """
    if classic:
        return int(end_classic_round(st, chosen, sent_to))
    wants_look_ahead = chosen != 0 and read_loop.wants_look_ahead(st, entries, outcome)
    return int(end_round(st, wants_look_ahead, has_more, sent_to))


@compiled
def drop_result(st: State) -> None:
    """End a round that begins when all consumers have left: its entries are dropped, and the cursor is rewound.

    >>> from dispatch_core.broker.state import READ_POSITION, example_state
    >>> st = example_state(entries=3, consumers=0)
    >>> st.s[READ_POSITION], st.s[SEND_IN_PROGRESS] = 3, 1
    >>> drop_result(st)
    >>> int(st.s[READ_POSITION]), int(st.s[SEND_IN_PROGRESS])
    (0, 0)
    """
    cursor.rewind(st)
    finish_round(st, False)


@compiled
def end_round(st: State, wants_look_ahead: bool, has_more: bool, sent_to: int) -> int:
    """End a round of 4.x; returns what follows it as bits: ``LOOKS_AHEAD``, ``RETRIES``.

    ``wants_look_ahead``: see ``read_loop.wants_look_ahead``. ``has_more``: the cursor has more entries. ``sent_to``: number
    of consumers with deliveries. It reads again at once when it looks ahead, or delivered nothing. #26236, #26268.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> [int(end_round(st, look, True, sent_to)) for look, sent_to in ((False, 1), (False, 0), (True, 0))]
    [0, 1, 5]
    """
    looks_ahead = wants_look_ahead and (has_more or st.s[LOOK_AHEAD_NEEDS_MORE] == 0)
    finish_round(st, looks_ahead)
    answer = 0
    if looks_ahead:
        answer |= LOOKS_AHEAD
    if looks_ahead or sent_to == 0:
        answer |= RETRIES
    return answer


@compiled
def end_classic_round(st: State, owners: int, sent_to: int) -> int:
    """End a round of 3.x or classic; arguments and answer as for ``classic_goes_on``.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> end_classic_round(st, 1, 0) == LOOKS_AHEAD | RETRIES, int(st.s[SKIP_NEXT_REPLAY])
    (True, 1)
    """
    answer = classic_goes_on(st, owners, sent_to)
    finish_round(st, answer & LOOKS_AHEAD != 0)
    return answer


@compiled
def finish_round(st: State, looks_ahead: bool) -> None:
    """Let reads be attempted again. A round that looks ahead has the next scan of the replay set skipped once.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> st.s[SEND_IN_PROGRESS] = 1
    >>> finish_round(st, True)
    >>> int(st.s[SEND_IN_PROGRESS]), int(st.s[SKIP_NEXT_REPLAY])
    (0, 1)
    """
    st.s[SEND_IN_PROGRESS] = 0
    if looks_ahead:
        st.s[SKIP_NEXT_REPLAY] = 1


@compiled
def classic_goes_on(st: State, owners: int, sent_to: int) -> int:
    """Return what follows a round of 3.x or classic, as bits: ``LOOKS_AHEAD``, ``RETRIES``, ``WAITS_FOR_WRITES``.

    ``owners``: consumers that own entries of the result; -1 = nothing was looked at. ``sent_to``: number of consumers with
    deliveries. It looks ahead when it was stuck. Where some owners had deliveries and others had not, it reads again at
    once only if all is written before the turn of the last consumer that gets nothing. Source:
    trySendMessagesToConsumers (3.x, classic).

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(consumers=2)
    >>> [int(classic_goes_on(st, owners, sent_to)) for owners, sent_to in ((-1, 0), (2, 2), (2, 1))]
    [1, 0, 2]
    """
    if owners < 0:
        return RETRIES
    answer = 0
    if read_loop_classic.is_stuck(st, owners, sent_to > 0):
        answer |= LOOKS_AHEAD
    if 0 < sent_to < owners:
        answer |= WAITS_FOR_WRITES
    if sent_to == 0 and (owners > 0 or st.s[N_RECENT] == 0):
        answer |= RETRIES
    return answer
