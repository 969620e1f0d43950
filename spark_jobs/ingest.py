"""Ingest: the landed files of one interval into the tables ``messages``, ``consumer_events`` and ``quarantine``.

One file is one piece of work: a task reads it with the one reader of the log format, keeps the rows of the interval,
and stages them as Parquet (``spark_jobs.ingest_task``). In the tables each dispatcher is one sorted run of one file, so that
replay streams it: files that came so are taken as they are, the rows of all others Spark groups and sorts by dispatcher in
one exchange. Then the interval's rows of each table are replaced by one commit.

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
from dispatch_core.recording.ahead import usable_threads
from spark_jobs import stage, tables
from spark_jobs.contracts import StagedFile, file_schema
from spark_jobs.dealing import deal
from spark_jobs.ingest_task import HANDS, STAGED, read_partition
from spark_jobs.intervals import Interval
from spark_jobs.progress import say, tasks_done
from spark_jobs.pull import landed_files
from spark_jobs.runs import GROUP, ORDER, not_runs
from spark_jobs.warehouse import compact, record_run, replace_interval, stage_run

#: A task reads at least so many bytes of small files.
_BYTES_PER_TASK = 8_000_000
#: A file of the exchange holds at least so many rows.
_ROWS_PER_FILE = 500_000


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
            compact(_files_of(reports, "quarantine"), staging),
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
        (run["path"], run["groups"]) for one in reports for run in one["runs"] if run["table"] == name
    )
    ready = [one for one in files if str(one.path) not in apart]
    others = [one for one in files if str(one.path) in apart]
    rows = sum(one.rows for one in others)
    if rows:
        say(
            f"ingest {span.name}: {name}: {rows} rows to group and sort, {sum(one.rows for one in ready)} came so"
        )
        frame = (
            spark.read.schema(tables.spark_schema(file_schema(name)))
            .parquet(*(str(one.path) for one in others))
            .withColumn("interval_start", F.lit(span.start))
            .transform(sorted_by_dispatcher, name, _partitions(spark, rows))
        )
        ready += tables.stage(frame, name, staging)
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

    hands = _hands(sorted(files), spark.sparkContext.defaultParallelism)
    frame = spark.createDataFrame(
        spark.sparkContext.parallelize(hands, len(hands)), tables.spark_schema(HANDS)
    )
    with tasks_done(spark, f"ingest {span.name}: tasks done", len(hands)):
        result: pa.Table = frame.mapInArrow(tasks, tables.spark_schema(STAGED)).toArrow()
    return result.sort_by("name").to_pylist()


def _hands(files: list[tuple[str, Path]], cores: int) -> list[dict[str, Any]]:
    """The tasks (rows of ``HANDS``). One that would keep the others waiting reads with several threads."""
    sizes = [path.stat().st_size for _name, path in files]
    hands = deal(sizes, cores, least=_BYTES_PER_TASK)
    return [
        {
            "part": f"{number:05d}",
            "files": [{"name": files[one][0], "path": str(files[one][1])} for one in hand],
            "threads": usable_threads() if 2 * cores * sum(sizes[one] for one in hand) > sum(sizes) else 1,
        }
        for number, hand in enumerate(hands)
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
