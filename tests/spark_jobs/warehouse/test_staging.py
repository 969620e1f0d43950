"""Staging of one task: items are kept or discarded, and share few files, which stand where a commit will name them."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dispatch_core.recording.parquet import ROW_GROUP_ROWS
from dispatch_core.recording.schema import QUARANTINE
from dispatch_core.recording.stored_files import parquet_rows
from spark_jobs.intervals import interval
from spark_jobs.location import Location
from spark_jobs.warehouse import staging
from spark_jobs.warehouse.staging import Sink

DAY = interval("2026-11-21")


def rows(name: str, count: int, first: int = 0) -> pa.Table:
    return pa.table(
        {
            "source_file": pa.repeat(name, count),
            "source_line": pa.array(range(first, first + count), pa.int64()),
            "field": pa.nulls(count, pa.string()),
            "reason": pa.repeat("r", count),
            "raw": pa.nulls(count, pa.binary()),
            "raw_truncated": pa.repeat(False, count),
        },
        schema=QUARANTINE,
    )


def written(warehouse: Path) -> list[Location]:
    """List the files of the table, of commits or not."""
    return [stored.location for stored in (Location.of(warehouse) / "quarantine").files()]


def put(sink: Sink, **items: int) -> None:
    """Write items with these numbers of rows, five rows at a time; discard the one called ``failed``."""
    for name, count in items.items():
        for first in range(0, count, 5):
            sink.write("quarantine", rows(name, min(5, count - first), first))
        if name == "failed":
            sink.discard()
        else:
            sink.keep()


def contents(path: Location) -> list[tuple[str, int]]:
    """List the items in a file with their numbers of rows, in order."""
    names = parquet_rows(path.url)["source_file"].to_pylist()
    return [(name, len(list(group))) for name, group in groupby(names)]


def test_small_items_share_a_file_and_a_failed_one_leaves_nothing(tmp_path: Path) -> None:
    with Sink(tmp_path, DAY, "task") as sink:
        for name in ("a", "b", "c"):
            sink.write("quarantine", rows(name, 3))
            sink.write("quarantine", rows(name, 2, first=3))
            if name == "b":
                sink.discard()
            else:
                sink.keep()
        assert sink.rows("quarantine") == 10
        staged = sink.close()
    assert [(file.table, file.rows) for file in staged] == [("quarantine", 10)]
    assert contents(staged[0].path) == [("a", 5), ("c", 5)]
    assert written(tmp_path) == [staged[0].path]
    assert staged[0].size_bytes == staged[0].path.size_bytes()


def test_a_large_item_is_streamed_into_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "OWN_FILE_ROWS", 10)
    with Sink(tmp_path, DAY, "task") as sink:
        put(sink, small=4, large=25, failed=25, next=4)
        staged = sink.close()
    assert [contents(file.path) for file in staged] == [[("small", 4), ("next", 4)], [("large", 25)]]
    assert parquet_rows(staged[1].path.url)["source_line"].to_pylist() == list(range(25))
    assert len(written(tmp_path)) == 2


def test_items_apart_share_files_with_each_other_only(tmp_path: Path) -> None:
    with Sink(tmp_path, DAY, "task") as sink:
        paths = []
        for name, apart in (("a", ()), ("b", ("quarantine",)), ("c", ()), ("d", ("quarantine", "messages"))):
            sink.write("quarantine", rows(name, 2))
            paths += sink.keep(apart=apart)["quarantine"]
        assert sink.keep() == {}
        staged = sink.close()
    assert {file.path: contents(file.path) for file in staged} == {
        paths[0]: [("a", 2), ("c", 2)],
        paths[1]: [("b", 2), ("d", 2)],
    }
    assert paths[2:] == paths[:2]


def test_what_was_not_kept_is_not_there(tmp_path: Path) -> None:
    with Sink(tmp_path, DAY, "task") as sink:
        sink.write("quarantine", rows("a", 3))
        assert sink.close() == []
    assert written(tmp_path) == []


def test_an_exception_removes_what_was_begun_and_another_attempt_has_files_of_its_own(tmp_path: Path) -> None:
    def attempt(count: int, *, fail: bool) -> None:
        with Sink(tmp_path, DAY, "task", undo=False) as sink:
            sink.write("quarantine", rows("a", count))
            if fail:
                raise OSError("disk")
            sink.keep()
            sink.close()

    attempt(3, fail=False)
    with pytest.raises(OSError, match="disk"):
        attempt(ROW_GROUP_ROWS + 1, fail=True)
    attempt(5, fail=False)
    assert sorted(contents(path) for path in written(tmp_path)) == [[("a", 3)], [("a", 5)]]


def test_row_groups_are_full_and_end_with_an_item_where_that_is_cheap(tmp_path: Path) -> None:
    half = ROW_GROUP_ROWS // 2
    with Sink(tmp_path, DAY, "task", undo=False) as sink:
        for name, count in (("a", half + 7), ("b", 10), ("c", half), ("d", 1)):
            sink.write("quarantine", rows(name, count))
            sink.keep()
        (file,) = sink.close()
    data = pq.read_metadata(file.path.url)
    groups = [data.row_group(number).num_rows for number in range(data.num_row_groups)]
    assert groups == [half + 7, half + 10, 1]


def test_a_sink_that_streams_takes_nothing_back(tmp_path: Path) -> None:
    with (
        Sink(tmp_path, DAY, "task", undo=False) as sink,
        pytest.raises(RuntimeError, match="can be discarded"),
    ):
        sink.discard()


def test_a_large_item_continues_in_further_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers and readers keep something of every row group; with further files that does not grow with the log."""
    monkeypatch.setattr(staging, "OWN_FILE_ROWS", 10)
    monkeypatch.setattr(staging, "FILE_ROWS", 20)
    with Sink(tmp_path, DAY, "task") as sink:
        put(sink, failed=50)
        for first in range(0, 65, 5):
            sink.write("quarantine", rows("large", 5, first))
        paths = sink.keep()["quarantine"]
        put(sink, next=4)
        staged = sink.close()
    assert [file.path for file in staged[:4]] == paths == sorted(paths)
    assert [file.rows for file in staged] == [20, 20, 20, 5, 4]
    lines = [parquet_rows(file.path.url)["source_line"].to_pylist() for file in staged[:4]]
    assert [line for lines_of_file in lines for line in lines_of_file] == list(range(65))
    assert len(written(tmp_path)) == 5
