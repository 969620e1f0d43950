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
from typing import Final

import numpy as np
import numpy.typing as npt

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
from dispatch_core.audit.deliveries.subscription_start import least_lag_us
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
        self._dropped_us = -_NEVER  # last delivery of entries that have left the window
        self._connected: set[int] = set()
        self._empty_us: list[int] = []  # when the last consumer left
        self._last_up_to_us = np.empty(0, np.int64)  # as of the last look
        #: Of entries that were acknowledged without having been sent, or sent again after the consumer had left: the first
        #: line behind a move that may have passed it.
        self._unsent: dict[str, int | None] = {}

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
                    self._empty_us.append(int(operations.t_us[at]))
        if dropped:
            self._dropped_us = max(self._dropped_us, int(self._last_up_to_us[dropped - 1]))
        passed = self._passed(window, scan)
        self._last_up_to_us = passed.last_up_to_us
        sent = np.flatnonzero(scan.times_sent)
        left_out = (scan.times_sent == 0) & (scan.acknowledged_by >= 0) & window.stored
        left_out[: int(sent[0]) if len(sent) else len(left_out)] = False
        for ordinal in np.flatnonzero(left_out).tolist():
            position = window.position(ordinal)
            self._unsent[position] = passed.unsent(position)
        for ordinal in np.flatnonzero(_lost_and_acknowledged(scan)).tolist():
            position = window.position(ordinal)
            self._unsent[position] = passed.pending(position, self._empty_us)

    def _passed(self, window: LogWindow, scan: Scan) -> _Passed:
        return _Passed.of(window, scan, self._dropped_us, self._empty_us if self._only_deletions else None)

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
        going_on = [wait for wait in waits if wait.until_seq is None]
        passed = self._passed(window, scan)
        first_lines: dict[str, int | None] = {}
        for wait in going_on:
            first_lines |= passed.waiting(wait, self._empty_us)
        lines = [
            first_lines[position]
            for wait in going_on
            if sum(us for reason, us in wait.shares if reason is None) > ROOM_US  # else a rule explains it
            for position in wait.positions
        ]
        possible = [seq for seq in (*lines, *self._unsent.values()) if seq is not None]
        judged = [self._judged(finding, passed, first_lines) for finding in found]
        return judged, min(possible, default=None)

    def _judged(self, finding: Finding, passed: _Passed, first_lines: Mapping[str, int | None]) -> Finding:
        if finding.uncertain or not finding.positions:
            return finding
        if finding.kind == "never_delivered":
            may = all(
                self._unsent.get(position) is not None
                or first_lines.get(position) is not None
                or passed.unsent(position) is not None
                for position in finding.positions
            )
        elif finding.kind == "ack_hole":
            may = all(passed.pending(position, self._empty_us) is not None for position in finding.positions)
        else:
            return finding
        if not may:
            return finding
        return perhaps_by_a_move(finding, _DELETED if self._only_deletions else _PASSED)


def _lost_and_acknowledged(scan: Scan) -> npt.NDArray[np.bool_]:
    """Mark entries that were acknowledged after their last consumer had left, without having been sent again."""
    marks = (scan.last_delivery >= 0) & (scan.acknowledged_by >= 0)
    ends = scan.deliveries[scan.last_delivery[marks], END]
    marks[marks] = (ends == DISCONNECTED) | (ends == ALL_LEFT)
    return marks


