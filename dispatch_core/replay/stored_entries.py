"""Count the entries of a topic that were published in an interval, for each incarnation up to its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import ints


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
        published_ms = ints(messages["publish_time_ms"].drop_null())
        published_ms = published_ms[published_ms >= self._start_ms]
        at = np.searchsorted(self._edges_ms, published_ms, "right")
        self._counts += np.bincount(at, minlength=len(self._counts))

    def count(self, incarnation: int) -> int:
        """Return how many entries were published before the end of an incarnation."""
        at = int(np.searchsorted(self._edges_ms, self._ends_ms[incarnation]))
        return int(self._counts[: at + 1].sum())

    def counted(self, state: pa.Table, incarnation: int) -> pa.Table:
        """Return the row of ``dispatcher_state`` of an incarnation with its ``entries_stored``."""
        column = state.schema.get_field_index("entries_stored")
        return state.set_column(column, state.schema.field(column), pa.array([self.count(incarnation)]))
