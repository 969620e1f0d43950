"""Range assignments of a Key_Shared selector, and what a membership change moved.

Source: ConsumerHashAssignmentsSnapshot (4.x). A snapshot is the ordered list of closed ranges with their owners; two
snapshots are compared by sweeping their overlaps. Most of two neighbouring snapshots is alike; that is passed over.

>>> before = Assignments(((1, 65535, 1),))
>>> after = Assignments(((1, 99, 2), (100, 65535, 1)))
>>> impacted(before, after)
Impacted(removed={1: ((1, 99),)}, added={2: ((1, 99),)})
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inline as inline

I64 = npt.NDArray[np.int64]
Range = tuple[int, int]
#: Ranges with their owners, ascending and disjoint.
Owned = tuple[tuple[int, int, int], ...]
#: Start, end (closed), owner before and owner after; None = nobody.
Stretch = tuple[int, int, int | None, int | None]
#: Starts and ends of closed ranges.
Bounds = tuple[I64, I64]

#: The end of a range that reaches to the highest hash, whatever that is.
ANY_HASH: Final = (1 << 63) - 1

NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Assignments:
    """Closed ranges ``(start, end, consumer)``, ascending and disjoint."""

    ranges: Owned = ()

    def of(self, consumer: int) -> tuple[Range, ...]:
        """The ranges of one consumer."""
        return tuple((start, end) for start, end, owner in self.ranges if owner == consumer)

    def slots(self) -> dict[int, int]:
        """The number of hashes that each consumer owns."""
        owned: dict[int, int] = {}
        for start, end, owner in self.ranges:
            owned[owner] = owned.get(owner, 0) + end - start + 1
        return owned


@dataclass(frozen=True, slots=True)
class OwnedRanges:
    """Closed ranges and whose each one is, as columns: ascending and disjoint."""

    starts: I64
    ends: I64
    owners: I64

    def __len__(self) -> int:
        return len(self.starts)

    def by_owner(self) -> dict[int, tuple[Range, ...]]:
        """The ranges of each owner; owners in the order in which they come up."""
        ranges: dict[int, list[Range]] = {}
        rows = zip(self.starts.tolist(), self.ends.tolist(), self.owners.tolist(), strict=True)
        for start, end, owner in rows:
            ranges.setdefault(owner, []).append((start, end))
        return {owner: tuple(own) for owner, own in ranges.items()}


def joined(starts: I64, ends: I64, owners: I64) -> OwnedRanges:
    """Ascending, disjoint ranges without those of ``NOBODY``, touching ones of one owner joined.

    >>> joined(np.array([0, 10, 20, 40]), np.array([9, 19, 29, 49]), np.array([7, 7, 8, NOBODY])).by_owner()
    {7: ((0, 19),), 8: ((20, 29),)}
    """
    ranges = np.empty((3, len(starts)), np.int64)
    return OwnedRanges(*ranges[:, : _join(starts, ends, owners, ranges)])


@compiled
def _join(starts: I64, ends: I64, owners: I64, ranges: I64) -> int:
    count = 0
    for i in range(len(starts)):
        count = joined_on(ranges, count, starts[i], ends[i], owners[i])
    return count


@inline
def joined_on(ranges: I64, count: int, start: int, end: int, owner: int) -> int:
    """Put a range behind the first ``count`` of ``ranges`` (start, end, owner), or join it to the last; returns how many
    there are then. One of ``NOBODY`` is left out.
    """
    if owner == NOBODY:
        return count
    # What touches another range is next to it: nothing can lie in between.
    if count > 0 and ranges[2, count - 1] == owner and start <= ranges[1, count - 1] + 1:
        ranges[1, count - 1] = end
        return count
    ranges[0, count], ranges[1, count], ranges[2, count] = start, end, owner
    return count + 1


_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True, repr=False, eq=False)
class Impacted:
    """Ranges that consumers lost and won by one membership change, touching ones merged: the broker's report of it.

    ``touched``: where a hash has to lie (``Selector.places``) for the selector to choose another consumer than before;
    None = anywhere. It is no part of the broker's report: it says which hashes need not be looked up again.
    """

    lost: OwnedRanges
    won: OwnedRanges
    touched: Bounds | None = None

    @cached_property
    def removed(self) -> dict[int, tuple[Range, ...]]:
        """The ranges that each consumer lost."""
        return self.lost.by_owner()

    @cached_property
    def added(self) -> dict[int, tuple[Range, ...]]:
        """The ranges that each consumer won."""
        return self.won.by_owner()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Impacted):
            return NotImplemented
        return self.removed == other.removed and self.added == other.added

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Impacted(removed={self.removed}, added={self.added})"


def unreported(touched: Bounds) -> Impacted:
    """A change of which the broker says nothing."""
    nothing = OwnedRanges(_NONE, _NONE, _NONE)
    return Impacted(nothing, nothing, touched)


#: Nothing changed hands.
UNCHANGED: Final = unreported((_NONE, _NONE))


def impacted(
    before: Assignments, after: Assignments, same: Callable[[int, int], bool] = operator.eq
) -> Impacted:
    """Compare two snapshots. ``same``: the broker's ``equals`` of two consumers (client address and id)."""
    stretches = [item for item in _overlaps(*_unlike(before.ranges, after.ranges)) if item[2] != item[3]]
    bounds = np.asarray([item[:2] for item in stretches], dtype=np.int64).reshape(-1, 2)
    return changed_hands(stretches, (bounds[:, 0], bounds[:, 1]), same)


def changed_hands(
    stretches: Iterable[Stretch], touched: Bounds, same: Callable[[int, int], bool] = operator.eq
) -> Impacted:
    """The ranges that moved, from the ascending, disjoint ``stretches`` of hashes with another owner than before."""
    moved = [
        (start, end, NOBODY if old is None else old, NOBODY if new is None else new)
        for start, end, old, new in stretches
        if old is None or new is None or not same(old, new)
    ]
    columns = np.ascontiguousarray(np.asarray(moved, dtype=np.int64).reshape(-1, 4).T)
    starts, ends, before, after = columns
    return Impacted(joined(starts, ends, before), joined(starts, ends, after), touched)


def contains(ranges: tuple[Range, ...], hash_value: int) -> bool:
    """True if a hash lies in one of the ascending, disjoint ``ranges``."""
    index = bisect_left(ranges, hash_value, key=lambda item: item[1])
    return index < len(ranges) and ranges[index][0] <= hash_value


def _unlike(before: Owned, after: Owned) -> tuple[Owned, Owned]:
    """Both without the ranges that they begin and end with alike."""
    shorter = min(len(before), len(after))
    first = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    rest = shorter - first
    last = next((at for at in range(rest) if before[-1 - at] != after[-1 - at]), rest)
    return before[first : len(before) - last], after[first : len(after) - last]


def _overlaps(before: Owned, after: Owned) -> Iterator[Stretch]:
    """Every maximal stretch with one owner before and one after; ``None`` where a side has none."""
    bounds = sorted(
        {edge for ranges in (before, after) for start, end, _ in ranges for edge in (start, end + 1)}
    )
    positions = [0, 0]
    for start, following in pairwise(bounds):
        owners: list[int | None] = []
        for side, ranges in enumerate((before, after)):
            while positions[side] < len(ranges) and ranges[positions[side]][1] < start:
                positions[side] += 1
            at = positions[side]
            owners.append(ranges[at][2] if at < len(ranges) and ranges[at][0] <= start else None)
        if owners[0] is not None or owners[1] is not None:
            yield start, following - 1, owners[0], owners[1]
