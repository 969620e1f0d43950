"""Permits and unacked counters of consumers (Consumer, PersistentDispatcherMultipleConsumers).

Permits and unacked counters count *messages*. The room of a consumer in a scan or a round counts *entries*.

Source: flowPermits, sendMessages and addAndGetUnAckedMsgs of Consumer; readMoreEntries, addUnAckedMessages,
getAvailablePermits and isNormalReadAllowed of the dispatchers.

A consumer may have 4 unacknowledged messages. It is sent 4, so that it is blocked and its next permits are parked. It is
unblocked when half of its limit, 2, is left:

>>> import numpy as np
>>> from dispatch_core.broker.state import new_state
>>> st = new_state(np.zeros(1, np.int32), np.ones(1, np.int32), n_hashes=1, n_consumers=1)
>>> st.s[MAX_UNACKED_CONSUMER] = 4
>>> count_flow(st, 0, 10)
True
>>> charge_send(st, 0, messages=4, acked=0, entries=4)
>>> int(st.permits[0]), int(st.blocked[0]), int(usable_permits(st, 0)), count_flow(st, 0, 5)
(6, 1, 0, False)
>>> [int(lower_unacked(st, 0, 1)) for _ in range(2)], int(st.permits[0]), int(usable_permits(st, 0))
([0, 1], 11, 2)
"""

from __future__ import annotations

from math import ceil, floor

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_with_caller
from dispatch_core.broker.state import (
    BLOCKED_ON_UNACKED,
    CLOSED,
    I64,
    LOOK_AHEAD_PER_CONSUMER,
    LOOK_AHEAD_PER_SUBSCRIPTION,
    MAX_UNACKED_CONSUMER,
    MAX_UNACKED_SUBSCRIPTION,
    N_CONSUMERS,
    STAMP,
    TOTAL_PERMITS,
    TOTAL_UNACKED,
    UNBLOCK_AFTER,
    UNBLOCK_BEFORE,
    UNBLOCK_TEST,
    WIDE,
    State,
)

UNLIMITED = 1 << 62


@compiled
def count_flow(st: State, slot: int, permits: int) -> bool:
    """Count a client's flow command: add its permits, or park them while the consumer is blocked.

    Returns whether the dispatcher is notified (``consumerFlow``). Source: Consumer.flowPermits.
    """
    if at_unacked_limit(st, slot):
        st.blocked[slot] = 1
    if st.blocked[slot] == 1:
        st.parked_permits[slot] += permits
        return False
    st.permits[slot] += permits
    return True


@compiled
def add_unacked(st: State, slot: int, messages: int) -> None:
    """Raise or lower a consumer's unacked counter, and set or clear the block of the subscription.

    The block is set at ``maxUnackedMessagesPerSubscription``, and cleared below half of it (addUnAckedMessages).
    """
    st.unacked[slot] += messages
    st.s[TOTAL_UNACKED] += messages
    limit = st.s[MAX_UNACKED_SUBSCRIPTION]
    if limit <= 0:
        return
    if st.s[BLOCKED_ON_UNACKED] == 0 and st.s[TOTAL_UNACKED] >= limit:
        st.s[BLOCKED_ON_UNACKED] = 1
    elif st.s[BLOCKED_ON_UNACKED] == 1 and st.s[TOTAL_UNACKED] < limit // 2:
        st.s[BLOCKED_ON_UNACKED] = 0


@compiled
def count_parked(st: State, slot: int) -> int:
    """Count the permits that were parked while the consumer was blocked; returns how many (flowConsumerBlockedPermits)."""
    parked = st.parked_permits[slot]
    st.permits[slot] += parked
    st.parked_permits[slot] = 0
    return parked


@compiled
def unblock(st: State, slot: int) -> None:
    """Clear the consumer's block and count the permits that were parked meanwhile."""
    st.blocked[slot] = 0
    count_parked(st, slot)


