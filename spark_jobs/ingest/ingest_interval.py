"""Ingest the landed files of one interval into the tables ``messages``, ``consumer_events`` and ``quarantine``.

Only files that can have rows of the interval are read (``spark_jobs.pull.hours_survey``). For each file a task reads the
log, keeps the rows of the interval, and stages them as Parquet (``spark_jobs.ingest.ingest_task``). In the tables each
dispatcher's rows are one sorted run in one file, so that replay can stream them. Staged files that are sorted already
are taken as they are; Spark groups and sorts the rows of all others by dispatcher in one exchange. Then one commit per
table replaces the interval's rows.

docs/pipeline.md explains which rows belong to an interval. ``rows_in = rows_accepted + rows_quarantined +
rows_other_interval`` in every summary.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.ahead import usable_threads
from spark_jobs.ingest import messages_ahead
from spark_jobs.ingest.ingest_task import STAGED, TASKS, read_partition
from spark_jobs.ingest.interval_plan import (
    Expected,
    ahead_inputs_digest,
    file_marks,
    has_messages_ahead,
    inputs_digest,
    logs_go_on,
    messages_go_on,
    of_interval,
    outdated,
    read_ahead_of_interval,
)
from spark_jobs.ingest.sorted_files import read_staged, write_sorted
from spark_jobs.ingest.sorted_runs import not_runs
from spark_jobs.intervals import Interval, day_of
from spark_jobs.progress import say, tasks_done
from spark_jobs.pull import segments
from spark_jobs.pull.hours_survey import HOUR_US
from spark_jobs.pull.pull_logs import landed_segments
from spark_jobs.pull.segment_surveys import Surveyed, surveyed
from spark_jobs.pull.segments import Segment
from spark_jobs.task_grouping import group_into_tasks
from spark_jobs.warehouse import inputs, spark_tables
from spark_jobs.warehouse.contracts import GROUP, ORDER, STAGED_FILE, StagedFile, file_schema
from spark_jobs.warehouse.delta_tables import (
    Place,
    Publication,
    PublishedMeanwhileError,
    compact,
    publishing,
    record_run,
)
from spark_jobs.warehouse.run_ledger import Ledger, with_ahead

#: The tables that this stage makes of the landed files.
_TABLES = ("messages", "consumer_events", messages_ahead.TABLE, "quarantine")
#: Attempts while other runs publish the same interval: one that ingested the same files leaves nothing to do.
_ATTEMPTS = 3
_OTHER_S = 20.0
_LOOK_AGAIN_S = 0.2
#: Small files are grouped until a task has at least so many bytes to read.
_BYTES_PER_TASK = 8_000_000
#: An error names at most so many of the first days and of the last days that files have rows of.
_DAYS_SHOWN = 5
#: The exchange makes files of at least so many rows.
_ROWS_PER_FILE = 500_000


class IngestError(DispatchAuditError):
    """The landed files have no event of the interval."""


def ingest(spark: SparkSession, landing: Place, warehouse: Place, span: Interval) -> dict[str, Any]:
    """Replace the interval's rows of the three tables by those of its landed files; return a summary with counts.

    Bad rows and bad files are quarantined and counted. Raises ``PullError`` if nothing was landed (the tables keep their
    rows), ``LogsRemovedError`` if its logs are not kept any more, and ``IngestError`` if no event of the interval was found
    (the tables hold what was found instead).
    """
    Ledger(warehouse).check_kept(span)
    landed_segments(landing, span)  # raises before anything is recorded
    summary = _ingest(spark, landing, warehouse, span, as_history=False)
    assert summary is not None, "only an ingest as history may be skipped"
    return summary


def ingest_as_history(
    spark: SparkSession, landing: Place, warehouse: Place, span: Interval
) -> dict[str, Any] | None:
    """Ingest an interval because a later one needs its rows; None if the tables hold what is landed already.

    An interval without events is no error here. The rows of a retired interval are removed.
    """
    return _ingest(spark, landing, warehouse, span, as_history=True)


def _ingest(
    spark: SparkSession, landing: Place, warehouse: Place, span: Interval, *, as_history: bool
) -> dict[str, Any] | None:
    for _attempt in range(_ATTEMPTS - 1):
        began = datetime.now(UTC)
        try:
            return _ingest_once(spark, landing, warehouse, span, as_history=as_history)
        except PublishedMeanwhileError as error:
            say(f"ingest {span.name}: {error}; doing it again")
            _wait_for_other(warehouse, span, began)
    return _ingest_once(spark, landing, warehouse, span, as_history=as_history)


def _wait_for_other(warehouse: Place, span: Interval, began: datetime) -> None:
    """Wait until the run that published meanwhile has recorded what it did; not for long, because it may have died."""
    give_up = time.monotonic() + _OTHER_S
    while time.monotonic() < give_up:
        at = Ledger(warehouse).finished_at("ingest", span)
        if at is not None and at >= began:
            return
        time.sleep(_LOOK_AGAIN_S)


def _ingest_once(
    spark: SparkSession, landing: Place, warehouse: Place, span: Interval, *, as_history: bool
) -> dict[str, Any] | None:
    began, started_at = time.monotonic(), datetime.now(UTC)
    with publishing(warehouse, span, (*_TABLES, inputs.TABLE)) as run:
        if as_history and _gave_way(landing, span):
            landed: list[Segment] = []
        else:
            landed = landed_segments(landing, span)
        read = segments.without_doubles(landed)
        known = surveyed(spark, landing, read)
        expected = Expected(
            span, inputs_digest(known, span), logs_go_on(known, span), ahead_inputs_digest(known, span)
        )
        if as_history:
            ledger = Ledger(warehouse)
            ingested = ledger.ingested()
            if span.start_us in ingested and not outdated([expected], ingested, ledger.read_ahead()):
                return None
        chosen = of_interval(known, span)
        only_ahead = read_ahead_of_interval(known, span) if chosen else []
        segments.check_whole(landing, [*chosen, *only_ahead])
        files = [
            (segment.name, str(segment.path(landing)), segment.size_bytes)
            for segment in [*chosen, *only_ahead]
        ]
        say(f"ingest {span.name}: {len(chosen)} files, {sum(segment.size_bytes for segment in chosen)} bytes")
        ahead = has_messages_ahead(known, span)
        names_ahead = {segment.name for segment in only_ahead}
        reports = _staged(spark, files, run, names_ahead, ahead=ahead) if files else []
        staged = {name: _files_of(reports, name) for name in _TABLES}
        for of_table in staged.values():
            run.staged(of_table)
        run.check()
        rows = {
            name: _publish(spark, reports, staged[name], name, run)
            for name in ("messages", "consumer_events")
        }
        ahead_files = _named_ahead(reports, staged[messages_ahead.TABLE], run)
        ahead_digest = messages_ahead.digest_of(ahead_files)
        rows[messages_ahead.TABLE] = run.replace(messages_ahead.TABLE, ahead_files)
        rows["quarantine"] = run.replace("quarantine", compact(staged["quarantine"], run))
        digests = inputs.digests_of(
            _groups(reports), file_marks(known, span), messages_ahead.digests_by_topic(ahead_files)
        )
        state = inputs.state_of((span.end_us, with_ahead(expected.digest, ahead_digest)))
        run.replace(inputs.TABLE, inputs.stage(run, state, digests))
        summary = _summary(reports, rows, span) | {
            "files_of_other_intervals": len(read) - len(chosen),
            "files_beside_a_trace": len(landed) - len(read),
            "inputs_digest": expected.digest,
            "ahead_inputs_digest": expected.ahead,
            "ahead_rows_digest": ahead_digest,
            "logs_go_on": expected.goes_on,
            "messages_go_on": messages_go_on(known, span),
            "as_history": as_history,
            "seconds": round(time.monotonic() - began, 3),
        }
        record_run(warehouse, "ingest", span, started_at, summary)
    for report in reports:
        if report["rows_quarantined"]:
            say(
                f"ingest {span.name}: {report['name']}: {report['rows_quarantined']} of {report['rows_in']} rows "
                f"quarantined, first: {report['first_reason']}; the others are kept"
            )
    if not as_history and not any(report["events"] for report in reports):
        raise IngestError(
            f"{landing}: none of {len(landed)} files has an event of {span.name} "
            f"(days with rows: {_days(known)}, quarantined: {summary['rows_quarantined']}); "
            "what was quarantined is kept in the table quarantine. Check the interval and the source"
        )
    return summary


def _groups(reports: list[dict[str, Any]]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the names of the log files with the dispatchers, or topics, that each has rows of."""
    for report in reports:
        for log_runs in report["runs"]:
            yield report["name"], log_runs["groups"]


