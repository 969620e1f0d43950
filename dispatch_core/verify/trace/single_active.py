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
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import ClassVar, Final

import numpy as np

from dispatch_core.broker.cursor import first_left
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.single_active import MOST_WAITING
from dispatch_core.broker.state import MARK_DELETE, NOBODY
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import STATE_FIELDS, Entries, Line
from dispatch_core.verify.tally import Fields, Tally, cut_off
from dispatch_core.verify.trace.active_consumer_change import ActiveChangeVerifier
from dispatch_core.verify.trace.batch_ack_orders import BatchAck, BatchAckOrders
from dispatch_core.verify.trace.driver import acknowledged_by, first_shown, who
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.limits_in_force import REASON_OF_RATE
from dispatch_core.verify.trace.mark_delete_lines import Arrival
from dispatch_core.verify.trace.notices import Sender
from dispatch_core.verify.trace.pending_commands import Attempt, FlowHistory
from dispatch_core.verify.trace.recorded import differing_entries
from dispatch_core.verify.trace.shown_positions import PositionsDriver

#: Number of the first entries of a cumulative acknowledgement that are looked at, to say when it moves mark-delete.
_FIRST_ENTRIES: Final = 64
_OF_READS: Final = frozenset({"read_issued", "read_done", "round_begin", "read_cancelled"})
_OF_THE_DISPATCHER: Final = frozenset(
    {
        *(
            "consumer_added",
            "consumer_removing",
            "consumer_removed",
            "all_disconnecting",
            "flow_applied",
            "read_attempt",
            "read_issued",
        ),
        *("read_done", "round_begin", "sent", "send_returned", "handover_scheduled", "read_cancelled"),
    }
)


@dataclass(slots=True)
class _Charge:
    """The charge of a send to its consumer; in ``returned`` the ``seq`` of ``send_returned``, once it stands.

    ``less``: permits by which it may be lower, each with the ``seq`` of an ack.
    """

    sent: int  # seq
    permits: int
    less: dict[int, int] = field(default_factory=dict)
    returned: int | None = None

    def overlaps(self, seq: int) -> bool:
        """Check whether the line with ``seq`` stands before the send returns."""
        return self.returned is None or self.returned > seq


@dataclass(slots=True)
class _Rewound:
    """A rewind, or the end of a read, while reads were in flight: the read position may be any of ``positions``.

    It is so until a read is done that was issued after it (``seq``).
    """

    seq: int
    positions: set[int]