@compiled
def unblock_if_due(st: State, slot: int) -> int:
    """Apply the unblock rule of an individual ack: unblock at half of the limit or less, or without a limit.

    Returns how often the dispatcher is notified of permits: 0 or 1. Source:
    Consumer.updateBlockedConsumerOnUnackedMsgs.
    """
    limit = st.s[MAX_UNACKED_CONSUMER]
    if limit <= 0 or (st.blocked[slot] == 1 and st.unacked[slot] <= limit // 2):
        unblock(st, slot)
        return 1
    return 0


@compiled
def unblock_before_lowering(st: State, slot: int) -> int:
    """Apply the unblock rule before an ack lowers the counter, in releases that do so (#21126, #23796).

    ``UNBLOCK_TEST`` says when the rule is applied: before, before and after, or after (3.0.0 and again since #25592).
    Returns how often the dispatcher is notified (``consumerFlow``), also where no permits were parked.
    """
    if st.s[UNBLOCK_TEST] == UNBLOCK_AFTER:
        return 0
    return unblock_if_due(st, slot)


@compiled
def lower_unacked(st: State, slot: int, messages: int) -> int:
    """Lower the counters for an ack, then apply the unblock rule where that comes after; returns as the one before."""
    add_unacked(st, slot, -messages)
    if st.s[UNBLOCK_TEST] == UNBLOCK_BEFORE:
        return 0
    return unblock_if_due(st, slot)


@compiled_with_caller
def average_after(average: float, messages: int, entries: int) -> float:
    """Return ``avgMessagesPerEntry`` after a delivery, unrounded (Consumer.sendMessages); IEEE doubles in its order.

    >>> average_after(0.0, 30, 10), average_after(3.0, 10, 10)
    (3.0, 2.8000000000000003)
    """
    if average < 1:
        return 1.0 * messages / entries
    return average * 0.9 + (1 - 0.9) * messages / entries


@compiled_with_caller
def messages_per_entry(average: float) -> int:
    """Return ``avgMessagesPerEntry`` as the broker uses and shows it: rounded half up, 0 before the first delivery.

    >>> messages_per_entry(0.0), messages_per_entry(2.5)
    (0, 3)
    """
    return floor(average + 0.5)


@compiled
def charge_send(st: State, slot: int, messages: int, acked: int, entries: int) -> None:
    """Charge the consumer for ``entries`` entries with ``messages`` messages, ``acked`` of them acknowledged already.

    Source: Consumer.sendMessages.
    """
    st.average[slot] = average_after(st.average[slot], messages, entries)
    st.permits[slot] -= messages - acked
    add_unacked(st, slot, messages - acked)
    if at_unacked_limit(st, slot):
        st.blocked[slot] = 1


@compiled
def lower_total(st: State, messages: int, acked: int) -> None:
    """Lower the dispatcher's total for a send of ``messages`` messages, of which ``acked`` count as acknowledged already.

    The dispatcher counts ``acked`` after the send has returned. The connection's thread forgets which indexes are
    acknowledged as soon as it has written the entries. If that comes first, the count is 0, and the total falls by the
    whole batch although the consumer's permits fell by less: the two part for good. Source: trySendMessagesToConsumers
    of all dispatchers with several consumers (3.0.0 to 5.0.x), EntryBatchIndexesAcks.recycle,
    PulsarCommandSenderImpl.sendMessagesToConsumer.

    A batch of three messages, two of them acknowledged; the consumer is charged one permit in either case:

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> for acked in (2, 0):  # before and after the entries were written
    ...     st.s[TOTAL_PERMITS] = 10
    ...     lower_total(st, 3, acked)
    ...     print(int(st.s[TOTAL_PERMITS]))
    9
    7
    """
    st.s[TOTAL_PERMITS] -= messages - acked


@compiled
def unacked_room(st: State, slot: int) -> int:
    """Count the messages that the consumer may be sent before it reaches its unacked limit; UNLIMITED without a limit."""
    limit = st.s[MAX_UNACKED_CONSUMER]
    if limit <= 0:
        return UNLIMITED
    return max(limit - st.unacked[slot], 0)


@compiled
def at_unacked_limit(st: State, slot: int) -> bool:
    """True if the consumer has as many unacknowledged messages as it may (``maxUnackedMessagesPerConsumer``)."""
    return unacked_room(st, slot) == 0


@compiled
def room_in_messages(st: State, slot: int) -> int:
    """Count the entries a classic dispatcher lets the consumer take now: as if every entry had one message."""
    return min(max(st.permits[slot], 0), unacked_room(st, slot))


@compiled
def usable_permits(st: State, slot: int) -> int:
    """Count the entries the consumer may take now: its permits, capped by its room below the unacked limit.

    The permits are not divided by the average batch size, the room is (getAvailablePermits, 4.x).
    """
    permits = max(st.permits[slot], 0)
    room = unacked_room(st, slot)
    if permits == 0 or room == UNLIMITED:
        return permits
    if room == 0:
        return 0
    average = max(messages_per_entry(st.average[slot]), 1)
    return min(permits, ceil(room / average))


@compiled
def usable_now(st: State, counts_entries: bool, slot: int) -> int:
    """Return the usable permits of a consumer as its dispatcher asks for them (getAvailablePermits).

    ``counts_entries``: the room below the unacked limit is divided by the average batch size (4.x).
    """
    return usable_permits(st, slot) if counts_entries else room_in_messages(st, slot)


@compiled
def consumers_now(st: State, counts_entries: bool, out: I64) -> None:
    """Write slot, usable permits, permits and unacked messages of each connected consumer to ``out``, in list order.

    >>> import numpy as np
    >>> from dispatch_core.broker.state import example_state
    >>> st, out = example_state(consumers=2), np.zeros(8, np.int64)
    >>> st.permits[1], st.unacked[1] = 5, 3
    >>> consumers_now(st, True, out)
    >>> out.tolist()
    [0, 0, 0, 0, 1, 5, 5, 3]
    """
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at] + WIDE
        out[4 * at] = slot
        out[4 * at + 1] = usable_now(st, counts_entries, slot)
        out[4 * at + 2] = st.permits[slot]
        out[4 * at + 3] = st.unacked[slot]


