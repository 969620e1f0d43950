"""Verify a trace of a Failover or Exclusive dispatcher, line by line.

What the order of lines means
-----------------------------
Adds, removals, the arrival of flow at the dispatcher and the completion of reads are critical sections: their lines stand
together. A removal opens with ``consumer_removing``. An add writes ``consumer_added`` last; its choice stands before, so it
is taken at the first line that shows it under way (``handover_scheduled`` or ``active_picked``), with the inputs of the
``consumer_added`` line to come.

Two things run outside: clients' permits (counted between the lines ``flow`` and ``flow_counted``), and the failover delay's
task (rewind, notices, read). A read attempt that the trace shows before a membership change but that issues nothing came
after it. Where counting and deciding overlap, the order that gives the recorded answer is looked for by asking the core
again; the decision is then *uncertain* and names the ``flow`` line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dispatch_core.errors import IllegalTransitionError
from dispatch_core.profiles import Profile, partition_index
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.single_active import SingleActiveDispatcher, sticky_hashes
from dispatch_core.single_active_rules import ConsumerBusyError, HandOver, Pick, Told
from dispatch_core.state import READ_POSITION
from dispatch_core.verify.driver import Driver, who
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.notices import Change, Notices
from dispatch_core.verify.tally import Tally, cut_off
from dispatch_core.verify.under_way import AckHistory, FlowHistory

#: Lines of the executor after the delay task's read attempt within which the task may not have said that it is done.
DELAY_TAIL: Final = 3


@dataclass(slots=True)
class _Attempt:
    """A read attempt of the trace that has not issued a read (yet)."""

    line: Line
    size: int | None  # what the core would read then
    rewinder: bool  # by the thread that has just rewound, not by the dispatcher's executor


class SingleActiveVerifier(Driver):
    """State of one verification: the core, what is expected of the coming lines, and the tally."""

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, lines: list[Line]) -> None:
        super().__init__(entries)
        exclusive = log.header.get("subscription_type") == "Exclusive"
        self.core = SingleActiveDispatcher(
            profile,
            log.topic,
            partition_index(log.header),
            exclusive=exclusive,
            num_messages=np.asarray(log.messages["num_messages"].combine_chunks()).astype(np.int64),
            hashes=sticky_hashes(log.messages, profile) if exclusive and _with_ranges(lines) else None,
        )
        self._joins = deque(line for line in lines if line.kind == "consumer_added")
        kinds = {line.kind for line in lines}
        self._attempts_shown = "read_attempt" in kinds
        self._notices_shown = "active_notified" in kinds
        self._complete = bool(lines) and lines[-1].kind in ("end", "footer")
        self._joined: set[int] = set()
        self._refused: set[int] = set()
        self._picks: deque[Pick] = deque()  # choices of the core whose line is still to come
        self._handing_over = False  # the core's choice changed; its hand-over is still to come
        self._cancelling: Callable[[bool], None] | None = (
            None  # what the outcome of the cancel under way leads to
        )
        self._notices = Notices()
        self._rewinds = 0  # of the core, whose lines are still to come
        self._change: Change | None = None
        self._attempt: _Attempt | None = None
        self._rewinding = False  # a rewind's own read attempt is still to come
        self._tail = 0  # > 0: the delay's task may not be through yet
        self._owed: Line | None = None  # flow that has to lead to a read attempt
        self._results: deque[tuple[int, ...]] = deque()  # dispatched by the core, no round yet
        self._round: tuple[Line, tuple[int, ...]] | None = None  # begun, its entries not sent yet
        self._flows = FlowHistory()
        self._acks = AckHistory()
        self._redeliveries: deque[Line] = deque()
        self._issued_at: deque[int] = deque()  # seq of the issue of each read in flight

    def finish(self, *, goes_on: bool = False) -> Tally:
        """End of the log: whatever is still open was cut off, not missed. ``goes_on``: see ``RacingDriver.finish``."""
        if self._round is not None:
            begun, entries = self._round
            if goes_on:
                self.tally.leave_out({"dispatch": len(entries)})
            elif self._complete:
                self._unsent()
            elif entries:
                self.tally.note(cut_off(begun))
                self.tally.settle("dispatch", len(entries), len(entries), "uncertain")
            self._round = None
        self.tally.close()
        return self.tally

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_consumer_removing(self, line: Line) -> None:
        if who(line) in self._refused:
            return
        self._unsent()
        before = self._remember()
        pick = self.core.leave(who(line))
        self._change = before
        if pick is not None:
            self._chosen(pick)
        elif self.core.pending:
            self._cancelling = lambda _: None

    def _on_handover_scheduled(self, line: Line) -> None:
        if not self._handing_over:
            self._join_next()
        if not self._handing_over:
            self._differ("active", "no hand-over", "a hand-over begins", decisions=0)
            return
        self._handing_over = False
        if line.recorded["pending_read"] not in (None, self.core.pending):
            self._differ(
                "active",
                f"pending read: {self.core.pending}",
                f"pending read: {line.recorded['pending_read']}",
                decisions=0,
            )
        if self.core.pending:
            self._cancelling = self._hand_over
        else:
            self._hand_over(False)

    def _hand_over(self, _: bool) -> None:
        step, told = self.core.hand_over()
        if step is HandOver.AT_ONCE:
            self._rewinds += 1
            self._tell(told)

    def _on_active_picked(self, line: Line) -> None:
        if not self._picks:
            self._join_next()
        self._no_rewind_due()
        pick = self._picks.popleft() if self._picks else None
        if self._handing_over:
            self._handing_over = False
            self._differ("active", "a hand-over begins", "none", decisions=0)
        expected = _choice(pick)
        recorded = _describe(line.consumer, line.recorded["changed"], line.recorded["sorted"] or ())
        if expected == recorded:
            self.tally.exact("active")
        else:
            self._differ("active", expected, recorded)

    def _on_consumer_added(self, line: Line) -> None:
        if who(line) not in self._joined:
            self._join(line)
        self._all_picked()
        self._unmet(
            [notice for notice in self._notices.due if notice[0] == line.consumer and not self._rewinding]
        )

    def _on_consumer_removed(self, line: Line) -> None:
        self._all_picked()

    def _all_picked(self) -> None:
        """A membership change is over: its choice must have been seen."""
        self._handing_over = False
        while self._picks:
            self._differ("active", _choice(self._picks.popleft()), "no choice", decisions=0)

    def _join_next(self) -> None:
        """An add is under way: that of the next ``consumer_added`` line."""
        while self._joins and self._joins[0].consumer in self._joined | self._refused:
            self._joins.popleft()
        if self._joins:
            self._join(self._joins.popleft())

    def _join(self, line: Line) -> None:
        before = self._remember()
        ranges = tuple((r["start"], r["end"]) for r in line.inputs["ranges"] or ())
        try:
            pick = self.core.join(who(line), line.inputs["name"], line.inputs["priority_level"] or 0, ranges)
        except ConsumerBusyError:
            self._refused.add(who(line))
            return
        self._joined.add(who(line))
        self._change = before
        self._chosen(pick)

    def _remember(self) -> Change:
        return Change(self._line.seq, self._line.t_us, self.core.active, self.core.members)

    def _chosen(self, pick: Pick) -> None:
        self._picks.append(pick)
        self._handing_over = pick.changed
        if pick.told:
            self._notices.due.extend(pick.told)

    # --- hand-over -----------------------------------------------------------------------------------------------

    def _on_read_cancelled(self, line: Line) -> None:
        cancelled = bool(line.inputs["cancelled"])
        step, self._cancelling = self._cancelling, None
        if step is None:
            self._redeliver(cancelled)
            return
        self.core.cancel_read(cancelled=cancelled)
        if cancelled and self._issued_at:
            self._issued_at.pop()
        step(cancelled)

    def _on_redeliver(self, line: Line) -> None:
        self._redeliveries.append(line)

    def _redeliver(self, cancelled: bool) -> None:
        """A cancel or a rewind that no hand-over explains: the redelivery request that is due takes effect."""
        while self._redeliveries:
            asked = who(self._redeliveries.popleft())
            if self.core.hears_redelivery(asked):
                self.core.redeliver(asked, cancelled=cancelled)
                if cancelled and self._issued_at:
                    self._issued_at.pop()
                self._rewinds += 1
                return
        raise IllegalTransitionError(
            "a read is cancelled or the cursor rewinds without a hand-over or a redelivery request",
            rule="a rewind has a cause",
        )

    def _on_rewind(self, line: Line) -> None:
        if not self._rewinds and not self.core.delay_running:
            self._redeliver(False)
        self._rewinding = True
        if self._rewinds:
            self._rewinds -= 1
            self._compare_rewound(line)
            return
        self._tail = DELAY_TAIL
        self._tell(self.core.delay_over(), by_delay=True)
        self._compare_rewound(line)

    def _compare_rewound(self, line: Line) -> None:
        """Where the cursor stands after a rewind: behind mark-delete, as far as the acks that are through say."""
        position = line.recorded["read_position"]
        at = -1 if position is None else self._entries.ordinal(position["ledger_id"], position["entry_id"])
        expected = int(self.core.state.s[READ_POSITION])
        if at < 0 or at == expected or (at < expected and self._acks.any_under_way(at, expected)):
            return
        self._differ(
            "read", f"rewind to {self._positions([expected])}", f"to {self._positions([at])}", decisions=0
        )

    def _tell(self, told: Told, *, by_delay: bool = False) -> None:
        self._unmet(self._notices.due)
        self._notices = Notices(self._line.seq, self._line.t_us, list(told), by_delay, tuple(told))

    def _unmet(self, due: list[tuple[int, int]]) -> None:
        """Notices that should have been sent by now."""
        racing = self._notices.overtaken_by(self._change)
        for consumer, active in due if self._notices_shown else ():
            self._differ("active", f"{consumer} told {active}", "no notice", decisions=0, racing=racing)
        self._notices.due = [notice for notice in self._notices.due if notice not in due]

    def _on_active_notified(self, line: Line) -> None:
        self._no_rewind_due()
        told = (who(line), line.recorded["active"])
        due = self._notices.due
        if told in due:
            due.remove(told)
            self.tally.exact("active")
            return
        expected = next((active for consumer, active in due if consumer == told[0]), None)
        views = (self._change.active_before if self._change else None, self.core.active)
        racing = self._notices.otherwise(told, self._change, views, self.core.members, self.core.told_all)
        described = "no notice" if expected is None else f"{told[0]} told {expected}"
        self._differ("active", described, f"{told[0]} told {told[1]}", racing=racing)

    # --- permits -------------------------------------------------------------------------------------------------

    def _on_flow(self, line: Line) -> None:
        consumer, permits = who(line), line.inputs["permits"]
        self.core.flow(consumer, permits)
        self._through(consumer)
        self._flows.arrived(consumer, line.seq, permits)

    def _on_flow_counted(self, line: Line) -> None:
        self._flows.counted(who(line), line.seq)

    def _on_flow_applied(self, line: Line) -> None:
        self._executor_line()
        arrived = self._flows.applied(who(line))
        while self._redeliveries and self._redeliveries[0].seq < arrived:
            self._redeliveries.popleft()  # the executor keeps the order: it has had its effect, or was not heard
        if self._attempts_shown and self.core.flow_reads(who(line)) and not self._tail:
            self._owed = line

    def _through(self, consumer: int) -> None:
        """Another command of this connection: the flow and the acks before it have had their effect."""
        self._flows.counted(consumer, self._line.seq)
        self._acks.through(consumer, self._line.seq)

    # --- reads ---------------------------------------------------------------------------------------------------

    def _executor_line(self) -> None:
        """A line of the dispatcher's executor: what it did before is done, an attempt of its own has issued its read."""
        self._unsent()
        attempt, owed = self._attempt, self._owed
        self._owed = None
        if self._tail and not self._rewinding:
            self._tail -= 1
        if owed is not None and self.core.flow_reads(who(owed)):
            self._differ("read", "flow leads to a read attempt", "none", decisions=0)
        if attempt is None or attempt.rewinder:
            return
        self._attempt = None
        consumer = attempt.line.consumer
        if attempt.size is not None and self.core.would_read(consumer) is not None:
            racing = self._racing_flow(
                consumer, attempt.line.seq, lambda permits: self.core.would_read(consumer, permits) is None
            )
            self._differ("read", f"read of at most {attempt.size}", "no read", decisions=0, racing=racing)

    def _on_read_attempt(self, line: Line) -> None:
        # The delay's task tells everybody before it attempts: with notices still due, this is another thread.
        rewinder = self._rewinding and not (self._notices.by_delay and self._notices.due)
        if rewinder:
            self._rewinding = False
            self._no_rewind_due()
            self._unmet(self._notices.due)
        else:
            self._owed = None
            self._executor_line()
        earlier = self._attempt
        if earlier is None or earlier.size is None or self.core.would_read(earlier.line.consumer) is None:
            self._attempt = _Attempt(line, self.core.would_read(line.consumer), rewinder)

    def _no_rewind_due(self) -> None:
        rewinds, self._rewinds = self._rewinds, 0
        if rewinds:
            self._differ("read", "the cursor rewinds first", "no rewind", decisions=0)

    def _on_read_issued(self, line: Line) -> None:
        attempt, self._attempt = self._attempt, None
        self._owed = None
        self._no_rewind_due()
        recorded = line.recorded["max_entries"]
        consumer = self.core.active
        if attempt is None and self._attempts_shown:
            self._differ("read", "no read without an attempt", f"read of at most {recorded}")
            self._issue(line)
            return
        expected = self.core.would_read(consumer)
        if expected is not None and attempt is not None and attempt.line.consumer == consumer:
            expected = attempt.size or expected  # permits are looked at when the attempt begins
        if expected == recorded:
            self.tally.exact("read")
            self._issue(line)
            return
        since = attempt.line.seq if attempt is not None else line.seq
        described = "no read" if expected is None else f"read of at most {expected}"
        racing = self._racing_flow(
            consumer, since, lambda permits: self.core.would_read(consumer, permits) == recorded
        )
        self._differ("read", described, f"read of at most {recorded}", racing=racing)
        self._issue(line)

    def _racing_flow(
        self, consumer: int | None, since: int, answers: Callable[[int], bool]
    ) -> tuple[int, str] | None:
        """The flow whose counting overlaps the decision begun at ``since`` and gives the recorded answer the other way."""
        if consumer is not None:
            for permits, seq in self._flows.other_permits(consumer, self.core.permits[consumer], since):
                if answers(permits):
                    return seq, "this flow was counted while the decision was made"
        return None

    def _issue(self, line: Line) -> None:
        if self.core.attempt_read(self.core.active) is not None:
            self._issued_at.append(line.seq)

    def _on_read_done(self, line: Line) -> None:
        self._executor_line()
        self._attempt = None
        self._undispatched()
        issued_at = self._issued_at[0] if self._issued_at else 0
        positions = line.inputs["positions"]
        maybe = frozenset(entry for entry in positions if self._acks.may_be_after(entry, issued_at))
        reader = self.core.reader
        result = self.core.read_done(positions, maybe)
        if self._issued_at:
            self._issued_at.popleft()
        if line.consumer not in (None, reader):
            self._differ("dispatch", f"a read for consumer {reader}", f"for {line.consumer}", decisions=0)
        if result.entries is not None:
            self._results.append(result.entries)
        elif result.rewound:
            self._rewinds += 1
            self._tell(result.told)

    # --- rounds --------------------------------------------------------------------------------------------------

    def _undispatched(self) -> None:
        """The next read completes: what the one before returned should have begun a round."""
        while self._results:
            entries = self._results.popleft()
            self._differ("dispatch", f"{self._positions(entries)} dispatched", "dropped", decisions=0)

    def _on_round_begin(self, line: Line) -> None:
        self._unsent()
        if not self._results:
            raise IllegalTransitionError(
                "a round without a read result", rule="a round dispatches one read result"
            )
        entries = self._results.popleft()
        self._round = (line, entries)
        self.tally.rounds += 1
        recorded = (line.consumer, tuple(line.recorded["positions"] or ()))
        if recorded not in ((self.core.active, entries), (None, entries)):
            self._differ(
                "dispatch",
                f"a round of {self._positions(entries)} for {self.core.active}",
                f"of {self._positions(recorded[1])} for {line.consumer}",
                decisions=0,
            )

    def _unsent(self) -> None:
        """Something else runs under the dispatcher's lock: the round before it should have sent."""
        open_round, self._round = self._round, None
        if open_round is not None and open_round[1] and self.core.active is not None:
            entries = open_round[1]
            consumer, _ = self.core.send(entries)
            expected = f"consumer {consumer} gets {self._positions(entries)}"
            self._differ("dispatch", expected, "nothing", len(entries))

    def _on_sent(self, line: Line) -> None:
        entries = tuple(line.recorded["positions"])
        if self._round is None:
            self._differ(
                "dispatch", "nothing outside a round", f"{len(entries)} entries to {line.consumer}", 0
            )
            return
        (begun, expected), self._round = self._round, None
        consumer, before = self.core.send(expected)
        if (consumer, expected) == (line.consumer, entries) and -1 not in expected:
            self.tally.exact("dispatch", len(expected))
        else:
            self._differ(
                "dispatch",
                f"consumer {consumer} gets {self._positions(expected)}",
                f"consumer {line.consumer} gets {self._positions(entries)}",
                decisions=len(expected),
            )
        recorded = line.recorded["permits_before"]
        racing = None
        if recorded is not None and before != recorded:
            taken = before - self.core.permits[consumer]
            racing = self._racing_flow(consumer, begun.seq, lambda permits: permits + taken == recorded)
        if racing is None:
            self._compare_permits(line, consumer, before)
        else:
            self._differ("permits", f"consumer {consumer}: {before}", str(recorded), racing=racing)

    # --- acknowledgements ----------------------------------------------------------------------------------------

    def _on_ack(self, line: Line) -> None:
        self._through(who(line))
        sets = line.inputs["ack_sets"] or []
        apply = (
            self.core.acknowledge_up_to if line.inputs["ack_type"] == "Cumulative" else self.core.acknowledge
        )
        for at, entry in enumerate(line.inputs["positions"]):
            if entry >= 0:
                apply(entry, tuple(sets[at] or ()) if at < len(sets) else ())
                self._acks.arrived(who(line), entry)

    def class_of(self, kind: str) -> str:
        """Membership lines belong to the choice, all others to dispatch."""
        return "active" if kind.startswith("consumer_") else "dispatch"


def _describe(active: int | None, changed: bool | None, order: Sequence[int]) -> str:
    return f"active {active}, {'changed' if changed else 'unchanged'}, order {list(order)}"


def _choice(pick: Pick | None) -> str:
    return "no choice" if pick is None else _describe(pick.active, pick.changed, pick.order)


def _with_ranges(lines: list[Line]) -> bool:
    return any(line.kind == "consumer_added" and line.inputs["ranges"] for line in lines)
