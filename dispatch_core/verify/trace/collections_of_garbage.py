"""Have Python's garbage collector look at all objects more rarely while the lines of a trace are fed.

A line lives until thousands of later ones are known (``lines_ahead``), so it survives the collections of young objects.
Python then collects all objects, the program's own included, each time that their number has grown by a quarter: a fifth of
the time of a verification. Lines are in no cycle; they go when nobody refers to them any more. Young objects are collected
as ever, and all objects once in ``FULL_EVERY`` collections of the middle generation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Number of collections of the middle generation from one collection of all objects to the next.
FULL_EVERY: Final = 1_000


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """Collect all objects rarely until the block ends; then as before.

    >>> with rare_full_collections():
    ...     inside = gc.get_threshold()
    >>> inside[:2] == gc.get_threshold()[:2], inside[2] >= 1000
    (True, True)
    """
    before = gc.get_threshold()
    gc.set_threshold(before[0], before[1], max(before[2], FULL_EVERY))
    try:
        yield
    finally:
        gc.set_threshold(*before)
