"""Range assignments of a Key_Shared selector, and the ranges that a membership change moved.

A snapshot is the ordered list of closed ranges with their owners; two snapshots are compared by sweeping their overlaps.
Ranges that both begin or end with are passed over.

Source: ConsumerHashAssignmentsSnapshot (4.x).

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
Overlap = tuple[int, int, int | None, int | None]
#: Starts and ends of closed ranges.
Bounds = tuple[I64, I64]

#: The end of a range that reaches to the highest hash of any space.
ANY_HASH: Final = (1 << 63) - 1

NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Assignments:
    """Closed ranges ``(start, end, consumer)``, ascending and disjoint."""

    ranges: Owned = ()

    def of(self, consumer: int) -> tuple[Range, ...]:
        """Return the ranges of a consumer."""
        return tuple((start, end) for start, end, owner in self.ranges if owner == consumer)

    def slots(self) -> dict[int, int]:
        """Return the number of hashes that each consumer owns."""
        owned: dict[int, int] = {}
        for start, end, owner in self.ranges:
            owned[owner] = owned.get(owner, 0) + end - start + 1
        return owned


@dataclass(frozen=True, slots=True)
class OwnedRanges:
    """Closed ranges and their owners as columns, ascending and disjoint."""

    starts: I64
    ends: I64
    owners: I64

    def __len__(self) -> int:
        return len(self.starts)

    def by_owner(self) -> dict[int, tuple[Range, ...]]:
        """Return the ranges of each owner; owners in the order in which they appear."""
        ranges: dict[int, list[Range]] = {}
        rows = zip(self.starts.tolist(), self.ends.tolist(), self.owners.tolist(), strict=True)
        for start, end, owner in rows:
            ranges.setdefault(owner, []).append((start, end))
        return {owner: tuple(owned) for owner, owned in ranges.items()}


def joined(starts: I64, ends: I64, owners: I64) -> OwnedRanges:
    """Join touching ranges of an owner, and leave out those of ``NOBODY``; all are ascending and disjoint.

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
    """Append a range to the first ``count`` of ``ranges`` (start, end, owner), or join it to the last of them.

    A range of ``NOBODY`` is left out. Returns the new count.
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
    """Ranges that consumers lost and won by a membership change, touching ones merged, as the broker reports them.

    ``touched``: the places (``Selector.places``) of hashes that may have another owner than before; None = all. It is not
    part of the broker's report: hashes elsewhere need not be looked up again.
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
    """Return a change that the broker does not report."""
    nothing = OwnedRanges(_NONE, _NONE, _NONE)
    return Impacted(nothing, nothing, touched)


#: Nothing moved.
UNCHANGED: Final = unreported((_NONE, _NONE))


def impacted(
    before: Assignments, after: Assignments, same: Callable[[int, int], bool] = operator.eq
) -> Impacted:
    """Compare two snapshots. ``same``: the broker's ``equals`` of two consumers (client address and id)."""
    changed = [item for item in _overlaps(*_unlike(before.ranges, after.ranges)) if item[2] != item[3]]
    bounds = np.asarray([item[:2] for item in changed], dtype=np.int64).reshape(-1, 2)
    return moved_ranges(changed, (bounds[:, 0], bounds[:, 1]), same)


def moved_ranges(
    changed: Iterable[Overlap], touched: Bounds, same: Callable[[int, int], bool] = operator.eq
) -> Impacted:
    """Return the ranges that moved, from the ascending, disjoint overlaps with another owner than before."""
    moved = [
        (start, end, NOBODY if old is None else old, NOBODY if new is None else new)
        for start, end, old, new in changed
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
    """Leave out of both the ranges that they begin and end with alike."""
    shorter = min(len(before), len(after))
    first = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    rest = shorter - first
    last = next((at for at in range(rest) if before[-1 - at] != after[-1 - at]), rest)
    return before[first : len(before) - last], after[first : len(after) - last]


def _overlaps(before: Owned, after: Owned) -> Iterator[Overlap]:
    """Yield every maximal range with a single owner before and after; ``None`` where a side has no owner."""
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
