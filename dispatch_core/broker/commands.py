"""Commands of clients and steps of the read loop: flow, ack, redelivery request, read result, end of a round.

Each is written once, as a whole step over ``State``. The dispatchers (``key_shared``, ``key_shared_classic``), the
simulation and the verification without a trace run whole steps. A trace has lines between the parts of a step, because the
broker runs them on different threads; its verification calls the same parts, which stand here beside the whole:

==================  ================================================================  ==========================
whole step          its parts, in the broker's order                                  Pulsar's source
==================  ================================================================  ==========================
``flow``            ``permits.count_flow``, ``apply_flow``                            Consumer.flowPermits
``ack``             ``begin_ack``, ``end_ack``, ``acknowledge``                       Consumer.individualAckNormal
``ack_indexes``     none                                                              Consumer.individualAckNormal
``redeliver``       ``let_go`` per entry, ``lower_for_redelivery``, ``add_requested``,  Consumer.redeliver-
                    ``flow_parked``                                                   UnacknowledgedMessages
``end_round``       none (4.x)                                                        trySendMessagesToConsumers
``end_classic_...`` ``classic_goes_on``, ``finish_round`` (3.x, classic)              trySendMessagesToConsumers
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
from dispatch_core.broker import cursor
from dispatch_core.broker.pending_acks import let_go, unacked_messages
from dispatch_core.broker.permits import (
    add_unacked,
    count_flow,
    lower_unacked,
    unblock,
    unblock_before_lowering,
)
from dispatch_core.broker.read_loop_classic import is_stuck
from dispatch_core.broker.replay_set import add_to_replay, remove_from_replay, remove_up_to
from dispatch_core.broker.state import (
    I64,
    LOOK_AHEAD_NEEDS_MORE,
    MARK_DELETE,
    N_RECENT,
    NO_HASH,
    NOBODY,
    PENDING_READ,
    PENDING_REPLAY,
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

    A notice without permits counts too: each one leads to a read attempt.
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
    """
    counted = count_flow(st, slot, permits)
    if counted:
        apply_flow(st, slot, permits)
    return counted


@compiled
def apply_flow(st: State, slot: int, permits: int) -> None:
    """Add permits that have reached the dispatcher; those of a consumer that has left do not count.

    Source: PersistentDispatcherMultipleConsumers.consumerFlow.
    """
    if st.connected[slot] == 1:
        st.s[TOTAL_PERMITS] += permits


# --- acks ------------------------------------------------------------------------------------------------------------


@compiled
def ack(st: State, entry: int) -> Ack:
    """Acknowledge a whole entry: pending ack and draining, unblock rule and counter of its holder, then the cursor.

    The holder need not be the consumer that acknowledges. Source: Consumer.individualAckNormal.
    """
    begun = begin_ack(st, entry)
    flows, permits = begun.flows, begun.permits
    if begun.holder != NOBODY:
        after = end_ack(st, begun.holder, begun.messages)
        flows += after.notices
        permits += after.permits  # parked permits flow once
    acknowledge(st, entry)
    return Ack(begun.holder, begun.messages, begun.ref_count_before, flows, permits)


@compiled
def begin_ack(st: State, entry: int) -> Ack:
    """First part of an ack: the pending ack goes, the unblock rule is tested where that comes before the counter.

    Source: Consumer.checkCanRemovePendingAcksAndHandle; #21126, #23796, #25592.
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
    """Second part of an ack: the holder's unacked counter is lowered, the unblock rule is tested where that comes after.

    Source: Consumer.addAndGetUnAckedMsgs, Consumer.updateBlockedConsumerOnUnackedMsgs.
    """
    parked = st.parked_permits[slot]
    flows = lower_unacked(st, slot, messages) + WIDE
    return Flows(flows, parked - st.parked_permits[slot])


@compiled
def acknowledge(st: State, entry: int) -> None:
    """Last part of an ack: the cursor deletes the entry, its redelivery count goes.

    ``cursor.acknowledge`` is the cursor's share alone, all that Exclusive and Failover have: they count no redeliveries.
    Source: PersistentSubscription.acknowledgeMessage.
    """
    cursor.acknowledge(st, entry)
    st.redelivery_count[entry] = 0


@compiled
def ack_indexes(st: State, entry: int, left: int) -> int:
    """Acknowledge messages of a batch, of which ``left`` stay unacknowledged; returns how many are newly acknowledged.

    Only the counter of the holder follows: neither the unblock rule nor the pending ack. With none left the cursor deletes
    the entry; the pending ack stays, and lowers the counter no more. Source: Consumer.individualAckNormal,
    ManagedCursorImpl.asyncDelete.
    """
    newly = unacked_messages(st, entry) - left
    slot = st.holder[entry] + WIDE
    if slot != NOBODY and newly > 0:
        add_unacked(st, slot, -newly)
    if left == 0:
        acknowledge(st, entry)
    if left > 0 or slot != NOBODY:
        st.acked_indexes[entry] = st.num_messages[entry] - left
    return newly


# --- redelivery requests ---------------------------------------------------------------------------------------------


@compiled
def redeliver(st: State, slot: int, entries: npt.NDArray[Any], everything: bool, before: I64) -> Flows:
    """Take back the named ``entries`` that the consumer holds, in their order, and have them replayed.

    ``everything``: the request names no entries, these are all that is pending. ``before``: room for the draining
    reference count before each entry, in the order of ``entries``; empty where nobody asks. Entries that the consumer does
    not hold are passed over. Source: Consumer.redeliverUnacknowledgedMessages.
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
    """``redeliver`` everything: all entries in [first, last) that the consumer holds. ``before``: empty."""
    messages = WIDE
    for entry in range(first, last):
        if st.holder[entry] == slot:
            messages += _take_back(st, slot, entry, before, 0)
    lower_for_redelivery(st, slot, messages, True)
    return flow_parked(st, slot, True)


