"""Deliveries of a simulated Key_Shared dispatcher's round: their lines, and the clients' answers.

Data plane, called by ``key_shared_loop``.

Source: PersistentStickyKeyDispatcherMultipleConsumers.trySendMessagesToConsumers, Consumer.sendMessages.
"""

from __future__ import annotations

from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.broker import read_loop
from dispatch_core.broker.state import I64, State
from dispatch_core.simulation import kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.answers import acts_on, answers_after, flows_due, takes_at_once
from dispatch_core.simulation.world import Lines, World, event, item, line, push


@compiled_inside
def chain_by_consumer(world: World, out: Lines, entries: I64) -> None:
    """Chain the entries of a round by consumer: ``first_of`` a consumer, then ``next_of`` an entry, -1 at the end."""
    for i in range(len(entries)):
        slot = world.outcome[i]
        world.next_of[i] = -1
        if slot >= 0:
            world.first_of[slot] = -1
        elif slot == read_loop.REFUSED:
            line(out, kinds.PENDING_ACK_REFUSED, world.w[w_.NOW], w_.NO, w_.NO)
            item(out, entries[i] + world.w[w_.BASE])
    for i in range(len(entries)):
        slot = world.outcome[i]
        if slot < 0:
            continue
        if world.first_of[slot] < 0:
            world.first_of[slot] = i
        else:
            world.next_of[world.last_of[slot]] = i
        world.last_of[slot] = i


@compiled_inside
def sent_lines(st: State, world: World, out: Lines, entries: I64) -> int:
    """Write the lines of a round's deliveries, and schedule the answers; returns how many consumers have deliveries."""
    w = world.w
    now, sent_to = w[w_.NOW], 0
    chain_by_consumer(world, out, entries)
    for i in range(len(entries)):
        slot = world.outcome[i]
        if slot < 0 or world.first_of[slot] != i:
            continue
        sent_to += 1
        line(out, kinds.SENT, now, world.number[slot], world.permits_before[slot])
        at = i
        while at >= 0:
            item(out, entries[at] + w[w_.BASE])
            deliver(st, world, slot, entries[at])
            at = world.next_of[at]
        if w[w_.TRACE] == 1:
            line(out, kinds.SEND_RETURNED, now, world.number[slot], st.permits[slot])
    return sent_to


@compiled_inside
def deliver(st: State, world: World, slot: int, entry: int) -> None:
    """Send an entry on its way to its consumer, and schedule the answer."""
    w = world.w
    number = entry + w[w_.BASE]
    w[w_.SENT] += 1
    w[w_.LAST_SENT] = max(w[w_.LAST_SENT], number)
    if st.deleted[entry] == 1 and w[w_.N_SENT_ACKED] < len(world.sent_acked):
        world.sent_acked[w[w_.N_SENT_ACKED]] = number
        w[w_.N_SENT_ACKED] += 1
    if w[w_.RECORDED] == 1:
        world.received[slot] += st.num_messages[entry] - st.acked_indexes[entry]
        flows_due(world, slot)
        takes_at_once(world, slot)
        acts_on(world, slot, number)
        return
    after = w[w_.NETWORK_US] + answers_after(world, slot, number, st.redelivery_count[entry])
    push(world, w[w_.NOW] + after + w[w_.NETWORK_US], event(w_.ANSWER, slot, number))
