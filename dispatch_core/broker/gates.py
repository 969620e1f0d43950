"""Gates: the conditions that an entry must meet to be delivered to a consumer, each one a named predicate.

Theory of operation
-------------------
An entry passes a row of *gates* on its way to a consumer. A gate is *closed* while its condition is not met, and each
predicate of this module returns True for a closed gate. Three parts of the product ask the same gates:

* *dispatch* (``read_loop``, ``read_loop_classic``) decides, in the broker's order;
* *why not* (``verify.without_trace.rounds``) names the reason why dispatch would not have made a delivery;
* *why waiting* (``audit.waits.reasons``) names the reason why an entry waits.

======================  ==========================================================  =========================  ========
gate                    closed while                                                source                     asked by
======================  ==========================================================  =========================  ========
no_consumer             nobody is connected                                         any release                     W
not_connected           the consumer of the delivery has left                       any release                   N
uncovered_range         no consumer owns the hash                                   selectors (PIP-119, #11749)  D   W
other_owner             another consumer owns the hash                              selectors                     N
hash_held_back          an entry of the hash was held back in this scan or round    #23874                       D
draining_hash           the hash drains for another consumer                        PIP-379 (#23352)             D N W
recently_joined         its consumer joined after the entry could have been read    3.x, classic (#6791)         D N W
last_sent_position      the same with what had been sent                            PIP-282 (#21953)             D N W
unacked_limit_consumer  the consumer has all the unacknowledged messages it may     maxUnackedMessages-             W
                                                                                    PerConsumer
no_permits              the consumer has no permits left                            flow control                 D N W
unacked_limit_subscr…   all consumers together have all that they may; normal       maxUnackedMessages-          D   W
                        reads stop                                                  PerSubscription
look_ahead_limit        the replay set is full; normal reads stop                   #23231                       D   W
replay_order            R0: in a normal read, entries of the hash are in the        #10762                       D N
                        replay set (3.x, classic: of any hash of that consumer)
failover_delay          the new active consumer waits for the cursor to rewind      PersistentDispatcherSingle-     W
                                                                                    ActiveConsumer
======================  ==========================================================  =========================  ========

*The order* of the gates differs by use: ``DISPATCH_ORDER``, ``WHY_NOT_ORDER``, ``WHY_WAITING_ORDER``. Dispatch keeps the
broker's order: permits come before draining, so that a refusal for lack of permits is no *blocked attempt* of a draining
hash. "Why not" names a lack of permits last: an acknowledgement that the log does not show may have given some, whereas
another owner is certain. "Why waiting" goes from the entry outwards: its owner, then what holds its hash, its consumer, the
whole subscription. It asks about the first waiting entry of a hash only, so ``replay_order`` does not apply.

*Predicates change nothing*, with two exceptions in dispatch, where the broker's own question has an effect:
``draining_refuses`` counts the refusal and frees a hash that came back, and ``position_limit`` (in the ordering rules)
frees consumers that mark-delete has passed. ``drains_elsewhere`` and ``limit_now`` give the same answers without effects.

Invariants: an entry is chosen for a consumer exactly if no gate of ``DISPATCH_ORDER`` is closed for it; each ``first_gate…``
returns the first closed gate of its order.

Source: PersistentStickyKeyDispatcherMultipleConsumers(Classic), PersistentDispatcherSingleActiveConsumer.

An entry with hash 0, which drains for consumer 0 and belongs to consumer 1, who has no permits:

>>> import numpy as np
>>> from dispatch_core.broker.state import IN_ORDER, new_state
>>> st = new_state(np.zeros(1, np.int32), np.ones(1, np.int32), n_hashes=1, n_consumers=2)
>>> st.s[IN_ORDER] = st.s[TRACK_DRAINING] = st.s[N_CONSUMERS] = 1
>>> st.hash_owner[0], st.drain_owner[0], st.connected[:] = 1, 0, 1
>>> def dispatch():
...     st.s[STAMP] += 1  # a new round
...     return GATES[first_gate(st, 0, 0, False, st.s[STAMP], np.zeros(3, np.int64))]
>>> dispatch(), GATES[first_gate_for(st, False, 1, 0, False)], GATES[first_gate_for(st, False, 0, 0, False)]
('no_permits', 'draining_hash', 'other_owner')
>>> st.permits[1] = 5
>>> dispatch()
'draining_hash'
>>> st.drain_owner[0] = NOBODY
>>> dispatch()
'open'
"""

