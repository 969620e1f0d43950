"""Count deliveries and backlog over time while the rows arrive, in the memory of the picture and not of the rows.

Times are counted in steps of a power of two microseconds. If they extend over more steps than a picture has, steps are
joined in pairs. So the result does not depend on the order and the batches of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

I64 = npt.NDArray[np.int64]

MAX_STEPS: Final = 600
_FINEST: Final = 10  # 1,024 microseconds

FIRST, AGAIN, STORED = range(3)


@dataclass(frozen=True, slots=True)
class Lines:
    """Counts per step; ``t_us`` are the starts of the steps, all ``step_us`` long.

    ``first``: first deliveries of entries; ``again``: redeliveries; ``waiting``: entries stored and not yet sent, at the end
    of the step.
    """

    step_us: int
    t_us: I64
    first: I64
    again: I64
    waiting: I64

    @property
    def total(self) -> int:
        """The number of all deliveries."""
        return int(self.first.sum() + self.again.sum())


@dataclass(slots=True)
class Flow:
    """The counts of deliveries and stored entries of one dispatcher in the interval [``start_us``, ``end_us``).

    Entries stored outside of the interval are not counted: the backlog is counted back from the interval's end.
    """

    start_us: int
    end_us: int
    _shift: int = _FINEST
    _begin: int = 0  # number of the first step
    _counts: I64 = field(default_factory=lambda: np.zeros((3, 0), np.int64))

    def deliveries(self, rows: pa.Table) -> None:
        """Add rows of ``deliveries`` (columns ``t_us``, ``delivery_number``)."""
        t_us = np.asarray(rows["t_us"], dtype=np.int64)
        again = np.asarray(rows["delivery_number"]) > 1
        self._add(FIRST, t_us[~again])
        self._add(AGAIN, t_us[again])

    def stored(self, publish_time_ms: pa.ChunkedArray) -> None:
        """Add the times at which entries were stored; unknown times are skipped."""
        known = np.asarray(publish_time_ms.drop_null(), dtype=np.int64)
        inside = (known >= self.start_us // 1000) & (known < self.end_us // 1000)
        self._add(STORED, known[inside] * 1000)

    def merged(self, stored: Flow) -> None:
        """Add the stored entries that another flow counted: those of a topic, which its subscriptions share."""
        places = np.flatnonzero(stored._counts[STORED])
        self._grow((places + stored._begin) << stored._shift, stored._shift)
        at = ((places + stored._begin) << stored._shift >> self._shift) - self._begin
        np.add.at(self._counts[STORED], at, stored._counts[STORED][places])

    def lines(self, never_sent: int = 0) -> Lines:
        """The picture's lines; ``never_sent``: entries still waiting at the interval's end."""
        first, again, stored = self._counts
        sent_later = first.sum() - np.cumsum(first)
        stored_later = stored.sum() - np.cumsum(stored)
        return Lines(
            step_us=1 << self._shift,
            t_us=(self._begin + np.arange(first.size, dtype=np.int64)) << self._shift,
            first=first,
            again=again,
            # Entries stored before the subscription began were never for it: the backlog is at least 0.
            waiting=np.maximum(never_sent + sent_later - stored_later, 0),
        )

    def _add(self, series: int, t_us: I64) -> None:
        t_us = t_us[(t_us >= self.start_us) & (t_us < self.end_us)]
        if t_us.size:
            self._grow(t_us)
            at = (t_us >> self._shift) - self._begin
            self._counts[series] += np.bincount(at, minlength=self._counts.shape[1])

    def _grow(self, t_us: I64, finest: int = _FINEST) -> None:
        """Extend the steps to cover ``t_us``, with as few joins of steps as possible."""
        if not t_us.size:
            return
        low, high = int(t_us.min()), int(t_us.max())
        size = self._counts.shape[1]
        if size:
            low = min(low, self._begin << self._shift)
            high = max(high, (self._begin + size - 1) << self._shift)
        shift = max(self._shift, finest)
        while (high >> shift) - (low >> shift) >= MAX_STEPS:
            shift += 1
        begin = low >> shift
        counts = np.zeros((3, (high >> shift) - begin + 1), np.int64)
        at = ((self._begin + np.arange(size, dtype=np.int64)) >> (shift - self._shift)) - begin
        for series in range(3):
            np.add.at(counts[series], at, self._counts[series])
        self._shift, self._begin, self._counts = shift, begin, counts


def flow_of(deliveries: pa.Table, messages: pa.Table, span_us: tuple[int, int]) -> Flow:
    """The flow of a dispatcher from complete tables."""
    flow = Flow(*span_us)
    flow.deliveries(deliveries.select(["t_us", "delivery_number"]))
    flow.stored(messages["publish_time_ms"])
    return flow
