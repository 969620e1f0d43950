"""Facts about a whole trace that say how its lines are to be read. They are found before the first line is verified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import marked
from dispatch_core.recording.stream import Position, named_extent

#: Columns of the events that the facts are found in.
FACT_COLUMNS: Final = ("kind", "ranges", "positions")


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Facts about the lines of one incarnation.

    Attributes:
        reads_logged: the log shows what was read (``read_done``): it is a dispatcher trace.
        consumers_added: number of ``consumer_added`` lines.
        ranges_announced: a consumer announces key hash ranges.
        counting_logged: the log shows when permits were counted (``flow_counted``).
        attempts_logged: the log shows read attempts. Traces of a heavy load leave them out.
        reads_framed: every read that was issued stands in a read attempt.
        notices_logged: the log shows notices of the active consumer.
        removals_logged: the log shows removals of pending acks.
        lowest_sent: the lowest position that was sent; ``None`` = nothing was sent.
    """

    reads_logged: bool = False
    consumers_added: int = 0
    ranges_announced: bool = False
    counting_logged: bool = False
    attempts_logged: bool = False
    reads_framed: bool = True
    notices_logged: bool = False
    removals_logged: bool = False
    lowest_sent: Position | None = None
    _inside_attempt: bool = False  # at the last line

    def with_lines(self, events: pa.Table) -> TraceFacts:
        """Return the facts about these lines and the next ones, ``events`` (``FACT_COLUMNS``)."""
        kinds = events["kind"]

        def shown(kind: str) -> bool:
            return bool(marked(kinds, kind).any())

        added = marked(kinds, "consumer_added")
        ranges = events["ranges"].filter(pa.array(added))
        inside, framed = self._framed(events)
        return replace(
            self,
            reads_logged=self.reads_logged or shown("read_done"),
            consumers_added=self.consumers_added + int(added.sum()),
            ranges_announced=self.ranges_announced
            or bool(pc.any(pc.greater(pc.list_value_length(ranges), 0)).as_py()),
            counting_logged=self.counting_logged or shown("flow_counted"),
            attempts_logged=self.attempts_logged or shown("read_attempt"),
            reads_framed=self.reads_framed and framed,
            notices_logged=self.notices_logged or shown("active_notified"),
            removals_logged=self.removals_logged or shown("pending_ack_removed"),
            lowest_sent=self._lowest(events),
            _inside_attempt=inside,
        )

    def _framed(self, events: pa.Table) -> tuple[bool, bool]:
        """Check whether the last line is inside a read attempt, and whether all reads of the lines are."""
        begins = marked(events["kind"], "read_attempt")
        edges = np.flatnonzero(begins | marked(events["kind"], "read_attempt_end"))
        # The number of edges before a line is the place of the last one, counted from 1; 0 = of the lines before.
        inside = np.append(self._inside_attempt, begins[edges])
        reads = np.flatnonzero(marked(events["kind"], "read_issued", "replay_read_issued"))
        return bool(inside[-1]), bool(inside[np.searchsorted(edges, reads)].all())

    def _lowest(self, events: pa.Table) -> Position | None:
        sent = events.select(["positions"]).filter(pa.array(marked(events["kind"], "sent")))
        lowest, _ = named_extent(sent)
        known = [
            position for position in (self.lowest_sent, lowest) if position is not None and position >= (0, 0)
        ]
        return min(known, default=None)
