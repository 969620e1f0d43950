"""Simulated clients: the time a consumer takes for an entry, and its redelivery requests.

There are two kinds of clients. *Synthetic* ones take their latency from a table of samples drawn beforehand, by entry,
consumer and number of deliveries. So an answer needs no state, and the same delivery always has the same answer. *Recorded*
ones do what a log shows of them, at its times: acknowledgements, redelivery requests and grants of permits
(``what_if.clients`` fills the arrays).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.state import State
from dispatch_core.simulation.world import (
    ACT,
    ANSWER,
    BASE,
    BORROWED,
    FLOW,
    KEEPS,
    NETWORK_US,
    NEVER,
    NOW,
    OTHERWISE,
    PART,
    RECORDED,
    REFUSES,
    SALT,
    TURN,
    WHOLE,
    World,
    event,
    push,
)

#: A recorded answer at most so long before the simulated delivery is taken as the answer to it.
LATE_US: Final = 20_000
#: An entry that is delivered so much sooner than under the recorded rules is answered like others delivered at that time.
EARLY_US: Final = 50_000
#: What the log shows of a client and an entry: nothing, a delivery without an answer, or answers.
NOTHING: Final = 0
KEPT: Final = 1
ANSWERS: Final = 2
#: Entries that a client acknowledges in one step of a turn.
TURNED_AT_ONCE: Final = 4
#: Samples in a table.
SAMPLES: Final = 1 << 16
_MIX: Final = 2654435761  # spreads neighbouring entries over the table (Knuth)
_MASK: Final = (1 << 31) - 1


def latencies(random: np.random.Generator, mean_us: int, sigma: float = 0.8) -> npt.NDArray[np.int64]:
    """Draw log-normal samples with the given mean, at least one microsecond each."""
    samples = random.lognormal(np.log(mean_us) - sigma * sigma / 2, sigma, SAMPLES)
    return np.maximum(samples.astype(np.int64), 1)


def refusals(random: np.random.Generator, share: float) -> npt.NDArray[np.uint8]:
    """Draw the deliveries that are followed by a redelivery request: a share of the table."""
    return (random.random(SAMPLES) < share).astype(np.uint8)


@compiled
def _sample(world: World, number: int, slot: int, deliveries: int, size: int) -> int:
    mixed = ((number & _MASK) * _MIX + slot * 40503 + deliveries * 7919 + world.w[SALT] * 104729) & _MASK
    return (mixed >> 8) & (size - 1)


@compiled
def answers_after(world: World, slot: int, number: int, deliveries: int) -> int:
    """Return the time that a consumer takes for an entry after its arrival, microseconds."""
    at = _sample(world, number, slot, deliveries, len(world.latency_us))
    return world.latency_us[at] * world.slowness[slot]


@compiled
def requests_redelivery(world: World, slot: int, number: int, deliveries: int) -> bool:
    """True if the consumer requests a redelivery of the entry instead of acknowledging it."""
    return world.refuses[_sample(world, number, slot + 1, deliveries, len(world.refuses))] == 1


@compiled
def permits_due(world: World, slot: int, messages: int) -> int:
    """Return the permits that a client grants after taking messages from its queue: half a queue at a time, or 0.

    A recorded client has taken what it has acknowledged. Once it is sent more than under the recorded rules, and its
    recorded grants are used up, it takes messages as far ahead of its acknowledgements as those grants show.

    Source: ConsumerImpl.increaseAvailablePermits.
    """
    world.taken[slot] += messages
    taken = world.taken[slot]
    if world.w[RECORDED] == 1:
        if world.flow_next[slot] == world.flow_end[slot] and world.received[slot] > world.foreseen[slot]:
            taken += world.ahead[slot]
        taken = min(taken, world.received[slot])
    permits = taken + world.queue[slot] - world.granted[slot]
    if permits < max(world.queue[slot] // 2, 1):
        return 0
    world.granted[slot] += permits
    return permits


# --- recorded clients ----------------------------------------------------------------------------------------------


@compiled
def flows_due(world: World, slot: int) -> None:
    """Schedule recorded grants of permits that the messages received by now justify, at their time or now.

    A client grants no more than its queue plus the messages it has taken from it, which were sent to it before.
    """
    at = world.flow_next[slot]
    while at < world.flow_end[slot]:
        permits = world.flow_permits[at]
        if world.granted[slot] + permits - world.queue[slot] > world.received[slot]:
            break
        world.granted[slot] += permits
        push(world, max(world.flow_us[at], world.w[NOW]), event(FLOW, slot, permits))
        at += 1
    world.flow_next[slot] = at


@compiled
def acts_on(world: World, slot: int, number: int) -> None:
    """Schedule the acts of a recorded client on an entry that is delivered now, each at its time.

    These are the acts that the log shows of this client and this entry from now on, up to the first that ends it. Where it
    shows none, the client acts as on the entry that was delivered to it nearest to now, or in a turn (``turn``) if it was
    at work on that one.
    """
    world.sent_us[number] = world.w[NOW]
    world.turned_to[number] = 0
    chain(world, slot, number)
    shown = acts_of(world, slot, number, True)
    if shown == NOTHING:
        shown = acts_of(world, slot, number, False)
    at = NEVER
    if shown == KEPT:
        at = answers_as_others(world, slot, number)
    elif shown == NOTHING:
        at = answers_like(world, slot, number)
    if at != NEVER:
        push(world, at, event(ANSWER, slot, number))


@compiled
def acts_of(world: World, slot: int, number: int, connection: bool) -> int:
    """Schedule the acts that the log shows of this connection, or of any of its name; returns NOTHING, KEPT or ANSWERS."""
    now, network = world.w[NOW], world.w[NETWORK_US]
    shown = NOTHING
    for row in range(world.act_start[number], world.act_start[number + 1]):
        kind = world.act_kind[row]
        late = 0
        if kind < REFUSES:
            late = LATE_US
        if world.act_us[row] + late < now or world.act_sent_us[row] > now + EARLY_US:
            continue
        if connection:
            if world.act_number[row] != world.number[slot]:
                continue
        elif kind == KEEPS or world.act_who[row] != world.who[slot]:
            continue
        if kind == KEEPS:
            return KEPT
        if connection and world.act_due[row] == 1 and acts_again(world, row, number):
            continue  # the answer to an earlier delivery
        shown = ANSWERS
        if kind < REFUSES:
            if connection:
                world.act_due[row] = 1
            push(world, max(world.act_us[row], now + 2 * network), event(ACT, slot, row))
        if kind != WHOLE:
            world.turned_to[number] = OTHERWISE
        if kind != PART:
            break
    return shown


@compiled
def acts_again(world: World, row: int, number: int) -> bool:
    """True if the log shows another acknowledgement of a whole entry by the same connection behind this row."""
    for later in range(row + 1, world.act_start[number + 1]):
        if world.act_number[later] == world.act_number[row] and world.act_kind[later] == WHOLE:
            return True
    return False


@compiled
def answers_as_others(world: World, slot: int, number: int) -> int:
    """Return the time at which a client answers an entry it did not answer in the log: as another did, if still connected.

    NEVER = the entry was lost with the connection, or nobody ever acknowledged it.
    """
    others = world.acked_us[number]
    if others == NEVER or others > world.until_us[slot]:
        return NEVER
    return max(others, world.w[NOW] + 2 * world.w[NETWORK_US])


@compiled
def answers_like(world: World, slot: int, number: int) -> int:
    """Return the time at which a client answers an entry that another got in the log; NEVER = it does not."""
    now, like = world.w[NOW], world.like[slot]
    first, end = world.like_start[like], world.like_start[like + 1]
    if first == end:
        return answers_as_others(world, slot, number)
    soon = now + 2 * world.w[NETWORK_US]
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        if world.like_us[middle] < now:
            low = middle + 1
        else:
            high = middle
    if low == end or (low > first and now - world.like_us[low - 1] <= world.like_us[low] - now):
        low -= 1
    answered = world.like_answer_us[low]
    if answered == NEVER:
        return NEVER
    if answered >= now and world.like_busy[low] == 1 and world.turn_next[slot] < world.turn_end[slot]:
        return NEVER  # in a turn, see ``turn``
    if answered < now:
        answered = now + answered - world.like_us[low]
    return max(answered, soon)


@compiled
def takes_at_once(world: World, slot: int) -> None:
    """Let a client whose recorded grants and acks are over take messages as they come, as far ahead as it did."""
    if world.flow_next[slot] == world.flow_end[slot] and world.turn_next[slot] == world.turn_end[slot]:
        permits = permits_due(world, slot, 0)
        if permits > 0:
            push(world, world.w[NOW] + 2 * world.w[NETWORK_US], event(FLOW, slot, permits))


# --- turns ---------------------------------------------------------------------------------------------------------


@compiled
def next_turn(world: World, slot: int) -> None:
    """Schedule a connection's next turn: the time of one of its recorded acks."""
    at = world.turn_next[slot]
    if at < world.turn_end[slot]:
        # behind the acts of this time
        push(world, max(world.act_us[world.turn_act[at]], world.w[NOW]) + 1, event(TURN, slot, at))


