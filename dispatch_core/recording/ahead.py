"""Process the blocks of a file on several cores ahead of its reader, and return the results in the order of the file.

Why not ``ThreadPoolExecutor.map``: before Python 3.14 it submits all items at once, and a file has more than fit in memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: More threads than this do not help: unpacking a compressed file keeps one core busy and feeds about as many.
_MOST_THREADS: Final = 4


def usable_threads() -> int:
    """The number of threads to read a single file with: the cores that this process may use, within bounds."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


def in_order(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Call ``map(function, items)`` in ``threads`` threads, a few items ahead, with the results in order.

    ``function`` must be safe to call in several threads; threads help only while it releases Python's lock, as Arrow and
    zlib do. An error of ``items`` is raised after the results of all items before it. All threads end before this returns.
    """
    if threads < 2:
        yield from map(function, items)
        return
    waiting: deque[Future[R]] = deque()
    source = iter(items)
    failure: Exception | None = None
    first = next(source, None)
    if first is None:
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="read-ahead") as pool:
        try:
            item: T | None = first
            while item is not None:
                waiting.append(pool.submit(function, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
                try:
                    item = next(source, None)
                except Exception as error:  # noqa: BLE001 - raised below, in its place
                    failure, item = error, None
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
    if failure is not None:
        raise failure


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the same items; while the caller processes one, a thread fetches the next."""
    source = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="one-ahead") as pool:
        following: Future[Any] = pool.submit(next, source, end)
        while (item := following.result()) is not end:
            following = pool.submit(next, source, end)
            yield item
