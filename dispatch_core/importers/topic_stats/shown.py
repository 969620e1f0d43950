"""What the lines of a log show to be outstanding, without anything of the time before them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.recording.checkpoint import Position


class Shown:
    """Who was sent what and is not known to be done with it: every doubt takes an entry away.

    An acknowledgement settles an entry for everybody, that of a part of a batch too. ``settled``: what was acknowledged in
    the lines taken last.
    """

    def __init__(self) -> None:
        self._held: dict[int, set[Position]] = {}
        self.settled: set[Position] = set()

    def take(self, lines: pa.Table) -> None:
        """Go over the next lines."""
        self.settled = set()
        for line in lines.select(["kind", "consumer", "positions", "ack_type"]).to_pylist():
            kind, number = line["kind"], line["consumer"]
            named = {(one["ledger_id"], one["entry_id"]) for one in line["positions"] or ()}
            if kind == "sent":
                self._held.setdefault(number, set()).update(named)
                self.settled -= named
            elif kind in ("gap", "checkpoint"):
                self._held.clear()  # what happened around it is unknown
            elif kind == "consumer_removed":
                self._held.pop(number, None)
            elif kind == "redeliver":
                self._held[number] = self._held.get(number, set()) - named if named else set()
            elif kind == "ack":
                if line["ack_type"] == "Cumulative" and named:
                    upto = max(named)
                    named |= {one for its in self._held.values() for one in its if one <= upto}
                self.settled |= named
                for its in self._held.values():
                    its.difference_update(named)

    def rows(self, number: int, row_of: Mapping[Position, int]) -> npt.NDArray[np.int64]:
        """The rows of the message log that a connection holds, ascending."""
        its = self._held.get(number, ())
        return np.array(sorted(row_of[one] for one in its if one in row_of), np.int64)
