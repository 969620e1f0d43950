"""Verify membership and active-consumer changes of Failover and Exclusive: the choice, the notices, the rewind.

The order of lines is explained in ``single_active``, which adds flow, reads and rounds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from dispatch_core.broker import cursor_moves
from dispatch_core.broker.profiles import Profile, partition_index
from dispatch_core.broker.single_active import MOST_WAITING, SingleActiveDispatcher, sticky_hashes
from dispatch_core.broker.single_active_rules import ActiveChange, ConsumerBusyError, Notified, Pick
from dispatch_core.broker.state import MARK_DELETE, READ_POSITION, State
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.recording.batch_sizes import batch_sizes
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.tally import cut_off
from dispatch_core.verify.trace.cursor_operations import CursorDriver
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.earlier_positions import HELD_UP_US
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.late_entries import LateEntries
from dispatch_core.verify.trace.notices import (
    DELAY_TAIL_US,
    Change,
    Notices,
    Sender,
    described,
    described_pick,
)
from dispatch_core.verify.trace.pending_commands import AckHistory

#: Number of the latest membership changes that may race with the delay's task.
MAX_CHANGES: Final = 8
#: Pseudo connection of what moves the cursor without an ack.
_CURSOR: Final = -1
_INSIDE_ADD: Final = "the log ends inside an add: who joins is not known"


class _CutOffError(Exception):
    """The log ends inside the add that is under way: who joins is not known."""


class ActiveChangeVerifier(CursorDriver):
    """State of one verification: the core, the choices and notices expected of the coming lines."""

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, facts: TraceFacts) -> None:
        super().__init__(entries)
        exclusive = log.header.get("subscription_type") == "Exclusive"
        self.core = SingleActiveDispatcher(
            profile,
            log.topic,
            partition_index(log.header),
            exclusive=exclusive,
            num_messages=batch_sizes(log.messages),
            hashes=sticky_hashes(log.messages, profile) if exclusive and facts.ranges_announced else None,
        )
        self._late_entries = LateEntries(log.messages)
        self._joins: deque[tuple[int, Line]] = deque()  # lines ahead that add a consumer, with their indexes
        self._notices_shown = facts.notices_logged
        self._cut: list[Line] = []  # the lines of an add that the log does not hold to its end
        self._joined: set[int] = set()
        self._refused: set[int] = set()
        self._picks: deque[Pick] = deque()  # choices of the core whose line is still to come
        self._handing_over = False  # the core's choice changed; the line of the change is still to come
        # All consumers are being disconnected; a read that is pending behind the last one is cancelled once more.
        self._disconnecting = False
        #: Step that follows the outcome of the cancel under way.
        self._cancelling: Callable[[bool], None] | None = None
        self._locked = Notices()  # sent under the dispatcher's lock
        self._by_task = Notices(
            sender=Sender.DELAY_TASK
        )  # sent by the failover delay's task, maybe at the same time
        self._at_once: list[tuple[int, int]] = []  # notices of an add that changes nothing
        self._rewinds = 0  # of the core, whose lines are still to come
        self._changes: deque[Change] = deque(maxlen=MAX_CHANGES)
        self._tail_until_us = 0  # till then the delay's task may not be through
        self._lost: Line | None = None  # a change that the end of the delay's task may have swallowed
        self._redeliveries: deque[Line] = deque()
        # Line of the cause of the last rewind, and the read position before it: the rewind's own line comes later.
        self._before_rewind: tuple[int, int] = (0, 0)
        self._issued_at: deque[int] = deque()  # seq of the issue of each read in flight
        self._acks = AckHistory()

    @abstractmethod
    def _unsent(self) -> None:
        """Report the round before that should have sent: something else runs under the dispatcher's lock now."""

    @property
    def _complete(self) -> bool:
        """True if the last line that is known ends the log."""
        return self._lines.last_kind in ("end", "footer")

    def _ahead_consumer_added(self, at: int, line: Line) -> None:
        """See ``Driver``."""
        self._joins.append((at, line))

    def extend(self, drop: int, messages: pa.Table) -> None:
        """See ``Driver.extend``."""
        if drop:
            self._acks.drop(drop)
            self._late_entries.drop(drop)
            self._change_ordinals(lambda entry: entry - drop)
            self._change_cursor_ordinals(drop)
        self._late_entries.add(messages)
        hashes = sticky_hashes(messages, self.core.profile) if self.core.is_hashed else ()
        self.core.extend(drop, batch_sizes(messages), hashes)
        self._take_acked_before()
        self._moved_between_lines()

    def _settled(self) -> int:
        """See ``Driver``."""
        return int(self.core.state.s[MARK_DELETE]) + 1

    def feed(self, line: Line) -> None:
        """Take one line. After an add whose end is not in the log, nothing is decided."""
        if self._cut:
            self._at += 1
            self.tally.expect(line)
            self._cut.append(line)
            return
        try:
            super().feed(line)
        except _CutOffError:
            self._cut.append(line)

    def _leave_cut_off(self, goes_on: bool) -> None:
        """Count decisions after the log was cut off inside an add: none if the log ``goes_on``, else uncertain."""
        cut = [(line, *found) for line in self._cut for found in self.tally.decisions_of(line)]
        for line, decision_class, decisions in cut:
            if decisions and goes_on:
                self.tally.leave_out({decision_class: decisions})
            elif decisions:
                began = self._cut[0].seq
                self.tally.note(
                    replace(
                        cut_off(line), decision_class=decision_class, racing_seq=began, reason=_INSIDE_ADD
                    )
                )
                self.tally.settle(decision_class, decisions, decisions, "uncertain")

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_consumer_removing(self, line: Line) -> None:
        """Remove a consumer, and choose the active one again.

        Nothing is removed for a consumer that was refused, or the second time that one is disconnected (``log_checks``).
        """
        if not self.core.is_connected(who(line)):
            return
        self._unsent()
        self._removal_has_had_effect()  # one whose other lines the trace lacks
        before = self._remember()
        pick = self.core.leave(who(line), by_reset=self._is_disconnected_by_reset(who(line)))
        self._changes.append(before)
        if pick is not None:
            self._chosen(pick)
        elif self.core.pending:
            self._cancelling = lambda _: None

    def _on_all_disconnecting(self, line: Line) -> None:
        self._unsent()
        self.core.disconnect_all()
        self._disconnecting = True

    def _is_disconnected_by_reset(self, consumer: int) -> bool:
        """Check whether a reset of the cursor disconnects a consumer that leaves: it comes before the next one does."""
        if not cursor_moves.disconnects(consumer, self.core.active, single_active=True):
            return False
        for line in self._later_lines():
            if line.kind == "cursor_op" and line.inputs["op"] == "reset":
                return True
            if line.kind in ("consumer_added", "consumer_removing", "end"):
                return False
        return False

    def _on_handover_scheduled(self, line: Line) -> None:
        self._removal_has_had_effect()
        if not self._handing_over:
            self._join_next()
        if not self._handing_over:
            self._differ("active", "no change of the active consumer", "a change begins", decisions=0)
            return
        self._handing_over = False
        if line.recorded["pending_read"] is False:
            self._take_failed_read()
        if line.recorded["pending_read"] not in (None, self.core.pending):
            self._differ(
                "active",
                f"pending read: {self.core.pending}",
                f"pending read: {line.recorded['pending_read']}",
                decisions=0,
            )
        if self.core.pending:
            self._cancelling = self._begin_change
        else:
            self._begin_change(False)

    def _take_failed_read(self) -> bool:
        """Take the newest read in flight to have failed, if an older one may wait: a line shows that none is pending.

        No line says that a read fails.
        """
        if not self.core.pending or self.core.reads_in_flight <= MOST_WAITING:
            return False
        self.core.fail_read()
        self._issued_at.pop()
        return True

    def _begin_change(self, _: bool) -> None:
        self._before_rewind = self._line.seq, int(self.core.state.s[READ_POSITION])
        step, notified = self.core.begin_active_change()
        if step is ActiveChange.AT_ONCE:
            self._rewinds += 1
            self._expect_notices(notified, Sender.SECTION)
        self._lost = self._line if self._line.t_us <= self._tail_until_us else None

    def _on_active_picked(self, line: Line) -> None:
        self._removal_has_had_effect()
        if not self._picks:
            self._join_next()
        self._no_rewind_due()
        if self._locked.sender is Sender.SECTION:
            self._unmet(self._locked)
        pick = self._picks.popleft() if self._picks else None
        if self._handing_over:
            self._handing_over = False
            self._differ("active", "a change of the active consumer begins", "none", decisions=0)
        expected = described_pick(pick)
        recorded = described(line.consumer, line.recorded["changed"], line.recorded["sorted"] or ())
        if expected == recorded:
            self.tally.exact("active")
        else:
            self._differ("active", expected, recorded)

    def _on_consumer_added(self, line: Line) -> None:
        if who(line) not in self._joined:
            self._join(line)
        self._all_picked()
        self._unmet(Notices(due=self._at_once))
        self._at_once = []

    def _on_consumer_removed(self, line: Line) -> None:
        self._removal_has_had_effect()
        self._all_picked()

    def _all_picked(self) -> None:
        """End a membership change: its choice and its cancel must have been seen."""
        self._handing_over = False
        if self._cancelling is not None:
            self._cancelling = None
            if not self._take_failed_read():
                self._differ("active", "the pending read is cancelled if it can be", "no cancel", decisions=0)
        while self._picks:
            self._differ("active", described_pick(self._picks.popleft()), "no choice", decisions=0)

    def _join_next(self) -> None:
        """Join the consumer of the next ``consumer_added`` line: its add is under way."""
        stop = self._lines.horizon(self._at)
        while self._joins and (
            self._joins[0][1].consumer in self._joined or self._joins[0][1].consumer in self._refused
        ):
            self._joins.popleft()
        if self._joins and self._joins[0][0] < stop:
            self._join(self._joins.popleft()[1])
        elif stop == len(self._lines) and not self._complete:
            raise _CutOffError

    def _join(self, line: Line) -> None:
        before = self._remember()
        ranges = tuple((r["start"], r["end"]) for r in line.inputs["ranges"] or ())
        try:
            pick = self.core.join(who(line), line.inputs["name"], line.inputs["priority_level"] or 0, ranges)
        except ConsumerBusyError:
            self._refused.add(who(line))
            return
        self._joined.add(who(line))
        before.until_us = before.t_us
        self._removal_has_had_effect()
        self._changes.append(before)
        self._chosen(pick)

    def _remember(self) -> Change:
        return Change(self._line.seq, self._line.t_us, self.core.active, self.core.members, until_us=None)

    def _removal_has_had_effect(self) -> None:
        """Take a line behind the effect of the last removal."""
        if self._changes and self._changes[-1].until_us is None:
            self._changes[-1].until_us = self._line.t_us

    def _chosen(self, pick: Pick) -> None:
        self._picks.append(pick)
        self._handing_over = pick.changed
        self._at_once = list(pick.notified)

    # --- active-consumer change ----------------------------------------------------------------------------------

    def _on_read_cancelled(self, line: Line) -> None:
        cancelled = bool(line.inputs["cancelled"])
        step, self._cancelling = self._cancelling, None
        all_have_left = self._disconnecting and not self.core.members and self.core.pending
        if step is None and not all_have_left:
            self._redeliver(cancelled)
            return
        self._disconnecting &= step is not None
        self.core.cancel_read(cancelled=cancelled)
        if cancelled and self._issued_at:
            self._issued_at.pop()
        if step is not None:
            step(cancelled)

    def _on_redeliver(self, line: Line) -> None:
        self._redeliveries.append(line)

    def _redeliver(self, cancelled: bool) -> None:
        """Apply the redelivery request that is due: no active-consumer change explains this cancel or rewind."""
        while self._redeliveries:
            asked = who(self._redeliveries.popleft())
            if self._lost is not None and asked == self.core.active and not self.core.hears_redelivery(asked):
                racing = (
                    self._lost.seq,
                    "the change of the active consumer began while an earlier delay's task ended",
                )
                self._differ("active", "the failover delay runs", "it does not", decisions=0, racing=racing)
                self.core.delay_never_began()
            if self.core.hears_redelivery(asked):
                self._before_rewind = self._line.seq, int(self.core.state.s[READ_POSITION])
                self.core.redeliver(asked, cancelled=cancelled)
                if cancelled and self._issued_at:
                    self._issued_at.pop()
                self._rewinds += 1
                return
        raise IllegalTransitionError(
            "a read is cancelled or the cursor rewinds without a change of the active consumer or a redelivery request",
            rule="a rewind has a cause",
        )

    def _on_rewind(self, line: Line) -> None:
        self._on_rewind_after_reset(line)
        if not self._rewinds and not self.core.delay_running:
            self._redeliver(False)
        if self._rewinds:
            self._rewinds -= 1
            self._locked.attempt_due = True
        else:
            self._tail_until_us = line.t_us + DELAY_TAIL_US
            self._expect_notices(self.core.delay_over(), Sender.DELAY_TASK)
            self._by_task.attempt_due = True
        self._compare_rewound(line)

    # --- operations on the cursor --------------------------------------------------------------------------------

    @property
    def _cursor(self) -> State:
        """See ``CursorDriver``."""
        return self.core.state

    def _move_forward(self, line: Line, target: int) -> None:
        """See ``CursorDriver``. A read that was issued before may have met the entries before they were passed."""
        for entry in range(int(self.core.state.s[MARK_DELETE]) + 1, target + 1):
            self._acks.arrived(_CURSOR, entry)
        self.core.move_forward(target)

    def _on_mark_delete(self, line: Line) -> None:
        """Mark-delete has moved: moves of the cursor are done."""
        self._acks.through(_CURSOR, line.seq)

    def _begin_behind(self, target: int) -> None:
        """See ``CursorDriver``."""
        self.core.move_forward(target)

    def _begin_without(self, entry: int, words: Sequence[int]) -> None:
        """See ``CursorDriver``."""
        self.core.acknowledge(entry, words)

    def _reset(self, entry: int) -> None:
        """See ``CursorDriver``. What was acknowledged is not any more."""
        self._acks = AckHistory()
        self.core.reset(entry)

    def _rewinds_new_cursor(self) -> bool:
        """See ``CursorDriver``. The failover delay may end although all consumers have left."""
        return bool(self.core.members)

    def _finish_acks(self) -> tuple[int, str] | None:
        """See ``CursorDriver``: acks are applied when they arrive."""
        return None

    def _acks_under_way(self, low: int, high: int) -> bool:
        """See ``CursorDriver``."""
        return self._acks.any_under_way(low, high)

    def _compare_rewound(self, line: Line) -> None:
        """Compare the read position after a rewind: behind mark-delete, as far as the finished acks show."""
        position = line.recorded["read_position"]
        at = -1 if position is None else self._entries.ordinal(*position)
        expected = int(self.core.state.s[READ_POSITION])
        if at < 0 or at == expected or (at < expected and self._acks.any_under_way(at, expected)):
            return
        self._differ(
            "read", f"rewind to {self._positions([expected])}", f"to {self._positions([at])}", decisions=0
        )

    def _expect_notices(self, notified: Notified, sender: Sender) -> None:
        notices = Notices(self._line.seq, self._line.t_us, list(notified), sender, tuple(notified))
        if sender is Sender.DELAY_TASK:
            self._unmet(self._by_task)
            self._by_task = notices
        else:
            self._unmet(self._locked)
            self._locked = notices

    def _unmet(self, notices: Notices) -> None:
        """Report notices that should have been sent by now."""
        racing = notices.overtaken_by(self._changes)
        for consumer, active in notices.due if self._notices_shown else ():
            self._differ(
                "active",
                f"{consumer} notified that {active} is active",
                "no notice",
                decisions=0,
                racing=racing,
            )
        notices.due = []

    def _task_is_through(self) -> None:
        """Report missing notices of the delay's task, if it must be over by now."""
        if self._by_task.due and self._line.t_us > self._tail_until_us and not self._task_goes_on():
            self._unmet(self._by_task)

    def _task_goes_on(self) -> bool:
        """Check whether the delay's task sends a notice that is due later: its thread may be held up."""
        for line in self._later_lines():
            if line.t_us > self._by_task.since_us + HELD_UP_US:
                return False
            if line.kind == "active_notified" and (who(line), line.recorded["active"]) in self._by_task.due:
                return True
        return False

    def _attempts_after_rewind(self) -> bool:
        """Check whether a read attempt is of a thread that has just rewound and sent all notices."""
        for notices in (self._locked, self._by_task):
            if notices.attempt_due and (not notices.due or notices.sender is Sender.EXECUTOR):
                notices.attempt_due = False
                if notices is self._locked:
                    self._no_rewind_due()
                    self._unmet(notices)
                return True
        return False

    def _on_active_notified(self, line: Line) -> None:
        self._no_rewind_due()
        notice = (who(line), line.recorded["active"])
        lists = (self._at_once, self._locked.due, self._by_task.due)
        due = next((due for due in lists if notice in due), self._by_task.due or self._locked.due)
        if notice in due:
            due.remove(notice)
            self.tally.exact("active")
            return
        expected = next((active for consumer, active in due if consumer == notice[0]), None)
        changes = [*self._changes, *self._join_to_come(line)]
        racing = self._by_task.otherwise(
            notice, changes, self.core.active, self.core.members, self.core.notices_of_change
        )
        described = "no notice" if expected is None else f"{notice[0]} notified that {expected} is active"
        self._differ("active", described, f"{notice[0]} notified that {notice[1]} is active", racing=racing)

    def _join_to_come(self, notice: Line) -> list[Change]:
        """Return the join of a notified consumer whose lines come next: it is connected before its choice is logged.

        Source: AbstractDispatcherSingleActiveConsumer.addConsumer.
        """
        consumer, members = who(notice), tuple(self.core.members)
        if consumer in members:
            return []
        for line in self._later_lines():
            if line.kind == "active_picked" and consumer in line.recorded["sorted"]:
                return [Change(line.seq, notice.t_us, self.core.active, (*members, consumer), notice.t_us)]
            if line.kind in ("active_picked", "consumer_removing", "end"):
                return []
        return []

    def _no_rewind_due(self) -> None:
        rewinds, self._rewinds = self._rewinds, 0
        if rewinds:
            self._differ("read", "the cursor rewinds first", "no rewind", decisions=0)
