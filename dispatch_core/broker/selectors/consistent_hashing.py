"""Key_Shared AUTO_SPLIT by consistent hashing, as 4.x does it.

Every consumer puts ``replica_points`` points on a ring: the hash of ``name NUL index NUL j``. A hash belongs to the
owner of the smallest point at or above it, else of the lowest point. When two consumers meet on a point, the first one keeps
it; the others queue in join order and inherit it when the owner leaves.

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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.assignments import I64, NOBODY, UNCHANGED, Assignments, Impacted
from dispatch_core.broker.selectors.names import NameIndexes
from dispatch_core.broker.selectors.ring import Ring
from dispatch_core.broker.selectors.selector import Announced, Same


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
        self._queues: dict[
            int, list[int]
        ] = {}  # point where consumers met → owner first, then those who wait for it
        self._ring = Ring()  # the owners alone
        self._names = NameIndexes()
        self._members: dict[int, str] = {}

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Put ``consumer`` on the ring; returns the ranges that moved."""
        index = self._names.allocate(consumer, name)
        self._members[consumer] = name
        points = self._points_of(name, index)
        owners = self._ring.owners_at(points.once)
        for at in np.flatnonzero(owners != NOBODY).tolist():
            owners[at] = self._join_queue(int(points.once[at]), int(owners[at]), consumer)
        owners[owners == NOBODY] = consumer
        for point in points.again:
            self._join_queue(point, consumer, consumer)
        return self._changed(points.once, owners)

    def remove(self, consumer: int) -> Impacted:
        """Take ``consumer`` off the ring; the next in each point's queue inherits. Unknown consumers change nothing."""
        name = self._members.pop(consumer, None)
        index = self._names.release(consumer)
        if name is None or index is None:
            return UNCHANGED
        points = self._points_of(name, index)
        owners = np.full(len(points.once), NOBODY, np.int64)
        for at, point in enumerate(points.once.tolist()):
            if point in self._queues:
                owners[at] = self._leave_queue(point, consumer)
        return self._changed(points.once, owners)

    def _join_queue(self, point: int, owner: int, joining: int) -> int:
        """Add ``joining`` to the queue of a point that ``owner`` has; returns the owner then."""
        queue = self._queues.setdefault(point, [owner])
        self._meet(queue, joining)
        return queue[0]

    def _leave_queue(self, point: int, consumer: int) -> int:
        queue = [queued for queued in self._queues[point] if queued != consumer]
        if queue:
            self._queues[point] = queue
        else:
            del self._queues[point]
        return queue[0] if queue else NOBODY

    def _changed(self, points: I64, owners: I64) -> Impacted:
        return self._ring.put(points, owners).moved(self._space.start, self._space.last, self._same)

    def select(self, sticky_hash: int) -> int | None:
        """Return the consumer that owns ``sticky_hash``; ``None`` while nobody is connected."""
        return self._ring.owner_of(sticky_hash)

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Apply ``select`` to a whole array; -1 for nobody."""
        return self._ring.owners_of(sticky_hashes)

    def places(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the hashes themselves."""
        return sticky_hashes

    def assignments(self) -> Assignments:
        """Return the range report: neighbours of an owner joined, the wrap-around range last."""
        points, owners = self._ring.points, self._ring.owners
        if not len(points):
            return Assignments()
        if points[-1] < self._space.last:
            points, owners = np.append(points, self._space.last), np.append(owners, owners[0])
        at = np.flatnonzero(np.append(owners[1:] != owners[:-1], True))
        ends = points[at].tolist()
        starts = [self._space.start, *(end + 1 for end in ends[:-1])]
        return Assignments(tuple(zip(starts, ends, owners[at].tolist(), strict=True)))

    def points(self) -> list[tuple[int, int]]:
        """Return the (point, owner) pairs, ascending."""
        return self._ring.pairs()

    @staticmethod
    def _meet(queue: list[int], joining: int) -> None:
        """Append ``joining`` to a point's queue; the first of the queue stays the owner."""
        queue.append(joining)

    def _points_of(self, name: str, index: int) -> _Points:
        return _points(self._space, self._replica_points, name, index)


@dataclass(frozen=True, slots=True)
class _Points:
    """The points of a consumer, ascending, each ``once``; and those that occur ``again``."""

    once: I64
    again: tuple[int, ...]


@lru_cache(maxsize=4096)
def _points(space: hashing.HashSpace, replica_points: int, name: str, index: int) -> _Points:
    """Make the points of a name; cached, as names recur in every dispatcher of a service and at every restart."""
    texts = [hashing.utf8(f"{name}\0{index}\0{j}") for j in range(replica_points)]
    points = space.sticky_array(hashing.h31_array(texts))
    once, times = np.unique(points, return_counts=True)
    return _Points(once, tuple(np.repeat(once, times - 1).tolist()))
