"""Outstanding entries that the lines of a log prove, without knowledge of the time before them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.recording.checkpoint import Position


class Shown:
    """The entries outstanding at each consumer: any doubt about an entry removes it.

    An acknowledgement settles an entry for everybody, that of a part of a batch too. ``settled``: what was acknowledged in
    the lines taken last.
    """

    def __init__(self) -> None:
        self._outstanding: dict[int, set[Position]] = {}
        self.settled: set[Position] = set()

    def take(self, lines: pa.Table) -> None:
        """Go over the next lines."""
        self.settled = set()
        for line in lines.select(["kind", "consumer", "positions", "ack_type"]).to_pylist():
            kind, number = line["kind"], line["consumer"]
            named = {(position["ledger_id"], position["entry_id"]) for position in line["positions"] or ()}
            if kind == "sent":
                self._outstanding.setdefault(number, set()).update(named)
                self.settled -= named
            elif kind in ("gap", "checkpoint"):
                self._outstanding.clear()  # what happened around it is unknown
            elif kind == "consumer_removed":
                self._outstanding.pop(number, None)
            elif kind == "redeliver":
                self._outstanding[number] = self._outstanding.get(number, set()) - named if named else set()
            elif kind == "ack":
                if line["ack_type"] == "Cumulative" and named:
                    upto = max(named)
                    named |= {
                        position for its in self._outstanding.values() for position in its if position <= upto
                    }
                self.settled |= named
                for its in self._outstanding.values():
                    its.difference_update(named)

    def rows(self, number: int, row_of: Mapping[Position, int]) -> npt.NDArray[np.int64]:
        """The rows of the message log that a connection holds, ascending."""
        its = self._outstanding.get(number, ())
        return np.array(sorted(row_of[position] for position in its if position in row_of), np.int64)
