"""Key_Shared STICKY: every consumer brings its own fixed ranges.

A consumer is refused when it brings no metadata, no ranges, a range that starts after its end, or a range that meets one of
a connected consumer; from #24730 on also when two of its own ranges meet. Before a conflict is final the connection of the
consumer in the way is probed (#20026): a dead one is closed, and the conflict is looked for again. ``in_the_way`` names the
consumer to probe; the outcome is an event of its own, a removal, before the ``add``.

Two selection rules:

* ``EndPointRangesSelector``, before #24730: only end points are kept, in one sorted map. A slot goes to the owner of the
  nearest end points below and above when they are equal, so gaps between two ranges of one consumer are its own too.
* ``ExactRangesSelector``, since #24730: a slot goes to the owner of the range it lies in.

A slot in no range belongs to nobody. Hashes are reduced to slots by ``hash % 65536``; the broker does not check that
ranges lie within 0..65535. Source: HashRangeExclusiveStickyKeyConsumerSelector; PIP-51, #7231, #20026, #24730.

>>> both = EndPointRangesSelector(), ExactRangesSelector()
>>> for selector in both:
...     _ = selector.add(1, "node-1", [(0, 10), (20, 30)])
>>> [selector.select(15) for selector in both]
[1, None]
>>> both[1].add(2, "node-2", [(30, 40)])
Traceback (most recent call last):
    ...
dispatch_core.errors.SelectorRefusedError: consumer 2 is refused: Range conflict with consumer C1; ...
"""

from __future__ import annotations

import itertools
import operator
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.assignments import (
    ANY_HASH,
    Assignments,
    Bounds,
    Impacted,
    Range,
    impacted,
)
from dispatch_core.broker.selectors.selector import Announced, Same, grouped
from dispatch_core.errors import SelectorRefusedError


class _StickyRanges(ABC):
    """Common base of both selection rules: the checks of a new consumer, and slots."""

    def __init__(self, same: Same) -> None:
        self._same = same
        self._announced: dict[int, tuple[Range, ...]] = {}  # consumer → its ranges in the order given

    def in_the_way(self, consumer: int, ranges: Announced) -> int | None:
        """Return the consumer whose connection the broker probes before it adds ``consumer``; None for nobody.

        Raises ``SelectorRefusedError`` when the announced ranges cannot stand by themselves: then nobody is probed.
        """
        return self._conflict(self._check(consumer, ranges))

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Add ``consumer`` with its ``ranges``; ``name`` does not matter here. See ``Selector.add``."""
        checked = self._check(consumer, ranges)
        owner = self._conflict(checked)
        if owner is not None:
            raise SelectorRefusedError(consumer, f"Range conflict with consumer C{owner}")
        before = self.assignments()
        self._announced[consumer] = tuple(checked)
        touched = self._put(consumer, checked)
        return replace(impacted(before, self.assignments(), self._same), touched=touched)

    def remove(self, consumer: int) -> Impacted:
        """Drop the ranges of ``consumer``."""
        before = self.assignments()
        touched = self._drop(consumer)
        return replace(impacted(before, self.assignments(), self._same), touched=touched)

    def places(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the slot of each hash."""
        return sticky_hashes % hashing.DEFAULT_RANGE_SIZE

    def select(self, sticky_hash: int) -> int | None:
        """Return the consumer whose ranges contain the slot; None for nobody."""
        return self._owner_of(sticky_hash % hashing.DEFAULT_RANGE_SIZE)

    @abstractmethod
    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Apply ``select`` to a whole array; -1 for nobody."""

    @abstractmethod
    def assignments(self) -> Assignments:
        """Return the range report, in the format of the release."""

    def _check(self, consumer: int, ranges: Announced) -> Sequence[Range]:
        if ranges is None:
            raise SelectorRefusedError(consumer, "Must specify key shared meta for consumer.")
        if not ranges:
            raise SelectorRefusedError(consumer, "Ranges for KeyShared policy must not be empty.")
        self._check_each(consumer, ranges)
        return ranges

    @abstractmethod
    def _check_each(self, consumer: int, ranges: Sequence[Range]) -> None: ...

    @abstractmethod
    def _conflict(self, ranges: Sequence[Range]) -> int | None: ...

    @abstractmethod
    def _put(self, consumer: int, ranges: Sequence[Range]) -> Bounds: ...

    @abstractmethod
    def _drop(self, consumer: int) -> Bounds: ...

    @abstractmethod
    def _owner_of(self, slot: int) -> int | None: ...


class EndPointRangesSelector(_StickyRanges):
    """Sticky ranges as end points (3.x, 4.0.0 to 4.0.6, 4.1.0)."""

    def __init__(self, same: Same = operator.eq, *, group_report: bool = False) -> None:
        """``group_report``: equal consumers share one list in the range report (3.x)."""
        super().__init__(same)
        self._group_report = group_report
        self._points: list[int] = []  # ascending
        self._owners: dict[int, int] = {}  # end point → consumer

    def assignments(self) -> Assignments:
        """Return the range report: end points in pairs, so a one-slot range shifts or hides those above it."""
        ranges = []
        points = iter(self._points)
        for start, end in zip(points, points, strict=False):
            if self._same(self._owners[start], self._owners[end]):
                ranges.append((start, end, self._owners[end]))
        return Assignments(grouped(ranges, self._same) if self._group_report else tuple(ranges))

    def _check_each(self, consumer: int, ranges: Sequence[Range]) -> None:
        if any(start > end for start, end in ranges):
            raise SelectorRefusedError(consumer, "Fixed hash range start > end")

    def _conflict(self, ranges: Sequence[Range]) -> int | None:
        for start, end in ranges:
            floor, ceiling = self._floor(end), self._ceiling(start)
            if floor is not None and floor >= start:
                return self._owners[floor]
            if ceiling is not None and ceiling <= end:
                return self._owners[ceiling]
            if floor is None or ceiling is None:
                continue
            # No end point inside: the range lies in a gap or within a range of a consumer; its list says which.
            owner = self._owners[ceiling]
            if self._same(owner, self._owners[floor]) and any(
                max(start, other) <= min(end, last) for other, last in self._announced[owner]
            ):
                return owner
        return None

    def _put(self, consumer: int, ranges: Sequence[Range]) -> Bounds:
        self._owners.update((point, consumer) for pair in ranges for point in pair)
        self._points = sorted(self._owners)
        return self._around(self._points, {point for pair in ranges for point in pair})

    def _drop(self, consumer: int) -> Bounds:
        points = self._points
        gone = {point for point, owner in self._owners.items() if self._same(owner, consumer)}
        self._owners = {point: owner for point, owner in self._owners.items() if point not in gone}
        self._points = sorted(self._owners)
        return self._around(points, gone)

    @staticmethod
    def _around(points: list[int], changed: set[int]) -> Bounds:
        """Return the slots between the neighbours of each changed point: their nearest end points have changed."""
        at = [bisect_left(points, point) for point in sorted(changed)]
        starts = [points[index - 1] + 1 if index else 0 for index in at]
        ends = [points[index + 1] - 1 if index + 1 < len(points) else ANY_HASH for index in at]
        return np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Apply ``select`` to a whole array; -1 for nobody."""
        if not self._points:
            return np.full(len(sticky_hashes), -1, dtype=np.int64)
        slots, points = self.places(sticky_hashes), np.asarray(self._points, dtype=np.int64)
        owners = [self._owners[point] for point in self._points]
        # True where the slots between a point and the next lower one belong to the owner of both.
        inside = np.asarray([False, *itertools.starmap(self._same, itertools.pairwise(owners))])
        at = np.searchsorted(points, slots)
        beyond = at == len(points)
        at[beyond] = 0
        chosen = np.asarray(owners, dtype=np.int64)[at]
        return np.where(~beyond & ((points[at] == slots) | inside[at]), chosen, -1)

    def _owner_of(self, slot: int) -> int | None:
        floor, ceiling = self._floor(slot), self._ceiling(slot)
        if floor is None or ceiling is None:
            return None
        owner = self._owners[ceiling]
        return owner if self._same(self._owners[floor], owner) else None

    def _floor(self, slot: int) -> int | None:
        at = bisect_right(self._points, slot)
        return self._points[at - 1] if at else None

    def _ceiling(self, slot: int) -> int | None:
        at = bisect_left(self._points, slot)
        return self._points[at] if at < len(self._points) else None


