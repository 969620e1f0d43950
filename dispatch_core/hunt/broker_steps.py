"""Take the steps of a schedule: the rules of the core, in the order in which the threads of the broker call them.

Data plane. Every decision is made by the functions that ``verify`` compares with recordings; this module says only when they
are called. A step that is not possible changes nothing.

A read attempt follows at once where the broker triggers one. When the read completes is a step of its own, so clients act
between a read and its round.

Source: PersistentStickyKeyDispatcherMultipleConsumers(Classic), PersistentDispatcherMultipleConsumers(Classic): addConsumer,
removeConsumer, readMoreEntries, trySendMessagesToConsumers; Consumer.flowPermits, individualAckNormal,
redeliverUnacknowledgedMessages.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.broker import (
    commands,
    cursor_moves,
    membership,
    read_loop,
    read_loop_classic,
    round_robin,
)
from dispatch_core.broker import state as st_
from dispatch_core.broker.gates import replay_set_is_full
from dispatch_core.broker.ordering import draining_hashes, last_sent_position, read_position
from dispatch_core.broker.pending_acks import let_go, pending_on, unacked_messages
from dispatch_core.broker.permits import count_flow
from dispatch_core.broker.replay_set import (
    add_to_replay,
    clear_replay,
    next_in_replay,
    read_follows,
    remove_up_to,
)
from dispatch_core.broker.state import I64, NOBODY, WIDE, State
from dispatch_core.hunt import promises
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt import world as w_
from dispatch_core.hunt.ownership import REFUSED, SLOTS_PER_NAME, UNKNOWN, Owners
from dispatch_core.hunt.world import World

#: What a step can come to.
IMPOSSIBLE, DONE, BROKEN, ASKS_SELECTOR = range(4)
PERMITS_WHEN_JOINING: Final = s_.PERMITS
#: Rounds of answers and reads after which a subscription that moves no more is stuck.
LAST_ROUNDS: Final = 4 * w_.MAX_ENTRIES
_MANY_PERMITS: Final = 10


@compiled
def take(st: State, world: World, owners: Owners, number: int) -> int:
    """Take a step; returns what it comes to. ``ASKS_SELECTOR``: the move of ``world`` is not known, begin again."""
    kind, name = s_.kind_of(number), s_.name_of(number)
    if kind == s_.STORE:
        return store(st, world, s_.detail_of(number), 1)
    if kind == s_.STORE_BATCH:
        return store(st, world, s_.detail_of(number), s_.BATCH)
    if kind == s_.READ:
        return complete_normal_read(st, world)
    if kind == s_.REPLAY:
        return complete_replay_read(st, world)
    if kind == s_.TIMER:
        return run_timer(st, world)
    if kind == s_.RETRY:
        return retry(st, world)
    if kind == s_.CURSOR:
        return move_cursor(st, world)
    if kind == s_.CLEAR:
        return move_forward(st, world, world.w[w_.STORED] - 1)
    if kind == s_.SKIP:
        return move_forward(st, world, first_of_backlog(st, world))
    if kind == s_.RESET:
        return reset(st, world, owners)
    if kind == s_.LIMIT:
        return limit_unacked(st, world, s_.LIMITS[s_.detail_of(number)])
    slot = world.slot_of_name[name]
    if kind == s_.JOIN:
        if slot != NOBODY:
            return IMPOSSIBLE
        return join(st, world, owners, name, PERMITS_WHEN_JOINING[s_.detail_of(number)], 0)
    if kind == s_.JOIN_LOW:
        if slot != NOBODY:
            return IMPOSSIBLE
        return join(st, world, owners, name, s_.PERMITS_LOW, 1)
    if slot == NOBODY:
        return IMPOSSIBLE
    if kind == s_.LEAVE:
        return leave(st, world, owners, name, slot, False)
    return command(st, world, name, slot, kind)


@compiled_inside
def command(st: State, world: World, name: int, slot: int, kind: int) -> int:
    """Take a command of a connected consumer; one that hangs sends none."""
    if hangs(world, name):
        return IMPOSSIBLE
    if kind == s_.HANG:
        world.w[w_.HANGING] |= 1 << name
        return DONE
    if kind in (s_.ACK_IN_SCAN, s_.ACK_IN_ROUND):
        at = w_.ACKS_IN_SCAN if kind == s_.ACK_IN_SCAN else w_.ACKS_IN_ROUND
        if world.w[w_.CLASSIC] == 1 or world.w[at] != 0:
            return IMPOSSIBLE
        world.w[at] = 1 + name
        return DONE
    if kind == s_.FLOW:
        grant(st, world, slot, 1)
        return result_of(world)
    if kind == s_.NACK_ALL:
        return request_all(st, world, slot)
    entry = entry_of(st, world, slot, kind == s_.ACK_LAST)
    if entry == NOBODY or kind > s_.ACK_IN_ROUND:  # the later kinds are of other types of subscriptions
        return IMPOSSIBLE
    if kind == s_.NACK_FIRST:
        return request(st, world, slot, entry)
    if kind == s_.ACK_PART:
        return acknowledge_part(st, world, entry)
    acknowledge(st, world, entry)
    return result_of(world)


@compiled_inside
def hangs(world: World, name: int) -> bool:
    """Check whether a consumer sends no commands any more."""
    return (world.w[w_.HANGING] >> name) & 1 == 1


@compiled_inside
def result_of(world: World) -> int:
    """Return what a step has come to that was possible."""
    return BROKEN if world.w[w_.BROKEN] != promises.KEPT else DONE


@compiled_inside
def entry_of(st: State, world: World, slot: int, last: bool) -> int:
    """Return the first or the last entry that is pending on a consumer, or ``NOBODY``."""
    found = NOBODY + WIDE
    for entry in range(world.w[w_.STORED]):
        if st.holder[entry] == slot:
            found = entry + WIDE
            if not last:
                return found
    return found


# --- storage -------------------------------------------------------------------------------------------------------


@compiled_inside
def store(st: State, world: World, key: int, messages: int) -> int:
    """Store an entry; a normal read that waits can complete then."""
    w = world.w
    if w[w_.STORED] == w_.MAX_ENTRIES:
        return IMPOSSIBLE
    st.hash_id[w[w_.STORED]] = world.id_of_key[key]
    st.num_messages[w[w_.STORED]] = messages
    w[w_.STORED] += 1
    return DONE


# --- membership ----------------------------------------------------------------------------------------------------


@compiled_inside
def join(st: State, world: World, owners: Owners, name: int, permits: int, level: int) -> int:
    """Let a consumer join: the list, the selector, the rule of ordering, then its first permits."""
    slot = SLOTS_PER_NAME * name + world.turn_of_name[name]
    move = slot
    if not knows(world, owners, move):
        return ASKS_SELECTOR
    if owners.following[world.w[w_.NODE] * owners.sizes[0] + move] == REFUSED:
        return IMPOSSIBLE
    st.permits[slot] = st.parked_permits[slot] = st.unacked[slot] = 0
    st.blocked[slot] = st.stuck[slot] = 0
    st.average[slot] = 0.0
    st.joined_at[slot] = st_.NOT_TRACKED
    st.level[slot] = level
    membership.add_member(st, slot)
    world.slot_of_name[name] = slot
    world.turn_of_name[name] = (world.turn_of_name[name] + 1) % SLOTS_PER_NAME
    node = world.w[w_.NODE]
    own(st, world, owners, move)
    if world.w[w_.CLASSIC] == 1:
        read_position.consumer_joined(st, slot)
    elif st.s[st_.TRACK_LAST_SENT] == 1:
        last_sent_position.consumer_joined(st, slot)
    register(st, world, owners, node, move, slot)
    grant(st, world, slot, permits)
    return result_of(world)


@compiled_inside
def leave(st: State, world: World, owners: Owners, name: int, slot: int, by_reset: bool) -> int:
    """Let a consumer leave: the selector, the list, its pending entries, a read attempt, then the rule of ordering."""
    w = world.w
    move = owners.sizes[0] // 2 + slot
    if not knows(world, owners, move):
        return ASKS_SELECTOR
    node = w[w_.NODE]
    last, was_blocked = entry_of(st, world, slot, True), st.s[st_.BLOCKED_ON_UNACKED] == 1
    own(st, world, owners, move)
    world.slot_of_name[name] = NOBODY
    w[w_.HANGING] &= ~(1 << name)
    membership.drop_member(st, slot)
    nobody_left = st.s[st_.N_CONSUMERS] == 0
    if nobody_left:
        clear_replay(st)
    for entry in range(w[w_.STORED]):
        if st.holder[entry] == slot and not nobody_left:
            give_back(st, world, entry)
    draining = w[w_.CLASSIC] == 0
    for entry in range(w[w_.STORED]):
        if st.holder[entry] == slot:
            let_go(st, slot, entry, draining and not nobody_left)
    if nobody_left:
        if draining:
            draining_hashes.clear_draining(st)
        if read_waits(st, world):
            cancel_read(st, world)
    elif draining:
        register(st, world, owners, node, move, slot)
        if st.s[st_.TRACK_DRAINING] == 1:
            draining_hashes.forget_consumer(st, slot)
    late = st.s[st_.READS_WHEN_ADDED] == 1  # a reset has removed all consumers by then
    if not read_follows(st, last, was_blocked):
        w[w_.LEFT_UNREAD] = 1
    elif not (by_reset and late):
        attempt(st, world)
    again = False
    if w[w_.CLASSIC] == 1:
        again = read_position.consumer_left(st, slot) or st.s[st_.N_REPLAY] > 0
        again = again and st.s[st_.IN_ORDER] == 1
    elif st.s[st_.TRACK_LAST_SENT] == 1:
        again = last_sent_position.consumer_left(st, slot) or st.s[st_.N_REPLAY] > 0
    if again:
        attempt(st, world)
    return result_of(world)


@compiled_inside
def give_back(st: State, world: World, entry: int) -> None:
    """Put a pending entry of a leaving consumer into the replay set."""
    hash_id = st.pending_hash[entry] + WIDE
    if world.w[w_.CLASSIC] == 1 or world.w[w_.SHARED] == 1:
        read_loop.requeue(st, entry, hash_id)
    else:
        add_to_replay(st, entry, hash_id)


@compiled_inside
def knows(world: World, owners: Owners, move: int) -> bool:
    """Check whether the selector was asked about a move before; note the move if it was not."""
    world.w[w_.MOVE] = move
    return owners.following[world.w[w_.NODE] * owners.sizes[0] + move] != UNKNOWN


@compiled_inside
def own(st: State, world: World, owners: Owners, move: int) -> None:
    """Make a move at the selector: its new owners are in force."""
    moves, keys = owners.sizes[0], owners.sizes[1]
    node = owners.following[world.w[w_.NODE] * moves + move]
    world.w[w_.NODE] = node
    for key in range(keys):
        st.hash_owner[key] = owners.owner[node * keys + key]


@compiled_inside
def register(st: State, world: World, owners: Owners, node: int, move: int, skip: int) -> None:
    """Let hashes that moved away drain, and release those that came back (registerDrainingHashes; #24736)."""
    if st.s[st_.TRACK_DRAINING] == 0:
        return
    moves, keys = owners.sizes[0], owners.sizes[1]
    at = (node * moves + move) * keys
    for key in range(keys):
        loser = owners.lost[at + key] + WIDE
        if loser not in (NOBODY, skip):
            for entry in range(world.w[w_.STORED]):
                if st.holder[entry] == loser and st.pending_hash[entry] == key:
                    draining_hashes.drain(st, loser, key)
    if world.w[w_.RELEASES_WON] == 0:
        return
    for key in range(keys):
        winner = owners.won[at + key] + WIDE
        if winner not in (NOBODY, skip):
            for entry in range(world.w[w_.STORED]):
                pending = st.holder[entry] == winner and st.pending_hash[entry] == key
                if pending and st.drain_owner[key] == winner:
                    draining_hashes.release(st, winner, key)
    take_notice(st, world)


# --- commands of clients -------------------------------------------------------------------------------------------


@compiled_inside
def grant(st: State, world: World, slot: int, permits: int) -> None:
    """Count permits; the dispatcher attempts a read unless the consumer is blocked."""
    if count_flow(st, slot, permits):
        commands.apply_flow(st, slot, permits)
        attempt(st, world)


@compiled_inside
def flow_freed(st: State, world: World, slot: int, notices: int, permits: int) -> None:
    """Pass permits to the dispatcher that an ack or a redelivery request has set free; see ``commands.Flows``."""
    for at in range(notices):
        commands.apply_flow(st, slot, permits if at == 0 else 0)
        attempt(st, world)


@compiled_inside
def acknowledge(st: State, world: World, entry: int) -> None:
    """Apply an individual ack of a whole entry, with the read attempts that it causes."""
    was_blocked, before = st.s[st_.BLOCKED_ON_UNACKED], st.s[st_.MARK_DELETE]
    done = commands.ack(st, entry)
    if done.holder != NOBODY:
        flow_freed(st, world, done.holder, done.flows, done.permits)
        if was_blocked == 1 and st.s[st_.BLOCKED_ON_UNACKED] == 0:
            attempt(st, world)
    if st.s[st_.MARK_DELETE] != before:
        mark_delete_moved(st, world)
    take_notice(st, world)


@compiled_inside
def acknowledge_part(st: State, world: World, entry: int) -> int:
    """Acknowledge a message of a batch of which more are left; with the last one a client acknowledges the entry."""
    left = unacked_messages(st, entry) - 1
    if world.w[w_.BATCH_INDEX_ACKS] == 0 or left < 1:
        return IMPOSSIBLE
    was_blocked = st.s[st_.BLOCKED_ON_UNACKED]
    commands.ack_indexes(st, entry, left)
    if was_blocked == 1 and st.s[st_.BLOCKED_ON_UNACKED] == 0:
        attempt(st, world)
    return result_of(world)


@compiled_inside
def acknowledge_within(st: State, world: World, due: int) -> None:
    """Acknowledge the first entry of a consumer within a scan of the replay set or a round; attempts follow that.

    ``due``: ``ACKS_IN_SCAN`` or ``ACKS_IN_ROUND`` of the world, which name the consumer.
    """
    w = world.w
    slot = world.slot_of_name[w[due] - 1]
    w[due] = 0
    entry = entry_of(st, world, slot, False) if slot != NOBODY else NOBODY + WIDE
    if entry == NOBODY:
        return
    done = commands.ack(st, entry)
    for at in range(done.flows):
        commands.apply_flow(st, done.holder, done.permits if at == 0 else 0)
    w[w_.RETRY] = 1
    take_notice(st, world)


@compiled_inside
def mark_delete_moved(st: State, world: World) -> None:
    """Free recently joined consumers that mark-delete has reached, or have the next attempt trim what it has passed."""
    freed = False
    if world.w[w_.CLASSIC] == 1:
        freed = read_position.prune(st)
    elif st.s[st_.TRACK_LAST_SENT] == 1:
        freed = last_sent_position.prune(st)
    if freed:
        attempt(st, world)
    if st.s[st_.TRIMS_TO_MARK_DELETE] == 1:
        start_timer(st, world)


@compiled_inside
def take_notice(st: State, world: World) -> None:
    """Start the unblock timer if a draining hash that had refused an entry is free."""
    if st.s[st_.DRAIN_NOTICE] != 0:
        st.s[st_.DRAIN_NOTICE] = 0
        start_timer(st, world)


@compiled_inside
def start_timer(st: State, world: World) -> None:
    """Start the unblock timer, or let it run: its end cancels a normal read that has waited since the last call.

    Source: RescheduleReadHandler.
    """
    world.w[w_.TIMER] = 1
    world.w[w_.CANCELS] = st.s[st_.PENDING_READ]


@compiled_inside
def first_of_backlog(st: State, world: World) -> int:
    """Return the first entry that is not acknowledged, or mark-delete if there is none."""
    for entry in range(st.s[st_.MARK_DELETE] + 1, world.w[w_.STORED]):
        if st.deleted[entry] == 0:
            return entry + WIDE
    return st.s[st_.MARK_DELETE] + WIDE


@compiled_inside
def move_forward(st: State, world: World, target: int) -> int:
    """Move the cursor past an entry (clear, skip): later releases drop what it has passed."""
    w = world.w
    if st.s[st_.MARK_DELETE] >= target:
        return IMPOSSIBLE
    cursor_moves.pass_entries(st, target)
    if w[w_.TRIMS_AFTER_MOVE] == 1:
        was_blocked = st.s[st_.BLOCKED_ON_UNACKED]
        remove_up_to(st, st.s[st_.MARK_DELETE], 0)
        for at in range(st.s[st_.N_CONSUMERS]):
            slot = st.order[at] + WIDE
            count = pending_on(st, slot, 0, st.s[st_.MARK_DELETE] + 1, world.entries)
            if count > 0:
                flows = commands.trim_pending(st, slot, world.entries[:count], world.outcome[:0])
                flow_freed(st, world, slot, flows.notices, flows.permits)
        if was_blocked == 1 and st.s[st_.BLOCKED_ON_UNACKED] == 0:
            attempt(st, world)
        st.s[st_.DRAIN_NOTICE] = 0
        start_timer(st, world)
    mark_delete_moved(st, world)
    return result_of(world)


@compiled_inside
def reset(st: State, world: World, owners: Owners) -> int:
    """Reset the cursor to the first entry: all consumers are disconnected before, in their order.

    Source: PersistentSubscription.resetCursorInternal, PersistentDispatcherMultipleConsumers.disconnectAllConsumers and
    (4.x) .notifyRedeliveryMessageAdded.
    """
    w = world.w
    if w[w_.STORED] == 0:
        return IMPOSSIBLE
    for _ in range(len(world.slot_of_name)):
        if st.s[st_.N_CONSUMERS] > 0:
            slot = st.order[0] + WIDE
            came_to = leave(st, world, owners, slot // SLOTS_PER_NAME, slot, True)
            if came_to != DONE:
                return came_to
    cursor_moves.reset(st, 0)
    for entry in range(w[w_.STORED]):
        world.ever_sent[entry] = 0
    return DONE


@compiled_inside
def limit_unacked(st: State, world: World, limit: int) -> int:
    """Set the limit of unacknowledged messages per consumer, as a policy does; 0 = the broker's setting again."""
    now = limit if limit > 0 else world.w[w_.OWN_LIMIT]
    if st.s[st_.MAX_UNACKED_CONSUMER] == now:
        return IMPOSSIBLE
    st.s[st_.MAX_UNACKED_CONSUMER] = now
    return DONE


@compiled_inside
def request(st: State, world: World, slot: int, entry: int) -> int:
    """Take a request for one entry that a consumer holds."""
    was_blocked = st.s[st_.BLOCKED_ON_UNACKED] == 1
    world.entries[0] = entry
    flows = commands.redeliver(st, slot, world.entries[:1], False, world.outcome[:0])
    take_notice(st, world)
    if read_follows(st, entry, was_blocked):
        attempt(st, world)
    flow_freed(st, world, slot, flows.notices, flows.permits)
    return result_of(world)


@compiled_inside
def request_all(st: State, world: World, slot: int) -> int:
    """Take a request for everything that a consumer holds."""
    last, was_blocked = entry_of(st, world, slot, True), st.s[st_.BLOCKED_ON_UNACKED] == 1
    flows = commands.redeliver_all(st, slot, 0, world.w[w_.STORED], world.outcome[:0])
    take_notice(st, world)
    if read_follows(st, last, was_blocked):
        attempt(st, world)
    flow_freed(st, world, slot, flows.notices, flows.permits)
    return result_of(world)


# --- reads ---------------------------------------------------------------------------------------------------------


@compiled_inside
def is_readable(st: State, world: World) -> bool:
    """Check whether there is an entry for a normal read."""
    for entry in range(st.s[st_.READ_POSITION], world.w[w_.STORED]):  # noqa: SIM110 - compiled code makes no generators
        if st.deleted[entry] == 0:
            return True
    return False


@compiled_inside
def read_waits(st: State, world: World) -> bool:
    """Check whether a normal read waits for an entry that is not stored yet."""
    w = world.w
    if st.s[st_.PENDING_READ] == 0 or w[w_.READ_WAITED] == 0 or w[w_.TAKEN] != 0:
        return False
    return not is_readable(st, world)


@compiled_inside
def cancel_read(st: State, world: World) -> None:
    """Cancel a normal read that waits; between #23384 and #23855 a replay read is forgotten with it."""
    st.s[st_.PENDING_READ] = 0
    if world.w[w_.CANCEL_CLEARS_REPLAY] == 1:
        if world.w[w_.REPLAYS] > 0:
            world.w[w_.FORGOT_REPLAY] = 1
        st.s[st_.PENDING_REPLAY] = 0


@compiled
def attempt(st: State, world: World) -> None:
    """Attempt a read, and issue it to the storage (``readMoreEntries``)."""
    w, plan = world.w, world.plan
    w[w_.CANCELS] = w[w_.LEFT_UNREAD] = 0
    if w[w_.CLASSIC] == 1:
        read_loop.plan_size(st, plan, world.attempts)
        read_loop_classic.plan_replay(st, plan)
        read_loop_classic.plan_normal(st, plan)
    else:
        if commands.trim_is_due(st):
            commands.trim(st, 0)
            for entry in range(st.s[st_.MARK_DELETE] + 1):
                if st.holder[entry] != NOBODY:
                    let_go(st, st.holder[entry] + WIDE, entry)
            take_notice(st, world)
        if w[w_.SHARED] == 1:
            read_loop.plan_size(st, plan, world.attempts)
            read_loop.plan_replay(st, plan, world.attempts)
            read_loop_classic.plan_normal(st, plan)
        elif w[w_.ACKS_IN_SCAN] == 0:
            read_loop.plan_read(st, plan, world.attempts)
        else:
            plan_with_ack(st, world)
    if plan[0] == read_loop.REPLAY_READ:
        issue_replay_read(st, world)
    elif plan[0] == read_loop.NORMAL_READ:
        w[w_.READ_LIMIT] = plan[1]
        w[w_.READ_WAITED] = 0 if is_readable(st, world) else 1
    elif plan[0] == read_loop.BACK_OFF:
        w[w_.RETRY] = 1


@compiled_inside
def plan_with_ack(st: State, world: World) -> None:
    """Plan a read; an acknowledgement comes while the scan of the replay set is behind its first entry."""
    plan, attempts = world.plan, world.attempts
    read_loop.plan_size(st, plan, attempts)
    if plan[0] == read_loop.UNDECIDED:
        found = WIDE
        entry = read_loop.begin_scan(st)
        if entry >= 0:
            found = read_loop.scan(st, plan[1], found, entry, entry + 1, plan, attempts)
            acknowledge_within(st, world, w_.ACKS_IN_SCAN)
            entry = next_in_replay(st, entry + 1)
            found = read_loop.scan(st, plan[1], found, entry, st.s[st_.REPLAY_HIGH], plan, attempts)
        read_loop.end_scan(st, found, plan)
    read_loop.plan_normal(st, plan)


@compiled_inside
def issue_replay_read(st: State, world: World) -> None:
    """Issue a replay read, without the entries that are acknowledged already."""
    w, plan = world.w, world.plan
    at = w[w_.REPLAYS]
    size = 0
    for i in range(plan[1]):
        if st.deleted[plan[2 + i]] == 0 and at < w_.MAX_REPLAYS:
            world.replays[at * w_.MAX_ENTRIES + size] = plan[2 + i]
            size += 1
    commands.issue_replay(st, plan)
    if size == 0:
        w[w_.RETRY] = 1  # the next attempt follows at once, in another thread
        return
    world.replay_sizes[at] = size
    w[w_.REPLAYS] += 1


@compiled_inside
def complete_normal_read(st: State, world: World) -> int:
    """Complete the normal read with the entries that are there now, and dispatch them."""
    w = world.w
    if w[w_.TAKEN] == 0 and (st.s[st_.PENDING_READ] == 0 or read_waits(st, world)):
        return IMPOSSIBLE
    count = read_on(st, world)
    for i in range(count):
        world.entries[i] = world.taken[i]
    w[w_.TAKEN] = 0
    complete(st, world, False, count)
    return result_of(world)


@compiled_inside
def move_cursor(st: State, world: World) -> int:
    """Let the cursor return the entries of the normal read: the read position moves before the dispatcher has them.

    Source: OpReadEntry.internalReadEntriesComplete.
    """
    w = world.w
    if w[w_.TAKEN] != 0 or st.s[st_.PENDING_READ] == 0:
        return IMPOSSIBLE
    count = read_on(st, world)
    if count == 0:
        return IMPOSSIBLE
    w[w_.TAKEN] = 1 + count
    st.s[st_.READ_POSITION] = max(st.s[st_.READ_POSITION], world.taken[count - 1] + 1)
    return DONE


@compiled_inside
def read_on(st: State, world: World) -> int:
    """Write the result of the normal read into ``taken``, unless the cursor has returned it; returns how many entries."""
    w = world.w
    if w[w_.TAKEN] != 0:
        return w[w_.TAKEN] - 1
    count = WIDE
    if w[w_.READ_WAITED] == 0 or w[w_.EMPTY_WHEN_WAITED] == 0:
        for entry in range(st.s[st_.READ_POSITION], w[w_.STORED]):
            if st.deleted[entry] == 0 and count < w[w_.READ_LIMIT]:
                world.taken[count] = entry
                count += 1
    return count


@compiled_inside
def complete_replay_read(st: State, world: World) -> int:
    """Complete the oldest replay read, and dispatch its entries."""
    w = world.w
    if w[w_.REPLAYS] == 0:
        return IMPOSSIBLE
    count = world.replay_sizes[0]
    for i in range(count):
        world.entries[i] = world.replays[i]
    for at in range(1, w[w_.REPLAYS]):
        world.replay_sizes[at - 1] = world.replay_sizes[at]
        for i in range(world.replay_sizes[at]):
            world.replays[(at - 1) * w_.MAX_ENTRIES + i] = world.replays[at * w_.MAX_ENTRIES + i]
    w[w_.REPLAYS] -= 1
    complete(st, world, True, count)
    return result_of(world)


@compiled_inside
def complete(st: State, world: World, is_replay: bool, count: int) -> None:
    """Pass a read result to the dispatcher, and run its round."""
    entries = world.entries[:count]
    last = entries[count - 1] if count > 0 else -1
    if not commands.read_done(st, is_replay, last, count):
        attempt(st, world)
        return
    if world.w[w_.SHARED] == 1:
        take_turns(st, world, is_replay, entries)
    elif count > 0 and st.s[st_.N_CONSUMERS] == 0:
        commands.drop_result(st)
    else:
        dispatch(st, world, is_replay, entries)


@compiled_inside
def take_turns(st: State, world: World, is_replay: bool, entries: I64) -> None:
    """Run a round of Shared turn by turn, check what each sends, and attempt the next read.

    Source: PersistentDispatcherMultipleConsumers.trySendMessagesToConsumers.
    """
    left = WIDE
    for entry in entries:
        left += st.num_messages[entry]
    average = round_robin.average_batch(left, len(entries))
    done = WIDE
    while done < len(entries):
        slot = round_robin.take_turn(st)
        if slot == NOBODY:
            break
        turn = entries[done : done + round_robin.size_of_turn(st, slot, True, left, average)]
        for i in range(len(turn)):
            world.outcome[i] = slot
            left -= st.num_messages[turn[i]]
        promises.check_round(st, world, is_replay, turn)
        read_loop.send_groups(st, is_replay, turn, world.outcome)
        done += len(turn)
    for at in range(done, len(entries)):
        read_loop.requeue(st, entries[at], st_.NO_HASH)
    commands.finish_round(st, False)
    if done > 0:
        attempt(st, world)
    else:
        world.w[w_.RETRY] = 1


@compiled_inside
def choose_with_ack(st: State, world: World, is_replay: bool, entries: I64) -> int:
    """Choose consumers as ``read_loop.group`` does; an acknowledgement comes behind the first entry."""
    outcome, attempts = world.outcome, world.attempts
    if len(entries) == 0 or not read_loop.begin_group(st, is_replay, entries, outcome, attempts):
        return 0
    look = not replay_set_is_full(st, 0)
    read_loop.group_part(st, is_replay, entries, 0, 1, look, outcome, attempts)
    acknowledge_within(st, world, w_.ACKS_IN_ROUND)
    read_loop.group_part(st, is_replay, entries, 1, len(entries), look, outcome, attempts)
    read_loop.end_group(st, entries)
    return int(look)


@compiled_inside
def dispatch(st: State, world: World, is_replay: bool, entries: I64) -> None:
    """Run a dispatch round, check what it sends, and attempt the next read."""
    w = world.w
    classic = w[w_.CLASSIC] == 1
    if not is_replay:
        for entry in entries:
            if st.holder[entry] != NOBODY:
                w[w_.READ_AGAIN] = 1
    if w[w_.ACKS_IN_ROUND] == 0:
        chosen = commands.choose(st, classic, is_replay, entries, world.outcome, world.attempts)
    else:
        chosen = choose_with_ack(st, world, is_replay, entries)
    promises.check_round(st, world, is_replay, entries)
    read_loop.send_groups(st, is_replay, entries, world.outcome)
    sent_to = 0
    for i in range(len(entries)):
        slot = world.outcome[i]
        if slot >= 0:
            world.ever_sent[entries[i]] = 1
            first = True
            for earlier in range(i):
                first = first and world.outcome[earlier] != slot
            sent_to += int(first)
    has_more = st.s[st_.READ_POSITION] < w[w_.STORED]
    goes_on = commands.conclude(st, classic, chosen, entries, world.outcome, has_more, sent_to)
    looks_ahead, retries = goes_on & commands.LOOKS_AHEAD != 0, goes_on & commands.RETRIES != 0
    if sent_to > 0 or (retries and looks_ahead):
        attempt(st, world)
    elif retries:
        w[w_.RETRY] = 1


# --- timers --------------------------------------------------------------------------------------------------------


@compiled_inside
def run_timer(st: State, world: World) -> int:
    """End the unblock timer: attempt a read. A normal read that has waited beside a replay set is cancelled first.

    Source: RescheduleReadHandler.
    """
    w = world.w
    if w[w_.TIMER] == 0:
        return IMPOSSIBLE
    w[w_.TIMER] = 0
    if w[w_.CANCELS] == 1 and st.s[st_.N_REPLAY] > 0 and read_waits(st, world):
        cancel_read(st, world)
    attempt(st, world)
    return result_of(world)


@compiled_inside
def retry(st: State, world: World) -> int:
    """Attempt the read that was put off (reScheduleReadInMs)."""
    if world.w[w_.RETRY] == 0:
        return IMPOSSIBLE
    world.w[w_.RETRY] = 0
    attempt(st, world)
    return result_of(world)


# --- the end of a schedule -----------------------------------------------------------------------------------------


@compiled
def settle(st: State, world: World, names: int) -> int:
    """Let clients acknowledge all that they hold and grant permits, and reads complete, until nothing moves.

    As a client does, a consumer grants permits when it has none left. The broker attempts a read where something triggers
    it. Returns ``BROKEN`` if an entry is left then that a connected consumer owns, or if a step breaks a promise. Of
    consumers that hang nothing comes, and nothing is expected for them. Of Shared others may be sent again what they hold:
    so reads complete while a consumer hangs, also if nothing is left.
    """
    w = world.w
    if st.s[st_.N_CONSUMERS] == 0:
        return DONE
    quiet = 0
    for _ in range(LAST_ROUNDS):
        before = left_over(st, world)
        for name in range(names):
            slot = world.slot_of_name[name]
            if slot != NOBODY and not hangs(world, name):
                for entry in range(w[w_.STORED]):
                    if st.holder[entry] == slot:
                        acknowledge(st, world, entry)
                if st.permits[slot] < 1:
                    grant(st, world, slot, _MANY_PERMITS)
        complete_replay_read(st, world)
        complete_normal_read(st, world)
        run_timer(st, world)
        retry(st, world)
        if w[w_.BROKEN] != promises.KEPT:
            return BROKEN
        left = left_over(st, world)
        if left == 0 and (w[w_.SHARED] == 0 or w[w_.HANGING] == 0):
            return check_counters(st, world)
        quiet = quiet + 1 if left == before else 0
        if quiet == w_.MAX_ENTRIES:
            break
    if left_over(st, world) == 0:
        return check_counters(st, world)
    promises.note_stuck(st, world, first_left_over(st, world))
    return BROKEN


@compiled_inside
def check_counters(st: State, world: World) -> int:
    """Check the counters when clients have acknowledged all: nothing is left, unless a consumer hangs."""
    if world.w[w_.HANGING] != 0:
        return DONE
    for entry in range(world.w[w_.STORED]):
        if st.holder[entry] != NOBODY:
            acknowledge(st, world, entry)
    promises.check_counters(st, world)
    return result_of(world)


@compiled_inside
def left_over(st: State, world: World) -> int:
    """Count the stored entries that are not acknowledged, and that clients can expect to get; see ``is_expected``."""
    count = 0
    for entry in range(world.w[w_.STORED]):
        if is_expected(st, world, entry):
            count += 1
    return count


@compiled_inside
def first_left_over(st: State, world: World) -> int:
    """Return the first entry of ``left_over``."""
    entry = WIDE
    while not is_expected(st, world, entry):
        entry += 1
    return entry


@compiled_inside
def is_expected(st: State, world: World, entry: int) -> bool:
    """Check whether a stored entry is not acknowledged, and its key belongs to a consumer that does not hang.

    While a consumer that hangs holds an entry of the key, order may hold the others back. Of Shared everything is expected
    but what such a consumer holds.
    """
    if world.w[w_.SHARED] == 1:
        return st.deleted[entry] == 0 and is_expected_of_shared(st, world, entry)
    if st.deleted[entry] == 1 or st.hash_owner[st.hash_id[entry]] == NOBODY:
        return False
    if world.w[w_.HANGING] == 0:
        return True
    if hangs(world, st.hash_owner[st.hash_id[entry]] // SLOTS_PER_NAME):
        return False
    for other in range(world.w[w_.STORED]):
        same_key = st.holder[other] != NOBODY and st.hash_id[other] == st.hash_id[entry]
        if same_key and hangs(world, st.holder[other] // SLOTS_PER_NAME):
            return False
    return True


@compiled_inside
def is_expected_of_shared(st: State, world: World, entry: int) -> bool:
    """Check whether a consumer that does not hang is connected, and none that hangs holds an entry."""
    if st.holder[entry] != NOBODY and hangs(world, st.holder[entry] // SLOTS_PER_NAME):
        return False
    for name in range(len(world.slot_of_name)):  # noqa: SIM110 - compiled code makes no generators
        if world.slot_of_name[name] != NOBODY and not hangs(world, name):
            return True
    return False
