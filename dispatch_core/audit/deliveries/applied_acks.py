"""Times at which acknowledgements took effect, as far as a trace shows them.

Example: the ack of 3:7 arrives at seq 20, the line ``pending_ack_removed`` of 3:7 stands at seq 24. An entry 3:7 that is
sent at seq 30 was thus sent although its acknowledgement had been applied; one that is sent at seq 22 was sent before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints, marked, valid

Ints = npt.NDArray[np.int64]

#: Kinds of lines that show it.
APPLIED_KINDS = ("pending_ack_removed", "mark_delete")


class AppliedAcks:
    """Removals of pending acks and moves of the mark-delete position, over the batches of one log.

    State between two batches: one row per removed position and per move, in the order of the lines; those about entries
    that the audit has dropped are forgotten.
    """

    def __init__(self, *, removals_logged: bool) -> None:
        """``removals_logged``: the log shows removals, in any of its lines. Traces of Failover and Exclusive do not."""
        # A mark-delete position that did not move proves nothing by itself.
        self._removals_logged = removals_logged
        self._rows: Ints = np.empty((0, 4), np.int64)  # seq, ledger, entry, 1 = mark-delete

    def take(self, events: pa.Table) -> None:
        """Take the next lines."""
        rows = [self._rows]
        removals = np.flatnonzero(marked(events["kind"], "pending_ack_removed") & valid(events["positions"]))
        if len(removals):
            lists = events["positions"].take(pa.array(removals))
            seqs = np.repeat(ints(events["seq"])[removals], ints(pc.list_value_length(lists)))
            rows.append(_rows(seqs, pc.list_flatten(lists), 0))
        moves = marked(events["kind"], "mark_delete")
        if moves.any():
            at = np.flatnonzero(moves & valid(events["mark_delete"]))
            rows.append(_rows(ints(events["seq"])[at], events["mark_delete"].take(pa.array(at)), 1))
        if len(rows) > 1:
            joined = np.concatenate(rows)
            self._rows = joined[np.argsort(joined[:, 0], kind="stable")]

    def forget(self, ledger: int, entry: int) -> None:
        """Forget what concerns only entries before a position."""
        ledgers, entries = self._rows[:, 1], self._rows[:, 2]
        self._rows = self._rows[(ledgers > ledger) | ((ledgers == ledger) & (entries >= entry))]

    @property
    def room(self) -> int:
        """Rows in memory."""
        return len(self._rows)

    def between(self, ledger: int, entry: int, ack_seq: int, sent_seq: int) -> bool | None:
        """Check whether an ack was applied between its arrival and a delivery; ``None`` if the log does not show it."""
        low = int(np.searchsorted(self._rows[:, 0], ack_seq, side="right"))
        high = int(np.searchsorted(self._rows[:, 0], sent_seq))
        _, ledgers, entries, moved = self._rows[low:high].T
        same = (ledgers == ledger) & (entries == entry)
        reached = (moved == 1) & ((ledgers > ledger) | ((ledgers == ledger) & (entries > entry)))
        if (same | reached).any():
            return True
        return False if self._removals_logged else None


def _rows(seqs: Ints, positions: pa.ChunkedArray, moved: int) -> Ints:
    ledgers, entries = (ints(pc.struct_field(positions, name)) for name in ("ledger_id", "entry_id"))
    return np.column_stack([seqs, ledgers, entries, np.full(len(seqs), moved)])
