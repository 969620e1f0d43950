"""The order in which the loads of a topic followed each other on brokers whose clocks may differ.

A topic is loaded on one broker after the other, and each load goes on behind what the one before acknowledged. What was not
acknowledged it sends again. So positions order two loads where times cannot: a load that begins behind the beginning of
another and ends behind its end followed it. Times decide where one begins or ends with the other or lies inside it, and
between loads of one broker, which has one clock.

Example: broker b1 sends 5:0 to 5:9 at 12:00:00, and the log of b2, whose clock is a minute behind, has 5:8 to 5:19 at
11:59:01. The load of b2 is the later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import has
from dispatch_core.recording.checkpoint import Position


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a topic: its broker, and the lowest and the highest position that its lines name."""

    broker: str | None
    lowest: Position
    highest: Position

    def is_behind(self, other: Load) -> bool:
        """Check whether all positions of this load lie behind those of ``other``: they were not active at once."""
        return self._comparable(other) and self.lowest > other.highest

    def followed(self, other: Load) -> bool:
        """Check whether this load came after ``other``, by its positions."""
        return self._comparable(other) and self.lowest > other.lowest and self.highest > other.highest

    def _comparable(self, other: Load) -> bool:
        return self.broker != other.broker and (-1, -1) not in (self.lowest, other.lowest)


def in_order(loads: Sequence[Load]) -> list[int]:
    """Return the indexes of loads in the order in which they followed each other; given are they by time.

    >>> in_order([Load("b2", (5, 10), (5, 19)), Load("b1", (5, 0), (5, 9)), Load("b3", (5, 15), (5, 30))])
    [1, 0, 2]
    >>> in_order([Load("b2", (5, 9), (5, 19)), Load("b1", (5, 0), (5, 9))])
    [1, 0]
    """
    ordered: list[int] = []
    for index, load in enumerate(loads):
        place = len(ordered)
        while place and loads[ordered[place - 1]].followed(load):
            place -= 1
        ordered.insert(place, index)
    return ordered


def named_extent(events: pa.Table) -> tuple[Position, Position]:
    """The lowest and the highest position that the events name; (-1, -1) if they name none, or have no positions."""
    if not has(events, "positions"):
        return (-1, -1), (-1, -1)
    flat = pc.list_flatten(events["positions"])
    ledgers = np.asarray(pc.struct_field(flat, "ledger_id"))
    entries = np.asarray(pc.struct_field(flat, "entry_id"))
    if not len(ledgers):
        return (-1, -1), (-1, -1)
    low, high = int(ledgers.min()), int(ledgers.max())
    return (low, int(entries[ledgers == low].min())), (high, int(entries[ledgers == high].max()))
