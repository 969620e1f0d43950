"""PIP-34's own illustration of a hash layer: the busiest consumer's range is split. No release ships it.

PIP-34 introduced Key_Shared with a pluggable layer between hash and consumer, and three demands: every consumer has a
fixed range, all of them together cover the hash space, and after a removal the rest still does. Its picture splits the
range of the consumer with the highest dispatch rate and gives the upper half to the joining consumer; a closing consumer's
range goes to the adjacent consumer with the lower rate. The selector that ships (``auto_split``) looks at width instead of
rate, gives the lower half to the joining consumer, and always gives a range to the neighbour of the same side.

>>> rates = {1: 10.0, 2: 20.0, 3: 5.0}
>>> selector = RateSplitSelector(rates.__getitem__)
>>> for number in (1, 2, 3):
...     _ = selector.add(number, f"c{number}")
>>> selector.assignments().ranges
((0, 32767, 1), (32768, 49151, 2), (49152, 65535, 3))
>>> _ = selector.remove(2)  # between c1 and c3, of which c3 is the less busy one
>>> selector.assignments().ranges
((0, 32767, 1), (32768, 65535, 3))
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.assignments import UNCHANGED, Assignments, Impacted, impacted
from dispatch_core.broker.selectors.selector import Announced
from dispatch_core.errors import SelectorRefusedError


class RateSplitSelector:
    """Adjacent closed ranges, one per consumer, that cover the hash space."""

    def __init__(self, rate: Callable[[int], float], range_size: int = hashing.DEFAULT_RANGE_SIZE) -> None:
        """``rate``: messages per second that a connected consumer is sent at present."""
        self._rate = rate
        self._size = range_size
        self._ranges: list[tuple[int, int, int]] = []  # (start, end, consumer), ascending

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Give ``consumer`` the upper half of the busiest consumer's range, the lowest range among equally busy ones.

        Raises ``SelectorRefusedError`` when that range is a single slot.
        """
        before = self.assignments()
        if not self._ranges:
            self._ranges = [(0, self._size - 1, consumer)]
            return impacted(before, self.assignments())
        at = max(range(len(self._ranges)), key=lambda i: self._rate(self._ranges[i][2]))
        start, end, busiest = self._ranges[at]
        if start == end:
            raise SelectorRefusedError(
                consumer, f"the range of C{busiest}, the busiest consumer, is one slot"
            )
        middle = (start + end + 1) // 2
        self._ranges[at : at + 1] = [(start, middle - 1, busiest), (middle, end, consumer)]
        return impacted(before, self.assignments())

    def remove(self, consumer: int) -> Impacted:
        """Give the range of ``consumer`` to its less busy neighbour, the lower one among equally busy ones."""
        before = self.assignments()
        at = next((i for i, item in enumerate(self._ranges) if item[2] == consumer), None)
        if at is None:
            return UNCHANGED
        start, end, _ = self._ranges.pop(at)
        neighbours = [i for i in (at - 1, at) if 0 <= i < len(self._ranges)]
        if neighbours:
            heir = min(neighbours, key=lambda i: self._rate(self._ranges[i][2]))
            low, high, owner = self._ranges[heir]
            self._ranges[heir] = (min(low, start), max(high, end), owner)
        return impacted(before, self.assignments())

    def select(self, sticky_hash: int) -> int | None:
        """Return the owner of the slot ``sticky_hash % range_size``; None while nobody is connected."""
        at = bisect_left(self._ranges, sticky_hash % self._size, key=lambda item: item[1])
        return self._ranges[at][2] if self._ranges else None

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Apply ``select`` to a whole array; -1 for nobody."""
        ends = np.asarray([end for _, end, _ in self._ranges], dtype=np.int64)
        owners = np.asarray([*(owner for _, _, owner in self._ranges), -1], dtype=np.int64)
        return owners[np.searchsorted(ends, self.places(sticky_hashes))]

    def places(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the slot of each hash."""
        return sticky_hashes % self._size

    def assignments(self) -> Assignments:
        """Return the ranges in order."""
        return Assignments(tuple(self._ranges))
