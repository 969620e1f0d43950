"""Verify a trace of a Failover or Exclusive dispatcher, line by line.

An add chooses the active consumer *inside* itself, before its ``consumer_added`` line; ``active_picked`` is written a
few milliseconds later still. The driver therefore applies a membership change at the first line that shows it under way
(``handover_scheduled`` or ``active_picked``), with the inputs of the ``consumer_added`` line that belongs to it.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dispatch_core.errors import IllegalTransitionError
from dispatch_core.profiles import Profile, partition_index
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.single_active import Pick, RefusedError, SingleActiveDispatcher
from dispatch_core.verify.driver import Driver, who
from dispatch_core.verify.flows import FlowQueue
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.tally import Tally, cut_off


class SingleActiveVerifier(Driver):
    """State of one verification: the core, what is expected of the coming lines, and the tally."""

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, lines: list[Line]) -> None:
        super().__init__(entries)
        exclusive = log.header.get("subscription_type") == "Exclusive"
        partition = partition_index(log.header)
        self.core = SingleActiveDispatcher(profile, log.topic, partition, exclusive=exclusive)
        self.batch = np.asarray(log.messages["num_messages"].combine_chunks()).astype(np.int64)
        self._joins = deque(line for line in lines if line.kind == "consumer_added")
        self._applied: set[int] = set()  # consumers whose add took effect before its line
        self._refused: set[int] = set()
        self._leaving: deque[int] = deque()
        self._picks: deque[Pick] = deque()
        self._notices: list[tuple[int, int]] = []
        self._read: int | None = None
        self._counted_since: Line | None = None  # a flow counted since the last read attempt
        self._results: deque[list[int]] = deque()  # -1 = an entry that the message log does not hold
        self._round: tuple[Line, list[int]] | None = None  # begun, its entries not sent yet
        self._flows: dict[int, FlowQueue] = {}
        self._handing_over = False

    def finish(self) -> Tally:
        """End of the log: whatever is still open was cut off, not missed."""
        if self._round is not None:
            begun, entries = self._round
            self.tally.note(cut_off(begun))
            self.tally.settle("dispatch", len(entries), len(entries), "uncertain")
            self._round = None
        self.tally.close()
        return self.tally

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_consumer_removing(self, line: Line) -> None:
        if who(line) not in self._refused:
            self._leaving.append(who(line))

    def _on_handover_scheduled(self, line: Line) -> None:
        self._change()
        self._handing_over = True

    def _on_active_picked(self, line: Line) -> None:
        self._settle()
        if not self._picks:
            self._change()
        pick = self._picks.popleft() if self._picks else None
        expected = (pick.active, pick.changed, pick.order) if pick else None
        recorded = (line.consumer, line.recorded["changed"], tuple(line.recorded["sorted"] or ()))
        if expected == recorded:
            self.tally.exact("active")
        else:
            self._differ("active", _describe(expected), _describe(recorded))

    def _on_consumer_added(self, line: Line) -> None:
        self._settle()
        if who(line) in self._applied:
            return
        self._join(line)

    def _on_consumer_removed(self, line: Line) -> None:
        self._settle()
        if who(line) in self._leaving:
            self._leaving.remove(who(line))
            self._chosen(self.core.leave(who(line)))

    def _change(self) -> None:
        """A choice is under way: of a removal that has begun, else of the next add."""
        if self._leaving:
            self._chosen(self.core.leave(self._leaving.popleft()))
            return
        while self._joins and self._joins[0].consumer in self._applied:
            self._joins.popleft()
        if self._joins:
            self._join(self._joins.popleft())

    def _join(self, line: Line) -> None:
        self._applied.add(who(line))
        try:
            self._chosen(self.core.join(who(line), line.inputs["name"], line.inputs["priority_level"] or 0))
        except RefusedError:
            self._refused.add(who(line))

    def _chosen(self, pick: Pick) -> None:
        self._picks.append(pick)
        self._notices.extend(pick.told)

    def _settle(self) -> None:
        """The hand-over's cancel has had its chance."""
        if self._handing_over:
            self._handing_over = False
            self.core.hand_over(cancelled=False)

    def _on_read_cancelled(self, line: Line) -> None:
        if self._handing_over:
            self._handing_over = False
            self.core.hand_over(cancelled=bool(line.inputs["cancelled"]))
        elif line.inputs["cancelled"]:
            self.core.read_cancelled()

    def _on_rewind(self, line: Line) -> None:
        self._settle()
        self._notices.extend(self.core.rewound())

    def _on_active_notified(self, line: Line) -> None:
        recorded = (who(line), line.recorded["active"])
        if recorded in self._notices:
            self._notices.remove(recorded)
            self.tally.exact("active")
        else:
            expected = next((active for who, active in self._notices if who == recorded[0]), None)
            self._differ(
                "active", f"told {expected}" if expected else "no notice", f"{recorded[0]} told {recorded[1]}"
            )

    # --- flow, reads, rounds -------------------------------------------------------------------------------------

    def _on_flow(self, line: Line) -> None:
        self._flows.setdefault(who(line), FlowQueue()).arrived(line.inputs["permits"])

    def _on_flow_counted(self, line: Line) -> None:
        flows = self._flows.setdefault(who(line), FlowQueue())
        permits = flows.counted()
        if permits is not None:
            flows.untold += 1
            self.core.flow(who(line), permits)
            if who(line) == self.core.active:
                self._counted_since = line

    def _on_flow_applied(self, line: Line) -> None:
        permits = self._flows.setdefault(who(line), FlowQueue()).applied()
        if permits is not None:
            self.core.flow(who(line), permits)
            if who(line) == self.core.active:
                self._counted_since = line

    def _on_read_attempt(self, line: Line) -> None:
        self._settle()
        self._read = self.core.attempt_read()
        self._counted_since = None

    def _on_read_issued(self, line: Line) -> None:
        expected, self._read = self._read, None
        recorded = line.recorded["max_entries"]
        if expected == recorded:
            self.tally.exact("read")
        elif self._counted_since is not None and self.core.reread() == recorded:
            racing = (self._counted_since.seq, "permits were counted between the read attempt and its read")
            self._differ("read", f"read of at most {expected}", f"read of at most {recorded}", racing=racing)
        else:
            self._differ(
                "read", f"read of at most {expected}", f"read of at most {line.recorded['max_entries']}"
            )

    def _on_read_done(self, line: Line) -> None:
        self._settle()
        if self.core.read_done():
            self._results.append(line.inputs["positions"])

    def _on_round_begin(self, line: Line) -> None:
        self._unsent()
        if not self._results:
            raise IllegalTransitionError(
                "a round without a read result", rule="a round dispatches one read result"
            )
        self._round = (line, self._results.popleft())
        self.tally.rounds += 1

    def _unsent(self) -> None:
        """The next round begins: the one before it should have sent."""
        open_round, self._round = self._round, None
        if open_round is not None and open_round[1]:
            entries = open_round[1]
            self._differ(
                "dispatch",
                f"consumer {self.core.active} gets {self._positions(entries)}",
                "nothing",
                len(entries),
            )

    def _on_sent(self, line: Line) -> None:
        entries = line.recorded["positions"]
        if self._round is None:
            self._differ(
                "dispatch", "nothing outside a round", f"{len(entries)} entries to {line.consumer}", 0
            )
            return
        (_, expected), self._round = self._round, None
        stored = [entry for entry in expected if entry >= 0]
        consumer, before = self.core.send(self.batch[stored].tolist())
        if (consumer, expected) == (line.consumer, entries) and stored == expected:
            self.tally.exact("dispatch", len(expected))
        else:
            self._differ(
                "dispatch",
                f"consumer {consumer} gets {self._positions(expected)}",
                f"consumer {line.consumer} gets {self._positions(entries)}",
                decisions=len(expected),
            )
        self._compare_permits(line, consumer, before)

    def class_of(self, kind: str) -> str:
        """Membership lines belong to the choice, all others to dispatch."""
        return "active" if kind.startswith("consumer_") else "dispatch"


def _describe(choice: tuple[int | None, bool, tuple[int, ...]] | None) -> str:
    if choice is None:
        return "no choice"
    active, changed, order = choice
    return f"active {active}, {'changed' if changed else 'unchanged'}, order {list(order)}"
