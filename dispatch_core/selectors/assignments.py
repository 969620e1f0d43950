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
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

Range = tuple[int, int]
#: Ranges with their owners, ascending and disjoint.
Owned = tuple[tuple[int, int, int], ...]
#: Start, end (closed), owner before and owner after; None = nobody.
Stretch = tuple[int, int, int | None, int | None]
#: Starts and ends of closed ranges.
Bounds = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]

#: The end of a range that reaches to the highest hash, whatever that is.
ANY_HASH: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Assignments:
    """Closed ranges ``(start, end, consumer)``, ascending and disjoint."""

    ranges: Owned = ()

    def of(self, consumer: int) -> tuple[Range, ...]:
        """The ranges of one consumer."""
        return tuple((start, end) for start, end, owner in self.ranges if owner == consumer)

    def slots(self) -> dict[int, int]:
        """How many hashes each consumer owns."""
        owned: dict[int, int] = {}
        for start, end, owner in self.ranges:
            owned[owner] = owned.get(owner, 0) + end - start + 1
        return owned


@dataclass(frozen=True, slots=True)
class Impacted:
    """Ranges that consumers lost (``removed``) and won (``added``) by one membership change, touching ones merged.

    ``touched``: where a hash has to lie (``Selector.places``) for the selector to choose another consumer than before;
    None = anywhere. It is no part of the broker's report: it says which hashes need not be looked up again.
    """

    removed: dict[int, tuple[Range, ...]]
    added: dict[int, tuple[Range, ...]]
    touched: Bounds | None = field(default=None, compare=False, repr=False)


#: Nothing changed hands.
UNCHANGED: Final = Impacted({}, {}, (np.empty(0, np.int64), np.empty(0, np.int64)))


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
    """What moved, by the ascending, disjoint ``stretches`` of hashes that have another owner than before."""
    removed: dict[int, list[Range]] = {}
    added: dict[int, list[Range]] = {}
    for start, end, old, new in stretches:
        if old is not None and new is not None and same(old, new):
            continue
        if old is not None:
            _extend(removed.setdefault(old, []), start, end)
        if new is not None:
            _extend(added.setdefault(new, []), start, end)
    return Impacted(
        {c: tuple(r) for c, r in removed.items()}, {c: tuple(r) for c, r in added.items()}, touched
    )


def contains(ranges: tuple[Range, ...], hash_value: int) -> bool:
    """Whether a hash lies in one of the ascending, disjoint ``ranges``."""
    index = bisect_left(ranges, hash_value, key=lambda item: item[1])
    return index < len(ranges) and ranges[index][0] <= hash_value


def _extend(ranges: list[Range], start: int, end: int) -> None:
    if ranges and ranges[-1][1] + 1 >= start:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((start, end))


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
