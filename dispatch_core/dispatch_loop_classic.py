"""The dispatch loop of Key_Shared in 3.x and in the classic dispatcher of 4.x, per entry.

Data plane, as ``dispatch_loop`` is for 4.x. What differs: a read result is cut *per consumer*, from the first entry that
cannot be sent on; the replay set is read from its smallest positions; there is no look-ahead limit. Instead, when nothing
at all could be sent and nobody joined recently, the next look at the replay set finds nothing once (the *stuck* flag), so
that the cursor moves on.

Source: PersistentStickyKeyDispatcherMultipleConsumers.trySendMessagesToConsumers, .getRestrictedMaxEntriesForConsumer and
.filterOutEntriesWillBeDiscarded (3.x; …Classic in 4.x); #10762, #12890, #20335, #22245.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.dispatch_loop import (
    NO_READ,
    NORMAL_READ,
    NOT_TOUCHED,
    REPLAY_READ,
    TO_REPLAY,
    UNDECIDED,
    requeue,
)
from dispatch_core.jit import compiled
from dispatch_core.ordering.read_position import position_limit, prune, within
from dispatch_core.permits import room_in_messages
from dispatch_core.replay_set import first_in_replay
from dispatch_core.state import (
    BLOCKED_ON_UNACKED,
    I64,
    IN_ORDER,
    MIN_REPLAYED,
    N_CONSUMERS,
    N_RECENT,
    NO_HASH,
    NOBODY,
    NOT_TRACKED,
    PENDING_READ,
    PENDING_REPLAY,
    PRE_FILTERS_REPLAY,
    REPLAY_HIGH,
    SKIP_NEXT_REPLAY,
    STAMP,
    STUCK_MEMORY,
    State,
)

#: What ``group`` returns for a result that R1 dropped.
DROPPED: Final = -1


@compiled
def plan_replay(st: State, plan: I64) -> None:
    """Second step of a read attempt: the smallest replay positions, as far as they could be sent (#22245).

    Without the filter (until 3.0.4, 3.2.2) all of them are read, and rejected at dispatch.
    """
    if plan[0] != UNDECIDED:
        return
    found = smallest_in_replay(st, plan[1], plan)
    first = plan[2]
    if st.s[PRE_FILTERS_REPLAY] == 1 and st.s[IN_ORDER] == 1:
        found = keep_sendable(st, found, plan)
    if found > 0:
        plan[0] = REPLAY_READ
        plan[1] = found
        st.s[PENDING_REPLAY] = 1
        st.s[MIN_REPLAYED] = first


@compiled
def smallest_in_replay(st: State, size: int, plan: I64) -> int:
    """Write the smallest ``size`` replay positions from ``plan[2]``; returns how many. The stuck flag hides them once."""
    if st.s[SKIP_NEXT_REPLAY] == 1:
        st.s[SKIP_NEXT_REPLAY] = 0
        return 0
    entry = first_in_replay(st)
    if entry < 0:
        return 0
    found = 0
    while entry < st.s[REPLAY_HIGH] and found < size:
        if st.in_replay[entry] == 1:
            plan[2 + found] = entry
            found += 1
        entry += 1
    return found


@compiled
def keep_sendable(st: State, count: int, plan: I64) -> int:
    """The replay filter: of positions with a known hash, per owner the first few that its permits and limit allow.

    ``plan[2:2 + count]`` ascending, and so is what is kept; returns how many.
    """
    st.s[STAMP] += 1
    stamp = st.s[STAMP]
    kept = 0
    for i in range(count):
        entry = plan[2 + i]
        hash_id = st.replay_hash[entry]
        if hash_id != NO_HASH:
            slot = st.hash_owner[hash_id]
            if slot == NOBODY:
                continue
            if st.left_stamp[slot] != stamp:
                st.left_stamp[slot] = stamp
                st.left[slot] = room_in_messages(st, slot)
                if st.left[slot] > 0:
                    refresh_limits(st)
                    st.left[slot] = 0 if refused_as_stuck(st, slot) else st.left[slot]
            # the first entry beyond the limit ends the consumer's part
            if st.left[slot] <= 0 or not within(entry, position_limit(st, slot, True)):
                st.left[slot] = 0
                continue
            st.left[slot] -= 1
        plan[2 + kept] = entry
        kept += 1
    return kept


@compiled
def plan_normal(st: State, plan: I64) -> None:
    """Third step: a normal read, if none is pending and somebody could take its entries."""
    if plan[0] != UNDECIDED:
        return
    size = plan[1]
    plan[0] = NO_READ
    if st.s[BLOCKED_ON_UNACKED] == 1 or st.s[PENDING_READ] == 1:
        return
    if st.s[PRE_FILTERS_REPLAY] == 1 and not normal_read_needed(st):
        return
    plan[0] = NORMAL_READ
    plan[1] = size
    st.s[PENDING_READ] = 1
    st.s[MIN_REPLAYED] = first_once(st)


@compiled
def normal_read_needed(st: State) -> bool:
    """In order: somebody is not blocked, did not join recently and has permits. Who joined recently lives on replays."""
    if st.s[IN_ORDER] == 0:
        return True
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at]
        if st.blocked[slot] == 0 and st.joined_at[slot] == NOT_TRACKED and st.permits[slot] > 0:
            return True
    return False


@compiled
def first_once(st: State) -> int:
    """The smallest replay position, or -1; the stuck flag hides it once."""
    if st.s[SKIP_NEXT_REPLAY] == 1:
        st.s[SKIP_NEXT_REPLAY] = 0
        return -1
    return first_in_replay(st)


@compiled
def refresh_limits(st: State) -> None:
    """Every decision about a consumer prunes the recently joined first."""
    if st.s[IN_ORDER] == 1:
        prune(st)


@compiled
def dropped_by_min_replay(st: State) -> bool:
    """R1: a replay position smaller than all that were known when the read was issued has appeared."""
    if st.s[IN_ORDER] == 0:
        return False
    now = first_once(st)
    return st.s[MIN_REPLAYED] >= 0 and 0 <= now < st.s[MIN_REPLAYED]


@compiled
def group(st: State, is_replay: bool, entries: I64, outcome: I64) -> int:
    """First step of a round: how much of its part of the result each consumer gets; the rest joins the replay set.

    Returns how many consumers own entries of the result, or DROPPED (R1).
    """
    st.s[STAMP] += 1
    if dropped_by_min_replay(st):
        for i in range(len(entries)):
            outcome[i] = NOT_TOUCHED
            if not is_replay:
                outcome[i] = TO_REPLAY
                requeue(st, entries[i], st.hash_id[entries[i]])
        return DROPPED
    owners = 0
    for i in range(len(entries)):
        outcome[i] = TO_REPLAY
        if st.hash_owner[st.hash_id[entries[i]]] == NOBODY:
            requeue(st, entries[i], st.hash_id[entries[i]])
    for at in range(st.s[N_CONSUMERS]):
        owners += choose_for(st, st.order[at], is_replay, entries, outcome)
    return owners


@compiled
def choose_for(st: State, slot: int, is_replay: bool, entries: I64, outcome: I64) -> int:
    """One consumer's part of a result: the first entries it may be sent; the cut is final for all that follow.

    Returns 1 if the consumer owns entries of the result, else 0.
    """
    first = -1
    waits = False  # R0: the replay set has a hash of this part
    for i in range(len(entries)):
        hash_id = st.hash_id[entries[i]]
        if st.hash_owner[hash_id] == slot:
            if first < 0:
                first = i
            waits = waits or (not is_replay and held_by_replay_hash(st, hash_id))
    if first < 0:
        return 0
    left = room_in_messages(st, slot)
    if left == 0:
        st.seen_stamp[slot] = st.s[STAMP]  # without permits in this round
    elif waits:
        left = 0
    else:
        refresh_limits(st)
        if refused_as_stuck(st, slot):
            left = 0
    limit = position_limit(st, slot, is_replay)
    for i in range(first, len(entries)):
        hash_id = st.hash_id[entries[i]]
        if st.hash_owner[hash_id] != slot:
            continue
        if left > 0 and within(entries[i], limit):
            outcome[i] = slot
            left -= 1
        else:
            left = 0
            requeue(st, entries[i], st.hash_id[entries[i]])
    return 1


@compiled
def held_by_replay_hash(st: State, hash_id: int) -> bool:
    """R0: a normal read does not overtake the replay set; one such hash holds back the consumer's whole part."""
    return st.s[IN_ORDER] == 1 and st.replay_count[hash_id] > 0


@compiled
def refused_as_stuck(st: State, slot: int) -> bool:
    """3.0.0: who had no permits in the last round that sent nothing gets nothing in this one (until #20335)."""
    return st.s[STUCK_MEMORY] == 1 and st.stuck[slot] == 1 and st.joined_at[slot] == NOT_TRACKED


@compiled
def forget_stuck(st: State) -> None:
    """3.0.0: a round is over; who was without permits in an earlier one may be chosen again."""
    for slot in range(len(st.stuck)):
        st.stuck[slot] = 0


@compiled
def is_stuck(st: State, sent: bool) -> bool:
    """Whether the next look at the replay set finds nothing, to move the cursor on: nothing could be sent.

    Not while somebody joined recently: that would only widen the distance to mark-delete. 3.0.0 asks in addition for a
    consumer that had no permits in this round, and remembers all of those.
    """
    if sent or (st.s[IN_ORDER] == 1 and st.s[N_RECENT] > 0):
        return False
    if st.s[STUCK_MEMORY] == 0:
        return True
    found = False
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at]
        if st.seen_stamp[slot] == st.s[STAMP]:
            st.stuck[slot] = 1
            found = True
    return found
