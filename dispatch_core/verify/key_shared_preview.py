"""Verify a trace of the Key_Shared dispatcher of 4.0.0-preview.1 (last sent position, PIP-282).

Such a trace has no line for the moment at which an ack takes effect. It takes effect on the client's I/O thread, as soon
as it has arrived: pending ack, unacked counter, then the cursor. So the plain order puts all of it at the ``ack`` line, and
where a window needs another order, as late as the connection's next line.
"""

from __future__ import annotations

from dispatch_core.verify.driver import who
from dispatch_core.verify.inputs import Line
from dispatch_core.verify.key_shared import KeySharedVerifier
from dispatch_core.verify.races import Command


class PreviewVerifier(KeySharedVerifier):
    """As for 4.x, except for when acks take effect, and for the steps of a removal."""

    _leaving: int | None = None  # out of the list, still remembered as newcomer

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_selector_removed(self, line: Line) -> None:
        super()._on_selector_removed(line)
        self._leaving = who(line)

    def _on_read_attempt(self, line: Line) -> None:
        """The first attempt of a removal still knows the consumer that leaves as a newcomer."""
        super()._on_read_attempt(line)
        self._forget_leaving()

    def _on_consumer_removed(self, line: Line) -> None:
        self._forget_leaving()

    def _forget_leaving(self) -> None:
        if self._leaving is not None:
            self.core.forget(self._leaving)
            self._leaving = None

    # --- flow ----------------------------------------------------------------------------------------------------

    def _on_flow(self, line: Line) -> None:
        """Counted as it arrives, unless a window needs it later; its ``flow_counted`` line shows that it is done."""
        connection = self.connection(who(line))
        self._settle(connection, flows=True)
        command = self._arrival(line, -1)
        if not command.applied:
            connection.late.append(command)

    def _on_flow_counted(self, line: Line) -> None:
        self._settle(self.connection(who(line)), flows=True)

    # --- acks ----------------------------------------------------------------------------------------------------

    def _on_ack(self, line: Line) -> None:
        connection = self.connection(who(line))
        self._settle(connection, flows=True)
        if line.inputs["ack_type"] != "Individual":
            return  # cumulative acks mean nothing to Key_Shared
        for entry in line.inputs["positions"]:
            if entry < 0:
                continue
            command = self._arrival(line, entry)
            if not command.applied:
                connection.late.append(command)

    def begin_command(self, command: Command) -> tuple[list[int], object]:
        """All effects of an ack that has arrived; no line to come says more."""
        return self.finish_command(command), None

    def finish_command(self, command: Command) -> list[int]:
        """The pending ack of whoever holds it, the holder's counters, then the cursor."""
        holder = self.core.holder(command.entry)
        told = 0
        if holder is not None:
            messages = self.core.unacked_messages(command.entry)
            self.core.pending_ack_removed(command.entry)
            told = self.core.ack_begins(holder) + self.core.ack_ends(holder, messages)
        self.core.acknowledge(command.entry)
        return [holder] * told if holder is not None else []
