"""Find losses that a move of the cursor may explain of which the log would have no line.

An administrator or a client may move the cursor at any time (skip, clear backlog, expiry, reset, seek), and only a recorder
that lists ``cursor_moved`` in the header's ``records`` writes it. What a move leaves can be recognised, and then the finding
is uncertain:

* An entry was never sent. A move that passed it came after the last delivery of any entry up to it, and before the first
  delivery of a later one, if it had not been read by then. An entry that can be read is sent within milliseconds, so it must
  have had time to wait: more than ``ROOM_US`` from its publishing (by the clock of the broker) to that delivery.
* It had been read and a rule held it. Then the move came while it was held, and nothing up to it was sent afterwards. If a
  rule held it until all consumers left, the move may be a seek or a reset.
* An entry was sent and lost when all consumers were disconnected, and not sent again, nor was anything before it, while
  later entries were. A cumulative acknowledgement of a later entry may have settled it since.

Likewise of a deletion of the subscription, unless the recorder lists ``subscription_deleted``: it is deleted while no
consumer is connected, and may be made again at the end of the topic.

Example: 3:4 to 3:90 wait for permits for a second and are never sent, 3:91 is. Somebody may have cleared the backlog. But if
3:4 is sent 5 ms after its publishing, 3:5 never, and 3:6 again 5 ms after its publishing, then 3:5 is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.positions import locate
from dispatch_core.audit.catalogue import NO_READ
from dispatch_core.audit.deliveries.findings import Finding, perhaps_by_a_move
from dispatch_core.audit.deliveries.layout import (
    ALL_LEFT,
    DISCONNECTED,
    END,
    END_OPERATION,
    ENTRY,
    OPERATION,
)
from dispatch_core.audit.deliveries.operations import ADDED, REMOVED, Operations
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.window import LogWindow
from dispatch_core.audit.waits.tracker import SampledWait

#: An entry that nothing holds is sent within this time; a call of an administrator takes about as long.
ROOM_US: Final = 30_000
#: A seek or a reset disconnects all consumers within this time.
_TOGETHER_US: Final = 5_000_000
#: The time between two samples of waits, see ``tracker``.
_SAMPLED_US: Final = 500_000
_NEVER: Final = np.iinfo(np.int64).max

Ints = npt.NDArray[np.int64]


_PASSED: Final = "a move of the cursor may have passed it"
_DELETED: Final = "the subscription may have been deleted and made again"


class PossibleMoves:
    """Doubt findings of a log whose recorder does not write moves: call ``look`` after each batch, then ``doubted``.

    ``only_deletions``: it writes moves, and no deletions of the subscription.
    """

    def __init__(self, *, only_deletions: bool = False) -> None:
        self._only_deletions = only_deletions
        self._dropped = _NOT_SENT  # last delivery of entries that have left the window
        self._connected: set[int] = set()
        self._empty: list[_Moment] = []  # when the last consumer left
        self._last: _Passed | None = None  # as of the last look
        self._last_us = -_NEVER  # last delivery
        #: Entries that were acknowledged without having been sent, or sent again after the consumer had left.
        self._acknowledged: dict[str, _Entry] = {}
        self._none_behind: set[str] = set()  # those behind which nothing was sent by now
        self._ordinals: dict[str, int] = {}  # of those in the window, as of the last look

    def look(self, window: LogWindow, scan: Scan, dropped: int, operations: Operations) -> None:
        """Take the state after a batch.

        ``dropped``: number of entries that have left the window since the last call; ``operations``: of the batch.
        """
        members = np.flatnonzero(operations.code <= REMOVED)
        before = max(window.first_op_of_state - (len(window.op_code) - len(operations.code)), 0)
        for at in members[members >= before].tolist():  # of this load of the topic
            consumer = int(operations.consumer[at])
            if operations.code[at] == ADDED:
                self._connected.add(consumer)
            elif consumer in self._connected:
                self._connected.discard(consumer)
                if not self._connected:
                    self._empty.append(_Moment(int(operations.t_us[at]), int(operations.seq[at])))
        if dropped and self._last is not None:
            self._dropped = max(self._dropped, self._last.up_to(dropped - 1))
        self._last = passed = self._passed(window, scan)
        self._last_us = max(self._last_us, passed.last_us)
        sent = np.flatnonzero(scan.times_sent)
        left_out = (scan.times_sent == 0) & (scan.acknowledged_by >= 0) & window.stored
        if not scan.dropped_sent:
            left_out[: int(sent[0]) if len(sent) else len(left_out)] = False
        ordinals = np.flatnonzero(left_out | _lost_and_acknowledged(scan)).tolist()
        entries = {window.position(ordinal): passed.around(ordinal, self._last_us) for ordinal in ordinals}
        for position in {at for at, ordinal in self._ordinals.items() if ordinal >= dropped} - entries.keys():
            del self._acknowledged[position]  # it was sent after all
            self._none_behind.discard(position)
        self._ordinals = dict(zip(entries, ordinals, strict=True))
        for position in self._none_behind - entries.keys():
            # It has left the window: what is sent now lies behind it.
            entries[position] = replace(self._acknowledged[position], behind_us=passed.first_us)
        self._acknowledged |= entries
        self._none_behind -= entries.keys()
        self._none_behind |= {at for at, entry in entries.items() if entry.behind_us == _NEVER}

    def _passed(self, window: LogWindow, scan: Scan) -> _Passed:
        return _Passed(window, scan, self._dropped, self._empty if self._only_deletions else None)

    def doubted(
        self, found: Iterable[Finding], window: LogWindow, scan: Scan, waits: Sequence[SampledWait]
    ) -> tuple[list[Finding], int | None]:
        """Return the findings, those uncertain that a move may explain, and the first line behind any possible move.

        An entry need not have waited for long to show where the cursor may have been moved.

        Args:
            found: findings of the whole log.
            window: the window at its end.
            scan: the deliveries at its end.
            waits: of entries that still wait.
        """
        found = list(found)
        going_on = [wait for wait in waits if wait.until_seq is None]
        if not (found or going_on or self._acknowledged):
            return found, None
        passed = self._passed(window, scan)
        passed.find(
            position for sources in (going_on, found) for source in sources for position in source.positions
        )
        first_lines: dict[str, int | None] = {}
        for wait in going_on:
            of_wait = passed.waiting(wait, self._empty)
            if wait.first_position is not None and None not in of_wait.values():
                # It is not listed if it was sent before; what was stored behind it may have been passed.
                first_lines[wait.first_position] = next(iter(of_wait.values()), None)
            first_lines |= of_wait
        acknowledged = {
            position: self._line_behind_move(entry, max(scan.least_lag_us or 0, 0), window)
            for position, entry in self._acknowledged.items()
        }
        lines = [
            first_lines[position]
            for wait in going_on
            if sum(us for reason, us in wait.shares if reason is None) > ROOM_US  # else a rule explains it
            for position in wait.positions
        ]
        possible = [seq for seq in (*lines, *acknowledged.values()) if seq is not None]
        first_lines |= {position: seq for position, seq in acknowledged.items() if seq is not None}
        judged = [self._judged(finding, passed, first_lines) for finding in found]
        return judged, min(possible, default=None)

    def _judged(self, finding: Finding, passed: _Passed, first_lines: Mapping[str, int | None]) -> Finding:
        if finding.uncertain or not finding.positions:
            return finding
        if finding.reason == NO_READ:
            # What was sent behind the stall was not passed.
            may = all(first_lines.get(position) is not None for position in finding.positions)
        elif finding.kind == "never_delivered":
            may = all(
                first_lines.get(position) is not None or passed.unsent(position) is not None
                for position in finding.positions
            )
        elif finding.kind == "ack_hole":
            may = all(passed.pending(position, self._empty) is not None for position in finding.positions)
        else:
            return finding
        if not may:
            return finding
        return perhaps_by_a_move(finding, _DELETED if self._only_deletions else _PASSED)

    def _line_behind_move(self, entry: _Entry, lag_us: int, window: LogWindow) -> int | None:
        """Return the first line behind a move that may have passed an acknowledged entry; ``None`` = no move."""
        left = entry.left
        if left is None and self._only_deletions:
            return entry.line_behind_deletion(self._empty)
        if left is None:
            return entry.line_behind_move(lag_us)
        if self._last_us > entry.looked_us:  # it was sent since, and so lies behind the entry
            entry = replace(entry, behind_last_us=max(entry.behind_last_us, self._last_us))
        by_seek = window.single_active and not self._only_deletions
        return entry.line_behind_reset([left] if by_seek else self._empty)


def _lost_and_acknowledged(scan: Scan) -> npt.NDArray[np.bool_]:
    """Mark entries that were acknowledged after their last consumer had left, without having been sent again."""
    marks = (scan.last_delivery >= 0) & (scan.acknowledged_by >= 0)
    ends = scan.deliveries[scan.last_delivery[marks], END]
    marks[marks] = (ends == DISCONNECTED) | (ends == ALL_LEFT)
    return marks


@dataclass(frozen=True, slots=True, order=True)
class _Moment:
    """The time of a line, microseconds since the epoch, and its ``seq``."""

    t_us: int
    seq: int


#: Nothing was sent.
_NOT_SENT: Final = _Moment(-_NEVER, -1)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry that a move may have passed.

    Attributes:
        before: the last delivery of any entry up to it.
        behind_us: the first delivery of a later entry; ``_NEVER`` = there was none.
        behind_last_us: the last one.
        published_us: its publish time, if it is known.
        due_us: the end of its delay, 0 = it has none.
        left: its consumer left then, and it was not sent again; ``None`` = it was never sent, or is not pending.
        looked_us: the last delivery of any entry that was known by then.
    """

    before: _Moment
    behind_us: int
    behind_last_us: int
    published_us: int | None
    due_us: int
    left: _Moment | None
    looked_us: int

    def line_behind_move(self, lag_us: int) -> int | None:
        """Return the first line behind a move that may have passed the entry before it was read; ``None`` = no move.

        ``lag_us``: by which the clock of its producer may be behind.
        """
        if self.behind_us == _NEVER or self.before.t_us >= self.behind_us:
            return None
        stored_us = -_NEVER if self.published_us is None else self.published_us + lag_us
        waited_us = self.behind_us - max(self.before.t_us, stored_us, self.due_us)
        return self.before.seq + 1 if waited_us > ROOM_US else None

    def line_behind_deletion(self, moments: Sequence[_Moment]) -> int | None:
        """Return the first line behind a deletion, at one of some moments, of the subscription that lacks the entry;
        ``None`` = none.
        """
        seqs = (moment.seq for moment in moments if self.before.t_us <= moment.t_us < self.behind_us)
        first = min(seqs, default=None)
        return None if first is None else first + 1

    def line_behind_reset(self, moments: Sequence[_Moment]) -> int | None:
        """Return the first line behind a seek or a reset, at one of some moments, that may have passed the entry while it
        was pending; ``None`` = none.
        """
        if self.left is None:
            return None
        left_us = self.left.t_us
        may = any(
            left_us <= moment.t_us <= left_us + _TOGETHER_US
            and self.before.t_us <= moment.t_us < self.behind_last_us
            for moment in moments
        )
        return self.left.seq + 1 if may else None


