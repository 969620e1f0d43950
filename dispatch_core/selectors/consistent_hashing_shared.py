"""Key_Shared AUTO_SPLIT by consistent hashing in which consumers share points (3.0.0 to 3.0.6, 3.1, 3.2, 3.3.0, 3.3.1).

A point is the hash of ``name`` + number of the point, from #22053 on with a NUL between them. Consumers that meet on one
point share it: they are listed by name, and a hash goes to number ``hash % length`` of the list. So equal names take
turns by hash, and without the NUL ``c1`` + ``10`` meets ``c11`` + ``0``.

Source: ConsistentHashingStickyKeyConsumerSelector (3.0.0, 3.0.4); 4.0.0-preview.1 has it too.

>>> selector = SharedPointsSelector(replica_points=100)
>>> for number, name in enumerate(("c1", "c2", "c3"), start=1):
...     _ = selector.add(number, name)
>>> [selector.select(h) for h in (414258592, 1945654540, 2034982562)]  # key-1, key-2, key-3
[1, 1, 3]
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core import hashing
from dispatch_core.selectors.assignments import Assignments, Impacted
from dispatch_core.selectors.selector import Announced, Same, grouped, utf16

NOT_REPORTED: Final = Impacted({}, {})


class SharedPointsSelector:
    """The ring, each point with its list of consumers."""

    def __init__(self, replica_points: int, separator: str = "", same: Same = operator.eq) -> None:
        """``separator``: what stands between name and number of a point, NUL from #22053 on."""
        self._replica_points = replica_points
        self._separator = separator
        self._same = same
        self._points: list[int] = []  # ascending
        self._lists: dict[int, list[int]] = {}  # point → consumers by name
        self._names: dict[int, str] = {}

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Put ``consumer`` on the ring, unless one that equals it is on the point already.

        What moved is not reported: where consumers share a point by hash, no range of hashes is anybody's own.
        """
        self._names[consumer] = name
        for point in self._points_of(name):
            listed = self._lists.get(point)
            if listed is None:
                self._lists[point] = [consumer]
                insort(self._points, point)
            elif not any(self._same(other, consumer) for other in listed):
                listed.append(consumer)
                listed.sort(key=lambda number: utf16(self._names[number]))
        return NOT_REPORTED

    def remove(self, consumer: int) -> Impacted:
        """Take ``consumer``, and whoever equals it, off the points of its name."""
        name = self._names.get(consumer)
        if name is None:
            return NOT_REPORTED
        for point in set(self._points_of(name)) & self._lists.keys():
            left = [other for other in self._lists[point] if not self._same(other, consumer)]
            if left:
                self._lists[point] = left
            else:
                del self._lists[point]
                del self._points[bisect_left(self._points, point)]
        return NOT_REPORTED

    def select(self, sticky_hash: int) -> int | None:
        """Of the list at the smallest point at or above the hash, else at the lowest: number ``hash % length``."""
        if not self._points:
            return None
        at = bisect_left(self._points, sticky_hash)
        listed = self._lists[self._points[at if at < len(self._points) else 0]]
        return listed[self._share(sticky_hash, len(listed))]

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """``select`` for a whole array; -1 for nobody."""
        owners = (self.select(value) for value in sticky_hashes.tolist())
        return np.asarray([-1 if owner is None else owner for owner in owners], dtype=np.int64)

    def assignments(self) -> Assignments:
        """The range report: one range per point and consumer on it, from 0 to the highest point, not beyond."""
        starts = [0, *(point + 1 for point in self._points[:-1])]
        ranges = (
            (start, point, consumer)
            for start, point in zip(starts, self._points, strict=False)
            for consumer in self._lists[point]
        )
        return Assignments(grouped(ranges, self._same))

    @staticmethod
    def _share(sticky_hash: int, consumers: int) -> int:
        return sticky_hash % consumers

    def _points_of(self, name: str) -> list[int]:
        return [hashing.h31(hashing.utf8(f"{name}{self._separator}{j}")) for j in range(self._replica_points)]
