"""The one way to compile the data plane.

Both decorators are numba's ``njit`` with the on-disk cache on. With ``NUMBA_DISABLE_JIT=1`` the same functions run as plain
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


def compiled_in_place(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a function that works on the arrays it is given and makes none of its own.

    Numba then need not count references (``_nrt``), which it otherwise does for every array of the state at every call:
    fifteen times the work of the rules themselves.
    """
    return cast("Callable[P, R]", njit(cache=True, _nrt=False)(function))


def compiled_inside(function: Callable[P, R]) -> Callable[P, R]:
    """As ``compiled_in_place``, for a function that is called by compiled functions only."""
    return cast(
        "Callable[P, R]",
        njit(cache=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function),
    )


def compiled_inline(function: Callable[P, R]) -> Callable[P, R]:
    """As ``compiled_inside``, with its code put in place of every call.

    For the innermost rule of a long loop: handing the state over at a call takes longer than the rule.
    """
    return cast(
        "Callable[P, R]",
        njit(cache=True, _nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
            function
        ),
    )
