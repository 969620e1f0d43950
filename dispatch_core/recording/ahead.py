"""Work on the blocks of a file ahead of its reader: on several cores, handed on in the order of the file."""

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
    """``map(function, items)`` with the calls in ``threads`` threads, a few items ahead, results in order.

    ``function`` must bear being called for several items at once; it helps only where it leaves Python's lock, as Arrow
    and zlib do. What ``items`` raises comes after the results of all items before it. No thread is left behind.
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
    """The same items; while the caller works on one, a thread makes the next."""
    source = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="one-ahead") as pool:
        following: Future[Any] = pool.submit(next, source, end)
        while (item := following.result()) is not end:
            following = pool.submit(next, source, end)
            yield item
