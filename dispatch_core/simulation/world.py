"""The simulated world as arrays: coming events with their times, clients, and the lines written.

Data plane. Times are microseconds since the epoch. Between steps entries are *numbers* of the whole log (0 = first stored
entry); the dispatcher's state has them as ordinals of its present window, lower by ``BASE``.

Coming events are in a heap of (time, event): an event packs kind, consumer slot and a number (entry, permits, read).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.structs import by_address
from dispatch_core.broker.state import I8, I32, I64

NEVER: Final = 1 << 62
NO: Final = 0  # a line has no such number; a name, because numba compiles anew for each literal

# kinds of events: their lowest bits
ANSWER: Final = 0  # a consumer answers an entry; number = entry
FLOW: Final = 1  # a client's permits arrive; number = permits
ATTEMPT: Final = 2  # the dispatcher attempts a read
READ: Final = 3  # a normal read completes; number = number of the read
REPLAY: Final = 4  # a replay read completes; number = number of the read
DELAY: Final = 5  # the failover delay is over
ACT: Final = 6  # a recorded client acts; number = its row of ``World.act_us`` and the other arrays of acts
UNBLOCK: Final = 7  # the timer that a freed hash has started is over
TURN: Final = 8  # the time of a recorded ack: its client may acknowledge another entry instead
_KIND_BITS: Final = 4
_SLOT_BITS: Final = 23  # the number, of at most 36 bits, leaves the sign free

# reasons why a loop stops
CHANGE_DUE: Final = 0  # the time is reached
WINDOW_USED_UP: Final = 1  # more entries are to be published
LINES_FULL: Final = 2
HEAP_FULL: Final = 3
REDELIVERY_REQUESTED: Final = 4  # NACKED_SLOT requests redelivery of NACKED_ENTRY
NOTHING_LEFT: Final = 5  # no event is left
STEP_DUE: Final = 6  # NEXT_STEP is for the control plane

# --- scalars: indexes into World.w ---------------------------------------------------------------------------------
NOW: Final = 0
BASE: Final = 1  # number of the entry with ordinal 0
STORED: Final = 2  # entries of the present window that are stored by now
MORE: Final = 3  # more entries are to be published after the present window
HEAP: Final = 4  # events in the heap
ATTEMPT_AT: Final = 5  # when the next read attempt is due; NEVER = none is
READ_NUMBER: Final = 6  # of the normal read under way, or the last one
READ_LIMIT: Final = 7  # its size
READ_WAITED: Final = 8  # it found nothing to read when it was issued
READ_READY_AT: Final = 9  # when the first entry for it is stored; NEVER = it waits
REPLAYS: Final = 10  # replay reads issued
BACK_OFF_US: Final = 11  # the last retry backoff; 0 = none since entries were sent
LAST_SENT: Final = 12  # highest number ever sent; -1 = none
N_SENT_ACKED: Final = 13  # entries that were sent though acknowledged
NACKED_SLOT: Final = 14  # slot of the consumer that requests redelivery ...
NACKED_ENTRY: Final = 15  # ... and the number of the entry
WATCHES_RECENT: Final = 16  # a consumer may be held back by a rule of recently joined consumers
SENT: Final = 17  # entries sent, every time counted
# parameters of this world
TRACE: Final = 18  # lines of level T are wanted
CLASSIC: Final = 19  # the dispatch loop of 3.x
RETRY_BACK_OFF: Final = 20  # a round that sent nothing waits before it reads again (#23226)
EMPTY_WHEN_WAITED: Final = 21  # a read that had to wait comes back empty (before #24898)
REMOVALS_SHOWN: Final = 23  # pending_ack_removed is a line of this release
RELEASES_SHOWN: Final = 24  # draining_release follows it
READ_US: Final = 25  # the storage answers a normal read
WRITE_US: Final = 26  # a delivery is written to the connection
HOP_US: Final = 27  # a task is passed to the dispatcher's executor
UNBLOCK_US: Final = 28  # keySharedUnblockingIntervalMs
BACK_OFF_FIRST_US: Final = 29
BACK_OFF_MOST_US: Final = 30
NETWORK_US: Final = 31  # between broker and client, one way
ROOM: Final = 32  # lines and list items that one step may write
SALT: Final = 33  # makes the answers of this dispatcher's consumers differ from those of another dispatcher
NEXT_STEP: Final = 34  # an event taken from the heap
RECORDED: Final = 35  # clients act as a log shows, see ``answers``
REPLAY_US: Final = 36  # the storage answers a replay read
CALLS: Final = 37  # read attempts so far
UNBLOCK_AT: Final = 38  # when that timer is over; 0 = it does not run
UNBLOCK_CALLS: Final = (
    39  # read attempts when it started or was started again; 0 = no normal read was pending then
)
READ_ENTRY_US: Final = 40  # READ_US, REPLAY_US, WRITE_US are longer by so much for each entry
REPLAY_ENTRY_US: Final = 41
WRITE_ENTRY_US: Final = 42
UNEVEN_AT: Final = 43  # samples of World.uneven taken so far
UNEVEN_HOPS_AT: Final = 44  # ... and of World.uneven_hops
HOPPED_UNTIL: Final = (
    45  # when the last task that was passed to the executor begins; those behind it begin later
)
STEPPED: Final = 46  # kinds of events that the control plane handles, a bit each
N_SCALARS: Final = 47
#: A sample of World.uneven for a read, a hop or a write that takes its usual time.
EVEN: Final = 1024

# acts of a recorded client on an entry: World.act_kind
WHOLE: Final = 0  # acknowledges it
PART: Final = 1  # acknowledges some messages of its batch
UP_TO: Final = 2  # acknowledges it and everything before
REFUSES: Final = 3  # requests its redelivery; the request has a row of its own
KEEPS: Final = 4  # is sent it and does not answer, until this time
REQUEST: Final = 5  # of no entry: a redelivery request
COVERED: Final = 6  # acknowledges it with a later entry, cumulatively: the row of that entry does it

#: ``World.turn_ends_us`` of a turn of another client, which this one would have taken, too, if it had had an entry left.
BORROWED: Final = -1
#: ``World.turned_to`` of an entry that its client does not simply acknowledge.
OTHERWISE: Final = -1

#: Replay reads that can be under way at a time: more than one after a cancel that forgets one (#23384).
REPLAYS_KEPT: Final = 4


@by_address
class World(NamedTuple):
    """Struct of arrays; see the module for what indexes them."""

    w: I64
    heap_at: I64
    heap_what: I64
    # per entry of the present window
    publish_us: I64  # when it is stored
    # per hash id
    hash_value: I64
    # per consumer slot
    number: I64  # the log's number
    queue: I64  # receiver queue size
    taken: I64  # messages that the client has taken from its queue
    ahead: I64  # recorded clients: messages taken before they are acknowledged, see answers.permits_due
    foreseen: I64  # … messages that were sent to it under the recorded rules
    received: I64  # messages sent to it
    granted: I64  # permits it has granted, those under way too
    slowness: I64  # factor of its latency
    who: I64  # recorded clients: number of the name
    like: I64  # … and of what its answers are taken from, see like_start
    until_us: I64  # … when the connection ends; NEVER = it does not
    flow_next: I64  # … its next row of flow_us
    flow_end: I64  # … and the row after its last
    turn_next: I64  # … its next row of turn_act
    turn_end: I64  # … and the row after its last
    first_sent: I64  # … the entry number that was sent to it first, of those it may have to answer; -1 = none
    last_sent: I64  # … and last
    # answers of synthetic clients
    latency_us: I64  # a power of two of samples
    refuses: I8  # as many: 1 = requests a redelivery of the entry
    # by how much single reads and writes, and hops, take longer than usual: in 1/EVEN, a power of two of samples each
    uneven: I64
    uneven_hops: I64
    stalls_us: I64  # a read or a write takes so much longer besides, however long it usually takes
    # recorded clients; rows of an entry are together, by time
    act_start: I64  # per entry number, and one more: its first row
    act_us: I64
    act_sent_us: I64  # when the connection was sent the entry first under the recorded rules; 0 = not known
    act_who: I64  # name
    act_number: I64  # connection
    act_kind: I64
    act_entry: I64  # entry number
    act_due: I8  # 1 = the entry was delivered in time for this act, which is scheduled
    acked_us: I64  # per entry number: when it was first acknowledged; NEVER = not at all
    sent_us: I64  # per entry number: when it was delivered last
    sent_next: I64  # per entry number: the one that was sent next to the same connection; -1 = none
    sent_before: I64  # … and the one before; -1 = none
    sent_slot: I64  # … and the slot of that connection, -1 = in no such chain
    turned_to: I64  # per entry number: slot of the consumer that acknowledges it in a turn, plus 1; OTHERWISE = it does not
    turn_act: I64  # rows of acts of kind WHOLE; those of a connection are together, by time
    turn_until_us: I64  # … what was sent before this time can be acknowledged instead
    turn_ends_us: I64  # … what was sent before this time was all acknowledged then; 0 = not; see BORROWED
    flow_us: I64  # rows of a connection are together, by time
    flow_permits: I64
    like_start: I64  # per name, then per connection, and one more: its first row of the next two
    like_us: I64  # when an entry was sent to it, ascending
    like_answer_us: I64  # … and when it answered that entry; NEVER = it did not
    like_busy: I8  # … 1 = it had more to answer then
    # scratch
    plan: I64
    attempts: I64
    outcome: I64
    entries: I64  # of the round
    replays: I64  # entries of the replay reads under way, a row each
    replay_size: I64
    sent_acked: I64  # numbers of entries sent though acknowledged
    permits_before: I64  # per slot
    first_of: I64  # per slot: its first entry of the round
    last_of: I64
    next_of: I64  # per entry of the round: the next one for the same consumer


@by_address
class Lines(NamedTuple):
    """Lines written and not yet passed to the sink: a row each, and lists of numbers that belong to rows."""

    n: I64  # rows, list items
    kind: I8
    t_us: I64
    consumer: I32
    a: I64
    b: I64
    c: I64
    d: I64
    start: I64  # where the row's list begins; it ends where that of the next row begins
    item: I64


def new_lines(rows: int, items: int) -> Lines:
    """Make room for so many rows and list items."""
    return Lines(
        n=np.zeros(2, np.int64),
        kind=np.zeros(rows, np.uint8),
        t_us=np.zeros(rows, np.int64),
        consumer=np.zeros(rows, np.int32),
        a=np.zeros(rows, np.int64),
        b=np.zeros(rows, np.int64),
        c=np.zeros(rows, np.int64),
        d=np.zeros(rows, np.int64),
        start=np.zeros(rows + 1, np.int64),
        item=np.zeros(items, np.int64),
    )


@compiled
def line4(out: Lines, kind: int, t_us: int, consumer: int, a: int, b: int, c: int, d: int) -> None:
    """Write a line with its numbers; list items that follow belong to it."""
    n = out.n[0]
    out.kind[n] = kind
    out.t_us[n] = t_us
    out.consumer[n] = consumer
    out.a[n] = a
    out.b[n] = b
    out.c[n] = c
    out.d[n] = d
    out.start[n] = out.n[1]
    out.n[0] = n + 1


@compiled
def line(out: Lines, kind: int, t_us: int, consumer: int, a: int) -> None:
    """Write a line with one number at most."""
    n = out.n[0]
    out.kind[n] = kind
    out.t_us[n] = t_us
    out.consumer[n] = consumer
    out.a[n] = a
    out.start[n] = out.n[1]
    out.n[0] = n + 1


@compiled
def item(out: Lines, value: int) -> None:
    """Add an item to the list of the last line."""
    out.item[out.n[1]] = value
    out.n[1] += 1


@compiled
def event(kind: int, slot: int, number: int) -> int:
    """Pack an event into an integer."""
    return (number << (_KIND_BITS + _SLOT_BITS)) | (slot << _KIND_BITS) | kind


@compiled
def kind_of(what: int) -> int:
    """Return the kind of an event."""
    return what & ((1 << _KIND_BITS) - 1)


@compiled
def slot_of(what: int) -> int:
    """Return the consumer slot of an event."""
    return (what >> _KIND_BITS) & ((1 << _SLOT_BITS) - 1)


@compiled
def number_of(what: int) -> int:
    """Return the number of an event: entry, permits, read."""
    return what >> (_KIND_BITS + _SLOT_BITS)


@compiled
def push(world: World, at_us: int, what: int) -> None:
    """Add an event at a time to the heap."""
    at = world.w[HEAP]
    world.w[HEAP] = at + 1
    while at > 0:
        parent = (at - 1) >> 1
        if world.heap_at[parent] <= at_us:
            break
        world.heap_at[at] = world.heap_at[parent]
        world.heap_what[at] = world.heap_what[parent]
        at = parent
    world.heap_at[at] = at_us
    world.heap_what[at] = what


@compiled
def pop(world: World) -> int:
    """Take the next event from the heap; its time becomes ``NOW``."""
    world.w[NOW] = world.heap_at[0]
    what = world.heap_what[0]
    size = world.w[HEAP] - 1
    world.w[HEAP] = size
    last_at, last_what = world.heap_at[size], world.heap_what[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and world.heap_at[child + 1] < world.heap_at[child]:
            child += 1
        if world.heap_at[child] >= last_at:
            break
        world.heap_at[at] = world.heap_at[child]
        world.heap_what[at] = world.heap_what[child]
        at = child
    world.heap_at[at] = last_at
    world.heap_what[at] = last_what
    return what


@compiled
def store_until(world: World, at_us: int) -> bool:
    """Store the entries that are published by then; returns whether the window is used up and more are to come."""
    stored = world.w[STORED]
    while stored < len(world.publish_us) and world.publish_us[stored] <= at_us:
        stored += 1
    world.w[STORED] = stored
    return stored == len(world.publish_us) and world.w[MORE] == 1


@compiled
def attempt_at(world: World, at_us: int) -> None:
    """Schedule a read attempt, unless an earlier one is due."""
    if at_us < world.w[ATTEMPT_AT]:
        world.w[ATTEMPT_AT] = at_us
        push(world, at_us, event(ATTEMPT, 0, 0))


@compiled
def lasting(world: World, usual_us: int) -> int:
    """Return how long a read or a write takes this time that usually takes ``usual_us``."""
    at = world.w[UNEVEN_AT]
    world.w[UNEVEN_AT] = at + 1
    stall_us = world.stalls_us[at & (len(world.stalls_us) - 1)]
    return usual_us * world.uneven[at & (len(world.uneven) - 1)] // EVEN + stall_us


@compiled
def hop_over(world: World) -> int:
    """Return when a task begins that is passed to the dispatcher's executor now: not before the one passed before it."""
    at = world.w[UNEVEN_HOPS_AT]
    world.w[UNEVEN_HOPS_AT] = at + 1
    takes = world.w[HOP_US] * world.uneven_hops[at & (len(world.uneven_hops) - 1)] // EVEN
    world.w[HOPPED_UNTIL] = max(world.w[HOPPED_UNTIL], world.w[NOW] + takes)
    return world.w[HOPPED_UNTIL]


def grown(values: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Copy an array into one of ``count`` values, 0 at the end."""
    copy = np.zeros(count, values.dtype)
    copy[: len(values)] = values
    return copy
