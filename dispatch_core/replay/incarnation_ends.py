"""Ends of the incarnations of a dispatcher: as of when each is judged, and the entries published by then.

An incarnation is judged until the next one begins: what it had not sent by then is the next one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import ints, replaced
from dispatch_core.times import from_micros

#: Stands for a publish time that an entry does not say.
_UNKNOWN_MS: Final = np.iinfo(np.int64).min


def judged_until(last_us: int | None, later_begins_us: Sequence[int], interval_end: datetime) -> datetime:
    """Return as of when the waits of an incarnation are judged.

    >>> end = from_micros(86_400_000_000)
    >>> [str(judged_until(5_000_000, begins_us, end)) for begins_us in ([], [9_000_000], [2_000_000])]
    ['1970-01-02 00:00:00+00:00', '1970-01-01 00:00:09+00:00', '1970-01-01 00:00:05.000001+00:00']

    Args:
        last_us: time of its last line, in microseconds since the epoch; ``None`` where no line has a time.
        later_begins_us: times of the first lines of the incarnations after it. Where the first of them begins before this
            one's last line, this one is judged until just behind that line, so that none of its lines is left out.
        interval_end: end of the interval; never later than that.
    """
    if not later_begins_us:
        return interval_end
    begins_us = min(later_begins_us)
    until_us = begins_us if last_us is None else max(begins_us, last_us + 1)
    return min(interval_end, from_micros(until_us))


class StoredEntries:
    """Entries by the end of the incarnation in whose time they were published; feed it all entries of the topic."""

    def __init__(self, start_us: int, ends_us: Sequence[int]) -> None:
        """Count from ``start_us`` on; ``ends_us``: the end of each incarnation, microseconds since the epoch."""
        self._start_ms = start_us // 1000
        self._ends_ms = [end_us // 1000 for end_us in ends_us]
        self._edges_ms = np.unique(np.array(self._ends_ms, np.int64))
        self._counts = np.zeros(len(self._edges_ms) + 1, np.int64)

    def add(self, messages: pa.Table) -> None:
        """Count the entries that say when they were published."""
        published_ms = ints(messages["publish_time_ms"], _UNKNOWN_MS)
        published_ms = published_ms[published_ms >= max(self._start_ms, _UNKNOWN_MS + 1)]
        at = np.searchsorted(self._edges_ms, published_ms, "right")
        self._counts += np.bincount(at, minlength=len(self._counts))

    def count(self, incarnation: int) -> int:
        """Return how many entries were published before the end of an incarnation."""
        at = int(np.searchsorted(self._edges_ms, self._ends_ms[incarnation]))
        return int(self._counts[: at + 1].sum())

    def counted(self, state: pa.Table, incarnation: int) -> pa.Table:
        """Return the row of ``dispatcher_state`` of an incarnation with its ``entries_stored``."""
        return replaced(state, {"entries_stored": [self.count(incarnation)]})
