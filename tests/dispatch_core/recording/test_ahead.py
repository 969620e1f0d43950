"""Results of work done ahead in threads come in order, with exceptions in their place, and no thread is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dispatch_core.recording.ahead import in_order, one_ahead
from dispatch_core.recording.files import Limits
from tests.dispatch_core.recording.reading import HEADER, flow, read


def test_results_come_in_order_however_long_each_takes():
    later = threading.Event()

    def slow_first(item: int) -> int:
        if item == 0:
            assert later.wait(10)  # only a later item lets the first one end
        else:
            later.set()
        return item * 10

    assert list(in_order(slow_first, range(20), threads=2)) == [item * 10 for item in range(20)]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_what_the_items_raise_comes_after_the_results_before_it(threads):
    def items() -> Iterator[int]:
        yield from range(5)
        raise OSError("the disk is gone")

    results = in_order(str, items(), threads)
    assert [next(results) for _ in range(5)] == ["0", "1", "2", "3", "4"]
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)


@pytest.mark.parametrize("threads", [1, 3])
def test_what_the_function_raises_comes_in_its_place(threads):
    results = in_order(lambda item: 1 // item, [2, 1, 0, 5], threads)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_no_thread_is_left_when_the_reader_stops_early():
    before = threading.active_count()
    results = in_order(str, iter(range(1_000_000)), threads=3)
    assert next(results) == "0"
    results.close()
    items = one_ahead(iter(range(1_000_000)))
    assert next(items) == 0
    items.close()
    assert threading.active_count() == before


def test_one_ahead_is_the_same_items():
    assert list(one_ahead(range(7))) == list(range(7))
    assert list(one_ahead([])) == []


def test_one_ahead_raises_in_its_place():
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    got = one_ahead(items())
    assert next(got) == 1
    with pytest.raises(ValueError, match="broken"):
        next(got)


def test_many_blocks_with_bad_lines_and_late_fields_are_read_alike_with_and_without_threads():
    lines: list = [HEADER, *(flow(seq) for seq in range(1, 400))]
    lines[100] = b"\xff"
    lines[200] = flow(200, blocked=True, unknown=1)
    lines[300] = {**HEADER, "subscription": "other"}
    single, two, slow = (
        read(lines, limits=Limits(block_bytes=512), threads=threads, line_by_line=threads == 0)
        for threads in (1, 2, 0)
    )
    assert single.same_as(two)
    assert single.same_as(slow)
    assert single.counts.quarantined == 1
