"""The distinct hashes of a log in the order of the hash space, to find those that a membership change moved.

Hashes are known by their ids, which never change; new ones may come at any time. The selector gives the place of a hash
(``Selector.places``).

>>> hashes = HashesByPlace(lambda values: values)
>>> hashes.extend(np.array([40, 10, 30]))
>>> hashes.extend(np.array([40, 10, 30, 20]))  # the first three are known
>>> [found.tolist() for found in hashes.within(np.array([5, 25]), np.array([20, 60]))]
[[1, 3, 2, 0], [0, 0, 1, 1]]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled

I64 = npt.NDArray[np.int64]


class HashesByPlace:
    """Ids of hashes, sorted by the places that ``places`` gives them."""

    def __init__(self, places: Callable[[I64], I64]) -> None:
        self._places_of = places
        self._places: I64 = np.empty(0, np.int64)  # ascending
        self._ids: I64 = np.empty(0, np.int64)  # of the hash at each place

    def extend(self, values: I64) -> None:
        """Add the hashes with new ids; ``values[id]`` is the hash of every id, known or new."""
        known = len(self._ids)
        if len(values) == known:
            return
        places = self._places_of(values[known:])
        order = np.argsort(places, kind="stable")
        at = np.searchsorted(self._places, places[order], side="right")
        self._places = np.insert(self._places, at, places[order])
        self._ids = np.insert(self._ids, at, known + order)

    def within(self, starts: I64, ends: I64) -> tuple[I64, I64]:
        """Return the ids of the hashes in these closed ranges, range by range, and the number of the range of each."""
        low = np.searchsorted(self._places, starts, side="left")
        counts = np.maximum(np.searchsorted(self._places, ends, side="right") - low, 0)
        ids, which = np.empty((2, int(counts.sum())), np.int64)
        _gather(self._ids, low, counts, ids, which)
        return ids, which


@compiled
def _gather(all_ids: I64, low: I64, counts: I64, ids: I64, which: I64) -> None:
    at = 0
    for i in range(len(low)):
        for number in range(counts[i]):
            ids[at], which[at] = all_ids[low[i] + number], i
            at += 1
