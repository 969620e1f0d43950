"""Event loop of a simulated Key_Shared dispatcher: take the next event, let the core decide, write the lines.

Data plane. ``run`` goes on until the control plane is needed: a membership change is due, a redelivery is requested, the
window of the log or the room for lines is used up. Functions of the core make every decision; this module only decides when
to call them, in the order of the broker's threads.

Source: readMoreEntries and its callers, ManagedCursorImpl.asyncReadEntriesOrWait, Consumer.flowPermits,
Consumer.individualAckNormal.
"""

from __future__ import annotations

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.broker import commands, read_loop, read_loop_classic
from dispatch_core.broker import state as st_
from dispatch_core.broker.ordering import last_sent_position, read_position
from dispatch_core.broker.permits import count_flow
from dispatch_core.broker.state import I64, State
from dispatch_core.simulation import kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.answers import in_turn, permits_due, requests_redelivery, turn, was_turned_to
from dispatch_core.simulation.deliveries import sent_lines
from dispatch_core.simulation.world import (
    Lines,
    World,
    attempt_at,
    event,
    hop_over,
    item,
    lasting,
    line,
    line4,
    pop,
    push,
    store_until,
)


@compiled
def run(st: State, world: World, out: Lines, until: int) -> int:
    """Run the events before ``until``, or until the control plane is needed; returns why it stopped."""
    w = world.w
    while True:
        if out.n[0] + w[w_.ROOM] > len(out.kind) or out.n[1] + w[w_.ROOM] > len(out.item):
            return w_.LINES_FULL
        if w[w_.HEAP] + 2 * len(world.entries) + 8 > len(world.heap_at):
            return w_.HEAP_FULL
        if w[w_.HEAP] == 0 or world.heap_at[0] >= until:
            if until == w_.NEVER:
                return w_.NOTHING_LEFT
            if store_until(world, until):
                return w_.WINDOW_USED_UP
            w[w_.NOW] = until
            return w_.CHANGE_DUE
        if store_until(world, world.heap_at[0]):
            return w_.WINDOW_USED_UP
        what = pop(world)
        kind = w_.kind_of(what)
        if (w[w_.STEPPED] >> kind) & 1:
            w[w_.NEXT_STEP] = what
            return w_.STEP_DUE
        if kind == w_.ANSWER:
            if answer(st, world, out, w_.slot_of(what), w_.number_of(what)):
                return w_.REDELIVERY_REQUESTED
        elif kind == w_.ACT:
            if world.act_kind[w_.number_of(what)] != w_.WHOLE:
                w[w_.NEXT_STEP] = what
                return w_.STEP_DUE
            act(st, world, out, w_.slot_of(what), w_.number_of(what))
        elif kind == w_.TURN:
            turn(st, world, w_.slot_of(what), w_.number_of(what))
        elif kind == w_.FLOW:
            flow(st, world, out, w_.slot_of(what), w_.number_of(what))
        elif kind == w_.ATTEMPT:
            if w[w_.ATTEMPT_AT] == w[w_.NOW]:
                w[w_.ATTEMPT_AT] = w_.NEVER
                attempt(st, world, out)
        elif kind == w_.UNBLOCK:
            if unblock(st, world):
                w[w_.NEXT_STEP] = what
                return w_.STEP_DUE
        elif kind == w_.REPLAY or w_.number_of(what) == w[w_.READ_NUMBER]:
            is_replay = kind == w_.REPLAY
            count = replayed(world, w_.number_of(what)) if is_replay else read_on(st, world)
            read_done(st, world, out, is_replay, count)


# --- clients -------------------------------------------------------------------------------------------------------


