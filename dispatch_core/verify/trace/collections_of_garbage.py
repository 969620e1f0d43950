"""Have Python's garbage collector look at objects more rarely while the lines of a trace are fed.

A line lives until thousands of later ones are known (``lines_ahead``), so it survives the collections of young objects, and
each of them looks at all lines that have come since. Python then collects all objects, the program's own included, each
time that their number has grown by a quarter. Together that is a quarter of the time of a verification. Lines are in no
cycle; they go when nobody refers to them any more, as many as come. So young objects are collected only when there are
``YOUNG`` more of them, and all objects once in ``FULL_EVERY`` collections of the middle generation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Number of objects, more than at the last collection, at which young ones are collected: those of the lines in memory.
YOUNG: Final = 200_000
#: Number of collections of the middle generation from one collection of all objects to the next.
FULL_EVERY: Final = 1_000


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """Collect objects rarely until the block ends; then as before.

    >>> with rare_full_collections():
    ...     inside = gc.get_threshold()
    >>> inside[0] >= YOUNG, inside[1] == gc.get_threshold()[1], inside[2] >= 1000
    (True, True, True)
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], YOUNG), before[1], max(before[2], FULL_EVERY))
    try:
        yield
    finally:
        gc.set_threshold(*before)