def _gave_way(landing: Place, span: Interval) -> bool:
    landed = segments.read_interval(landing, span)
    return landed is not None and landed.role == "retired"


def _days(known: Sequence[Surveyed]) -> str:
    """List the days that the files have rows of, as a text for an error."""
    days = sorted({day_of(hour * HOUR_US) for _one, survey in known for hour, _rows, _mark in survey.hours})
    shown = days if len(days) <= 2 * _DAYS_SHOWN else [*days[:_DAYS_SHOWN], "...", *days[-_DAYS_SHOWN:]]
    return ", ".join(shown) or "none"


def sorted_by_dispatcher(frame: DataFrame, name: str, partitions: int) -> DataFrame:
    """Group the rows by dispatcher (messages by topic) and sort each group, in one exchange."""
    return frame.repartition(partitions, *GROUP[name]).sortWithinPartitions(*GROUP[name], *ORDER[name])


def _publish(
    spark: SparkSession,
    reports: list[dict[str, Any]],
    files: list[StagedFile],
    name: str,
    run: Publication,
) -> int:
    apart = not_runs(
        (log_runs["paths"], log_runs["groups"] if log_runs["sorted"] else None)
        for report in reports
        for log_runs in report["runs"]
        if log_runs["table"] == name
    )
    others = [file for file in files if file.path.url in apart]
    ready = [file for file in files if file.path.url not in apart]
    rows = sum(file.rows for file in others)
    if rows:
        say(
            f"ingest {run.span.name}: {name}: {rows} rows to group and sort, "
            f"{sum(file.rows for file in ready)} are sorted"
        )
        sorted_files = _sorted(spark, others, name, run, _partitions(spark, rows))
        run.staged(sorted_files)
        ready += sorted_files
    return run.replace(name, ready)


