"""Track commands of clients that were under way while a single-active dispatcher decided.

A flow command takes effect between the line of its arrival and the first line that shows it done: ``flow_counted``, or the
next command of that connection, for one I/O thread takes them in order. An ack that moves nothing has no line of its own; it
is through when the next command of its connection arrives. The plain order lets both take effect when they arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dispatch_core.verify.inputs import Line

#: Number of a consumer's latest flow commands that may race with one decision.
MAX_FLOWS: Final = 64


@dataclass(slots=True)
class _Flow:
    seq: int
    permits: int
    done_at: int | None = None  # seq of the first line that shows it done
    applied: bool = False  # has reached the dispatcher


class FlowHistory:
    """The latest flow commands of each consumer."""

    def __init__(self) -> None:
        self._of: dict[int, deque[_Flow]] = {}

    def arrived(self, consumer: int, seq: int, permits: int) -> None:
        """Take a ``flow`` line."""
        self._of.setdefault(consumer, deque(maxlen=MAX_FLOWS)).append(_Flow(seq, permits))

    def counted(self, consumer: int, seq: int) -> None:
        """Mark the flows that arrived before the line ``seq`` of this connection as counted."""
        for flow in reversed(self._of.get(consumer, ())):
            if flow.done_at is not None:
                return
            flow.done_at = seq

    def applied(self, consumer: int) -> int:
        """Take a ``flow_applied`` line; returns the ``seq`` at which its command arrived, 0 if that is not known."""
        flow = next((flow for flow in self._of.get(consumer, ()) if not flow.applied), None)
        if flow is None:
            return 0
        flow.applied = True
        return flow.seq

    def other_permits(self, consumer: int, permits: int, since: int) -> Iterator[tuple[int, int]]:
        """Yield the permits that a consumer may have had from line ``since`` to now (now: ``permits``).

        Each comes with the ``seq`` of the flow that makes the difference. Flows done before ``since`` do not race.
        """
        racing = [
            flow for flow in self._of.get(consumer, ()) if flow.done_at is None or flow.done_at >= since
        ]
        if racing:
            yield permits, racing[-1].seq
        for flow in reversed(racing):
            permits -= flow.permits
            yield permits, flow.seq


class AckHistory:
    """Lines at which acknowledgements were certainly through."""

    def __init__(self) -> None:
        self._through_at: dict[int, int] = {}  # entry -> seq
        self._under_way: dict[int, list[int]] = {}  # consumer -> entries

    def arrived(self, consumer: int, entry: int) -> None:
        """Take an ``ack`` line that names ``entry``."""
        self._under_way.setdefault(consumer, []).append(entry)

    def through(self, consumer: int, seq: int) -> None:
        """Take another command of this connection, at line ``seq``: its acks before are through."""
        for entry in self._under_way.pop(consumer, ()):
            self._through_at.setdefault(entry, seq)

    def drop(self, count: int) -> None:
        """Forget acks of the first ``count`` entries; the ordinals of the others are lowered by it."""
        self._through_at = {entry - count: seq for entry, seq in self._through_at.items() if entry >= count}
        self._under_way = {
            consumer: [entry - count for entry in entries if entry >= count]
            for consumer, entries in self._under_way.items()
        }

    def may_be_after(self, entry: int, seq: int) -> bool:
        """Check whether the ack of ``entry`` may have taken effect after line ``seq``."""
        return self._through_at.get(entry, seq + 1) > seq

    def any_under_way(self, low: int, high: int) -> bool:
        """Check for an ack of an entry in [``low``, ``high``) that has arrived and may not be through."""
        return any(low <= entry < high for entries in self._under_way.values() for entry in entries)


@dataclass(slots=True)
class Attempt:
    """A read attempt of the trace that has not issued a read (yet)."""

    line: Line
    size: int | None  # what the core would read then
    rewinder: bool  # by the thread that has just rewound, not by the dispatcher's executor
    limited: bool = False  # a dispatch rate was in force: it may have read less, or nothing
