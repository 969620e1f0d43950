"""Waits of entries from being stored to first being sent: the table ``waits``.

Percentiles are exact. A few million waits are kept in memory; of a larger interval they go into a file that the caller
provides (8 bytes each), and a percentile is found by counting over it. So memory does not follow the number of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.batches import table_of
from dispatch_core.arrays.columns import Ints, Mask, ints, valid
from dispatch_core.tables import WAITS

#: Values that are kept in memory, and read at once.
_IN_MEMORY: Final = 2_000_000
#: Equal parts into which a range of values is divided for counting.
_PARTS: Final = 4096


def waits_us(deliveries: pa.Table) -> tuple[Ints, Mask]:
    """Time from publishing to delivery of each row, in microseconds, and where it is known.

    A producer's clock that is ahead of the broker's makes negative waits.
    """
    published_ms = deliveries["publish_time_ms"]
    return ints(deliveries["t_us"]) - ints(published_ms) * 1000, valid(published_ms)


def percentiles(
    count: int, shares: Sequence[float], at_ranks: Callable[[list[int]], Sequence[int]]
) -> list[float | None]:
    """Return the values below which these shares of all lie, interpolated between two ranks as numpy does it.

    Args:
        count: number of values; without any, all percentiles are ``None``.
        shares: 0 to 1 each.
        at_ranks: returns the values of ranks, ascending, counted from 0.

    >>> percentiles(3, [0.5, 0.75], lambda ranks: [[10, 20, 40][rank] for rank in ranks])
    [20.0, 30.0]
    """
    if not count:
        return [None] * len(shares)
    places = [share * (count - 1) for share in shares]
    ranks = sorted({rank for place in places for rank in (int(place), min(int(place) + 1, count - 1))})
    value = dict(zip(ranks, map(int, at_ranks(ranks)), strict=True))
    return [_between(value[int(at)], value[min(int(at) + 1, count - 1)], at % 1) for at in places]


def _between(low: int, high: int, fraction: float) -> float:
    return low + (high - low) * fraction if fraction < 0.5 else high - (high - low) * (1 - fraction)


class EntryWaits:
    """Waits of the entries first sent in an interval. Feed it every delivery of the interval."""

    def __init__(
        self, open_file: Callable[[], IO[bytes]] | None = None, *, in_memory: int = _IN_MEMORY
    ) -> None:
        """Begin without deliveries.

        Args:
            open_file: opens an empty file for writing and reading; by default all waits are kept in memory.
            in_memory: waits above which a file is used.
        """
        self._open_file = open_file
        self._in_memory = in_memory
        self._entries = 0
        self._values: list[Ints] = []
        self._count = 0  # in ``_values``
        self._file: IO[bytes] | None = None
        self._total = 0
        self._lowest, self._highest = np.iinfo(np.int64).max, np.iinfo(np.int64).min

    def add(self, deliveries: pa.Table) -> None:
        """Add the next deliveries: rows of ``tables.DELIVERIES``. Raises ``OSError`` where the file cannot be written."""
        first = ints(deliveries["delivery_number"]) == 1
        self._entries += int(np.count_nonzero(first))
        values, known = waits_us(deliveries)
        values = values[first & known]
        if not len(values):
            return
        self._total += len(values)
        self._lowest = min(self._lowest, int(values.min()))
        self._highest = max(self._highest, int(values.max()))
        self._values.append(values)
        self._count += len(values)
        if self._count > self._in_memory and self._open_file is not None:
            if self._file is None:
                self._file = self._open_file()
            for part in self._values:
                self._file.write(part.data)
            self._values, self._count = [], 0

    def percentiles_us(self, shares: Sequence[float]) -> list[float | None]:
        """Return the waits below which these shares of all lie, interpolated between two; ``None`` without waits.

        >>> waits = EntryWaits()
        >>> waits.add(pa.table({"delivery_number": [1, 1], "publish_time_ms": [0, 0], "t_us": [1000, 3000]}))
        >>> waits.percentiles_us([0.5, 1.0])
        [2000.0, 3000.0]
        """
        return percentiles(self._total, shares, self._at_ranks)

    def row(self, identity: Mapping[str, Any], blocked: pa.Table, never_delivered: int) -> pa.Table:
        """Return the row of ``waits``.

        Args:
            identity: columns that every row begins with.
            blocked: rows of ``tables.BLOCKED`` of the same incarnation: what rules held back is summed up.
            never_delivered: entries that nobody was sent by the moment of the verdict, without unfinished ones
                (``UnsentEntries``).
        """
        half, most = self.percentiles_us([0.5, 0.99])
        row = {
            **identity,
            "entries": self._entries,
            "never_delivered": never_delivered,
            "wait_ms_p50": None if half is None else half / 1000,
            "wait_ms_p99": None if most is None else most / 1000,
            "wait_ms_max": self._highest / 1000 if self._total else None,
            "blocked_message_ms": int(ints(blocked["message_ms"]).sum()),
            "needless_message_ms": int(ints(blocked["needless_ms"]).sum()),
        }
        return table_of([row], WAITS)

    def _at_ranks(self, ranks: list[int]) -> list[int]:
        """Return the values of ranks, counted from 0."""
        if self._file is None:
            values = np.partition(np.concatenate(self._values), ranks)
            return [int(values[rank]) for rank in ranks]
        return [self._at_rank(rank) for rank in ranks]

    def _at_rank(self, rank: int) -> int:
        """Return the value of a rank: count in ever narrower ranges until the values of one can be sorted."""
        lowest, highest, inside, before = self._lowest, self._highest, self._total, 0
        while inside > self._in_memory and lowest < highest:
            width = (highest - lowest) // _PARTS + 1
            counts = np.zeros(_PARTS, np.int64)
            for values in self._chunks():
                within = values[(values >= lowest) & (values <= highest)]
                counts += np.bincount((within - lowest) // width, minlength=_PARTS)
            upto = before + np.cumsum(counts)
            part = int(np.searchsorted(upto, rank, "right"))
            before, inside = int(upto[part] - counts[part]), int(counts[part])
            lowest, highest = lowest + part * width, min(lowest + (part + 1) * width - 1, highest)
        chosen = [values[(values >= lowest) & (values <= highest)] for values in self._chunks()]
        return (
            int(np.partition(np.concatenate(chosen), rank - before)[rank - before])
            if lowest < highest
            else lowest
        )

    def _chunks(self) -> Iterator[Ints]:
        if self._file is not None:
            self._file.seek(0)
            while data := self._file.read(8 * _IN_MEMORY):
                yield np.frombuffer(data, np.int64)
        yield from self._values