@compiled
def answer(st: State, world: World, out: Lines, slot: int, number: int) -> bool:
    """Let a consumer answer an entry: grant permits when due, and acknowledge. True: it requests a redelivery instead."""
    if st.connected[slot] == 0:
        return False
    entry = number - world.w[w_.BASE]
    if entry < 0:
        return False  # acknowledged by others, and forgotten
    if world.w[w_.RECORDED] == 1 and was_turned_to(st, world, slot, number):
        return False
    grant(st, world, slot, entry)
    if requests_redelivery(world, slot, number, st.redelivery_count[entry]) and st.holder[entry] == slot:
        world.w[w_.NACKED_SLOT] = slot
        world.w[w_.NACKED_ENTRY] = number
        return True
    ack(st, world, out, slot, entry)
    return False


@compiled
def act(st: State, world: World, out: Lines, slot: int, row: int) -> None:
    """Let a recorded client acknowledge an entry."""
    entry = world.act_entry[row] - world.w[w_.BASE]
    if st.connected[slot] == 0:
        return
    if entry >= 0 and was_turned_to(st, world, slot, world.act_entry[row]):
        in_turn(st, world, slot, w_.NEVER)
    elif entry >= 0:
        grant(st, world, slot, entry)
        ack(st, world, out, slot, entry)


@compiled
def grant(st: State, world: World, slot: int, entry: int) -> None:
    """Let a client take an entry from its queue, and grant permits when due."""
    take(world, slot, st.num_messages[entry] - st.acked_indexes[entry])


@compiled
def take(world: World, slot: int, messages: int) -> None:
    """Let a client take messages from its queue, and grant permits when due."""
    permits = permits_due(world, slot, messages)
    if permits > 0:
        push(world, world.w[w_.NOW], event(w_.FLOW, slot, permits))


@compiled_inside
def ack(st: State, world: World, out: Lines, slot: int, entry: int) -> None:
    """Apply an individual ack of a whole entry."""
    w = world.w
    number = entry + w[w_.BASE]
    line(out, kinds.ACK, w[w_.NOW], world.number[slot], w_.NO)
    item(out, number)
    hash_id = st.pending_hash[entry] + w_.NO  # numba: 64 bits, as everywhere
    was_blocked, before_delete = st.s[st_.BLOCKED_ON_UNACKED], st.s[st_.MARK_DELETE]
    done = commands.ack(st, entry)
    holder = done.holder
    if holder != st_.NOBODY:
        if w[w_.TRACE] == 1 and w[w_.REMOVALS_SHOWN] == 1:
            hash_value = world.hash_value[hash_id]
            line(out, kinds.PENDING_ACK_REMOVED, w[w_.NOW], world.number[holder], hash_value)
            item(out, number)
            if w[w_.RELEASES_SHOWN] == 1:
                line4(
                    out,
                    kinds.DRAINING_RELEASE,
                    w[w_.NOW],
                    world.number[holder],
                    hash_value,
                    w_.NO,
                    done.ref_count_before,
                    w_.NO,
                )
        flows_applied(st, world, out, holder, done.flows, done.permits)
        if was_blocked == 1 and st.s[st_.BLOCKED_ON_UNACKED] == 0:
            attempt_at(world, hop_over(world))
    if st.s[st_.MARK_DELETE] != before_delete:
        mark_delete_moved(st, world, out)
    unblocked(st, world)


@compiled
def acknowledge_all(st: State, world: World, out: Lines, slot: int, entries: I64) -> None:
    """Acknowledge all entries of a consumer that is about to leave."""
    for entry in entries:
        ack(st, world, out, slot, entry)


@compiled
def mark_delete_moved(st: State, world: World, out: Lines) -> None:
    """Free recently joined consumers that mark-delete has reached; if there are any, a read is attempted."""
    w = world.w
    if w[w_.TRACE] == 1:
        line(out, kinds.MARK_DELETE, w[w_.NOW], w_.NO, st.s[st_.MARK_DELETE] + w[w_.BASE])
    if st.s[st_.TRIMS_TO_MARK_DELETE] == 1:
        start_unblock_timer(st, world)  # until #25592
    if w[w_.WATCHES_RECENT] == 0:
        return
    freed = read_position.prune(st) if w[w_.CLASSIC] == 1 else last_sent_position.prune(st)
    if freed:
        if w[w_.TRACE] == 1:
            read_at, deleted_to = st.s[st_.READ_POSITION] + w[w_.BASE], st.s[st_.MARK_DELETE] + w[w_.BASE]
            line4(out, kinds.RECENTLY_JOINED_PRUNED, w[w_.NOW], w_.NO, read_at, deleted_to, w_.NO, w_.NO)
        attempt_at(world, hop_over(world))


