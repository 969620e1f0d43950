"""The ring of a consistent-hashing selector as arrays: points ascending, and whose each one is.

A hash belongs to the owner of the smallest point at or above it, else of the lowest point. Which consumer has a point is
for the selectors to say; they differ in that only. A change says so for a few points and gets the *arcs* back that end at
them: no hash outside of these can have another owner than before, so what moved is found in time proportional to the
points of one consumer, however many are on the ring.

>>> ring = Ring()
>>> _ = ring.change({10: 1, 30: 1})
>>> ring.change({20: 2, 30: NOBODY}).changed_hands(1, 40)
Impacted(removed={1: ((11, 20),)}, added={2: ((11, 20),)})
>>> ring.owners_of(np.array([5, 11, 21])).tolist()
[1, 2, 1]
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.selectors.assignments import ANY_HASH, Impacted, Range, changed_hands
from dispatch_core.selectors.selector import Same

I64 = npt.NDArray[np.int64]

NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Arcs:
    """Stretches of the ring with one owner before a change and one after it, ascending; the last lies above all points.

    ``starts``, ``ends``: closed, of every hash there is, whatever range the selector reports.
    """

    starts: I64
    ends: I64
    before: I64
    after: I64

    def changed_hands(self, first: int, last: int, same: Same = operator.eq) -> Impacted:
        """What moved, of the hashes ``first`` to ``last`` that a range report covers."""
        changed = np.flatnonzero(self.before != self.after)
        starts, ends = self.starts[changed], self.ends[changed]
        before, after = self.before[changed], self.after[changed]
        low, high = np.maximum(starts, first), np.where(ends == ANY_HASH, last, ends)
        if same is operator.eq:
            inside = low <= high
            low, high, before, after = low[inside], high[inside], before[inside], after[inside]
            removed, added = joined(low, high, before), joined(low, high, after)
            return Impacted(removed, added, (starts, ends))
        stretches = zip(low.tolist(), high.tolist(), _or_none(before), _or_none(after), strict=True)
        return changed_hands((item for item in stretches if item[0] <= item[1]), (starts, ends), same)


def joined(starts: I64, ends: I64, owners: I64) -> dict[int, tuple[Range, ...]]:
    """The ascending, disjoint ranges of each owner, touching ones joined; owners in the order in which they come up.

    >>> joined(np.array([0, 10, 20, 40]), np.array([9, 19, 29, 49]), np.array([7, 7, 8, NOBODY]))
    {7: ((0, 19),), 8: ((20, 29),)}
    """
    order = np.argsort(owners, kind="stable")
    order = order[owners[order] != NOBODY]
    if not len(order):
        return {}
    starts, ends, owners = starts[order], ends[order], owners[order]
    apart = (owners[1:] != owners[:-1]) | (starts[1:] > ends[:-1] + 1)
    begins = np.flatnonzero(np.append(True, apart))
    closes = np.append(begins[1:], len(owners)) - 1
    ranges = list(zip(starts[begins].tolist(), ends[closes].tolist(), strict=True))
    cuts = np.flatnonzero(np.append(True, owners[begins][1:] != owners[begins][:-1]))
    of_owner = [
        (owner, tuple(ranges[start:stop]))
        for owner, start, stop in zip(
            owners[begins][cuts].tolist(), cuts.tolist(), [*cuts[1:].tolist(), len(begins)], strict=True
        )
    ]
    of_owner.sort(key=lambda item: item[1][0])
    return dict(of_owner)


class Ring:
    """Points and their owners. Owners are numbers; what they mean beside ``NOBODY`` is the selector's."""

    def __init__(self) -> None:
        self.points: I64 = np.empty(0, np.int64)  # ascending
        self.owners: I64 = np.empty(0, np.int64)  # of each point

    def change(self, owners: Mapping[int, int]) -> Arcs:
        """Points get these owners; ``NOBODY`` takes one off the ring. Returns every arc that ends at one of them."""
        touched = np.fromiter(sorted(owners), np.int64, len(owners))
        given = np.fromiter((owners[point] for point in touched.tolist()), np.int64, len(owners))
        at, before, below = self._looked_up(touched)
        known = np.zeros(len(touched), bool)
        inside = at < len(self.points)
        known[inside] = self.points[at[inside]] == touched[inside]
        stays = given != NOBODY
        self.owners[at[known & stays]] = given[known & stays]
        if (known & ~stays).any():
            gone = at[known & ~stays]
            self.points, self.owners = np.delete(self.points, gone), np.delete(self.owners, gone)
        new = ~known & stays
        if new.any():
            places = np.searchsorted(self.points, touched[new])
            self.points = np.insert(self.points, places, touched[new])
            self.owners = np.insert(self.owners, places, given[new])
        _, after, below_now = self._looked_up(touched)
        return Arcs(np.maximum(below, below_now) + 1, np.append(touched, ANY_HASH), before, after)

    def indexes_of(self, hashes: I64) -> I64:
        """The point each hash belongs to, as an index. Only for a ring with points."""
        at = np.searchsorted(self.points, hashes)
        at[at == len(self.points)] = 0
        return at

    def owners_of(self, hashes: I64) -> I64:
        """The owner of each hash; ``NOBODY`` on an empty ring."""
        if not len(self.points):
            return np.full(len(hashes), NOBODY, dtype=np.int64)
        return self.owners[self.indexes_of(hashes)]

    def owner_of(self, sticky_hash: int) -> int | None:
        """The owner of one hash; None on an empty ring."""
        if not len(self.points):
            return None
        at = int(np.searchsorted(self.points, sticky_hash))
        return int(self.owners[at if at < len(self.points) else 0])

    def pairs(self) -> list[tuple[int, int]]:
        """(point, owner), ascending."""
        return list(zip(self.points.tolist(), self.owners.tolist(), strict=True))

    def _looked_up(self, points: I64) -> tuple[I64, I64, I64]:
        """Index, owner and next lower point (-1 = none) of each of ``points``; the last two also of what is above all."""
        at = np.searchsorted(self.points, points)
        n = len(self.points)
        if not n:
            nothing = np.full(len(points) + 1, NOBODY, np.int64)
            return at, nothing, nothing
        padded = np.append(at, n)
        return (
            at,
            self.owners[np.where(padded < n, padded, 0)],
            np.where(padded > 0, self.points[padded - 1], -1),
        )


def _or_none(owners: I64) -> list[int | None]:
    return [None if owner == NOBODY else owner for owner in owners.tolist()]
