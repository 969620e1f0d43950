"""Find why an entry waits now: the first gate that is closed for it, in a dispatcher's state.

An entry *waits* while it is stored, not acknowledged and pending on nobody. Why it does is a function of the state alone,
and the same for every replay that has one: with a trace it is known what was read, without one that is inferred
(``inferred``). The gates, with their sources, are in ``broker.gates``.

Where several gates are closed the first of ``WHY_WAITING_ORDER`` is named: who the entry is for, then what keeps its hash,
then what keeps its consumer, then what keeps the whole subscription from reading on. Once that one opens, the entry may wait
for the next. ``failover_delay`` comes from ``first_gate_single_active`` only.

Nothing here changes a state: it may be called at any time.

Only the first waiting entry of a hash is looked at, so R0 (``replay_order``) is no gate here. The audit names it for a key
whose first entry no gate holds while others wait behind it (``waits.findings``).

Two entries of one hash wait under draining hashes; first nobody is connected, at last no gate is closed for the first:

>>> import numpy as np
>>> from dispatch_core.broker import state
>>> st = state.new_state(np.zeros(2, np.int32), np.ones(2, np.int32), 1, 2)
>>> def why():
...     return REASONS[why_waiting(st, False, 0, 0, 0, False)]
>>> st.s[state.TRACK_DRAINING] = 1
>>> st.s[state.LOOK_AHEAD_PER_CONSUMER], st.s[state.MAX_UNACKED_CONSUMER] = 1, 5
>>> why()
'no_consumer'
>>> st.s[state.N_CONSUMERS] = 1
>>> why()
'uncovered_range'
>>> st.hash_owner[0], st.drain_owner[0] = 0, 1
>>> why()
'draining_hash'
>>> st.drain_owner[0], st.unacked[0] = state.NOBODY, 5
>>> why()
'unacked_limit_consumer'
>>> st.unacked[0] = 0
>>> why()
'no_permits'
>>> st.permits[0] = 5
>>> st.s[state.BLOCKED_ON_UNACKED] = 1
>>> why()
'unacked_limit_subscription'
>>> st.s[state.BLOCKED_ON_UNACKED], st.s[state.N_REPLAY] = 0, 1
>>> why()
'look_ahead_limit'
>>> st.s[state.READ_POSITION] = 2
>>> why() is None
True
>>> st.joined_at[0], st.recent[0], st.s[state.N_RECENT], st.s[state.READ_POSITION] = 1, 0, 1, 1
>>> [REASONS[why_waiting(st, True, entry, entry, 0, False)] for entry in (0, 1)]
[None, 'recently_joined']
"""

from __future__ import annotations

from typing import Final

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.audit.catalogue import LIMIT_REASONS, NO_READ, STALL_REASONS
from dispatch_core.broker.gates import (
    DRAINING_HASH,
    FAILOVER_DELAY,
    GATES,
    LAST_SENT_POSITION,
    LOOK_AHEAD_LIMIT,
    NO_CONSUMER,
    NO_PERMITS,
    OPEN,
    RECENTLY_JOINED,
    UNACKED_LIMIT_CONSUMER,
    UNACKED_LIMIT_SUBSCRIPTION,
    UNCOVERED_RANGE,
    drains_elsewhere,
    joined_too_late,
    no_consumer,
    no_permits,
    not_read_yet,
    replay_set_is_full,
    unacked_limit_consumer,
    unacked_limit_subscription,
    uncovered_range,
)
from dispatch_core.broker.permits import is_available
from dispatch_core.broker.state import N_CONSUMERS, WIDE, State

#: The names of the gates' codes that are reasons; where none is closed there is none. Behind them the limits that a log
#: shows in force (``held_by_limits``).
#: ``no_read`` is no gate: it is named afterwards, for time in which no gate was closed and nothing was sent (``no_read``).
REASONS: Final[tuple[str | None, ...]] = (
    None,
    *GATES[NO_CONSUMER : FAILOVER_DELAY + 1],
    NO_READ,
    *LIMIT_REASONS,
)
assert set(REASONS[1:]) == {*STALL_REASONS, *LIMIT_REASONS}, "every reason of the catalogue has its rule"


@compiled
def why_waiting(st: State, classic: bool, entry: int, rank: int, ahead: int, inferred: bool) -> int:
    """Return the first closed gate of a waiting entry in ``WHY_WAITING_ORDER``; ``OPEN`` for none.

    ``entry``: the first waiting entry of its hash. ``classic``: the dispatcher of 3.x or the classic one of 4.x. ``rank``:
    the number of waiting entries before it; ``ahead``: of these, those that its consumer takes first and for which no gate
    is closed. ``inferred``: what was read is known only as far as it was sent.
    """
    if no_consumer(st):
        return NO_CONSUMER
    hash_id = st.hash_id[entry] + WIDE
    if uncovered_range(st, hash_id):
        return UNCOVERED_RANGE
    slot = st.hash_owner[hash_id] + WIDE
    if drains_elsewhere(st, slot, hash_id):
        return DRAINING_HASH
    unread = not_read_yet(st, entry)
    if joined_too_late(st, classic, slot, entry, not unread):
        return RECENTLY_JOINED if classic else LAST_SENT_POSITION
    if unacked_limit_consumer(st, slot):
        return UNACKED_LIMIT_CONSUMER
    if no_permits(st, classic, slot, ahead):
        return NO_PERMITS
    if unread:
        if unacked_limit_subscription(st):
            return UNACKED_LIMIT_SUBSCRIPTION
        if not classic and replay_set_is_full(st, rank if inferred else 0):
            return LOOK_AHEAD_LIMIT
    return OPEN


@compiled
def why_waiting_shared(st: State, entry: int) -> int:
    """Return the first closed gate of a waiting entry of a Shared subscription, where any available consumer will do.

    Nobody owns the entry. Where no consumer is available, the limit of unacknowledged messages is named if one of them
    waits for that, else the lack of permits. Source: PersistentDispatcherMultipleConsumers(Classic).readMoreEntries.

    Two consumers, of which one has reached its limit of unacknowledged messages; then the other one gets a permit:

    >>> from dispatch_core.broker.state import MAX_UNACKED_CONSUMER, example_state
    >>> st = example_state(consumers=2)
    >>> REASONS[why_waiting_shared(st, 0)]
    'no_permits'
    >>> st.s[MAX_UNACKED_CONSUMER], st.unacked[0], st.blocked[0], st.permits[0] = 4, 4, 1, 9
    >>> REASONS[why_waiting_shared(st, 0)]
    'unacked_limit_consumer'
    >>> st.permits[1] = 1
    >>> why_waiting_shared(st, 0) == OPEN
    True
    """
    if no_consumer(st):
        return NO_CONSUMER
    reason = NO_PERMITS
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at] + WIDE
        if is_available(st, slot):
            if not_read_yet(st, entry) and unacked_limit_subscription(st):
                return UNACKED_LIMIT_SUBSCRIPTION
            return OPEN
        if unacked_limit_consumer(st, slot):
            reason = UNACKED_LIMIT_CONSUMER
    return reason
