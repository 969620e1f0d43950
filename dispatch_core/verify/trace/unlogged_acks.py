"""Verify a trace of several consumers that has no lines for the effect of acks: 3.x and 4.0.0-preview.1.

Pending acks are a plain map there (``Consumer.pendingAcks``), and a trace has no line for the moment at which an ack takes
effect. It takes effect on the client's I/O thread, as soon as it has arrived, in three parts: the pending ack goes and its
consumer may be unblocked, the unacked counter is lowered, the cursor deletes. So the plain order puts them at the ``ack``
line; where a window needs another order, each of them may come as late as the connection's next line.

A flow that arrives while a round runs has come before the send to that consumer if its line stands before the
send's, in the plain order: the line of a send says when its permits were charged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from dispatch_core.broker.multiple_consumers import Acked
from dispatch_core.broker.state import I64, MAX_UNACKED_CONSUMER
from dispatch_core.verify.inputs import Line
from dispatch_core.verify.trace.driver import acknowledged_by, who
from dispatch_core.verify.trace.multiple_consumers import MultipleConsumersVerifier
from dispatch_core.verify.trace.races import Command

_REMOVE, _LOWER, _DELETE = range(3)

#: What a redelivery request still has to do: parked permits count.
_PARKED: Final = "parked permits"


@dataclass(slots=True)
class _Ack:
    """An acknowledged entry, the consumer that acknowledges it, and what the first part did."""

    entry: int
    by: int
    begun: Acked | None = None  # None: not begun, or pending on nobody


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an ack: what a late command still has to do."""

    ack: _Ack
    part: int


class UnloggedAcksVerifier(MultipleConsumersVerifier):
    """State of one verification, as for 4.x, except for the effect of acks."""

    acks_are_logged: ClassVar[bool] = False

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """See ``Driver``: acks of which a part is still to be done."""
        super()._change_ordinals(change)
        parts = [command.result for command in self._commands() if isinstance(command.result, _Part)]
        for ack in {id(part.ack): part.ack for part in parts}.values():
            ack.entry = change(ack.entry)

    # --- acks ----------------------------------------------------------------------------------------------------

    def _on_ack(self, line: Line) -> None:
        connection = self.connection(who(line))
        self._settle(connection, flows=True)
        if line.inputs["ack_type"] != "Individual":
            return  # cumulative acks mean nothing to Key_Shared and Shared
        commands = [self._arrival(line, entry, words) for entry, words in acknowledged_by(line) if entry >= 0]
        for command in commands:
            holder = self._holder_of_ack(command)
            if holder is not None:
                messages = self.core.unacked_messages(command.entry)
                self._effects_open.ack(command.connection, line.seq, holder, messages, entry=command.entry)
            self._comes_to_cursor(command)
        acks = [
            (command, _Ack(command.entry, command.connection)) for command in commands if not command.applied
        ]
        for parts in ((_REMOVE, _LOWER), (_DELETE,)):
            for command, ack in acks:
                for part in parts:
                    late = Command(command.seq, command.connection, command.what, entry=command.entry)
                    late.result = _Part(ack, part)
                    connection.late.append(late)

    def _holder_of_ack(self, command: Command) -> int | None:
        """Return the consumer whose counter an ack lowers, also if a decision has shown it to come first."""
        return (
            command.result
            if isinstance(command.result, int)
            else self.core.holder(command.entry, command.connection)
        )

    def _acknowledges(self, command: Command) -> int:
        """See ``ShownStateDriver``: the last part of an ack."""
        part = command.result
        return part.ack.entry if isinstance(part, _Part) and part.part == _DELETE else -1

    def _lowers(self, command: Command, consumer: int) -> tuple[int, bool]:
        """See ``ShownStateDriver``: the parts of an ack."""
        if command.result is _PARKED:
            return 0, command.connection == consumer
        if not isinstance(command.result, _Part):
            return super()._lowers(command, consumer)
        ack, part = command.result.ack, command.result.part
        begun = ack.begun
        holder = self.core.holder(ack.entry, ack.by) if begun is None else begun.consumer
        messages = self.core.unacked_messages(ack.entry) if begun is None else begun.messages
        if holder != consumer:
            return 0, False
        if part == _REMOVE:
            return 0, 2 * self.core.unacked(consumer) <= int(self.core.state.s[MAX_UNACKED_CONSUMER])
        return (messages if part == _LOWER else 0), False

    def begin_command(self, command: Command) -> object:
        """Apply an ack that has arrived in full; no later line shows more of it."""
        holder = self.core.holder(command.entry, command.connection)
        self.core.ack(command.entry, command.connection)
        return holder

    def finish_command(self, command: Command) -> None:
        """Apply the last step of a redelivery request, a part of an ack, or an ack that arrived in the window in full."""
        if command.result is _PARKED:
            self.core.flow_parked(command.connection)
        elif isinstance(command.result, _Part):
            self._do(command.result.ack, command.result.part)
        else:
            self.core.ack(command.entry, command.connection)

    def _on_redeliver(self, line: Line) -> None:
        """Apply a redelivery request: lower the counter, call the dispatcher (the line), then count parked permits."""
        consumer, wanted = who(line), line.inputs["positions"]
        self._settle(self.connection(consumer), flows=True)
        pending = self.core.pending_on(consumer)
        requested = pending if wanted is None else sorted(set(pending) & set(wanted))
        for entry in requested:
            self.core.pending_ack_removed(entry, consumer)
        messages = self.core.add_requested(consumer, requested)
        self.core.lower_for_redelivery(consumer, messages, everything=wanted is None)
        command = Command(line.seq, consumer, "redelivery request", result=_PARKED)
        self.connection(consumer).late.append(command)
        parked = int(self.core.state.parked_permits[self.core.slot(consumer)])
        self._effects_open.ack(consumer, line.seq, consumer, 0, permits=parked)

    def _do(self, ack: _Ack, part: int) -> None:
        if part == _REMOVE:
            ack.begun = self.core.begin_ack(ack.entry, ack.by)
        elif part == _LOWER:
            if ack.begun is not None:
                self.core.end_ack(ack.begun.consumer, ack.begun.messages)
        else:
            self.core.acknowledge(ack.entry)

    # --- windows -------------------------------------------------------------------------------------------------

    def _note_contested_blocks(self, unacked: I64, waiting: dict[int, list[Command]]) -> None:
        """Include acks that come after the window in the plain order: they may have come before its sends."""
        for command in self._peeked.values():
            if not command.applied:
                waiting.setdefault(command.connection, []).append(command)
        super()._note_contested_blocks(unacked, waiting)
