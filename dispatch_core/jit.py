"""The one way to compile the data plane.

``compiled`` is numba's ``njit`` with the on-disk cache on. With ``NUMBA_DISABLE_JIT=1`` the same functions run as plain
Python over the same arrays, so they can be stepped through, covered and property-tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile ``function`` in nopython mode on first use and keep the machine code in numba's cache."""
    return cast("Callable[P, R]", njit(cache=True)(function))
