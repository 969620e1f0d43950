"""Verify a trace of a Key_Shared dispatcher of 4.x, line by line.

The driver gives each line's inputs to ``KeySharedDispatcher``. Membership changes are windows (see ``racing``), as read
attempts and rounds are (``multiple_consumers``). What else the core answers, the releases that follow an ack, is kept as
*expectations* that the lines to come meet or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.broker import hashing
from dispatch_core.broker.key_shared import KeySharedDispatcher, Leave
from dispatch_core.broker.multiple_consumers import Round
from dispatch_core.broker.profiles import Profile
from dispatch_core.errors import SelectorRefusedError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Entries, Line, shown_consumers
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.multiple_consumers import MultipleConsumersVerifier
from dispatch_core.verify.trace.races import Command, Difference
from dispatch_core.verify.trace.racing import NEXT_SECTION, Window
from dispatch_core.verify.trace.recorded import (
    Recorded,
    differing_adds,
    differing_items,
    differing_round,
)

#: Number of entries before which the scan of the replay set pauses, at most: each makes more orders to try.
MAX_PAUSES: Final = 8


class KeySharedVerifier(MultipleConsumersVerifier):
    """State of one verification: the core, what is expected of the coming lines, and the tally."""

    core: KeySharedDispatcher
    dispatcher: ClassVar[type[KeySharedDispatcher]] = KeySharedDispatcher
    breaks: ClassVar[tuple[bool, ...]] = (False, True)

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, facts: TraceFacts) -> None:
        super().__init__(log, profile, entries, facts)
        # Consumer → ranges of its subscribe command.
        self._announced: dict[int, list[tuple[int, int]] | None] = {}

    def _hashes_of(self, messages: pa.Table, profile: Profile) -> npt.NDArray[np.int64]:
        """See ``MultipleConsumersVerifier``."""
        return profile.hash_space.sticky_array(hashing.entry_h31(messages, fallback=profile.fallback_key))

    # --- membership ----------------------------------------------------------------------------------------------

    def _shown_active(self, consumer: int, removal: Line) -> bool:
        """See ``MultipleConsumersVerifier``: a consumer has usable permits only while its connection is active."""
        for _at, line in self._lines.between(self._window_end, self._lines.horizon(self._at)):
            if line.seq >= removal.seq:
                return False
            if line.kind == "usable_seen" and line.consumer == consumer and line.recorded["value"] > 0:
                return True
            if line.kind == "read_attempt_end" and any(
                shown.consumer == consumer and shown.usable > 0 for shown in shown_consumers(line)
            ):
                return True
        return False

    def _on_consumer_added(self, line: Line) -> None:
        ranges = line.inputs["ranges"]
        self._announced[who(line)] = None if ranges is None else [(r["start"], r["end"]) for r in ranges]
        super()._on_consumer_added(line)

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
        """Remove a consumer.

        The second time that one is disconnected (``log_checks``) there is nothing to remove. If nobody is connected, the
        draining hashes are cleared again (#22270).
        """
        self._compare_selector(line)
        consumer = who(line)
        if consumer not in self.core.connected():
            self._clear_due = self._tracked and not self.core.connected()
            return
        self._settle_all()
        self._keep_pending_acks(consumer)
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

    # --- reads and rounds ----------------------------------------------------------------------------------------

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

    def _on_draining_blocked(self, line: Line) -> None:
        self._inferred_attempt(line)

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

    def _differing_round(
        self, outcome: Round, entries: Sequence[int], recorded: Recorded
    ) -> list[Difference]:
        """See ``MultipleConsumersVerifier``."""
        return differing_round(outcome, entries, recorded, self._positions)

    def _after_round(self, outcome: Round) -> None:
        """See ``MultipleConsumersVerifier``."""
        if not self._attempts_logged and outcome.look_ahead:
            self._expect_look_ahead()

    def _expect_look_ahead(self) -> None:
        """Make the attempt of a round that looks ahead if it led to no read, so that no line shows it."""
        at = self._section().end + 1
        kind = self._lines[at].kind if at < len(self._lines) else "end"
        if kind not in ("read_issued", "replay_read_issued"):
            self.core.attempt_read()

    def _unlogged_at_end(self, outcome: Round, end: Line) -> Command | None:
        """``has_more`` is sampled at the end of the round; an entry stored since the decision makes it true too late."""
        if (
            self.core.look_ahead_needs_more()
            and self._late_entries.may_have_come(self.core.state, self._line.t_us)
            and outcome.look_ahead
            and not end.recorded["look_ahead"]
            and end.recorded["retry"] == (not outcome.sent)
        ):
            return Command(end.seq, 0, "an entry stored after the decision, seen by has_more,")
        return None

    def _take_end(self, outcome: Round) -> None:
        """See ``MultipleConsumersVerifier``. ``has_more`` was false at the decision."""
        self.core.no_look_ahead()
        outcome.look_ahead = False

    # --- draining ------------------------------------------------------------------------------------------------

    def _on_draining_add(self, line: Line) -> None:
        self._differ(
            "draining", "no hash begins to drain", f"consumer {line.consumer}: {line.recorded['hash']}"
        )
