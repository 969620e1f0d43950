"""Take the steps of a schedule on a Failover subscription: the rules, in the order in which the broker's threads call them.

Data plane. Who becomes active is asked of the selector once for each list of consumers (``ActiveConsumers``). Every other
decision is made by functions that ``SingleActiveDispatcher`` calls, too. A consumer is the number of its connection, from 1
on; 0 = nobody. A step that is not possible changes nothing.

A client discards what was read before its last redelivery request (the consumer's epoch, PIP-84): it was sent, and it cannot
be acknowledged.

Source: PersistentDispatcherSingleActiveConsumer, AbstractDispatcherSingleActiveConsumer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.arrays.structs import by_address
from dispatch_core.broker import cursor, cursor_moves
from dispatch_core.broker import single_active_rules as rules
from dispatch_core.broker import state as st_
from dispatch_core.broker.permits import average_after, messages_per_entry
from dispatch_core.broker.profiles import FailoverRule, Profile
from dispatch_core.broker.selectors import failover
from dispatch_core.broker.state import I8, I64, WIDE, State
from dispatch_core.hunt import bounded as b_
from dispatch_core.hunt import promises
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt.bounded import BoundedSearch
from dispatch_core.hunt.broker_steps import BROKEN, DONE, IMPOSSIBLE, LAST_ROUNDS
from dispatch_core.hunt.search import Find, begin
from dispatch_core.hunt.world import MAX_ENTRIES, arena

#: Connections of a schedule; more than a schedule has steps, and room for those that connect again in the end.
MAX_CONSUMERS: Final = 64
#: Reads in flight: more than one where redelivery requests have replaced some.
MAX_READS: Final = 32
_LEVELS: Final = 2
_MANY_PERMITS: Final = 10
_AT_ONCE: Final = int(rules.ActiveChange.AT_ONCE)
_DELAY_STARTS: Final = int(rules.ActiveChange.DELAY_STARTS)
#: Causes of a standstill, by what a read waited for when the cursor was rewound.
_STUCK_BY: Final = ("no_read", "rewind_beside_read", "rewind_undone")

# scalars
NODE: Final = 0  # of the list of consumers
STORED: Final = 1  # entries
JOINED: Final = 2  # connections that there were
ACTIVE: Final = 3
DELAY_RUNS: Final = 4  # readOnActiveConsumerTask
PENDING: Final = 5  # havePendingRead
EPOCH: Final = 6
READS: Final = 7  # in flight
WAS_BROKEN: Final = 8  # the promise that is broken, 0 = none
AT_ENTRY: Final = 9
AT_CONSUMER: Final = 10
OF_BEFORE: Final = 11  # the entry was sent by a read from before a redelivery request, and by another
AWAY: Final = 12  # names that resets have disconnected
SLOW_SEND: Final = 13  # the next send takes long
ATTEMPT_DUE: Final = 14  # a read attempt follows when a send is written
SLOW_CHECK: Final = 15  # the next read that waits looks again late
REWOUND_BESIDE: Final = 16  # the cursor was rewound while a read waited: its ``waited``
# rules of the profile
DELAYED: Final = 17
BATCH_SIZE: Final = 18
PRECISE: Final = 19
EPOCHS: Final = 20  # see ``rules.disowned``
EMPTY_WHEN_WAITED: Final = 21  # a read that waited returns what was stored when it was issued (before #24898)
PARTS: Final = 22  # clients acknowledge single messages of a batch …
BATCH_INDEX_ACKS: Final = 23  # … and the broker takes that
MOST_CONSUMERS: Final = 24  # maxConsumersPerSubscription; 0 = no limit
N_SCALARS: Final = 25

# What a read waits for that found nothing when it was issued.
NOT_WAITING: Final = 0
TO_BE_TOLD: Final = 1  # the cursor has looked again, and is notified of the next entry
TO_LOOK_AGAIN: Final = 2  # the cursor looks again after managedLedgerNewEntriesCheckDelayInMillis
HAS_LOOKED: Final = 3  # it has, and found the cursor rewound


@by_address
class FailoverWorld(NamedTuple):
    """The dispatcher besides its cursor, its clients, and reads in flight, oldest first.

    ``number_of_name``: 0 = not connected. ``name_of``: of each connection. ``away``: names that resets have disconnected.
    ``holder``: the connection that was sent an entry last; ``discarded``: its client does not have it. ``requests``: how
    often a connection has requested redelivery. ``parts``: messages of a batch that clients have acknowledged; ``left``:
    its batch indexes that the cursor has as not acknowledged, as bits, 0 = all. ``reader``, ``epoch``, ``size``, ``began``,
    ``overtaken``: of reads, as the dispatcher knows them; ``start``, ``end``, ``waited``, ``requested``: when the read was
    issued, the read position, ``STORED``, what it waits for, and ``requests`` of the reader.
    """

    w: I64
    number_of_name: I64
    name_of: I64
    away: I64
    holder: I64
    discarded: I64
    requests: I64
    parts: I64
    left: I64
    reader: I64
    epoch: I64
    size: I64
    began: I64
    overtaken: I64
    start: I64
    end: I64
    waited: I64
    requested: I64
    entries: I64


@by_address
class ActiveConsumers(NamedTuple):
    """The consumer that becomes active, by *nodes*: lists of consumers with their levels, in the dispatcher's order.

    ``joined``: the node after a name has joined with a level; ``left``: after a name has left; ``chosen``: after the choice
    of the active consumer, which sorts the list; ``active``: the name that is chosen, -1 = nobody is connected.
    """

    joined: I64
    left: I64
    chosen: I64
    active: I64


# --- steps -----------------------------------------------------------------------------------------------------------


@compiled
def play(
    st: State,
    world: FailoverWorld,
    choice: ActiveConsumers,
    words: I64,
    empty: I64,
    steps: I64,
    settles: bool,
    report: I64,
) -> int:
    """Play steps, and settle if wanted, see ``search.play``; ``report``: counts steps that were possible."""
    begin(words, empty)
    w = world.w
    for number in steps:
        if take(st, world, choice, number) != IMPOSSIBLE:
            report[0] += 1
        if w[WAS_BROKEN] != promises.KEPT:
            return BROKEN
    if not settles:
        return DONE
    report[0] += 1
    return settle(st, world, choice)


@compiled
def add_steps(
    st: State,
    world: FailoverWorld,
    choice: ActiveConsumers,
    words: I64,
    empty: I64,
    matters: I64,
    parent: I64,
    choices: I64,
    schedules: I8,
    longer: I8,
    table: I64,
    at: I64,
) -> int:
    """Add every step to every schedule of a level, see ``search.add_steps``."""
    w = world.w
    while at[b_.PARENT] < at[b_.PARENTS]:
        begin(words, empty)
        for step in range(at[b_.LENGTH]):
            take(st, world, choice, b_.step_of(at, choices, schedules, step))
        begin(parent, words)
        while at[b_.CHOICE] < len(choices):
            pause = b_.pauses(at, longer, table)
            if pause != b_.LEVEL_DONE:
                return pause
            came_to = take(st, world, choice, choices[at[b_.CHOICE]])
            at[b_.CHOICE] += 1
            if came_to == IMPOSSIBLE:
                continue
            at[b_.PLAYED] += 1
            at[b_.TAKEN] += 1
            if w[WAS_BROKEN] != promises.KEPT:
                if promises.is_among(w[WAS_BROKEN], at[b_.WANTED]):
                    return b_.BROKEN_BY_STEP
            elif b_.is_new(at, words, matters, table):
                at[b_.TAKEN] += 1
                came_to = settle(st, world, choice)
                if came_to == BROKEN and promises.is_among(w[WAS_BROKEN], at[b_.WANTED]):
                    return b_.BROKEN_AT_END
                b_.keep(at, schedules, longer)
            begin(words, parent)
        at[b_.CHOICE] = 0
        at[b_.PARENT] += 1
    return b_.LEVEL_DONE


@compiled_inside
def take(st: State, world: FailoverWorld, choice: ActiveConsumers, number: int) -> int:
    """Take a step; returns whether it was possible: ``DONE`` or ``IMPOSSIBLE``."""
    kind, name = s_.kind_of(number), s_.name_of(number)
    if kind in (s_.STORE, s_.STORE_BATCH):
        return store(st, world, s_.BATCH if kind == s_.STORE_BATCH else 1)
    if kind in (s_.CLEAR, s_.SKIP):
        return move_forward(st, world, kind == s_.CLEAR)
    if kind == s_.RESET:
        return reset(st, world, choice)
    if kind == s_.READ:
        return complete_read(st, world)
    if kind == s_.TIMER:
        return end_delay(st, world)
    if kind == s_.RETRY:
        return end_send(st, world)
    if kind == s_.SLOW_SEND:
        world.w[SLOW_SEND] = 1
        return DONE
    if kind == s_.SLOW_CHECK:
        world.w[SLOW_CHECK] = 1
        return DONE
    if name >= len(world.number_of_name):
        return IMPOSSIBLE
    consumer = world.number_of_name[name]
    if kind in (s_.JOIN, s_.JOIN_LOW):
        if consumer != 0:
            return IMPOSSIBLE
        if kind == s_.JOIN:
            return join(st, world, choice, name, s_.PERMITS[s_.detail_of(number)], 0)
        return join(st, world, choice, name, s_.PERMITS_LOW, 1)
    if consumer == 0:
        return IMPOSSIBLE
    if kind == s_.LEAVE:
        leave(st, world, choice, name, False)
        return DONE
    if kind == s_.FLOW:
        grant(st, world, consumer, 1)
        return DONE
    if kind in (s_.NACK_FIRST, s_.NACK_ALL):
        return request(st, world, consumer)
    return acknowledge(st, world, kind, consumer)


@compiled_inside
def store(st: State, world: FailoverWorld, messages: int) -> int:
    """Store an entry; a read that waits can complete then."""
    w = world.w
    if w[STORED] == MAX_ENTRIES:
        return IMPOSSIBLE
    st.num_messages[w[STORED]] = messages
    w[STORED] += 1
    return DONE


@compiled_inside
def join(
    st: State, world: FailoverWorld, choice: ActiveConsumers, name: int, permits: int, level: int
) -> int:
    """Let a consumer join: the choice of the active one, then its first permits."""
    w = world.w
    if w[JOINED] + 1 == MAX_CONSUMERS or is_busy(world):
        return IMPOSSIBLE
    w[JOINED] += 1
    consumer = w[JOINED] + WIDE
    world.number_of_name[name] = consumer
    world.name_of[consumer] = name
    w[NODE] = choice.joined[(w[NODE] * len(world.number_of_name) + name) * _LEVELS + level]
    choose_active(st, world, choice)
    grant(st, world, consumer, permits)
    return DONE


@compiled_inside
def is_busy(world: FailoverWorld) -> bool:
    """Check whether the subscription has as many consumers as it may."""
    connected = 0
    for name in range(len(world.number_of_name)):
        connected += int(world.number_of_name[name] != 0)
    return 0 < world.w[MOST_CONSUMERS] <= connected


@compiled_inside
def leave(st: State, world: FailoverWorld, choice: ActiveConsumers, name: int, by_reset: bool) -> None:
    """Let a consumer leave: the active one is chosen again, unless a reset disconnects it or nobody is left."""
    w = world.w
    consumer = world.number_of_name[name]
    world.number_of_name[name] = 0
    for entry in range(w[STORED]):
        if world.holder[entry] == consumer:
            world.holder[entry] = 0
    w[NODE] = choice.left[w[NODE] * len(world.number_of_name) + name]
    if choice.active[w[NODE]] < 0:
        w[ACTIVE] = 0
    elif cursor_moves.chooses_active_consumer(by_reset):
        choose_active(st, world, choice)
        return
    if w[PENDING] == 1:
        cancel_read(st, world)


@compiled_inside
def choose_active(st: State, world: FailoverWorld, choice: ActiveConsumers) -> None:
    """Choose the active consumer; if it is another one, a change begins (pickAndScheduleActiveConsumer)."""
    w = world.w
    active = world.number_of_name[choice.active[w[NODE]]]
    w[NODE] = choice.chosen[w[NODE]]
    if active == w[ACTIVE]:
        return
    w[ACTIVE] = active
    if w[PENDING] == 1:
        cancel_read(st, world)
    step = rules.step_of_change(w[PENDING] == 1, w[DELAYED] == 1, w[DELAY_RUNS] == 1)
    if step == _AT_ONCE:
        cursor.rewind(st)
        attempt(st, world)
    elif step == _DELAY_STARTS:
        w[DELAY_RUNS] = 1


@compiled_inside
def end_delay(st: State, world: FailoverWorld) -> int:
    """End the failover delay: the cursor rewinds, and a read is attempted."""
    if world.w[DELAY_RUNS] == 0:
        return IMPOSSIBLE
    world.w[DELAY_RUNS] = 0
    waiting = waiting_read(st, world)
    world.w[REWOUND_BESIDE] = world.waited[waiting] if waiting >= 0 else NOT_WAITING
    cursor.rewind(st)
    attempt(st, world)
    return DONE


@compiled_inside
def end_send(st: State, world: FailoverWorld) -> int:
    """Have a slow send written: a read is attempted, also while the failover delay runs (dispatchEntriesToConsumer)."""
    if world.w[ATTEMPT_DUE] == 0:
        return IMPOSSIBLE
    world.w[ATTEMPT_DUE] = 0
    attempt(st, world)
    return DONE


# --- commands of clients ---------------------------------------------------------------------------------------------


@compiled_inside
def grant(st: State, world: FailoverWorld, consumer: int, permits: int) -> None:
    """Count permits; those of the active consumer make a read."""
    w = world.w
    st.permits[consumer] += permits
    if w[PENDING] == 0 and rules.is_heard(consumer, w[ACTIVE], w[DELAY_RUNS] == 1):
        attempt(st, world)


@compiled_inside
def request(st: State, world: FailoverWorld, consumer: int) -> int:
    """Request everything again: the client drops what it has, and the cursor rewinds for the active consumer."""
    w = world.w
    world.requests[consumer] += 1
    for entry in range(w[STORED]):
        if world.holder[entry] == consumer:
            world.holder[entry] = 0
    if rules.is_heard(consumer, w[ACTIVE], w[DELAY_RUNS] == 1):
        forget_waiting_read(st, world)
        w[PENDING] = w[REWOUND_BESIDE] = 0
        cursor.rewind(st)
        attempt(st, world)
    return DONE


@compiled_inside
def acknowledge(st: State, world: FailoverWorld, kind: int, consumer: int) -> int:
    """Acknowledge entries that a consumer holds: the first or the last one, all up to the last, a part of the first."""
    first, last = -1 + WIDE, -1 + WIDE
    for entry in range(world.w[STORED]):
        if has(world, consumer, entry):
            first = entry + WIDE if first < 0 else first
            last = entry + WIDE
    if first < 0:
        return IMPOSSIBLE
    if kind == s_.ACK_PART:
        return acknowledge_part(st, world, first)
    if kind == s_.ACK_UP_TO:
        acknowledge_up_to(st, world, last)
        return DONE
    if kind not in (s_.ACK_FIRST, s_.ACK_LAST):  # of other types of subscriptions
        return IMPOSSIBLE
    acknowledge_entry(st, world, first if kind == s_.ACK_FIRST else last)
    return DONE


@compiled_inside
def has(world: FailoverWorld, consumer: int, entry: int) -> bool:
    """Check whether the client of a consumer has an entry."""
    return world.holder[entry] == consumer and world.discarded[entry] == 0


@compiled_inside
def acknowledge_entry(st: State, world: FailoverWorld, entry: int) -> None:
    """Acknowledge an entry."""
    world.left[entry] = 0
    cursor.acknowledge(st, entry)
    world.holder[entry] = 0


@compiled_inside
def acknowledge_up_to(st: State, world: FailoverWorld, entry: int) -> None:
    """Acknowledge cumulatively: what others hold up to there is acknowledged, too."""
    for earlier in range(entry + 1):
        world.left[earlier] = 0
        world.holder[earlier] = 0
    cursor.acknowledge_up_to(st, entry)


@compiled_inside
def acknowledge_part(st: State, world: FailoverWorld, entry: int) -> int:
    """Acknowledge the next message of a batch of which more are left."""
    w = world.w
    acked = world.parts[entry] + 1
    if w[PARTS] == 0 or acked >= st.num_messages[entry]:
        return IMPOSSIBLE
    world.parts[entry] = acked
    if w[BATCH_INDEX_ACKS] == 0:
        return DONE
    every = (1 << st.num_messages[entry]) - 1
    known = world.left[entry] if world.left[entry] != 0 else every
    world.left[entry] = known & (every ^ ((1 << acked) - 1))
    return DONE


@compiled_inside
def move_forward(st: State, world: FailoverWorld, clears: bool) -> int:
    """Clear the backlog, or skip its first entry."""
    stored = world.w[STORED] + WIDE
    first = first_left(st, world)
    if first == stored:
        return IMPOSSIBLE
    cursor_moves.pass_entries(st, stored - 1 if clears else first)
    for entry in range(st.s[st_.MARK_DELETE] + 1):
        world.left[entry] = 0
    return DONE


@compiled_inside
def reset(st: State, world: FailoverWorld, choice: ActiveConsumers) -> int:
    """Reset the cursor to the first entry: the active consumer is disconnected before, and the others stay.

    Nobody else becomes active until a consumer joins or leaves; what is read until then goes to the one that is gone.
    """
    w = world.w
    if w[STORED] == 0:
        return IMPOSSIBLE
    for name in range(len(world.number_of_name)):
        if w[ACTIVE] != 0 and world.number_of_name[name] == w[ACTIVE]:
            if w[AWAY] < len(world.away):
                world.away[w[AWAY]] = name
                w[AWAY] += 1
            leave(st, world, choice, name, True)
            break
    cursor_moves.reset(st, 0)
    for entry in range(w[STORED]):
        world.left[entry] = world.parts[entry] = 0
    return DONE


# --- reads -----------------------------------------------------------------------------------------------------------


@compiled_inside
def first_left(st: State, world: FailoverWorld) -> int:
    """Return the first stored entry that is not acknowledged, or the number of entries if there is none."""
    return min(cursor.first_left(st, st.s[st_.MARK_DELETE] + 1), world.w[STORED])


@compiled_inside
def is_readable(st: State, world: FailoverWorld) -> bool:
    """Check whether there is an entry for a read from the read position on."""
    return cursor.first_left(st, st.s[st_.READ_POSITION] + WIDE) < world.w[STORED]


@compiled_inside
def waits(st: State, world: FailoverWorld, at: int) -> bool:
    """Check whether a read waits: for an entry that is not stored yet, also behind a rewind, or to look again."""
    if world.waited[at] == TO_BE_TOLD:
        return world.w[STORED] == world.end[at] or not is_readable(st, world)
    return world.waited[at] == TO_LOOK_AGAIN


@compiled_inside
def look_again(st: State, world: FailoverWorld) -> None:
    """Look again for reads that wait to do so (ManagedCursorImpl.checkForNewEntries)."""
    for at in range(world.w[READS]):
        if world.waited[at] == TO_LOOK_AGAIN:
            world.waited[at] = HAS_LOOKED if is_readable(st, world) else TO_BE_TOLD


@compiled_inside
def waiting_read(st: State, world: FailoverWorld) -> int:
    """Return the oldest read that waits for an entry that is not stored yet, or -1."""
    for at in range(world.w[READS]):
        if waits(st, world, at):
            return at + WIDE
    return -1 + WIDE


@compiled_inside
def attempt(st: State, world: FailoverWorld) -> None:
    """Attempt a read for the active consumer; it fails where another one waits (ConcurrentWaitCallbackException)."""
    w = world.w
    active = w[ACTIVE] + WIDE
    if active == 0 or w[READS] == MAX_READS:
        return
    if not rules.may_read(active, active, w[PENDING] == 1, w[DELAY_RUNS] == 1, st.permits[active]):
        return
    w[EPOCH] += 1
    nothing_there = not is_readable(st, world)
    if nothing_there and waiting_read(st, world) >= 0:
        return
    per_entry = max(messages_per_entry(st.average[active]), 1) if w[PRECISE] == 1 else 0
    at = w[READS]
    world.reader[at], world.epoch[at], world.overtaken[at] = active, w[EPOCH], 0
    world.size[at] = rules.read_size(st.permits[active], w[BATCH_SIZE], True, per_entry)
    world.began[at] = world.start[at] = st.s[st_.READ_POSITION]
    world.waited[at], world.end[at] = NOT_WAITING, w[STORED]
    if nothing_there:
        world.waited[at] = TO_LOOK_AGAIN if w[SLOW_CHECK] == 1 else TO_BE_TOLD
        w[SLOW_CHECK] = 0
    world.requested[at] = world.requests[active]
    w[READS] += 1
    w[PENDING] = 1


@compiled_inside
def cancel_read(st: State, world: FailoverWorld) -> None:
    """Cancel the pending read if it waits; else it will complete."""
    if forget_waiting_read(st, world):
        world.w[PENDING] = 0


@compiled_inside
def forget_waiting_read(st: State, world: FailoverWorld) -> bool:
    """Forget a read that waits, if there is one; the dispatcher takes it for one that was overtaken, else the newest one."""
    waiting = waiting_read(st, world)
    if waiting < 0:
        return False
    known = world.w[READS] - 1
    for at in range(world.w[READS] - 1, -1, -1):
        if world.overtaken[at] == 1:
            known = at
    remove_read(world, known, waiting)
    return True


@compiled_inside
def remove_read(world: FailoverWorld, known: int, at_cursor: int) -> None:
    """Remove a read: its place among those that the dispatcher knows, and among those of the cursor."""
    world.w[READS] -= 1
    for at in range(known, world.w[READS]):
        world.reader[at], world.epoch[at] = world.reader[at + 1], world.epoch[at + 1]
        world.size[at], world.overtaken[at] = world.size[at + 1], world.overtaken[at + 1]
        world.began[at] = world.began[at + 1]
    for at in range(at_cursor, world.w[READS]):
        world.start[at], world.waited[at] = world.start[at + 1], world.waited[at + 1]
        world.requested[at], world.end[at] = world.requested[at + 1], world.end[at + 1]


@compiled_inside
def complete_read(st: State, world: FailoverWorld) -> int:
    """Complete the oldest read that does not wait, and dispatch its entries (readEntriesComplete)."""
    w = world.w
    at = 0
    while at < w[READS] and waits(st, world, at):
        at += 1
    if at == w[READS]:
        return IMPOSSIBLE
    reader, epoch, size, began = world.reader[at], world.epoch[at], world.size[at], world.began[at]
    count = 0
    start = st.s[st_.READ_POSITION] if world.waited[at] == TO_BE_TOLD else world.start[at]
    has_waited = world.waited[at] != NOT_WAITING
    for entry in range(start, world.end[at] if has_waited and w[EMPTY_WHEN_WAITED] == 1 else w[STORED]):
        if st.deleted[entry] == 0 and count < size:
            world.entries[count] = entry
            count += 1
    is_old = world.requested[at] != world.requests[reader]
    for earlier in range(at):
        world.overtaken[earlier] = 1
    remove_read(world, at, at)
    if rules.disowned(epoch, w[EPOCH], w[EPOCHS] == 1):
        return DONE
    w[PENDING] = 0
    if w[REWOUND_BESIDE] == TO_BE_TOLD:
        w[REWOUND_BESIDE] = NOT_WAITING
    last = world.entries[count - 1] if count > 0 else -1
    cursor.moved_by_result(st, last, count, size, began if w[EMPTY_WHEN_WAITED] == 0 else -1)
    if rules.is_read_for_another(reader, w[ACTIVE]):
        cursor.rewind(st)
    elif count > 0:
        send(st, world, count, is_old)
        if w[SLOW_SEND] == 1:
            w[SLOW_SEND], w[ATTEMPT_DUE] = 0, 1
            return DONE
    attempt(st, world)
    return DONE


@compiled_inside
def send(st: State, world: FailoverWorld, count: int, is_old: bool) -> None:
    """Send ``count`` entries to the active consumer, and check that they are pending on nobody.

    ``is_old``: they were read before its last request.
    """
    w = world.w
    active = w[ACTIVE] + WIDE
    messages, acked = WIDE, WIDE
    for i in range(count):
        entry = world.entries[i]
        messages += st.num_messages[entry]
        if world.left[entry] != 0:
            for index in range(st.num_messages[entry]):
                acked += int((world.left[entry] >> index) & 1 == 0)
    st.average[active] = average_after(st.average[active], messages, count)
    st.permits[active] += acked - messages
    if world.number_of_name[world.name_of[active]] != active:
        return  # a reset has disconnected it, and nobody else is active
    for i in range(count):
        entry = world.entries[i]
        if world.holder[entry] != 0 and w[WAS_BROKEN] == promises.KEPT:
            w[WAS_BROKEN] = promises.DOUBLE_OUTSTANDING
            w[AT_ENTRY], w[AT_CONSUMER] = entry, active
            w[OF_BEFORE] = int(world.holder[entry] == active and (is_old or world.discarded[entry] == 1))
        world.holder[entry], world.discarded[entry] = active, int(is_old)


# --- the end of a schedule -------------------------------------------------------------------------------------------


@compiled_inside
def settle(st: State, world: FailoverWorld, choice: ActiveConsumers) -> int:
    """Let clients acknowledge all and grant permits, and reads complete, until nothing moves.

    The clients that resets have disconnected connect again before.
    """
    w = world.w
    for at in range(w[AWAY]):
        if world.number_of_name[world.away[at]] == 0:
            join(st, world, choice, world.away[at], _MANY_PERMITS, 0)
    for _ in range(LAST_ROUNDS):
        for consumer in range(1, w[JOINED] + 1):
            if world.number_of_name[world.name_of[consumer]] == consumer:
                for entry in range(w[STORED]):
                    if has(world, consumer, entry):
                        acknowledge_entry(st, world, entry)
                if st.permits[consumer] < 1:
                    grant(st, world, consumer, _MANY_PERMITS)
        end_delay(st, world)
        end_send(st, world)
        look_again(st, world)
        complete_read(st, world)
        if w[WAS_BROKEN] != promises.KEPT:
            return BROKEN
        if first_left(st, world) == w[STORED]:
            return DONE
    for consumer in range(1, w[JOINED] + 1):
        if world.number_of_name[world.name_of[consumer]] == consumer:
            w[WAS_BROKEN], w[AT_ENTRY], w[AT_CONSUMER] = promises.STUCK, first_left(st, world), consumer
            return BROKEN
    return DONE


# --- control plane ---------------------------------------------------------------------------------------------------


class FailoverRules:
    """Plays schedules on the rules of a profile, as ``search.Hunter`` does for types with several consumers at a time.

    The consumer whose name comes first is the active one: that of partition 0.
    """

    def __init__(self, profile: Profile, topic: str) -> None:
        one_each = np.ones(MAX_ENTRIES, np.int32)
        state = st_.new_state(np.zeros(MAX_ENTRIES, np.int32), one_each, 1, MAX_CONSUMERS)
        self._arena = arena(state, new_world(profile))
        self._empty = self._arena.words.copy()
        self._choice = active_consumers(profile, [f"c{number + 1}" for number in range(s_.NAMES)], topic)
        self._report = np.zeros(1, np.int64)

    @property
    def steps(self) -> int:
        """Steps taken so far, of clients and of the broker."""
        return int(self._report[0])

    def play(self, steps: Sequence[int], *, settles: bool = True) -> Find | None:
        """Play one schedule; returns the promise that it breaks, if any. Without ``settles`` its steps alone."""
        a, numbers = self._arena, np.array(steps, np.int64)
        if (
            play(a.state, a.world, self._choice, a.words, self._empty, numbers, settles, self._report)
            != BROKEN
        ):
            return None
        return self.found(steps)

    def found(self, steps: Sequence[int]) -> Find:
        """Return the schedule played last, which has broken a promise."""
        w = self._arena.world.w.tolist()
        return Find(w[WAS_BROKEN], tuple(steps), w[AT_ENTRY], w[AT_CONSUMER])

    def bounded_search(self, choices: Sequence[int], wanted: int) -> BoundedSearch:
        """Return a search that plays every schedule of ``choices``; the active consumer is chosen by names."""
        a, steps = self._arena, np.array(choices, np.int64)
        fixed = (a.state, a.world, self._choice, a.words, self._empty, a.matters, self._empty.copy(), steps)
        return BoundedSearch(functools.partial(add_steps, *fixed), steps, wanted, names_matter=True)

    def entries_left(self) -> list[int]:
        """List the stored entries that are not acknowledged at the end of the schedule played last."""
        a = self._arena
        return [entry for entry in range(int(a.world.w[STORED])) if not a.state.deleted[entry]]

    def counters(self) -> dict[str, int]:
        """Return positions, reads and permits of the connected consumers at the end of the schedule played last."""
        s, w, permits = self._arena.state.s, self._arena.world.w, self._arena.state.permits
        connected = sorted(number for number in self._arena.world.number_of_name.tolist() if number)
        return {
            "mark_delete": int(s[st_.MARK_DELETE]),
            "read_position": int(s[st_.READ_POSITION]),
            "active": int(w[ACTIVE]),
            "pending_read": int(w[PENDING]),
            "reads": int(w[READS]),
            "delay_runs": int(w[DELAY_RUNS]),
            **{f"permits_{number}": int(permits[number]) for number in connected},
        }

    def cause_of(self, find: Find) -> str:
        """Return the cause of the schedule played last."""
        if find.promise == promises.STUCK:
            return _STUCK_BY[int(self._arena.world.w[REWOUND_BESIDE])]
        return "read_of_before" if self._arena.world.w[OF_BEFORE] else "active_change"


def new_world(profile: Profile) -> FailoverWorld:
    """Make the world of a dispatcher that nobody has connected to."""
    settings, changes = profile.settings, profile.changes
    takes_parts = settings.get("acknowledgmentAtBatchIndexLevelEnabled", "batch_index_ack_default" in changes)
    values = {
        DELAYED: profile.number("activeConsumerFailoverDelayTimeMillis") > 0,
        BATCH_SIZE: profile.number("dispatcherMaxReadBatchSize"),
        PRECISE: bool(settings.get("preciseDispatcherFlowControl", False)),
        EPOCHS: "failover_read_epoch" in changes,
        EMPTY_WHEN_WAITED: "waiting_read_gets_entries" not in changes,
        PARTS: bool(settings.get("acknowledgmentAtBatchIndexLevelEnabled")),
        BATCH_INDEX_ACKS: bool(takes_parts),
        MOST_CONSUMERS: profile.number("maxConsumersPerSubscription"),
    }
    w = np.zeros(N_SCALARS, np.int64)
    for at, value in values.items():
        w[at] = int(value)
    sizes = {
        **dict.fromkeys(("number_of_name",), s_.NAMES),
        **dict.fromkeys(("name_of", "away", "requests"), MAX_CONSUMERS),
        **dict.fromkeys(("holder", "discarded", "parts", "left", "entries"), MAX_ENTRIES),
        **dict.fromkeys(
            ("reader", "epoch", "size", "began", "overtaken", "start", "end", "waited", "requested"),
            MAX_READS,
        ),
    }
    return FailoverWorld(w=w, **{name: np.zeros(size, np.int64) for name, size in sizes.items()})


@dataclass(frozen=True, slots=True)
class _Node:
    """A list of consumers: their names, by number, and priority levels."""

    consumers: tuple[tuple[int, int], ...]

    def without(self, name: int) -> _Node:
        """Return the list when a name has left."""
        return _Node(tuple(consumer for consumer in self.consumers if consumer[0] != name))


def active_consumers(profile: Profile, names: Sequence[str], topic: str) -> ActiveConsumers:
    """Ask the selector about every list of consumers that there can be."""
    nodes: dict[_Node, int] = {}
    found: list[_Node] = []

    def number_of(node: _Node) -> int:
        if node not in nodes:
            nodes[node] = len(found)
            found.append(node)
        return nodes[node]

    joined, left, chosen, active = [], [], [], []
    number_of(_Node(()))
    for node in found:  # it grows meanwhile
        choice = _choice(profile, node, names, topic)
        active.append(-1 if choice is None else choice.active)
        levels = dict(node.consumers)
        order = () if choice is None else choice.order
        chosen.append(number_of(_Node(tuple((name, levels[name]) for name in order))))
        for name in range(len(names)):
            left.append(number_of(node.without(name)))
            for level in range(_LEVELS):
                joined.append(number_of(_Node((*node.without(name).consumers, (name, level)))))
    return ActiveConsumers(*(np.array(table, np.int64) for table in (joined, left, chosen, active)))


def _choice(profile: Profile, node: _Node, names: Sequence[str], topic: str) -> failover.Choice | None:
    if not node.consumers:
        return None
    return failover.pick(
        [failover.Candidate(name, names[name], level) for name, level in node.consumers],
        partition_index=0,
        topic=topic,
        ring=profile.failover is FailoverRule.RING,
    )
