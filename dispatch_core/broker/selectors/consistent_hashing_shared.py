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
from bisect import insort
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.assignments import NOBODY, UNCHANGED, Assignments, Impacted, unreported
from dispatch_core.broker.selectors.ring import Ring
from dispatch_core.broker.selectors.selector import Announced, Same, any_equal, grouped, utf16

#: On the ring, in place of an owner: the point has several, see its list.
_SHARED: Final = -2


class SharedPointsSelector:
    """The ring, each point with its list of consumers."""

    def __init__(self, replica_points: int, separator: str = "", same: Same = operator.eq) -> None:
        """``separator``: what stands between name and number of a point, NUL from #22053 on."""
        self._replica_points = replica_points
        self._separator = separator
        self._same = same
        self._lists: dict[int, list[int]] = {}  # point → consumers by name
        self._ring = Ring()
        self._names: dict[int, str] = {}

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Put ``consumer`` on the ring, unless one that equals it is on the point already.

        The broker does not report what moved: where consumers share a point by hash, no range has a single owner.
        """
        self._names[consumer] = name
        changed = []
        for point in self._points_of(name):
            listed = self._lists.setdefault(point, [])
            if not any_equal(listed, consumer, self._same):
                insort(listed, consumer, key=lambda number: utf16(self._names[number]))
                changed.append(point)
        return self._changed(changed)

    def remove(self, consumer: int) -> Impacted:
        """Take ``consumer``, and whoever equals it, off the points of its name."""
        name = self._names.get(consumer)
        if name is None:
            return UNCHANGED
        changed = sorted(set(self._points_of(name)) & self._lists.keys())
        for point in changed:
            left = [other for other in self._lists[point] if not self._same(other, consumer)]
            if left:
                self._lists[point] = left
            else:
                del self._lists[point]
        return self._changed(changed)

    def select(self, sticky_hash: int) -> int | None:
        """Return number ``hash % length`` of the list at the smallest point at or above the hash, else at the lowest."""
        owner = int(self.select_array(np.asarray([sticky_hash], dtype=np.int64))[0])
        return None if owner == NOBODY else owner

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Apply ``select`` to a whole array; -1 for nobody."""
        owners = self._ring.owners_of(sticky_hashes)
        shared = np.flatnonzero(owners == _SHARED)
        if len(shared):
            hashes = sticky_hashes[shared]
            used, which = np.unique(self._ring.indexes_of(hashes), return_inverse=True)
            lists = [self._lists[point] for point in self._ring.points[used].tolist()]
            lengths = np.asarray([len(listed) for listed in lists], dtype=np.int64)
            first = np.cumsum(lengths) - lengths
            listed = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
            owners[shared] = listed[first[which] + self._share(hashes, lengths[which])]
        return owners

    def places(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the hashes themselves."""
        return sticky_hashes

    def assignments(self) -> Assignments:
        """Return the range report: a range per point and consumer on it, from 0 to the highest point, not beyond."""
        points = self._ring.points.tolist()
        starts = [0, *(point + 1 for point in points[:-1])]
        ranges = (
            (start, point, consumer)
            for start, point in zip(starts, points, strict=False)
            for consumer in self._lists[point]
        )
        return Assignments(grouped(ranges, self._same))

    def _changed(self, points: list[int]) -> Impacted:
        """Return the change of these points' lists: any hash that belongs to one of them may have another owner."""
        lists = {point: self._lists.get(point, []) for point in points}
        arcs = self._ring.change(
            {p: _SHARED if len(has) > 1 else has[0] if has else NOBODY for p, has in lists.items()}
        )
        return unreported((arcs.starts, arcs.ends))

    @staticmethod
    def _share(sticky_hash: npt.NDArray[np.int64], consumers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the index of the consumer that gets a hash, among those that share its point."""
        return sticky_hash % consumers

    def _points_of(self, name: str) -> list[int]:
        return [hashing.h31(hashing.utf8(f"{name}{self._separator}{j}")) for j in range(self._replica_points)]
