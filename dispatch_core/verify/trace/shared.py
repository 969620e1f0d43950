"""Verify a trace of a Shared dispatcher of any release, line by line.

A round is decided turn by turn: which consumer is next, and how much it gets (``round_robin``). What clients' threads do in
between counts from the next turn on, so each turn is a step of the window. In the plain order a flow counts for the turns
whose line ``sent`` stands behind its own. Behind the last one it comes too late for this round.

The lines of a removal are ``consumer_removing`` and ``consumer_removed``, with what the dispatcher does under its lock in
between: the entries that are pending on the consumer go into the replay set. Acknowledgements by other threads may come
first. The lines of their pending acks show that: they stand in front of ``consumer_removed``.
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
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.verify.inputs import Line
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.multiple_consumers import MultipleConsumersVerifier
from dispatch_core.verify.trace.races import Command, Difference
from dispatch_core.verify.trace.racing import Effects, Window
from dispatch_core.verify.trace.recorded import Recorded, differing_read, differing_turns
from dispatch_core.verify.trace.shown_state import Charge, Counters
from dispatch_core.verify.trace.unlogged_acks import UnloggedAcksVerifier

#: Pseudo connections of breaks count down from here.
_BROKEN: Final = -(1 << 41)
#: Kinds that threads of clients and of the cursor write.
_OF_OTHER_THREADS: Final = frozenset({"ack", "flow", "flow_counted", "mark_delete", "pending_ack_removed"})


class SharedVerifier(MultipleConsumersVerifier):
    """State of one verification, as for Key_Shared, with another core."""

    core: SharedDispatcher
    dispatcher: ClassVar[Callable[..., SharedDispatcher]] = SharedDispatcher
    sends_are_steps: ClassVar[bool] = True
    removals_class: ClassVar[str] = "state"

    def _hashes_of(self, messages: pa.Table, profile: Profile) -> npt.NDArray[np.int64]:
        """See ``MultipleConsumersVerifier``. Since PIP-379 (#23352) Shared computes no hash: it is 0."""
        if "draining_hashes" in profile.changes:
            return np.zeros(messages.num_rows, np.int64)
        return profile.hash_space.sticky_array(hashing.entry_h31(messages, fallback=profile.fallback_key))

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_consumer_removing(self, line: Line) -> None:
        """Remove a consumer, behind what other threads have removed from its pending acks before.

        A dispatcher that is closed may be asked twice for a consumer; the second time there is nothing to remove (#22270).
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
        self.core.leave(consumer)
        if not self.core.connected():
            self._close_totals()
        # An ack of what the consumer held, not in effect when it left, finds nothing pending any more.
        self._finish_acks_of_nobody()

    def _made_again(self, line: Line) -> None:
        """See ``CursorDriver``: a subscription that is made again has a new dispatcher."""
        if self._deleted_at is not None:
            self.core.made_anew()
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
        """See ``MultipleConsumersVerifier``: a step for each turn, and one for the look that finds nobody available."""
        return len(recorded.sent) + 1

    def _dispatch(self, kind: str, entries: list[int], between: Between, steps: int) -> Round:
        """See ``MultipleConsumersVerifier``. A round that has other turns than its lines has as many steps all the same."""
        begun = 0

        def before_turn(turn: int) -> None:
            nonlocal begun
            if turn < steps:
                between(turn)
                begun = turn + 1

        outcome = self.core.round(kind, entries, before_turn)
        for step in range(begun, steps):
            between(step)
        return outcome

    def _step_of(self, command: Command, steps: int) -> int:
        """See ``RacingDriver``: what arrives behind the last send comes after the round."""
        return command.earliest if command.earliest < steps - 1 and self._sent_at else steps

    def _under_way(self, steps: int) -> tuple[dict[int, list[Command]], dict[int, list[Command]]]:
        """See ``RacingDriver``. A connection may have broken already if its consumer is removed soon, without a command."""
        waiting, late = super()._under_way(steps)
        for consumer in self.core.connected() if self._sent_at else ():
            removal = self._removal_ahead(consumer)
            if removal is not None:
                what = f"the end of the connection of consumer {consumer}"
                waiting[_BROKEN - consumer] = [Command(removal.seq, consumer, what, breaks=True)]
        return waiting, late

    def break_connection(self, command: Command) -> None:
        """See ``RacingDriver``."""
        self.core.connection_broke(command.connection)

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
        self._charges = {}
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
