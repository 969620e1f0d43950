"""Verify a trace of a Key_Shared dispatcher, line by line.

The driver gives each line's inputs to ``KeySharedDispatcher`` and keeps what the core answered as *expectations*; the
lines that follow meet them or not. What was never met by the end of its read attempt, round or removal is a difference
as well: a decision that the broker did not make.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from dispatch_core import hashing
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.key_shared import KeySharedDispatcher
from dispatch_core.multiple_consumers import Read, Released, Round
from dispatch_core.profiles import Profile
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.driver import Driver, who
from dispatch_core.verify.flows import FlowQueue
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.tally import Finding, Tally, cut_off

T = TypeVar("T")


@dataclass(slots=True)
class _OpenRound:
    entries: list[int]
    outcome: Round
    begun: Line
    unknown: int  # entries of the result that the message log does not hold
    unsent: dict[int, list[int]] = field(default_factory=dict)  # expected, no ``sent`` line yet
    differing: set[int] = field(default_factory=set)  # entries on which log and core part


@dataclass(slots=True)
class _OpenAttempt:
    read: Read
    met: bool = False


class KeySharedVerifier(Driver):
    """State of one verification: the core, what is expected of the coming lines, and the tally."""

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, lines: list[Line]) -> None:
        super().__init__(entries)
        consumers = sum(line.kind == "consumer_added" for line in lines)
        h31 = hashing.entry_h31(log.messages, fallback=profile.fallback_key)
        self.hashes = profile.hash_space.sticky_array(h31)
        batch = np.asarray(log.messages["num_messages"].combine_chunks()).astype(np.int64)
        self.core = KeySharedDispatcher(profile, self.hashes, batch, consumers)
        self.batch = batch
        # (consumer, hash) that draining held back at the last line
        self.refused_now: list[tuple[int, int]] = []
        self._flows: dict[int, FlowQueue] = {}
        # read results waiting for their round: type, entries, how many more that the message log does not hold
        self._results: deque[tuple[str, list[int], int]] = deque()
        self._acks: dict[int, int] = {}  # entry → consumer whose ack arrived and has no effect yet
        # consumer → entries let go for a redelivery request to come
        self._asked_again: dict[int, list[int]] = {}
        self._requests: dict[int, deque[Line]] = {}  # consumer → its redelivery requests to come
        for line in lines:
            if line.kind == "redeliver" and line.consumer is not None:
                self._requests.setdefault(line.consumer, deque()).append(line)
        self._round: _OpenRound | None = None
        self._attempt: _OpenAttempt | None = None
        # Traces of a heavy load leave read attempts out: they are then inferred from the first line that shows one.
        self._attempts_logged = any(line.kind == "read_attempt" for line in lines)
        self._adds: dict[int, deque[int]] = {}  # per consumer: their order among consumers is a hash map's
        self._releases: dict[tuple[int, int, bool], deque[int]] = {}
        self._refusals: deque[tuple[int, int]] = deque()

    def feed(self, line: Line) -> None:
        """Take one line; see ``Driver.feed``."""
        self.refused_now = []
        super().feed(line)

    def finish(self) -> Tally:
        """End of the log: whatever is still open was cut off, not missed."""
        if self._round is not None:
            begun, missing = self._round.begun, set().union(*self._round.unsent.values())
            self.tally.note(cut_off(begun))
            entries = len(self._round.entries) + self._round.unknown
            self.tally.settle("dispatch", entries, max(len(missing), 1), "uncertain")
            self._round = None
        self.tally.close()
        return self.tally

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_consumer_added(self, line: Line) -> None:
        self.core.join(who(line), line.inputs["name"], line.inputs["priority_level"] or 0)

    def _on_selector_added(self, line: Line) -> None:
        self.tally.exact("subscribe")
        draining, returned = self.core.join_selector(who(line))
        self._expect_adds(draining)
        self._expect_releases(returned, closing=False)

    def _on_selector_refused(self, line: Line) -> None:
        self._differ("subscribe", f"consumer {line.consumer} added", "refused")

    def _on_selector_removed(self, line: Line) -> None:
        self._meet_leftovers()
        left = self.core.leave(who(line))
        self._expect_releases(left.closed, closing=True)
        self._expect_adds(left.draining)
        self._expect_releases(left.returned, closing=False)
        for entry in [
            e for e, owner in self._acks.items() if owner == line.consumer and self.core.holder(e) is None
        ]:
            del self._acks[entry]
            self.core.acknowledge(entry)

    def _on_consumer_removed(self, line: Line) -> None:
        self._meet_leftovers()

    # --- flow ----------------------------------------------------------------------------------------------------

    def _on_flow(self, line: Line) -> None:
        self._flows.setdefault(who(line), FlowQueue()).arrived(line.inputs["permits"])

    def _on_flow_counted(self, line: Line) -> None:
        flows = self._flows.setdefault(who(line), FlowQueue())
        permits = flows.counted()
        if permits is not None and self.core.flow(who(line), permits):
            flows.untold += 1

    def _on_flow_applied(self, line: Line) -> None:
        if line.inputs["permits"] is None:
            raise IllegalTransitionError(
                "no permits", rule="Key_Shared counts what has reached the dispatcher"
            )
        permits = self._flows.setdefault(who(line), FlowQueue()).applied()
        if permits is not None:
            self.core.flow(who(line), permits)
        self.core.flow_applied(who(line), line.inputs["permits"])

    # --- acks and redelivery -------------------------------------------------------------------------------------

    def _on_ack(self, line: Line) -> None:
        if line.inputs["ack_type"] != "Individual":
            return  # cumulative acks mean nothing to Key_Shared
        for entry in line.inputs["positions"]:
            if entry < 0:
                continue
            if self.core.holder(entry) is None:
                self.core.acknowledge(entry)
            else:
                self._acks[entry] = who(line)

    def _on_pending_ack_removed(self, line: Line) -> None:
        for entry in line.inputs["positions"]:
            released = self.core.pending_ack_removed(entry)
            self._expect_releases([released], closing=False)
            if entry in self._acks:
                del self._acks[entry]
                told = self.core.acked(released.consumer, int(self.batch[entry]))
                self._flows.setdefault(released.consumer, FlowQueue()).untold += told
                self.core.acknowledge(entry)
            else:
                self._asked_again.setdefault(released.consumer, []).append(entry)

    def _on_redeliver(self, line: Line) -> None:
        """The removals of a request stand before its line; what was not removed one by one goes now."""
        self._let_go_for(line)
        self._requests[who(line)].popleft()
        asked = self._asked_again.pop(who(line), [])
        self.core.redeliver(who(line), sorted(asked))
        self._flows.setdefault(who(line), FlowQueue()).untold += 1  # parked permits flow, even none

    def _let_go_for(self, request: Line) -> None:
        """Remove everything a redelivery request still finds pending, in position order (null = all of it)."""
        consumer = who(request)
        wanted = request.inputs["positions"]
        held = self.core.held(consumer)
        for entry in held if wanted is None else sorted(set(held) & set(wanted)):
            self._expect_releases([self.core.pending_ack_removed(entry)], closing=False)
            self._asked_again.setdefault(consumer, []).append(entry)

    # --- reads ---------------------------------------------------------------------------------------------------

    def _on_read_attempt(self, line: Line) -> None:
        self._close_attempt()
        self._begin_attempt(line)

    def _begin_attempt(self, line: Line) -> None:
        read = self.core.attempt_read()
        self.refused_now = list(read.refused)
        self._refusals.extend(read.refused)
        self._attempt = _OpenAttempt(read)

    def _on_read_attempt_end(self, line: Line) -> None:
        self._close_attempt()

    def _close_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        self._meet_leftovers()
        if attempt.read.kind in ("Normal", "Replay") and not attempt.met:
            self._differ("read", self._describe(attempt.read), "no read", decisions=0)

    def _on_read_issued(self, line: Line) -> None:
        expected = self._expected_read()
        recorded = Read("Normal", max_entries=line.recorded["max_entries"])
        self._compare_read(expected, recorded)

    def _on_replay_read_issued(self, line: Line) -> None:
        expected = self._expected_read()
        recorded = Read("Replay", entries=tuple(line.recorded["positions"]))
        self._compare_read(expected, recorded)

    def _expected_read(self) -> Read:
        if not self._attempts_logged and (self._attempt is None or self._attempt.met):
            self._begin_attempt(self._line)
        if self._attempt is None or self._attempt.met:
            return Read("None")
        self._attempt.met = True
        return self._attempt.read

    def _compare_read(self, expected: Read, recorded: Read) -> None:
        if (expected.kind, expected.max_entries, expected.entries) == (
            recorded.kind,
            recorded.max_entries,
            recorded.entries,
        ):
            self.tally.exact("read")
        else:
            self._differ("read", self._describe(expected), self._describe(recorded))

    def _on_read_cancelled(self, line: Line) -> None:
        if line.inputs["cancelled"]:
            self.core.read_cancelled()

    def _on_read_done(self, line: Line) -> None:
        kind, positions = line.inputs["type"], line.inputs["positions"]
        entries = [entry for entry in positions if entry >= 0]
        if line.recorded["hashes"] is not None:
            self._compare_hashes(positions, line.recorded["hashes"])
        if self.core.read_done(kind, entries):
            self._results.append((kind, entries, len(positions) - len(entries)))

    def _compare_hashes(self, positions: list[int], recorded: list[int]) -> None:
        """Each entry's hash; -1 among ``positions`` is one that the message log does not hold."""
        expected = [int(self.hashes[entry]) if entry >= 0 else None for entry in positions]
        for entry, one, other in zip_longest(positions, expected, recorded):
            if one is not None and one == other:
                self.tally.exact("hash")
            elif entry is None or entry < 0:
                self._differ(
                    "hash", "an entry of the message log", f"an entry it does not hold, hash {other}"
                )
            else:
                self._differ(
                    "hash", f"{self._position(entry)} hash {one}", f"hash {other}", int(other is not None)
                )

    # --- rounds --------------------------------------------------------------------------------------------------

    def _on_round_begin(self, line: Line) -> None:
        if not self._results:
            raise IllegalTransitionError(
                "a round without a read result", rule="a round dispatches one read result"
            )
        kind, entries, unknown = self._results.popleft()
        outcome = self.core.round(kind, entries)
        self.refused_now = outcome.refused
        self._refusals.extend(outcome.refused)
        self._round = _OpenRound(entries, outcome, line, unknown, dict(outcome.sent))
        self.tally.rounds += 1

    def _on_sent(self, line: Line) -> None:
        open_round = self._round
        consumer, entries = who(line), line.recorded["positions"]
        if open_round is None:
            self._differ(
                "dispatch", "nothing outside a round", f"{len(entries)} entries to consumer {consumer}", 0
            )
            return
        expected = open_round.unsent.pop(consumer, [])
        if expected != entries:
            pairs = zip_longest(expected, entries)
            open_round.differing |= {e for pair in pairs if pair[0] != pair[1] for e in pair if e is not None}
            self._note(
                f"consumer {consumer} gets {self._positions(expected)}", f"gets {self._positions(entries)}"
            )
        before = open_round.outcome.permits_before.get(consumer)
        self._compare_permits(line, consumer, before)

    def _on_round_end(self, line: Line) -> None:
        open_round, self._round = self._round, None
        if open_round is None:
            raise IllegalTransitionError("a round ends that did not begin", rule="rounds do not nest")
        self._meet_leftovers()
        for consumer, missing in open_round.unsent.items():
            open_round.differing |= set(missing)
            self._note(f"consumer {consumer} gets {self._positions(missing)}", "nothing")
        outcome = open_round.outcome
        differing = len(open_round.differing & set(open_round.entries)) + open_round.unknown
        self.tally.settle("dispatch", len(open_round.entries) + open_round.unknown, differing)
        look_ahead = self.core.finish_round(outcome, has_more=bool(line.inputs["has_more"]))
        retry = look_ahead or not outcome.sent
        if outcome.in_replay == line.recorded["in_replay"]:
            self.tally.exact("replay_set")
        else:
            self._differ("replay_set", str(outcome.in_replay), str(line.recorded["in_replay"]))
        if (retry, look_ahead) == (line.recorded["retry"], line.recorded["look_ahead"]):
            self.tally.exact("round")
        elif look_ahead and not line.recorded["look_ahead"] and line.recorded["retry"] == (not outcome.sent):
            # has_more is sampled at the end of the round; an entry stored since the decision makes it true too late.
            self.core.no_look_ahead()
            self._differ(
                "round",
                "look ahead if the cursor had more entries when the round decided",
                "no look ahead",
                racing=(
                    line.seq,
                    "has_more of this line was taken after the decision; an entry was stored in between",
                ),
            )
        else:
            self._differ(
                "round",
                f"retry {retry}, look ahead {look_ahead}",
                f"retry {line.recorded['retry']}, look ahead {line.recorded['look_ahead']}",
            )

    # --- draining ------------------------------------------------------------------------------------------------

    def _on_draining_add(self, line: Line) -> None:
        expected = self._adds.get(who(line), deque())
        self._meet(f"consumer {line.consumer} drains", expected, line.recorded["hash"])

    def _on_draining_blocked(self, line: Line) -> None:
        if not self._attempts_logged and self._round is None and not self._refusals:
            self._begin_attempt(line)
        self._meet("blocks (consumer, hash)", self._refusals, (who(line), line.recorded["hash"]))

    def _on_draining_release(self, line: Line) -> None:
        consumer, hash_value = who(line), line.recorded["hash"]
        key = (consumer, hash_value, bool(line.recorded["closing"]))
        if not self._releases.get(key) and not key[2] and self._requests.get(consumer):
            self._let_go_for(self._requests[consumer][0])  # "redeliver all" clears in one batch, then says so
        waiting = self._releases.get(key)
        recorded = (
            f"release of hash {hash_value} by {consumer} with {line.recorded['ref_count_before']} before"
        )
        if not waiting:
            self._differ("draining", "no release", recorded)
            return
        before = waiting.popleft()
        if before == line.recorded["ref_count_before"]:
            self.tally.exact("draining")
        else:
            self._differ("draining", f"release with {before} before", recorded)

    def _expect_releases(self, released: list[Released], *, closing: bool) -> None:
        for item in released:
            key = (item.consumer, item.hash, closing)
            self._releases.setdefault(key, deque()).append(item.ref_count_before)

    def _expect_adds(self, draining: list[tuple[int, int]]) -> None:
        for consumer, hash_value in draining:
            self._adds.setdefault(consumer, deque()).append(hash_value)

    def _meet(self, what: str, expected: deque[T], recorded: T) -> None:
        if expected and expected[0] == recorded:
            expected.popleft()
            self.tally.exact("draining")
        else:
            self._differ("draining", f"{what}: {expected[0] if expected else 'none'}", str(recorded))
            if recorded in expected:
                expected.remove(recorded)

    def _meet_leftovers(self) -> None:
        """The lines of a finished step are over: what they should have said and did not is a difference."""
        for consumer, hashes in self._adds.items():
            while hashes:
                self._differ(
                    "draining", f"consumer {consumer} drains: {hashes.popleft()}", "none", decisions=0
                )
        while self._refusals:
            self._differ(
                "draining", f"blocks (consumer, hash): {self._refusals.popleft()}", "none", decisions=0
            )

    # --- reporting -----------------------------------------------------------------------------------------------

    def class_of(self, kind: str) -> str:
        """The class of decision that an illegal line of this kind would have been."""
        return _CLASS_OF.get(kind, "dispatch")

    def _note(self, expected: str, recorded: str) -> None:
        self.tally.note(Finding(self._line.seq, self._line.t_us, "dispatch", "divergent", expected, recorded))

    def _position(self, entry: int) -> str:
        return self._entries.position(entry)

    def _describe(self, read: Read) -> str:
        if read.kind == "Normal":
            return f"normal read of at most {read.max_entries}"
        if read.kind == "Replay":
            return f"replay read of {self._positions(list(read.entries))}"
        return "no read" if read.kind == "None" else "back-off"


_CLASS_OF = {
    "pending_ack_removed": "draining",
    "selector_added": "subscribe",
    "selector_removed": "subscribe",
    "consumer_added": "subscribe",
}
