"""Key_Shared AUTO_SPLIT by consistent hashing in which the later joiner takes a point over (3.0.7+, 3.3.2+).

A point is the hash of ``name NUL index NUL number``, the index telling consumers of one name apart. Whoever comes later
replaces the owner of a point, and the point is gone for both once that one leaves.

Source: ConsistentHashingStickyKeyConsumerSelector, ConsumerNameIndexTracker (#23327).

>>> selector = ReplacingPointsSelector(replica_points=3)
>>> for number in (1, 2, 3):
...     _ = selector.add(number, f"consumer{number}")
>>> selector.points()[:3]
[(95615212, 3), (440020355, 1), (455987436, 1)]
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core import hashing
from dispatch_core.selectors.assignments import Assignments, Impacted, impacted
from dispatch_core.selectors.names import CountedNameIndexes
from dispatch_core.selectors.selector import Announced, Same

LAST: Final = (1 << 31) - 2  # where the report of the wrap-around range ends; hashes go one further


class ReplacingPointsSelector:
    """The ring, each point with its one owner."""

    def __init__(self, replica_points: int, same: Same = operator.eq) -> None:
        self._replica_points = replica_points
        self._same = same
        self._points: list[int] = []  # ascending
        self._owners: dict[int, int] = {}  # point → consumer
        self._indexes = CountedNameIndexes()
        self._names: dict[int, str] = {}

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Put ``consumer`` on the ring, in place of whoever is on its points."""
        before = self.assignments()
        self._names[consumer] = name
        for j in range(self._replica_points):
            index = self._indexes.point_added(consumer, name)
            point = _point(name, index, j)
            replaced = self._owners.get(point)
            self._owners[point] = self._meet(replaced, consumer)
            if replaced is None:
                insort(self._points, point)
            else:
                self._indexes.point_gone(replaced if self._owners[point] == consumer else consumer)
        return impacted(before, self.assignments(), self._same)

    def remove(self, consumer: int) -> Impacted:
        """Take the points off the ring that ``consumer`` still owns."""
        before = self.assignments()
        index, name = self._indexes.get(consumer), self._names.pop(consumer, None)
        if index is None or name is None:
            return Impacted({}, {})
        for j in range(self._replica_points):
            point = _point(name, index, j)
            if self._owners.get(point) == consumer:
                del self._owners[point]
                del self._points[bisect_left(self._points, point)]
                self._indexes.point_gone(consumer)
        return impacted(before, self.assignments(), self._same)

    def select(self, sticky_hash: int) -> int | None:
        """The owner of the smallest point at or above the hash, else of the lowest point."""
        if not self._points:
            return None
        at = bisect_left(self._points, sticky_hash)
        return self._owners[self._points[at if at < len(self._points) else 0]]

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """``select`` for a whole array; -1 for nobody."""
        if not self._points:
            return np.full(len(sticky_hashes), -1, dtype=np.int64)
        at = np.searchsorted(np.asarray(self._points, dtype=np.int64), sticky_hashes)
        owners = np.asarray([self._owners[point] for point in self._points], dtype=np.int64)
        return owners[at % len(owners)]

    def assignments(self) -> Assignments:
        """The range report: one range per point, neighbours of one owner not joined, and the wrap-around range."""
        starts = [0, *(point + 1 for point in self._points)]
        ranges = [
            (start, point, self._owners[point]) for start, point in zip(starts, self._points, strict=False)
        ]
        if self._points:
            ranges.append((starts[-1], LAST, self._owners[self._points[0]]))
        return Assignments(tuple(ranges))

    def points(self) -> list[tuple[int, int]]:
        """(point, owner), ascending."""
        return [(point, self._owners[point]) for point in self._points]

    @staticmethod
    def _meet(_owner: int | None, newcomer: int) -> int:
        """Who owns a point after ``newcomer`` came to it: always the newcomer."""
        return newcomer


def _point(name: str, index: int, j: int) -> int:
    return hashing.h31(hashing.utf8(f"{name}\0{index}\0{j}"))
