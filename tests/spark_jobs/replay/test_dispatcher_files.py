"""Rows of each dispatcher in a data file: by its footer, by its names where the footer does not say enough."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.replay.dispatcher_files import groups_in


def written(path: Path, rows: list[tuple[str, str]], **options: object) -> Path:
    clusters, topics = zip(*rows, strict=True) if rows else ((), ())
    table = pa.table(
        {
            "seq": range(len(rows)),
            "positions": [[{"ledger_id": 1}]] * len(rows),  # its leaves stand before the names
            "cluster": pa.array(clusters, pa.string()),
            "topic": pa.array(topics, pa.string()),
        }
    )
    pq.write_table(table, path, **options)
    return path


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), max_size=12), st.integers(1, 5))
def test_rows_are_counted_by_group(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], size: int
) -> None:
    path = written(tmp_path_factory.mktemp("file") / "rows.parquet", sorted(rows), row_group_size=size)
    assert groups_in(str(path), ("cluster", "topic")) == Counter(rows)


@pytest.mark.parametrize("statistics", [True, False])
def test_a_footer_that_says_nothing_is_not_trusted(tmp_path: Path, *, statistics: bool) -> None:
    rows = [("a", "x" * 5000), ("a", "x" * 5000)]
    path = written(tmp_path / "rows.parquet", rows, write_statistics=statistics)
    assert groups_in(str(path), ("cluster", "topic")) == Counter(rows)


def test_names_are_not_read_where_the_footer_says_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "rows.parquet", [("a", "x")] * 3 + [("a", "y")] * 2, row_group_size=3)
    monkeypatch.delattr(pq.ParquetFile, "read_row_group")
    assert groups_in(str(path), ("cluster", "topic")) == {("a", "x"): 3, ("a", "y"): 2}