class SingleActiveVerifier(PositionsDriver, ActiveChangeVerifier):
    """Verify flow, reads, rounds and acknowledgements; the base class verifies membership."""

    state_fields: ClassVar[Fields] = STATE_FIELDS
    section_kinds: ClassVar[frozenset[str]] = _OF_THE_DISPATCHER

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, facts: TraceFacts) -> None:
        super().__init__(log, profile, entries, facts)
        self._attempts_shown = facts.attempts_logged
        self._cursor_ops_logged = facts.cursor_ops_logged
        self._attempt: Attempt | None = None
        self._owed: Line | None = None  # flow that has to lead to a read attempt
        self._results: deque[tuple[int, ...]] = deque()  # dispatched by the core, no round yet
        self._round: tuple[Line, tuple[int, ...]] | None = None  # begun, its entries not sent yet
        self._flows = FlowHistory()
        # Consumer → that of the last send to it; before it those that a flow which is being counted overlaps.
        self._charges: dict[int, list[_Charge]] = {}
        # Consumer → seq of its flow that is being counted: the line that shows its permits is to come.
        self._counting: dict[int, int] = {}
        self._counting_logged = facts.counting_logged
        # The read position before an ack on its way that moves mark-delete beyond it.
        self._read_before_ack: int | None = None
        self._rewound: _Rewound | None = None
        self._moving: tuple[int, int] | None = None  # line of a move of the cursor, mark-delete before it
        self._batch_ack_orders = BatchAckOrders()

    # See ``Driver``: lines that the thread of a connection writes. That of a redelivery request is the executor's.
    _before_flow = _before_flow_counted = _before_ack = PositionsDriver._effects_are_over

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """See ``Driver``: read results that wait for their round, and the round that is under way."""
        super()._change_ordinals(change)

        def changed(entries: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(entry if entry < 0 else change(entry) for entry in entries)

        self._results = deque(map(changed, self._results))
        if self._round is not None:
            self._round = self._round[0], changed(self._round[1])

    def finish(self, *, goes_on: bool = False) -> Tally:
        """End of the log: whatever is still open was cut off, not missed. ``goes_on``: see ``RacingDriver.finish``."""
        if self._round is not None:
            begun, entries = self._round
            if goes_on:
                self.tally.leave_out({"dispatch": len(entries)})
            elif self._complete and self.stopped is None:
                self._unsent()
            elif self.stopped is not None:
                self.tally.leave_unjudged("dispatch", len(entries), self.stopped[0])
            elif entries:
                self.tally.note(cut_off(begun))
                self.tally.settle("dispatch", len(entries), len(entries), "uncertain")
            self._round = None
        if self._complete and self.stopped is None:
            self._unmet(self._by_task)
            self._report_unmet_moves(acks=True)
        self._leave_cut_off(goes_on)
        self.tally.close(None if self.stopped is None else self.stopped[0])
        return self.tally

    # --- permits -------------------------------------------------------------------------------------------------

    def _on_flow(self, line: Line) -> None:
        consumer, permits = who(line), line.inputs["permits"]
        self.core.flow(consumer, permits)
        self._through(consumer)
        self._flows.arrived(consumer, line.seq, permits)
        if self._counting_logged:
            self._counting[consumer] = line.seq
        self._compare_state(line, "blocked", False)

    def _on_flow_counted(self, line: Line) -> None:
        """Compare the permits after a flow: sends may have been charged before it or after it, or one is being charged."""
        consumer = who(line)
        self._flows.counted(consumer, line.seq)
        since = self._counting.pop(consumer, line.seq)
        permits = self.core.permits.get(consumer)
        if permits is None:
            shown = sum(line.recorded[name] is not None for name in ("permits_after", "blocked_after"))
            self.tally.leave_unjudged(
                "state", shown, "a flow is counted for a consumer that is not connected"
            )
            return
        others, before = [], permits
        for charge in reversed(self._charges.get(consumer, ())):
            if charge.overlaps(since):
                before += charge.permits
                others.append((before, charge.sent))
        self._compare_state(line, "permits_after", permits, others)
        self._compare_state(line, "blocked_after", False)

    def _on_send_returned(self, line: Line) -> None:
        """Compare the permits after a send: flows that were counted since the send may be missing."""
        consumer = who(line)
        charges, permits = self._charges.get(consumer), self.core.permits.get(consumer)
        if not charges or charges[-1].returned is not None or permits is None:
            return
        charge = charges[-1]
        charge.returned = line.seq
        others = list(self._flows.other_permits(consumer, permits, charge.sent))
        recorded, known = line.recorded["permits_after"], {permits, *(value for value, _ in others)}
        if recorded is not None and recorded not in known:
            less = next((less for less in charge.less if recorded - less in known), None)
            if less is not None:
                others.append((recorded, charge.less[less]))
                self.core.charge_less(consumer, less)
        self._compare_state(line, "permits_after", permits, others)

    def _compare_state(
        self, line: Line, name: str, expected: object, others: Sequence[tuple[object, int]] = ()
    ) -> None:
        """Compare a field that a line has; ``others``: values that an overlapping command gives, each with its line."""
        recorded = line.recorded[name]
        if recorded is None:
            return
        if recorded == expected:
            self.tally.exact("state")
            return
        seq = next((seq for value, seq in others if value == recorded), None)
        racing = None if seq is None else (seq, f"the command at seq {seq} overlaps the value")
        self._differ("state", f"{name} {expected}", str(recorded), racing=racing)

    def _on_flow_applied(self, line: Line) -> None:
        self._executor_line()
        arrived = self._flows.applied(who(line))
        while self._redeliveries and self._redeliveries[0].seq < arrived:
            self._redeliveries.popleft()  # the executor keeps the order: it has had its effect, or was not heard
        if self._attempts_shown and self.core.flow_reads(who(line)) and line.t_us > self._tail_until_us:
            self._owed = line

    def _through(self, consumer: int) -> None:
        """Another command of this connection: the flow and the acks before it have had their effect."""
        self._flows.counted(consumer, self._line.seq)
        self._acks.through(consumer, self._line.seq)

    # --- reads ---------------------------------------------------------------------------------------------------

    def _executor_line(self) -> None:
        """Take a line of the dispatcher's executor: its earlier work is done, and its own attempt has issued its read."""
        self._unsent()
        self._task_is_through()
        attempt, owed = self._attempt, self._owed
        self._owed = None
        if owed is not None and self.core.flow_reads(who(owed)):
            self._differ("read", "flow leads to a read attempt", "none", decisions=0)
        if attempt is None or attempt.rewinder:
            return
        self._attempt = None
        consumer = attempt.line.consumer
        if attempt.size is not None and self.core.would_read(consumer) is not None and not attempt.limited:
            racing = self._racing_flow(
                consumer, attempt.line.seq, lambda permits: self.core.would_read(consumer, permits) is None
            )
            self._differ("read", f"read of at most {attempt.size}", "no read", decisions=0, racing=racing)

    def _on_read_attempt(self, line: Line) -> None:
        rewinder = self._attempts_after_rewind()
        if not rewinder:
            self._owed = None
            self._executor_line()
        if self.core.pending and self._next_of(("read_attempt", "read_issued", "read_done")) == "read_issued":
            self._take_failed_read()
        earlier = self._attempt
        if earlier is None or earlier.size is None or self.core.would_read(earlier.line.consumer) is None:
            limited = self._rate_may_hold()
            self._attempt = Attempt(line, self.core.would_read(line.consumer), rewinder, limited)

    def _on_read_issued(self, line: Line) -> None:
        attempt, self._attempt = self._attempt, None
        self._owed = None
        self._no_rewind_due()
        recorded = line.recorded["max_entries"]
        consumer = self.core.active
        if attempt is None and self._attempts_shown and line.t_us > self._tail_until_us:
            self._differ("read", "no read without an attempt", f"read of at most {recorded}")
            self._compare_positions(line)
            self._issue(line)
            return
        expected = self.core.would_read(consumer)
        if expected is not None and attempt is not None and attempt.line.consumer == consumer:
            expected = attempt.size or expected  # permits are looked at when the attempt begins
        self._compare_positions(line)
        if expected == recorded:
            self.tally.exact("read")
            self._limits.full_read(recorded)
            self._issue(line, recorded)  # flows may have been counted since the attempt began
            return
        if expected is not None and recorded < expected and self._rate_may_hold():
            self.tally.leave_unjudged("read", 1, REASON_OF_RATE)
            self._issue(line, recorded)
            return
        since = attempt.line.seq if attempt is not None else line.seq
        described = "no read" if expected is None else f"read of at most {expected}"
        racing = self._racing_flow(
            consumer, since, lambda permits: self.core.would_read(consumer, permits) == recorded
        )
        broken = self._broken_connection(consumer, recorded) if racing is None else None
        self._differ("read", described, f"read of at most {recorded}", racing=racing or broken)
        self._issue(line, None if broken is None else recorded)

    def _broken_connection(self, consumer: int | None, recorded: int) -> tuple[int, str] | None:
        """Find the removal that comes soon of a consumer whose connection has broken: it is not writable until then."""
        removal = None if consumer is None else self._removal_ahead(consumer)
        if consumer is None or removal is None or not self.core.is_connected(consumer):
            return None
        self.core.set_writable(consumer, writable=False)
        size = self.core.would_read(consumer)
        self.core.set_writable(consumer, writable=True)
        return (removal.seq, "its connection may have broken before") if size == recorded else None

    def _racing_flow(
        self, consumer: int | None, since: int, answers: Callable[[int], bool]
    ) -> tuple[int, str] | None:
        """Find a flow that overlaps the decision begun at ``since`` and gives the recorded answer in another order."""
        if consumer is not None:
            for permits, seq in self._flows.other_permits(consumer, self.core.permits[consumer], since):
                if answers(permits):
                    return seq, "this flow was counted while the decision was made"
        return None

    def _issue(self, line: Line, at_most: int | None = None) -> None:
        if self.core.attempt_read(self.core.active, at_most, self._start_of(line)) is not None:
            self._issued_at.append(line.seq)

    def _start_of(self, read_issued: Line) -> int | None:
        """Return the read position that the issue of a read shows, ``None`` if it shows none."""
        shown = read_issued.recorded["read_position"]
        return None if shown is None else self._read_from(shown)

    def _on_read_done(self, line: Line) -> None:
        self._executor_line()
        self._attempt = None
        self._undispatched()
        read = self._read_of(line)
        issued_at = self._issued_at[read] if self._issued_at else 0
        positions = line.inputs["positions"]
        maybe = frozenset(entry for entry in positions if self._acks.may_be_after(entry, issued_at))
        reader = self.core.reader_of(read)
        result = self.core.read_done(positions, maybe, read)
        self._read_before_ack = None
        self._batch_ack_orders.read(entry for entry in positions if entry >= 0)
        if self._issued_at:
            del self._issued_at[read]
        self._note_overlap(line, issued_at)
        if line.consumer not in (None, reader):
            self._differ("dispatch", f"a read for consumer {reader}", f"for {line.consumer}", decisions=0)
        if result.entries is not None:
            self._results.append(result.entries)
        elif result.rewound:
            self._before_rewind = line.seq, self._position_behind_read(line)
            self._rewinds += 1
            self._expect_notices(result.notified, Sender.EXECUTOR)
        self._compare_read_done(line, rewound=result.rewound)

    def _read_of(self, line: Line) -> int:
        """Return which read in flight a ``read_done`` line ends, the oldest is 0."""
        if self.core.reads_in_flight <= MOST_WAITING:
            return 0
        dispatched = self._next_of(("round_begin", "read_done", "read_issued")) == "round_begin"
        return self.core.read_of_result(line.inputs["positions"], line.consumer, dispatched=dispatched)

    def _next_of(self, kinds: tuple[str, ...]) -> str | None:
        """Return the kind of the next line that is of one of ``kinds``."""
        return next((line.kind for line in self._later_lines() if line.kind in kinds), None)

    def _note_overlap(self, line: Line, issued_at: int) -> None:
        """Take the end of a read: where reads overlap, or a rewind, any of them may have moved the read position last."""
        if self._rewound is None or issued_at > self._rewound.seq:
            self._rewound = None
        else:
            self._rewound.positions.update(self._reached)
        if self._issued_at and self._reached:
            known = set() if self._rewound is None else self._rewound.positions
            self._rewound = _Rewound(line.seq, known | {*self._reached})

    # --- rounds --------------------------------------------------------------------------------------------------

    def _undispatched(self) -> None:
        """Report read results that should have begun a round before the next read completed."""
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
        self._compare_positions(line)
        self._compare_state(line, "type", "Normal")
        self._compare_state(line, "positions", list(entries))

    def _unsent(self) -> None:
        """Something else runs under the dispatcher's lock: the round before it should have sent."""
        open_round, self._round = self._round, None
        if open_round is not None and open_round[1] and self.core.active is not None:
            entries = open_round[1]
            consumer, _ = self.core.send(entries)
            self._charges.pop(consumer, None)
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
        charge = _Charge(line.seq, before - self.core.permits[consumer], self._may_be_charged_less(expected))
        earlier = self._charges.get(consumer, ()) if consumer in self._counting else ()
        overlapping = (other for other in earlier if other.overlaps(self._counting[consumer]))
        self._charges[consumer] = [*overlapping, charge]
        sizes = [self.core.messages_of(entry) if entry >= 0 else None for entry in entries]
        self._compare_state(line, "batch_sizes", sizes)
        if (consumer, expected) == (line.consumer, entries) and -1 not in expected:
            self.tally.exact("dispatch", len(expected))
        else:
            missing, more = differing_entries(expected, entries)
            first = first_shown(expected, entries)
            self._differ(
                "dispatch",
                f"consumer {consumer} gets {self._positions(expected, first)}"
                + (f", also {self._positions(missing)}" if missing else ""),
                f"consumer {line.consumer} gets {self._positions(entries, first)}"
                + (f", also {self._positions(more)}" if more else ""),
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

    def _may_be_charged_less(self, entries: Sequence[int]) -> dict[int, int]:
        """Return by how many permits the charge of a send may be lower than in the plain order, or higher if negative.

        Acknowledged indexes of a batch are not charged. Each number comes with the ``seq`` of the ack that may have come
        before, or after.
        """
        sums: dict[int, int] = {0: 0}
        for entry in entries:
            of_others = [*sums.items()]
            for left, seq in self._batch_ack_orders.left_in_send(entry).items():
                size = self.core.messages_of(entry)
                more = (size - left.bit_count() if left else 0) - self.core.acked_indexes(entry)
                for less, other in of_others:
                    sums.setdefault(less + more, max(seq, other))
        del sums[0]
        return sums

    # --- acknowledgements ----------------------------------------------------------------------------------------

    def _on_ack(self, line: Line) -> None:
        self._through(who(line))
        cumulative = line.inputs["ack_type"] == "Cumulative"
        before, _ = self._plain_positions(line.seq)
        apply = self.core.acknowledge_up_to if cumulative else self.core.acknowledge
        for entry, words in acknowledged_by(line):
            if entry < 0:
                continue
            if words or entry in self._batch_ack_orders or self.core.acked_indexes(entry):
                ack = BatchAck(line.seq, who(line), line.t_us, words, cumulative)
                self._batch_ack_orders.arrived(ack, entry, self.core.unacked_indexes(entry))
            if words and cumulative and entry and self.core.acked_indexes(entry - 1):
                self._batch_ack_orders.passed(line.seq, entry - 1, self.core.unacked_indexes(entry - 1))
            first = int(self.core.state.s[MARK_DELETE]) + 1 if cumulative else entry
            known = self.core.state.deleted[first : entry + 1].copy()
            apply(entry, words)
            changed = first + np.flatnonzero(self.core.state.deleted[first : entry + 1] != known)
            for acknowledged in changed[:_FIRST_ENTRIES].tolist():
                self._on_their_way.arrived(Arrival(who(line), line.seq, acknowledged, line.t_us))
            if not len(changed) and self._on_their_way.seq_of(entry) is not None:
                # A cumulative one that is on its way has it, too: this one may come first, and its next entry be the first.
                behind = self._on_their_way.entry_behind(entry) or entry + 1
                self._effects_open.ack(who(line), line.seq, NOBODY, 0, entry=behind)
            if len(changed):  # a cumulative one moves mark-delete over all of them at once
                self._effects_open.ack(who(line), line.seq, NOBODY, 0, entry=int(changed[0]))
            # Not so if messages of its batch are left.
            if len(known) and self.core.state.deleted[entry] != known[-1]:
                self._acks.arrived(who(line), entry)
            if self._cursor_ops_logged and cumulative:
                self._move_by_ack(line, entry)
        if self._positions_now()[0] != before:
            self._read_before_ack = before

    # --- positions of the cursor ---------------------------------------------------------------------------------

    def _read_is_pending(self) -> bool:
        """See ``PositionsDriver``."""
        return self.core.pending

    def _read_size(self, read_done: Line | None = None) -> int:
        """See ``PositionsDriver``."""
        ends_here = read_done is not None and read_done is self._line
        return self.core.size_of_read(self._read_of(self._line) if ends_here else 0)

    def _read_position_racing(self, line: Line, recorded: int, mark_delete: int | None) -> int | None:
        """See ``PositionsDriver``. A read in flight moves the read position, also one that a rewind or a later read follows.

        If the log does not show the end of that read, it may have moved it anywhere ahead.
        """
        found = super()._read_position_racing(line, recorded, mark_delete)
        if found is not None:
            return found
        overlapping = self._moved_by_another_read(recorded)
        if overlapping is not None:
            return overlapping
        if self._rewinds and recorded == self._before_rewind[1]:
            return self._before_rewind[0]
        if self._moving is not None and recorded == self._moving[1] + 1:
            return self._moving[0]
        if not self._issued_at:
            return None
        ahead = recorded > self._plain_positions(line.seq)[0]
        return self._issued_at[0] if ahead and len(self._ends_of_reads()) < len(self._issued_at) else None

    def _moved_by_another_read(self, position: int) -> int | None:
        """See ``PositionsDriver``."""
        if self._rewound is not None and position in self._rewound.positions:
            return self._rewound.seq
        return self._moved_by_read(position)

    def _moved_by_read(self, position: int) -> int | None:
        """See ``PositionsDriver``. Several reads may be in flight: a rewind does not cancel one that does not wait.

        A part of a read may end anywhere among acknowledged entries, see ``_read_in_flight``.
        """
        reached = [ends for done in self._ends_of_reads() if (ends := self._behind(done))]
        moved = any(ends[0] <= position <= ends[-1] for ends in reached)
        return self._issued_at[0] if moved else None

    def _ends_of_reads(self) -> list[Line]:
        """Return the ``read_done`` lines of the reads in flight, as far as the log shows them.

        A read that is issued before they end, also by the present line, may end first.
        """
        reads, ends = self.core.reads_to_come(), list[Line]()
        if self._line.kind == "read_issued":
            reads.issued(self._line.recorded["max_entries"], self._start_of(self._line))
        of_reads = (line for line in self._later_lines() if line.kind in _OF_READS)
        for line, following in pairwise(chain(of_reads, [None])):
            if line is None or not reads.left:
                break
            if line.kind == "read_issued":
                reads.issued(line.recorded["max_entries"], self._start_of(line))
            elif line.kind == "read_done":
                dispatched = following is not None and following.kind == "round_begin"
                if reads.ends_first(line.inputs["positions"], line.consumer, dispatched=dispatched):
                    ends.append(line)
            elif line.kind == "read_cancelled" and line.inputs["cancelled"]:
                break
        return ends

    def _sampled_since(self, line: Line) -> int:
        """See ``PositionsDriver``. A cumulative acknowledgement reads the positions after its own line."""
        begun = self._begun(line) if line.kind == "cursor_op" else None
        if begun is not None:
            return begun.seq
        return line.seq - 1 if line.kind == "mark_delete" else self._section_at

    def _plain_positions(self, seq: int) -> tuple[int, int]:
        """See ``PositionsDriver``. An ack that has not reached the cursor has not moved the read position either."""
        read_position, mark_delete = super()._plain_positions(seq)
        if mark_delete == self._all_applied()[1]:
            self._read_before_ack = None
        if self._read_before_ack is not None:
            read_position = max(self._read_before_ack, mark_delete + 1)
        return read_position, mark_delete

    def _move_forward(self, line: Line, target: int) -> None:
        """See ``CursorDriver``. A move may take effect behind its line, until the line of mark-delete."""
        self._moving = line.seq, self._positions_now()[1]
        super()._move_forward(line, target)

    def _mark_delete_racing(self, line: Line, recorded: int) -> int | None:
        """See ``PositionsDriver``."""
        found = super()._mark_delete_racing(line, recorded)
        if found is None and self._moving is not None and recorded == self._moving[1]:
            return self._moving[0]
        return self._take_other_ack_order(line, recorded) if found is None else found

    def _take_other_ack_order(self, line: Line, mark_delete: int) -> int | None:
        """Take another order of the acks of a batch if it explains mark-delete; returns the line of the late ack."""
        now = self._positions_now()[1]
        entry = min(now, mark_delete) + 1
        if mark_delete > now and first_left(self.core.state, entry + 1) != mark_delete + 1:
            return None
        order = self._batch_ack_orders.settle(entry, line.t_us, acknowledged=mark_delete > now)
        if order is None:
            return None
        seq, left = order
        self.core.set_unacked_indexes(entry, left)
        return seq

    def _settle_mark_delete(self, line: Line, expected: int, recorded: int) -> int | None:
        """See ``PositionsDriver``."""
        racing = super()._settle_mark_delete(line, expected, recorded)
        self._batch_ack_orders.forget_up_to(recorded)
        return racing

    def _acks_are_over(self, connection: int) -> None:
        """See ``PositionsDriver``."""
        super()._acks_are_over(connection)
        self._batch_ack_orders.over(connection)

    def _change_cursor_ordinals(self, drop: int) -> None:
        """See ``CursorDriver``."""
        super()._change_cursor_ordinals(drop)
        self._batch_ack_orders.drop(drop)
        if self._read_before_ack is not None:
            self._read_before_ack -= drop
        self._before_rewind = self._before_rewind[0], self._before_rewind[1] - drop
        if self._moving is not None:
            self._moving = self._moving[0], self._moving[1] - drop
        if self._rewound is not None:
            self._rewound.positions = {position - drop for position in self._rewound.positions}

    def _reset(self, entry: int) -> None:
        """See ``CursorDriver``."""
        self._note_reset(entry)
        super()._reset(entry)

    def _on_consumer_added(self, line: Line) -> None:
        super()._on_consumer_added(line)
        self._compare_positions(line)

    def _on_consumer_removed(self, line: Line) -> None:
        super()._on_consumer_removed(line)
        self._compare_positions(line)

    def _on_mark_delete(self, line: Line) -> None:
        super()._on_mark_delete(line)
        self._moving = None
        self._compare_moved(line)

    def _compare_rewound(self, line: Line) -> None:
        read, reset = line.recorded["read_position"], self._reset_under_way
        before_reset = None if reset is None else reset.mark_delete + 1
        if read is None or (
            self._read_from(read) != before_reset and self._moved_by_read(self._read_from(read)) is None
        ):
            ActiveChangeVerifier._compare_rewound(self, line)
        super()._compare_rewound(line)
        if self._issued_at:
            known = set() if self._rewound is None else self._rewound.positions
            self._rewound = _Rewound(line.seq, known | {self._plain_positions(line.seq)[1] + 1})

    def class_of(self, kind: str) -> str:
        """Membership lines belong to the choice, all others to dispatch."""
        return "active" if kind.startswith("consumer_") else "dispatch"