class _Passed:
    """The times at which the entries of the window were sent."""

    def __init__(
        self, window: LogWindow, scan: Scan, dropped: _Moment, deleted: Sequence[_Moment] | None = None
    ) -> None:
        """Take the times of a window.

        Args:
            window: the window.
            scan: its deliveries.
            dropped: the last delivery of entries that are not in the window any more.
            deleted: the moments at which the subscription may have been deleted; ``None`` = the cursor may have been moved
                at any time.
        """
        self._window, self._scan, self._dropped, self._deleted = window, scan, dropped, deleted
        self._lag_us = max(scan.least_lag_us or 0, 0)
        self._ordinal: dict[str, int] = {}
        count = len(window)
        of_state = scan.deliveries[:, OPERATION] >= window.first_op_of_state
        entries, ops = scan.deliveries[of_state, ENTRY], scan.deliveries[of_state, OPERATION]
        times_us, seqs = window.op_t_us[ops], window.op_seq[ops]
        in_time = np.lexsort((seqs, times_us))
        self._times_us, self._seqs = times_us[in_time], seqs[in_time]
        place = np.empty(len(in_time), np.int64)
        place[in_time] = np.arange(len(in_time))
        first_us, last = np.full(count, _NEVER, np.int64), np.full(count, -1, np.int64)
        np.minimum.at(first_us, entries, times_us)
        np.maximum.at(last, entries, place)
        last_us = np.full(count, -_NEVER, np.int64)
        last_us[last >= 0] = self._times_us[last[last >= 0]]
        #: By entry the last delivery of any entry up to it, by its place in time; -1 = none of the window.
        self._last_up_to = np.maximum.accumulate(last)
        self._first_after_us, self._last_after_us = np.full(count, _NEVER), np.full(count, -_NEVER)
        self._first_after_us[:-1] = np.minimum.accumulate(first_us[:0:-1])[::-1]
        self._last_after_us[:-1] = np.maximum.accumulate(last_us[:0:-1])[::-1]

    def find(self, positions: Iterable[str]) -> None:
        """Find the entries at these positions; call it before they are asked about."""
        every = dict.fromkeys(positions, -1)
        wanted = [position for position in every if ":" in position]  # not those of unknown entries
        parts = np.array([position.split(":") for position in wanted], np.int64).reshape(-1, 2)
        ordinals = locate(self._window.ledger, self._window.entry, parts[:, 0], parts[:, 1])
        self._ordinal = every | dict(zip(wanted, ordinals.tolist(), strict=True))

    @property
    def first_us(self) -> int:
        """Time of the first delivery of an entry of the window; ``_NEVER`` = there is none."""
        return int(self._times_us[0]) if len(self._times_us) else _NEVER

    @property
    def last_us(self) -> int:
        """Time of the last delivery of an entry of the window; ``-_NEVER`` = there is none."""
        return int(self._times_us[-1]) if len(self._times_us) else -_NEVER

    def up_to(self, ordinal: int) -> _Moment:
        """Return the last delivery of any entry up to one."""
        place = int(self._last_up_to[ordinal])
        if place < 0:
            return self._dropped
        return max(self._dropped, _Moment(int(self._times_us[place]), int(self._seqs[place])))

    def around(self, ordinal: int, looked_us: int) -> _Entry:
        """Return an entry with the deliveries around it; ``looked_us``: the last delivery of any entry."""
        published, known = self._window.publish_time_ms
        left: _Moment | None = None
        last = int(self._scan.last_delivery[ordinal])
        if last >= 0 and self._scan.deliveries[last, END] in (DISCONNECTED, ALL_LEFT):
            op = int(self._scan.deliveries[last, END_OPERATION])
            left = _Moment(int(self._window.op_t_us[op]), int(self._window.op_seq[op]))
        return _Entry(
            self.up_to(ordinal),
            int(self._first_after_us[ordinal]),
            int(self._last_after_us[ordinal]),
            1000 * int(published[ordinal]) if known[ordinal] else None,
            int(self._window.due_us[ordinal]),
            left,
            looked_us,
        )

    def waiting(self, wait: SampledWait, empty: Sequence[_Moment]) -> dict[str, int | None]:
        """Return for each entry of a wait that goes on the first line behind a move that may have passed it.

        Where an entry may have been passed, it is not known for how long a rule held those behind it.
        ``empty``: when the last consumer left.
        """
        held_us = sum(us for reason, us in wait.shares if reason is not None)
        held_until_us = wait.from_t_us + held_us if held_us else None
        free_us = wait.from_t_us + held_us
        lines: dict[str, int | None] = {}
        for position in wait.positions:
            lines[position] = (
                self.unsent(position, held_until_us)
                or self._held(position, free_us, empty)
                or self.pending(position, empty)
            )
            if lines[position] is not None:
                free_us = _NEVER
        return lines

    def unsent(self, position: str, held_until_us: int | None = None) -> int | None:
        """Return the first line behind a move that may have passed an entry that was never sent; ``None`` = no move.

        ``held_until_us``: a rule held it until then.
        """
        ordinal = self._at(position)
        if ordinal is None:
            return None
        entry = self.around(ordinal, self.last_us)
        if self._deleted is not None:
            return entry.line_behind_deletion(self._deleted)
        if held_until_us is None or entry.before.t_us > held_until_us + _SAMPLED_US:
            return entry.line_behind_move(self._lag_us)
        return entry.before.seq + 1 if entry.behind_last_us > entry.before.t_us else None

    def _held(self, position: str, free_us: int, empty: Sequence[_Moment]) -> int | None:
        """Return the first line behind a seek or a reset that may have passed an entry that was never sent.

        A rule may have held it until ``free_us``, and so when the last consumer left (``empty``).
        """
        ordinal = self._at(position)
        if ordinal is None or self._window.single_active or int(self._scan.times_sent[ordinal]):
            return None
        entry = self.around(ordinal, self.last_us)
        for moment in empty:
            between = entry.before.t_us <= moment.t_us < entry.behind_last_us
            if between and moment.t_us <= free_us + ROOM_US:
                return moment.seq + 1
        return None

    def pending(self, position: str, empty: Sequence[_Moment]) -> int | None:
        """Return the first line behind a seek or a reset that may have passed an entry that was sent, and that nobody
        acknowledged; ``None`` = none.

        ``empty``: when the last consumer left. Failover and Exclusive: only the active one is disconnected.
        """
        ordinal = self._at(position)
        if ordinal is None:
            return None
        entry = self.around(ordinal, self.last_us)
        by_seek = self._window.single_active and self._deleted is None
        return entry.line_behind_reset([entry.left] if by_seek and entry.left is not None else empty)

    def _at(self, position: str) -> int | None:
        at = self._ordinal[position]
        return at if at >= 0 else None
