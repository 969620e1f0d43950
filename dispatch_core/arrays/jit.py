"""Decorators that compile the data plane.

The decorators are numba's ``njit`` with the on-disk cache on. With ``NUMBA_DISABLE_JIT=1`` the same functions run as plain
Python over the same arrays, so they can be stepped through, covered and property-tested.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from numba import njit
from numba.extending import register_jitable, typeof_impl

P = ParamSpec("P")
R = TypeVar("R")

#: Compiled functions that Python can call, in the order of definition.
_CALLABLE: Final[list[Any]] = []
#: No wrapper for Python: unpacking a ``State`` of so many arrays takes the compiler longer than most rules do.
_NO_DOOR: Final = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class Door(Generic[P, R]):
    """A compiled function with two entries: ``outside`` for Python, ``inside`` for compiled callers.

    The two are compiled separately, each when it is called first; only ``outside`` gets numba's wrapper for Python.
    """

    def __init__(self, function: FunctionType) -> None:
        functools.update_wrapper(self, function)
        self.inside: Any = njit(cache=True, _nrt=False, **_NO_DOOR)(function)
        # A function of another name: numba's cache knows functions by their names, not by their options.
        named = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        named.__qualname__ = f"{function.__qualname__}_for_python"
        named.__module__ = function.__module__
        self.outside: Any = _callable(njit(cache=True, _nrt=False, no_cfunc_wrapper=True)(named))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function from Python."""
        return cast("R", self.outside(*args, **kwargs))


@typeof_impl.register(Door)
def _type_of(door: Door[..., Any], context: Any) -> Any:
    """Return the numba type of a door: that of the function inside."""
    return typeof_impl(door.inside, context)


def _callable(dispatcher: Any) -> Any:
    _CALLABLE.append(dispatcher)
    return dispatcher


def loaded() -> list[str]:
    """Return the names of the functions whose machine code this process took from numba's cache, with their modules."""
    return _names("cache_hits")


def compiled_here() -> list[str]:
    """Return the names of the functions that this process compiled, as the cache had none; empty after the warm-up."""
    return _names("cache_misses")


def _names(counter: str) -> list[str]:
    return [
        f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"
        for dispatcher in _CALLABLE
        if hasattr(dispatcher, "stats") and getattr(dispatcher.stats, counter)
    ]


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile ``function`` in nopython mode on first use and keep the machine code in numba's cache."""
    return cast("Callable[P, R]", _callable(njit(cache=True)(function)))


def compiled_in_place(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that works on the arrays it is given and makes none of its own.

    Numba then need not count references (``_nrt``), which it otherwise does for every array of the state at every call:
    fifteen times the work of the rules.
    """
    door: Door[P, R] = Door(cast("FunctionType", function))
    return cast("Callable[P, R]", function if door.inside is function else door)


def compiled_inside(function: Callable[P, R]) -> Callable[P, R]:
    """Compile as ``compiled_in_place``, for a function that is called by compiled functions only."""
    return cast("Callable[P, R]", njit(cache=True, _nrt=False, **_NO_DOOR)(function))


def compiled_inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile as ``compiled_inside``, with the code put in place of every call.

    For the innermost rule of a long loop: a call takes longer than the rule.
    """
    return cast(
        "Callable[P, R]",
        njit(cache=True, _nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
            function
        ),
    )


def compiled_with_caller(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a rule over numbers that stays plain Python, and that compiled functions compile together with themselves."""
    return cast("Callable[P, R]", register_jitable(function))
