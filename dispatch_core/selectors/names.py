"""Index of a consumer among the connected consumers of the same name (ConsumerNameIndexTracker, 4.x).

The smallest non-negative integer that no connected consumer of that name uses. Unique names get 0, so a consumer that
leaves and comes back has the same ring points as before.
"""

from __future__ import annotations


class NameIndexes:
    """Allocates and frees name indexes; a consumer keeps its index until it leaves."""

    def __init__(self) -> None:
        self._used: dict[str, set[int]] = {}
        self._of: dict[int, tuple[str, int]] = {}

    def allocate(self, consumer: int, name: str) -> int:
        """Give ``consumer`` the smallest free index of ``name``."""
        used = self._used.setdefault(name, set())
        index = next(i for i in range(len(used) + 1) if i not in used)
        used.add(index)
        self._of[consumer] = (name, index)
        return index

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
