"""Ingest the landed files of one interval into the tables ``messages``, ``consumer_events`` and ``quarantine``.

Only those landed files are read that can hold rows of the interval (``spark_jobs.pull.hours_survey``). For each file a task
reads the log, keeps the rows of the interval, and stages them as Parquet (``spark_jobs.ingest.ingest_task``). In the tables
each dispatcher's rows are one sorted run in one file, so that replay can stream them: files that are sorted so already are
taken as they are; Spark groups and sorts the rows of all others by dispatcher in one exchange. Then
the interval's rows of each table are replaced by one commit.

Which rows belong to the interval: docs/pipeline.md. What is counted:
``rows_in = rows_accepted + rows_quarantined + rows_other_interval``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.ahead import usable_threads
from spark_jobs.ingest.ingest_task import STAGED, TASKS, read_partition
from spark_jobs.ingest.interval_plan import inputs_digest, of_interval
from spark_jobs.ingest.sorted_runs import not_runs
from spark_jobs.intervals import Interval, day_of
from spark_jobs.progress import say, tasks_done
from spark_jobs.pull import segments
from spark_jobs.pull.hours_survey import HOUR_US
from spark_jobs.pull.pull_logs import landed_segments
from spark_jobs.pull.segment_surveys import Surveyed, surveyed
from spark_jobs.pull.segments import Segment
from spark_jobs.task_grouping import group_into_tasks
from spark_jobs.warehouse import spark_tables
from spark_jobs.warehouse.contracts import GROUP, ORDER, StagedFile, file_schema
from spark_jobs.warehouse.delta_tables import compact, record_run, replace_interval, stage_run
from spark_jobs.warehouse.run_ledger import Ledger

#: A task reads at least so many bytes of small files.
_BYTES_PER_TASK = 8_000_000
#: So many of the first and of the last days are told of files that hold rows of many.
_DAYS_SHOWN = 5
#: A file of the exchange holds at least so many rows.
_ROWS_PER_FILE = 500_000


class IngestError(DispatchAuditError):
    """An interval whose landed files hold not one event of it."""


def ingest(spark: SparkSession, landing: Path, warehouse: Path, span: Interval) -> dict[str, Any]:
    """Replace the interval's rows of the three tables by what its landed files hold; returns a summary with counts.

    Bad rows and bad files are quarantined and counted. Raises ``PullError`` where nothing was landed (the tables are as
    before) and ``IngestError`` where no event of the interval was found (the tables and the quarantine say what was).
    """
    landed_segments(landing, span)  # what was never pulled leaves no trace of an attempt
    summary = _ingest(spark, landing, warehouse, span, as_history=False)
    assert summary is not None, "only history is ever left out"
    return summary


def ingest_as_history(
    spark: SparkSession, landing: Path, warehouse: Path, span: Interval
) -> dict[str, Any] | None:
    """Ingest an interval for the sake of a later one; None where the tables hold what is landed already.

    Does without events, and leaves nothing of an interval that gave way to another.
    """
    return _ingest(spark, landing, warehouse, span, as_history=True)


def _ingest(
    spark: SparkSession, landing: Path, warehouse: Path, span: Interval, *, as_history: bool
) -> dict[str, Any] | None:
    began, started_at = time.monotonic(), datetime.now(UTC)
    with stage_run(warehouse, "ingest", span, wait=True) as staging:
        if as_history and _gave_way(landing, span):
            landed: list[Segment] = []
        else:
            landed = landed_segments(landing, span)
        read = segments.without_doubles(landed)
        known = surveyed(spark, landing, read)
        digest = inputs_digest(known, span)
        if as_history and Ledger(warehouse).ingested().get(span.start_us) == (span.end_us, digest):
            return None
        mine = of_interval(known, span)
        segments.check_whole(landing, mine)
        files = [(one.name, one.path(landing)) for one in mine]
        say(f"ingest {span.name}: {len(files)} files, {sum(one.size_bytes for one in mine)} bytes")
        reports = _staged(spark, files, staging, span) if files else []
        rows = {
            name: _publish(spark, reports, name, warehouse, staging, span)
            for name in ("messages", "consumer_events")
        }
        rows["quarantine"] = replace_interval(
            warehouse,
            "quarantine",
            span,
            compact(_files_of(reports, "quarantine"), staging),
        )
        summary = _summary(reports, rows, span) | {
            "files_of_other_intervals": len(read) - len(mine),
            "files_beside_a_trace": len(landed) - len(read),
            "inputs_digest": digest,
            "as_history": as_history,
            "seconds": round(time.monotonic() - began, 3),
        }
        record_run(warehouse, "ingest", span, started_at, summary)
    for one in reports:
        if one["rows_quarantined"]:
            say(
                f"ingest {span.name}: {one['name']}: {one['rows_quarantined']} of {one['rows_in']} rows quarantined, "
                f"first: {one['first_reason']}; the others are kept"
            )
    if not as_history and not any(one["events"] for one in reports):
        raise IngestError(
            f"{landing}: none of {len(landed)} files holds an event of {span.name} "
            f"(days with rows: {_days(known)}, quarantined: {summary['rows_quarantined']}); "
            "what was quarantined is kept in the table quarantine. Check the interval and the source"
        )
    return summary


def _gave_way(landing: Path, span: Interval) -> bool:
    one = segments.read_interval(landing, span)
    return one is not None and one.role == "retired"


def _days(known: Sequence[Surveyed]) -> str:
    """The days that the files hold rows of, for people."""
    days = sorted({day_of(hour * HOUR_US) for _one, survey in known for hour, _rows, _mark in survey.hours})
    shown = days if len(days) <= 2 * _DAYS_SHOWN else [*days[:_DAYS_SHOWN], "...", *days[-_DAYS_SHOWN:]]
    return ", ".join(shown) or "none"


def sorted_by_dispatcher(frame: DataFrame, name: str, partitions: int) -> DataFrame:
    """Bring the rows of a dispatcher (of a topic, for messages) together and sort them: one exchange."""
    return frame.repartition(partitions, *GROUP[name]).sortWithinPartitions(*GROUP[name], *ORDER[name])


def _publish(
    spark: SparkSession,
    reports: list[dict[str, Any]],
    name: str,
    warehouse: Path,
    staging: Path,
    span: Interval,
) -> int:
    files = _files_of(reports, name)
    apart = not_runs(
        (run["paths"], run["groups"]) for one in reports for run in one["runs"] if run["table"] == name
    )
    ready = [one for one in files if str(one.path) not in apart]
    others = [one for one in files if str(one.path) in apart]
    rows = sum(one.rows for one in others)
    if rows:
        say(
            f"ingest {span.name}: {name}: {rows} rows to group and sort, {sum(one.rows for one in ready)} came so"
        )
        frame = (
            spark.read.schema(spark_tables.spark_schema(file_schema(name)))
            .parquet(*(str(one.path) for one in others))
            .withColumn("interval_start", F.lit(span.start))
            .transform(sorted_by_dispatcher, name, _partitions(spark, rows))
        )
        ready += spark_tables.stage(frame, name, staging)
    return replace_interval(warehouse, name, span, ready)


def _partitions(spark: SparkSession, rows: int) -> int:
    """Files that a task can sort in its share of the memory, and as many as keep the cores busy; one for a small table."""
    return max(1, rows // 1_000_000, min(spark.sparkContext.defaultParallelism, rows // _ROWS_PER_FILE))


def _staged(
    spark: SparkSession, files: list[tuple[str, Path]], staging: Path, span: Interval
) -> list[dict[str, Any]]:
    """Run the tasks, largest first; the reports come back sorted by file name."""
    # A plain function, pickled by name: the workers import the module.
    task = partial(read_partition, staging=str(staging), interval_start=span.start, interval_end=span.end)

    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    planned = _planned_tasks(sorted(files), spark.sparkContext.defaultParallelism)
    frame = spark.createDataFrame(
        spark.sparkContext.parallelize(planned, len(planned)), spark_tables.spark_schema(TASKS)
    )
    with tasks_done(spark, f"ingest {span.name}: tasks done", len(planned)):
        result: pa.Table = frame.mapInArrow(tasks, spark_tables.spark_schema(STAGED)).toArrow()
    return result.sort_by("name").to_pylist()


def _planned_tasks(files: list[tuple[str, Path]], cores: int) -> list[dict[str, Any]]:
    """Plan the tasks (rows of ``TASKS``). A task that would keep the others waiting reads with several threads."""
    sizes = [path.stat().st_size for _name, path in files]
    planned = group_into_tasks(sizes, cores, least=_BYTES_PER_TASK)
    return [
        {
            "part": f"{number:05d}",
            "files": [{"name": files[one][0], "path": str(files[one][1])} for one in numbers],
            "threads": usable_threads() if 2 * cores * sum(sizes[one] for one in numbers) > sum(sizes) else 1,
        }
        for number, numbers in enumerate(planned)
    ]


def _files_of(reports: list[dict[str, Any]], name: str) -> list[StagedFile]:
    """The files of one table that the tasks staged, in a stable order."""
    staged = [one for report in reports for one in report["staged"] if one["table"] == name]
    return [
        StagedFile(name, Path(one["path"]), one["rows"])
        for one in sorted(staged, key=lambda one: one["path"])
    ]


def _summary(reports: list[dict[str, Any]], rows: dict[str, int], span: Interval) -> dict[str, Any]:
    others: Counter[str] = Counter()
    for one in reports:
        others.update({day["day"]: day["rows"] for day in one["other_days"]})
    totals = {
        name: sum(one[name] for one in reports)
        for name in ("rows_in", "rows_accepted", "rows_quarantined", "rows_other_interval")
    }
    return {
        "stage": "ingest",
        "interval_start": span.start.isoformat(),
        "interval_end": span.end.isoformat(),
        "files": len(reports),
        "files_failed": sum(one["failed"] for one in reports),
        **totals,
        "other_intervals": dict(sorted(others.items())),
        "rows": rows,
    }
