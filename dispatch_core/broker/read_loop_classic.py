"""Read loop of Key_Shared in 3.x and in the classic dispatcher of 4.x.

Data plane, as ``read_loop`` is for 4.x. Differences:

* a replay read takes the *first* entries of the replay set, then leaves out what cannot be sent;
* R0: a consumer gets nothing of a normal read in which it has an entry whose hash is in the replay set;
* R2: an entry that cannot be sent holds back all later entries of its *consumer* in that result;
* there is no limit on looking ahead and no back-off, but a *stuck flag*: when a round could send nothing, and not because of
  a recently joined consumer, the next scan of the replay set finds nothing, so that a normal read follows.

R1 is that of 4.x. Releases below 2.9 lack R0, R1 or the stuck flag (``old_releases``).

Source: PersistentDispatcherMultipleConsumers(Classic).readMoreEntries, PersistentStickyKeyDispatcherMultipleConsumers
(3.x) and …Classic (4.x) .trySendMessagesToConsumers; #10762, #12890, #20335, #22245.
"""

from __future__ import annotations

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.gates import (
    no_permits,
    replay_order,
    replay_order_of_consumer,
    unacked_limit_subscription,
    uncovered_range,
)
from dispatch_core.broker.ordering.read_position import position_limit, within
from dispatch_core.broker.permits import entries_left_classic, is_available, room_in_messages
from dispatch_core.broker.read_loop import (
    NO_READ,
    NORMAL_READ,
    NOT_TOUCHED,
    REPLAY_READ,
    TO_REPLAY,
    UNDECIDED,
    dropped_by_min_replay,
    requeue,
)
from dispatch_core.broker.replay_set import first_in_replay, next_in_replay
from dispatch_core.broker.state import (
    I64,
    IN_ORDER,
    MIN_REPLAYED,
    N_CONSUMERS,
    N_RECENT,
    NEVER_STUCK,
    NO_HASH,
    NO_MIN_REPLAY,
    NOT_TRACKED,
    PENDING_READ,
    PENDING_REPLAY,
    PRE_FILTERS_REPLAY,
    READ_SIZE,
    REPLAY_HIGH,
    SKIP_NEXT_REPLAY,
    STAMP,
    STUCK_MEMORY,
    WIDE,
    State,
)


@compiled
def plan_replay(st: State, plan: I64) -> None:
    """Second step of a read attempt: plan a replay read of the first entries of the replay set, if any can be sent."""
    if plan[0] != UNDECIDED:
        return
    found = 0
    if not takes_stuck_flag(st):
        found = first_positions(st, plan[1], plan)
        if pre_filters(st):
            found = leave_out_unsendable(st, plan, found)
    plan_found(st, plan, found)


@compiled
def pre_filters(st: State) -> bool:
    """True if a replay read leaves out what cannot be sent (#22245)."""
    return st.s[PRE_FILTERS_REPLAY] == 1 and st.s[IN_ORDER] == 1


@compiled
def plan_found(st: State, plan: I64, found: int) -> None:
    """Plan a replay read of the first ``found`` entries from ``plan[2]`` on, if there are any."""
    if found > 0:
        plan[0] = REPLAY_READ
        plan[1] = found
        st.s[PENDING_REPLAY] = 1
        st.s[MIN_REPLAYED] = first_in_replay(st)


@compiled
def plan_normal(st: State, plan: I64) -> None:
    """Third step: plan a normal read, if none is pending and a consumer can get entries of it."""
    if plan[0] != UNDECIDED:
        return
    plan[0] = NO_READ
    if unacked_limit_subscription(st) or st.s[PENDING_READ] == 1 or not normal_read_is_needed(st):
        return
    plan[0] = NORMAL_READ
    st.s[PENDING_READ] = 1
    st.s[READ_SIZE] = plan[1]
    st.s[MIN_REPLAYED] = first_in_replay(st)


@compiled
def takes_stuck_flag(st: State) -> bool:
    """Take the stuck flag: True if this scan of the replay set finds nothing because the last round was stuck."""
    if st.s[SKIP_NEXT_REPLAY] == 0:
        return False
    st.s[SKIP_NEXT_REPLAY] = 0
    return True


@compiled
def first_positions(st: State, size: int, plan: I64) -> int:
    """Write the ``size`` smallest entries of the replay set from ``plan[2]``; returns how many there are."""
    found = 0
    entry = first_in_replay(st)
    if entry < 0:
        return 0
    while entry < st.s[REPLAY_HIGH] and found < size:
        plan[2 + found] = entry
        found += 1
        entry = next_in_replay(st, entry + 1)
    return found


@compiled
def leave_out_unsendable(st: State, plan: I64, count: int) -> int:
    """Apply the replay pre-filter (#22245): keep of each owner's entries those it may be sent now, by permits and position.

    The broker looks at one owner after the other, in the order of a hash map (filterOutEntriesWillBeDiscarded). An entry
    whose hash is unknown is kept: it is decided at dispatch. Returns how many of the ``count`` are left.
    """
    st.s[STAMP] += 1
    kept = 0
    for at in range(2, 2 + count):
        entry = plan[at]
        hash_id = st.replay_hash[entry] + WIDE
        if hash_id != NO_HASH:
            if uncovered_range(st, hash_id):
                continue
            slot = st.hash_owner[hash_id] + WIDE
            if entries_left_classic(st, slot) == 0 or not within(entry, position_limit(st, slot, True)):
                continue
            st.left[slot] -= 1
        plan[2 + kept] = entry
        kept += 1
    return kept


