"""Facts about a whole trace that say how its lines are to be read. They are found before the first line is verified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import encoded
from dispatch_core.recording.checkpoint import Position
from dispatch_core.recording.load_order import named_extent

#: Columns of the events that the facts are found in.
FACT_COLUMNS: Final = ("kind", "ranges", "positions")
#: Lines about reads: a log with any of them is a dispatcher trace.
READ_LINES: Final = ("read_done", "read_issued", "read_attempt")


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Facts about the lines of one incarnation.

    Attributes:
        reads_logged: the log has lines about reads: it is a dispatcher trace.
        consumers_added: number of ``consumer_added`` lines.
        ranges_announced: a consumer announces key hash ranges.
        counting_logged: the log shows when permits were counted (``flow_counted``).
        attempts_logged: the log shows read attempts. Traces of a heavy load leave them out.
        reads_before_attempts: number of reads that were issued before the first read attempt that the log shows. A recorder
            that leaves attempts out under a heavy load may write those that come when the load is over.
        reads_framed: every read that was issued stands in a read attempt.
        notices_logged: the log shows notices of the active consumer.
        removals_logged: the log shows removals of pending acks.
        cursor_ops_logged: the log shows operations on the cursor, cumulative acknowledgements among them.
        lowest_sent: the lowest position that was sent; ``None`` = nothing was sent.
    """

    reads_logged: bool = False
    consumers_added: int = 0
    ranges_announced: bool = False
    counting_logged: bool = False
    attempts_logged: bool = False
    reads_before_attempts: int = 0
    reads_framed: bool = True
    notices_logged: bool = False
    removals_logged: bool = False
    cursor_ops_logged: bool = False
    lowest_sent: Position | None = None
    _inside_attempt: bool = False  # at the last line

    @property
    def attempts_from_the_start(self) -> bool:
        """True if the log shows read attempts from its beginning on; one line may be missing."""
        return self.attempts_logged and self.reads_before_attempts <= 1

    def with_lines(self, events: pa.Table) -> TraceFacts:
        """Return the facts about these lines and the next ones, ``events`` (``FACT_COLUMNS``)."""
        codes, words = encoded(events["kind"])
        counts = dict(zip(words.to_pylist(), np.bincount(codes, minlength=len(words)).tolist(), strict=True))

        def rows(*kinds: str) -> npt.NDArray[np.intp]:
            return np.flatnonzero(np.isin(codes, [at for at, word in enumerate(counts) if word in kinds]))

        added, attempts = rows("consumer_added"), rows("read_attempt")
        reads = rows("read_issued", "replay_read_issued")
        first_attempt = 0 if self.attempts_logged else attempts[0] if len(attempts) else len(codes)
        ranges = pc.list_value_length(events["ranges"].take(pa.array(added)))
        inside, framed = self._framed(attempts, rows("read_attempt_end"), reads)
        return replace(
            self,
            reads_logged=self.reads_logged or any(counts.get(kind, 0) for kind in READ_LINES),
            consumers_added=self.consumers_added + len(added),
            ranges_announced=self.ranges_announced or (pc.max(ranges).as_py() or 0) > 0,
            counting_logged=self.counting_logged or counts.get("flow_counted", 0) > 0,
            attempts_logged=self.attempts_logged or len(attempts) > 0,
            reads_before_attempts=self.reads_before_attempts + int(np.count_nonzero(reads < first_attempt)),
            reads_framed=self.reads_framed and framed,
            notices_logged=self.notices_logged or counts.get("active_notified", 0) > 0,
            removals_logged=self.removals_logged or counts.get("pending_ack_removed", 0) > 0,
            cursor_ops_logged=self.cursor_ops_logged or counts.get("cursor_op", 0) > 0,
            lowest_sent=self._lowest(events.select(["positions"]).take(pa.array(rows("sent")))),
            _inside_attempt=inside,
        )

    def _framed(
        self, begins: npt.NDArray[np.intp], ends: npt.NDArray[np.intp], reads: npt.NDArray[np.intp]
    ) -> tuple[bool, bool]:
        """Check whether the last line is inside a read attempt, and whether all reads are; each given by its rows."""
        edges = np.sort(np.concatenate([begins, ends]))
        # The number of edges before a line is the place of the last one, counted from 1; 0 = of the lines before.
        inside = np.append(self._inside_attempt, np.isin(edges, begins))
        return bool(inside[-1]), bool(inside[np.searchsorted(edges, reads)].all())

    def _lowest(self, sent: pa.Table) -> Position | None:
        """Return the lowest position sent by now; ``sent``: the positions of the lines."""
        lowest, _ = named_extent(sent)
        known = [
            position for position in (self.lowest_sent, lowest) if position is not None and position >= (0, 0)
        ]
        return min(known, default=None)
