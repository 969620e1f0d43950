"""Ids of the sticky key hashes of a log: small numbers, so that values per hash are kept in arrays.

Ids are given in the order in which hashes appear, those of one call in the order of their values, and never change. A
look-up takes constant time, whatever the hash space and however many hashes there are.

>>> ids = HashIds()
>>> ids.of(np.array([40, 10, 40])).tolist(), ids.of(np.array([7, 10])).tolist()
([1, 0, 1], [2, 0])
>>> ids.values.tolist(), ids.find(7), ids.find(8)
([10, 40, 7], 2, None)
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

_NONE: Final = -1
#: Neighbouring hashes come to lie far apart (Fibonacci hashing). Hashes have 31 bits: the product has at most 63.
_SPREAD: Final = 0x9E3779B1


class HashIds:
    """The ids of all hashes so far."""

    def __init__(self) -> None:
        self._values: I64 = np.empty(256, np.int64)
        self._count = 0
        # Open addressing: the id that lies in each place. At most half of the places are taken.
        self._places: I32 = np.full(512, _NONE, np.int32)

    def __len__(self) -> int:
        return self._count

    def __getstate__(self) -> I64:
        """Return the hashes alone, by their ids: their places follow from them."""
        return self.values

    def __setstate__(self, values: I64) -> None:
        """Give the hashes of saved ids their places again."""
        HashIds.__init__(self)
        self._add(values)

    @property
    def values(self) -> I64:
        """The hash behind each id."""
        return self._values[: self._count]

    def value(self, number: int) -> int:
        """Return the hash behind an id."""
        return self._values.item(number)

    def of(self, hashes: I64) -> I32:
        """Return the ids of these hashes; new ones get an id."""
        ids = np.empty(len(hashes), np.int32)
        if not len(hashes):
            return ids
        if _look_up(hashes, self._values, self._places, ids):
            self._add(np.unique(hashes[ids == _NONE]))
            _look_up(hashes, self._values, self._places, ids)
        return ids

    def find(self, value: int) -> int | None:
        """Return the id of a hash; None where it never appeared."""
        found = np.empty(1, np.int32)
        unknown = _look_up(np.array([value], np.int64), self._values, self._places, found)
        return None if unknown else int(found[0])

    def _add(self, new: I64) -> None:
        first, count = self._count, self._count + len(new)
        if count > len(self._values):
            self._values = np.concatenate([self.values, np.empty(count, np.int64)])
        self._values[first:count] = new
        self._count = count
        if 2 * count > len(self._places):
            self._places = np.full(1 << (4 * count).bit_length(), _NONE, np.int32)
            first = 0
        _place(self._values, first, count, self._places)


@compiled
def _look_up(hashes: I64, values: I64, places: I32, ids: I32) -> int:
    """Write the id of each hash, ``_NONE`` for those that have none; returns how many these are."""
    unknown = 0
    last = len(places) - 1
    for i in range(len(hashes)):
        at = ((hashes[i] * _SPREAD) >> 16) & last
        while places[at] != _NONE and values[places[at]] != hashes[i]:
            at = (at + 1) & last
        ids[i] = places[at]
        if places[at] == _NONE:
            unknown += 1
    return unknown


@compiled
def _place(values: I64, first: int, stop: int, places: I32) -> None:
    """Give the ids from ``first`` to ``stop`` their places."""
    last = len(places) - 1
    for number in range(first, stop):
        at = ((values[number] * _SPREAD) >> 16) & last
        while places[at] != _NONE:
            at = (at + 1) & last
        places[at] = number
