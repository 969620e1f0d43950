"""Key_Shared AUTO_SPLIT by consistent hashing in which the later joiner takes a point over (3.0.7+, 3.3.2+; 2.6).

A point is the hash of ``name NUL index NUL number``; the index distinguishes consumers of the same name. A consumer that
joins later replaces the owner of a point, and the point is gone for both once the later one leaves.

2.6 has the same ring with the hash of ``name number`` for a point, so consumers of one name have the same points: the last
one to join has all the keys (until #8396; ``indexed=False``).

Source: ConsistentHashingStickyKeyConsumerSelector, ConsumerNameIndexTracker (#23327); of 2.6 #6791, #8396.

>>> selector = ReplacingPointsSelector(replica_points=3)
>>> for number in (1, 2, 3):
...     _ = selector.add(number, f"consumer{number}")
>>> selector.points()[:3]
[(95615212, 3), (440020355, 1), (455987436, 1)]
"""

from __future__ import annotations

import operator
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.assignments import NOBODY, UNCHANGED, Assignments, Impacted
from dispatch_core.broker.selectors.names import CountedNameIndexes
from dispatch_core.broker.selectors.ring import Ring
from dispatch_core.broker.selectors.selector import Announced, Same

LAST: Final = (1 << 31) - 2  # where the report of the wrap-around range ends; hashes go one further


class ReplacingPointsSelector:
    """The ring, each point with its owner."""

    def __init__(self, replica_points: int, same: Same = operator.eq, *, indexed: bool = True) -> None:
        """``indexed``: a point is made of name, index of the name and number; else of name and number."""
        self._point = _point if indexed else _point_without_index
        self._replica_points = replica_points
        self._same = same
        self._owners: dict[int, int] = {}  # point → consumer
        self._ring = Ring()  # the same as arrays
        self._indexes = CountedNameIndexes()
        self._names: dict[int, str] = {}

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Put ``consumer`` on the ring, in place of the owners of its points."""
        self._names[consumer] = name
        owners: dict[int, int] = {}
        for j in range(self._replica_points):
            index = self._indexes.point_added(consumer, name)
            point = self._point(name, index, j)
            replaced = self._owners.get(point)
            self._owners[point] = owners[point] = self._meet(replaced, consumer)
            if replaced is not None:
                self._indexes.point_gone(replaced if self._owners[point] == consumer else consumer)
        return self._ring.change(owners).moved(0, LAST, self._same)

    def remove(self, consumer: int) -> Impacted:
        """Take the points off the ring that ``consumer`` still owns."""
        index, name = self._indexes.get(consumer), self._names.pop(consumer, None)
        if index is None or name is None:
            return UNCHANGED
        owners: dict[int, int] = {}
        for j in range(self._replica_points):
            point = self._point(name, index, j)
            if self._owners.get(point) == consumer:
                del self._owners[point]
                owners[point] = NOBODY
                self._indexes.point_gone(consumer)
        return self._ring.change(owners).moved(0, LAST, self._same)

    def select(self, sticky_hash: int) -> int | None:
        """Return the owner of the smallest point at or above the hash, else of the lowest point."""
        return self._ring.owner_of(sticky_hash)

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Apply ``select`` to a whole array; -1 for nobody."""
        return self._ring.owners_of(sticky_hashes)

    def places(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the hashes themselves."""
        return sticky_hashes

    def assignments(self) -> Assignments:
        """Return the range report: a range per point, neighbours of an owner not joined, and the wrap-around range."""
        points, owners = self._ring.points.tolist(), self._ring.owners.tolist()
        starts = [0, *(point + 1 for point in points)]
        ranges = list(zip(starts, points, owners, strict=False))
        if points:
            ranges.append((starts[-1], LAST, owners[0]))
        return Assignments(tuple(ranges))

    def points(self) -> list[tuple[int, int]]:
        """Return the (point, owner) pairs, ascending."""
        return self._ring.pairs()

    @staticmethod
    def _meet(_owner: int | None, joining: int) -> int:
        """Return the owner of a point after ``joining`` came to it: always ``joining``."""
        return joining


def _point(name: str, index: int, j: int) -> int:
    return hashing.h31(hashing.utf8(f"{name}\0{index}\0{j}"))


def _point_without_index(name: str, _index: int, j: int) -> int:
    return hashing.h31(hashing.utf8(f"{name}{j}"))
