"""Keep the memory of Spark's Python workers to what their replays need."""

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
#: and functions use that one, whatever ``pa.set_memory_pool`` says later. Two allocators keep twice as much to spare.
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
    """Meanwhile nobody can load ``package``; whoever asks afterwards gets it."""
    hidden = _Hidden(package)
    sys.meta_path.insert(0, hidden)
    try:
        yield
    finally:
        sys.meta_path.remove(hidden)


def take_little_memory() -> None:
    """Give back what is free, and load nothing that no replay uses. For a process that does nothing else; once is enough.

    Arrow's memory comes from an allocator that returns what is free: a task's peak is what it holds, not what it held
    (see ``ENVIRONMENT``, too).

    Two libraries look once for another one and would load it. Arrow at its first conversion looks for pandas, to know its
    types (32 MB); numba for SciPy's linear algebra, to compile calls of it (17 MB, a quarter of a second). They find none
    here. Whoever imports these afterwards gets them; only Arrow does not know pandas' types in this process, nor does numba
    compile ``numpy.dot``.
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
    """Hand the free memory between arrays in use to the system, where C's allocator can (glibc); some milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