@compiled
def turn(st: State, world: World, slot: int, at: int) -> None:
    """Let a client use the time of a recorded ack, and schedule the next such turn.

    A client acknowledges as many entries as it did, when it did. If it was not sent the entry that it acknowledged then, it
    acknowledges another. If it had acknowledged by then all that it was sent up to some time, it acknowledges all that it
    was sent up to then. A borrowed turn is one more acknowledgement.
    """
    if st.connected[slot] == 0:
        return
    row = world.turn_act[at]
    if world.turn_ends_us[at] == BORROWED:
        in_turn(st, world, slot, NEVER)
    elif world.act_due[row] == 0:
        world.act_due[row] = 1
        in_turn(st, world, slot, world.turn_until_us[at])
    if world.turn_ends_us[at] > 0:
        left = TURNED_AT_ONCE
        while left > 0 and in_turn(st, world, slot, world.turn_ends_us[at]):
            left -= 1
        if left == 0:
            push(world, world.w[NOW], event(TURN, slot, at))
            return
    world.turn_next[slot] = at + 1
    next_turn(world, slot)


@compiled
def was_turned_to(st: State, world: World, slot: int, number: int) -> bool:
    """True if the client has acknowledged this delivery in a turn."""
    return world.turned_to[number] == slot + 1 and st.holder[number - world.w[BASE]] != slot


