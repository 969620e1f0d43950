"""Judge the deliveries of a Key_Shared log without a trace, entry by entry, by the rules that decide them.

Data plane. The log shows the deliveries in the order of the broker's rounds, but not the results of reads. These are
inferred: a normal read goes on from the read position without a hole, so an entry that it passed and nobody got went to the
replay set. Example: the read position is 3:4, and 3:4 and 3:6 are sent. Then 3:5 was read too and waits in the replay set. A
*round* is a run of ``sent`` lines to different consumers, all of entries before the read position (a replay read) or all
from it on (a normal read).

Each entry of a round is decided by the functions of the dispatcher itself: ``read_loop.choose`` (4.x),
``read_loop_classic.group`` (3.x, classic). Then the *recorded* delivery is booked, so that one difference does not cause
others. Flow and acknowledgements count from their arrival, the earliest possible time: a delivery that the rule refuses even
so is refused in every order of the racing commands.

Operations are those of ``audit.operations``; consumers of operations are mapped to slots by ``slot_of``, -1 = never added.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.arrays.structs import by_address
from dispatch_core.audit.deliveries.operations import ACK, FLOW, REDELIVER, REDELIVER_ALL, SENT
from dispatch_core.audit.waits.sampling import BatchSamples, next_look, passes_quietly
from dispatch_core.broker import read_loop_classic
from dispatch_core.broker.commands import ack, apply_flow, flow, redeliver, redeliver_all
from dispatch_core.broker.cursor import moved_by_read
from dispatch_core.broker.gates import GATES, OPEN, RECENTLY_JOINED, first_gate_for
from dispatch_core.broker.ordering.draining_hashes import give_up
from dispatch_core.broker.ordering.last_sent_position import advance, begin_round, note_sent
from dispatch_core.broker.ordering.read_position import prune
from dispatch_core.broker.pending_acks import hold, let_go
from dispatch_core.broker.permits import add_unacked
from dispatch_core.broker.read_loop import choose, requeue, send_groups
from dispatch_core.broker.replay_set import remove_from_replay
from dispatch_core.broker.state import (
    I64,
    MARK_DELETE,
    N_RECENT,
    NOBODY,
    READ_POSITION,
    REPLAY_HIGH,
    STAMP,
    TRACK_LAST_SENT,
    WIDE,
    State,
)

Array = npt.NDArray[Any]

# Reason why dispatch would not have sent an entry to the consumer that got it: a code of ``broker.gates`` (OPEN = it would
# have), or one of these.
NOT_JUDGED: Final = len(
    GATES
)  # an entry that was acknowledged, or a consumer whose arrival the log does not hold
#: Read position: the entry may have been read before the consumer joined. Reads are seen only by what was sent.
MAYBE_READ: Final = NOT_JUDGED + 1

_INDEX_BITS: Final = 24  # entries of a round are sorted as (ordinal, place in the round)
#: Most entries of one inferred round.
MOST_PER_ROUND: Final = (1 << _INDEX_BITS) - 1
#: Most entries of a round of several ``sent`` lines. Far more than a broker reads at once by default (100).
MOST_OF_SEVERAL_LINES: Final = 1024


@by_address
class BatchArrays(NamedTuple):
    """Arrays of one batch for ``fold``: its operations, and what the fold reads and fills in.

    ``op_code``, ``op_consumer``, ``op_value``: one element per operation; ``op_start`` one more. Operation ``i`` names the
    entries ``op_ordinals[op_start[i]:op_start[i + 1]]``.
    """

    op_code: Array
    op_consumer: Array
    op_value: Array  # permits of a FLOW
    op_start: Array
    op_ordinals: Array
    slot_of: Array  # by number in ``op_consumer``: the slot, -1 = never added
    stored_at_join: I64  # by slot: entries that were stored when the consumer joined, the furthest that may have been read
    scratch: I64  # four times the room for a round
    attempts: I64  # scratch of the dispatch loop
    expected: Array  # filled in per element of ``op_ordinals`` of a ``sent`` operation: slot by the rule, NOBODY = held back
    reason: Array  # filled in likewise: why the rule's slot is not the recorded one, OPEN = it is


@compiled
def fold_while_quiet(
    st: State, classic: bool, batch: BatchArrays, samples: BatchSamples, first: int, stop: int
) -> int:
    """Fold the operations [first, stop), and take the samples on the way that find nothing waiting.

    Returns where it stopped: at ``stop``, at an operation that concerns membership or moves the cursor, or at one before
    which a sample is due that must be taken in full.
    """
    op = first
    while True:
        look = min(next_look(samples, op), stop)
        op = fold(st, classic, batch, op, look)
        if op < look or op == stop or not passes_quietly(st, samples, op, 0):
            return op


@compiled_inside
def fold(st: State, classic: bool, batch: BatchArrays, first: int, stop: int) -> int:
    """Take the operations [first, stop) up to the next one that concerns membership or moves the cursor; returns where.

    ``classic``: the dispatcher of 3.x or the classic one of 4.x. Fills in ``expected`` and ``reason``.
    """
    op = first
    while op < stop:
        code = batch.op_code[op]
        if code == SENT:
            op = _round(st, classic, batch, op, stop)
            continue
        slot = batch.slot_of[batch.op_consumer[op]] + WIDE if batch.op_consumer[op] >= 0 else NOBODY
        if code == FLOW:
            if slot != NOBODY:
                flow(st, slot, batch.op_value[op])
        elif code == ACK:
            for at in range(batch.op_start[op], batch.op_start[op + 1]):
                _ack(st, batch.op_ordinals[at] + WIDE)
        elif code == REDELIVER:
            if slot != NOBODY:
                named = batch.op_ordinals[batch.op_start[op] : batch.op_start[op + 1]]
                flows = redeliver(st, slot, named, False, batch.attempts[:0])
                apply_flow(st, slot, flows.permits)
        elif code == REDELIVER_ALL:
            if slot != NOBODY:
                last = max(st.s[READ_POSITION], st.s[REPLAY_HIGH])
                flows = redeliver_all(st, slot, st.s[MARK_DELETE] + 1, last, batch.attempts[:0])
                apply_flow(st, slot, flows.permits)
        else:
            return op
        op += 1
    return op


@compiled
def _ack(st: State, entry: int) -> None:
    """Apply an ack with its permits. The entry leaves the replay set at once: the replay read that drops it is not seen."""
    acked = ack(st, entry)
    if acked.flows > 0:
        apply_flow(st, acked.holder, acked.permits)
    if st.in_replay[entry] == 1:
        remove_from_replay(st, entry)


@compiled
def _round(st: State, classic: bool, batch: BatchArrays, first: int, stop: int) -> int:
    """Judge and book one inferred round; returns the operation behind it."""
    scratch, op_start = batch.scratch, batch.op_start
    room = len(scratch) // 4
    sorted_, entries, outcome = scratch[:room], scratch[room : 2 * room], scratch[2 * room : 3 * room]
    chosen = scratch[3 * room :]
    start = op_start[first]
    last, is_replay = _extent(st, batch, first, stop)
    count = op_start[last] - start
    ascending = True
    owner = first
    for i in range(count):
        while op_start[owner + 1] <= start + i:
            owner += 1
        entry = batch.op_ordinals[start + i]
        sorted_[i] = np.int64(entry) << _INDEX_BITS | i
        outcome[i] = batch.slot_of[batch.op_consumer[owner]]
        ascending = ascending and (i == 0 or sorted_[i - 1] < sorted_[i])
    slots = entries[:count]  # recorded slot by place in the round, until the entries are known
    for i in range(count):
        slots[i] = outcome[i]
    if not ascending:
        _sort(sorted_, count)
    for i in range(count):
        outcome[i] = slots[sorted_[i] & MOST_PER_ROUND]
    for i in range(count):
        entries[i] = sorted_[i] >> _INDEX_BITS
    if classic:
        _decide_classic(st, is_replay, start, count, sorted_, entries, outcome, chosen, batch)
    else:
        _decide(st, is_replay, start, count, sorted_, entries, outcome, batch)
    book(st, is_replay, entries[:count], outcome[:count], chosen[:count])
    return last


@compiled
def _sort(values: I64, count: int) -> None:
    """Sort the first ``count`` values: a few ascending runs, one per consumer of the round."""
    for at in range(1, count):
        value = values[at]
        to = at
        while to > 0 and values[to - 1] > value:
            values[to] = values[to - 1]
            to -= 1
        values[to] = value


@compiled
def _extent(st: State, batch: BatchArrays, first: int, stop: int) -> tuple[int, bool]:
    """Return the end of the round that begins with operation ``first``, and True if it is one of a replay read."""
    op_consumer, op_start = batch.op_consumer, batch.op_start
    is_replay = _is_behind(st, batch, first)
    last = first + 1
    while last < stop and batch.op_code[last] == SENT:
        if op_start[last + 1] - op_start[first] > MOST_OF_SEVERAL_LINES:
            break
        for before in range(first, last):
            if op_consumer[before] == op_consumer[last]:
                return last, is_replay
        if _is_behind(st, batch, last) != is_replay:
            break
        last += 1
    return last, is_replay


@compiled
def _is_behind(st: State, batch: BatchArrays, op: int) -> bool:
    """Check whether a ``sent`` line names an entry that was read before."""
    lowest = st.s[READ_POSITION]
    for at in range(batch.op_start[op], batch.op_start[op + 1]):
        lowest = min(lowest, batch.op_ordinals[at])
    return lowest < st.s[READ_POSITION]


@compiled
def _pass_over(st: State, upto: int) -> None:
    """Move the read position to ``upto``, and put the entries before it that nobody got into the replay set."""
    for entry in range(st.s[READ_POSITION], upto):
        if st.deleted[entry] == 0 and st.holder[entry] == NOBODY and st.in_replay[entry] == 0:
            requeue(st, entry, st.hash_id[entry] + WIDE)
    moved_by_read(st, upto - 1)


@compiled
def _decide(
    st: State,
    is_replay: bool,
    start: int,
    count: int,
    sorted_: I64,
    entries: I64,
    recorded: I64,
    batch: BatchArrays,
) -> None:
    """4.x: put each entry, in position order, to ``choose``."""
    st.s[STAMP] += 1
    stamp = st.s[STAMP]
    batch.attempts[0] = 0
    track = st.s[TRACK_LAST_SENT] == 1
    if track:
        begin_round(st)
    for i in range(count):
        entry = entries[i]
        if entry >= st.s[READ_POSITION]:
            _pass_over(st, entry)
        chosen = choose(st, is_replay, entry, stamp, False, batch.attempts)
        slot = recorded[i]
        at = start + (sorted_[i] & MOST_PER_ROUND)
        batch.expected[at] = max(chosen, NOBODY)
        batch.reason[at] = OPEN if chosen == slot else _why_not(st, False, slot, entry, is_replay)
        moved_by_read(st, entry)
        if track:
            note_sent(st, entry)
    if track:
        advance(st)


@compiled
def _decide_classic(
    st: State,
    is_replay: bool,
    start: int,
    count: int,
    sorted_: I64,
    entries: I64,
    recorded: I64,
    chosen: I64,
    batch: BatchArrays,
) -> None:
    """3.x, classic: put the entries of the round to ``group``; what was passed over waits from the next round on."""
    stored_at_join, reason = batch.stored_at_join, batch.reason
    before = st.s[READ_POSITION]
    for i in range(count):
        chosen[i] = recorded[i]
    read_loop_classic.group(st, is_replay, entries[:count], chosen[:count])
    for i in range(count):
        entry, slot = entries[i], recorded[i]
        if chosen[i] == read_loop_classic.TO_REPLAY:
            remove_from_replay(st, entry)  # it was sent: ``group`` put it there
        at = start + (sorted_[i] & MOST_PER_ROUND)
        batch.expected[at] = max(chosen[i], NOBODY)
        reason[at] = OPEN
        if chosen[i] != slot:
            reason[at] = _why_not(st, True, slot, entry, is_replay)
        if reason[at] == RECENTLY_JOINED and entry < stored_at_join[slot]:
            reason[at] = MAYBE_READ
            prune(st)
            for recent in st.recent[: st.s[N_RECENT]]:  # so this much had been read by then
                if entry < stored_at_join[recent]:
                    st.joined_at[recent] = max(st.joined_at[recent], entry + 1)
    if count > 0 and entries[count - 1] >= before:
        for i in range(count):
            if entries[i] >= st.s[READ_POSITION]:
                _pass_over(st, entries[i])
                moved_by_read(st, entries[i])


@compiled
def _why_not(st: State, classic: bool, slot: int, entry: int, is_replay: bool) -> int:
    """Return the gate that was closed for the recorded delivery of ``entry`` to ``slot``; dispatch has just decided."""
    if slot == NOBODY or st.deleted[entry] == 1:
        return NOT_JUDGED
    return first_gate_for(st, classic, slot, entry, is_replay)


@compiled
def book(st: State, is_replay: bool, entries: I64, recorded: I64, outcome: I64) -> None:
    """Book the recorded deliveries as pending and charge their permits, whatever the rule says.

    ``recorded``: the slot of each entry's consumer. ``outcome``: scratch of the same length.
    """
    for i in range(len(entries)):
        slot = st.holder[entries[i]] + WIDE
        if slot != NOBODY:  # sent again while another connection had it
            let_go(st, slot, entries[i])
            add_unacked(st, slot, -st.num_messages[entries[i]])
        outcome[i] = recorded[i]
    send_groups(st, is_replay, entries, outcome)
    for i in range(len(entries)):
        entry, slot = entries[i], recorded[i]
        if (
            st.holder[entry] == NOBODY
            and slot != NOBODY
            and st.connected[slot] == 1
            and st.deleted[entry] == 0
        ):
            # The rule's last check refused it, the broker did not: to it the hash was free.
            give_up(st, st.hash_id[entry] + WIDE)
            remove_from_replay(st, entry)
            hold(st, slot, entry, st.hash_id[entry] + WIDE)


def scratch(entries: int) -> I64:
    """Make scratch for rounds of up to ``entries`` entries."""
    return np.zeros(4 * min(max(entries, 1), MOST_PER_ROUND), np.int64)
