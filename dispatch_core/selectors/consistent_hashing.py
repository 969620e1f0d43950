"""Key_Shared AUTO_SPLIT by consistent hashing, as 4.x does it.

Every consumer puts ``replica_points`` points on a ring: the hash of ``name NUL index NUL j``. A hash belongs to the
owner of the smallest point at or above it, else of the lowest point. When two consumers meet on one point, the one that
came first keeps it; the others queue in join order and inherit it when the owner leaves.

Source: ConsistentHashingStickyKeyConsumerSelector, ConsumerNameIndexTracker (#23352, #23423, #23441, #23447).

>>> selector = ConsistentHashingSelector(replica_points=100)
>>> for number, name in enumerate(("c1", "c2", "c3"), start=1):
...     _ = selector.add(number, name)
>>> selector.select(11858)  # key-1
2
>>> selector.assignments().slots() == {1: 20340, 2: 21396, 3: 23799}
True
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

from dispatch_core import hashing
from dispatch_core.selectors.assignments import Assignments, Impacted, impacted
from dispatch_core.selectors.names import NameIndexes
from dispatch_core.selectors.selector import Announced, Same


class ConsistentHashingSelector:
    """The ring, with its owners and the queues behind them."""

    def __init__(
        self,
        replica_points: int,
        space: hashing.HashSpace = hashing.CONSISTENT_4X,
        same: Same = operator.eq,
    ) -> None:
        """``same``: the broker's ``equals`` of two consumers, used where it compares owners."""
        self._same = same
        self._replica_points = replica_points
        self._space = space
        self._points: list[int] = []  # ascending
        self._queues: dict[int, list[int]] = {}  # point → owner first, then who waits for it
        self._names = NameIndexes()
        self._members: dict[int, str] = {}

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Put ``consumer`` on the ring; returns the ranges that changed hands."""
        before = self.assignments()
        index = self._names.allocate(consumer, name)
        self._members[consumer] = name
        for point in self._points_of(name, index):
            queue = self._queues.get(point)
            if queue is None:
                self._queues[point] = [consumer]
                insort(self._points, point)
            else:
                self._meet(queue, consumer)
        return impacted(before, self.assignments(), self._same)

    def remove(self, consumer: int) -> Impacted:
        """Take ``consumer`` off the ring; the next in each point's queue inherits. Unknown consumers change nothing."""
        before = self.assignments()
        name = self._members.pop(consumer, None)
        index = self._names.release(consumer)
        if name is None or index is None:
            return Impacted({}, {})
        for point in self._points_of(name, index):
            queue = self._queues[point]
            queue.remove(consumer)
            if not queue:
                del self._queues[point]
                del self._points[bisect_left(self._points, point)]
        return impacted(before, self.assignments(), self._same)

    def select(self, sticky_hash: int) -> int | None:
        """The consumer that owns ``sticky_hash``; ``None`` while nobody is connected."""
        if not self._points:
            return None
        at = bisect_left(self._points, sticky_hash)
        return self._queues[self._points[at if at < len(self._points) else 0]][0]

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """``select`` for a whole array; -1 for nobody."""
        if not self._points:
            return np.full(len(sticky_hashes), -1, dtype=np.int64)
        at = np.searchsorted(np.asarray(self._points, dtype=np.int64), sticky_hashes)
        owners = np.asarray([self._queues[point][0] for point in self._points], dtype=np.int64)
        return owners[at % len(owners)]

    def assignments(self) -> Assignments:
        """The range report: neighbours of one owner joined, the wrap-around range last."""
        if not self._points:
            return Assignments()
        owners = [(point, self._queues[point][0]) for point in self._points]
        if owners[-1][0] < self._space.last:
            owners.append((self._space.last, owners[0][1]))
        ranges: list[tuple[int, int, int]] = []
        start = self._space.start
        for at, (point, owner) in enumerate(owners, start=1):
            if at == len(owners) or owners[at][1] != owner:
                ranges.append((start, point, owner))
                start = point + 1
        return Assignments(tuple(ranges))

    def points(self) -> list[tuple[int, int]]:
        """(point, owner), ascending."""
        return [(point, self._queues[point][0]) for point in self._points]

    @staticmethod
    def _meet(queue: list[int], newcomer: int) -> None:
        """Who owns a point after ``newcomer`` came to it: the first of the queue, the newcomer waits at its end."""
        queue.append(newcomer)

    def _points_of(self, name: str, index: int) -> list[int]:
        return [
            self._space.sticky(hashing.h31(hashing.utf8(f"{name}\0{index}\0{j}")))
            for j in range(self._replica_points)
        ]
