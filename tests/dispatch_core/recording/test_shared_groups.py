"""Rows of each dispatcher from a row group shared by many, unpacked once."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dispatch_core.recording import shared_groups
from dispatch_core.recording.log_survey import survey
from dispatch_core.recording.schema import EVENTS
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


def whole(table):
    return table


def entries(path, group, topic, form=whole, texts=("key",)):
    return rows_of(path, group, {"cluster": "x", "topic": topic}, form, texts)["entry_id"].to_pylist()


def test_runs_are_cut_out_and_joined_where_there_are_several(path):
    assert [entries(path, 0, topic) for topic in "abc"] == [[0, 1, 2, 5], [3, 4], [6, 7]]
    assert [entries(path, 1, topic) for topic in "abc"] == [[], [], [8, 9]]


def test_whose_rows_they_are_can_be_asked_for_too(path):
    table = rows_of(path, 0, {"cluster": "x", "topic": "b"}, whole, ["key"])
    assert table["topic"].to_pylist() == ["b", "b"]
    encoded = {field.name: pa.types.is_dictionary(field.type) for field in table.schema}
    assert encoded == {"cluster": True, "topic": True, "entry_id": False, "key": True}


def test_a_form_is_made_once_for_all_dispatchers(path):
    made = []

    def number_and_double(table):
        made.append(table.num_rows)
        return pa.table({"entry_id": pc.multiply(table["entry_id"], 2)})

    assert [entries(path, 0, topic, number_and_double) for topic in "abc"] == [
        [0, 2, 4, 10],
        [6, 8],
        [12, 14],
    ]
    assert made == [8]


def test_a_row_group_is_unpacked_once_for_all_its_dispatchers(path, monkeypatch):
    opened = []
    real = pq.ParquetFile
    monkeypatch.setattr(shared_groups.pq, "ParquetFile", lambda *a, **k: opened.append(a) or real(*a, **k))
    for _ in range(3):
        for topic in "abc":
            entries(path, 0, topic)
            entries(path, 0, topic, lambda table: table.select(["entry_id"]))  # for any question
    assert len(opened) == 1


def test_columns_without_values_are_not_there(path, tmp_path):
    table = pq.read_table(path)
    mixed = table.append_column("name", pa.array([None] * 8 + ["n", None]))
    pq.write_table(mixed, tmp_path / "n.parquet", row_group_size=8)
    found = [
        rows_of(str(tmp_path / "n.parquet"), group, {"cluster": "x", "topic": "c"}, whole)
        for group in range(2)
    ]
    assert [("name" in table.column_names) for table in found] == [False, True]
    assert found[1]["name"].to_pylist() == ["n", None]


def event(topic, seq, kind, **more):
    identity = {"cluster": "x", "topic": topic, "subscription": "s", "broker": "b", "incarnation": 1}
    return {**identity, "seq": seq, "t_us": 1000 + seq, "kind": kind} | more


EVENTS_OF = {
    "a": [
        event("a", 0, "header", header_json="{}"),
        event("a", 1, "consumer_added", consumer=1, name="c1"),
        event("a", 2, "flow", consumer=1, permits=5),
        event("a", 3, "gap", gap_lines=1),
    ],
    "b": [event("b", 1, "flow", consumer=2, permits=5, incarnation=2)],
    "c": [
        event("c", 1, "consumer_added", consumer=3, name="c3"),
        event("c", 2, "read_done", incarnation=1),
        event("c", 1, "consumer_added", consumer=4, name="c4", incarnation=2),
    ],
}


@pytest.mark.parametrize("topic", sorted(EVENTS_OF))
def test_a_log_in_a_shared_row_group_is_surveyed_like_one_alone(tmp_path, topic):
    def written(name, lines):
        table = pa.Table.from_pylist(lines, schema=EVENTS)
        pq.write_table(table, tmp_path / name)
        return [str(tmp_path / name)]

    asked = {"cluster": "x", "topic": topic, "subscription": "s"}, ("consumer_added", "gap")
    alone = survey(written("alone.parquet", EVENTS_OF[topic]), *asked)
    shared = survey(written("shared.parquet", [line for of in EVENTS_OF.values() for line in of]), *asked)
    assert shared.rare.equals(alone.rare)
    assert set(shared.incarnations) == set(alone.incarnations)
    assert shared.traced is alone.traced is (topic == "c")
