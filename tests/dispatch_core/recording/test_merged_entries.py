"""Entries of several files in order of position, whatever the cuts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.recording.merged_entries import EntryFile, merged

Row = tuple[int, int, int | None]


def table(rows: list[Row]) -> pa.Table:
    """Entries with their publish times."""
    names = ("ledger_id", "entry_id", "publish_time_ms")
    columns = zip(*rows, strict=True)
    return pa.table({name: pa.array(values, pa.int64()) for name, values in zip(names, columns, strict=True)})


def file_of(rows: list[Row], cut: int, opened: list[int], number: int, *, known: bool) -> EntryFile:
    """A file of which at most ``cut`` rows are read at once; ``opened`` gets its number when it is read."""

    def tables() -> Iterator[pa.Table]:
        opened.append(number)
        for start in range(0, len(rows), cut):
            yield table(rows[start : start + cut])

    return EntryFile(rows[0][:2] if rows and known else None, tables())


def rows_of(tables: Iterator[pa.Table]) -> list[Row]:
    return [
        tuple(row[name] for name in ("ledger_id", "entry_id", "publish_time_ms"))  # type: ignore[misc]
        for part in tables
        for row in part.to_pylist()
    ]


@given(st.data())
def test_entries_come_in_order_of_position(data: Any) -> None:
    """Entries lie in an interval by a clock that is off by less than an interval; some have no time, and lie in all."""
    count, intervals, cut = (data.draw(st.integers(low, high)) for low, high in ((1, 60), (1, 5), (1, 20)))
    interval = -(-count // intervals)
    off = data.draw(st.lists(st.integers(-interval, interval), min_size=count, max_size=count))
    timed = data.draw(st.lists(st.sampled_from([True, True, True, False]), min_size=count, max_size=count))
    places = [(3 + at // 25, at % 25) for at in range(count)]
    entries: list[Row] = [(*place, at + off[at] if timed[at] else None) for at, place in enumerate(places)]
    by_interval: list[list[Row]] = [[] for _ in range(intervals)]
    for row in entries:
        if row[2] is None:
            for files in by_interval:
                files.append(row)
        else:
            by_interval[min(max(row[2] // interval, 0), intervals - 1)].append(row)
    files = [file_of(rows, cut, [], at, known=True) for at, rows in enumerate(by_interval)]
    assert rows_of(merged(files)) == entries


def test_a_file_is_opened_when_its_entries_are_near() -> None:
    opened: list[int] = []
    rows: list[list[Row]] = [[(3, at, at) for at in range(start, start + 10)] for start in (0, 10, 20)]
    files = [file_of(part, 5, opened, number, known=True) for number, part in enumerate(rows)]
    seen = []
    for part in merged(files):
        seen.append((part["entry_id"][0].as_py(), list(opened)))
    assert seen == [(0, [0]), (5, [0]), (10, [0, 1]), (15, [0, 1]), (20, [0, 1, 2]), (25, [0, 1, 2])]


def test_a_file_is_opened_before_the_one_in_front_of_it_if_its_entries_come_first() -> None:
    """The first two are of one interval; the third has entries that were published behind its end."""
    opened: list[int] = []
    rows: list[list[Row]] = [
        [(3, 0, 0), (3, 1, 1), (3, 3, 3)],
        [(3, 5, 5), (3, 6, 6)],
        [(3, 2, 9), (3, 4, 9)],
    ]
    files = [file_of(part, 10, opened, number, known=True) for number, part in enumerate(rows)]
    assert [row[1] for row in rows_of(merged(files))] == [0, 1, 2, 3, 4, 5, 6]
    assert opened == [0, 2, 1]


def test_only_equal_lines_without_a_time_count_once() -> None:
    first: list[Row] = [(3, 0, None), (3, 1, 5), (3, 2, None)]
    second: list[Row] = [(3, 0, None), (3, 1, 5), (3, 2, 7)]
    files = [file_of(rows, 10, [], at, known=True) for at, rows in enumerate((first, second))]
    assert rows_of(merged(files)) == [(3, 0, None), (3, 1, 5), (3, 1, 5), (3, 2, None), (3, 2, 7)]


def test_a_file_whose_first_entry_is_not_known_is_opened_one_ahead() -> None:
    rows: list[list[Row]] = [[(3, 0, 0), (3, 2, 2)], [], [(3, 1, 3), (3, 3, 4)], [(3, 4, 5)]]
    opened: list[int] = []
    files = [file_of(part, 1, opened, number, known=False) for number, part in enumerate(rows)]
    found = merged(files)
    assert rows_of(iter([next(found)])) == [(3, 0, 0)]
    assert opened == [0, 1, 2]
    assert [row[1] for row in rows_of(found)] == [1, 2, 3, 4]
