"""Read loop of Key_Shared in 4.x: decide which read comes next, and which consumer gets which entry of its result.

Data plane: compiled, no I/O, no clock. The control plane (``key_shared``) calls these functions on every read attempt and
every round; between two calls only membership, flow and ack events change the state.

Three rules have names in this package:

* *R0*: a normal read delivers no entry of a hash while entries of that hash are in the replay set;
* *R1*: a read result is dropped when a smaller replay position has appeared while it was in flight;
* *R2*: an entry that cannot be sent enters the replay set with its hash, which is held back for the rest of the result.

Source: PersistentDispatcherMultipleConsumers.readMoreEntries, PersistentStickyKeyDispatcherMultipleConsumers
.filterAndGroupEntriesForDispatching and .getMessagesToReplayNow (4.x).

Two entries of one hash and a consumer with one permit: the first entry is sent, the second waits in the replay set (R2):

>>> import numpy as np
>>> from dispatch_core.broker.commands import flow
>>> from dispatch_core.broker.state import example_state
>>> st, plan, attempts, outcome = example_state(entries=2), np.zeros(5, int), np.zeros(3, int), np.zeros(2, int)
>>> st.s[READ_BATCH_SIZE] = 100
>>> _ = flow(st, 0, 1)
>>> plan_read(st, plan, attempts)
>>> plan[:2].tolist() == [NORMAL_READ, 1]  # one permit: a read of one entry; suppose it returns two
True
>>> _ = dispatch(st, False, np.array([0, 1]), outcome, attempts)
>>> outcome.tolist(), st.in_replay.tolist()
([0, -1], [0, 1])
"""

from __future__ import annotations

from typing import Final

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inline
from dispatch_core.broker.gates import (
    DRAINING_HASH,
    HASH_HELD_BACK,
    OPEN,
    REPLAY_ORDER,
    UNCOVERED_RANGE,
    drains_elsewhere,
    first_gate,
    no_permits,
    replay_set_is_full,
    unacked_limit_subscription,
)
from dispatch_core.broker.ordering.last_sent_position import advance, begin_round, note_sent
from dispatch_core.broker.pending_acks import hold
from dispatch_core.broker.permits import (
    charge_send,
    first_available_permits,
    is_available,
    look_ahead_limit,
    lower_total,
)
from dispatch_core.broker.replay_set import add_to_replay, first_in_replay, next_in_replay, remove_from_replay
from dispatch_core.broker.state import (
    BLOCKED_HASH_MEMORY,
    I64,
    IN_ORDER,
    MIN_REPLAYED,
    N_CONSUMERS,
    N_REPLAY,
    NO_HASH,
    PENDING_READ,
    PENDING_REPLAY,
    READ_BATCH_SIZE,
    READ_SIZE,
    REPLAY_BY_PERMITS,
    REPLAY_HIGH,
    SEND_IN_PROGRESS,
    SKIP_NEXT_REPLAY,
    STAMP,
    TOTAL_PERMITS,
    TRACK_LAST_SENT,
    WIDE,
    State,
)

# what a read attempt decides: plan[0]
NO_READ: Final = 0
REPLAY_READ: Final = 1  # plan[1] positions follow from plan[2]
NORMAL_READ: Final = 2  # plan[1] = entries at most
BACK_OFF: Final = 3  # try again after the retry backoff
UNDECIDED: Final = 4  # between the steps of an attempt

# outcome of one entry of a round
TO_REPLAY: Final = -1
NOT_TOUCHED: Final = -2  # the whole result was dropped by R1; a replay result stays in the set
REFUSED: Final = -3  # chosen, but refused at send time


@compiled
def plan_read(st: State, plan: I64, attempts: I64) -> None:
    """Decide which read, if any, is issued now, and write it to ``plan`` (``readMoreEntries``).

    ``attempts`` collects draining refusals of the replay filter (see ``should_block``). The three steps may be called
    one by one: flows and acks are counted by other threads between them.
    """
    plan_size(st, plan, attempts)
    plan_replay(st, plan, attempts)
    plan_normal(st, plan)


@compiled
def plan_size(st: State, plan: I64, attempts: I64) -> None:
    """First step of a read attempt: write the number of entries that the permits allow; UNDECIDED if there are any."""
    plan[0] = NO_READ
    attempts[0] = 0
    if st.s[SEND_IN_PROGRESS] == 1:
        return
    first = first_available_permits(st)
    total = max(st.s[TOTAL_PERMITS], first)
    if not (total > 0 and first > 0) or st.s[PENDING_REPLAY] == 1:
        return
    plan[0] = UNDECIDED
    plan[1] = max(min(total, st.s[READ_BATCH_SIZE]), 1)


@compiled
def plan_replay(st: State, plan: I64, attempts: I64) -> None:
    """Second step: plan a replay read of the positions that pass the filter, unless a look-ahead is due."""
    if plan[0] != UNDECIDED:
        return
    size = plan[1]
    found = 0
    entry = begin_scan(st)
    if entry >= 0:
        found = scan(st, size, found, entry, st.s[REPLAY_HIGH], plan, attempts)
    end_scan(st, found, plan)