@compiled
def unblocked(st: State, world: World) -> None:
    """Start the unblock timer if a draining hash that had refused an entry is free."""
    if st.s[st_.DRAIN_NOTICE] != 0:
        st.s[st_.DRAIN_NOTICE] = 0
        start_unblock_timer(st, world)


@compiled
def start_unblock_timer(st: State, world: World) -> None:
    """Start the timer after which a read is attempted; calls until then are merged.

    A normal read that waits all that time would keep the replay set waiting, too: it is cancelled then (``unblock``).
    Source: RescheduleReadHandler.
    """
    w = world.w
    calls = 0
    if st.s[st_.PENDING_READ] == 1:
        calls = max(w[w_.CALLS], w[w_.UNBLOCK_CALLS])
    w[w_.UNBLOCK_CALLS] = calls
    if w[w_.UNBLOCK_AT] == 0:
        w[w_.UNBLOCK_AT] = w[w_.NOW] + w[w_.UNBLOCK_US]
        push(world, w[w_.UNBLOCK_AT], event(w_.UNBLOCK, w_.NO, w_.NO))


@compiled_inside
def unblock(st: State, world: World) -> bool:
    """End the timer: attempt a read. Returns whether to cancel a normal read that has waited since the timer started."""
    w = world.w
    w[w_.UNBLOCK_AT] = 0
    attempt_at(world, hop_over(world))
    unchanged = w[w_.UNBLOCK_CALLS] != 0 and w[w_.UNBLOCK_CALLS] == w[w_.CALLS]
    w[w_.UNBLOCK_CALLS] = 0
    return (
        unchanged
        and st.s[st_.N_REPLAY] > 0
        and st.s[st_.PENDING_READ] == 1
        and w[w_.READ_READY_AT] > w[w_.NOW]
    )


@compiled_inside
def flow(st: State, world: World, out: Lines, slot: int, permits: int) -> None:
    """Count a client's permits, and pass them to the dispatcher unless the consumer is blocked."""
    if st.connected[slot] == 0:
        return
    w = world.w
    now, consumer = w[w_.NOW], world.number[slot]
    line4(out, kinds.FLOW, now, consumer, permits, st.blocked[slot] + w_.NO, w_.NO, w_.NO)
    reaches_dispatcher = count_flow(st, slot, permits)
    if w[w_.TRACE] == 1:
        line4(
            out, kinds.FLOW_COUNTED, now, consumer, st.permits[slot], st.blocked[slot] + w_.NO, w_.NO, w_.NO
        )
    if reaches_dispatcher:
        permits_applied(st, world, out, slot, permits)


@compiled
def flows_applied(st: State, world: World, out: Lines, slot: int, notices: int, permits: int) -> None:
    """Pass permits to the dispatcher that an ack or a redelivery request has set free; see ``commands.Flows``."""
    for at in range(notices):
        permits_applied(st, world, out, slot, permits if at == 0 else w_.NO)


@compiled_inside
def permits_applied(st: State, world: World, out: Lines, slot: int, permits: int) -> None:
    """Pass permits to the dispatcher, which then attempts a read."""
    w = world.w
    commands.apply_flow(st, slot, permits)
    if w[w_.TRACE] == 1:
        line(out, kinds.FLOW_APPLIED, w[w_.NOW], world.number[slot], permits)
    attempt_at(world, hop_over(world))


# --- reads ---------------------------------------------------------------------------------------------------------