@compiled
def in_turn(st: State, world: World, slot: int, before_us: int) -> bool:
    """Let a client acknowledge the entry that was sent to it first, if before a time; returns whether there is one."""
    w = world.w
    number = world.first_sent[slot]
    while number >= 0:
        if world.turned_to[number] == 0 and st.holder[max(number - w[BASE], 0)] == slot and number >= w[BASE]:
            at_us = world.sent_us[number]
            if at_us >= before_us or at_us + 2 * w[NETWORK_US] > w[NOW]:
                return False
            unchain(world, number)
            world.turned_to[number] = slot + 1
            push(world, w[NOW], event(ANSWER, slot, number))
            return True
        unchain(world, number)
        number = world.first_sent[slot]
    return False


@compiled
def chain(world: World, slot: int, number: int) -> None:
    """Put an entry behind those that were sent to a connection before."""
    if world.sent_slot[number] >= 0:
        unchain(world, number)
    last = world.last_sent[slot]
    world.sent_slot[number], world.sent_before[number], world.sent_next[number] = slot, last, -1
    if last >= 0:
        world.sent_next[last] = number
    else:
        world.first_sent[slot] = number
    world.last_sent[slot] = number


@compiled
def unchain(world: World, number: int) -> None:
    """Take an entry out of the chain of its connection."""
    slot, before, behind = world.sent_slot[number], world.sent_before[number], world.sent_next[number]
    if before >= 0:
        world.sent_next[before] = behind
    else:
        world.first_sent[slot] = behind
    if behind >= 0:
        world.sent_before[behind] = before
    else:
        world.last_sent[slot] = before
    world.sent_slot[number] = -1
