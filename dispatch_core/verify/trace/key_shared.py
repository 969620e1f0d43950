"""Verify a trace of a Key_Shared dispatcher of 4.x, line by line.

The driver gives each line's inputs to ``KeySharedDispatcher``. Read attempts, rounds and membership changes are windows
(see ``racing``): decided as a whole and compared with all their lines. What else the core answers, the releases that
follow an ack, is kept as *expectations* that the lines to come meet or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.broker import hashing
from dispatch_core.broker.key_shared import KeySharedDispatcher, Leave
from dispatch_core.broker.multiple_consumers import Between, Read, Round
from dispatch_core.broker.profiles import OrderingRule, Profile
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError
from dispatch_core.recording.batch_sizes import batch_sizes
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.late_entries import LateEntries
from dispatch_core.verify.trace.limits_in_force import (
    REASON_OF_DELAY,
    REASON_OF_RATE,
    DeliverTimes,
)
from dispatch_core.verify.trace.races import Command, Difference, Outcome
from dispatch_core.verify.trace.racing import NEXT_SECTION, Effects, Window
from dispatch_core.verify.trace.reads import ReadsUnderWay
from dispatch_core.verify.trace.recorded import (
    Recorded,
    Sent,
    differing_adds,
    differing_items,
    differing_read,
    differing_round,
)
from dispatch_core.verify.trace.shown_state import ShownStateDriver

#: Number of entries before which the scan of the replay set pauses, at most: each makes more orders to try.
MAX_PAUSES: Final = 8


class KeySharedVerifier(ShownStateDriver):
    """State of one verification: the core, what is expected of the coming lines, and the tally."""

    core: KeySharedDispatcher
    dispatcher: ClassVar[type[KeySharedDispatcher]] = KeySharedDispatcher

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, facts: TraceFacts) -> None:
        super().__init__(entries, facts, profile, tracked=profile.ordering is OrderingRule.DRAINING_HASHES)
        self.hashes = _hashes_of(log.messages, profile)
        self.core = self.dispatcher(profile, self.hashes, batch_sizes(log.messages), facts.consumers_added)
        self.core.know_ledgers(entries.start_of_ledger)
        # read results waiting for their round: type, entries, how many more that the message log does not hold
        self._results: deque[tuple[str, list[int], int]] = deque()
        # Traces of a heavy load leave read attempts out: they are then inferred from the first line that shows one.
        self._attempts_logged = facts.attempts_logged
        self._late_entries = LateEntries(log.messages)
        self._deliver_times = DeliverTimes(log.messages)
        self._reads = ReadsUnderWay()
        # Consumer → ranges of its subscribe command.
        self._announced: dict[int, list[tuple[int, int]] | None] = {}

    def extend(self, drop: int, messages: pa.Table) -> None:
        """See ``Driver.extend``."""
        if drop:
            self._change_ordinals(lambda entry: entry - drop)
            self._change_cursor_ordinals(drop)
        hashes = _hashes_of(messages, self.core.profile)
        self.hashes = np.concatenate([self.hashes[drop:], hashes])
        self.core.extend(drop, hashes, batch_sizes(messages))
        self._late_entries.drop(drop)
        self._late_entries.add(messages)
        self._deliver_times.drop(drop)
        self._deliver_times.add(messages)
        self._take_acked_before()
        self._moved_between_lines()

    def _settled(self) -> int:
        """See ``Driver``."""
        return self.core.droppable()

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """See ``Driver``: read results that wait for their round."""
        super()._change_ordinals(change)
        self._results = deque((kind, [*map(change, entries)], more) for kind, entries, more in self._results)

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_consumer_added(self, line: Line) -> None:
        self._settle_all()
        ranges = line.inputs["ranges"]
        self._announced[who(line)] = None if ranges is None else [(r["start"], r["end"]) for r in ranges]
        self.core.join(who(line), line.inputs["name"], line.inputs["priority_level"] or 0)
        if self._compare_positions(line):
            self._read_moved_on()

    def _read_moved_on(self) -> None:
        """Take note that a read in flight has moved the read position already; nothing depends on it, here."""

    def _on_selector_added(self, line: Line) -> None:
        self._compare_selector(line)
        self._settle_all()
        consumer = who(line)
        try:
            moved = self.core.select_in(consumer, self._announced.get(consumer))
        except SelectorRefusedError as error:
            self._differ("subscribe", str(error), f"consumer {consumer} added")
            self.core.refuse(consumer)
            return
        self.tally.exact("subscribe")
        window = self._section()
        recorded = self._membership_lines(window)
        outcome = self._decide(
            window,
            2,
            lambda between: self.core.register(moved, consumer, between),
            lambda answer: differing_adds(answer[0], recorded),
        )
        self._judge(window, outcome)
        self._expect_by(outcome.answer[1], window)

    def _on_selector_refused(self, line: Line) -> None:
        self._compare_selector(line)
        consumer = who(line)
        try:
            self.core.select_in(consumer, self._announced.get(consumer))
        except SelectorRefusedError:
            self.tally.exact("subscribe")
        else:
            self.core.select_out(consumer)
            self._differ("subscribe", f"consumer {consumer} added", "refused")
        self.core.refuse(consumer)

    def _on_selector_removed(self, line: Line) -> None:
        self._compare_selector(line)
        self._settle_all()
        consumer = who(line)
        moved = self.core.select_out(consumer)
        window = self._section()
        recorded = self._membership_lines(window, leaving=consumer)

        def differences(left: Leave) -> list[Difference]:
            closed = [(item.hash, item.ref_count_before) for item in left.closed]
            return [
                *differing_items("closing release (hash, count before)", closed, recorded.closed),
                *differing_adds(left.draining, recorded),
            ]

        outcome = self._decide(
            window, 3, lambda between: self.core.drop(consumer, moved, between), differences
        )
        self._judge(window, outcome)
        self._expect_by(outcome.answer.returned, window)
        if outcome.answer.cleared:
            self._close_totals()
            self._clear_due = self._tracked
        # An ack of what the consumer held, not in effect when it left, finds nothing pending any more.
        self._finish_acks_of_nobody()

    def _membership_lines(self, window: Window, leaving: int | None = None) -> Recorded:
        recorded = Recorded()
        for at, line in self._within(window.end):
            if line.kind == "draining_add":
                recorded.adds.setdefault(who(line), []).append((line.recorded["hash"], line.seq))
            elif line.kind == "draining_release" and line.recorded["closing"] and who(line) == leaving:
                item = (line.recorded["hash"], line.recorded["ref_count_before"])
                recorded.closed.append((item, line.seq))
            else:
                continue
            window.count("draining")
            self._judged.add(at)
        return recorded

    # --- reads ---------------------------------------------------------------------------------------------------

    def _on_read_attempt(self, line: Line) -> None:
        self._attempt(self._frame(line, "read_attempt_end"))

    def _attempt(self, window: Window, *, including: bool = False) -> None:
        """Verify one read attempt; ``including``: the present line is one of its recorded lines."""
        if self.core.trims_in_attempts() and (self._moves_under_way() or self.core.overtaken()):
            self._take_acks_before_trim(self._within(window.end))
        recorded = self._attempt_lines(window, including=including)
        rated, limited = self._rate_may_hold(), list[Difference]()  # decisions that a dispatch rate explains

        pauses = self._pauses(recorded)

        def decide(between: Between) -> Read:
            limited.clear()
            if not rated:
                return self.core.attempt_read(between, pauses=pauses)
            return self._attempt_under_rate(between, recorded, limited)

        outcome = self._decide(
            window, 3 + len(pauses), decide, lambda read: differing_read(read, recorded, self._positions)
        )
        if rated and outcome.explained and not limited:
            self._limits.full_read(recorded.read.max_entries or len(recorded.read.entries))
        for difference in limited:
            window.leave_unjudged(difference.decision_class, difference.decisions, REASON_OF_RATE)
        self._reads.attempted(outcome.answer)
        self._refused = self._at, list(outcome.answer.refused)
        if self.core.trimmed:
            self._expect_by(self.core.trimmed, window)
            self._finish_acks_of_nobody()
        self._judge(window, outcome)

    def _pauses(self, recorded: Recorded) -> list[int]:
        """Return entries before which the scan of the replay set may have found a hash released that it had held back.

        Clients' threads release hashes while the scan runs. The positions of such a hash that were held back stand in front
        of the release; with the memory of #23874 the others are held back, too.
        """
        pauses = set()
        for hash_value in recorded.released:
            held_back = recorded.held_back[hash_value]
            following = self.core.replay_positions(hash_value)[held_back:]
            if following and not (held_back and self.core.remembers_blocked_hashes()):
                pauses.add(following[0])
        return sorted(pauses)[:MAX_PAUSES]

    def _attempt_under_rate(self, between: Between, recorded: Recorded, limited: list[Difference]) -> Read:
        """Attempt a read by the rules, and if that is not what the log has, one of at most as many entries as it has."""
        saved = self.core.save()
        read = self.core.attempt_read(between)
        found = differing_read(read, recorded, self._positions)
        if not found:
            return read
        said = recorded.read
        self.core.restore(saved)
        self._effects = Effects()
        capped = self.core.attempt_read(between, said.max_entries or len(said.entries))
        if not differing_read(capped, recorded, self._positions):
            limited += found
            return capped
        self.core.restore(saved)
        self._effects = Effects()
        return self.core.attempt_read(between)

    def _limits_changed(self) -> None:
        """See ``CursorDriver``. Acks that have begun to take effect are tested against the limit before."""
        self._finish_acks()
        self.core.limit_unacked(self._limits.unacked())

    def _attempt_lines(self, window: Window, *, including: bool) -> Recorded:
        recorded = Recorded()
        own = [(self._at, self._line)] if including else []
        for at, line in [*own, *self._within(window.end)]:
            if line.kind in ("read_issued", "replay_read_issued") and recorded.read_seq:
                continue  # an attempt issues one read: this line belongs to no attempt
            if line.kind == "read_issued":
                recorded.read = Read("Normal", max_entries=line.recorded["max_entries"])
                recorded.read_seq = line.seq
                window.count("read")
            elif line.kind == "replay_read_issued":
                recorded.read = Read("Replay", entries=tuple(line.recorded["positions"]))
                recorded.read_seq = line.seq
                window.count("read")
            elif line.kind == "draining_blocked":
                recorded.blocked.append(((who(line), line.recorded["hash"]), line.seq))
                recorded.held_back[line.recorded["hash"]] += 1
                window.count("draining")
            elif line.kind == "replay_already_deleted":
                recorded.already_deleted = line.recorded["positions"]
                recorded.deleted_seq = line.seq
                window.count("state")
            else:
                if line.kind == "read_done":
                    recorded.results.setdefault(line.inputs["type"], line.seq)
                elif line.kind == "draining_release" and line.recorded["ref_count_before"] == 1:
                    recorded.released.add(line.recorded["hash"])
                continue
            self._judged.add(at)
        self._judged.discard(self._at)
        return recorded

    def _on_read_issued(self, line: Line) -> None:
        self._inferred_attempt(line)
        self._compare_positions(line)

    def _on_replay_read_issued(self, line: Line) -> None:
        self._inferred_attempt(line)

    def _on_draining_blocked(self, line: Line) -> None:
        self._inferred_attempt(line)

    def _inferred_attempt(self, line: Line) -> None:
        """Verify a line of an attempt that the trace does not frame."""
        if self._attempts_logged:
            decision_class = "draining" if line.kind == "draining_blocked" else "read"
            self._differ(decision_class, "nothing outside a read attempt", line.kind)
            return
        end = self._inferred_end(line)
        following = self._lines.between(end + 1, self._lines.horizon(self._at))
        end += int(next((other.kind for _at, other in following), "") == "replay_already_deleted")
        self._attempt(Window(line, end), including=True)

    def _inferred_end(self, line: Line) -> int:
        """Return the last line of an attempt that the trace does not frame: its read, or its last refusal if none comes.

        The core decides between the two, on a copy.
        """
        if line.kind != "draining_blocked":
            return self._at
        saved = self.core.save()
        read = self.core.attempt_read()
        self.core.restore(saved)
        refusals = 0
        end = self._at
        for at, following in self._lines.between(self._at, self._lines.horizon(self._at)):
            kind = following.kind
            if kind in ("read_issued", "replay_read_issued"):
                return at if read.kind in ("Normal", "Replay") else end
            if kind in NEXT_SECTION:
                break
            if kind == "draining_blocked" and refusals < max(len(read.refused), 1):
                refusals += 1
                end = at
        return end

    def _on_read_cancelled(self, line: Line) -> None:
        if line.inputs["cancelled"]:
            self._reads.cancelled()
            self.core.read_cancelled()

    def _on_read_done(self, line: Line) -> None:
        kind, positions = line.inputs["type"], line.inputs["positions"]
        entries = [entry for entry in positions if entry >= 0]
        if not self._reads.completes(kind):
            self._differ("read", "no such read under way", f"a {kind.lower()} read completes", decisions=0)
        if line.recorded["hashes"] is not None:
            self._compare_hashes(positions, self.hashes, line.recorded["hashes"])
        taken = self.core.read_done(kind, entries)
        if taken:
            self._results.append((kind, entries, len(positions) - len(entries)))
        self._compare_read_done(line, rewound=not taken)

    # --- rounds --------------------------------------------------------------------------------------------------

    def _on_round_begin(self, line: Line) -> None:
        if not self._results:
            raise IllegalTransitionError(
                "a round without a read result", rule="a round dispatches one read result"
            )
        kind, entries, unknown = self._results.popleft()
        self.tally.rounds += 1
        if self._deliver_times.any_later(entries, line.t_us):
            self._stop_judging(REASON_OF_DELAY)
            self._leave(line)
            return
        self._compare_result(line, kind, entries, unknown)
        self._compare_positions(line)
        window = self._frame(line, "round_end")
        recorded = self._round_lines(window)
        sent_to = {sent.consumer for sent in recorded.sent}.intersection(self.core.connected())
        late = self._late_commands()
        before = {consumer: self._plain_counters(consumer, late) for consumer in sent_to}
        window.count("dispatch", len(entries) + unknown)
        has_more = recorded.end is not None and bool(recorded.end.inputs["has_more"])

        def decide(between: Between) -> Round:
            outcome = self.core.round(kind, entries, between)
            outcome.look_ahead = self.core.finish_round(outcome, has_more=has_more)
            self._go_on(outcome, window)
            return outcome

        outcome = self._decide(
            window, 3, decide, lambda answer: differing_round(answer, entries, recorded, self._positions)
        )
        self._refused = self._at, outcome.answer.refused
        self._charged(outcome.answer, window, before)
        if unknown:
            outcome.plain.append(
                Difference(
                    "dispatch", "entries of the message log", f"{unknown} that it does not hold", unknown
                )
            )
            outcome.explained = False
        if recorded.end is not None:
            self._settle_has_more(outcome, recorded.end)
        self._judge(window, outcome)
        self._open_totals(window, outcome.answer)
        if not self._attempts_logged and outcome.answer.look_ahead:
            self._expect_look_ahead()

    def _on_sent(self, line: Line) -> None:
        """Report a delivery outside a round: the lines of a round are compared with it."""
        got = self._positions(line.recorded["positions"])
        self._differ("dispatch", "nothing outside a round", f"consumer {who(line)} gets {got}", decisions=0)

    def _on_round_end(self, _line: Line) -> None:
        """Report the end of no round."""
        self._differ("round", "no round to end", "a round ends", decisions=0)

    def _compare_result(self, line: Line, kind: str, entries: list[int], unknown: int) -> None:
        """Compare the read result that a round dispatches: its type and its entries."""
        self._compare_fixed(line, "type", kind, line.recorded["type"])
        positions = line.recorded["positions"]
        same = positions is not None and [entry for entry in positions if entry >= 0] == entries
        if same and len(positions) == len(entries) + unknown:
            self.tally.exact("state")
        elif positions is not None:
            self._differ(
                "state", f"a round of {self._positions(entries)}", f"of {self._positions(positions)}"
            )

    def _go_on(self, outcome: Round, window: Window) -> None:
        """Apply what the lines of a window show about the end of the round: which sends were written by then."""
        self._take_written(window, outcome)

    def _expect_look_ahead(self) -> None:
        """Make the attempt of a round that looks ahead if it led to no read, so that no line shows it."""
        at = self._section().end + 1
        kind = self._lines[at].kind if at < len(self._lines) else "end"
        if kind not in ("read_issued", "replay_read_issued"):
            self.core.attempt_read()

    def _round_lines(self, window: Window) -> Recorded:
        recorded = Recorded()
        for at, line in self._within(window.end):
            if line.kind == "sent":
                before = line.recorded["permits_before"]
                recorded.sent.append(Sent(who(line), line.recorded["positions"], before, line.seq))
                if before is not None:
                    window.count("permits")
            elif line.kind == "draining_blocked":
                recorded.blocked.append(((who(line), line.recorded["hash"]), line.seq))
                window.count("draining")
            elif line.kind == "pending_ack_refused":
                recorded.not_taken.append(line)
                window.count("state")
            elif line.kind == "round_end":
                recorded.end = line
                window.count("replay_set")
                window.count("round")
            else:
                continue
            self._judged.add(at)
        return recorded

    def _settle_has_more(self, outcome: Outcome[Round], end: Line) -> None:
        """``has_more`` is sampled at the end of the round; an entry stored since the decision makes it true too late."""
        if outcome.explained or [d.decision_class for d in outcome.plain] != ["round"]:
            return
        answer = outcome.answer
        if (
            self.core.look_ahead_needs_more()
            and self._late_entries.may_have_come(self.core.state, self._line.t_us)
            and answer.look_ahead
            and not end.recorded["look_ahead"]
            and end.recorded["retry"] == (not answer.sent)
        ):
            self.core.no_look_ahead()
            answer.look_ahead = False
            outcome.explained = True
            outcome.racing = Command(end.seq, 0, "an entry stored after the decision, seen by has_more,")

    # --- draining ------------------------------------------------------------------------------------------------

    def _on_draining_add(self, line: Line) -> None:
        self._differ(
            "draining", "no hash begins to drain", f"consumer {line.consumer}: {line.recorded['hash']}"
        )

    # --- reporting -----------------------------------------------------------------------------------------------

    def class_of(self, kind: str) -> str:
        """Return the class of decision for an illegal line of this kind."""
        return _CLASS_OF.get(kind, "dispatch")


def _hashes_of(messages: pa.Table, profile: Profile) -> npt.NDArray[np.int64]:
    """Return the sticky key hash of each entry."""
    return profile.hash_space.sticky_array(hashing.entry_h31(messages, fallback=profile.fallback_key))


_CLASS_OF = {
    "pending_ack_removed": "draining",
    "selector_added": "subscribe",
    "selector_removed": "subscribe",
    "consumer_added": "subscribe",
}