@compiled
def attempt(st: State, world: World, out: Lines) -> None:
    """Attempt a read, and issue it to the storage (``readMoreEntries``)."""
    w = world.w
    w[w_.CALLS] += 1
    trace = w[w_.TRACE] == 1
    if trace:
        line(out, kinds.READ_ATTEMPT, w[w_.NOW], w_.NO, w_.NO)
    plan = world.plan
    if w[w_.CLASSIC] == 1:
        read_loop.plan_size(st, plan, world.attempts)
        read_loop_classic.plan_replay(st, plan)
        read_loop_classic.plan_normal(st, plan)
    else:
        if commands.trim_is_due(st):
            commands.trim(st, 0)  # the simulated entries lie in one ledger
        read_loop.plan_read(st, plan, world.attempts)
    if trace:
        blocked_lines(world, out)
    issue(st, world, out)
    if trace:
        pending_read, pending_replay = st.s[st_.PENDING_READ], st.s[st_.PENDING_REPLAY]
        total = st.s[st_.TOTAL_PERMITS]
        line4(out, kinds.READ_ATTEMPT_END, w[w_.NOW], w_.NO, total, pending_read, pending_replay, w_.NO)


@compiled
def issue(st: State, world: World, out: Lines) -> None:
    """Issue the read of the plan, if it is one."""
    w, plan = world.w, world.plan
    if plan[0] == read_loop.REPLAY_READ:
        issue_replay_read(st, world, out)
    elif plan[0] == read_loop.NORMAL_READ:
        if w[w_.TRACE] == 1:
            read_at = st.s[st_.READ_POSITION] + w[w_.BASE]
            line4(out, kinds.READ_ISSUED, w[w_.NOW], w_.NO, plan[1], read_at, w_.NO, w_.NO)
        issue_normal_read(st, world, plan[1])
    elif plan[0] == read_loop.BACK_OFF:
        back_off(world)


@compiled_inside
def blocked_lines(world: World, out: Lines) -> None:
    """Write a line for each refusal by a draining hash that the step before has noted."""
    for at in range(world.attempts[0]):
        slot, hash_id = world.attempts[1 + 2 * at], world.attempts[2 + 2 * at]
        hash_value = world.hash_value[hash_id]
        line(out, kinds.DRAINING_BLOCKED, world.w[w_.NOW], world.number[slot], hash_value)


@compiled_inside
def issue_replay_read(st: State, world: World, out: Lines) -> None:
    """Issue a replay read to the storage, without the entries that are acknowledged already."""
    w, plan = world.w, world.plan
    at = w[w_.REPLAYS] % w_.REPLAYS_KEPT
    width = len(world.replays) // w_.REPLAYS_KEPT
    size = 0
    for i in range(plan[1]):
        if st.deleted[plan[2 + i]] == 0:
            world.replays[at * width + size] = plan[2 + i] + w[w_.BASE]
            size += 1
    world.replay_size[at] = size
    if w[w_.TRACE] == 1:
        line(out, kinds.REPLAY_READ_ISSUED, w[w_.NOW], w_.NO, w_.NO)
        for i in range(plan[1]):
            item(out, plan[2 + i] + w[w_.BASE])
        if size < plan[1]:
            line(out, kinds.REPLAY_ALREADY_DELETED, w[w_.NOW], w_.NO, w_.NO)
            for i in range(plan[1]):
                if st.deleted[plan[2 + i]] == 1:
                    item(out, plan[2 + i] + w[w_.BASE])
    commands.issue_replay(st, plan)
    if size == 0:
        attempt_at(world, hop_over(world))
        return
    takes = lasting(world, w[w_.REPLAY_US] + size * w[w_.REPLAY_ENTRY_US])
    push(world, w[w_.NOW] + takes, event(w_.REPLAY, w_.NO, w[w_.REPLAYS]))
    w[w_.REPLAYS] += 1