from __future__ import annotations

from typing import Final

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_with_caller
from dispatch_core.broker.ordering import last_sent_position, read_position
from dispatch_core.broker.ordering.draining_hashes import may_hold, should_block
from dispatch_core.broker.permits import (
    at_unacked_limit,
    entries_left,
    look_ahead_limit,
    room_in_messages,
    usable_permits,
)
from dispatch_core.broker.state import (
    BLOCKED_ON_UNACKED,
    I64,
    IN_ORDER,
    N_CONSUMERS,
    N_REPLAY,
    NO_REPLAY_ORDER,
    NOBODY,
    READ_POSITION,
    STAMP,
    TRACK_DRAINING,
    TRACK_LAST_SENT,
    WIDE,
    State,
)

#: Codes of the gates; OPEN = no gate is closed. Those before NOT_CONNECTED are the reasons for which an entry may wait.
(
    OPEN,
    NO_CONSUMER,
    UNCOVERED_RANGE,
    DRAINING_HASH,
    RECENTLY_JOINED,
    LAST_SENT_POSITION,
    UNACKED_LIMIT_CONSUMER,
    NO_PERMITS,
    UNACKED_LIMIT_SUBSCRIPTION,
    LOOK_AHEAD_LIMIT,
    REPLAY_ORDER,
    FAILOVER_DELAY,
    NOT_CONNECTED,
    OTHER_OWNER,
    HASH_HELD_BACK,
) = range(15)

#: Names of the codes.
GATES: Final = (
    "open",
    "no_consumer",
    "uncovered_range",
    "draining_hash",
    "recently_joined",
    "last_sent_position",
    "unacked_limit_consumer",
    "no_permits",
    "unacked_limit_subscription",
    "look_ahead_limit",
    "replay_order",
    "failover_delay",
    "not_connected",
    "other_owner",
    "hash_held_back",
)

#: ``first_gate``: dispatch of 4.x and the preview, for one entry of a read result or of the replay filter.
DISPATCH_ORDER: Final = (
    HASH_HELD_BACK,
    UNCOVERED_RANGE,
    NO_PERMITS,
    LAST_SENT_POSITION,
    REPLAY_ORDER,
    DRAINING_HASH,
)
#: ``first_gate_for``: a delivery that dispatch would not have made.
WHY_NOT_ORDER: Final = (
    NOT_CONNECTED,
    OTHER_OWNER,
    DRAINING_HASH,
    RECENTLY_JOINED,
    LAST_SENT_POSITION,
    REPLAY_ORDER,
    NO_PERMITS,
)
#: ``audit.waits.reasons.why_waiting``: an entry that nobody was sent.
WHY_WAITING_ORDER: Final = (
    NO_CONSUMER,
    UNCOVERED_RANGE,
    DRAINING_HASH,
    RECENTLY_JOINED,
    LAST_SENT_POSITION,
    UNACKED_LIMIT_CONSUMER,
    NO_PERMITS,
    UNACKED_LIMIT_SUBSCRIPTION,
    LOOK_AHEAD_LIMIT,
)
#: ``first_gate_single_active``: Failover and Exclusive, where one gate holds everything.
SINGLE_ACTIVE_ORDER: Final = (NO_CONSUMER, FAILOVER_DELAY, NO_PERMITS)


# --- the first closed gate, by use ------------------------------------------------------------------------------------


@compiled
def first_gate(st: State, hash_id: int, entry: int, is_replay: bool, stamp: int, attempts: I64) -> int:
    """Return the first closed gate on the way of an entry to the owner of its hash, in ``DISPATCH_ORDER``.

    As in the broker, a refusal by a draining hash is counted and noted in ``attempts`` (see ``should_block``), and
    consumers that mark-delete has passed are freed. ``stamp``: the current scan or round. Source: filterAndGroupEntries-
    ForDispatching and the replay filter of 4.x.
    """
    if hash_held_back(st, hash_id, stamp):
        return HASH_HELD_BACK
    if uncovered_range(st, hash_id):
        return UNCOVERED_RANGE
    slot = st.hash_owner[hash_id] + WIDE
    if no_permits_left(st, slot):
        return NO_PERMITS
    if beyond_last_sent(st, slot, entry, is_replay):
        return LAST_SENT_POSITION
    if replay_order(st, is_replay, hash_id):
        return REPLAY_ORDER
    if draining_refuses(st, slot, hash_id, attempts):
        return DRAINING_HASH
    return OPEN


