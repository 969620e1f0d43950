"""Reduce the memory of Spark's Python workers to what their replays need."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

import pyarrow as pa

#: The environment of worker processes. Arrow's C++ library chooses an allocator when it is loaded; its readers, writers
#: and functions use that one even after ``pa.set_memory_pool``. Two allocators would keep twice as much unused memory.
ENVIRONMENT: Final = (
    {"ARROW_DEFAULT_MEMORY_POOL": "jemalloc"} if "jemalloc" in pa.supported_memory_backends() else {}
)


class _Hidden(MetaPathFinder):
    """A package that cannot be found."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"no {fullname} here", name=fullname)
        return None


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Hide ``package`` from imports within the block."""
    hidden = _Hidden(package)
    sys.meta_path.insert(0, hidden)
    try:
        yield
    finally:
        sys.meta_path.remove(hidden)


def take_little_memory() -> None:
    """Choose an allocator that returns free memory, and avoid loading unused libraries. Call once in a worker process.

    The allocator returns memory that is not used to the system, so that a task's peak is what it uses at one time (see
    also ``ENVIRONMENT``).

    Two libraries try to import another one once: Arrow pandas at its first conversion, for its types (32 MB), and numba
    SciPy's linear algebra, to compile calls of it (17 MB, 0.25 s). Here both are hidden meanwhile. They can be imported
    afterwards; but in this process Arrow does not know the types of pandas, and numba does not compile ``numpy.dot``.
    """
    with suppress(NotImplementedError):  # not in every build of pyarrow
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    if "pandas" not in sys.modules:
        with _without("pandas"):
            pa.scalar(0)
    if "scipy.linalg" not in sys.modules:
        with _without("scipy"):
            importlib.import_module("numba.np.arraymath")


def give_back_what_is_free() -> None:
    """Return unused memory to the system if C's allocator can (glibc); takes some milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


class FreeMemory:
    """Give back unused memory after so much work. Call ``used_for`` after each step."""

    def __init__(self, rows_between: int) -> None:
        """``rows_between``: rows of work from one time to the next; each time takes as long as replaying some 100 rows."""
        self._rows_between = rows_between
        self._rows = 0

    def used_for(self, rows: int) -> None:
        """Count the rows of a step, and give back what is free when there were enough."""
        self._rows += rows
        if self._rows >= self._rows_between:
            self._rows = 0
            give_back_what_is_free()
