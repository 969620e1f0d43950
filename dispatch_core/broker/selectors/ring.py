"""The ring of a consistent-hashing selector as arrays: points, ascending, and their owners.

A hash belongs to the owner of the smallest point at or above it, else of the lowest point. The selectors decide which
consumer has a point; they differ in that only. A change sets the owners of a few points and returns the *arcs* that end at
them: no hash outside of these has another owner than before. So what moved is found in time proportional to the points of
a consumer, however many points are on the ring.

>>> ring = Ring()
>>> _ = ring.change({10: 1, 30: 1})
>>> ring.change({20: 2, 30: NOBODY}).moved(1, 40)
Impacted(removed={1: ((11, 20),)}, added={2: ((11, 20),)})
>>> ring.owners_of(np.array([5, 11, 21])).tolist()
[1, 2, 1]
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.selectors.assignments import (
    ANY_HASH,
    I64,
    NOBODY,
    Impacted,
    OwnedRanges,
    joined_on,
    moved_ranges,
)
from dispatch_core.broker.selectors.selector import Same


@dataclass(frozen=True, slots=True)
class Arcs:
    """Arcs of the ring with a single owner before a change and after it, ascending; the last lies above all points.

    ``starts``, ``ends``: closed, over all hashes, whatever range the selector reports.
    """

    starts: I64
    ends: I64
    before: I64
    after: I64

    def moved(self, first: int, last: int, same: Same = operator.eq) -> Impacted:
        """Return the ranges that moved, of the hashes ``first`` to ``last`` that a range report covers."""
        if same is operator.eq:
            room = len(self.starts)
            touched, lost, won = np.empty((2, room), np.int64), *np.empty((2, 3, room), np.int64)
            counts = np.zeros(3, np.int64)
            _write_moved(
                self.starts, self.ends, self.before, self.after, first, last, touched, lost, won, counts
            )
            n_touched, n_lost, n_won = counts.tolist()
            bounds = touched[0, :n_touched], touched[1, :n_touched]
            return Impacted(OwnedRanges(*lost[:, :n_lost]), OwnedRanges(*won[:, :n_won]), bounds)
        changed = np.flatnonzero(self.before != self.after)
        starts, ends = self.starts[changed], self.ends[changed]
        before, after = self.before[changed], self.after[changed]
        low, high = np.maximum(starts, first), np.where(ends == ANY_HASH, last, ends)
        arcs = zip(low.tolist(), high.tolist(), _or_none(before), _or_none(after), strict=True)
        return moved_ranges((arc for arc in arcs if arc[0] <= arc[1]), (starts, ends), same)


class Ring:
    """Points and their owners. Owners are numbers; except for ``NOBODY`` the selector gives them their meaning."""

    def __init__(self) -> None:
        self.points: I64 = np.empty(0, np.int64)  # ascending
        self.owners: I64 = np.empty(0, np.int64)  # of each point

    def change(self, owners: Mapping[int, int]) -> Arcs:
        """Set the owners of points, ``NOBODY`` to take a point off the ring; returns every arc that ends at one of them."""
        points = sorted(owners)
        return self.put(np.array(points, np.int64), np.array([owners[point] for point in points], np.int64))

    def put(self, touched: I64, given: I64) -> Arcs:
        """Apply ``change`` to arrays: points, ascending, each once, and their new owners."""
        room = len(self.points) + len(touched)
        points, owners = np.empty(room, np.int64), np.empty(room, np.int64)
        below, before, after = np.full((3, len(touched) + 1), NOBODY, np.int64)
        arc_ends = np.append(touched, ANY_HASH)
        _look_up(self.points, self.owners, arc_ends, below, before)
        count = _put(self.points, self.owners, touched, given, points, owners)
        self.points, self.owners = points[:count], owners[:count]
        _look_up(self.points, self.owners, arc_ends, below, after)
        return Arcs(below + 1, arc_ends, before, after)

    def owners_at(self, points: I64) -> I64:
        """Return the owners of these points (ascending); ``NOBODY`` where the ring has no such point."""
        owners = np.empty(len(points), np.int64)
        _owners_at(self.points, self.owners, points, owners)
        return owners

    def indexes_of(self, hashes: I64) -> I64:
        """Return the index of the point each hash belongs to. Only for a ring with points."""
        at = np.searchsorted(self.points, hashes)
        at[at == len(self.points)] = 0
        return at

    def owners_of(self, hashes: I64) -> I64:
        """Return the owner of each hash; ``NOBODY`` on an empty ring."""
        if not len(self.points):
            return np.full(len(hashes), NOBODY, dtype=np.int64)
        return self.owners[self.indexes_of(hashes)]

    def owner_of(self, sticky_hash: int) -> int | None:
        """Return the owner of a hash; None on an empty ring."""
        if not len(self.points):
            return None
        at = int(np.searchsorted(self.points, sticky_hash))
        return int(self.owners[at if at < len(self.points) else 0])

    def pairs(self) -> list[tuple[int, int]]:
        """Return the (point, owner) pairs, ascending."""
        return list(zip(self.points.tolist(), self.owners.tolist(), strict=True))


@compiled
def _look_up(points: I64, owners: I64, ends: I64, below: I64, owner: I64) -> None:
    """Write for each of ``ends`` its owner, and the next lower point, unless ``below`` has a higher one."""
    at = 0
    for i in range(len(ends)):
        while at < len(points) and points[at] < ends[i]:
            at += 1
        if at > 0:
            below[i] = max(below[i], points[at - 1])
        if len(points):
            owner[i] = owners[at if at < len(points) else 0]


@compiled
def _owners_at(points: I64, owners: I64, wanted: I64, found: I64) -> None:
    at = 0
    for i in range(len(wanted)):
        while at < len(points) and points[at] < wanted[i]:
            at += 1
        found[i] = owners[at] if at < len(points) and points[at] == wanted[i] else NOBODY


@compiled
def _write_moved(
    starts: I64,
    ends: I64,
    before: I64,
    after: I64,
    first: int,
    last: int,
    touched: I64,
    lost: I64,
    won: I64,
    counts: I64,
) -> None:
    """Write the arcs with another owner than before, and the ranges lost and won of the hashes ``first`` to ``last``.

    Ranges are (start, end, owner) columns; ``counts`` gets the number of arcs, of ranges lost and of ranges won.
    """
    for i in range(len(starts)):
        if before[i] == after[i]:
            continue
        touched[0, counts[0]], touched[1, counts[0]] = starts[i], ends[i]
        counts[0] += 1
        low = max(starts[i], first)
        high = last if ends[i] == ANY_HASH else ends[i]
        if low <= high:
            counts[1] = joined_on(lost, counts[1], low, high, before[i])
            counts[2] = joined_on(won, counts[2], low, high, after[i])


@compiled
def _put(points: I64, owners: I64, touched: I64, given: I64, new_points: I64, new_owners: I64) -> int:
    """Merge two ascending lists of points, the ``touched`` ones in place of equal ones; returns how many there are."""
    at = count = 0
    for i in range(len(touched) + 1):
        while at < len(points) and (i == len(touched) or points[at] < touched[i]):
            new_points[count], new_owners[count] = points[at], owners[at]
            at += 1
            count += 1
        if i < len(touched):
            if at < len(points) and points[at] == touched[i]:
                at += 1
            if given[i] != NOBODY:
                new_points[count], new_owners[count] = touched[i], given[i]
                count += 1
    return count


def _or_none(owners: I64) -> list[int | None]:
    return [None if owner == NOBODY else owner for owner in owners.tolist()]