@compiled
def end_scan(st: State, found: int, plan: I64) -> None:
    """Plan a replay read of the ``found`` positions that a scan has written, if there are any."""
    if found > 0:
        plan[0] = REPLAY_READ
        plan[1] = found
        st.s[PENDING_REPLAY] = 1
        st.s[MIN_REPLAYED] = first_in_replay(st)


@compiled
def plan_normal(st: State, plan: I64) -> None:
    """Third step: plan a normal read, if none is pending and the limits allow it."""
    if plan[0] != UNDECIDED:
        return
    size = plan[1]
    if unacked_limit_subscription(st) or st.s[PENDING_READ] == 1:
        plan[0] = NO_READ
        return
    if not normal_read_allowed(st):
        plan[0] = BACK_OFF
        return
    plan[0] = NORMAL_READ
    plan[1] = min(size, max(look_ahead_limit(st) - st.s[N_REPLAY], 1))
    st.s[PENDING_READ] = 1
    st.s[READ_SIZE] = plan[1]
    st.s[MIN_REPLAYED] = first_in_replay(st)


@compiled
def normal_read_allowed(st: State) -> bool:
    """True if the replay set is below the look-ahead limit, and a consumer could take entries (isNormalReadAllowed)."""
    if replay_set_is_full(st, 0):
        return False
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at] + WIDE
        if is_available(st, slot) and not no_permits(st, False, slot, 0):
            return True
    return False


@compiled
def begin_scan(st: State) -> int:
    """Begin a scan of the replay set; returns its first position, -1 if there is none or a look-ahead skips the scan."""
    if st.s[SKIP_NEXT_REPLAY] == 1:
        st.s[SKIP_NEXT_REPLAY] = 0
        return -1
    st.s[STAMP] += 1
    return first_in_replay(st)


@compiled
def scan(st: State, size: int, found: int, entry: int, stop: int, plan: I64, attempts: I64) -> int:
    """Scan the replay set from its position ``entry`` to below ``stop`` and keep positions that could be sent now.

    Positions are kept until there are ``size``; ``found``: so many were kept before. One whose hash is unknown is kept:
    it is decided at dispatch. Writes them from ``plan[2]``; returns how many there are.
    """
    stamp = st.s[STAMP]
    while entry < stop and found < size:
        if replayable(st, entry, stamp, attempts):
            plan[2 + found] = entry
            found += 1
        entry = next_in_replay(st, entry + 1)
    return found


@compiled_inline
def replayable(st: State, entry: int, stamp: int, attempts: I64) -> bool:
    """Apply the replay filter to a position: True if the gates of dispatch are open for it, as far as its hash is known."""
    hash_id = st.replay_hash[entry] + WIDE
    if hash_id == NO_HASH or (st.s[IN_ORDER] == 0 and st.s[REPLAY_BY_PERMITS] == 0):
        return True
    gate = first_gate(st, hash_id, entry, True, stamp, attempts)
    if gate != OPEN:
        if st.s[BLOCKED_HASH_MEMORY] == 1 and st.s[IN_ORDER] == 1:
            st.hash_blocked[hash_id] = stamp
        return False
    st.left[st.hash_owner[hash_id]] -= 1
    return True


@compiled
def requeue(st: State, entry: int, hash_id: int) -> None:
    """Add an entry to the replay set with its hash; out of order the hash is dropped (until #26268)."""
    if st.s[IN_ORDER] == 1 or st.s[REPLAY_BY_PERMITS] == 1:
        add_to_replay(st, entry, hash_id)
    else:
        add_to_replay(st, entry, NO_HASH)


@compiled
def dropped_by_min_replay(st: State) -> bool:
    """True if R1 drops a read result: a replay position smaller than all known when it was issued has appeared (#12890)."""
    now = first_in_replay(st)
    return st.s[IN_ORDER] == 1 and st.s[MIN_REPLAYED] >= 0 and 0 <= now < st.s[MIN_REPLAYED]


@compiled
def dispatch(st: State, is_replay: bool, entries: I64, outcome: I64, attempts: I64) -> bool:
    """Run a round: choose a consumer for every entry of a read result, and send.

    ``entries`` ascending; ``outcome[i]`` = slot, or TO_REPLAY, NOT_TOUCHED, REFUSED. Returns whether the round *wants*
    to look ahead: nothing could be sent, yet a consumer has room (the caller knows whether there is more to read). The
    three steps may be called one by one: flows and acks are counted by other threads between them.
    """
    look = group(st, is_replay, entries, outcome, attempts)
    send_groups(st, is_replay, entries, outcome)
    return look and wants_look_ahead(st, entries, outcome)