@compiled
def first_gate_for(st: State, classic: bool, slot: int, entry: int, is_replay: bool) -> int:
    """Return the gate that kept an entry from the consumer in ``slot``, in ``WHY_NOT_ORDER``.

    Call it in the round in which dispatch has decided against that delivery. Where no other gate is closed the reason was
    a lack of permits, which the round has used up by now. ``classic``: the dispatcher of 3.x or the classic one of 4.x.
    """
    hash_id = st.hash_id[entry] + WIDE
    if not_connected(st, slot):
        return NOT_CONNECTED
    if other_owner(st, slot, hash_id):
        return OTHER_OWNER
    if drains_elsewhere(st, slot, hash_id):
        return DRAINING_HASH
    if joined_too_late(st, classic, slot, entry, is_replay):
        return RECENTLY_JOINED if classic else LAST_SENT_POSITION
    if classic:
        if replay_order_of_consumer(st, slot):
            return REPLAY_ORDER
    elif replay_order(st, is_replay, hash_id):
        return REPLAY_ORDER
    return NO_PERMITS


def first_gate_single_active(has_active: bool, delay_runs: bool, permits: int) -> int:
    """Return the gate that holds everything of a Failover or Exclusive subscription, in ``SINGLE_ACTIVE_ORDER``.

    >>> [GATES[first_gate_single_active(*state)] for state in [(False, True, 0), (True, True, 0), (True, False, 0)]]
    ['no_consumer', 'failover_delay', 'no_permits']
    >>> GATES[first_gate_single_active(True, False, 1)]
    'open'
    """
    if not has_active:
        return NO_CONSUMER
    if delay_runs:
        return FAILOVER_DELAY
    return NO_PERMITS if lacks_permits(permits) else OPEN


# --- the consumer of an entry -----------------------------------------------------------------------------------------


@compiled
def no_consumer(st: State) -> bool:
    """True if nobody is connected to the subscription (any release).

    >>> from dispatch_core.broker.state import example_state
    >>> no_consumer(example_state(consumers=1)), no_consumer(example_state(consumers=0))
    (False, True)
    """
    return st.s[N_CONSUMERS] == 0


@compiled
def not_connected(st: State, slot: int) -> bool:
    """True if the consumer in ``slot`` has left (any release).

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(consumers=2)
    >>> st.connected[1] = 0
    >>> not_connected(st, 0), not_connected(st, 1)
    (False, True)
    """
    return st.connected[slot] == 0


@compiled
def uncovered_range(st: State, hash_id: int) -> bool:
    """True if no consumer owns the hash: a gap between STICKY ranges, or nobody is connected.

    Source: StickyKeyConsumerSelector.select.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(hashes=2)
    >>> st.hash_owner[1] = NOBODY
    >>> uncovered_range(st, 0), uncovered_range(st, 1)
    (False, True)
    """
    return st.hash_owner[hash_id] == NOBODY


@compiled
def other_owner(st: State, slot: int, hash_id: int) -> bool:
    """True if the hash belongs to another consumer than ``slot``, or to nobody (StickyKeyConsumerSelector.select).

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(consumers=2)
    >>> other_owner(st, 0, 0), other_owner(st, 1, 0)
    (False, True)
    """
    return st.hash_owner[hash_id] != slot


# --- gates of its hash ------------------------------------------------------------------------------------------------


@compiled
def hash_held_back(st: State, hash_id: int, stamp: int) -> bool:
    """True if an earlier entry of the hash was held back in the scan or round ``stamp``: R2 by hash (#23874).

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(hashes=2)
    >>> st.hash_blocked[0] = 7
    >>> hash_held_back(st, 0, 7), hash_held_back(st, 1, 7), hash_held_back(st, 0, 8)
    (True, False, False)
    """
    return st.hash_blocked[hash_id] == stamp


