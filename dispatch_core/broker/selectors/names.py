"""Index of a consumer among the connected consumers of the same name (ConsumerNameIndexTracker).

The index is the smallest non-negative integer that no consumer of that name has. Unique names get 0, so a consumer that
leaves and comes back has the same ring points as before. From 4.0.0 a consumer keeps its index until it leaves; before
(#23327 in 3.0.7 and 3.3.2) only while it has a point on the ring.

>>> names = NameIndexes()
>>> [names.allocate(number, "c1") for number in (1, 2, 3)], names.release(2), names.allocate(4, "c1")
([0, 1, 2], 1, 1)
"""

from __future__ import annotations


class NameIndexes:
    """Name indexes that a consumer keeps until it is released (4.0.0+)."""

    def __init__(self) -> None:
        self._used: dict[str, set[int]] = {}
        self._of: dict[int, tuple[str, int]] = {}

    def allocate(self, consumer: int, name: str) -> int:
        """Give ``consumer`` the smallest free index of ``name``."""
        used = self._used.setdefault(name, set())
        index = self._free_index(name, used)
        used.add(index)
        self._of[consumer] = (name, index)
        return index

    def get(self, consumer: int) -> int | None:
        """Return the index of ``consumer``, or None."""
        entry = self._of.get(consumer)
        return None if entry is None else entry[1]

    def release(self, consumer: int) -> int | None:
        """Free the index of ``consumer``; returns it, or ``None`` if it had none."""
        entry = self._of.pop(consumer, None)
        if entry is None:
            return None
        name, index = entry
        self._used[name].discard(index)
        if not self._used[name]:
            del self._used[name]
        return index

    @staticmethod
    def _free_index(_name: str, used: set[int]) -> int:
        return next(i for i in range(len(used) + 1) if i not in used)


class CountedNameIndexes:
    """Name indexes that are freed with the last point of their consumer (3.0.7+, 3.3.2+)."""

    def __init__(self) -> None:
        self._indexes = NameIndexes()
        self._points: dict[int, int] = {}

    def point_added(self, consumer: int, name: str) -> int:
        """Count a point of ``consumer`` that is put on the ring; returns the name index it is made with."""
        index = self._indexes.get(consumer)
        if index is None:
            index = self._indexes.allocate(consumer, name)
        self._points[consumer] = self._points.get(consumer, 0) + 1
        return index

    def point_gone(self, consumer: int) -> None:
        """Uncount a point of ``consumer`` that was replaced or removed; with the last one the index is free."""
        self._points[consumer] -= 1
        if not self._points[consumer]:
            del self._points[consumer]
            self._indexes.release(consumer)

    def get(self, consumer: int) -> int | None:
        """Return the index of ``consumer``, or None once it has no point."""
        return self._indexes.get(consumer)
