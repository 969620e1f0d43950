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
    """As for 4.x, except for when acks take effect."""

    def _on_ack(self, line: Line) -> None:
        connection = self.connection(who(line))
        self._settle(connection)
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
