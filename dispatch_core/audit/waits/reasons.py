"""Find why an entry waits now: one rule after the other, tested on a dispatcher's state.

An entry *waits* while it is stored, not acknowledged and nobody's. Why it does is a function of the state alone, and the
same for every fold that has one: ``verify`` knows what was read, a fold of a user-level log infers it (``inferred``).

Where several rules hold one entry the first in the order of ``REASONS`` is named: who the entry is for, then what keeps
its hash, then what keeps its consumer, then what keeps the whole subscription from reading on. Freed of it, an entry may
wait for the next.

=======================  =====================================================================  ======================
reason                   holds an entry while                                                   rule of
=======================  =====================================================================  ======================
no_consumer              nobody is connected                                                    any release
uncovered_range          no consumer owns its hash                                              STICKY ranges
draining_hash            its hash drains for another consumer                                   PIP-379
recently_joined          its consumer joined before all that had been read was acknowledged,    3.x, classic
                         and the entry had not been read by then
last_sent_position       the same with what had been sent                                       PIP-282
unacked_limit_consumer   its consumer holds as many unacknowledged messages as it may           maxUnackedMessages-
                                                                                                PerConsumer
no_permits               its consumer has no permits, or no more than for what waits before it  flow control
unacked_limit_…          all consumers together hold as many as they may, and it is not read    maxUnackedMessages-
subscription                                                                                    PerSubscription
look_ahead_limit         the replay set is full, and it is not read                             #23231, 4.x
replay_order             an earlier entry of its hash waits                                     R0, in-order dispatch
failover_delay           the new active consumer must wait for the hand-over                    Failover
=======================  =====================================================================  ======================

Nothing here changes a state: whoever asks may do so at any time. Source: the classes that the rules' own modules name.

Two entries of one hash wait under draining hashes; first nobody is there to get them, at last nothing holds the first:

>>> import numpy as np
>>> from dispatch_core.broker import state
>>> st = state.new_state(np.zeros(2, np.int32), np.ones(2, np.int32), 1, 2)
>>> def why(entry=0):
...     return REASONS[why_waiting(st, False, entry, entry, 0, entry > 0, False)]
>>> st.s[IN_ORDER] = st.s[TRACK_DRAINING] = 1
>>> st.s[state.LOOK_AHEAD_PER_CONSUMER], st.s[MAX_UNACKED_CONSUMER] = 1, 5
>>> why()
'no_consumer'
>>> st.s[N_CONSUMERS] = 1
>>> why()
'uncovered_range'
>>> st.hash_owner[0], st.drain_owner[0] = 0, 1
>>> why()
'draining_hash'
>>> st.drain_owner[0], st.unacked[0] = NOBODY, 5
>>> why()
'unacked_limit_consumer'
>>> st.unacked[0] = 0
>>> why()
'no_permits'
>>> st.permits[0] = 5
>>> st.s[BLOCKED_ON_UNACKED] = 1
>>> why()
'unacked_limit_subscription'
>>> st.s[BLOCKED_ON_UNACKED], st.s[N_REPLAY] = 0, 1
>>> why()
'look_ahead_limit'
>>> st.s[READ_POSITION], st.replay_count[0] = 2, 2
>>> why(0) is None, why(1)
(True, 'replay_order')
>>> st.joined_at[0], st.recent[0], st.s[N_RECENT], st.s[READ_POSITION] = 1, 0, 1, 1
>>> [REASONS[why_waiting(st, True, entry, entry, 0, False, False)] for entry in (0, 1)]
[None, 'recently_joined']
"""

from __future__ import annotations

from typing import Final

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.audit.catalogue import STALL_REASONS
from dispatch_core.broker.ordering import last_sent_position, read_position
from dispatch_core.broker.ordering.draining_hashes import may_hold
from dispatch_core.broker.permits import look_ahead_limit, room_in_messages, usable_permits
from dispatch_core.broker.state import (
    BLOCKED_ON_UNACKED,
    IN_ORDER,
    MAX_UNACKED_CONSUMER,
    N_CONSUMERS,
    N_RECENT,
    N_REPLAY,
    NOBODY,
    NOT_TRACKED,
    READ_POSITION,
    TRACK_DRAINING,
    TRACK_LAST_SENT,
    WIDE,
    State,
)

(
    NOT_HELD,
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
) = range(12)

#: The names of the codes; what no rule holds has none.
REASONS: Final[tuple[str | None, ...]] = (
    None,
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
)
assert set(REASONS[1:]) == set(STALL_REASONS), "every reason of the catalogue has its rule"

_last_sent_passed = last_sent_position.is_passed
_last_sent_within = last_sent_position.within
_read_passed = read_position.is_passed
_read_within = read_position.within