class ExactRangesSelector(_StickyRanges):
    """Sticky ranges as they were announced (#24730: 3.0.14+, 3.3.9+, 4.0.7+, 4.1.1+, 4.2.0+)."""

    def __init__(
        self, same: Same = operator.eq, *, group_report: bool = False, remove_by_identity: bool = False
    ) -> None:
        """``group_report``: as 3.x. ``remove_by_identity``: an equal consumer keeps its ranges (5.0.1)."""
        super().__init__(same)
        self._group_report = group_report
        self._remove_by_identity = remove_by_identity
        self._ranges: list[tuple[int, int, int]] = []  # (start, end, consumer), ascending and disjoint

    def assignments(self) -> Assignments:
        """Return the range report: every announced range."""
        ranges = tuple(self._ranges)
        return Assignments(grouped(ranges, self._same) if self._group_report else ranges)

    def _check_each(self, consumer: int, ranges: Sequence[Range]) -> None:
        before: Range | None = None
        for start, end in sorted(ranges, key=lambda pair: pair[0]):
            if start > end:
                raise SelectorRefusedError(
                    consumer, f"Fixed hash range start > end for range: [{start},{end}]"
                )
            if before is not None and start <= before[1]:
                raise SelectorRefusedError(
                    consumer,
                    f"Consumer's own ranges conflict: [{before[0]},{before[1]}] overlaps with [{start},{end}]",
                )
            before = start, end

    def _conflict(self, ranges: Sequence[Range]) -> int | None:
        for start, end in ranges:
            at = bisect_right(self._ranges, start, key=lambda item: item[0])
            if at and self._ranges[at - 1][1] >= start:
                return self._ranges[at - 1][2]
            if at < len(self._ranges) and self._ranges[at][0] <= end:
                return self._ranges[at][2]
        return None

    def _put(self, consumer: int, ranges: Sequence[Range]) -> Bounds:
        self._ranges = sorted([*self._ranges, *((start, end, consumer) for start, end in ranges)])
        return _bounds(ranges)

    def _drop(self, consumer: int) -> Bounds:
        same = operator.eq if self._remove_by_identity else self._same
        before = self._ranges
        self._ranges = [item for item in before if not same(item[2], consumer)]
        return _bounds([item[:2] for item in before if same(item[2], consumer)])

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Apply ``select`` to a whole array; -1 for nobody."""
        if not self._ranges:
            return np.full(len(sticky_hashes), -1, dtype=np.int64)
        starts, ends, owners = np.asarray(self._ranges, dtype=np.int64).T
        slots = self.places(sticky_hashes)
        at = np.searchsorted(starts, slots, side="right") - 1
        return np.where((at >= 0) & (slots <= ends[at]), owners[at], -1)

    def _owner_of(self, slot: int) -> int | None:
        at = bisect_right(self._ranges, slot, key=lambda item: item[0])
        return self._ranges[at - 1][2] if at and slot <= self._ranges[at - 1][1] else None


def _bounds(ranges: Sequence[Range]) -> Bounds:
    both = np.asarray(ranges, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]