@compiled
def entries_left(st: State, slot: int) -> int:
    """Return ``usable_permits`` as of the first look of this scan or round, less the entries it has chosen since."""
    if st.left_stamp[slot] != st.s[STAMP]:
        st.left_stamp[slot] = st.s[STAMP]
        st.left[slot] = usable_permits(st, slot)
    return st.left[slot]


@compiled
def entries_left_classic(st: State, slot: int) -> int:
    """Return the same for ``room_in_messages``, in a scan of the replay set (3.x, classic)."""
    if st.left_stamp[slot] != st.s[STAMP]:
        st.left_stamp[slot] = st.s[STAMP]
        st.left[slot] = room_in_messages(st, slot)
    return st.left[slot]


@compiled
def is_available(st: State, slot: int) -> bool:
    """True if a read may be issued for the consumer: it has permits, its connection is active, and it is not blocked."""
    return st.blocked[slot] == 0 and st.permits[slot] > 0 and st.inactive[slot] == 0


@compiled
def first_available_permits(st: State) -> int:
    """Return the permits of the first consumer in list order that is available; 0 for none, and of a closed dispatcher.

    So a dispatcher that is closed reads nothing any more, while its consumers are disconnected one after the other. Source:
    getFirstAvailableConsumerPermits.

    >>> from dispatch_core.broker.state import CLOSED, example_state
    >>> st = example_state(consumers=2)
    >>> st.permits[1] = 7
    >>> first_available_permits(st)
    7
    >>> st.s[CLOSED] = 1
    >>> first_available_permits(st)
    0
    """
    if st.s[CLOSED] == 1:
        return 0
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at] + WIDE
        if is_available(st, slot):
            return st.permits[slot]
    return 0


@compiled
def look_ahead_limit(st: State) -> int:
    """Return the size of the replay set at which normal reads stop (#23231); settings <= 0 mean no limit of that kind.

    With 1,000 per consumer, 5,000 per subscription and 3 consumers it is 3,000; with 8 consumers it is 5,000. Without
    either the unacked limits stand in.
    """
    consumers = st.s[N_CONSUMERS]
    per_consumer = st.s[LOOK_AHEAD_PER_CONSUMER]
    per_subscription = st.s[LOOK_AHEAD_PER_SUBSCRIPTION]
    limit = per_subscription
    if per_consumer > 0:
        limit = per_consumer * consumers
        if per_subscription > 0:
            limit = min(limit, per_subscription)
    if limit <= 0:
        limit = UNLIMITED
        if st.s[MAX_UNACKED_SUBSCRIPTION] > 0:
            limit = min(limit, st.s[MAX_UNACKED_SUBSCRIPTION])
        if st.s[MAX_UNACKED_CONSUMER] > 0:
            limit = min(limit, consumers * st.s[MAX_UNACKED_CONSUMER])
    return limit
