"""Ingest task: read landed files one after the other, keep the rows of the interval, stage them as Parquet.

Runs in Spark's Python workers; uses files and Arrow, not Spark. A bad file does not affect the others: the reader
quarantines bad rows, and a file that cannot be read becomes one quarantine row with the reason. All log files of a task are
staged into the same few files, so that many small logs do not make many small files. For each log the task reports if its
rows are sorted runs already (``runs``).

A row belongs to the interval of its time (``t_us`` of an event, ``publish_time_ms`` of a message). A row without a time
(a header) and a bad row belong to every interval that their file has rows of; if no row of the file has a time, to all
intervals. Rows of other intervals are counted by day; the runs of those intervals read the same file. Messages shortly
behind the interval's end are such rows, too; they are also staged for ``spark_jobs.ingest.messages_ahead``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from io import BytesIO
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.errors import describe
from dispatch_core.recording import schema
from dispatch_core.recording.ahead import one_ahead
from dispatch_core.recording.files import file_format
from dispatch_core.recording.reader import LogFile, read_file
from spark_jobs.ingest import messages_ahead
from spark_jobs.ingest.messages_ahead import HighestNamed, published_ahead
from spark_jobs.ingest.sorted_runs import Headers, Runs
from spark_jobs.intervals import Interval, day_of
from spark_jobs.location import Location
from spark_jobs.warehouse.contracts import STAGED_FILE
from spark_jobs.warehouse.delta_tables import Place
from spark_jobs.warehouse.staging import Sink

#: One row per task: its name, its log files in order, and the number of threads that read one file. ``only_ahead``: the file
#: has no row of the interval, and messages shortly behind its end. ``ahead``: some file has such messages.
TASKS: Final = pa.schema(
    [
        pa.field("part", pa.string()),
        pa.field(
            "files",
            pa.list_(pa.struct([("name", pa.string()), ("path", pa.string()), ("only_ahead", pa.bool_())])),
        ),
        pa.field("threads", pa.int64()),
        pa.field("ahead", pa.bool_()),
    ]
)

_GROUPS: Final = pa.list_(pa.list_(pa.string()))

#: One row per log file: the counts of its rows and their places; the first row of a task lists the staged files.
STAGED: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field(
            "staged",
            pa.list_(pa.struct(STAGED_FILE)),
        ),
        # groups: those that the file has rows of; sorted: each is a sorted run (spark_jobs.ingest.sorted_runs)
        pa.field(
            "runs",
            pa.list_(
                pa.struct(
                    [
                        ("table", pa.string()),
                        ("paths", pa.list_(pa.string())),
                        ("groups", _GROUPS),
                        ("sorted", pa.bool_()),
                    ]
                )
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
        pa.field("only_ahead", pa.bool_()),
        # the highest position of each topic that the accepted events name
        pa.field(
            "named",
            pa.list_(
                pa.struct(
                    [
                        ("cluster", pa.string()),
                        ("topic", pa.string()),
                        ("ledger_id", pa.int64()),
                        ("entry_id", pa.int64()),
                    ]
                )
            ),
        ),
    ]
)

_TABLES: Final = {"messages": "messages", "events": "consumer_events", "quarantine": "quarantine"}
_TIME_US: Final = {"messages": ("publish_time_ms", 1000), "consumer_events": ("t_us", 1)}
_DAY_US: Final = 86_400_000_000


def read_partition(
    batches: Iterator[pa.RecordBatch], *, warehouse: str, interval_start: datetime, interval_end: datetime
) -> Iterator[pa.RecordBatch]:
    """Map rows of ``TASKS`` to rows of ``STAGED``, for ``mapInArrow``."""
    span = Interval(interval_start, interval_end)
    for batch in batches:
        for task in batch.to_pylist():
            files = [(file["name"], Location.of(file["path"])) for file in task["files"]]
            only_ahead = {file["name"] for file in task["files"] if file["only_ahead"]}
            reports = stage_files(
                task["part"],
                files,
                Location.of(warehouse),
                span,
                threads=task["threads"],
                ahead=task["ahead"],
                only_ahead=only_ahead,
            )
            yield pa.RecordBatch.from_pylist(reports, schema=STAGED)


def stage_files(
    part: str,
    files: Sequence[tuple[str, Place]],
    warehouse: Place,
    span: Interval,
    *,
    threads: int = 1,
    ahead: bool = False,
    only_ahead: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Read log files (name, place) and stage their rows of the interval; return rows of ``STAGED``, one per file.

    ``ahead``: stage messages shortly behind the interval's end, too; of the files ``only_ahead`` nothing else.
    """
    place = Location.of(warehouse)
    # An item that is discarded from the first sink may have messages in the second.
    with Sink(place, span, part) as sink, Sink(place, span, part, undo=False) as behind:
        reports = []
        for name, log in files:
            with _opened(Location.of(log), name) as stream:
                reading = read_file(stream, name=name, threads=threads)
                if name in only_ahead:
                    reports.append(_stage_ahead(reading, behind, span))
                else:
                    reports.append(_stage_file(reading, sink, span, behind if ahead else None))
        staged = sink.close() + behind.close()
    for report in reports:
        report["staged"] = []
    reports[0]["staged"] = [file.as_json() for file in staged]
    return reports


