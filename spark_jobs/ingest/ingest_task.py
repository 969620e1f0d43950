"""Ingest task: read landed files one after the other, keep the rows of the interval, stage them as Parquet.

Runs in Spark's Python workers; knows files and Arrow, not Spark. One file is one work item, and whatever is wrong
with it stays its own: bad rows are quarantined by the reader, and a file that cannot be read at all becomes one
quarantine row that says why. The files of a task share the files that it stages, so many small logs do not make as many
small files; of each log the task says whether its rows are sorted runs already (``runs``).

A row belongs to the interval when its time does (``t_us`` of an event, ``publish_time_ms`` of a message); a row without a
time (a header), and a bad one, belongs to every interval that its file has rows of, and to all where not one row of it has
a time. Rows of other intervals are counted by day and left to the runs of those intervals, which read the same file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.errors import describe
from dispatch_core.recording import schema
from dispatch_core.recording.ahead import one_ahead
from dispatch_core.recording.reader import LogFile, read_file
from spark_jobs.ingest.sorted_runs import Headers, Runs
from spark_jobs.intervals import Interval, day_of
from spark_jobs.warehouse.contracts import GROUP
from spark_jobs.warehouse.staging import Sink

#: One row per task: its name, its log files in their order, and how many threads read one of them.
TASKS: Final = pa.schema(
    [
        pa.field("part", pa.string()),
        pa.field("files", pa.list_(pa.struct([("name", pa.string()), ("path", pa.string())]))),
        pa.field("threads", pa.int64()),
    ]
)

_GROUPS: Final = pa.list_(pa.list_(pa.string()))

#: One row per log file: the counts of its rows, and where they are; the first row of a task says what it staged.
STAGED: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field(
            "staged",
            pa.list_(pa.struct([("table", pa.string()), ("path", pa.string()), ("rows", pa.int64())])),
        ),
        # groups: whose runs they are (spark_jobs.ingest.sorted_runs), null if they are no runs
        pa.field(
            "runs",
            pa.list_(
                pa.struct([("table", pa.string()), ("paths", pa.list_(pa.string())), ("groups", _GROUPS)])
            ),
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
    """``mapInArrow`` over tasks (``TASKS``) → ``STAGED``."""
    span = Interval(interval_start, interval_end)
    for batch in batches:
        for task in batch.to_pylist():
            files = [(file["name"], Path(file["path"])) for file in task["files"]]
            reports = stage_files(task["part"], files, Path(staging), span, threads=task["threads"])
            yield pa.RecordBatch.from_pylist(reports, schema=STAGED)


def stage_files(
    part: str, files: list[tuple[str, Path]], staging: Path, span: Interval, *, threads: int = 1
) -> list[dict[str, Any]]:
    """Read log files (name, path) and stage their rows of the interval; returns rows of ``STAGED``, one per file."""
    with Sink(staging, part) as sink:
        reports = [
            _stage_file(read_file(path, name=name, threads=threads), sink, span) for name, path in files
        ]
        staged = sink.close()
    for one in reports:
        one["staged"] = []
    reports[0]["staged"] = [{"table": one.table, "path": str(one.path), "rows": one.rows} for one in staged]
    return reports


def _stage_file(reading: LogFile, sink: Sink, span: Interval) -> dict[str, Any]:
    """Read one file and stage its rows of the interval; returns a row of ``STAGED``. Does not raise for a bad file.

    ``rows_in`` counts the lines that are rows (not headers) and, as one each, problems of the file as a whole;
    ``rows_in = rows_accepted + rows_quarantined + rows_other_interval``.
    """
    others: Counter[str] = Counter()
    rows_of: Counter[str] = Counter()
    runs = {name: Runs(name) for name in GROUP}
    in_place = Headers()
    headers = 0
    first_reason: str | None = None
    failed = False

    def take(table: str, rows: pa.Table) -> None:
        if table in runs:
            runs[table].follow(rows)
        sink.write(table, rows)
        rows_of[table] += rows.num_rows

    # The next batch is read while this one is written.
    batches = iter(one_ahead(reading) if reading.threads > 1 else reading)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:  # noqa: BLE001 - a file that the reader cannot bear must not stop the others
            failed = True
            reason = f"could not be read on: {describe(error)}"
            row = {"source_file": reading.name, "reason": reason, "raw_truncated": False}
            first_reason = first_reason or reason
            sink.write("quarantine", pa.Table.from_pylist([row], schema=schema.QUARANTINE))
            rows_of["quarantine"] += 1
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
        if table == "consumer_events":
            headers += pc.sum(pc.equal(rows["kind"], "header")).as_py() or 0
            rows = in_place.place(rows)
        take(table, rows)
    take("consumer_events", in_place.rest(schema.EVENTS))
    inside = rows_of["messages"] + rows_of["consumer_events"] - headers
    outside = sum(others.values())
    if outside and not inside:
        # It has its place in the intervals that it holds rows of; here its header and bad lines would be strays.
        sink.discard()
        return _left_to_others(reading.name, others)
    held = sink.keep(apart={name for name, one in runs.items() if one.groups is None})
    return {
        "name": reading.name,
        "runs": [
            {"table": name, "paths": [str(path) for path in held[name]], "groups": one.groups}
            for name, one in runs.items()
            if name in held
        ],
        # The reader's own count, so that a row lost between it and here would not balance; what it could not finish
        # is counted by what came out of it.
        "rows_in": inside + outside + rows_of["quarantine"]
        if failed
        else reading.counts.lines - reading.counts.about_file + reading.counts.file_problems,
        "rows_accepted": inside,
        "rows_quarantined": rows_of["quarantine"],
        "rows_other_interval": outside,
        "other_days": _days(others),
        "events": rows_of["consumer_events"] - headers,
        "failed": failed or reading.counts.file_problems > 0,
        "first_reason": first_reason,
    }


def _left_to_others(name: str, others: Counter[str]) -> dict[str, Any]:
    """The row of ``STAGED`` of a file whose rows are all of other intervals."""
    rows = sum(others.values())
    return {
        "name": name,
        "runs": [],
        "rows_in": rows,
        "rows_accepted": 0,
        "rows_quarantined": 0,
        "rows_other_interval": rows,
        "other_days": _days(others),
        "events": 0,
        "failed": False,
        "first_reason": None,
    }


def _days(others: Counter[str]) -> list[dict[str, Any]]:
    return [{"day": day, "rows": rows} for day, rows in sorted(others.items())]


def split(rows: pa.Table, column: str, unit_us: int, span: Interval) -> tuple[pa.Table, Counter[str]]:
    """The rows of the interval (and those without a time), and how many rows fall on which other days."""
    bounds = pc.min_max(rows[column]).as_py()
    if (
        bounds["min"] is None
        or span.start_us <= bounds["min"] * unit_us <= bounds["max"] * unit_us < span.end_us
    ):
        return rows, Counter()
    time_us = pc.multiply(rows[column], unit_us)
    inside = pc.fill_null(
        pc.and_(pc.greater_equal(time_us, span.start_us), pc.less(time_us, span.end_us)), True
    )
    outside = pc.invert(inside)
    days = pc.value_counts(pc.divide(time_us.filter(outside), _DAY_US))
    elsewhere = {day_of(one["values"] * _DAY_US): one["counts"] for one in days.to_pylist()}
    return rows.filter(inside), Counter(elsewhere)


def _where_and_why(row: dict[str, Any]) -> str:
    line = "" if row["source_line"] is None else f"line {row['source_line']}, "
    field = "" if row["field"] is None else f"{row['field']}: "
    return f"{line}{field}{row['reason']}"
