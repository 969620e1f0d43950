"""What one ingest task does: read one landed file, keep the rows of the interval, stage them as Parquet.

Runs in Spark's Python workers; knows files and Arrow, not Spark. One file is one unit of work, and whatever is wrong
with it stays its own: bad rows are quarantined by the reader, and a file that cannot be read at all becomes one
quarantine row that says why.

A row belongs to the interval when its time does (``t_us`` of an event, ``publish_time_ms`` of a message); a row without a
time (a header) belongs to every interval that its file is landed for. Rows of other intervals are counted by day
and left to the runs of those intervals, which read the same file.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dispatch_core.recording import schema
from dispatch_core.recording.reader import read_file
from spark_jobs.intervals import Interval, day_of
from spark_jobs.replay_task import describe
from spark_jobs.warehouse import conform, file_schema

FILES: Final = pa.schema([pa.field("name", pa.string()), pa.field("path", pa.string())])

#: One row per file: what was staged of it and the counts of its rows.
STAGED: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field(
            "staged",
            pa.list_(pa.struct([("table", pa.string()), ("path", pa.string()), ("rows", pa.int64())])),
        ),
        pa.field("rows_in", pa.int64()),
        pa.field("rows_accepted", pa.int64()),
        pa.field("rows_quarantined", pa.int64()),
        pa.field("rows_other_interval", pa.int64()),
        pa.field("other_days", pa.list_(pa.struct([("day", pa.string()), ("rows", pa.int64())]))),
        pa.field("events", pa.int64()),  # accepted events that are no header
        pa.field("failed", pa.bool_()),
        pa.field("first_reason", pa.string()),
    ]
)

_TABLES: Final = {"messages": "messages", "events": "consumer_events", "quarantine": "quarantine"}
_TIME_US: Final = {"messages": ("publish_time_ms", 1000), "consumer_events": ("t_us", 1)}
_DAY_US: Final = 86_400_000_000


def read_partition(
    batches: Iterator[pa.RecordBatch], *, staging: str, interval_start: datetime, interval_end: datetime
) -> Iterator[pa.RecordBatch]:
    """``mapInArrow`` over files (``FILES``) → ``STAGED``."""
    span = Interval(interval_start, interval_end)
    for batch in batches:
        for file in batch.to_pylist():
            report = stage_file(file["name"], Path(file["path"]), Path(staging), span)
            yield pa.RecordBatch.from_pylist([report], schema=STAGED)


def stage_file(name: str, path: Path, staging: Path, span: Interval) -> dict[str, Any]:
    """Read one file and stage its rows of the interval; returns a row of ``STAGED``. Does not raise for a bad file.

    ``rows_in`` counts the lines that are rows (not headers) and, as one each, problems of the file as a whole;
    ``rows_in = rows_accepted + rows_quarantined + rows_other_interval``.
    """
    part = hashlib.sha256(name.encode()).hexdigest()[:32]
    others: Counter[str] = Counter()
    first_reason: str | None = None
    failed = False
    reading = read_file(path, name=name)
    with _Stage(staging, part) as stage:
        batches = iter(reading)
        while True:
            try:
                batch = next(batches, None)
            except Exception as error:  # noqa: BLE001 - a file that the reader cannot bear must not stop the others
                failed = True
                reason = f"could not be read on: {describe(error)}"
                row = {"source_file": name, "reason": reason, "raw_truncated": False}
                first_reason = first_reason or reason
                stage.write("quarantine", pa.Table.from_pylist([row], schema=schema.QUARANTINE))
                break
            if batch is None:
                break
            rows = pa.Table.from_batches([batch.rows])
            table = _TABLES[batch.table]
            if table in _TIME_US:
                rows, elsewhere = split(rows, *_TIME_US[table], span)
                others.update(elsewhere)
            elif first_reason is None and rows.num_rows:
                first_reason = _where_and_why(rows.slice(0, 1).to_pylist()[0])
            stage.write(table, rows)
    inside = stage.rows["messages"] + stage.rows["consumer_events"] - stage.headers
    outside = sum(others.values())
    quarantined = stage.rows["quarantine"]
    return {
        "name": name,
        "staged": [
            {"table": table, "path": str(stage.paths[table]), "rows": stage.rows[table]}
            for table in stage.paths
        ],
        # The reader's own count, so that a row lost between it and here would not balance; what it could not finish
        # is counted by what came out of it.
        "rows_in": inside + outside + quarantined
        if failed
        else reading.counts.lines - reading.counts.about_file + reading.counts.file_problems,
        "rows_accepted": inside,
        "rows_quarantined": quarantined,
        "rows_other_interval": outside,
        "other_days": [{"day": day, "rows": rows} for day, rows in sorted(others.items())],
        "events": stage.rows["consumer_events"] - stage.headers,
        "failed": failed or reading.counts.file_problems > 0,
        "first_reason": first_reason,
    }


def split(rows: pa.Table, column: str, unit_us: int, span: Interval) -> tuple[pa.Table, Counter[str]]:
    """The rows of the interval (and those without a time), and how many rows fall on which other days."""
    time_us = pc.multiply(rows[column], unit_us)
    inside = pc.fill_null(
        pc.and_(pc.greater_equal(time_us, span.start_us), pc.less(time_us, span.end_us)), True
    )
    outside = pc.invert(inside)
    days = pc.value_counts(pc.divide(time_us.filter(outside), _DAY_US))
    elsewhere = {day_of(one["values"] * _DAY_US): one["counts"] for one in days.to_pylist()}
    return rows.filter(inside), Counter(elsewhere)


def event_days(name: str, path: Path) -> set[str]:
    """The UTC days of the events that a file holds; none for a message file."""
    days: set[int] = set()
    reading = read_file(path, name=name)
    if reading.content == "messages":
        return set()
    for batch in reading:
        if batch.table == "events":
            days.update(pc.unique(pc.divide(batch.rows["t_us"].drop_null(), _DAY_US)).to_pylist())
    return {day_of(day * _DAY_US) for day in days}


class _Stage:
    """The Parquet files that one task stages, one per table, made when the first row comes; seen only when whole."""

    def __init__(self, staging: Path, part: str) -> None:
        self.rows: Counter[str] = Counter()
        self.headers = 0
        self.paths: dict[str, Path] = {}
        self._staging, self._part = staging, part
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._stack = ExitStack()

    def __enter__(self) -> _Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self._stack.close()
        for table, path in self.paths.items():
            if kind is None:
                self._temporary(table).replace(path)

    def write(self, table: str, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        if table not in self._writers:
            folder = self._staging / table
            folder.mkdir(exist_ok=True)  # no parents: where the run was killed and swept, it must not go on
            self.paths[table] = folder / f"{self._part}.parquet"
            writer = pq.ParquetWriter(self._temporary(table), file_schema(table), compression="zstd")
            self._writers[table] = self._stack.enter_context(writer)
        self._writers[table].write_table(conform(rows, file_schema(table)))
        self.rows[table] += rows.num_rows
        if table == "consumer_events":
            self.headers += pc.sum(pc.equal(rows["kind"], "header")).as_py() or 0

    def _temporary(self, table: str) -> Path:
        return self._staging / table / f".{self._part}.tmp"


def _where_and_why(row: dict[str, Any]) -> str:
    line = "" if row["source_line"] is None else f"line {row['source_line']}, "
    field = "" if row["field"] is None else f"{row['field']}: "
    return f"{line}{field}{row['reason']}"