@contextmanager
def _opened(place: Location, name: str) -> Iterator[BinaryIO]:
    """Open a log file: a Parquet file for reading at any place, lines from the beginning on.

    A file that cannot be opened is one that cannot be read: the reader reports it.
    """
    known = file_format(name)
    try:
        stream = place.open() if known is not None and known[1] == "parquet" else place.stream()
    except OSError as error:
        yield _Unreadable(error)
        return
    with stream:
        yield stream


class _Unreadable(BytesIO):
    """A file that could not be opened: each attempt to read it raises the error."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def read(self, _size: int | None = -1, /) -> bytes:
        raise self._error

    def seek(self, _to: int, _whence: int = 0, /) -> int:
        raise self._error


def _stage_ahead(reading: LogFile, behind: Sink, span: Interval) -> dict[str, Any]:
    """Stage the messages of a file without rows of the interval; return a row of ``STAGED`` that counts none.

    Its bad rows, and what stops the reader, are reported by the intervals that the file has rows of.
    """
    batches = iter(reading)
    while True:
        try:
            batch = next(batches, None)
        except Exception:  # noqa: BLE001 - as above
            break
        if batch is None:
            break
        if batch.table == "messages":
            behind.write(messages_ahead.TABLE, published_ahead(pa.Table.from_batches([batch.rows]), span))
    return _left_to_others(reading.name, Counter()) | {"only_ahead": True}


def _stage_file(reading: LogFile, sink: Sink, span: Interval, behind: Sink | None) -> dict[str, Any]:
    """Read one file and stage its rows of the interval; return a row of ``STAGED``. Does not raise for a bad file.

    ``behind`` takes its messages shortly behind the interval's end.

    ``rows_in`` counts the lines that are rows (not headers), and each problem of the file as a whole as one;
    ``rows_in = rows_accepted + rows_quarantined + rows_other_interval``.
    """
    others: Counter[str] = Counter()
    rows_of: Counter[str] = Counter()
    runs = {name: Runs(name) for name in _TIME_US}
    in_place = Headers()
    named = HighestNamed()
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
        except Exception as error:  # noqa: BLE001 - a file on which the reader fails must not stop the others
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
        if table == "messages" and behind is not None:
            behind.write(messages_ahead.TABLE, published_ahead(rows, span))
        if table in _TIME_US:
            rows, elsewhere = split(rows, *_TIME_US[table], span)
            others.update(elsewhere)
        elif first_reason is None and rows.num_rows:
            first_reason = _where_and_why(rows.slice(0, 1).to_pylist()[0])
        if table == "consumer_events":
            headers += pc.sum(pc.equal(rows["kind"], "header")).as_py() or 0
            if behind is not None:
                named.add(rows)
            rows = in_place.place(rows)
        take(table, rows)
    take("consumer_events", in_place.rest(schema.EVENTS))
    inside = rows_of["messages"] + rows_of["consumer_events"] - headers
    outside = sum(others.values())
    if outside and not inside:
        # Its header and bad lines belong to the intervals that it has rows of, and this is not one of them.
        sink.discard()
        return _left_to_others(reading.name, others)
    paths_of = sink.keep(apart={name for name, log_runs in runs.items() if log_runs.groups is None})
    return {
        "name": reading.name,
        "runs": [
            {
                "table": name,
                "paths": [str(path) for path in paths_of[name]],
                "groups": log_runs.present,
                "sorted": log_runs.groups is not None,
            }
            for name, log_runs in runs.items()
            if name in paths_of
        ],
        # The reader's own count: if a row were lost after it, the sum would not match. If the reader failed, the rows that
        # it returned are counted.
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
        "only_ahead": False,
        "named": named.rows(),
    }


def _left_to_others(name: str, others: Counter[str]) -> dict[str, Any]:
    """Make the row of ``STAGED`` for a file whose rows all belong to other intervals."""
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
        "only_ahead": False,
        "named": [],
    }


def _days(others: Counter[str]) -> list[dict[str, Any]]:
    return [{"day": day, "rows": rows} for day, rows in sorted(others.items())]


def split(rows: pa.Table, column: str, unit_us: int, span: Interval) -> tuple[pa.Table, Counter[str]]:
    """Split off the rows of other intervals: return the interval's rows (and those without a time), and the others by day.

    ``column``: the rows' time, in units of ``unit_us`` microseconds.
    """
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
    elsewhere = {day_of(count["values"] * _DAY_US): count["counts"] for count in days.to_pylist()}
    return rows.filter(inside), Counter(elsewhere)


def _where_and_why(row: dict[str, Any]) -> str:
    line = "" if row["source_line"] is None else f"line {row['source_line']}, "
    field = "" if row["field"] is None else f"{row['field']}: "
    return f"{line}{field}{row['reason']}"