@compiled_inside
def issue_normal_read(st: State, world: World, limit: int) -> None:
    """Issue a normal read at the cursor; where there are no entries, it completes when one is stored."""
    w = world.w
    w[w_.READ_NUMBER] += 1
    w[w_.READ_LIMIT] = limit
    w[w_.READ_WAITED] = 0
    w[w_.READ_READY_AT] = w[w_.NOW]
    at = st.s[st_.READ_POSITION]
    while at < w[w_.STORED] and st.deleted[at] == 1:
        at += 1
    if at >= w[w_.STORED]:
        w[w_.READ_WAITED] = 1
        if w[w_.STORED] == len(world.publish_us):
            w[w_.READ_READY_AT] = w_.NEVER  # all is published and read
            return
        w[w_.READ_READY_AT] = world.publish_us[w[w_.STORED]]
    takes = lasting(world, w[w_.READ_US] + min(w[w_.STORED] - at, limit) * w[w_.READ_ENTRY_US])
    push(world, w[w_.READ_READY_AT] + takes, event(w_.READ, w_.NO, w[w_.READ_NUMBER]))


@compiled_inside
def back_off(world: World) -> None:
    """Delay the next read attempt, twice as long each time until entries are sent."""
    w = world.w
    w[w_.BACK_OFF_US] = min(max(2 * w[w_.BACK_OFF_US], w[w_.BACK_OFF_FIRST_US]), w[w_.BACK_OFF_MOST_US])
    attempt_at(world, w[w_.NOW] + w[w_.BACK_OFF_US])


@compiled
def read_on(st: State, world: World) -> int:
    """Write the result of the normal read: entries from the read position on that are not acknowledged; returns how many."""
    w = world.w
    count = 0
    if w[w_.READ_WAITED] == 0 or w[w_.EMPTY_WHEN_WAITED] == 0:
        at = st.s[st_.READ_POSITION]
        while at < w[w_.STORED] and count < w[w_.READ_LIMIT]:
            if st.deleted[at] == 0:
                world.entries[count] = at
                count += 1
            at += 1
    return count


@compiled
def replayed(world: World, number: int) -> int:
    """Write the result of a replay read, all the entries it was issued for; returns how many."""
    w = world.w
    at = number % w_.REPLAYS_KEPT
    width = len(world.replays) // w_.REPLAYS_KEPT
    count = world.replay_size[at]
    for i in range(count):
        world.entries[i] = world.replays[at * width + i] - w[w_.BASE]
    return count


@compiled
def read_done(st: State, world: World, out: Lines, is_replay: bool, count: int) -> None:
    """Pass a read result to the dispatcher, and run its round."""
    w = world.w
    entries = world.entries[:count]
    taken = commands.read_done(st, is_replay, entries[count - 1] if count > 0 else -1, count)
    if w[w_.TRACE] == 1:
        read_at, deleted_to = st.s[st_.READ_POSITION] + w[w_.BASE], st.s[st_.MARK_DELETE] + w[w_.BASE]
        line4(out, kinds.READ_DONE, w[w_.NOW], w_.NO, int(is_replay), read_at, w_.NO, w_.NO)
        for entry in entries:
            item(out, entry + w[w_.BASE])
        if not taken:
            line4(out, kinds.REWIND, w[w_.NOW], w_.NO, read_at, deleted_to, w_.NO, w_.NO)
    if taken:
        dispatch_round(st, world, out, is_replay, entries)
    else:
        attempt_at(world, hop_over(world))


# --- rounds --------------------------------------------------------------------------------------------------------


