"""Verify a trace of a Key_Shared dispatcher of 4.x, line by line.

The driver gives each line's inputs to ``KeySharedDispatcher``. Read attempts, rounds and membership changes are windows
(see ``racing``): decided as a whole and compared with all their lines. What else the core answers, the releases that
follow an ack, is kept as *expectations* that the lines to come meet or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dispatch_core import hashing
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError
from dispatch_core.key_shared import KeySharedDispatcher, Leave
from dispatch_core.multiple_consumers import Between, Read, Released, Round
from dispatch_core.profiles import OrderingRule, Profile
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.driver import who
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.late_entries import LateEntries
from dispatch_core.verify.races import Command, Difference, Outcome
from dispatch_core.verify.racing import NEXT_SECTION, RacingDriver, Window
from dispatch_core.verify.reads import ReadsUnderWay
from dispatch_core.verify.recorded import (
    Recorded,
    Sent,
    differing_adds,
    differing_items,
    differing_read,
    differing_round,
)
from dispatch_core.verify.releases import Releases

#: Kinds that a connection's thread writes when the command before is done.
_OF_A_CONNECTION = frozenset({"flow", "ack", "redeliver"})


@dataclass(frozen=True, slots=True)
class _Redelivered:
    """What a redelivery request still does after the dispatcher has put its entries into the replay set."""

    messages: int
    everything: bool


class KeySharedVerifier(RacingDriver):
    """State of one verification: the core, what is expected of the coming lines, and the tally."""

    core: KeySharedDispatcher
    dispatcher: ClassVar[type[KeySharedDispatcher]] = KeySharedDispatcher

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, lines: list[Line]) -> None:
        super().__init__(entries, lines)
        consumers = sum(line.kind == "consumer_added" for line in lines)
        h31 = hashing.entry_h31(log.messages, fallback=profile.fallback_key)
        self.hashes = profile.hash_space.sticky_array(h31)
        batch = np.asarray(log.messages["num_messages"].combine_chunks()).astype(np.int64)
        self.core = self.dispatcher(profile, self.hashes, batch, consumers)
        # (consumer, hash) that draining held back at the last line
        self.refused_now: list[tuple[int, int]] = []
        # read results waiting for their round: type, entries, how many more that the message log does not hold
        self._results: deque[tuple[str, list[int], int]] = deque()
        self._acks: dict[int, Command] = {}  # entry → the ack that arrived and has had no effect yet
        self._removed: dict[int, list[int]] = {}  # consumer → entries let go for a redelivery request to come
        self._requests: dict[int, deque[Line]] = {}  # consumer → its redelivery requests to come
        for line in lines:
            if line.kind == "redeliver" and line.consumer is not None:
                self._requests.setdefault(line.consumer, deque()).append(line)
        # Traces of a heavy load leave read attempts out: they are then inferred from the first line that shows one.
        self._attempts_logged = any(line.kind == "read_attempt" for line in lines)
        self._late_entries = LateEntries(log.messages)
        self._reads = ReadsUnderWay()
        self._releases = Releases(tracked=profile.ordering is OrderingRule.DRAINING_HASHES)
        self._announced: dict[
            int, list[tuple[int, int]] | None
        ] = {}  # consumer → ranges of its subscribe command
        self._trimmed: dict[
            int, Released
        ] = {}  # entries an attempt dropped because mark-delete had passed them
        self._ahead: Read | None = (
            None  # of an attempt that a look-ahead makes at once, where attempts are not logged
        )

    def feed(self, line: Line) -> None:
        """Take one line; see ``Driver.feed``."""
        self.refused_now = []
        self._line = line
        own = line.consumer if line.kind in _OF_A_CONNECTION else None
        self._report_missing(self._releases.missing(connection=own, at=self._at + 1))
        super().feed(line)

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_consumer_added(self, line: Line) -> None:
        self._settle_all()
        ranges = line.inputs["ranges"]
        self._announced[who(line)] = None if ranges is None else [(r["start"], r["end"]) for r in ranges]
        self.core.join(who(line), line.inputs["name"], line.inputs["priority_level"] or 0)

    def _on_selector_added(self, line: Line) -> None:
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
        self._releases.expect(outcome.answer[1], until=window.end)

    def _on_selector_refused(self, line: Line) -> None:
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
        self._releases.expect(outcome.answer.returned, until=window.end)
        # An ack of what the consumer held, not in effect when it left, finds nothing pending any more.
        for entry in [e for e in self._acks if self.core.holder(e) is None]:
            command = self._acks.pop(entry)
            self._forget(command)
            if not command.applied:
                self.core.acknowledge(entry)

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

    # --- acks and redelivery -------------------------------------------------------------------------------------

    def _on_ack(self, line: Line) -> None:
        connection = self.connection(who(line))
        self._settle(connection)
        if line.inputs["ack_type"] != "Individual":
            return  # cumulative acks mean nothing to Key_Shared
        sets = line.inputs["ack_sets"] or []
        for at, entry in enumerate(line.inputs["positions"]):
            if entry < 0:
                continue
            words = sets[at] if at < len(sets) else None
            command = self._arrival(line, entry)
            if command.applied:
                if command.result is not None:  # its removal's line is to come
                    connection.waiting.append(command)
                    self._acks[entry] = command
                continue
            if words:
                self._acknowledge_indexes(entry, words)
            elif self.core.holder(entry) is None:
                self.core.acknowledge(entry)
            else:
                connection.waiting.append(command)
                self._acks[entry] = command

    def _acknowledge_indexes(self, entry: int, words: Sequence[int]) -> None:
        holder, newly = self.core.holder(entry), self.core.acknowledge_indexes(entry, words)
        if holder is not None and newly:
            self.core.lower_unacked(holder, newly)

    def begin_command(self, command: Command) -> object:
        """An ack: the pending ack goes, the counters of its holder follow, the cursor deletes."""
        holder = self.core.holder(command.entry)
        if holder is None:
            self.core.acknowledge(command.entry)
            return None
        messages = self.core.unacked_messages(command.entry)
        released = self.core.pending_ack_removed(command.entry)
        self.core.ack_begins(holder)
        self.core.ack_ends(holder, messages)
        self.core.acknowledge(command.entry)
        return released

    def finish_command(self, command: Command) -> None:
        """The counters of the holder, then the cursor; of a redelivery request, the counters."""
        if isinstance(command.result, _Redelivered):
            asked = command.result
            self.core.redelivered(command.connection, asked.messages, everything=asked.everything)
            return
        assert isinstance(command.result, tuple), "an ack that took effect knows its holder"
        holder, messages = command.result
        self.core.ack_ends(holder, messages)
        self.core.acknowledge(command.entry)

    def _on_pending_ack_removed(self, line: Line) -> None:
        for recorded in line.recorded["positions"]:
            entry = self._removed_entry(who(line))
            if entry is None or entry != recorded:
                said = self._positions([recorded])
                expected = "none" if entry is None else self._positions([entry])
                self._differ("draining", f"pending ack removed: {expected}", said, decisions=0)
                continue
            trimmed = self._trimmed.pop(entry, None)
            if trimmed is not None:
                self._releases.expect([trimmed], until=self._section().end)
                continue
            command = self._acks.pop(entry, None)
            by = None if command is None else command.connection
            self._report_missing(self._releases.missing(connection=by))
            if command is not None and command.applied:
                self._forget(command)
                if isinstance(command.result, Released):
                    self._releases.expect([command.result], connection=command.connection)
                continue
            if command is not None:
                self._settle(self.connection(command.connection))
            holder, messages = self.core.holder(entry), self.core.unacked_messages(max(entry, 0))
            released = self.core.pending_ack_removed(entry)
            connection = released.consumer if command is None else command.connection
            self._releases.expect([released], connection=connection)
            if command is None:
                self._removed.setdefault(released.consumer, []).append(entry)
                continue
            self._forget(command)
            self.core.ack_begins(released.consumer)
            command.result = (holder, messages)
            self.connection(command.connection).late.append(command)

    def _removed_entry(self, holder: int) -> int | None:
        """Which pending ack of ``holder`` goes now. The line says when; what, the commands under way say.

        First what mark-delete has passed, then acks in the order in which they arrived, those of the holder's own
        connection first, then what the next redelivery request of the holder names.
        """
        for entry, released in self._trimmed.items():
            if released.consumer == holder:
                return entry
        acks = [c for c in self._acks.values() if self._held_before(c) == holder]
        if acks:
            return min(acks, key=lambda c: (c.connection != holder, c.seq)).entry
        requests = self._requests.get(holder)
        if not requests:
            return None
        wanted, held = requests[0].inputs["positions"], self.core.held(holder)
        if wanted is None:
            return held[0] if held else None
        return next((entry for entry in wanted if entry in set(held)), None)

    def _held_before(self, command: Command) -> int | None:
        """Who holds, or held, the entry of an ack whose removal's line is to come."""
        if command.applied:
            return command.result.consumer if isinstance(command.result, Released) else None
        return self.core.holder(command.entry)

    def _forget(self, command: Command) -> None:
        waiting = self.connection(command.connection).waiting
        if command in waiting:
            waiting.remove(command)

    def _on_redeliver(self, line: Line) -> None:
        """The removals of a request stand before its line; what was not removed one by one goes now."""
        self._settle_all()
        self._let_go_for(line)
        self._requests[who(line)].popleft()
        asked = self._removed.pop(who(line), [])
        messages = self.core.redeliver(who(line), sorted(asked))
        command = Command(line.seq, who(line), "redelivery request")
        command.result = _Redelivered(messages, everything=line.inputs["positions"] is None)
        self.connection(who(line)).late.append(command)

    def _let_go_for(self, request: Line) -> None:
        """Remove everything a redelivery request still finds pending, in position order (null = all of it)."""
        consumer = who(request)
        wanted = request.inputs["positions"]
        held = self.core.held(consumer)
        for entry in held if wanted is None else sorted(set(held) & set(wanted)):
            self._releases.expect([self.core.pending_ack_removed(entry)], connection=consumer)
            self._removed.setdefault(consumer, []).append(entry)

    # --- reads ---------------------------------------------------------------------------------------------------

    def _on_read_attempt(self, line: Line) -> None:
        self._attempt(self._frame(line, "read_attempt_end"))

    def _attempt(self, window: Window, *, including: bool = False) -> None:
        """One read attempt; ``including`` the present line among what it recorded."""
        recorded = self._attempt_lines(window, including=including)
        outcome = self._decide(
            window, 3, self.core.attempt_read, lambda read: differing_read(read, recorded, self._positions)
        )
        self._reads.attempted(outcome.answer)
        self.refused_now = list(outcome.answer.refused)
        self._trimmed.update(self.core.trimmed)
        self._judge(window, outcome)

    def _attempt_lines(self, window: Window, *, including: bool) -> Recorded:
        recorded = Recorded()
        own = [(self._at, self._line)] if including else []
        for at, line in [*own, *self._within(window.end)]:
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
                window.count("draining")
            else:
                if line.kind == "read_done":
                    recorded.results.setdefault(line.inputs["type"], line.seq)
                continue
            self._judged.add(at)
        self._judged.discard(self._at)
        return recorded

    def _on_read_issued(self, line: Line) -> None:
        self._inferred_attempt(line)

    def _on_replay_read_issued(self, line: Line) -> None:
        self._inferred_attempt(line)

    def _on_draining_blocked(self, line: Line) -> None:
        self._inferred_attempt(line)

    def _inferred_attempt(self, line: Line) -> None:
        """A line of an attempt that the trace does not frame."""
        if self._attempts_logged:
            decision_class = "draining" if line.kind == "draining_blocked" else "read"
            self._differ(decision_class, "nothing outside a read attempt", line.kind)
            return
        self._attempt(Window(line, self._inferred_end(line)), including=True)

    def _inferred_end(self, line: Line) -> int:
        """Where an attempt that the trace does not frame ends: with its read, or with its last refusal if none comes.

        Which of the two it is the core says, on a copy.
        """
        if line.kind != "draining_blocked":
            return self._at
        saved = self.core.save()
        read = self.core.attempt_read()
        self.core.restore(saved)
        refusals = 0
        end = self._at
        for at in range(self._at, len(self._lines)):
            kind = self._lines[at].kind
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
        if self.core.read_done(kind, entries):
            self._results.append((kind, entries, len(positions) - len(entries)))

    # --- rounds --------------------------------------------------------------------------------------------------

    def _on_round_begin(self, line: Line) -> None:
        if not self._results:
            raise IllegalTransitionError(
                "a round without a read result", rule="a round dispatches one read result"
            )
        kind, entries, unknown = self._results.popleft()
        self.tally.rounds += 1
        window = self._frame(line, "round_end")
        recorded = self._round_lines(window)
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
        self.refused_now = outcome.answer.refused
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
        if not self._attempts_logged and outcome.answer.look_ahead:
            self._expect_look_ahead()

    def _go_on(self, outcome: Round, window: Window) -> None:
        """What else the lines of a window's inputs say of how the round goes on; nothing, here."""

    def _expect_look_ahead(self) -> None:
        """Where attempts are not logged: a round that looks ahead makes one at once, also if no read comes of it."""
        at = self._at + 1
        while at < len(self._lines) and self._lines[at].kind not in NEXT_SECTION:
            at += 1
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

    def _on_draining_release(self, line: Line) -> None:
        consumer, hash_value = who(line), line.recorded["hash"]
        recorded = (
            f"release of hash {hash_value} by {consumer} with {line.recorded['ref_count_before']} before"
        )
        before = None if line.recorded["closing"] else self._releases.meet(consumer, hash_value)
        if before is None and not line.recorded["closing"] and self._requests.get(consumer):
            self._let_go_for(self._requests[consumer][0])  # "redeliver all" clears in one batch, then says so
            before = self._releases.meet(consumer, hash_value)
        if before is None:
            self._differ("draining", "no release", recorded)
        elif before == line.recorded["ref_count_before"]:
            self.tally.exact("draining")
        else:
            self._differ("draining", f"release with {before} before", recorded)

    def _report_missing(self, missing: list[Released]) -> None:
        for item in missing:
            expected = f"release of hash {item.hash} by {item.consumer} with {item.ref_count_before} before"
            self._differ("draining", expected, "nothing", decisions=0)

    def _on_end(self, _line: Line) -> None:
        self._report_missing(self._releases.missing_at_end())

    # --- reporting -----------------------------------------------------------------------------------------------

    def class_of(self, kind: str) -> str:
        """The class of decision that an illegal line of this kind would have been."""
        return _CLASS_OF.get(kind, "dispatch")


_CLASS_OF = {
    "pending_ack_removed": "draining",
    "selector_added": "subscribe",
    "selector_removed": "subscribe",
    "consumer_added": "subscribe",
}