@compiled
def draining_refuses(st: State, slot: int, hash_id: int, attempts: I64) -> bool:
    """True if the hash drains for another consumer (PIP-379); for dispatch and the replay filter: a refusal is counted.

    A hash that drains for ``slot`` itself is freed. Source: DrainingHashesTracker.shouldBlockStickyKeyHash.

    >>> import numpy as np
    >>> from dispatch_core.broker.state import example_state
    >>> st, attempts = example_state(consumers=2), np.zeros(3, np.int64)
    >>> st.s[TRACK_DRAINING], st.drain_owner[0] = 1, 0
    >>> draining_refuses(st, 1, 0, attempts), attempts.tolist(), int(st.drain_attempts[0])
    (True, [1, 1, 0], 1)
    >>> draining_refuses(st, 0, 0, attempts), int(st.drain_owner[0]) == NOBODY
    (False, True)
    """
    return st.s[TRACK_DRAINING] == 1 and should_block(st, slot, hash_id, attempts)


@compiled
def drains_elsewhere(st: State, slot: int, hash_id: int) -> bool:
    """True if the hash drains for another consumer (PIP-379): the answer of ``draining_refuses``, with nothing changed.

    Also the last check when an entry is sent. Source: PendingAcksMap.addPendingAckIfAllowed.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(consumers=2)
    >>> st.s[TRACK_DRAINING], st.drain_owner[0] = 1, 0
    >>> drains_elsewhere(st, 0, 0), drains_elsewhere(st, 1, 0)
    (False, True)
    """
    return st.s[TRACK_DRAINING] == 1 and not may_hold(st, slot, hash_id)


@compiled
def replay_order(st: State, is_replay: bool, hash_id: int) -> bool:
    """True if R0 holds an entry: it is of a normal read, and entries of its hash are in the replay set (in-order; #10762).

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> st.replay_count[0] = 1
    >>> replay_order(st, False, 0), replay_order(st, True, 0)
    (True, False)
    """
    if st.s[NO_REPLAY_ORDER] == 1:
        return False
    return not is_replay and st.s[IN_ORDER] == 1 and st.replay_count[hash_id] > 0


@compiled
def replay_order_of_consumer(st: State, slot: int) -> bool:
    """True if R0 of 3.x and classic holds the consumer: in this round it holds one of its hashes, and so all (#10762).

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(consumers=2)
    >>> st.s[STAMP], st.held_stamp[0] = 7, 7
    >>> replay_order_of_consumer(st, 0), replay_order_of_consumer(st, 1)
    (True, False)
    """
    return st.held_stamp[slot] == st.s[STAMP]


# --- gates of its consumer --------------------------------------------------------------------------------------------


@compiled
def joined_too_late(st: State, classic: bool, slot: int, entry: int, is_replay: bool) -> bool:
    """True if the consumer joined recently and the entry lies beyond its limit; nobody is freed by asking.

    ``classic``: the read position when it joined (3.x, classic; #6791), else the last sent position (PIP-282, #21953).

    A consumer that joined at read position 5:

    >>> from dispatch_core.broker.ordering.recently_joined import hold_back
    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(entries=9, consumers=2)
    >>> hold_back(st, 1, 5)
    >>> [joined_too_late(st, True, 1, entry, False) for entry in (4, 5)]
    [False, True]
    """
    if classic:
        return not read_position.within(entry, read_position.limit_now(st, slot, is_replay))
    if st.s[TRACK_LAST_SENT] == 0:
        return False
    return not last_sent_position.within(entry, last_sent_position.limit_now(st, slot, is_replay))


@compiled
def beyond_last_sent(st: State, slot: int, entry: int, is_replay: bool) -> bool:
    """True if the entry lies beyond the last sent position of its consumer (PIP-282, #21953); for dispatch.

    As in the broker, consumers that mark-delete has reached are freed.

    A consumer that joined when entries 0 to 4 were sent; then all of these are acknowledged:

    >>> from dispatch_core.broker.ordering.recently_joined import hold_back
    >>> from dispatch_core.broker.state import MARK_DELETE, example_state
    >>> st = example_state(entries=9, consumers=2)
    >>> st.s[TRACK_LAST_SENT] = 1
    >>> hold_back(st, 1, 4)
    >>> [beyond_last_sent(st, 1, entry, False) for entry in (4, 5)]
    [False, True]
    >>> st.s[MARK_DELETE] = 4
    >>> beyond_last_sent(st, 1, 5, False)
    False
    """
    if st.s[TRACK_LAST_SENT] == 0:
        return False
    return not last_sent_position.within(entry, last_sent_position.position_limit(st, slot, is_replay))