@compiled
def _take_back(st: State, slot: int, entry: int, before: I64, at: int) -> int:
    """The pending ack of a requested entry goes, the entry enters the replay set; returns its unacknowledged messages."""
    released = let_go(st, slot, entry)
    if at < len(before):
        before[at] = released
    add_requested(st, entry)
    return unacked_messages(st, entry)


@compiled
def add_requested(st: State, entry: int) -> None:
    """Have a requested entry replayed: without its hash, and counted as a redelivery, if it is above mark-delete.

    Source: PersistentDispatcherMultipleConsumers.redeliverUnacknowledgedMessages.
    """
    if add_to_replay(st, entry, NO_HASH):
        st.redelivery_count[entry] += 1


@compiled
def lower_for_redelivery(st: State, slot: int, messages: int, everything: bool) -> None:
    """Lower the unacked counter for a redelivery request, and lift the consumer's block, whatever is left.

    A request for ``everything`` set the counter to 0 until #25589; since then it subtracts ``messages``, those that were
    pending, too.
    """
    if everything and st.s[REDELIVERS_IN_ONE_BATCH] == 0:
        messages = st.unacked[slot]
    add_unacked(st, slot, -messages)
    st.blocked[slot] = 0


@compiled
def flow_parked(st: State, slot: int, everything: bool) -> Flows:
    """Last part of a redelivery request: permits that were parked while the consumer was blocked count, and flow.

    Until #25589 a request with a list of entries flows only where permits were parked.
    """
    parked = st.parked_permits[slot]
    unblock(st, slot)
    if everything or parked > 0 or st.s[REDELIVERS_IN_ONE_BATCH] == 1:
        return Flows(1 + WIDE, parked)
    return Flows(WIDE, parked)


# --- reads -----------------------------------------------------------------------------------------------------------


@compiled
def trim(st: State) -> bool:
    """Until #25581 a read attempt that finds mark-delete moved drops all up to it from the replay set.

    Returns whether it did: what is still pending up to there goes too then, which the caller sees to.
    """
    mark_delete = st.s[MARK_DELETE]
    if st.s[TRIMS_TO_MARK_DELETE] == 0 or mark_delete == st.s[TRIMMED_TO]:
        return False
    st.s[TRIMMED_TO] = mark_delete
    remove_up_to(st, mark_delete)
    return True


@compiled
def issue_replay(st: State, plan: I64) -> int:
    """The replay read of a plan is issued: entries that are acknowledged already leave the replay set.

    Returns how many those are. Where they are all of them, no read is under way.
    """
    gone = 0
    for at in range(2, 2 + plan[1]):
        if st.deleted[plan[at]] == 1:
            remove_from_replay(st, plan[at])
            gone += 1
    if gone == plan[1]:
        st.s[PENDING_REPLAY] = 0
    return gone


@compiled
def read_done(st: State, is_replay: bool, last_entry: int) -> bool:
    """A read result reaches the dispatcher; ``last_entry``: its highest, -1 for an empty one.

    Returns False when it is dropped and the cursor rewound instead.
    """
    if is_replay:
        st.s[PENDING_REPLAY] = 0
    else:
        st.s[PENDING_READ] = 0
        if last_entry >= 0:
            cursor.moved_by_read(st, last_entry)
        if st.s[REWIND_DUE] == 1:
            st.s[REWIND_DUE] = 0
            cursor.rewind(st)
            return False
    st.s[SEND_IN_PROGRESS] = 1
    return True


# --- end of a round --------------------------------------------------------------------------------------------------


@compiled
def end_round(st: State, wants_look_ahead: bool, has_more: bool, sent_to: int) -> int:
    """End a round of 4.x; returns what follows it as bits: ``LOOKS_AHEAD``, ``RETRIES``.

    ``wants_look_ahead``: see ``read_loop.wants_look_ahead``. ``has_more``: the cursor has more entries. ``sent_to``: number
    of consumers with deliveries. It reads again at once when it looks ahead, or delivered nothing. #26236, #26268.
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
    """End a round of 3.x or classic; arguments and answer as for ``classic_goes_on``."""
    answer = classic_goes_on(st, owners, sent_to)
    finish_round(st, answer & LOOKS_AHEAD != 0)
    return answer


@compiled
def finish_round(st: State, looks_ahead: bool) -> None:
    """Let reads be attempted again. A round that looks ahead has the next scan of the replay set skipped once."""
    st.s[SEND_IN_PROGRESS] = 0
    if looks_ahead:
        st.s[SKIP_NEXT_REPLAY] = 1


@compiled
def classic_goes_on(st: State, owners: int, sent_to: int) -> int:
    """Say what follows a round of 3.x or classic, as bits: ``LOOKS_AHEAD``, ``RETRIES``, ``WAITS_FOR_WRITES``.

    ``owners``: consumers that own entries of the result; -1 = nothing was looked at. ``sent_to``: number of consumers with
    deliveries. It looks ahead when it was stuck. Where some owners had deliveries and others had not, it reads again at
    once only if all is written before the turn of the last consumer that gets nothing.
    """
    if owners < 0:
        return RETRIES
    answer = 0
    if is_stuck(st, owners, sent_to > 0):
        answer |= LOOKS_AHEAD
    if 0 < sent_to < owners:
        answer |= WAITS_FOR_WRITES
    if sent_to == 0 and (owners > 0 or st.s[N_RECENT] == 0):
        answer |= RETRIES
    return answer
