"""Ordinals of positions: the index of a (ledger, entry) in a sorted list of them.

Entries of a ledger mostly follow each other without a hole, and a wanted position mostly lies near the one before. So the
index is counted from the last one found, and searched for only where that guess is wrong.

>>> ledgers, entries = np.array([7, 7, 7, 9]), np.array([0, 1, 2, 0])
>>> locate(ledgers, entries, np.array([7, 9, 8]), np.array([1, 0, 0])).tolist()
[1, 3, -1]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.columns import Ints
from dispatch_core.arrays.jit import compiled

Array = npt.NDArray[Any]


def ascending(ledger: Ints, entry: Ints) -> bool:
    """True if positions are in strictly ascending order."""
    if len(ledger) < 2:
        return True
    same = ledger[1:] == ledger[:-1]
    if same.all():
        return bool((entry[1:] > entry[:-1]).all())
    return bool(np.where(same, entry[1:] > entry[:-1], ledger[1:] > ledger[:-1]).all())


def distinct(ledger: Ints, entry: Ints) -> Ints:
    """Return the indexes of the distinct positions in ascending order; of equal ones the first."""
    order = np.lexsort((entry, ledger))
    if not len(order):
        return order
    ledger, entry = ledger[order], entry[order]
    new = np.concatenate([[True], (ledger[1:] != ledger[:-1]) | (entry[1:] != entry[:-1])])
    return order[new]


def locate(ledgers: Ints, entries: Ints, ledger: Ints, entry: Ints) -> npt.NDArray[np.int32]:
    """Return the ordinal of every wanted position among the sorted (``ledgers``, ``entries``); -1 = not among them."""
    found = np.empty(len(ledger), dtype=np.int32)
    _locate(_fixed(ledgers), _fixed(entries), _fixed(ledger), _fixed(entry), found)
    return found


def _fixed(values: Ints) -> Ints:
    """Return a read-only view: views of Arrow memory are read-only, too, so numba compiles for this kind only."""
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view


@compiled
def _first_not_before(ledgers: Array, entries: Array, ledger: int, entry: int) -> int:
    low = 0
    high = len(ledgers)
    while low < high:
        middle = (low + high) // 2
        if ledgers[middle] < ledger or (ledgers[middle] == ledger and entries[middle] < entry):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _locate(ledgers: Array, entries: Array, wanted_ledger: Array, wanted_entry: Array, found: Array) -> None:
    count = len(ledgers)
    near = 0
    for i in range(len(wanted_ledger)):
        ledger, entry = wanted_ledger[i], wanted_entry[i]
        at = -1
        if near < count and ledgers[near] == ledger:
            at = near + (entry - entries[near])
        if at < 0 or at >= count or ledgers[at] != ledger or entries[at] != entry:
            at = _first_not_before(ledgers, entries, ledger, entry)
        if at < count and ledgers[at] == ledger and entries[at] == entry:
            found[i] = at
            near = at
        else:
            found[i] = -1
