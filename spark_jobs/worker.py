"""What a Python worker of Spark does to take no more memory than its replays need."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


class _Hidden(MetaPathFinder):
    """A module that cannot be found."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self._name:
            raise ModuleNotFoundError(f"no {fullname} here", name=fullname)
        return None


def take_little_memory() -> None:
    """Give back what is free, and load nothing that no replay uses. For a process that does nothing else.

    Arrow's memory comes from an allocator that returns what is free: a task's peak is what it holds, not what it held.
    Arrow also looks for pandas, once, at its first conversion of a Python object, and loads it: 32 MB a worker. It finds
    none here; whoever imports pandas afterwards gets it, but Arrow does not know its types in this process.
    """
    with suppress(NotImplementedError):  # not in every build of pyarrow
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    if "pandas" in sys.modules:
        return
    hidden = _Hidden("pandas")
    sys.meta_path.insert(0, hidden)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(hidden)


def give_back_what_is_free() -> None:
    """Hand the free memory between arrays in use to the system, where C's allocator can (glibc); some milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
