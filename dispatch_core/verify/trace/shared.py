"""Verify a trace of a Shared dispatcher of any release, line by line.

A round is decided turn by turn: which consumer is next, and how much it gets (``round_robin``). The send follows, and shows
the consumer's permits. What clients' threads do in between counts from the next of these on, so each turn is two steps of
the window. In the plain order a flow counts for the turns whose line ``sent`` stands behind its own. Behind the last one it
comes too late for this round.

The lines of a removal are ``consumer_removing`` and ``consumer_removed``, with what the dispatcher does under its lock in
between: the entries that are pending on the consumer go into the replay set. Acknowledgements by other threads may come
first. The lines of their pending acks show that: they stand in front of ``consumer_removed``. What comes behind it is in
``removed_consumers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.broker import hashing
from dispatch_core.broker.multiple_consumers import Between, Read, Round
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.shared import STEPS_OF_TURN, SharedDispatcher
from dispatch_core.broker.state import CLOSED
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.driver import acknowledged_by, who
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.multiple_consumers import MultipleConsumersVerifier
from dispatch_core.verify.trace.races import RESET, Command, Difference
from dispatch_core.verify.trace.racing import Effects, Window
from dispatch_core.verify.trace.recorded import Recorded, differing_read, differing_turns
from dispatch_core.verify.trace.shown_positions import OF_A_CONNECTION
from dispatch_core.verify.trace.shown_state import Charge, Counters
from dispatch_core.verify.trace.unlogged_acks import UnloggedAcksVerifier

#: Kinds that threads of clients and of the cursor write.
_OF_OTHER_THREADS: Final = frozenset({"ack", "flow", "flow_counted", "mark_delete", "pending_ack_removed"})


class SharedVerifier(MultipleConsumersVerifier):
    """State of one verification, as for Key_Shared, with another core."""

    core: SharedDispatcher
    dispatcher: ClassVar[Callable[..., SharedDispatcher]] = SharedDispatcher
    steps_of_send: ClassVar[int] = STEPS_OF_TURN
    breaks: ClassVar[tuple[bool, ...]] = (False, True)
    removals_class: ClassVar[str] = "state"

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, facts: TraceFacts) -> None:
        super().__init__(log, profile, entries, facts)
        self._cursor_closed = False  # acknowledgements do not reach it any more
        self._reset_from: tuple[int, int] | None = None  # seq of the last reset, and mark-delete before it

    def _hashes_of(self, messages: pa.Table, profile: Profile) -> npt.NDArray[np.int64]:
        """See ``MultipleConsumersVerifier``. Since PIP-379 (#23352) Shared computes no hash: it is 0."""
        if "draining_hashes" in profile.changes:
            return np.zeros(messages.num_rows, np.int64)
        return profile.hash_space.sticky_array(hashing.entry_h31(messages, fallback=profile.fallback_key))

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_consumer_added(self, line: Line) -> None:
        """See ``MultipleConsumersVerifier``: a reset has taken effect before consumers are back."""
        self._reset_from = None
        super()._on_consumer_added(line)

    def _on_consumer_removing(self, line: Line) -> None:
        """Remove a consumer, behind what other threads have removed from its pending acks before.

        The second time that a consumer is disconnected (``log_checks``) there is nothing to remove (#22270).
        """
        consumer = who(line)
        if consumer not in self.core.connected():
            return
        others = [
            (at, other) for at, other in self._within(self._section().end) if other.kind in _OF_OTHER_THREADS
        ]
        before = [
            at for at, other in others if other.kind == "pending_ack_removed" and other.consumer == consumer
        ]
        for at, _other in others:
            if before and at <= before[-1]:
                self._take_early(at)
        self._settle_all()
        self._keep_pending_acks(consumer)
        self.core.leave(consumer)
        if not self.core.connected():
            self._close_totals()
        # An ack of what the consumer held, not in effect when it left, finds nothing pending any more.
        self._finish_acks_of_nobody()

    def _on_ack(self, line: Line) -> None:
        """See ``PendingAcksDriver``."""
        if who(line) not in self._removed_consumers or not self._cursor_is_closed(line):
            super()._on_ack(line)
        else:
            self._note_removed_acks(line)

    def _cursor_is_closed(self, ack: Line) -> bool:
        """Check whether an acknowledgement of a consumer that was removed comes too late for the cursor.

        The cursor of a dispatcher that is closed is closed soon. One that is not would have moved mark-delete, with a line,
        at the acknowledgement of the whole next entry.
        """
        following = self.core.mark_delete() + 1
        whole = [entry for entry, words in acknowledged_by(ack) if not words]
        if self.core.state.s[CLOSED] and not self._cursor_closed and following in whole:
            self._cursor_closed = True
            for line in self._later_lines():
                if line.kind == "mark_delete":
                    self._cursor_closed = False
                if line.kind == "mark_delete" or (
                    line.consumer == ack.consumer and line.kind in OF_A_CONNECTION
                ):
                    break
        return self._cursor_closed

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """See ``Driver``: mark-delete before the last reset."""
        super()._change_ordinals(change)
        if self._reset_from is not None:
            seq, mark_delete = self._reset_from
            self._reset_from = seq, mark_delete if mark_delete < 0 else change(mark_delete)

    def _made_again(self, line: Line) -> None:
        """See ``CursorDriver``: a subscription that is made again has a new dispatcher."""
        if self._deleted_at is not None:
            self.core.made_anew()
            self._cursor_closed = False
        super()._made_again(line)

    # --- reads ---------------------------------------------------------------------------------------------------

    def _attempt_read(
        self, between: Between, recorded: Recorded, pauses: Sequence[int], limited: list[Difference]
    ) -> Read:
        """See ``MultipleConsumersVerifier``. A size that is random by design is one of ``read_sizes``, and not judged."""
        if not self.core.profile.settings["preciseDispatcherFlowControl"]:
            return super()._attempt_read(between, recorded, pauses, limited)
        between(0)
        sizes, saved, results = self.core.read_sizes(), self.core.save(), list(self._effects.results)
        for size in sizes or [0]:
            self.core.restore(saved)
            self._effects = Effects(list(results))
            read = self.core.attempt_read(lambda step: between(step) if step else None, size)
            if not differing_read(read, recorded, self._positions):
                if len(sizes) > 1:
                    limited.append(
                        Difference("read", f"a read of {sizes}", "", decisions=int(bool(recorded.read_seq)))
                    )
                break
        return read

    # --- rounds --------------------------------------------------------------------------------------------------

    def _steps_of_round(self, recorded: Recorded) -> int:
        """See ``MultipleConsumersVerifier``: those of each turn, and one for the look that finds nobody available."""
        return STEPS_OF_TURN * len(recorded.sent) + 1

    def _dispatch(self, kind: str, entries: list[int], between: Between, steps: int) -> Round:
        """See ``MultipleConsumersVerifier``. A round that has other turns than its lines has as many steps all the same."""
        begun = 0

        def before_step(step: int) -> None:
            nonlocal begun
            if step < steps:
                between(step)
                begun = step + 1

        outcome = self.core.round(kind, entries, before_step)
        for step in range(begun, steps):
            between(step)
        return outcome

    def _step_of(self, command: Command, steps: int) -> int:
        """See ``RacingDriver``: what arrives behind the last send comes after the round."""
        return command.earliest if command.earliest < steps - 1 and self._sent_at else steps

    def _under_way(self, steps: int) -> tuple[dict[int, list[Command]], dict[int, list[Command]]]:
        """See ``RacingDriver``."""
        waiting, late = super()._under_way(steps)
        if self._reset_from is not None and not self.core.connected():
            seq, mark_delete = self._reset_from
            waiting[RESET] = [Command(seq, RESET, "the reset", resets_from=mark_delete)]
        return waiting, late

    def _reset(self, entry: int) -> None:
        """See ``CursorDriver``. A reset takes effect some time after its line: a round may come first."""
        self._reset_from = self._line.seq, self.core.mark_delete()
        super()._reset(entry)

    def reset_later(self, command: Command) -> None:
        """See ``RacingDriver``."""
        assert command.resets_from is not None, "a reset knows where mark-delete was"
        self.core.reset_later(command.resets_from)

    def _differing_round(
        self, outcome: Round, entries: Sequence[int], recorded: Recorded
    ) -> list[Difference]:
        """See ``MultipleConsumersVerifier``."""
        return differing_turns(outcome, entries, recorded, self._positions)

    def _charged(self, outcome: Round, window: Window, before: Mapping[int, Counters]) -> None:
        """See ``ShownStateDriver``: each turn charges its consumer."""
        lines = [line for _at, line in self._within(window.end)]
        sends = [line for line in lines if line.kind == "sent"]
        returned = [line.seq for line in lines if line.kind == "send_returned"]
        returned += [self._lines[window.end].seq] * (len(sends) - len(returned))
        self._charges = self._charges_while_counting()
        for turn, sent, seq in zip(outcome.turns, sends, returned, strict=False):
            if turn.consumer == sent.consumer:
                cost = turn.messages - turn.already_acked
                charge = Charge(sent.seq, seq, cost, cost, turn.blocks, turn.average_before)
                self._charges.setdefault(turn.consumer, []).append(charge)

    # --- values that lines show ----------------------------------------------------------------------------------

    def _without_connection(self, _consumer: int, _found: list[Counters]) -> list[Counters]:
        """See ``ShownStateDriver``: a broken connection changes no permits (Consumer.getAvailablePermits)."""
        return []


class SharedWithUnloggedAcksVerifier(UnloggedAcksVerifier, SharedVerifier):
    """State of one verification of a trace of 3.x or 4.0.0-preview.1: as for 4.x, except for the effect of acks."""