@compiled
def why_waiting(
    st: State, classic: bool, entry: int, rank: int, ahead: int, earlier_of_hash: bool, inferred: bool
) -> int:
    """The code of the first rule that holds a waiting entry; ``NOT_HELD`` for none.

    ``classic``: the dispatcher of 3.x or the classic one of 4.x. ``rank``: how many waiting entries stand before it;
    ``ahead``: how many of these no rule keeps from its consumer; ``earlier_of_hash``: one is of its hash. ``inferred``:
    what was read is known only as far as it was sent.
    """
    if st.s[N_CONSUMERS] == 0:
        return NO_CONSUMER
    hash_id = st.hash_id[entry] + WIDE
    slot = st.hash_owner[hash_id] + WIDE
    if slot == NOBODY:
        return UNCOVERED_RANGE
    if drains_for_another(st, slot, hash_id):
        return DRAINING_HASH
    if came_too_late(st, classic, slot, entry):
        return RECENTLY_JOINED if classic else LAST_SENT_POSITION
    if holds_too_much(st, slot):
        return UNACKED_LIMIT_CONSUMER
    if lacks_permits(st, classic, slot, ahead):
        return NO_PERMITS
    if not_read_yet(st, entry):
        if st.s[BLOCKED_ON_UNACKED] == 1:
            return UNACKED_LIMIT_SUBSCRIPTION
        if not classic and replay_set_is_full(st, rank, inferred):
            return LOOK_AHEAD_LIMIT
    if earlier_of_hash and keeps_its_order(st, hash_id, inferred):
        return REPLAY_ORDER
    return NOT_HELD


@compiled
def drains_for_another(st: State, slot: int, hash_id: int) -> bool:
    """Draining hashes (PIP-379): entries of a hash go to nobody but the consumer for whom it drains, if it does."""
    return st.s[TRACK_DRAINING] == 1 and not may_hold(st, slot, hash_id)


@compiled
def came_too_late(st: State, classic: bool, slot: int, entry: int) -> bool:
    """Read position (3.x, classic) and last sent position (PIP-282): a newcomer gets nothing that lies behind its limit.

    The limit is the position when it joined. In a replay read it is the oldest newcomer's: what comes back may have been
    anybody's. Newcomers whose position mark-delete has reached are free, the oldest first, as ``prune`` frees them; that
    is only looked up here, not done.
    """
    if st.joined_at[slot] == NOT_TRACKED:
        return False
    first = 0
    while first < st.s[N_RECENT] and _is_free(st, classic, st.joined_at[st.recent[first]]):
        if st.recent[first] == slot:
            return False
        first += 1
    limit = st.joined_at[slot]
    if not not_read_yet(st, entry):
        limit = min(limit, st.joined_at[st.recent[first]])
    if classic:
        return not _read_within(entry, limit)
    return st.s[TRACK_LAST_SENT] == 1 and not _last_sent_within(entry, limit)


@compiled
def _is_free(st: State, classic: bool, joined_at: int) -> bool:
    return _read_passed(st, joined_at) if classic else _last_sent_passed(st, joined_at)


@compiled
def holds_too_much(st: State, slot: int) -> bool:
    """``maxUnackedMessagesPerConsumer``: a consumer that reached it gets nothing until it holds half as many or less."""
    limit = st.s[MAX_UNACKED_CONSUMER]
    return st.blocked[slot] == 1 or (limit > 0 and st.unacked[slot] >= limit)


@compiled
def lacks_permits(st: State, classic: bool, slot: int, ahead: int) -> bool:
    """Flow control: a consumer is sent no more entries than it gave permits for; those ``ahead`` take theirs first."""
    room = room_in_messages(st, slot) if classic else usable_permits(st, slot)
    return room <= ahead


@compiled
def not_read_yet(st: State, entry: int) -> bool:
    """The entry would come with a normal read, which the limits of the subscription can stop; replay reads go on."""
    return st.in_replay[entry] == 0 and entry >= st.s[READ_POSITION]


@compiled
def replay_set_is_full(st: State, rank: int, inferred: bool) -> bool:
    """Look-ahead limits (#23231): no normal read while as many entries wait in the replay set as the limits allow.

    Where reads are inferred, what waits before an entry may have been read and be in the replay set: then ``rank`` counts.
    """
    count = st.s[N_REPLAY]
    if inferred:
        count = max(count, rank)
    return count >= look_ahead_limit(st)


@compiled
def keeps_its_order(st: State, hash_id: int, inferred: bool) -> bool:
    """R0: in-order dispatch sends no entry before an earlier one of its hash that waits in the replay set."""
    return st.s[IN_ORDER] == 1 and (inferred or st.replay_count[hash_id] > 0)