@compiled_inside
def dispatch_round(st: State, world: World, out: Lines, is_replay: bool, entries: I64) -> None:
    """Run a dispatch round."""
    w = world.w
    trace = w[w_.TRACE] == 1
    if trace:
        read_at, deleted_to = st.s[st_.READ_POSITION] + w[w_.BASE], st.s[st_.MARK_DELETE] + w[w_.BASE]
        line4(out, kinds.ROUND_BEGIN, w[w_.NOW], w_.NO, int(is_replay), read_at, deleted_to, w_.NO)
        for entry in entries:
            item(out, entry + w[w_.BASE])
    if len(entries) > 0 and st.s[st_.N_CONSUMERS] == 0:
        drop_result(st, world, out)
        return
    classic = w[w_.CLASSIC] == 1
    chosen = commands.choose(st, classic, is_replay, entries, world.outcome, world.attempts)
    if trace:
        blocked_lines(world, out)
    send_chosen(st, world, out, is_replay, entries, chosen)


@compiled
def send(st: State, world: World, out: Lines, is_replay: bool, entries: I64) -> int:
    """Send entries to the consumers in ``world.outcome``, with their lines; returns how many consumers have deliveries."""
    for i in range(len(entries)):
        if world.outcome[i] >= 0:
            world.permits_before[world.outcome[i]] = st.permits[world.outcome[i]]
    read_loop.send_groups(st, is_replay, entries, world.outcome)
    return sent_lines(st, world, out, entries)


@compiled
def send_chosen(st: State, world: World, out: Lines, is_replay: bool, entries: I64, chosen: int) -> None:
    """Send the entries of a round to the consumers chosen for them, end the round, and schedule the next read."""
    w = world.w
    classic = w[w_.CLASSIC] == 1
    sent_to = send(st, world, out, is_replay, entries)
    has_more = st.s[st_.READ_POSITION] < w[w_.STORED]
    goes_on = commands.conclude(st, classic, chosen, entries, world.outcome, has_more, sent_to)
    looks_ahead, retry = goes_on & commands.LOOKS_AHEAD != 0, goes_on & commands.RETRIES != 0
    if w[w_.TRACE] == 1:
        due = st.s[st_.SKIP_NEXT_REPLAY]
        line4(
            out,
            kinds.ROUND_END,
            w[w_.NOW],
            w_.NO,
            int(retry),
            st.s[st_.N_REPLAY],
            due,
            int(has_more),
        )
    reads_again(world, sent_to, retry, looks_ahead, len(entries) * w[w_.WRITE_ENTRY_US])


@compiled_inside
def drop_result(st: State, world: World, out: Lines) -> None:
    """End a round that begins when all consumers have left: its entries are dropped, and the cursor is rewound."""
    w = world.w
    commands.drop_result(st)
    if w[w_.TRACE] == 1:
        read_at, deleted_to = st.s[st_.READ_POSITION] + w[w_.BASE], st.s[st_.MARK_DELETE] + w[w_.BASE]
        line4(out, kinds.REWIND, w[w_.NOW], w_.NO, read_at, deleted_to, w_.NO, w_.NO)
        has_more = int(st.s[st_.READ_POSITION] < w[w_.STORED])
        due = st.s[st_.SKIP_NEXT_REPLAY]
        line4(out, kinds.ROUND_END, w[w_.NOW], w_.NO, 0, st.s[st_.N_REPLAY], due, has_more)


@compiled
def deliver_turn(st: State, world: World, out: Lines, slot: int, entries: I64) -> None:
    """Write the line of a turn's deliveries (Shared), and schedule the answers; ``permits_before`` is that of the turn."""
    for i in range(len(entries)):
        world.outcome[i] = slot
    sent_lines(st, world, out, entries)


@compiled
def reads_again(world: World, sent_to: int, retry: bool, look_ahead: bool, longer_us: int) -> None:
    """Schedule the dispatcher's next read: at once, after a back-off, or when the deliveries are written."""
    w = world.w
    if sent_to > 0:
        w[w_.BACK_OFF_US] = 0
        attempt_at(world, w[w_.NOW] + lasting(world, w[w_.WRITE_US] + longer_us))
    if not retry:
        return
    if look_ahead or sent_to > 0 or w[w_.RETRY_BACK_OFF] == 0:
        attempt_at(world, hop_over(world) + longer_us)
    else:
        back_off(world)
