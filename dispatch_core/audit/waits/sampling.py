"""Sample the waiting entries and the time that each reason has held them: the data plane of ``tracker``.

One row per hash of which something waits: the wait of its oldest waiting entry, the *head*. A wait begins when the head is
first seen waiting and ends when it is not seen waiting any more, whatever then stands in its place. Between two samples a
state is taken to have been what the later one shows; a sample is taken just before something changes.

Columns of a row are named below; behind them stands the time that each reason was in force (``SHARES`` + code).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.structs import by_address
from dispatch_core.audit.waits.reasons import REASONS, why_waiting, why_waiting_shared
from dispatch_core.broker.gates import (
    DRAINING_HASH,
    LAST_SENT_POSITION,
    NO_CONSUMER,
    NO_PERMITS,
    OPEN,
    RECENTLY_JOINED,
    UNACKED_LIMIT_CONSUMER,
    UNACKED_LIMIT_SUBSCRIPTION,
    no_consumer,
    no_permits,
    not_read_yet,
    unacked_limit_consumer,
)
from dispatch_core.broker.permits import is_available
from dispatch_core.broker.state import (
    I32,
    I64,
    MARK_DELETE,
    MAX_UNACKED_CONSUMER,
    N_CONSUMERS,
    NOBODY,
    READ_POSITION,
    TOTAL_UNACKED,
    WIDE,
    State,
    new_state,
)
from dispatch_core.recording.stream import AHEAD_ROWS, CLOCKS_US

Rows = npt.NDArray[np.int64]

# Columns of a row.
(
    HASH,
    HEAD,  # ordinal
    LEDGER,  # of the head; UNNAMED until the control plane has filled it in
    ENTRY,
    FROM_US,
    FROM_SEQ,
    LAST_US,  # when it was last seen waiting
    LAST_SEQ,
    REASON,  # now
    LEADING,  # the reason that held it longest
    SLOT,  # who should get it, and who keeps it from going, while the leading reason held
    HOLDER,
    FOR_SLOT,  # by how much longer for this consumer than for all others
    ENTRIES,  # at the most at once
    MESSAGES,
    MESSAGE_US,
    NEEDLESS_US,
    UNCERTAIN_US,
    MAYBE_LIMITED_US,  # by no gate, and perhaps by a limit in force
    ATTEMPTS,
    SILENT_US,  # the longest time in which its consumer was sent nothing meanwhile
    FREE_SINCE_US,  # since when no gate holds it, or only what waits before it at its consumer; 0 = one does
    NO_READ_US,  # the longest time in which it was free and nobody was sent anything
    NO_READ_FROM_US,  # when that began
    NO_READ_AFTER_US,  # the last delivery before
    NOTED,  # the leading reason that the control plane has described, plus 1; 0 = none
    SEEN,  # stamp of the last sample in which it waited
    ENTRIES_NOW,
    MESSAGES_NOW,
    NEEDLESS_FOR_US,  # for how long at most it was held without need as of the last sample, plus 1; 0 = it was not
    DRAINED_SINCE_US,  # since when its hash drains for a consumer that holds nothing of it; 0 = it does not
    DRAINED_SINCE_SEQ,
    DRAINED_US,  # the longest time in which it did
    DRAINED_FROM_US,  # when that began
    DRAINED_FROM_SEQ,
    DRAINED_UNTIL_SEQ,
    DRAINED_SLOT,  # who should have got it at its end, and for whom the hash drained
    DRAINED_FOR,
    SHARES,
) = range(39)
COLUMNS: Final = SHARES + len(REASONS)
UNNAMED: Final = -1

# What a sample is given and gives, by index of ``now``.
(
    T_US,
    BEFORE_US,  # of the sample before
    SEQ,
    BEFORE_SEQ,
    GRACE_US,  # what was stored so short a time ago does not wait yet
    GRACE_BEFORE_US,  # the same in the sample before
    STAMP,
    FIRST,  # entries before it are out of the question
    END,  # and from here on: not stored yet
    GIVEN,  # a reason for all; -1 = the rules are asked
    GIVEN_SLOT,
    UNKNOWN_HASH,  # entries of this hash are not in the message log
    WAITING,  # how many entries wait
    PINNED_BY,  # who holds the first entry that somebody holds
    OPEN_ROWS,
    CLOSED,  # rows of waits that have ended
    WANTED,  # of which hash entries that wait are listed, -1 = none
    LISTED,  # how many these are
    LIMITED_BY,  # a reason for entries that no gate holds: a limit is in force; OPEN = none is
    MAYBE_LIMITED,  # 1 = a limit may hold them, and the log cannot tell
    AGAIN_BELOW,  # with a given reason: unacknowledged entries below this one are to be sent again
    TICK_US,  # time between two samples; 0 = one before every step
    NEXT_US,  # when the next sample is due
    ANY_CONSUMER,  # 1 = nobody owns a hash: any consumer that is available will do (Shared)
    CHANGED_US,  # the last line before: nothing has changed since
    MOST_UNACKED,  # the most messages that any consumer held unacknowledged in a sample
    MOST_UNACKED_IN_ALL,  # and all of them together
) = range(27)
NUMBERS: Final = 27

#: Several consumers.
_MANY: Final = -2
#: Entries behind the read position that are looked at: of a longer backlog no more is in memory.
MOST_AHEAD: Final = AHEAD_ROWS


@by_address
class BatchSamples(NamedTuple):
    """Arrays with which a fold takes the samples of one batch that find nothing waiting, without leaving compiled code.

    ``times``, ``seqs``: of each operation; ``times`` ascend. ``stored_us``, ``owed_us``, ``outstanding`` and
    ``outstanding_at``: see ``survey``.
    """

    times: I64
    seqs: I64
    edges: I64  # operations before which a sample may be taken, ascending
    since: I64  # one element: the first operation before which a sample may still be taken
    stored_us: I64
    owed_us: I64
    now: I64
    trial: I64  # scratch: ``now`` as of a sample that is being tried; empty = every sample is taken in full
    outstanding: I32
    outstanding_at: I64


@compiled
def next_look(samples: BatchSamples, at: int) -> int:
    """Return the operation up to which to go on from ``at``: before it a sample is due, or the batch ends."""
    due = max(_first_from(samples.times, samples.now[NEXT_US]), at, samples.since[0])
    place = _first_from(samples.edges, due)
    return samples.edges[place] if place < len(samples.edges) else len(samples.times)


@compiled
def _first_from(ascending: I64, value: int) -> int:
    """Return the place of the first element that is ``value`` or more."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def begin_sample(now: I64, seq: int, t_us: int, grace_us: int) -> None:
    """Begin a sample before a line: note the sample before it, and when the next one is due."""
    now[BEFORE_US], now[BEFORE_SEQ] = now[T_US], now[SEQ]
    # a clock that goes back adds no time
    now[T_US], now[SEQ] = max(t_us, now[T_US]), seq
    now[GRACE_BEFORE_US], now[GRACE_US] = now[GRACE_US], grace_us
    now[STAMP] += 1
    now[NEXT_US] = t_us
    if now[TICK_US] > 0:
        now[NEXT_US] = (t_us // now[TICK_US] + 1) * now[TICK_US]


@compiled
def aim(st: State, now: I64, again_below: int) -> None:
    """Set the first entry that may wait. ``again_below``: see ``AGAIN_BELOW``."""
    now[FIRST] = st.s[MARK_DELETE] + 1
    if now[GIVEN] >= 0:
        now[AGAIN_BELOW] = again_below
        if again_below <= now[FIRST]:
            now[FIRST] = max(st.s[READ_POSITION], now[FIRST])


@compiled
def passes_quietly(st: State, samples: BatchSamples, at: int, again_below: int) -> bool:
    """Take the sample before operation ``at`` if nothing waits, and nothing waited before it.

    Returns False, with nothing changed, if the sample must be taken in full (``WaitTracker.sample``).
    """
    now, trial = samples.now, samples.trial
    if now[OPEN_ROWS] > 0 or now[STAMP] == 0 or not len(trial):
        return False
    for number in range(NUMBERS):
        trial[number] = now[number]
    begin_sample(trial, samples.seqs[at], samples.times[at], now[GRACE_US])
    aim(st, trial, again_below)
    survey(
        st,
        samples.stored_us,
        samples.owed_us,
        trial,
        samples.outstanding,
        samples.outstanding_at,
        samples.since[:0],
    )
    if trial[WAITING] > 0:
        return False
    for number in range(NUMBERS):
        now[number] = trial[number]
    samples.since[0] = at + 1
    return True


@compiled
def survey(
    st: State, stored_us: I64, owed_us: I64, now: I64, outstanding: I32, outstanding_at: I64, listed: I64
) -> None:
    """Count the waiting entries, and note in ``outstanding`` who holds entries of each hash, valid for this ``STAMP``.

    ``owed_us``: since when each entry may wait: when it was stored, or until when it is delayed.
    Sets ``END``, ``WAITING``, ``PINNED_BY``, ``LISTED``. ``listed`` gets those of the hash that is ``WANTED``.
    """
    now[WAITING], now[LISTED], now[PINNED_BY] = 0, 0, NOBODY
    entry = now[FIRST]
    end = min(len(st.deleted), max(entry, st.s[READ_POSITION]) + MOST_AHEAD)
    while entry < end and stored_us[entry] <= now[T_US] + CLOCKS_US:
        if st.deleted[entry] == 0:
            slot = st.holder[entry] + WIDE
            if slot == NOBODY:
                if is_waiting(st, owed_us, now, entry):
                    now[WAITING] += 1
                    if st.hash_id[entry] == now[WANTED]:
                        listed[now[LISTED]] = entry
                        now[LISTED] += 1
            else:
                hash_id = st.hash_id[entry]
                if outstanding_at[hash_id] != now[STAMP]:
                    outstanding_at[hash_id] = now[STAMP]
                    outstanding[hash_id] = slot
                elif outstanding[hash_id] != slot:
                    outstanding[hash_id] = _MANY
                if now[PINNED_BY] == NOBODY:
                    now[PINNED_BY] = slot
        entry += 1
    now[END] = entry


@compiled
def is_waiting(st: State, owed_us: I64, now: I64, entry: int) -> bool:
    """Check that an entry waits: owed for long enough, not acknowledged, not pending, and yet to be read or sent again.

    An entry whose pending ack is gone already, a moment before it counts as acknowledged, does not wait.
    """
    return (
        st.deleted[entry] == 0
        and st.holder[entry] == NOBODY
        and (st.in_replay[entry] == 1 or not_read_yet(st, entry) or no_consumer(st) or now[GIVEN] >= 0)
        and (now[GIVEN] < 0 or entry < now[AGAIN_BELOW] or entry >= st.s[READ_POSITION])
        and owed_us[entry] + now[GRACE_US] <= now[T_US]
        and st.hash_id[entry] != now[UNKNOWN_HASH]
    )


@compiled
def sample(
    st: State,
    classic: bool,
    inferred: bool,
    batched_entries: bool,
    owed_us: I64,
    stored_at_join: I64,
    now: I64,
    outstanding: I32,
    outstanding_at: I64,
    taken: I64,
    row_of: I32,
    rows: Rows,
    closed: Rows,
) -> None:
    """Continue the waits with the entries that wait now, after ``survey``. ``rows`` has room for ``WAITING`` more.

    ``taken``: per consumer for how many entries no gate is closed, 0 before. ``row_of``: the row of each hash, -1 = none.
    ``closed`` gets the waits that have ended, with room for all that are open. ``stored_at_join``: per consumer the furthest
    that may have been read when it joined; ``batched_entries``: acknowledgements of parts of entries are unseen.
    """
    now[CLOSED] = 0
    rank = 0
    for entry in range(now[FIRST], now[END]):
        if not is_waiting(st, owed_us, now, entry):
            continue
        hash_id = st.hash_id[entry] + WIDE
        since = now[BEFORE_US]
        if owed_us[entry] + now[GRACE_BEFORE_US] > since:
            since = owed_us[entry]  # it had only just been stored then
        lasted = now[T_US] - since
        at = row_of[hash_id] + WIDE
        if at < 0 or rows[at, SEEN] != now[STAMP]:
            if at < 0:
                at = now[OPEN_ROWS]
                now[OPEN_ROWS] += 1
                row_of[hash_id] = at
                _begin(rows, at, hash_id, entry, since, now)
            elif rows[at, HEAD] != entry:
                _close(rows, at, closed, now)
                _begin(rows, at, hash_id, entry, since, now)
            _ask(
                st,
                classic,
                inferred,
                batched_entries,
                stored_at_join,
                now,
                outstanding,
                outstanding_at,
                taken,
                rows,
                at,
                rank,
                lasted,
            )
        _add(rows, at, st.num_messages[entry] + WIDE, lasted)
        owner, free = st.hash_owner[hash_id], rows[at, REASON] == OPEN or rows[at, REASON] == now[LIMITED_BY]
        if free and now[GIVEN] < 0 and owner != NOBODY:
            taken[owner] += 1
        rank += 1
    at = now[OPEN_ROWS] - 1
    while at >= 0:
        if rows[at, SEEN] != now[STAMP]:
            _close(rows, at, closed, now)
            row_of[rows[at, HASH]] = -1
            last = now[OPEN_ROWS] - 1
            if at < last:
                for column in range(COLUMNS):
                    rows[at, column] = rows[last, column]
                row_of[rows[at, HASH]] = at
            now[OPEN_ROWS] = last
        at -= 1


@compiled
def _begin(rows: Rows, at: int, hash_id: int, entry: int, since: int, now: I64) -> None:
    for column in range(COLUMNS):
        rows[at, column] = 0
    rows[at, HASH], rows[at, HEAD], rows[at, LEDGER] = hash_id, entry, UNNAMED
    rows[at, FROM_US], rows[at, FROM_SEQ], rows[at, LEADING] = since, now[BEFORE_SEQ], -1


@compiled
def _close(rows: Rows, at: int, closed: Rows, now: I64) -> None:
    for column in range(COLUMNS):
        closed[now[CLOSED], column] = rows[at, column]
    now[CLOSED] += 1


@compiled
def _ask(
    st: State,
    classic: bool,
    inferred: bool,
    batched_entries: bool,
    stored_at_join: I64,
    now: I64,
    outstanding: I32,
    outstanding_at: I64,
    taken: I64,
    rows: Rows,
    at: int,
    rank: int,
    lasted: int,
) -> None:
    """Note the closed gate of the head of a row, the consumer that waits, and the one that holds it up."""
    hash_id, entry = rows[at, HASH], rows[at, HEAD]
    reason, slot, ahead = now[GIVEN], now[GIVEN_SLOT], WIDE
    if reason < 0:
        slot = st.hash_owner[hash_id] + WIDE
        ahead = taken[slot] if slot != NOBODY else 0
        if now[ANY_CONSUMER] == 1:
            reason = why_waiting_shared(st, entry)
        else:
            reason = why_waiting(st, classic, entry, rank, ahead, inferred)
        if reason == NO_CONSUMER:
            slot = NOBODY + WIDE
    _note_free(st, classic, inferred, now, rows, at, reason, slot)
    if reason == OPEN:
        reason = now[LIMITED_BY]
        if now[MAYBE_LIMITED] == 1:
            rows[at, MAYBE_LIMITED_US] += lasted
    was_needless = rows[at, NEEDLESS_FOR_US] > 0 and rows[at, REASON] == reason
    rows[at, SEEN], rows[at, REASON] = now[STAMP], reason
    rows[at, LAST_US], rows[at, LAST_SEQ] = now[T_US], now[SEQ]
    rows[at, ENTRIES_NOW] = rows[at, MESSAGES_NOW] = 0
    by_order = reason in (DRAINING_HASH, RECENTLY_JOINED, LAST_SENT_POSITION)
    elsewhere = outstanding_at[hash_id] == now[STAMP] and outstanding[hash_id] != slot
    blocked = NOBODY + WIDE if now[ANY_CONSUMER] == 1 else slot
    by_limit = reason == UNACKED_LIMIT_CONSUMER and _is_blocked_with_few(st, blocked)
    for_us = now[T_US]  # longer than anything has waited
    if by_limit and not was_needless:
        # Any line since the sample before may have been the acknowledgement that brought it down to half of the limit.
        for_us -= now[CHANGED_US]
    rows[at, NEEDLESS_FOR_US] = for_us + 1 if (by_order and not elsewhere) or by_limit else 0
    if reason != NO_CONSUMER:
        _note_drained(st, now, rows, at, slot, reason == DRAINING_HASH and not elsewhere)
    if inferred and _cannot_tell(st, classic, batched_entries, stored_at_join, reason, slot, entry, ahead):
        rows[at, UNCERTAIN_US] += lasted
    rows[at, SHARES + reason] += lasted
    leading = rows[at, LEADING]
    if reason == leading or leading < 0 or rows[at, SHARES + reason] > rows[at, SHARES + leading]:
        _lead(rows, at, reason, slot, holder_of(st, now, reason, slot, hash_id), lasted)


@compiled
def _note_drained(st: State, now: I64, rows: Rows, at: int, slot: int, drained: bool) -> None:
    """Note since when the hash of a row drains for a consumer that holds nothing of it; ``drained``: that may be so.

    What mark-delete has passed may be pending on that consumer still. It counts, although no order needs it.
    """
    owner = st.drain_owner[rows[at, HASH]] + WIDE
    if drained and rows[at, DRAINED_SINCE_US] == 0:
        drained = not _holds_any(st, owner, rows[at, HASH])
    if not drained:
        rows[at, DRAINED_SINCE_US] = 0
        return
    if rows[at, DRAINED_SINCE_US] == 0:
        rows[at, DRAINED_SINCE_US] = max(now[CHANGED_US], rows[at, FROM_US])
        rows[at, DRAINED_SINCE_SEQ] = now[BEFORE_SEQ]
    drained_us = now[T_US] - rows[at, DRAINED_SINCE_US]
    if drained_us > rows[at, DRAINED_US]:
        rows[at, DRAINED_US] = drained_us
        rows[at, DRAINED_FROM_US] = rows[at, DRAINED_SINCE_US]
        rows[at, DRAINED_FROM_SEQ] = rows[at, DRAINED_SINCE_SEQ]
        rows[at, DRAINED_UNTIL_SEQ] = now[SEQ]
        rows[at, DRAINED_SLOT], rows[at, DRAINED_FOR] = slot, owner


@compiled
def _holds_any(st: State, slot: int, hash_id: int) -> bool:
    """Check that a consumer has a pending ack of a hash, also of an entry that is acknowledged or passed."""
    for entry in range(len(st.holder)):  # noqa: SIM110 - compiled code makes no generators
        if st.holder[entry] == slot and st.pending_hash[entry] == hash_id:
            return True
    return False


@compiled
def _is_blocked_with_few(st: State, slot: int) -> bool:
    """Check that a consumer is blocked on unacknowledged messages, and holds no more than half of the limit.

    A broker unblocks it when it comes down to half (Consumer.addAndGetUnAckedMsgs). ``slot``: NOBODY = any consumer that has
    permits.
    """
    for at in range(st.s[N_CONSUMERS]):
        other = st.order[at] + WIDE
        if other != slot and (slot != NOBODY or st.permits[other] <= 0):
            continue
        if st.blocked[other] == 1 and 2 * st.unacked[other] <= st.s[MAX_UNACKED_CONSUMER]:
            return True
    return False


@compiled
def holder_of(st: State, now: I64, reason: int, slot: int, hash_id: int) -> int:
    """Return the consumer that keeps the head of a hash waiting for a reason; NOBODY = nobody in particular."""
    if reason == DRAINING_HASH:
        return st.drain_owner[hash_id] + WIDE
    if reason in (RECENTLY_JOINED, LAST_SENT_POSITION):
        return now[PINNED_BY]
    if reason in (NO_PERMITS, UNACKED_LIMIT_CONSUMER):
        return slot
    return NOBODY + WIDE


@compiled
def _note_free(
    st: State, classic: bool, inferred: bool, now: I64, rows: Rows, at: int, reason: int, slot: int
) -> None:
    """Note since when no gate holds the head of a row.

    A consumer with permits that others, which wait before, will use up has some now: the head would follow them.
    """
    free = reason == OPEN and now[LIMITED_BY] == OPEN
    if reason == NO_PERMITS and now[GIVEN] < 0 and slot != NOBODY:
        free = not no_permits(st, classic, slot, 0)
    if inferred and free and now[GIVEN] < 0:
        free = not _may_be_limited(st, now, slot)
    if not free:
        rows[at, FREE_SINCE_US] = 0
    elif rows[at, FREE_SINCE_US] == 0:
        rows[at, FREE_SINCE_US] = max(now[CHANGED_US], rows[at, FROM_US])


@compiled
def _may_be_limited(st: State, now: I64, slot: int) -> bool:
    """Check that a limit of unacknowledged messages which a policy sets, and no line shows, may hold a consumer.

    It may not where the consumer, and all together, hold no more than half of what was held before: they would have come
    below such a limit (``broker.gates.unacked_limit_consumer``). ``slot``: NOBODY = any consumer that is available.
    """
    if 2 * st.s[TOTAL_UNACKED] > now[MOST_UNACKED_IN_ALL]:
        return True
    if slot != NOBODY:
        return 2 * st.unacked[slot] > now[MOST_UNACKED]
    for at in range(st.s[N_CONSUMERS]):
        other = st.order[at] + WIDE
        if is_available(st, other) and 2 * st.unacked[other] <= now[MOST_UNACKED]:
            return False
    return True


@compiled
def _cannot_tell(
    st: State,
    classic: bool,
    batched_entries: bool,
    stored_at_join: I64,
    reason: int,
    slot: int,
    entry: int,
    ahead: int,
) -> bool:
    """Check that a log without reads does not show which of two rules held an entry.

    What may have been read before a consumer joined is held by its joining for certain only if nothing else holds it: it
    would have been sent. Acknowledgements of parts of entries, which need not be in the log, lower the counters of what is
    unacknowledged, not permits.
    """
    if reason == RECENTLY_JOINED and entry < stored_at_join[slot]:
        return unacked_limit_consumer(st, slot) or no_permits(st, classic, slot, ahead)
    return batched_entries and reason in (UNACKED_LIMIT_CONSUMER, UNACKED_LIMIT_SUBSCRIPTION)


@compiled
def _lead(rows: Rows, at: int, reason: int, slot: int, holder: int, lasted: int) -> None:
    """Note the reason that held longest, with the consumer for whom it did, not the one that owns the hash at the end."""
    if rows[at, LEADING] != reason or rows[at, FOR_SLOT] == 0:
        rows[at, LEADING], rows[at, SLOT], rows[at, HOLDER] = reason, slot, holder
        rows[at, FOR_SLOT] = lasted
    elif rows[at, SLOT] == slot:
        rows[at, FOR_SLOT] += lasted
        rows[at, HOLDER] = holder
    elif rows[at, FOR_SLOT] > lasted:
        rows[at, FOR_SLOT] -= lasted
    else:
        rows[at, SLOT], rows[at, HOLDER] = slot, holder
        rows[at, FOR_SLOT] = lasted - rows[at, FOR_SLOT]


@compiled
def _add(rows: Rows, at: int, messages: int, lasted: int) -> None:
    """Add a waiting entry of the row's hash."""
    rows[at, ENTRIES_NOW] += 1
    rows[at, MESSAGES_NOW] += messages
    rows[at, ENTRIES] = max(rows[at, ENTRIES], rows[at, ENTRIES_NOW])
    rows[at, MESSAGES] = max(rows[at, MESSAGES], rows[at, MESSAGES_NOW])
    rows[at, MESSAGE_US] += messages * lasted
    if rows[at, NEEDLESS_FOR_US] > 0:
        rows[at, NEEDLESS_US] += messages * min(lasted, rows[at, NEEDLESS_FOR_US] - 1)


def no_samples(operations: int) -> BatchSamples:
    """Make the arrays of a batch of which no samples are taken."""
    empty, none = np.empty(0, np.int64), np.empty(0, np.int32)
    times = np.zeros(operations, np.int64)
    return BatchSamples(
        times, times.copy(), empty, np.zeros(1, np.int64), *(empty,) * 2, numbers(), empty, none, empty
    )


def numbers() -> I64:
    """Make the numbers ``now`` before the first sample."""
    now: npt.NDArray[Any] = np.zeros(NUMBERS, np.int64)
    now[GIVEN] = now[UNKNOWN_HASH] = now[WANTED] = -1
    now[NEXT_US] = -(1 << 62)
    return now


def warm_up() -> None:
    """Call every compiled function here once, with one entry and no consumer."""
    st = new_state(np.zeros(1, np.int32), np.ones(1, np.int32), 1, 1)
    now, per_hash, zeros = numbers(), np.full(1, -1, np.int32), np.zeros(1, np.int64)
    survey(st, zeros, zeros, now, per_hash.copy(), zeros.copy(), zeros.copy())
    rows = np.zeros((1, COLUMNS), np.int64)
    sample(
        st, False, True, False, zeros, zeros, now, per_hash.copy(), zeros, zeros, per_hash, rows, rows.copy()
    )