@compiled
def unacked_limit_consumer(st: State, slot: int) -> bool:
    """True if the consumer has reached ``maxUnackedMessagesPerConsumer``, and has not come down to half of it since.

    Dispatch has no such gate: a consumer without room has no usable permits (``no_permits``). A blocked one that has some
    room again gets entries only in reads that are issued for others (Consumer.blockedConsumerOnUnackedMsgs).

    >>> from dispatch_core.broker.state import MAX_UNACKED_CONSUMER, example_state
    >>> st = example_state()
    >>> st.s[MAX_UNACKED_CONSUMER], st.unacked[0] = 4, 3
    >>> unacked_limit_consumer(st, 0)
    False
    >>> st.blocked[0] = 1  # it was at 4 before
    >>> unacked_limit_consumer(st, 0)
    True
    """
    return st.blocked[slot] == 1 or at_unacked_limit(st, slot)


@compiled
def no_permits(st: State, classic: bool, slot: int, ahead: int) -> bool:
    """True if the consumer may take no more than the ``ahead`` entries that come before (flow control).

    Source: Consumer.messagePermits.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> st.permits[0] = 2
    >>> [no_permits(st, False, 0, ahead) for ahead in (1, 2)]
    [False, True]
    """
    room = room_in_messages(st, slot) if classic else usable_permits(st, slot)
    return room <= ahead


@compiled
def no_permits_left(st: State, slot: int) -> bool:
    """True if the consumer has no permits left in this scan or round of 4.x, less the entries chosen for it by now.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state()
    >>> st.s[STAMP], st.permits[0] = 1, 1  # the first round begins
    >>> no_permits_left(st, 0)
    False
    >>> st.left[0] -= 1  # an entry is chosen
    >>> no_permits_left(st, 0)
    True
    """
    return entries_left(st, slot) <= 0


@compiled_with_caller
def lacks_permits(permits: int) -> bool:
    """True if the active consumer of Failover or Exclusive has no permits: no read is issued (flow control).

    Source: PersistentDispatcherSingleActiveConsumer.readMoreEntries.

    >>> lacks_permits(0), lacks_permits(1)
    (True, False)
    """
    return permits <= 0


# --- gates of normal reads --------------------------------------------------------------------------------------------


@compiled
def not_read_yet(st: State, entry: int) -> bool:
    """True if the entry would come with a normal read: only then the two gates below hold it (readMoreEntries).

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(entries=3)
    >>> st.s[READ_POSITION], st.in_replay[2] = 1, 1
    >>> [not_read_yet(st, entry) for entry in range(3)]
    [False, True, False]
    """
    return st.in_replay[entry] == 0 and entry >= st.s[READ_POSITION]


@compiled
def unacked_limit_subscription(st: State) -> bool:
    """True if all consumers together have reached ``maxUnackedMessagesPerSubscription`` (blockedDispatcherOnUnackedMsgs).

    >>> from dispatch_core.broker.permits import add_unacked
    >>> from dispatch_core.broker.state import MAX_UNACKED_SUBSCRIPTION, example_state
    >>> st = example_state()
    >>> st.s[MAX_UNACKED_SUBSCRIPTION] = 2
    >>> add_unacked(st, 0, 2)
    >>> unacked_limit_subscription(st)
    True
    """
    return st.s[BLOCKED_ON_UNACKED] == 1


@compiled
def replay_set_is_full(st: State, at_least: int) -> bool:
    """True if as many entries as the look-ahead limits allow are in the replay set (#23231, isNormalReadAllowed).

    ``at_least``: entries that must be in it, where its size is known only from what was sent; else 0.

    >>> from dispatch_core.broker.state import LOOK_AHEAD_PER_CONSUMER, example_state
    >>> st = example_state(consumers=2)
    >>> st.s[LOOK_AHEAD_PER_CONSUMER], st.s[N_REPLAY] = 10, 19  # 10 for each of two consumers
    >>> replay_set_is_full(st, 0), replay_set_is_full(st, 20)
    (False, True)
    """
    return max(st.s[N_REPLAY], at_least) >= look_ahead_limit(st)
