"""The positions of the entries that have left a window, as runs.

Entries of a ledger follow each other, so a ledger is one run, or a few. Example: 3:0 to 3:99 and 3:101 to 4:7 were dropped;
the runs are 3:0-99, 3:101-150 and 4:0-7. A late line that names 3:50 names an entry that was stored and is settled; one that
names 3:100 names an entry that the message log does not hold.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np

from dispatch_core.arrays.columns import Ints, Mask
from dispatch_core.recording.checkpoint import Position

#: Runs that are kept. The oldest are forgotten, twice as many at once.
MOST_RUNS: Final = 4_096


class DroppedPositions:
    """Positions that were dropped, in order."""

    def __init__(self) -> None:
        #: The last one; ``None`` = none was dropped.
        self.last: Position | None = None
        self._firsts: list[Position] = []
        self._lasts: list[int] = []  # entry ids

    def add(self, ledger: Ints, entry: Ints) -> None:
        """Add the next positions, all behind those before."""
        if not len(ledger):
            return
        goes_on = (ledger[1:] == ledger[:-1]) & (entry[1:] == entry[:-1] + 1)
        starts = np.concatenate([[0], np.flatnonzero(~goes_on) + 1])
        ends = np.concatenate([starts[1:], [len(ledger)]]) - 1
        firsts = list(zip(ledger[starts].tolist(), entry[starts].tolist(), strict=True))
        lasts = entry[ends].tolist()
        if self.last is not None and firsts[0] == (self.last[0], self.last[1] + 1):
            self._lasts[-1] = lasts.pop(0)
            del firsts[0]
        self._firsts += firsts
        self._lasts += lasts
        self.last = int(ledger[-1]), int(entry[-1])
        if len(self._firsts) > 2 * MOST_RUNS:
            del self._firsts[:-MOST_RUNS], self._lasts[:-MOST_RUNS]

    def hold(self, ledger: Ints, entry: Ints) -> Mask:
        """Mask the positions that were dropped, and are known to be."""
        found = [self._holds(position) for position in zip(ledger.tolist(), entry.tolist(), strict=True)]
        return np.array(found, np.bool_)

    def _holds(self, position: Position) -> bool:
        at = bisect_right(self._firsts, position) - 1
        return at >= 0 and self._firsts[at][0] == position[0] and position[1] <= self._lasts[at]