@compiled
def normal_read_is_needed(st: State) -> bool:
    """True if a normal read is of use: a consumer that has not recently joined has permits and is not blocked (#22245)."""
    if not pre_filters(st):
        return True
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at] + WIDE
        if is_available(st, slot) and st.joined_at[slot] == NOT_TRACKED:
            return True
    return False


@compiled
def group(st: State, is_replay: bool, entries: I64, outcome: I64) -> int:
    """First step of a round: choose a consumer for every entry, and add entries without one to the replay set.

    ``outcome[i]`` = slot, or TO_REPLAY, NOT_TOUCHED. Returns how many consumers own entries of the result; -1 if R1
    dropped it.
    """
    owners = begin_group(st, is_replay, entries, outcome)
    if owners >= 0:
        for at in range(st.s[N_CONSUMERS]):
            allow_owner(st, st.order[at] + WIDE, is_replay)
        take_allowed(st, entries, outcome)
    return owners


@compiled
def begin_group(st: State, is_replay: bool, entries: I64, outcome: I64) -> int:
    """Note the owner of each entry in ``outcome``; returns the number of owners, -1 if R1 dropped the result (``group``)."""
    st.s[STAMP] += 1
    keeps_r1 = st.s[IN_ORDER] == 1 and st.s[NO_MIN_REPLAY] == 0
    if keeps_r1 and not takes_stuck_flag(st) and dropped_by_min_replay(st):
        for i in range(len(entries)):
            outcome[i] = NOT_TOUCHED
            if not is_replay:
                outcome[i] = TO_REPLAY
                requeue(st, entries[i], st.hash_id[entries[i]] + WIDE)
        return -1
    return note_owners(st, is_replay, entries, outcome)


@compiled
def take_allowed(st: State, entries: I64, outcome: I64) -> None:
    """Choose the owner of each entry that may take it (``allow_owner``); add the others to the replay set."""
    for i in range(len(entries)):
        slot = outcome[i]
        if slot == TO_REPLAY:
            continue
        if st.left[slot] > 0 and within(entries[i], st.limit[slot]):
            st.left[slot] -= 1
        else:
            st.left[slot] = 0
            outcome[i] = TO_REPLAY
            requeue(st, entries[i], st.hash_id[entries[i]] + WIDE)


@compiled
def note_owners(st: State, is_replay: bool, entries: I64, outcome: I64) -> int:
    """Note the owner of each entry (``seen_stamp``) and whom R0 holds (``held_stamp``); returns the number of owners."""
    stamp = st.s[STAMP]
    owners = 0
    for i in range(len(entries)):
        hash_id = st.hash_id[entries[i]] + WIDE
        if uncovered_range(st, hash_id):
            outcome[i] = TO_REPLAY
            requeue(st, entries[i], hash_id)
            continue
        slot = st.hash_owner[hash_id] + WIDE
        outcome[i] = slot
        if st.seen_stamp[slot] != stamp:
            st.seen_stamp[slot] = stamp
            owners += 1
        if replay_order(st, is_replay, hash_id):
            st.held_stamp[slot] = stamp
    return owners


@compiled
def allow_owner(st: State, slot: int, is_replay: bool) -> None:
    """Note how many entries a consumer may take (``left``), and its position limit (``limit``), if it owns any."""
    stamp = st.s[STAMP]
    if st.seen_stamp[slot] != stamp:
        return
    st.left[slot] = room_in_messages(st, slot)
    if st.left[slot] == 0 or replay_order_of_consumer(st, slot):
        st.left[slot] = 0
        return
    st.limit[slot] = position_limit(st, slot, is_replay)
    if st.s[IN_ORDER] == 1 and st.joined_at[slot] == NOT_TRACKED and st.stuck[slot] == 1:
        st.left[slot] = 0


@compiled
def is_stuck(st: State, owners: int, sent: bool) -> bool:
    """True if nothing was sent, and not because of a recently joined consumer: the next scan is skipped, to read on.

    Until #20335 only if an owner had no permits; it is passed over in the next round. Until #7105 never.
    """
    st.stuck[:] = 0
    if sent or st.s[N_RECENT] > 0:
        return False
    if st.s[NEVER_STUCK] == 1:
        return False
    return st.s[STUCK_MEMORY] == 0 or (owners > 0 and remember_stuck(st))


@compiled
def remember_stuck(st: State) -> bool:
    """Note the owners of this round that had no permits; returns whether there are any (until #20335)."""
    found = False
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at] + WIDE
        if st.seen_stamp[slot] == st.s[STAMP] and no_permits(st, True, slot, 0):
            st.stuck[slot] = 1
            found = True
    return found
