"""Messages of an interval that have a publish time behind its end: those that its events name, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.recording.schema import EVENTS, MESSAGES
from dispatch_core.recording.stored_files import parquet_rows
from spark_jobs.ingest.messages_ahead import HighestNamed, highest_of, published_ahead, stage_named
from spark_jobs.intervals import Interval, interval
from spark_jobs.location import Location
from spark_jobs.warehouse.delta_tables import write_rows

HOUR = interval("2026-11-21T00:00:00", "2026-11-21T01:00:00")
END_MS = HOUR.end_us // 1000


def events(*rows: dict[str, Any]) -> pa.Table:
    common = {"cluster": "c", "topic": "t", "subscription": "s", "kind": "sent", "seq": 1}
    return pa.Table.from_pylist([common | row for row in rows], schema=EVENTS)


def positions(*places: tuple[int, int]) -> dict[str, Any]:
    return {"positions": [{"ledger_id": ledger, "entry_id": entry} for ledger, entry in places]}


def messages(*rows: tuple[str, int, int]) -> pa.Table:
    """Topic, entry and publish time behind the interval's end."""
    made = [
        {
            "cluster": "c",
            "topic": topic,
            "ledger_id": 3,
            "entry_id": entry,
            "num_messages": 1,
            "publish_time_ms": END_MS + late_ms,
        }
        for topic, entry, late_ms in rows
    ]
    return pa.Table.from_pylist(made, schema=MESSAGES)


def named_by(*tables: pa.Table) -> dict[tuple[str, str], tuple[int, int]]:
    found = HighestNamed()
    for table in tables:
        found.add(table)
    return highest_of(found.rows())


def test_messages_of_the_first_minute_behind_the_end_may_be_ahead() -> None:
    rows = messages(("t", 0, -1), ("t", 1, 0), ("t", 2, 59_999), ("t", 3, 60_000))
    assert published_ahead(rows, HOUR)["entry_id"].to_pylist() == [1, 2]
    assert published_ahead(rows.slice(0, 1), HOUR).num_rows == 0
    no_time = rows.set_column(
        rows.schema.get_field_index("publish_time_ms"), "publish_time_ms", pa.nulls(4, pa.int64())
    )
    assert published_ahead(no_time, HOUR).num_rows == 0
    assert published_ahead(rows, Interval(HOUR.end, HOUR.end.replace(hour=2))).num_rows == 0


def test_the_highest_position_of_a_topic_is_that_of_any_line() -> None:
    assert named_by(events()) == {}
    assert named_by(events({"kind": "flow"})) == {}
    lines = events(positions((3, 9), (4, 1)), positions((3, 10)), {"topic": "u"} | positions((2, 5)))
    assert named_by(lines, events(positions((4, 0)))) == {("c", "t"): (4, 1), ("c", "u"): (2, 5)}
    moved = events({"kind": "cursor_moved", "moved_to": {"ledger_id": 7, "entry_id": 2}})
    assert named_by(lines, moved)["c", "t"] == (7, 2)
    text = '{"mark_delete": "8:1", "ack_holes": ["8:5"], "pending_acks": {}}'
    assert named_by(lines, events({"kind": "checkpoint", "checkpoint_json": text}))["c", "t"] == (8, 5)


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("tu"), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)))),
            max_size=6,
        ),
        max_size=3,
    )
)
def test_the_highest_position_by_brute_force(batches: list[list[tuple[str, list[tuple[int, int]]]]]) -> None:
    tables = [
        events(*({"topic": topic} | positions(*places) for topic, places in batch)) for batch in batches
    ]
    expected: dict[tuple[str, str], tuple[int, int]] = {}
    for batch in batches:
        for topic, places in batch:
            for place in places:
                expected["c", topic] = max(place, expected.get(("c", topic), place))
    assert named_by(*tables) == expected


def test_of_the_messages_ahead_those_up_to_the_highest_position_are_staged_in_order(tmp_path: Path) -> None:
    files = []
    for number, rows in enumerate(
        (messages(("u", 4, 9), ("t", 7, 5)), messages(("t", 6, 7), ("t", 8, 8), ("v", 0, 1)))
    ):
        files.append(write_rows(tmp_path, "messages_ahead", HOUR, rows, f"{number:05d}"))
    highest = {("c", "t"): (3, 7), ("c", "u"): (3, 4)}
    (staged,) = stage_named(files, highest, Location.of(tmp_path), HOUR)
    rows = parquet_rows(staged.path.url).to_pylist()
    assert [(row["topic"], row["entry_id"]) for row in rows] == [("t", 6), ("t", 7), ("u", 4)]
    assert stage_named(files, {("c", "t"): (3, 5)}, Location.of(tmp_path), HOUR) == []
