"""Key_Shared AUTO_SPLIT without a ring: the widest range is split (all releases, ring switched off).

The hash space is cut at *boundaries*; a consumer owns the hashes above the next lower boundary, up to and including its own.
A consumer that joins takes the lower half of the widest range, the lowest one among equals. The range of a consumer that
leaves goes to the owner of the next higher boundary, or, at the top, to that of the next lower one. Ranges are never
balanced again.

Source: HashRangeAutoSplitStickyKeyConsumerSelector.

>>> selector = AutoSplitSelector()
>>> for number in (1, 2, 3):
...     _ = selector.add(number, f"c{number}")
>>> selector.assignments().ranges
((0, 16384, 3), (16385, 32768, 2), (32769, 65536, 1))
>>> [selector.select(slot) for slot in (5536, 21772, 24226, 63352)]  # key-1, key-2, key-3, key-a
[3, 2, 2, 1]
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.assignments import UNCHANGED, Assignments, Impacted, impacted
from dispatch_core.broker.selectors.selector import Announced, Same, equal_key, grouped
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError


class AutoSplitSelector:
    """Boundaries and their owners. The last boundary is the size of the space, one above its highest slot."""

    def __init__(
        self,
        range_size: int = hashing.DEFAULT_RANGE_SIZE,
        same: Same = operator.eq,
        *,
        group_report: bool = False,
    ) -> None:
        """``group_report``: equal consumers share one list in the range report (3.x)."""
        self._size = range_size
        self._same = same
        self._group_report = group_report
        self._boundaries: list[int] = []  # ascending
        self._owners: dict[int, int] = {}  # boundary → consumer
        self._of: dict[int, int] = {}  # consumer → boundary; a Java map, so equal consumers share one

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Give ``consumer`` the lower half of the widest range. ``name`` and ``ranges`` do not matter here.

        Raises ``SelectorRefusedError`` when every range is down to one slot.
        """
        before = self.assignments()
        boundary = self._size
        if self._boundaries:
            lower, upper = self._widest()
            if upper - lower <= 1:
                raise SelectorRefusedError(
                    consumer,
                    f"No more range can assigned to new consumer, assigned consumers {len(self._boundaries)}",
                )
            boundary = self._split(lower, upper)
        insort(self._boundaries, boundary)
        self._owners[boundary] = consumer
        self._note(consumer, boundary)
        return self._moved(before)

    def remove(self, consumer: int) -> Impacted:
        """Give the range of ``consumer`` to its neighbour."""
        before = self.assignments()
        key = equal_key(self._of, consumer, self._same)
        if key is None:
            return UNCHANGED
        boundary = self._of.pop(key)
        if boundary == self._size and len(self._boundaries) > 1:
            # The top boundary has to stay: the next lower consumer moves up to it.
            lower = self._boundaries.pop(-2)
            heir = self._owners.pop(lower)
            self._owners[boundary] = heir
            self._note(heir, boundary)
        elif boundary in self._owners:
            self._boundaries.remove(boundary)
            del self._owners[boundary]
        return self._moved(before)

    def restore(self, owned: Mapping[int, int]) -> Impacted:
        """Set the ends of the ranges to those of ``owned``, by consumer, as earlier joins and leaves had made them.

        Raises ``IllegalTransitionError``, with nothing changed, for other consumers than there are, or for ends that do not
        cover the space.
        """
        before = self.assignments()
        boundaries = sorted(owned.values())
        covered = not boundaries or (boundaries[0] > 0 and boundaries[-1] == self._size)
        if set(owned) != set(self._owners.values()) or len(set(boundaries)) < len(owned) or not covered:
            raise IllegalTransitionError(
                f"ranges that end at {owned} are none of {len(self._owners)} consumers in a space of {self._size}",
                rule="each consumer owns one range, and together they cover the space",
            )
        self._boundaries = boundaries
        self._owners = {boundary: consumer for consumer, boundary in owned.items()}
        self._of = dict(owned)
        return self._moved(before)

    def select(self, sticky_hash: int) -> int | None:
        """Return the owner of the smallest boundary at or above the slot ``sticky_hash % range_size``."""
        at = bisect_left(self._boundaries, sticky_hash % self._size)
        return self._owners[self._boundaries[at]] if at < len(self._boundaries) else None

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Apply ``select`` to a whole array; -1 for nobody."""
        at = np.searchsorted(np.asarray(self._boundaries, dtype=np.int64), self.places(sticky_hashes))
        owners = [self._owners[boundary] for boundary in self._boundaries]
        return np.asarray([*owners, -1], dtype=np.int64)[at]

    def places(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the slot of each hash."""
        return sticky_hashes % self._size

    def assignments(self) -> Assignments:
        """Return the range report: from 0, each range one above the boundary before, the last one up to the size itself."""
        starts = [0, *(boundary + 1 for boundary in self._boundaries[:-1])]
        ranges = tuple(
            (start, boundary, self._owners[boundary])
            for start, boundary in zip(starts, self._boundaries, strict=False)
        )
        return Assignments(grouped(ranges, self._same) if self._group_report else ranges)

    def _moved(self, before: Assignments) -> Impacted:
        moved = impacted(before, self.assignments(), self._same)
        # A report in which equal consumers share a list does not say which of them a range belongs to.
        return replace(moved, touched=None) if self._group_report and self._same is not operator.eq else moved

    def _widest(self) -> tuple[int, int]:
        """Return (next lower boundary, boundary) of the widest range; the lowest wins ties."""
        return max(pairwise([0, *self._boundaries]), key=lambda pair: pair[1] - pair[0])

    @staticmethod
    def _split(lower: int, upper: int) -> int:
        """Return the hash at which a range is split: the new consumer owns up to here, the odd slot included."""
        return upper - ((upper - lower) >> 1)

    def _note(self, consumer: int, boundary: int) -> None:
        key = equal_key(self._of, consumer, self._same)
        self._of[consumer if key is None else key] = boundary
