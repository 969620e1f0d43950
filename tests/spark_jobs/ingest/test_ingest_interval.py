"""Ingest with a real Spark session and real Delta tables: what is kept, what is quarantined, and that all rows add up."""

from __future__ import annotations

import gzip
import json
import shutil
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from spark_jobs.ingest.ingest_interval import IngestError, ingest
from spark_jobs.ingest.sorted_runs import GROUP, ORDER
from spark_jobs.intervals import interval
from spark_jobs.pull.pull_logs import PullError, pull
from spark_jobs.pull.segments import Segment, without_doubles
from spark_jobs.warehouse.delta_tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark_jobs.conftest import Home

pytestmark = pytest.mark.spark

SAMPLE = Path(__file__).parents[2] / "data" / "recordings"
DAY = interval("2026-11-21")


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Rows in an order of their own, without what only the table or only the source has."""
    apart = ("interval_start", "source_file")
    return sorted(json.dumps({k: v for k, v in row.items() if k not in apart}, default=str) for row in rows)


def test_the_tables_hold_what_the_reader_reads(sample: Home) -> None:
    recordings = [read_recording(recording) for recording in find_recordings([SAMPLE])]
    logs = [log for recording in recordings for log in recording.logs]
    messages = read_table(sample.warehouse, "messages").to_pylist()
    assert plain(messages) == plain([row for log in logs for row in log.messages.to_pylist()])
    events = read_table(sample.warehouse, "consumer_events")
    headers = events.filter(pc.equal(events["kind"], "header"))
    assert sorted(headers["header_json"].to_pylist()) == sorted(
        _header_line(trace) for trace in SAMPLE.rglob("trace.*")
    )
    others = events.filter(pc.not_equal(events["kind"], "header")).to_pylist()
    assert plain(others) == plain([row for log in logs for row in log.events.to_pylist()])
    summary = sample.summaries["ingest"]
    assert summary["rows_in"] == summary["rows_accepted"] == len(messages) + len(others)
    assert (summary["rows_quarantined"], summary["files"], summary["files_failed"]) == (0, 2 * len(logs), 0)


def _header_line(trace: Path) -> str:
    with gzip.open(trace, "rt", encoding="utf-8") as lines:
        return next(lines).strip()


def files_of(warehouse: Path, name: str) -> list[Path]:
    """The data files of a table that was written once."""
    return sorted((warehouse / name).rglob("*.parquet"))


def assert_runs(warehouse: Path, name: str) -> None:
    """Each dispatcher (topic, for messages) is one run of one file, in the order of its lines."""
    seen: set[tuple[str, ...]] = set()
    for path in files_of(warehouse, name):
        rows = pq.ParquetFile(path).read(columns=[*GROUP[name], *ORDER[name]]).to_pylist()
        for group, run in groupby(rows, key=lambda row: tuple(row[column] for column in GROUP[name])):
            assert group not in seen
            seen.add(group)
            places = [tuple(row[column] for column in ORDER[name]) for row in run]
            assert places == sorted(places)
    assert seen


@pytest.mark.parametrize("name", ["messages", "consumer_events"])
def test_a_dispatchers_rows_are_one_sorted_run_of_a_file(sample: Home, name: str) -> None:
    assert_runs(sample.warehouse, name)


def test_split_or_unordered_logs_are_sorted_and_the_others_taken_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    for name in _GOOD:
        shutil.copytree(SAMPLE / "4.2.4" / name, source / name)
    folder = source / _GOOD[0]
    trace = gzip.decompress((folder / "trace.jsonl.gz").read_bytes()).splitlines(keepends=True)
    (folder / "trace.jsonl.gz").unlink()
    (folder / "trace-1.jsonl").write_bytes(b"".join([trace[0], *trace[200:]]))  # the later part comes first
    (folder / "trace-2.jsonl").write_bytes(b"".join(trace[:200]))
    other = source / _GOOD[1] / "messages.jsonl.gz"
    messages = gzip.decompress(other.read_bytes()).splitlines(keepends=True)
    other.write_bytes(gzip.compress(b"".join(reversed(messages))))

    pull(source, tmp_path / "landing", DAY.start)
    summary = ingest(spark, tmp_path / "landing", tmp_path / "warehouse", DAY)
    for name in ("messages", "consumer_events"):
        assert_runs(tmp_path / "warehouse", name)
    assert len(files_of(tmp_path / "warehouse", "messages")) == 2  # one that came so, one that was sorted
    assert summary["rows_accepted"] == summary["rows_in"]
    logs = [log for recording in find_recordings([source]) for log in read_recording(recording).logs]
    for table, attribute in (("messages", "messages"), ("consumer_events", "events")):
        kept = read_table(tmp_path / "warehouse", table)
        if table == "consumer_events":
            kept = kept.filter(pc.not_equal(kept["kind"], "header"))
        assert plain(kept.to_pylist()) == plain(
            [row for log in logs for row in getattr(log, attribute).to_pylist()]
        )


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """One recording with two bad lines and lines of another day, one unreadable file, one good recording."""
    source = tmp_path / "source"
    for name in ("designed-drain-one-by-one-ch", "designed-failover-modulo-p1"):
        shutil.copytree(SAMPLE / "4.2.4" / name, source / name)
    trace = source / "designed-drain-one-by-one-ch" / "trace.jsonl.gz"
    lines = gzip.decompress(trace.read_bytes()).splitlines()
    trace.unlink()
    lines.insert(3, b'{"seq":"three","t_us":1795249456234146,"kind":"flow"}')
    lines.append(b"\xff not even JSON")
    for seq in (900_001, 900_002, 900_003):
        lines.append(b'{"seq":%d,"t_us":%d,"kind":"step","note":"next day"}' % (seq, DAY.end_us + seq))
    trace.with_name("trace.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (source / "designed-failover-modulo-p1" / "messages-2.jsonl.gz").write_bytes(b"this is no gzip data")
    return source


def test_bad_rows_and_files_are_quarantined_counted_and_stop_nothing(
    spark: SparkSession, spoiled: Path, tmp_path: Path
) -> None:
    landing, warehouse = tmp_path / "landing", tmp_path / "warehouse"
    pull(spoiled, landing, DAY.start)
    summary = ingest(spark, landing, warehouse, DAY)
    good = [
        read_recording(recording)
        for recording in find_recordings([SAMPLE / "4.2.4" / name for name in _GOOD])
    ]
    events, messages = (
        sum(getattr(log, table).num_rows for recording in good for log in recording.logs)
        for table in ("events", "messages")
    )
    assert summary["rows_accepted"] == events + messages
    assert summary["other_intervals"] == {"2026-11-22": 3}
    assert (summary["rows_quarantined"], summary["rows_other_interval"], summary["files_failed"]) == (3, 3, 1)
    assert summary["rows_in"] == summary["rows_accepted"] + 3 + 3

    kept = {
        (row["source_file"].rpartition("/")[2], row["source_line"]): row
        for row in read_table(warehouse, "quarantine", DAY).to_pylist()
    }
    assert set(kept) == {("trace.jsonl", 4), ("trace.jsonl", 525), ("messages-2.jsonl.gz", None)}
    assert kept["trace.jsonl", 4]["field"] == "seq"
    assert kept["trace.jsonl", 525]["raw"] == b"\xff not even JSON"
    (run,) = read_table(warehouse, "run_metadata").to_pylist()
    assert {
        name: run[name] for name in ("rows_in", "rows_accepted", "rows_quarantined", "rows_other_interval")
    } == {
        name: summary[name]
        for name in ("rows_in", "rows_accepted", "rows_quarantined", "rows_other_interval")
    }

    before = {name: _rows(warehouse, name) for name in ("messages", "consumer_events", "quarantine")}
    ingest(spark, landing, warehouse, DAY)
    assert {name: _rows(warehouse, name) for name in before} == before

    # The next day's run takes its own rows of the same file, and leaves this day's alone.
    following = interval("2026-11-22")
    pull(spoiled, landing, following.start)
    ingest(spark, landing, warehouse, following)
    events_next = read_table(warehouse, "consumer_events", following)
    assert sorted(events_next.filter(pc.greater(events_next["seq"], 0))["seq"].to_pylist()) == [
        900_001,
        900_002,
        900_003,
    ]
    assert _rows(warehouse, "messages") == before["messages"]

    # Another landing of the interval replaces all of it; an interval without an event says so and keeps its bad rows.
    (spoiled / "designed-failover-modulo-p1" / "trace.jsonl.gz").unlink()
    (spoiled / "designed-drain-one-by-one-ch" / "trace.jsonl").write_bytes(b"nothing\n")
    pull(spoiled, landing, DAY.start, keep_gone=False)
    with pytest.raises(IngestError, match=r"none of 4 files has an event of 2026-11-21.*quarantined: 2"):
        ingest(spark, landing, warehouse, DAY)
    assert read_table(warehouse, "consumer_events", DAY).num_rows == 0
    assert read_table(warehouse, "quarantine", DAY).num_rows == 2
    assert read_table(warehouse, "consumer_events", following).num_rows == events_next.num_rows


_GOOD = ("designed-drain-one-by-one-ch", "designed-failover-modulo-p1")


def _rows(warehouse: Path, name: str) -> list[str]:
    return sorted(map(repr, read_table(warehouse, name, DAY).to_pylist()))


def test_an_interval_that_was_never_pulled_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="nothing was landed for 2026-11-21"):
        ingest(spark, tmp_path / "landing", tmp_path / "warehouse", DAY)
    assert not (tmp_path / "warehouse").exists()


def test_event_files_beside_a_trace_are_not_read_twice() -> None:
    names = ["a/events.jsonl", "a/trace.jsonl", "a/messages.jsonl", "b/events.jsonl"]
    kept = without_doubles(Segment(name, "", 0) for name in names)
    assert [segment.name for segment in kept] == ["a/messages.jsonl", "a/trace.jsonl", "b/events.jsonl"]


def test_an_interval_reads_the_files_with_rows_of_it_and_takes_nothing_else_from_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    lines = gzip.decompress((SAMPLE / "4.2.4" / _GOOD[0] / "trace.jsonl.gz").read_bytes()).splitlines()
    moved = []
    for line in lines:
        row = json.loads(line)
        # All rows in the second half of one hour; another interval ends in its middle.
        moved.append({**row, "t_us": DAY.start_us + 1_800_000_000 + row["seq"]} if "seq" in row else row)
    text = "".join(json.dumps(row) + "\n" for row in moved) + "a bad line\n"
    (source / "trace-1.jsonl").write_text(text)
    early = interval("2026-11-21", "2026-11-21T00:30:00")
    late = interval("2026-11-21T00:30:00", "2026-11-21T01:00:00")
    following = interval("2026-11-21T01:00:00", "2026-11-21T01:30:00")
    landing, warehouse = tmp_path / "landing", tmp_path / "warehouse"
    for span in (early, late, following):
        pull(source, landing, span.start, interval_end=span.end)
    assert ingest(spark, landing, warehouse, late)["rows_accepted"] == len(lines) - 1
    for span, files in ((early, 1), (following, 0)):
        with pytest.raises(IngestError, match=r"none of 1 files.*days with rows: 2026-11-21"):
            ingest(spark, landing, warehouse, span)
        (run,) = (
            json.loads(row["summary_json"])
            for row in read_table(warehouse, "run_metadata").to_pylist()
            if row["interval_start"] == span.start
        )
        assert (run["files"], run["files_of_other_intervals"]) == (files, 1 - files)
        assert run["rows_in"] == run["rows_other_interval"] == (len(lines) - 1 if files else 0)
        for name in ("messages", "consumer_events", "quarantine"):
            assert read_table(warehouse, name, span).num_rows == 0, (
                "its header and its bad line are strays here"
            )
    assert read_table(warehouse, "quarantine", late).num_rows == 1
