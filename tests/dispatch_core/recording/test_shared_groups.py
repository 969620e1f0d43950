"""Rows of each dispatcher from a row group shared by many, unpacked once."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dispatch_core.recording import shared_groups
from dispatch_core.recording.shared_groups import rows_of


@pytest.fixture
def path(tmp_path):
    topics = ["a"] * 3 + ["b"] * 2 + ["a"] * 1 + ["c"] * 4
    table = pa.table(
        {
            "cluster": ["x"] * 10,
            "topic": topics,
            "entry_id": list(range(10)),
            "key": [f"k{n % 2}" for n in range(10)],
        }
    )
    pq.write_table(table, tmp_path / "m.parquet", row_group_size=8)
    return str(tmp_path / "m.parquet")


def entries(path, group, topic, columns=("entry_id", "key", "unknown"), texts=("key",)):
    table = rows_of(path, group, {"cluster": "x", "topic": topic}, columns, texts)
    assert table.column_names == [name for name in columns if name != "unknown"]
    return table["entry_id"].to_pylist()


def test_runs_are_cut_out_and_joined_where_there_are_several(path):
    assert [entries(path, 0, topic) for topic in "abc"] == [[0, 1, 2, 5], [3, 4], [6, 7]]
    assert [entries(path, 1, topic) for topic in "abc"] == [[], [], [8, 9]]


def test_whose_rows_they_are_can_be_asked_for_too(path):
    table = rows_of(path, 0, {"cluster": "x", "topic": "b"}, ["topic", "entry_id", "key"], ["key"])
    assert table["topic"].to_pylist() == ["b", "b"]
    encoded = [pa.types.is_dictionary(kind) for kind in table.schema.types]
    assert encoded == [True, False, True]


def test_a_row_group_is_unpacked_once_for_all_its_dispatchers(path, monkeypatch):
    opened = []
    real = pq.ParquetFile
    monkeypatch.setattr(shared_groups.pq, "ParquetFile", lambda *a, **k: opened.append(a) or real(*a, **k))
    for _ in range(3):
        for topic in "abc":
            entries(path, 0, topic)
            entries(path, 0, topic, ["entry_id"])  # for any question
    assert len(opened) == 1


def test_columns_without_values_are_not_there(path, tmp_path):
    table = pq.read_table(path)
    mixed = table.append_column("name", pa.array([None] * 8 + ["n", None]))
    pq.write_table(mixed, tmp_path / "n.parquet", row_group_size=8)
    asked = ["entry_id", "name"]
    found = [
        rows_of(str(tmp_path / "n.parquet"), group, {"cluster": "x", "topic": "c"}, asked)
        for group in range(2)
    ]
    assert [table.column_names for table in found] == [["entry_id"], asked]
    assert found[1]["name"].to_pylist() == ["n", None]
