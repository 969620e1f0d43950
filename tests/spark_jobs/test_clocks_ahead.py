"""Producers whose clocks are ahead of the broker's, at an interval's end: no false alarm, and no silent PASS."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from spark_jobs.replay.as_of import AsOf
from spark_jobs.replay.replay_interval import replay
from spark_jobs.warehouse.delta_tables import read_table
from tests.spark_jobs.orders import Home, assert_same, runs, span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC, SUBSCRIPTION = "persistent://public/default/orders", "billing"
HEADER = {
    "format": "pulsar-consumer-events",
    "format_version": 1,
    "broker_version": "4.2.4",
    "topic": TOPIC,
    "subscription": SUBSCRIPTION,
    "subscription_type": "Key_Shared",
    "partition_index": -1,
    "config": {},
}
END_US = span(1).end_us
#: Entry 3 is stored, sent and acknowledged 3 s before the first hour's end; the entries up to 5 before the end.
ENTRIES = 12
AHEAD = 3


def stored_us(entry: int) -> int:
    return END_US + (entry - 6) * 1_000_000 + 500_000


def message(entry: int, clock_ms: int) -> dict[str, Any]:
    """A line about an entry whose producer's clock differs by so much."""
    return {
        "topic": TOPIC,
        "position": f"5:{entry}",
        "key": f"k{entry % 2}",
        "producer": "ahead" if clock_ms else "on time",
        "sequence_id": entry,
        "publish_time_ms": stored_us(entry) // 1000 + clock_ms,
        "num_messages": 1,
        "size_bytes": 10,
    }


def messages(clocks_ms: dict[int, int]) -> list[dict[str, Any]]:
    return [message(entry, clocks_ms.get(entry, 0)) for entry in range(ENTRIES)]


def events() -> list[dict[str, Any]]:
    policy = {"mode": "AUTO_SPLIT", "allow_out_of_order": False, "ranges": []}
    begins_us = stored_us(0) - 1_000_000
    found: list[dict[str, Any]] = [
        {"t_us": begins_us, "kind": "consumer_added", "consumer": 1, "name": "w", "key_shared": policy},
        {"t_us": begins_us + 1, "kind": "flow", "consumer": 1, "permits": 1000},
    ]
    for entry in range(ENTRIES):
        named = {"consumer": 1, "positions": [f"5:{entry}"]}
        found.append({"t_us": stored_us(entry) + 2000, "kind": "sent", **named, "batch_sizes": [1]})
        found.append({"t_us": stored_us(entry) + 9000, "kind": "ack", **named, "ack_type": "Individual"})
    return [{"seq": seq} | event for seq, event in enumerate(found, 1)]


def write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_by_hour(source: Path, lines: Sequence[dict[str, Any]], hours: Iterable[int] = (1, 2)) -> None:
    """Write the messages of these hours, by their publish times, one file each, and the events likewise."""
    for hour in hours:
        inside = range(span(hour).start_us, span(hour).end_us)
        of_hour = [line for line in lines if line["publish_time_ms"] * 1000 in inside]
        if of_hour:
            write(source / f"messages-{hour}.jsonl", of_hour)
        lines_of_hour = [line for line in events() if line["t_us"] in inside]
        if lines_of_hour:
            write(source / f"events-{hour}.jsonl", [HEADER, *lines_of_hour])


def verdicts(home: Home, number: int) -> dict[str, str]:
    table = read_table(home.warehouse, "verdicts", span(number)).to_pylist()
    return {row["promise"]: row["verdict"] for row in table if row["topic"] == TOPIC}


def findings(home: Home, number: int) -> list[tuple[str, str, bool]]:
    table = read_table(home.warehouse, "anomalies", span(number)).to_pylist()
    return [(row["kind"], row["reason"], row["uncertain"]) for row in table]


def keys_sent(home: Home, number: int) -> list[tuple[int, str | None]]:
    table = read_table(home.warehouse, "deliveries", span(number)).to_pylist()
    return sorted((row["entry_id"], row["key"]) for row in table)


def assert_judged_as_without_skew(home: Home) -> None:
    assert keys_sent(home, 1) == [(entry, f"k{entry % 2}") for entry in range(6)]
    assert (findings(home, 1), findings(home, 2)) == ([], [])
    assert set(verdicts(home, 1).values()) == set(verdicts(home, 2).values()) == {"PASS"}
    assert [run["replayed_as_a_whole"]["logs"] for run in runs(home.warehouse, "replay")] == [0, 0]
    for run in runs(home.warehouse, "ingest"):
        parts = ("rows_accepted", "rows_quarantined", "rows_other_interval")
        assert run["rows_in"] == sum(run[part] for part in parts)
    rows = read_table(home.warehouse, "messages")
    assert Counter(rows["entry_id"].to_pylist()) == Counter(range(ENTRIES)), "each row once"


