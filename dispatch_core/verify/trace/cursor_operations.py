"""Verify what a trace shows of operations on the cursor: skip, clear backlog, expiry, reset and seek (``cursor_moves``).

What was asked for is an input: the operation, its number of entries, the position of a reset or of an expiry. What follows
from it is compared: the target of a skip or of a cleared backlog, the cursor's positions before the next operation and when
all is quiet. Such a difference counts as divergent and raises ``decisions`` by nothing, like other lines that no formula
counts.

How many entries were stored at that moment is in no line. It follows from the publish times, except for entries published
right before (``late_entries``): a target among them is uncertain, and the line of the operation is named.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dispatch_core.broker import cursor_moves
from dispatch_core.broker.state import MARK_DELETE, READ_POSITION, State
from dispatch_core.recording import checkpoint
from dispatch_core.recording.checkpoint import Position
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.tally import CLASSES
from dispatch_core.verify.trace import limits_in_force
from dispatch_core.verify.trace.driver import Driver
from dispatch_core.verify.trace.late_entries import LateEntries
from dispatch_core.verify.trace.limits_in_force import LimitsInForce

#: Class under which differences of the cursor are counted.
_CLASS: Final = CLASSES[CLASSES.index("read")]
_STORED: Final = "entries that were published right before may have been stored by then, or not"
_RANGE: Final = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")


@dataclass(slots=True)
class MoveDue:
    """A move of the cursor that follows from an earlier line, and whose own line is to come.

    Attributes:
        seq: of the line that another target would race with.
        reason: why there may be another target.
        target: the last entry that it passes.
        lowest, highest: what ``target`` may be, depending on the entries stored and acknowledged by then.
        by_ack: a cumulative acknowledgement, already applied by the core.
    """

    seq: int
    reason: str
    target: int
    lowest: int
    highest: int
    by_ack: bool = False


class CursorDriver(Driver):
    """Base of drivers: the lines about the cursor. A subclass moves its core's cursor."""

    _late_entries: LateEntries

    def __init__(self, entries: Entries) -> None:
        super().__init__(entries)
        self._moves_due: deque[MoveDue] = deque()
        # After a reset to the end: seq of its line, and the positions that it may have led to.
        self._reset_to: tuple[int, int, int] | None = None
        self._deleted_at: int | None = (
            None  # seq of the line that says so, till the subscription is made again
        )
        # Mark-delete when the trace began, and what was acknowledged above it: entries, and parts of batches (ack sets).
        self._begins_behind: Position | None = None
        self._acked_before: dict[Position, Sequence[int] | None] = {}
        self._limits = LimitsInForce()
        # Kind → index and line of each line of it to come. Looking through all lines ahead takes too long.
        self._to_come: dict[str, deque[tuple[int, Line]]] = {
            kind: deque() for kind in ("limit", "step", "consumer_removing")
        }

    @property
    @abstractmethod
    def _cursor(self) -> State:
        """The core's state."""

    @abstractmethod
    def _move_forward(self, line: Line, target: int) -> None:
        """Move the core's cursor forward to ``target``; the line shows that the move begins."""

    def _move_seen_at(self, _line: Line, _target: int) -> int | None:
        """Return the first line of the decision that has seen a move whose own line comes later; ``None`` = none has."""
        return None

    @abstractmethod
    def _reset(self, entry: int) -> None:
        """Reset the core's cursor."""

    @abstractmethod
    def _finish_acks(self) -> tuple[int, str] | None:
        """Finish acks whose effect has begun: an operation of another thread comes later. Returns the last one: seq, why."""

    @abstractmethod
    def _acks_under_way(self, low: int, high: int) -> bool:
        """Check for acks under way that may still move mark-delete over entries from ``low`` to below ``high``."""

    @abstractmethod
    def _begin_behind(self, target: int) -> None:
        """Begin with a cursor that has acknowledged all up to ``target``."""

    @abstractmethod
    def _begin_without(self, entry: int, words: Sequence[int]) -> None:
        """Begin with a cursor that has acknowledged an entry, or a part of a batch (``words``: its ack set)."""

    def _moved_between_lines(self) -> None:
        """Take note that the cursor's positions have changed without a line: the window of entries has moved on."""

    def _change_cursor_ordinals(self, drop: int) -> None:
        """Lower the ordinals of moves that are due."""
        for due in self._moves_due:
            due.target, due.lowest, due.highest = (
                entry - drop for entry in (due.target, due.lowest, due.highest)
            )
        if self._reset_to is not None:
            seq, low, high = self._reset_to
            self._reset_to = seq, low - drop, high - drop

    def _ahead_limit(self, at: int, line: Line) -> None:
        """See ``Driver``."""
        self._to_come[line.kind].append((at, line))

    def _before_limit(self, line: Line) -> None:
        """See ``Driver``."""
        self._to_come[line.kind].popleft()

    _ahead_step = _ahead_consumer_removing = _ahead_limit
    _before_step = _before_consumer_removing = _before_limit

    def _lines_to_come(self, kind: str, within_us: int) -> Iterator[tuple[int, Line]]:
        """Yield the lines of a kind of ``_to_come`` behind the present one that come within a time, with their indexes."""
        horizon = self._lines.horizon(self._at)
        for at, line in self._to_come[kind]:
            if at >= horizon or line.t_us - self._line.t_us > within_us:
                return
            if at > self._at:  # else the present line is taken early
                yield at, line

    def _rate_may_hold(self) -> bool:
        """Check whether a dispatch rate may hold at the present line, see ``limits_in_force``."""
        return self._limits.rate_may_hold() or any(
            limits_in_force.begins_rate(line)
            for _at, line in self._lines_to_come("limit", limits_in_force.SEEN_WITHIN_US)
        )

    # --- lines ---------------------------------------------------------------------------------------------------

    def _on_step(self, line: Line) -> None:
        """Take a mark that stands for a limit or a deletion; see ``limits_in_force``."""
        if limits_in_force.is_deletion(line.inputs["note"]):
            self._on_subscription_deleted(line)
        self._on_limit(line)

    def _on_checkpoint(self, line: Line) -> None:
        """Begin where the cursor stood when the dispatcher was made: after a reload of its topic not at the first entry."""
        text = line.inputs["checkpoint_json"]
        state = checkpoint.read(text) if text is not None and self._at == 0 else None
        if state is None or state.inferred or state.consumers or state.mark_delete is None:
            return
        self._begins_behind = state.mark_delete
        self._acked_before = {**dict.fromkeys(state.ack_holes), **state.partly_acked}
        self._take_acked_before()

    def _take_acked_before(self) -> None:
        """Acknowledge what the cursor had acknowledged when the trace began, as far as the entries are there."""
        if self._begins_behind is None:
            return
        target = self._last_up_to(self._begins_behind)
        if target is not None and target > self._cursor.s[MARK_DELETE]:
            self._begin_behind(target)
        there = [position for position in self._acked_before if self._entries.ordinal(*position) >= 0]
        for position in there:
            self._begin_without(self._entries.ordinal(*position), self._acked_before.pop(position) or ())
        entries = self._entries
        last = (int(entries.ledger_ids[-1]), int(entries.entry_ids[-1])) if len(entries) else None
        if last is not None and last > max([self._begins_behind, *self._acked_before]):
            self._begins_behind, self._acked_before = None, {}

    def _on_limit(self, line: Line) -> None:
        limit = limits_in_force.of_line(line)
        if limit is None:
            return
        self._limits.take(limit)
        self._limits_changed()
        if self._limits.is_active(limits_in_force.COMPACTED_READ):
            self._stop_judging(limits_in_force.REASON_OF_COMPACTED)

    def _limits_changed(self) -> None:
        """Give the core the limits that the rules use; none, here."""

    def _on_subscription_deleted(self, line: Line) -> None:
        """Take the end of the cursor. If the subscription is made again, its cursor begins at the end of the topic."""
        self._deleted_at = line.seq

    @abstractmethod
    def _rewinds_new_cursor(self) -> bool:
        """Check whether a rewind behind the mark of a deletion is of the new cursor: a consumer is joining.

        The mark stands before the call. The dispatcher that is to go may still rewind the old cursor.
        """

    def _made_again(self, line: Line) -> None:
        """Begin at the end of the topic if the subscription had been deleted; the line is the first about its new cursor."""
        seq, self._deleted_at = self._deleted_at, None
        if seq is not None:
            low, high = self._late_entries.stored_by(line.t_us, 0)
            self._reset_to = (seq, low, high) if low < high else None
            self._reset(high)

    def _on_cursor_op(self, line: Line) -> None:
        self._made_again(line)
        operation, entries = line.inputs["op"], line.inputs["entries"]
        if operation == "mark_delete":
            self._moved(line)
            return
        self._report_unmet_moves()
        self._compare_mark_delete(line)
        low, high = self._late_entries.stored_by(line.t_us, int(self._cursor.s[READ_POSITION]))
        if operation == "reset":
            self._reset_asked(line, low, high)
            return

        def target(stored: int) -> int:
            if operation == "skip":
                return cursor_moves.target_of_skip(self._cursor, entries or 0, stored)
            return cursor_moves.target_of_clear(self._cursor, stored)

        before = target(low), target(high)
        racing = self._finish_acks()
        after = target(low), target(high)
        if after == before or racing is None:
            racing = line.seq, _STORED
        self._moves_due.append(MoveDue(*racing, after[1], min(*before, *after), max(*before, *after)))

    def _move_by_ack(self, line: Line, entry: int) -> None:
        """Take a cumulative acknowledgement, which the core has applied; the move's own line follows."""
        self._moves_due.append(MoveDue(line.seq, "", entry, entry, entry, by_ack=True))

    def _moved(self, line: Line) -> None:
        """Take the target of a move forward: that of a skip, a cleared backlog or an ack, else what an expiry asked for."""
        at = self._last_up_to(line.inputs["target"])
        if at is None:
            return
        due = self._take_due(at)
        if due is None and at == self._cursor.s[MARK_DELETE] and self._move_seen_at(line, at) is None:
            # The broker stores again where mark-delete is, and tells no dispatcher (ManagedCursorImpl.flush). An expiry does
            # not ask for that since #24881, and releases before it trim in attempts.
            return
        if due is not None and due.target != at:
            racing = (due.seq, due.reason) if due.lowest <= at <= due.highest else None
            self._differ(
                _CLASS,
                f"the cursor moves to {self._positions([due.target])}",
                f"to {self._positions([at])}",
                decisions=0,
                racing=racing,
            )
            at = at if racing is not None else due.target
        if due is None or not due.by_ack:
            self._move_forward(line, at)

    def _reset_asked(self, line: Line, low: int, high: int) -> None:
        position = line.inputs["target"]
        entry = high if position is None else self._entries.first_from(*_pair(position))
        if entry >= high:  # the end; a position that was stored later was not there yet
            low, highest = min(low, high), entry if position is not None else high
            entry = high
            self._reset_to = (line.seq, low, highest) if low < highest else None
        self._reset(entry)

    def _on_rewind_after_reset(self, line: Line) -> None:
        """Compare the read position of the first rewind after a reset to the end; see ``_STORED``."""
        if self._deleted_at is not None and self._rewinds_new_cursor():
            self._made_again(line)
        reset_to, self._reset_to = self._reset_to, None
        position = line.recorded["read_position"]
        if reset_to is None or position is None:
            return
        seq, low, high = reset_to
        at = self._entries.first_from(*_pair(position))
        expected = int(self._cursor.s[READ_POSITION])
        if at != expected and low <= at <= high:
            self._differ(
                _CLASS,
                f"a reset to {self._positions([expected])}",
                f"to {self._positions([at])}",
                decisions=0,
                racing=(seq, _STORED),
            )
            self._reset(at)

    def _on_cursor_state(self, line: Line) -> None:
        self._report_unmet_moves()
        self._compare_mark_delete(line)
        self._compare_holes(line)

    # --- comparison ----------------------------------------------------------------------------------------------

    def _compare_mark_delete(self, line: Line) -> None:
        at, expected = self._last_up_to(line.recorded["mark_delete"]), int(self._cursor.s[MARK_DELETE])
        if at is None or at == expected:
            return
        if self._acks_under_way(min(at, expected) + 1, max(at, expected) + 1):
            return
        self._differ(
            _CLASS,
            f"mark-delete at {self._positions([expected])}",
            f"at {self._positions([at])}",
            decisions=0,
        )

    def _compare_holes(self, line: Line) -> None:
        """Compare the acknowledged entries above mark-delete, where all is quiet."""
        text = line.recorded["individually_deleted"]
        if text is None:
            return
        deleted = self._cursor.deleted
        recorded = np.zeros(len(deleted), bool)
        for found in _RANGE.findall(text):
            first, last = (self._entries.first_from(int(found[at]), int(found[at + 1]) + 1) for at in (0, 2))
            recorded[first:last] = True
        at = self._last_up_to(line.recorded["mark_delete"])
        above = max(int(self._cursor.s[MARK_DELETE]), -1 if at is None else at) + 1
        differing = above + np.flatnonzero(recorded[above:] != (deleted[above:] == 1))
        if not len(differing) or self._acks_under_way(int(differing[0]), int(differing[-1]) + 1):
            return
        expected = differing[deleted[differing] == 1].tolist()
        other = differing[recorded[differing]].tolist()
        self._differ(
            _CLASS,
            f"acknowledged: {self._positions(expected)}",
            f"acknowledged: {self._positions(other)}",
            decisions=0,
        )

    def _report_unmet_moves(self, *, acks: bool = False) -> None:
        """Report moves that should have come by now; those by acknowledgements (``acks``) only at the end of the log."""
        if self.stopped is not None:
            return
        unmet = [due for due in self._moves_due if acks or not due.by_ack]
        for due in unmet:
            self._moves_due.remove(due)
            self._differ(
                _CLASS,
                f"the cursor moves to {self._positions([due.target])}",
                "it does not move",
                decisions=0,
            )

    # --- inside --------------------------------------------------------------------------------------------------

    def _take_due(self, target: int) -> MoveDue | None:
        """Return the move that a line with this target belongs to: that of an ack only if it has this very target."""
        due = self._due_by_ack(target)
        if due is None:
            due = next((due for due in self._moves_due if not due.by_ack), None)
        if due is not None:
            self._moves_due.remove(due)
        return due

    def _due_by_ack(self, target: int | None) -> MoveDue | None:
        """Return the move of a cumulative acknowledgement with this very target, whose own line is to come."""
        return next((due for due in self._moves_due if due.by_ack and due.target == target), None)

    def _last_up_to(self, position: tuple[int, int] | None) -> int | None:
        """Return the last stored entry up to a position, -1 = none; ``None`` without a position."""
        if position is None:
            return None
        ledger_id, entry_id = _pair(position)
        at = self._entries.ordinal(ledger_id, entry_id)
        return at if at >= 0 else self._entries.first_from(ledger_id, entry_id + 1) - 1


def _pair(position: tuple[int, int]) -> tuple[int, int]:
    # A reset to the end names the largest position there is; one more must stay a number of 64 bits.
    return position[0], min(position[1], (1 << 63) - 2)
