"""Blocks on unacknowledged messages that depend on the order of acknowledgements and a send.

A send may block its consumer (``maxUnackedMessagesPerConsumer``), or the subscription
(``maxUnackedMessagesPerSubscription``). An acknowledgement that overlaps it lowered the counter before, or lowers it
afterwards. Behind both the counter is the same, so that only later lines show which it was. Until then the block stays in
question:

* in the plain order the send blocks the consumer; it would not if an acknowledgement came first (``_contested``);
* in the plain order it does not; it would if an acknowledgement came later (``_unblocked_by_order``);
* an acknowledgement has lowered the counter so far that it unblocks the consumer, and its thread may not have done that yet
  (``_unblocking``);
* the subscription is blocked in one order and not in the other (``subscription_block``): an open fact (``races``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Final, TypeVar

from dispatch_core.broker import state as st_
from dispatch_core.broker.state import I64
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.races import UNBLOCKS, Command, Connection, Outcome
from dispatch_core.verify.trace.racing import CursorStep, RacingDriver, Window
from dispatch_core.verify.trace.subscription_block import Unacked

A = TypeVar("A")

#: Pseudo connections of contested blocks count down in twos from here; those of flows to take back lie in between.
_CONTESTED: Final = -2


class OpenBlocksDriver(RacingDriver):
    """Keep open which order of acknowledgements and sends has blocked, or not."""

    def __init__(self, entries: Entries, facts: TraceFacts) -> None:
        super().__init__(entries, facts)
        # Consumer → the ack that overlapped the send which blocked it: had it come first, no block.
        self._contested: dict[int, Command] = {}
        # Consumer → the ack that overlapped a send and kept it from blocking: had it come later, the consumer is blocked.
        self._unblocked_by_order: dict[int, Command] = {}
        # Consumer → the ack that unblocks it, as long as its thread may not have come so far.
        self._unblocking: dict[int, Command] = {}

    # --- acknowledgements that unblock -------------------------------------------------------------------------------

    def _on_flow_applied(self, line: Line) -> None:
        """See ``RacingDriver``. An ack that unblocks a consumer passes its permits on."""
        self._permits(line)
        self._has_unblocked(who(line))
        super()._on_flow_applied(line)

    def _settle(self, connection: Connection, *, flows: bool = False) -> None:
        """See ``RacingDriver``: an ack that unblocks has done so."""
        for consumer, ack in list(self._unblocking.items()):
            if self.connection(ack.connection) is connection:
                self._has_unblocked(consumer)
        super()._settle(connection, flows=flows)

    def _settle_all(self) -> None:
        """See ``RacingDriver``."""
        for consumer in list(self._unblocking):
            self._has_unblocked(consumer)
        super()._settle_all()

    def _has_unblocked(self, consumer: int) -> None:
        """Take a line that shows that the ack which unblocks a consumer has come so far."""
        ack = self._unblocking.pop(consumer, None)
        if ack is not None and ack.applied:
            self.core.unblock(consumer)

    # --- windows -----------------------------------------------------------------------------------------------------

    def apply_fact(self, fact: Command) -> None:
        """See ``RacingDriver``."""
        super().apply_fact(fact)
        if fact.subscription_blocked is not None and self._unacked().keeps_block():
            self.core.block_subscription(blocked=fact.subscription_blocked)

    def _open_blocks(self) -> dict[int, list[Command]]:
        """See ``RacingDriver``. What no longer matters is forgotten."""
        waiting: dict[int, list[Command]] = {}
        for consumer, command in list(self._contested.items()):
            if not self.core.is_blocked(consumer):
                del self._contested[consumer]
            else:
                waiting[_CONTESTED - 2 * consumer] = [command]
        self._forget_missing_blocks()
        for consumer, ack in chain(self._unblocked_by_order.items(), self._unblocking.items()):
            if not ack.applied:
                waiting[UNBLOCKS - consumer] = [ack]
        if self._facts and not self._may_keep_block():
            self._facts = [fact for fact in self._facts if fact.subscription_blocked is None]
        return waiting

    def _forget_missing_blocks(self) -> None:
        """Forget what no longer matters: a blocked consumer is unblocked at half its limit."""
        half = int(self.core.state.s[st_.MAX_UNACKED_CONSUMER]) // 2
        for consumer in list(self._unblocked_by_order):
            gone = consumer not in self.core.connected() or self.core.is_blocked(consumer)
            if gone or self.core.unacked(consumer) <= half:
                del self._unblocked_by_order[consumer]

    def _search(
        self,
        window: Window,
        waiting: dict[int, list[Command]],
        late: dict[int, list[Command]],
        decide: Callable[[], Outcome[A]],
    ) -> Outcome[A]:
        """See ``RacingDriver``: blocks that depend on the order stay in question."""
        unacked = self.core.state.unacked.copy()
        limited = bool(self._sent_at) and self.core.state.s[st_.MAX_UNACKED_SUBSCRIPTION] > 0
        before = self._unacked() if limited else None
        overlapping = self._overlapping_acks(window, waiting, late) if limited else []
        outcome = super()._search(window, waiting, late, decide)
        self._note_contested_blocks(unacked, waiting)
        self._note_missing_blocks(outcome, late)
        if before is not None:
            self._note_subscription_block(window, before, overlapping)
        return outcome

    # --- consumers ---------------------------------------------------------------------------------------------------

    def _note_contested_blocks(self, unacked: I64, waiting: dict[int, list[Command]]) -> None:
        """Note consumers that a send left blocked although an ack of theirs overlaps it: the order shows later.

        ``unacked``: the counter of each slot before the window.
        """
        limit = int(self.core.state.s[st_.MAX_UNACKED_CONSUMER])
        for consumer in self.core.blocked_consumers():
            if self.core.unacked(consumer) <= unacked[self.core.slot(consumer)]:
                continue
            acks = [
                command
                for command in chain(*waiting.values())
                if command.entry >= 0
                and not command.applied
                and self.core.holder(command.entry, command.connection) == consumer
            ]
            messages: dict[int, int] = {}  # entry → by how many its acks lower the counter
            for ack in acks:
                messages[ack.entry] = max(messages.get(ack.entry, 0), self._lowered_by(ack))
            if acks and self.core.unacked(consumer) - sum(messages.values()) < limit:
                what = f"{self._name(acks[0])}, before the send that blocked consumer {consumer},"
                self._contested[consumer] = Command(acks[0].seq, consumer, what, unblocks=consumer)

    def _note_missing_blocks(self, outcome: Outcome[A], late: dict[int, list[Command]]) -> None:
        """Note consumers that a send left unblocked, and would have blocked if acks that overlap it came later.

        In the plain order these acks (``late``) have lowered the counter before the send.
        """
        limit = int(self.core.state.s[st_.MAX_UNACKED_CONSUMER])
        for consumer in self._sent_at if limit > 0 and late else ():
            if consumer not in self.core.connected() or self.core.is_blocked(consumer):
                continue
            acks = [
                command
                for command in chain(*late.values())
                if command not in outcome.late and self._lowers_counter_of(command) == consumer
            ]
            unacked = self.core.unacked(consumer)
            if unacked < limit <= unacked + sum(self._lowered_by(ack) for ack in acks):
                what = f"{self._name(acks[0])}, behind the send that blocked consumer {consumer},"
                self._unblocked_by_order[consumer] = Command(
                    acks[0].seq, consumer, what, result=acks[0].result, blocks_again=consumer
                )

    def _lowers_counter_of(self, _command: Command) -> int | None:
        """Return the consumer whose counter of unacknowledged messages a late command lowers; nobody's, here."""
        return None

    # --- the subscription --------------------------------------------------------------------------------------------

    def _unacked(self) -> Unacked:
        """Return the unacknowledged messages of the subscription, as far as the lines have shown them."""
        s = self.core.state.s
        return Unacked(
            s.item(st_.MAX_UNACKED_SUBSCRIPTION), s.item(st_.TOTAL_UNACKED), bool(s[st_.BLOCKED_ON_UNACKED])
        )

    def _may_keep_block(self) -> bool:
        """Check whether the subscription keeps its block, or its lack of one, with the late commands or without them."""
        now = self._unacked()
        late = sum(self._lowered_by(command) for command in self._late_commands())
        return now.keeps_block() or replace(now, messages=now.messages - late).keeps_block()

    def _overlapping_acks(
        self, window: Window, waiting: dict[int, list[Command]], late: dict[int, list[Command]]
    ) -> list[tuple[Command, int]]:
        """Return the acks that may come before or after the sends of a round, each with the messages that it acknowledges.

        A send raises the counters between its line and that of its return.
        """
        returned = [line.seq for _at, line in self._within(window.end) if line.kind == "send_returned"]
        last_sent = max(returned, default=self._lines[window.end].seq)
        return [
            (command, messages)
            for command in chain(*waiting.values(), *late.values())
            if not command.is_fact and command.seq < last_sent and (messages := self._lowered_by(command))
        ]

    def _lowered_by(self, command: Command) -> int:
        """Return by how many messages a command that may still come lowers the counters of unacknowledged messages."""
        if command.entry < 0 or isinstance(command.result, CursorStep):
            return 0
        left = sum(word.bit_count() for word in command.words)
        return max(self.core.unacked_messages(command.entry) - left, 0)

    def _note_subscription_block(
        self, window: Window, before: Unacked, overlapping: list[tuple[Command, int]]
    ) -> None:
        """Open a fact if it depends on overlapping acks whether the sends of a round leave the subscription blocked.

        ``before``: the unacknowledged messages at its beginning.
        """
        after = self._unacked()
        opened = [fact for fact in self._facts if fact.subscription_blocked is not None]
        if opened:
            if not after.keeps_block():
                self._facts = [fact for fact in self._facts if fact not in opened]
            return
        acked = sum(messages for _ack, messages in overlapping)
        sent = sum(
            self.core.unacked_messages(entry)
            for _at, line in self._within(window.end)
            if line.kind == "sent"
            for entry in line.recorded["positions"]
            if entry >= 0
        )
        contested = (
            before.may_be_unblocked(sent, acked) if after.blocked else before.may_be_blocked(sent, acked)
        )
        if contested and overlapping:
            ack = overlapping[0][0]
            what = f"{self._name(ack)}, before or after a send,"
            fact = Command(ack.seq, ack.connection, what, subscription_blocked=not after.blocked)
            self._facts.append(fact)
