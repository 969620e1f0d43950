"""Track waits of the oldest entry of each hash, sampled while a log is folded: how long and why.

A fold calls ``due`` before each of its steps and ``sample`` where it is: at ticks of the log's clock, and before the set of
connected consumers changes. Ticks are multiples of ``tick_us``, so that a log in several batches gives the same waits as in
one. ``reasons`` finds why an entry waits; ``sampling`` keeps the numbers from sample to sample.

Long waits are listed one by one. Of the others the first ``SHORT_WAITS`` of an interval are listed too; the rest is added up
by consumer and reason, so that sums over all waits are complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.catalogue import LIMIT_REASONS
from dispatch_core.audit.deliveries.transactions import Committed
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.waits import sampling as at_
from dispatch_core.audit.waits.held_by_limits import HeldByLimits
from dispatch_core.audit.waits.no_read import (
    LEFT_US,
    SETTLED_US,
    Dispatched,
    NoRead,
    PendingReads,
    Reads,
    fitting,
    shown,
)
from dispatch_core.audit.waits.notes import MOST_POSITIONS, Core, Key, Note, Notes, Window, number_of
from dispatch_core.audit.waits.parts import Part, Parts
from dispatch_core.audit.waits.reasons import REASONS
from dispatch_core.broker.gates import DRAINING_HASH, OPEN, UNCOVERED_RANGE, replay_set_is_full
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.permits import look_ahead_limit
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.state import (
    I64,
    LOOK_AHEAD_NEEDS_MORE,
    N_CONSUMERS,
    N_REPLAY,
    NOBODY,
    READ_POSITION,
    TOTAL_UNACKED,
    State,
)

__all__ = [
    "MOST_POSITIONS",
    "Key",
    "LastSent",
    "SampledWait",
    "WaitTracker",
    "Window",
    "tick_of",
    "tracker_for",
]

#: ``doubt`` of a wait: only a producer's clock says that its entries were for the subscription.
CLOCKS_DIFFER: Final = "clocks_differ"
#: The cursor passed its entries between two loads of the topic, and no line says why.
CURSOR_PASSED: Final = "cursor_passed"
#: A behaviour may have left out its entries that had its line less than a second later.
LIMIT_LATE: Final = "limit_line_late"
#: The compacted topic was read, which leaves out what a later entry of the key replaces; of this one none was sent.
COMPACTED_READ: Final = "compacted_read"
#: Number of waits below the limit that are listed one by one, per interval.
SHORT_WAITS: Final = 2_000
#: Waits that one sample describes in full for one consumer and reason; of others only the oldest position is named.
_MOST_NOTED: Final = 20
#: Reasons that concern one hash: each of these waits is described in full.
_OF_ONE_HASH: Final = (OPEN, UNCOVERED_RANGE, DRAINING_HASH)
_MOST_NOTED_OF_HASHES: Final = 1_000

#: An entry waits only when it was stored so long ago, microseconds.
GRACE_US: Final = 50_000
#: A log of level E is looked at this often for each of the shortest limit's lengths ...
_SAMPLES_PER_LIMIT: Final = 50
#: ... but no more and no less often than this.
_TICKS_US: Final = (10_000, 500_000)
#: With an explicit ``tick_us``, waits of this length are described in full, microseconds.
_SHORTEST_US: Final = 20_000
#: Most waits that are listed one by one for one log.
_ALL: Final = 100_000


class DrainedForNothing(NamedTuple):
    """A part of a wait in which the hash drained for a consumer that held nothing of it.

    ``lasted_us``: microseconds; ``waiting``: the consumer that should have got the entry; ``holder``: that for which the
    hash drained.
    """

    lasted_us: int
    from_us: int
    from_seq: int
    until_seq: int
    waiting: int | None
    holder: int | None
    #: Nothing but that nobody was connected any more came behind it.
    is_last: bool


@dataclass(frozen=True, slots=True)
class SampledWait:
    """One wait of the oldest waiting entry of a hash, from when it waited until it was sent or settled. Times: microseconds.

    A wait has a leading ``reason``, the rule that held it longest, and ``shares``: all of them with the microseconds each
    was in force. The reason ``None`` means that no rule held it.
    """

    hash: int | None  # None: many hashes together, waits too short to be listed one by one
    reason: str | None  # of ``catalogue.STALL_REASONS`` or ``LIMIT_REASONS``
    shares: tuple[tuple[str | None, int], ...]  # longest first
    waiting: int | None  # consumer that should get it
    holder: int | None  # consumer that holds it up: drains, pins the join position, has no permits
    holder_positions: tuple[str, ...]  # its pending message ids, at most ``MOST_POSITIONS``
    holder_pending: int  # number of these in all
    from_seq: int
    from_t_us: int
    until_seq: int | None  # None: it waits still
    until_t_us: int | None
    first_position: str | None  # of the oldest entry; None if hash is None
    positions: tuple[str, ...]  # waiting, the oldest first, at most ``MOST_POSITIONS``
    keys: tuple[Key | None, ...]  # of ``positions``, one by one; None = key-less
    entries: int  # most entries that waited at the same time
    messages: int
    message_us: int  # sum of the waits of all messages, microseconds
    #: Of these, microseconds: held by an ordering rule while nothing of the hash was outstanding elsewhere, or by the limit
    #: of unacknowledged messages of a consumer that was not unblocked at half of it.
    needless_us: int
    attempts: int  # number of times that it was taken up and refused; 0 = not seen
    uncertain: bool  # the log cannot tell the reason
    doubt: str | None = (
        None  # what may explain it that the log does not show: ``CLOCKS_DIFFER``, ``CURSOR_PASSED``
    )
    #: Of a wait that goes on at the end of the log: number of its entries that were never sent, and of these the number that
    #: lie behind all entries of their key that were sent.
    never_sent: int = 0
    never_passed: int = 0
    #: … the number of them by each of ``keys``, and the number of their keys in all.
    never_of_keys: tuple[tuple[Key | None, int], ...] = ()
    never_keys: int = 0
    #: … and its oldest entry was sent before: it is to be sent again.
    again: bool = False
    #: The rule that held it at the end of the log; None = none did, or it does not go on.
    reason_at_end: str | None = None
    #: A limit held it at the end of the log.
    limited: bool = False
    #: A limit in force may have held it for the larger part of the time in which no rule did; the log cannot tell.
    maybe_limited: bool = False
    #: For so long a limit may have held it, microseconds.
    maybe_limited_us: int = 0
    #: The behaviour in force that may have left out its entries (``left_out``).
    left_out_by: str | None = None
    #: Number of the producer and publish time of ``positions``, one by one; empty = not known.
    published: tuple[tuple[int, int], ...] = ()
    #: The longest time in which the consumer that should get it was sent nothing while it waited, as far as that is of the
    #: interval, microseconds.
    silent_us: int = 0
    #: The part of it in which nothing was read although nothing held it; ``None`` = there is none.
    no_read: NoRead | None = None
    #: The longest part of it in which its hash drained for nothing; ``None`` = it never did.
    drained: DrainedForNothing | None = None
    #: One after the other, if the tracker was asked for them; else empty.
    parts: tuple[Part, ...] = ()

    @property
    def waited_us(self) -> int:
        """The wait of the oldest entry in microseconds, as far as it was sampled."""
        return sum(us for _, us in self.shares)


class LastSent(NamedTuple):
    """The last ``sent`` line of a consumer: its time in microseconds, its ``seq``, and the highest position in it."""

    t_us: int
    seq: int
    ledger: int
    entry: int


#: Nothing was sent.
_NEVER_SENT: Final = LastSent(-1, 0, -1, -1)


@dataclass(slots=True)
class _Stall:
    """The time since a delivery, as long as nothing is sent and something waits that nothing holds (``no_read``).

    ``fresh``: some of it was not passed over; ``hashes``: the most of which something waited so at once.
    """

    after_seq: int
    fresh: bool = False
    hashes: int = 0
    reads: Reads = field(default_factory=Reads)


def tick_of(limit_us: int) -> int:
    """Choose the time between samples, microseconds, so that waits of ``limit_us`` are noticed.

    >>> tick_of(10_000_000), tick_of(100_000), tick_of(10**15)
    (200000, 10000, 500000)
    """
    return max(_TICKS_US[0], min(limit_us // _SAMPLES_PER_LIMIT, _TICKS_US[1]))


def grace_of(limits: Limits) -> int:
    """Return for how long after it was stored an entry does not wait yet, microseconds."""
    return min(GRACE_US, 1000 * _shortest_ms(limits) // 2)


def _shortest_ms(limits: Limits) -> int:
    return min(limits.stuck_key_ms, limits.stuck_consumer_ms, limits.stuck_subscription_ms)


def tracker_for(
    limits: Limits, *, inferred: bool, start_us: int, tick_us: int | None = None, closely: int = 1
) -> WaitTracker:
    """Make a tracker for ``limits``. With a ``tick_us`` (0 = every line) each wait is listed by itself, in parts.

    ``closely``: factor by which samples are more frequent than the limits need; above 1 entries wait from the moment they
    are stored. The other arguments are those of ``WaitTracker``.
    """
    shortest = 1000 * _shortest_ms(limits)
    everything = tick_us is not None
    return WaitTracker(
        inferred=inferred,
        tick_us=tick_of(shortest) // closely if tick_us is None else tick_us,
        grace_us=grace_of(limits) if closely == 1 else 0,
        long_us=min(shortest, _SHORTEST_US) if everything else shortest,
        start_us=start_us,
        short_waits=_ALL if everything or closely > 1 else SHORT_WAITS,
        in_parts=everything,
    )


class WaitTracker:
    """Sample the waits of one dispatcher while its log is folded. Times are microseconds.

    Call ``go_on`` for each batch of the log, ``sample`` before a step where ``due`` says so, ``take`` for the waits that
    have ended and ``finish`` for those that go on at the end.

    Args:
        inferred: what was read is known only as far as it was sent (level E).
        tick_us: time between two samples; 0 = a sample before every step.
        grace_us: an entry waits only when it was stored so long ago.
        long_us: waits of at least this length are listed one by one, with all that is known of them.
        start_us: waits that ended before this time are left out.
        short_waits: the number of shorter waits that are listed one by one.
        in_parts: waits are cut where their reason changes (``SampledWait.parts``).

    ``batched_entries``: set it where acknowledgements of parts of entries are unseen. ``held_by``: limits in force; ``None``
    = the log shows none.
    """

    def __init__(
        self,
        *,
        inferred: bool,
        tick_us: int = 100_000,
        grace_us: int = GRACE_US,
        long_us: int = 1_000_000,
        start_us: int = 0,
        short_waits: int = SHORT_WAITS,
        in_parts: bool = False,
    ) -> None:
        self.batched_entries = False
        self.held_by: HeldByLimits | None = None
        self._inferred = inferred
        self._grace_us = grace_us
        self._long_us = long_us
        self._start_us = start_us
        self._short_waits = self._short_left = short_waits
        self._now = at_.numbers()
        self._now[at_.TICK_US] = tick_us
        self._rows: at_.Rows = np.empty((64, at_.COLUMNS), np.int64)
        self._row_of = np.empty(0, np.int32)
        self._outstanding = np.empty(0, np.int32)
        self._outstanding_at = np.empty(0, np.int64)
        self._stored_us: I64 = np.empty(0, np.int64)
        self._owed_us: I64 = np.empty(0, np.int64)  # without what transactions hold back
        self._transaction: npt.NDArray[np.int32] | None = None
        self._committed = Committed()
        self._stored_at_join: I64 = np.empty(0, np.int64)
        self._notes_of = Notes(self._now)
        self._parts = Parts(self._notes_of) if in_parts else None
        self._notes: dict[int, Note] = {}  # by hash id, of waits that are open
        self._ended: list[SampledWait] = []
        self._sums: dict[tuple[int, int | None], npt.NDArray[np.int64]] = {}  # reason, consumer → see _add_up
        self._last_sent: dict[int, LastSent] = {}  # by consumer
        self._latest = _NEVER_SENT  # of all of them
        self._commanded_us = -1  # the last command that must have made the broker attempt a read …
        self._commands: deque[int] = deque()  # … and the later ones
        self._stalls: dict[int, _Stall] = {}  # by the time of the delivery before

    def go_on(
        self,
        dropped: int,
        window: Window,
        stored_us: I64,
        due_us: I64 | None = None,
        transaction: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Take a new window of entries: ``dropped`` were dropped at its front.

        ``stored_us``: publish time of each; ``due_us``: until when it is delayed (0 = it is not; ``None`` = none is);
        ``transaction``: the number of its transaction, -1 = none (``None`` = there are none). For a log without a trace call
        ``joined`` too.
        """
        self._stored_us = np.ascontiguousarray(stored_us, np.int64)
        self._owed_us = self._stored_us
        if due_us is not None:
            self._owed_us = np.maximum(self._stored_us, due_us)
        self._transaction = transaction
        self._notes_of.window, self._notes_of.stored_us = window, self._stored_us
        self._notes_of.owed_us = self._owed_us
        self._rows[: self._now[at_.OPEN_ROWS], at_.HEAD] -= dropped

    def begin_interval(self, start_us: int) -> None:
        """Begin a later interval: what lies before ``start_us`` is left out from now on, and no wait is listed yet."""
        self._start_us = start_us
        self._rows[: self._now[at_.OPEN_ROWS], at_.SILENT_US] = 0
        self._rows[: self._now[at_.OPEN_ROWS], at_.NO_READ_US] = 0
        self._short_left = self._short_waits
        self._ended, self._sums = [], {}

    def begin(self, seq: int, t_us: int) -> None:
        """Begin with the first line of the log: entries that are stored already may wait from now on."""
        self._now[at_.T_US], self._now[at_.SEQ] = t_us, seq

    def joined(self, stored_at_join: I64) -> None:
        """Set for each slot the number of entries that were stored when the consumer joined."""
        self._stored_at_join = stored_at_join

    @property
    def looked_us(self) -> int:
        """Time of the last sample."""
        return int(self._now[at_.T_US])

    @property
    def beyond(self) -> tuple[int, int] | None:
        """Position of the first entry that the last sample did not look at; ``None`` = it looked at all."""
        end, window = int(self._now[at_.END]), self._notes_of.window
        if not len(self._stored_us) or end >= len(window.ledger_ids):
            return None
        return int(window.ledger_ids[end]), int(window.entry_ids[end])

    def due(self, t_us: int) -> bool:
        """Check that a sample is due before a step at ``t_us``."""
        return t_us >= int(self._now[at_.NEXT_US])

    def stale(self, t_us: int) -> bool:
        """Check that the last sample is so old at ``t_us`` that a change is worth one before it."""
        return 10 * (t_us - int(self._now[at_.T_US])) >= int(self._now[at_.TICK_US])

    def sent(self, last: Mapping[int, LastSent]) -> None:
        """Take what consumers were sent last; call it before the next sample."""
        self._last_sent.update(last)
        self._latest = max(self._latest, *last.values())

    def commanded(self, t_us: int) -> None:
        """Take the time of the last command that makes the broker attempt a read; call it before the next sample."""
        self._commands.append(t_us)
        self._settle_commands(t_us)

    def _settle_commands(self, t_us: int) -> None:
        """Take the commands that must have had their effect by ``t_us``."""
        while self._commands and self._commands[0] <= t_us - SETTLED_US:
            self._commanded_us = max(self._commanded_us, self._commands.popleft())

    def refused(self, core: KeySharedDispatcher, hash_value: int) -> None:
        """Count that an entry of a hash was taken up and refused because the hash drains; call it after a sample."""
        hash_id = core.id_of_hash(hash_value)
        if hash_id is not None and hash_id < len(self._row_of) and self._row_of[hash_id] >= 0:
            self._rows[self._row_of[hash_id], at_.ATTEMPTS] += 1

    # --- samples ---------------------------------------------------------------------------------------------

    def of_batch(self, core: Core, times: I64, seqs: I64, edges: I64, begin: int) -> at_.BatchSamples:
        """Return the arrays with which a fold takes those samples of a batch that find nothing waiting.

        Call ``go_on`` before. ``times``, ``seqs``: of the operations; ``edges``: those before which a sample may be taken;
        ``begin``: the first of these.
        """
        self._make_room(core.state)
        self._note_unknown_hash(core)
        # What a transaction holds back is known to the control plane alone.
        in_full = self._transaction is not None
        return at_.BatchSamples(
            times,
            seqs,
            edges,
            np.full(1, begin, np.int64),
            self._stored_us,
            self._owed_us,
            self._now,
            np.empty(0 if in_full else at_.NUMBERS, np.int64),
            self._outstanding,
            self._outstanding_at,
        )

    def sample(
        self,
        core: Core,
        seq: int,
        t_us: int,
        *,
        reason: int | None = None,
        slot: int | None = None,
        last: bool = False,
        first: int = 0,
        again_below: int = 0,
        changed_us: int | None = None,
        reads: PendingReads | None = None,
    ) -> None:
        """Sample the dispatcher just before a line.

        Args:
            core: the dispatcher.
            seq: the line.
            t_us: its time.
            reason: the gate that holds all waiting entries (Failover, Exclusive); ``None`` = found per entry.
            slot: the consumer that a given reason concerns; by default the active one.
            last: no consumer is connected after the line, so that no later sample shows what holds the entries.
            first: entries before it were not for the subscription.
            again_below: of Failover and Exclusive, entries below this one that are not acknowledged are to be sent again.
            changed_us: time of the last line before, since which nothing has changed; ``None`` = not known.
            reads: the reads that are pending, as a trace shows them; ``None`` = the log has no trace.
        """
        st, now = core.state, self._now
        if last:
            self._grace_us = 0  # entries stored by then should have been sent
        at_.begin_sample(now, seq, t_us, self._grace_us)
        now[at_.CHANGED_US] = now[at_.T_US] if changed_us is None else min(changed_us, int(now[at_.T_US]))
        self._aim(core, reason, slot, again_below)
        now[at_.FIRST] = max(first, int(now[at_.FIRST]))
        self._make_room(st)
        if not len(self._stored_us) and not now[at_.OPEN_ROWS]:
            return
        self._notes_of.owed_us = owed_us = self._owed(st)
        now[at_.LIMITED_BY], now[at_.MAYBE_LIMITED] = OPEN, 0
        if self.held_by is not None:
            before_us, now_us = int(now[at_.BEFORE_US]), int(now[at_.T_US])
            now[at_.LIMITED_BY], now[at_.MAYBE_LIMITED] = self.held_by.at(core, before_us, now_us)
        connected = st.order[: st.s[N_CONSUMERS]]
        now[at_.MOST_UNACKED] = max(int(now[at_.MOST_UNACKED]), int(st.unacked[connected].max(initial=0)))
        now[at_.MOST_UNACKED_IN_ALL] = max(int(now[at_.MOST_UNACKED_IN_ALL]), int(st.s[TOTAL_UNACKED]))
        at_.survey(st, self._stored_us, owed_us, now, self._outstanding, self._outstanding_at, _NOTHING)
        if not now[at_.WAITING] and not now[at_.OPEN_ROWS]:
            return
        self._make_rows()
        before = int(now[at_.OPEN_ROWS])
        closed = np.empty((before, at_.COLUMNS), np.int64)
        at_.sample(
            st,
            isinstance(core, ClassicKeySharedDispatcher),
            self._inferred,
            self.batched_entries,
            owed_us,
            self._stored_at_join,
            now,
            self._outstanding,
            self._outstanding_at,
            np.zeros(len(st.permits), np.int64),
            self._row_of,
            self._rows,
            closed,
        )
        self._name_new()
        self._note_silence(core)
        self._end(core, closed[: now[at_.CLOSED]])
        self._note_stall(core, reads)
        self._note(core, everything=last)
        if self._parts is not None:
            rows = self._rows[: now[at_.OPEN_ROWS]]
            self._parts.note(core, rows, self._slots(core, rows))

    def _owed(self, st: State) -> I64:
        """Return since when each entry is owed; what an open transaction holds back, or an aborted one leaves out, never."""
        if self._transaction is None:
            return self._owed_us
        sent = (st.holder[: len(self._transaction)] != NOBODY) | (st.deleted[: len(self._transaction)] == 1)
        self._committed.note(self._transaction[sent])
        not_owed = self._committed.not_owed(self._transaction, int(st.s[READ_POSITION]))
        return np.where(not_owed, _NEVER_US, self._owed_us)

    def _aim(self, core: Core, reason: int | None, slot: int | None, again_below: int) -> None:
        """Set the range of entries that may wait, and the given reason."""
        now = self._now
        if isinstance(core, SingleActiveDispatcher):
            now[at_.GIVEN] = OPEN if reason is None else reason
            active = NOBODY if core.active is None else core.active
            now[at_.GIVEN_SLOT] = active if slot is None else slot
        now[at_.ANY_CONSUMER] = isinstance(core, SharedDispatcher)
        self._note_unknown_hash(core)
        at_.aim(core.state, now, again_below)

    def _note_unknown_hash(self, core: Core) -> None:
        """Note the hash of entries that are not in the message log, which never wait."""
        if not isinstance(core, SingleActiveDispatcher):
            unknown = core.id_of_hash(_NOT_STORED)
            self._now[at_.UNKNOWN_HASH] = -1 if unknown is None else unknown

    def _make_room(self, st: State) -> None:
        hashes, consumers = len(st.hash_owner), len(st.permits)
        if len(self._row_of) < hashes:
            self._row_of = _grown(self._row_of, hashes, -1)
            self._outstanding = _grown(self._outstanding, hashes, NOBODY)
            self._outstanding_at = _grown(self._outstanding_at, hashes, -1)
            self._notes_of.outstanding = self._outstanding, self._outstanding_at
        if len(self._stored_at_join) < consumers:
            self._stored_at_join = _grown(self._stored_at_join, consumers, 0)

    def _make_rows(self) -> None:
        now = self._now
        most = int(now[at_.OPEN_ROWS]) + min(int(now[at_.WAITING]), len(self._row_of))
        if most > len(self._rows):
            rows = np.empty((max(most, 2 * len(self._rows)), at_.COLUMNS), np.int64)
            rows[: now[at_.OPEN_ROWS]] = self._rows[: now[at_.OPEN_ROWS]]
            self._rows = rows

    def _name_new(self) -> None:
        rows = self._rows[: self._now[at_.OPEN_ROWS]]
        new = np.flatnonzero(rows[:, at_.LEDGER] == at_.UNNAMED)
        heads = rows[new, at_.HEAD]
        rows[new, at_.LEDGER] = self._notes_of.window.ledger_ids[heads]
        rows[new, at_.ENTRY] = self._notes_of.window.entry_ids[heads]

    # --- waits that ended ------------------------------------------------------------------------------------

    def take(self) -> list[SampledWait]:
        """Return the waits that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _end(self, core: Core, closed: at_.Rows) -> None:
        self._list_ended(core, closed)
        for hash_id in closed[:, at_.HASH].tolist():
            self._notes.pop(hash_id, None)  # a later wait of the hash may be for the same entry
        if self._parts is not None:
            self._parts.end(closed[:, at_.HASH])

    def _list_ended(self, core: Core, closed: at_.Rows) -> None:
        closed = closed[(closed[:, at_.LAST_US] > closed[:, at_.FROM_US]) | (closed[:, at_.ATTEMPTS] > 0)]
        closed = closed[closed[:, at_.LAST_US] >= self._start_us]
        if not len(closed):
            return
        closed = closed[np.lexsort((closed[:, at_.ENTRY], closed[:, at_.LEDGER], closed[:, at_.FROM_US]))]
        lasted = closed[:, at_.LAST_US] - closed[:, at_.FROM_US]
        listed = lasted >= self._long_us
        short = np.flatnonzero(~listed & (closed[:, at_.LEADING] != OPEN))[: self._short_left]
        self._short_left -= len(short)
        listed[short] = True
        for row in closed[listed].tolist():
            self._ended.append(self._wait(core, row, open_=False))
        self._add_up(core, closed[~listed])

    def _add_up(self, core: Core, closed: at_.Rows) -> None:
        """Add waits up by reason and consumer: ``_SUMMED``, then first line and time, last line and time."""
        closed = closed[closed[:, at_.LEADING] != OPEN]
        groups = closed[:, at_.LEADING] * (1 << 40) + closed[:, at_.SLOT]
        for group in np.unique(groups).tolist():
            rows = closed[groups == group]
            key = (int(rows[0, at_.LEADING]), number_of(core, int(rows[0, at_.SLOT])))
            ends = (
                rows[:, (at_.FROM_SEQ, at_.FROM_US)].min(axis=0),
                rows[:, (at_.LAST_SEQ, at_.LAST_US)].max(axis=0),
            )
            sums = np.concatenate([rows[:, _SUMMED].sum(axis=0), *ends])
            if key in self._sums:
                before = self._sums[key]
                sums[: len(_SUMMED)] += before[: len(_SUMMED)]
                sums[-4:-2] = np.minimum(sums[-4:-2], before[-4:-2])
                sums[-2:] = np.maximum(sums[-2:], before[-2:])
            self._sums[key] = sums

    def finish(self, core: Core) -> list[SampledWait]:
        """Return the waits that go on at the end, as of the last sample, and the sums of those that were not listed."""
        rows = self._rows[: self._now[at_.OPEN_ROWS]]
        rows = rows[np.lexsort((rows[:, at_.ENTRY], rows[:, at_.LEDGER], rows[:, at_.FROM_US]))]
        self._note(core, everything=True)
        return [
            *(self._wait(core, row, open_=True) for row in rows.tolist()),
            *(
                _summed(reason, consumer, self._sums[reason, consumer])
                for reason, consumer in _ordered(self._sums)
            ),
        ]

    def _wait(self, core: Core, row: Sequence[int], *, open_: bool) -> SampledWait:
        hash_id, leading = row[at_.HASH], row[at_.LEADING]
        note = self._notes.get(hash_id)
        first = f"{row[at_.LEDGER]}:{row[at_.ENTRY]}"
        never: list[int] = []
        if open_:
            never = self._notes_of.never_sent(core.state, hash_id)
        if note is None or not note.positions or note.positions[0] != first:
            keys = (self._notes_of.window.key(row[at_.HEAD]),) if open_ else ()
            note = Note(number_of(core, row[at_.HOLDER]), (), 0, (first,), keys)
        not_passed = self._notes_of.not_passed(never)
        if never and (leading == OPEN or not_passed < len(never)):
            note = replace(note, **self._notes_of.called(never))
        of_keys = self._notes_of.by_key(never)
        shares = sorted(
            (
                (REASONS[code], row[at_.SHARES + code])
                for code in range(len(REASONS))
                if row[at_.SHARES + code]
            ),
            key=lambda share: (-share[1], share[0] or ""),
        )
        return SampledWait(
            hash=core.hash_value(hash_id) if isinstance(core, KeySharedDispatcher) else None,
            reason=REASONS[leading],
            shares=tuple(shares),
            waiting=number_of(core, row[at_.SLOT]),
            holder=note.holder,
            holder_positions=note.holder_positions,
            holder_pending=note.holder_pending,
            from_seq=row[at_.FROM_SEQ],
            from_t_us=row[at_.FROM_US],
            until_seq=None if open_ else row[at_.LAST_SEQ],
            until_t_us=None if open_ else row[at_.LAST_US],
            first_position=first,
            positions=note.positions,
            keys=note.keys,
            published=note.published,
            maybe_limited=2 * row[at_.MAYBE_LIMITED_US] > row[at_.SHARES + OPEN],
            maybe_limited_us=row[at_.MAYBE_LIMITED_US],
            reason_at_end=REASONS[row[at_.REASON]] if open_ else None,
            limited=open_ and REASONS[row[at_.REASON]] in LIMIT_REASONS,
            entries=row[at_.ENTRIES],
            messages=row[at_.MESSAGES],
            message_us=row[at_.MESSAGE_US],
            needless_us=row[at_.NEEDLESS_US],
            attempts=row[at_.ATTEMPTS],
            silent_us=row[at_.SILENT_US],
            uncertain=2 * row[at_.UNCERTAIN_US] > row[at_.SHARES + leading],
            never_sent=len(never),
            never_passed=not_passed,
            never_of_keys=tuple((key, of_keys[key]) for key in dict.fromkeys(note.keys) if key in of_keys),
            never_keys=len(of_keys),
            again=open_ and bool(self._notes_of.window.times_sent()[row[at_.HEAD]]),
            no_read=self._no_read(row),
            drained=_drained(core, row),
            parts=() if self._parts is None else self._parts.of(hash_id, None if open_ else row[at_.LAST_US]),
        )

    def _no_read(self, row: Sequence[int]) -> NoRead | None:
        """Return the part of a wait that lies in a stall."""
        stall = self._stalls.get(row[at_.NO_READ_AFTER_US]) if row[at_.NO_READ_US] else None
        if stall is None or not stall.fresh:
            return None
        return NoRead(
            row[at_.NO_READ_US],
            row[at_.NO_READ_FROM_US],
            stall.after_seq,
            stall.hashes,
            stall.reads,
            row[at_.NO_READ_AFTER_US] == self._latest.t_us,
        )

    def _note_stall(self, core: Core, reads: PendingReads | None) -> None:
        """Note for how long nothing was sent to anybody while nothing held the waits that are open (``no_read``)."""
        now, rows = self._now, self._rows[: self._now[at_.OPEN_ROWS]]
        t_us, after = int(now[at_.T_US]), self._latest
        free = np.flatnonzero(rows[:, at_.FREE_SINCE_US])
        since_us = np.maximum(rows[free, at_.FREE_SINCE_US], after.t_us)
        if not len(free) or t_us < self._start_us or t_us - int(since_us.min()) < GRACE_US:
            return
        stall = self._stalls.setdefault(after.t_us, _Stall(after.seq))
        stall.hashes = max(stall.hashes, len(free))
        stall.fresh = stall.fresh or bool(self._are_fresh(core, rows[free]).any())
        stall.reads = self._reads(core, rows, int(since_us.min()), reads)
        # A later stall takes the place of a short one before it.
        short = (rows[free, at_.NO_READ_US] < self._long_us) & (
            rows[free, at_.NO_READ_AFTER_US] != after.t_us
        )
        longer = short | (t_us - since_us > rows[free, at_.NO_READ_US])
        chosen = free[longer]
        rows[chosen, at_.NO_READ_US] = t_us - since_us[longer]
        rows[chosen, at_.NO_READ_FROM_US] = since_us[longer]
        rows[chosen, at_.NO_READ_AFTER_US] = after.t_us
        wanted = {after.t_us, *np.unique(rows[:, at_.NO_READ_AFTER_US]).tolist()}
        self._stalls = {at: of_stall for at, of_stall in self._stalls.items() if at in wanted}

    def _are_fresh(self, core: Core, rows: at_.Rows) -> npt.NDArray[np.bool_]:
        """Mask the waits that nothing holds now and that were not passed over (``no_read``)."""
        only_free = rows[:, at_.SHARES + OPEN] == rows[:, at_.LAST_US] - rows[:, at_.FROM_US]
        since_us = np.where(only_free, rows[:, at_.FROM_US], rows[:, at_.FREE_SINCE_US])
        slots, places = np.unique(self._slots(core, rows), return_inverse=True)
        last = np.array([self._last_of(core, slot) for slot in slots.tolist()], np.int64)[places]
        t_us, ledger, entry = last[:, 0], last[:, 2], last[:, 3]
        behind = (ledger > rows[:, at_.LEDGER]) | (
            (ledger == rows[:, at_.LEDGER]) & (entry > rows[:, at_.ENTRY])
        )
        # Of a consumer that others left behind, what is stored later waits behind that.
        left_us = np.full(len(slots), -1, np.int64)
        np.maximum.at(left_us, places, self._latest.t_us - np.maximum(since_us, t_us))
        fresh: npt.NDArray[np.bool_] = ~(behind & (t_us > since_us)) & (left_us[places] <= LEFT_US)
        return fresh

    def _slots(self, core: Core, rows: at_.Rows) -> npt.NDArray[np.int64]:
        """Return the consumers that should get what waits; NOBODY = any."""
        if isinstance(core, SingleActiveDispatcher):
            return np.full(len(rows), self._now[at_.GIVEN_SLOT])
        return core.state.hash_owner[rows[:, at_.HASH]].astype(np.int64)

    def _last_of(self, core: Core, slot: int) -> LastSent:
        """Return what a consumer was sent last, or of Shared what anybody was."""
        if isinstance(core, SharedDispatcher):
            return self._latest
        number = number_of(core, slot)
        return _NEVER_SENT if number is None else self._last_sent.get(number, _NEVER_SENT)

    def _reads(self, core: Core, rows: at_.Rows, since_us: int, reads: PendingReads | None) -> Reads:
        """Return the state of reads in a stall that began at ``since_us``; ``rows``: all waits that are open."""
        st, now = core.state, self._now
        settled_us = int(now[at_.T_US]) - SETTLED_US
        own = isinstance(core, KeySharedDispatcher) and not isinstance(core, ClassicKeySharedDispatcher)
        if reads is not None:
            low, high = int(st.s[READ_POSITION]), int(now[at_.END])
            owed_us = self._notes_of.owed_us[low:high][st.deleted[low:high] == 0]
            stored = bool((owed_us <= settled_us).any())
            # What was stored a moment ago may be on its way.
            tail = not (owed_us <= now[at_.T_US]).any()
            full = own and bool(replay_set_is_full(st, 0))
            replays = tail and bool(st.s[N_REPLAY])
            return Reads(
                shown(reads, stored=stored, replays=replays, full=full, since_us=since_us), reads.seq
            )
        self._settle_commands(int(now[at_.T_US]))
        slots, late = self._slots(core, rows), since_us + SETTLED_US
        stored_us = self._notes_of.owed_us[rows[:, at_.HEAD]]
        free = slots[(rows[:, at_.FREE_SINCE_US] > 0) & (stored_us <= settled_us)]
        facts = Dispatched(
            skips_replays=isinstance(core, ClassicKeySharedDispatcher)
            or (own and not st.s[LOOK_AHEAD_NEEDS_MORE]),
            may_be_full=own and int(look_ahead_limit(st)) <= int(now[at_.WAITING]),
            new_work_alone=not np.isin(free, slots[stored_us <= late]).all(),
            commanded=self._commanded_us > late,
        )
        return fitting(facts)

    def _note_silence(self, core: Core) -> None:
        """Note for long waits for how long their consumers have been sent nothing, as far as that is of the interval."""
        now, rows = self._now, self._rows[: self._now[at_.OPEN_ROWS]]
        since_us = rows[:, at_.FROM_US]
        long = np.flatnonzero(rows[:, at_.LAST_US] - since_us >= self._long_us)
        if not len(long) or now[at_.T_US] < self._start_us:
            return
        found, places = np.unique(self._slots(core, rows[long]), return_inverse=True)
        last_us = np.array([self._last_of(core, slot).t_us for slot in found.tolist()], np.int64)
        silent_us = now[at_.T_US] - np.maximum(since_us[long], last_us[places])
        rows[long, at_.SILENT_US] = np.maximum(rows[long, at_.SILENT_US], silent_us)

    # --- what a row cannot hold ------------------------------------------------------------------------------

    def _note(self, core: Core, *, everything: bool) -> None:
        """Describe the waits that have become long, while the state still shows what holds them."""
        rows = self._rows[: self._now[at_.OPEN_ROWS]]
        due = rows[:, at_.NOTED] != rows[:, at_.LEADING] + 1
        if not everything:
            due &= rows[:, at_.LAST_US] - rows[:, at_.FROM_US] >= self._long_us
        if not due.any():
            return
        rows[due, at_.NOTED] = rows[due, at_.LEADING] + 1
        chosen = np.flatnonzero(due)
        chosen = chosen[np.lexsort((rows[chosen, at_.ENTRY], rows[chosen, at_.LEDGER]))]
        noted: dict[tuple[int, int], int] = {}
        for at in chosen.tolist():
            leading, slot = int(rows[at, at_.LEADING]), int(rows[at, at_.SLOT])
            of_hash = leading in _OF_ONE_HASH
            group = (leading, 0 if of_hash else slot)
            noted[group] = noted.get(group, 0) + 1
            if noted[group] <= (_MOST_NOTED_OF_HASHES if of_hash else _MOST_NOTED):
                self._notes[int(rows[at, at_.HASH])] = self._notes_of.of_row(core, rows[at])


#: Hash of an entry that the message log does not hold, as in the folds.
_NOT_STORED: Final = -1

_NOTHING: Final = np.empty(0, np.int64)
#: A time that never comes, to which a grace can be added.
_NEVER_US: Final = 1 << 62

#: Columns that are added up.
_SUMMED: Final = [at_.ENTRIES, at_.MESSAGES, at_.MESSAGE_US, at_.NEEDLESS_US, at_.ATTEMPTS, at_.UNCERTAIN_US]


def _drained(core: Core, row: Sequence[int]) -> DrainedForNothing | None:
    """Return the longest part of a wait in which its hash drained for nothing."""
    if not row[at_.DRAINED_US]:
        return None
    return DrainedForNothing(
        row[at_.DRAINED_US],
        row[at_.DRAINED_FROM_US],
        row[at_.DRAINED_FROM_SEQ],
        row[at_.DRAINED_UNTIL_SEQ],
        number_of(core, row[at_.DRAINED_SLOT]),
        number_of(core, row[at_.DRAINED_FOR]),
        row[at_.DRAINED_SINCE_US] == row[at_.DRAINED_FROM_US],
    )


def _grown(values: npt.NDArray[Any], count: int, value: int) -> npt.NDArray[Any]:
    grown = np.full(count, value, values.dtype)
    grown[: len(values)] = values
    return grown


def _ordered(sums: dict[tuple[int, int | None], Any]) -> list[tuple[int, int | None]]:
    return sorted(sums, key=lambda group: (group[0], -1 if group[1] is None else group[1]))


def _summed(reason: int, consumer: int | None, sums: npt.NDArray[np.int64]) -> SampledWait:
    """Make one wait of the sums of many short ones."""
    entries, messages, message_us, needless_us, attempts, uncertain_us, *ends = sums.tolist()
    return SampledWait(
        hash=None,
        reason=REASONS[reason],
        shares=((REASONS[reason], 0),),
        waiting=consumer,
        holder=None,
        holder_positions=(),
        holder_pending=0,
        from_seq=ends[0],
        from_t_us=ends[1],
        until_seq=ends[2],
        until_t_us=ends[3],
        first_position=None,
        positions=(),
        keys=(),
        entries=entries,
        messages=messages,
        message_us=message_us,
        needless_us=needless_us,
        attempts=attempts,
        uncertain=2 * uncertain_us > message_us,
    )