@compiled
def group(st: State, is_replay: bool, entries: I64, outcome: I64, attempts: I64) -> bool:
    """First step of a round: choose a consumer for every entry, and add entries without one to the replay set.

    Returns whether the round may look ahead at all: it was not dropped, and the replay set was below its limit.
    """
    if not begin_group(st, is_replay, entries, outcome, attempts):
        return False
    look = not replay_set_is_full(st, 0)
    group_part(st, is_replay, entries, 0, len(entries), look, outcome, attempts)
    end_group(st, entries)
    return look


@compiled
def begin_group(st: State, is_replay: bool, entries: I64, outcome: I64, attempts: I64) -> bool:
    """Begin to choose consumers; returns False if the round is dropped (R1): then nothing follows.

    ``group_part`` and ``end_group`` follow: other threads may come between two entries.
    """
    attempts[0] = 0
    st.s[STAMP] += 1
    if dropped_by_min_replay(st):
        for i in range(len(entries)):
            outcome[i] = NOT_TOUCHED
            if not is_replay:
                outcome[i] = TO_REPLAY
                requeue(st, entries[i], st.hash_id[entries[i]] + WIDE)
        return False
    if st.s[TRACK_LAST_SENT] == 1 and len(entries) > 0:
        begin_round(st)
    return True


@compiled
def group_part(
    st: State, is_replay: bool, entries: I64, start: int, stop: int, look: bool, outcome: I64, attempts: I64
) -> None:
    """Choose consumers for ``entries[start:stop]``; ``look``: the round may look ahead."""
    track = st.s[TRACK_LAST_SENT] == 1
    stamp = st.s[STAMP]
    for i in range(start, stop):
        entry = entries[i]
        outcome[i] = choose(st, is_replay, entry, stamp, look, attempts)
        if outcome[i] == TO_REPLAY:
            requeue(st, entry, st.hash_id[entry] + WIDE)
        elif track:
            note_sent(st, entry)


@compiled
def end_group(st: State, entries: I64) -> None:
    """End the choice of consumers."""
    if st.s[TRACK_LAST_SENT] == 1 and len(entries) > 0:
        advance(st)


@compiled
def wants_look_ahead(st: State, entries: I64, outcome: I64) -> bool:
    """Third step of a round: True if no entry was chosen, yet a consumer that was held back, or not asked, has room."""
    if len(entries) == 0:
        return False
    for i in range(len(entries)):
        if outcome[i] != TO_REPLAY:
            return False
    stamp = st.s[STAMP]
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at] + WIDE
        if st.held_stamp[slot] == stamp and st.left[slot] > 0:
            return True
        if st.seen_stamp[slot] != stamp and not no_permits(st, False, slot, 0):
            return True
    return False


@compiled
def choose(st: State, is_replay: bool, entry: int, stamp: int, look: bool, attempts: I64) -> int:
    """Choose the consumer that is sent an entry now: its slot, or TO_REPLAY if a gate is closed.

    A consumer held back by R0 or by draining may look ahead; a consumer held to the last sent position may not.
    """
    hash_id = st.hash_id[entry] + WIDE
    gate = first_gate(st, hash_id, entry, is_replay, stamp, attempts)
    if gate == HASH_HELD_BACK:
        return TO_REPLAY
    if gate != UNCOVERED_RANGE:
        slot = st.hash_owner[hash_id] + WIDE
        st.seen_stamp[slot] = stamp
        if gate == OPEN:
            st.left[slot] -= 1
            return slot
        if look and not is_replay and gate in (REPLAY_ORDER, DRAINING_HASH):
            st.held_stamp[slot] = stamp
    if st.s[BLOCKED_HASH_MEMORY] == 1:
        st.hash_blocked[hash_id] = stamp
    return TO_REPLAY


@compiled
def send_groups(st: State, is_replay: bool, entries: I64, outcome: I64) -> None:
    """Send the chosen entries to their consumers; permits are charged for refused entries too.

    The entries of a consumer are added up and charged at its first entry. Counters that consumers share only grow
    meanwhile, so the order of the consumers makes no difference. Source: trySendMessagesToConsumers,
    Consumer.sendMessages.
    """
    for i in range(len(entries)):
        slot = outcome[i]
        if slot < 0:
            continue
        entry = entries[i]
        if is_replay:
            remove_from_replay(st, entry)
        st.batch_messages[slot] += st.num_messages[entry]
        st.batch_acked[slot] += st.acked_indexes[entry]
        hash_id = st.hash_id[entry] + WIDE
        if drains_elsewhere(st, slot, hash_id):
            requeue(st, entry, hash_id)
        else:
            hold(st, slot, entry, hash_id)
            st.batch_entries[slot] += 1
    for i in range(len(entries)):
        slot = outcome[i]
        if slot < 0:
            continue
        messages = st.batch_messages[slot]
        if messages > 0:
            acked = st.batch_acked[slot]
            charge_send(st, slot, messages, acked, max(st.batch_entries[slot], 1))
            lower_total(st, messages, acked)
        st.batch_messages[slot] = st.batch_acked[slot] = st.batch_entries[slot] = 0
        if drains_elsewhere(st, slot, st.hash_id[entries[i]] + WIDE):
            outcome[i] = REFUSED