@pytest.mark.parametrize("one_file", [True, False])
def test_an_entry_that_was_sent_before_the_end_is_judged_with_its_interval(
    spark: SparkSession, tmp_path: Path, *, one_file: bool
) -> None:
    lines = messages({AHEAD: 5_000})
    source = tmp_path / "source"
    if one_file:
        write(source / "messages.jsonl", lines)
        write(source / "events.jsonl", [HEADER, *events()])
    else:
        write_by_hour(source, lines)
    home = Home(tmp_path / "home", source)
    home.run(spark, [1, 2])
    assert_judged_as_without_skew(home)
    (ahead,) = read_table(home.warehouse, "messages_ahead").to_pylist()
    assert (ahead["entry_id"], ahead["interval_start"]) == (AHEAD, span(1).start)
    stored = read_table(home.warehouse, "dispatcher_state").sort_by("interval_start")["entries_stored"]
    assert stored.to_pylist() == [5, 7], "by publish time, each entry once"

    backwards = Home(tmp_path / "backwards", source)
    backwards.run(spark, [2, 1])
    assert backwards.recompute(spark) == []
    assert_same(backwards, home)


def test_an_entry_whose_row_comes_later_is_in_doubt_until_then(spark: SparkSession, tmp_path: Path) -> None:
    lines = messages({AHEAD: 5_000})
    source = tmp_path / "source"
    write_by_hour(source, lines, [1])
    home = Home(tmp_path / "home", source)
    home.run(spark, [1])
    assert set(findings(home, 1)) == {("unknown_position", "maybe_clock_ahead", True)}
    found = verdicts(home, 1)
    assert (found["input_quality"], found["per_key_order"], found["all"]) == ("UNKNOWN",) * 3

    write_by_hour(source, lines, [2])
    home.run(spark, [2])
    assert home.recompute(spark) == [span(1).name]
    fresh = Home(tmp_path / "fresh", source)
    fresh.run(spark, [1, 2])
    assert_judged_as_without_skew(fresh)
    assert_same(home, fresh)


def test_rows_behind_the_first_minute_make_no_earlier_interval_stale(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = messages({AHEAD: 5_000})
    source = tmp_path / "source"
    write_by_hour(source, lines)
    home = Home(tmp_path / "home", source, to_the_end=False)
    home.run(spark, [1, 2])
    later = message(ENTRIES, 120_000)
    with (source / "messages-2.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(later) + "\n")
    home.run(spark, [2])
    assert home.recompute(spark) == []


@pytest.mark.parametrize("one_file", [True, False])
def test_a_clock_that_is_further_ahead_makes_no_certain_finding(
    spark: SparkSession, tmp_path: Path, *, one_file: bool
) -> None:
    lines = messages({AHEAD: 120_000})
    source = tmp_path / "source"
    if one_file:
        write(source / "messages.jsonl", lines)
        write(source / "events.jsonl", [HEADER, *events()])
    else:
        write_by_hour(source, lines)
    home = Home(tmp_path / "home", source)
    home.run(spark, [1, 2])
    assert set(findings(home, 1)) == {("unknown_position", "maybe_clock_ahead", True)}
    explanation = read_table(home.warehouse, "anomalies")["explanation"][0].as_py()
    assert "by a producer's clock that is ahead" in explanation
    found = verdicts(home, 1)
    assert (found["input_quality"], found["per_key_order"], found["all"]) == ("UNKNOWN",) * 3
    assert set(verdicts(home, 2).values()) == {"PASS"}


def test_a_row_that_is_missing_is_certain_where_no_other_can_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    write_by_hour(source, [line for line in messages({}) if line["sequence_id"] != 8])
    home = Home(tmp_path / "home", source, to_the_end=False)
    home.run(spark, [2])
    assert set(findings(home, 2)) == {("unknown_position", "maybe_clock_ahead", True)}
    replay(spark, home.warehouse, span(2), asked=AsOf(complete=True))
    assert ("unknown_position", "not_stored", False) in findings(home, 2)


def test_a_clock_that_is_behind_at_the_beginning_of_a_home(spark: SparkSession, tmp_path: Path) -> None:
    lines = messages(dict.fromkeys((7, 9), -60_000))
    source = tmp_path / "source"
    write_by_hour(source, [line for line in lines if line["sequence_id"] > 5])
    (source / "events-1.jsonl").unlink()
    write(source / "events-2.jsonl", [HEADER, *_second_hour_alone()])
    home = Home(tmp_path / "home", source)
    home.run(spark, [2])
    assert home.history == [span(1).name]
    assert findings(home, 2) == []
    assert set(verdicts(home, 2).values()) == {"PASS"}
    assert [entry for entry, _key in keys_sent(home, 2)] == list(range(6, ENTRIES))
    assert pc.sum(read_table(home.warehouse, "dispatcher_state", span(2))["entries_stored"]).as_py() == 4


def _second_hour_alone() -> list[dict[str, Any]]:
    first_two, later = events()[:2], [line for line in events() if line["t_us"] >= END_US]
    joined = [line | {"t_us": END_US + at} for at, line in enumerate(first_two)]
    return [line | {"seq": seq} for seq, line in enumerate([*joined, *later], 1)]
