"""Decorators that compile the data plane.

The decorators are numba's ``njit`` with the on-disk cache on. With ``NUMBA_DISABLE_JIT=1`` the same functions run as plain
Python over the same arrays, so they can be stepped through, covered and property-tested.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.extending import register_jitable, typeof_impl
from numba.np.numpy_support import as_dtype

from dispatch_core.arrays.structs import ByAddress

P = ParamSpec("P")
R = TypeVar("R")

#: Compiled functions that Python can call, in the order of definition.
_CALLABLE: Final[list[Any]] = []
#: No wrapper for Python: unpacking a ``State`` of so many arrays takes the compiler longer than most rules do.
_NO_DOOR: Final = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

#: Annotation of an argument → the type that numba gives to what is passed for it.
_NUMBERS: Final = {"int": types.intp, "bool": types.boolean, "float": types.float64}


class Door(Generic[P, R]):
    """A compiled function with two entries: ``outside`` for Python, ``inside`` for compiled callers.

    The two are compiled separately, each when it is called first; only ``outside`` gets numba's wrapper for Python.

    Numba finds the types of all arguments at every call, those of the arrays of a ``State`` one by one: 4 microseconds, for
    rules that take 0.1. A function with one set of types is called with them directly, where the arguments can be checked
    in less: structs by their class, arrays by their type and layout, numbers by the annotations.
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
        self._direct: Callable[..., R] | None = None
        self._structs: list[tuple[int, type]] = []  # place of an argument, its class
        self._arrays: list[tuple[int, np.dtype[Any]]] = []  # place, type of the elements
        self._is_new = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function from Python."""
        direct: Callable[..., R] | None = self._direct
        if direct is not None and not kwargs:
            for at, cls in self._structs:
                if args[at].__class__ is not cls:
                    break
            else:
                for at, dtype in self._arrays:
                    array: Any = args[at]
                    if (
                        array.__class__ is not np.ndarray
                        or array.dtype is not dtype
                        or array.ndim != 1
                        or not array.flags.carray
                    ):
                        break
                else:
                    return direct(*args)
        result = cast("R", self.outside(*args, **kwargs))
        if self._is_new:
            self._is_new = False
            self._learn()
        return result

    def _learn(self) -> None:
        """Take the machine code for the types of the first call, if later arguments can be checked against them."""
        results, function = [*self.outside.overloads.values()], self.outside.py_func
        if len(results) != 1 or function.__defaults__:
            return
        (result,) = results
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        for at, (name, kind) in enumerate(zip(names, result.signature.args, strict=True)):
            if isinstance(kind, ByAddress):
                self._structs.append((at, kind.instance_class))
            elif isinstance(kind, types.Array) and kind.ndim == 1 and kind.layout == "C" and kind.mutable:
                self._arrays.append((at, as_dtype(kind.dtype)))
            elif kind != _NUMBERS.get(self.__annotations__.get(name, "")):
                return
        self._direct = result.entry_point


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
