"""Verify a trace of the Key_Shared dispatcher of 3.x, or of the classic one of 4.x (read position).

Differences from 4.x: a consumer that leaves counts as recently joined until the first read attempt of its removal is over;
and a round may read on at once depending on writes.
"""

from __future__ import annotations

from itertools import combinations
from typing import ClassVar, Final

from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.multiple_consumers import Round
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.state import NOBODY
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.races import Command, Outcome
from dispatch_core.verify.trace.racing import Window
from dispatch_core.verify.trace.recently_joined import RecentlyJoinedVerifier

#: A consumer's turn in a round that gets nothing takes about so long, microseconds.
_A_TURN_US: Final = 100


class ClassicKeySharedVerifier(RecentlyJoinedVerifier):
    """State of one verification, as for 4.x, with another core."""

    core: ClassicKeySharedDispatcher
    dispatcher: ClassVar[type[KeySharedDispatcher]] = ClassicKeySharedDispatcher
    send_step: ClassVar[int] = 0  # how much a consumer gets is decided right before it is sent

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, facts: TraceFacts) -> None:
        super().__init__(log, profile, entries, facts)
        # pairs of consumers: the first was sent to before the second in some round
        self._served_before: set[tuple[int, int]] = set()
        self._attempts_logged = facts.reads_framed

    # --- flow ----------------------------------------------------------------------------------------------------

    def _on_flow_applied(self, line: Line) -> None:
        """Count permits in the dispatcher. An ack that unblocked its consumer may lower the unacked counter later."""
        permits = self._permits(line)
        if not self._counting_logged:
            self._settle(self.connection(who(line)), flows=True)
        self.core.flow_applied(who(line), permits)

    def _on_recently_joined_pruned(self, _line: Line) -> None:
        """Free the recently joined consumers that mark-delete has reached: its hook ran."""
        for connection in self._connections.values():
            self._settle(connection)  # mark-delete has moved: the acks that moved it are through
        self.core.prune()

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_consumer_added(self, line: Line) -> None:
        super()._on_consumer_added(line)
        position = line.inputs["read_position"]
        if position is not None and self.core.reads_ahead():
            self.core.read_position_seen(
                self._entries.first_from(position["ledger_id"], position["entry_id"])
            )

    def _inferred_attempt(self, line: Line) -> None:
        """Verify the attempt of a line; of the two attempts of a removal the first has made the read, if it could."""
        if self._leaving is not None and not self._attempts_logged:
            saved = self.core.save()
            first = self.core.attempt_read()
            self.core.restore(saved)
            if first.kind == "None":
                self._forget_leaving()
        super()._inferred_attempt(line)
        self._forget_leaving()

    # --- rounds --------------------------------------------------------------------------------------------------

    def _on_round_begin(self, line: Line) -> None:
        super()._on_round_begin(line)
        served = [consumer for consumer, _seq in sorted(self._sent_at.items(), key=lambda item: item[1])]
        self._served_before.update(combinations(served, 2))

    def _go_on(self, outcome: Round, window: Window) -> None:
        """Note whether all writes are done by the end of the round, if some consumers were sent entries and others nothing.

        In the plain order the writes are done if their calls returned with them done, and the round had turns to come.
        """
        returned = [line for _at, line in self._within(window.end) if line.kind == "send_returned"]
        done = bool(returned) and all(line.inputs["written"] for line in returned)
        if done and self._lines[window.end].t_us - returned[-1].t_us >= _A_TURN_US:
            self.core.all_written(outcome)

    def _settle_has_more(self, outcome: Outcome[Round], end: Line) -> None:
        """Settle a round that reads on by itself: writes were complete before the turn of the last consumer without entries.

        Writes complete on I/O threads, from the line of the send on: the trace does not show when. No excuse is taken
        where the turns of all those consumers come before the last send: the broker's order of consumers is a hash map's,
        the same in every round, and earlier rounds have shown it.
        """
        answer = outcome.answer
        if outcome.explained or not answer.waits_for_writes:
            return
        alike = answer.look_ahead_due == end.recorded["look_ahead"]
        if not alike or [d.decision_class for d in outcome.plain] != ["round"]:
            return
        last = max(self._sent_at, key=lambda consumer: self._sent_at[consumer], default=None)
        if end.recorded["retry"] and all(
            (consumer, last) in self._served_before for consumer in self._got_nothing(answer)
        ):
            return
        outcome.explained = True
        outcome.racing = Command(
            self._sent_at[last] if last is not None else end.seq, 0, "the write of what was sent"
        )

    def _got_nothing(self, answer: Round) -> set[int]:
        state = self.core.state
        owners = state.hash_owner[state.hash_id[answer.to_replay]].tolist()
        return {self.core.number_of(slot) for slot in owners if slot != NOBODY} - set(answer.sent)
