"""Frequent events of a simulated Failover dispatcher: acknowledgements, and entries on their way to the client.

Data plane. Reads, rounds, permits and active-consumer changes are few: the loop returns each such event when it is due, and
the control plane (``failover_run``) handles it by the dispatcher's own methods.
"""

from __future__ import annotations

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker import cursor
from dispatch_core.broker import state as st_
from dispatch_core.broker.state import I64, State
from dispatch_core.simulation import kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.answers import (
    acts_on,
    answers_after,
    flows_due,
    permits_due,
    requests_redelivery,
)
from dispatch_core.simulation.world import Lines, World, event, item, line, pop, push, store_until


@compiled
def run(st: State, world: World, out: Lines, until: int) -> int:
    """Let consumers answer until another event is due; returns why it stopped."""
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
        if w_.kind_of(what) != w_.ANSWER:
            w[w_.NEXT_STEP] = what
            return w_.STEP_DUE
        slot, number = w_.slot_of(what), w_.number_of(what)
        if world.number[slot] == 0:
            continue  # it has left
        grant(st, world, slot, number - w[w_.BASE])
        w[w_.SENT] += 1
        if requests_redelivery(world, slot, number, w[w_.SENT] & 7):
            w[w_.NACKED_SLOT] = slot
            w[w_.NACKED_ENTRY] = number
            return w_.REDELIVERY_REQUESTED
        ack(st, world, out, slot, number)


@compiled
def grant(st: State, world: World, slot: int, entry: int) -> None:
    """Let a client take an entry from its queue, and grant permits when due."""
    messages = 1
    if entry >= 0:
        messages = st.num_messages[entry] + w_.NO
    permits = permits_due(world, slot, messages)
    if permits > 0:
        push(world, world.w[w_.NOW], event(w_.FLOW, slot, permits))


@compiled
def ack(st: State, world: World, out: Lines, slot: int, number: int) -> None:
    """Apply an individual ack of a whole entry by the consumer it was sent to; an entry may be acknowledged again."""
    w = world.w
    line(out, kinds.ACK, w[w_.NOW], world.number[slot], w_.NO)
    item(out, number)
    entry = number - w[w_.BASE]
    before = st.s[st_.MARK_DELETE]
    if entry <= before:
        return
    cursor.acknowledge(st, entry)
    if w[w_.TRACE] == 1 and st.s[st_.MARK_DELETE] != before:
        line(out, kinds.MARK_DELETE, w[w_.NOW], w_.NO, st.s[st_.MARK_DELETE] + w[w_.BASE])


@compiled
def acknowledge_all(st: State, world: World, out: Lines, slot: int, entries: I64) -> None:
    """Acknowledge entries of a consumer that is about to leave."""
    for entry in entries:
        ack(st, world, out, slot, entry + world.w[w_.BASE])


@compiled
def read_on(st: State, world: World, limit: int) -> int:
    """Write unacknowledged entries from the read position on into ``world.entries``; returns how many."""
    count = 0
    at = st.s[st_.READ_POSITION]
    while at < world.w[w_.STORED] and count < limit:
        if st.deleted[at] == 0:
            world.entries[count] = at
            count += 1
        at += 1
    return count


@compiled
def deliver(st: State, world: World, out: Lines, slot: int, entries: I64) -> None:
    """Send entries on their way to their consumer, which will answer; they are the items of the last line."""
    w = world.w
    for entry in entries:
        number = entry + w[w_.BASE]
        item(out, number)
        if w[w_.RECORDED] == 1:
            world.received[slot] += st.num_messages[entry]
            flows_due(world, slot)
            acts_on(world, slot, number)
            continue
        after = 2 * w[w_.NETWORK_US] + answers_after(world, slot, number, w_.NO)
        push(world, w[w_.NOW] + after, event(w_.ANSWER, slot, number))


@compiled
def items(world: World, out: Lines, entries: I64) -> None:
    """Write entries as items of the last line."""
    for entry in entries:
        item(out, entry + world.w[w_.BASE])