class _Passed:
    """The times at which the entries of the window were sent."""

    def __init__(
        self,
        window: LogWindow,
        scan: Scan,
        last_up_to_us: Ints,
        first_after_us: Ints,
        last_after_us: Ints,
        deleted_us: Sequence[int] | None,
    ) -> None:
        self._window, self._scan, self._deleted_us = window, scan, deleted_us
        self.last_up_to_us, self._first_after_us = last_up_to_us, first_after_us
        self._last_after_us = last_after_us
        self._lag_us = max(least_lag_us(window, scan) or 0, 0)
        self._ordinal: dict[str, int] | None = None

    @classmethod
    def of(
        cls, window: LogWindow, scan: Scan, dropped_us: int, deleted_us: Sequence[int] | None = None
    ) -> _Passed:
        """Return the times of a window.

        Args:
            window: the window.
            scan: its deliveries.
            dropped_us: the last delivery of entries that are not in the window any more.
            deleted_us: the moments at which the subscription may have been deleted; ``None`` = the cursor may have been
                moved at any time.
        """
        count = len(window)
        first_us, last_us = np.full(count, _NEVER, np.int64), np.full(count, -_NEVER, np.int64)
        deliveries = scan.deliveries[scan.deliveries[:, OPERATION] >= window.first_op_of_state]
        entries = deliveries[:, ENTRY]
        times = window.op_t_us[deliveries[:, OPERATION]]
        np.minimum.at(first_us, entries, times)
        np.maximum.at(last_us, entries, times)
        last_up_to = np.maximum(np.maximum.accumulate(last_us), dropped_us) if count else last_us
        first_after, last_after = np.full(count, _NEVER, np.int64), np.full(count, -_NEVER, np.int64)
        first_after[:-1] = np.minimum.accumulate(first_us[:0:-1])[::-1]
        last_after[:-1] = np.maximum.accumulate(last_us[:0:-1])[::-1]
        return cls(window, scan, last_up_to, first_after, last_after, deleted_us)

    def waiting(self, wait: SampledWait, empty_us: Sequence[int]) -> dict[str, int | None]:
        """Return for each entry of a wait that goes on the first line behind a move that may have passed it.

        Where an entry may have been passed, it is not known for how long a rule held those behind it.
        ``empty_us``: when the last consumer left.
        """
        held_us = sum(us for reason, us in wait.shares if reason is not None)
        held_until_us = wait.from_t_us + held_us if held_us else None
        free_us = wait.from_t_us + held_us
        lines: dict[str, int | None] = {}
        for position in wait.positions:
            lines[position] = (
                self.unsent(position, held_until_us)
                or self._held(position, free_us, empty_us)
                or self.pending(position, empty_us)
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
        before_us, after_us = int(self.last_up_to_us[ordinal]), int(self._first_after_us[ordinal])
        if self._deleted_us is not None:
            may = any(before_us <= moment < after_us for moment in self._deleted_us)
        elif held_until_us is not None and before_us <= held_until_us + _SAMPLED_US:
            may = int(self._last_after_us[ordinal]) > before_us
        elif after_us == _NEVER or before_us >= after_us:
            may = False
        else:
            published, known = self._window.publish_time_ms
            stored_us = 1000 * int(published[ordinal]) + self._lag_us if known[ordinal] else -_NEVER
            stored_us = max(stored_us, int(self._window.due_us[ordinal]))
            may = after_us - max(before_us, stored_us) > ROOM_US
        return self._line_after(before_us) if may else None

    def _held(self, position: str, free_us: int, empty_us: Sequence[int]) -> int | None:
        """Return the first line behind a seek or a reset that may have passed an entry that was never sent.

        A rule may have held it until ``free_us``, and so when the last consumer left (``empty_us``).
        """
        ordinal = self._at(position)
        if ordinal is None or self._window.single_active or int(self._scan.times_sent[ordinal]):
            return None
        for moment in empty_us:
            between = int(self.last_up_to_us[ordinal]) <= moment < int(self._last_after_us[ordinal])
            if between and moment <= free_us + ROOM_US:
                return self._line_after(moment)
        return None

    def pending(self, position: str, empty_us: Sequence[int]) -> int | None:
        """Return the first line behind a seek or a reset that may have passed an entry that was sent, and that nobody
        acknowledged; ``None`` = none.

        ``empty_us``: when the last consumer left. Failover and Exclusive: only the active one is disconnected.
        """
        ordinal = self._at(position)
        if ordinal is None:
            return None
        last = int(self._scan.last_delivery[ordinal])
        if last < 0 or self._scan.deliveries[last, END] not in (DISCONNECTED, ALL_LEFT):
            return None
        left_us = int(self._window.op_t_us[self._scan.deliveries[last, END_OPERATION]])
        by_seek = self._window.single_active and self._deleted_us is None
        moments = [left_us] if by_seek else empty_us
        may = any(
            left_us <= moment <= left_us + _TOGETHER_US
            and int(self.last_up_to_us[ordinal]) <= moment < int(self._last_after_us[ordinal])
            for moment in moments
        )
        return self._line_after(left_us) if may else None

    def _line_after(self, t_us: int) -> int:
        """Return a line behind all that the window holds of the time up to ``t_us``, and no later than the next one."""
        of_log = slice(self._window.first_op_of_last_log, None)
        before = self._window.op_seq[of_log][self._window.op_t_us[of_log] <= t_us]
        return int(before.max(initial=-1)) + 1

    def _at(self, position: str) -> int | None:
        if self._ordinal is None:
            pairs = zip(self._window.ledger.tolist(), self._window.entry.tolist(), strict=True)
            self._ordinal = {f"{ledger}:{entry}": at for at, (ledger, entry) in enumerate(pairs)}
        return self._ordinal.get(position)
