"""Follow the lines of a trace that issue and attempt reads, and say which reads are pending at a moment.

Whether one is pending is known from the state that the comparison computes from the lines; the lines add where it was
issued.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.audit.waits.no_read import PendingReads
from dispatch_core.broker.multiple_consumers import MultipleConsumersDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.state import PENDING_READ, PENDING_REPLAY
from dispatch_core.verify.inputs import Line

_ISSUED: Final = ("read_issued", "replay_read_issued")


class TracedReads:
    """Lines of reads up to a moment: call ``take`` for each line, in order."""

    def __init__(self) -> None:
        self._issued = dict.fromkeys(_ISSUED, 0)  # the last line of each kind
        self._attempted_us: int | None = None

    def take(self, line: Line) -> None:
        """Take a line."""
        if line.kind in _ISSUED:
            self._issued[line.kind] = line.seq
        elif line.kind == "read_attempt":
            self._attempted_us = line.t_us

    def pending(self, core: MultipleConsumersDispatcher | SingleActiveDispatcher) -> PendingReads:
        """Return the reads that are pending in the state of ``core``, which has taken the same lines."""
        if isinstance(core, SingleActiveDispatcher):
            normal, replay = core.pending, False
        else:
            normal, replay = bool(core.state.s[PENDING_READ]), bool(core.state.s[PENDING_REPLAY])
        kind = "replay_read_issued" if replay else "read_issued"
        seq = self._issued[kind] or None if normal or replay else None
        return PendingReads(normal, replay, seq, self._attempted_us)
