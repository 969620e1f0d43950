"""Ingest: the landed files of one interval into the tables ``messages``, ``consumer_events`` and ``quarantine``.

One file is one unit of work: a task reads it with the one reader of the log format, keeps the rows of the interval,
and stages them as Parquet (``spark_jobs.ingest_task``). Spark then groups and sorts the rows by dispatcher in one exchange,
so that replay reads each dispatcher as one sorted run, and replaces the interval's rows of each table by one commit.

Which rows belong to the interval: docs/pipeline.md. What is counted:
``rows_in = rows_accepted + rows_quarantined + rows_other_interval``.

Run as ``python -m spark_jobs.ingest --interval-start 2026-11-21 --landing DIR --warehouse DIR``.
"""

from __future__ import annotations

import sys
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
from dispatch_core.recording import schema
from spark_jobs import stage, tables
from spark_jobs.ingest_task import FILES, STAGED, read_partition
from spark_jobs.intervals import Interval
from spark_jobs.progress import say, tasks_done
from spark_jobs.pull import landed_files
from spark_jobs.warehouse import StagedFile, compact, file_schema, record_run, replace_interval, stage_run

_MAX_TASKS = 4096

#: How each table is grouped (one exchange) and sorted, so that a dispatcher's rows are one run of its files.
_ORDER = {
    "messages": (("cluster", "topic"), ("cluster", "topic", "ledger_id", "entry_id")),
    "consumer_events": (schema.DISPATCHER_KEY, (*schema.DISPATCHER_KEY, "incarnation", "seq")),
}


class IngestError(DispatchAuditError):
    """An interval whose landed files hold not one event of it."""


def ingest(spark: SparkSession, landing: Path, warehouse: Path, span: Interval) -> dict[str, Any]:
    """Replace the interval's rows of the three tables by what its landed files hold; returns a summary with counts.

    Bad rows and bad files are quarantined and counted. Raises ``PullError`` where nothing was landed (the tables are as
    before) and ``IngestError`` where no event of the interval was found (the tables and the quarantine say what was).
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    files, beside = without_doubles(landed_files(landing, span))
    say(f"ingest {span.name}: {len(files)} files, {sum(path.stat().st_size for _name, path in files)} bytes")
    with stage_run(warehouse, "ingest", span) as staging:
        reports = _staged(spark, files, staging, span)
        rows = {
            name: _publish(spark, reports, name, warehouse, staging, span)
            for name in ("messages", "consumer_events")
        }
        rows["quarantine"] = replace_interval(
            warehouse,
            "quarantine",
            span,
            compact([StagedFile("quarantine", *one) for one in _files_of(reports, "quarantine")], staging),
        )
        summary = _summary(reports, rows, span)
        summary |= {"files_beside_a_trace": beside, "seconds": round(time.monotonic() - began, 3)}
        record_run(warehouse, "ingest", span, started_at, summary)
    for one in reports:
        if one["rows_quarantined"]:
            say(
                f"ingest {span.name}: {one['name']}: {one['rows_quarantined']} of {one['rows_in']} rows quarantined, "
                f"first: {one['first_reason']}; the others are kept"
            )
    if not any(one["events"] for one in reports):
        raise IngestError(
            f"{landing}: none of {len(files)} files holds an event of {span.name} "
            f"(rows of other intervals: {summary['other_intervals'] or 'none'}, "
            f"quarantined: {summary['rows_quarantined']}); "
            "what was quarantined is kept in the table quarantine. Check the interval and the source"
        )
    return summary


def without_doubles(files: list[tuple[str, Path]]) -> tuple[list[tuple[str, Path]], int]:
    """The files to read, and how many were left out: event files beside a trace, which holds their lines already."""

    def is_trace(name: str) -> bool:
        return name.rpartition("/")[2].lower().startswith("trace")

    traced = {name.rpartition("/")[0] for name, _path in files if is_trace(name)}
    kept = []
    for name, path in files:
        folder, _, base = name.rpartition("/")
        if not (folder in traced and base.lower().startswith("events")):
            kept.append((name, path))
    return kept, len(files) - len(kept)


def sorted_by_dispatcher(frame: DataFrame, name: str, partitions: int) -> DataFrame:
    """Bring the rows of a dispatcher (of a topic, for messages) together and sort them: one exchange."""
    group, order = _ORDER[name]
    return frame.repartition(partitions, *group).sortWithinPartitions(*order)


def _publish(
    spark: SparkSession,
    reports: list[dict[str, Any]],
    name: str,
    warehouse: Path,
    staging: Path,
    span: Interval,
) -> int:
    files = _files_of(reports, name)
    rows = sum(count for _path, count in files)
    if rows == 0:
        return replace_interval(warehouse, name, span, [])
    frame = (
        spark.read.schema(tables.spark_schema(file_schema(name)))
        .parquet(*(str(path) for path, _rows in files))
        .withColumn("interval_start", F.lit(span.start))
        .transform(sorted_by_dispatcher, name, _partitions(spark, rows))
    )
    return replace_interval(warehouse, name, span, tables.stage(frame, name, staging))


def _partitions(spark: SparkSession, rows: int) -> int:
    """As many files as there are cores, and more once they would be large; one for a small table."""
    if rows < 100_000:
        return 1
    return max(spark.sparkContext.defaultParallelism, rows // 5_000_000)


def _staged(
    spark: SparkSession, files: list[tuple[str, Path]], staging: Path, span: Interval
) -> list[dict[str, Any]]:
    """Run the tasks, one file each, largest first; the reports come back sorted by file name."""
    # A plain function, pickled by name: the workers import the module.
    task = partial(read_partition, staging=str(staging), interval_start=span.start, interval_end=span.end)

    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    largest_first = sorted(files, key=lambda file: (-file[1].stat().st_size, file[0]))
    rows = [{"name": name, "path": str(path)} for name, path in largest_first]
    count = min(len(rows), _MAX_TASKS)
    dealt = [row for hand in range(count) for row in rows[hand::count]]
    frame = spark.createDataFrame(spark.sparkContext.parallelize(dealt, count), tables.spark_schema(FILES))
    with tasks_done(spark, f"ingest {span.name}: tasks done", count):
        result: pa.Table = frame.mapInArrow(tasks, tables.spark_schema(STAGED)).toArrow()
    return result.sort_by("name").to_pylist()


def _files_of(reports: list[dict[str, Any]], name: str) -> list[tuple[Path, int]]:
    return [
        (Path(staged["path"]), staged["rows"])
        for one in reports
        for staged in one["staged"]
        if staged["table"] == name and staged["rows"]
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
        "files": len(reports),
        "files_failed": sum(one["failed"] for one in reports),
        **totals,
        "other_intervals": dict(sorted(others.items())),
        "rows": rows,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Ingest one interval; see ``--help``."""
    parser = stage.parser(
        "python -m spark_jobs.ingest", "landed files of one interval into Delta tables", landing=True
    )
    options = parser.parse_args(arguments)

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        return ingest(spark, options.landing, options.warehouse, span)

    def size_bytes(span: Interval) -> int:
        return sum(path.stat().st_size for _name, path in landed_files(options.landing, span))

    return stage.run(options, work, size_bytes)


if __name__ == "__main__":
    sys.exit(main())
