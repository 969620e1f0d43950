"""Range assignments of a Key_Shared selector, and what a membership change moved.

Source: ConsumerHashAssignmentsSnapshot (4.x). A snapshot is the ordered list of closed ranges with their owners; two
snapshots are compared by sweeping their overlaps.

>>> before = Assignments(((1, 65535, 1),))
>>> after = Assignments(((1, 99, 2), (100, 65535, 1)))
>>> impacted(before, after)
Impacted(removed={1: ((1, 99),)}, added={2: ((1, 99),)})
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Assignments:
    """Closed ranges ``(start, end, consumer)``, ascending and disjoint."""

    ranges: tuple[tuple[int, int, int], ...] = ()

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
    """Ranges that consumers lost (``removed``) and won (``added``) by one membership change, touching ones merged."""

    removed: dict[int, tuple[Range, ...]]
    added: dict[int, tuple[Range, ...]]


def impacted(
    before: Assignments, after: Assignments, same: Callable[[int, int], bool] = operator.eq
) -> Impacted:
    """Compare two snapshots. ``same``: the broker's ``equals`` of two consumers (client address and id)."""
    removed: dict[int, list[Range]] = {}
    added: dict[int, list[Range]] = {}
    for start, end, old, new in _overlaps(before, after):
        if old is not None and new is not None and same(old, new):
            continue
        if old is not None:
            _extend(removed.setdefault(old, []), start, end)
        if new is not None:
            _extend(added.setdefault(new, []), start, end)
    return Impacted({c: tuple(r) for c, r in removed.items()}, {c: tuple(r) for c, r in added.items()})


def contains(ranges: tuple[Range, ...], hash_value: int) -> bool:
    """Whether a hash lies in one of the ascending, disjoint ``ranges``."""
    index = bisect_left(ranges, hash_value, key=lambda item: item[1])
    return index < len(ranges) and ranges[index][0] <= hash_value


def _extend(ranges: list[Range], start: int, end: int) -> None:
    if ranges and ranges[-1][1] + 1 >= start:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((start, end))


def _overlaps(before: Assignments, after: Assignments) -> Iterator[tuple[int, int, int | None, int | None]]:
    """Every maximal stretch with one owner before and one after; ``None`` where a side has none."""
    bounds = sorted(
        {
            edge
            for snapshot in (before, after)
            for start, end, _ in snapshot.ranges
            for edge in (start, end + 1)
        }
    )
    positions = [0, 0]
    for start, following in pairwise(bounds):
        owners: list[int | None] = []
        for side, snapshot in enumerate((before, after)):
            ranges = snapshot.ranges
            while positions[side] < len(ranges) and ranges[positions[side]][1] < start:
                positions[side] += 1
            at = positions[side]
            owners.append(ranges[at][2] if at < len(ranges) and ranges[at][0] <= start else None)
        if owners[0] is not None or owners[1] is not None:
            yield start, following - 1, owners[0], owners[1]