def _sorted(
    spark: SparkSession, files: list[StagedFile], name: str, run: Publication, partitions: int
) -> list[StagedFile]:
    """Group and sort the rows of staged files in one exchange; tasks read and write the files themselves, with Arrow."""
    schema, staged = spark_tables.spark_schema(file_schema(name)), pa.schema(STAGED_FILE)
    # Modules' functions are pickled by their names, so that the workers import them.
    write = partial(
        write_sorted,
        warehouse=run.warehouse.url,
        table=name,
        interval_start=run.span.start,
        interval_end=run.span.end,
    )

    def reading(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return read_staged(batches, name)

    def writing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        return write(batches, number=0 if context is None else context.partitionId())

    paths = [{"path": file.path.url} for file in files]
    frame = spark.createDataFrame(
        spark.sparkContext.parallelize(paths, len(paths)),
        spark_tables.spark_schema(pa.schema([pa.field("path", pa.string())])),
    )
    result: pa.Table = (
        frame.mapInArrow(reading, schema)
        .transform(sorted_by_dispatcher, name, partitions)
        .mapInArrow(writing, spark_tables.spark_schema(staged))
        .toArrow()
    )
    return [StagedFile.of_json(row) for row in result.sort_by("path").to_pylist()]


def _partitions(spark: SparkSession, rows: int) -> int:
    """Compute the number of files to sort into: each fits into a task's memory, and all cores have work."""
    return max(1, rows // 1_000_000, min(spark.sparkContext.defaultParallelism, rows // _ROWS_PER_FILE))


def _named_ahead(
    reports: list[dict[str, Any]], files: list[StagedFile], run: Publication
) -> list[StagedFile]:
    """Stage the messages behind the interval's end that its events name."""
    highest = messages_ahead.highest_of(row for report in reports for row in report["named"])
    return messages_ahead.stage_named(files, highest, run.warehouse, run.span)


def _staged(
    spark: SparkSession,
    files: list[tuple[str, str, int]],
    run: Publication,
    only_ahead: Collection[str],
    *,
    ahead: bool,
) -> list[dict[str, Any]]:
    """Run the tasks, largest first; return their reports (rows of ``STAGED``) sorted by file name.

    ``only_ahead``: names of the files that are read for messages behind the interval's end alone. ``ahead``: some file has
    such messages.
    """
    # A module's function is pickled by its name, so that the workers import it.
    span = run.span
    task = partial(
        read_partition, warehouse=run.warehouse.url, interval_start=span.start, interval_end=span.end
    )

    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    cores = spark.sparkContext.defaultParallelism
    planned = [
        planned_task | {"ahead": ahead} for planned_task in _planned_tasks(sorted(files), cores, only_ahead)
    ]
    frame = spark.createDataFrame(
        spark.sparkContext.parallelize(planned, len(planned)), spark_tables.spark_schema(TASKS)
    )
    with tasks_done(spark, f"ingest {span.name}: tasks done", len(planned)):
        result: pa.Table = frame.mapInArrow(tasks, spark_tables.spark_schema(STAGED)).toArrow()
    return result.sort_by("name").to_pylist()


def _planned_tasks(
    files: list[tuple[str, str, int]], cores: int, only_ahead: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Plan the tasks (rows of ``TASKS``) for files: name, place, bytes.

    A task that would end last reads its files with several threads.
    """
    sizes = [size_bytes for _name, _path, size_bytes in files]
    planned = group_into_tasks(sizes, cores, least=_BYTES_PER_TASK)
    return [
        {
            "part": f"{number:05d}",
            "files": [
                {
                    "name": files[index][0],
                    "path": files[index][1],
                    "only_ahead": files[index][0] in only_ahead,
                }
                for index in numbers
            ],
            "threads": usable_threads()
            if 2 * cores * sum(sizes[index] for index in numbers) > sum(sizes)
            else 1,
        }
        for number, numbers in enumerate(planned)
    ]


def _files_of(reports: list[dict[str, Any]], name: str) -> list[StagedFile]:
    """List the files of one table that the tasks staged, in a stable order."""
    staged = [file for report in reports for file in report["staged"] if file["table"] == name]
    return sorted(map(StagedFile.of_json, staged), key=lambda file: file.path)


def _summary(reports: list[dict[str, Any]], rows: dict[str, int], span: Interval) -> dict[str, Any]:
    others: Counter[str] = Counter()
    for report in reports:
        others.update({day["day"]: day["rows"] for day in report["other_days"]})
    totals = {
        name: sum(report[name] for report in reports)
        for name in ("rows_in", "rows_accepted", "rows_quarantined", "rows_other_interval")
    }
    return {
        "stage": "ingest",
        "interval_start": span.start.isoformat(),
        "interval_end": span.end.isoformat(),
        "files": sum(not report["only_ahead"] for report in reports),
        "files_failed": sum(report["failed"] for report in reports),
        **totals,
        "other_intervals": dict(sorted(others.items())),
        "rows": rows,
    }
