"""Replay: fold every dispatcher's log, each in one Spark task, and publish what the fold says about one interval.

Spark finds the dispatchers and which files hold them, runs the tasks, retries and scales. A large dispatcher has a task of
its own, small ones share one (``spark_jobs.dealing``); the largest tasks start first. The task (``spark_jobs.replay_task``)
reads those files itself and stages its results; the driver then publishes each result table by one Delta commit. The fold
starts at the beginning of the log: every interval up to the one being replayed is read.

Run as ``python -m spark_jobs.replay --interval-start 2026-11-21 --warehouse DIR``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording import schema
from dispatch_core.tables import REPLAY_TABLES
from spark_jobs import stage, tables
from spark_jobs.contracts import StagedFile
from spark_jobs.dealing import deal
from spark_jobs.intervals import Interval
from spark_jobs.progress import say, tasks_done
from spark_jobs.replay_task import NO_RULES, STAGED, Rule, replay_partition
from spark_jobs.warehouse import compact, record_run, replace_interval, stage_run

#: A task replays at least so many events of small dispatchers.
_EVENTS_PER_TASK = 200_000

#: One row per dispatcher: its identity and the data files that hold its events and its topic's messages.
_DISPATCHERS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in schema.DISPATCHER_KEY),
        pa.field("events", pa.int64()),
        pa.field("event_files", pa.list_(pa.string())),
        pa.field("message_files", pa.list_(pa.string())),
    ]
)


class ReplayError(DispatchAuditError):
    """Nothing to replay, or a job that Spark itself gave up."""


def dispatchers(events: DataFrame, messages: DataFrame, span: Interval) -> DataFrame:
    """The dispatchers of the interval with the files of their whole log: rows of ``_DISPATCHERS``.

    ``events`` and ``messages`` are of all intervals up to this one. A dispatcher belongs to the interval when one of its
    lines (its header, too) or of its topic's messages does.
    """
    of_dispatcher = (
        _by_file(events, schema.DISPATCHER_KEY, span)
        .groupBy(*schema.DISPATCHER_KEY)
        .agg(
            F.sum("rows").alias("events"),
            F.collect_set("file").alias("event_files"),
            F.max("here").alias("events_here"),
        )
    )
    of_topic = (
        _by_file(messages, ("cluster", "topic"), span)
        .groupBy("cluster", "topic")
        .agg(F.collect_set("file").alias("message_files"), F.max("here").alias("messages_here"))
    )
    return (
        of_dispatcher.join(of_topic, ["cluster", "topic"], "left")
        .where("events_here OR coalesce(messages_here, false)")
        .select(
            *schema.DISPATCHER_KEY,
            "events",
            "event_files",
            F.coalesce("message_files", F.array().cast("array<string>")).alias("message_files"),
        )
    )


def _by_file(rows: DataFrame, group: Sequence[str], span: Interval) -> DataFrame:
    """How many rows of each group a file has, and whether any is of the interval: few rows, whatever comes after."""
    return (
        rows.select(*group, "interval_start", F.col("_metadata.file_path").alias("file"))
        .groupBy(*group, "file")
        .agg(F.count(F.lit(1)).alias("rows"), F.max(F.expr(tables.in_interval(span))).alias("here"))
    )


def replay(
    spark: SparkSession,
    warehouse: Path,
    span: Interval,
    *,
    rule: Rule | None = None,
    limits: LimitRules = NO_RULES,
) -> dict[str, Any]:
    """Replay every dispatcher of the interval and replace its rows in the six result tables; returns a summary.

    ``rule`` replaces the recorded release's rule (default ``dispatch_core.replay.replay``); it must be importable by the
    workers. ``limits``: how long is too long, for which topics.
    Raises ``ReplayError`` where the interval holds no dispatcher; the tables are then as before.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    until_now = f"interval_start <= TIMESTAMP '{span.start.strftime('%Y-%m-%d %H:%M:%S')}'"
    with stage_run(warehouse, "replay", span) as staging:
        found = with_local_paths(
            tables.read(spark, warehouse, "consumer_events")
            .where(until_now)
            .transform(dispatchers, tables.read(spark, warehouse, "messages").where(until_now), span)
            .toArrow()
        )
        if found.num_rows == 0:
            raise ReplayError(
                f"{warehouse}: no dispatcher has a line in {span.name}; the tables are as before. "
                "Ingest the interval first, or check that the logs hold that day"
            )
        say(f"replay {span.name}: {found.num_rows} dispatchers, {sum(found['events'].to_pylist())} events")
        staged = _staged(spark, found, staging, span, rule, limits)
        by_table: dict[str, list[StagedFile]] = {name: [] for name in REPLAY_TABLES}
        failed = []
        for row in staged.to_pylist():
            if row["table"]:
                by_table[row["table"]].append(StagedFile(row["table"], Path(row["path"]), row["rows"]))
            elif row["not_judged_reason"]:
                failed.append({name: row[name] for name in (*schema.DISPATCHER_KEY, "not_judged_reason")})
        for one in failed:
            name = f"{one['topic']} / {one['subscription']}"
            say(f"replay {span.name}: {name}: not judged: {one['not_judged_reason']}; the others go on")
        folded = time.monotonic()
        rows = {
            name: replace_interval(
                warehouse, name, span, compact(sorted(files, key=lambda one: one.path), staging)
            )
            for name, files in by_table.items()
        }
        seconds = time.monotonic() - began
        summary: dict[str, Any] = {
            "stage": "replay",
            "interval_start": span.start.isoformat(),
            "dispatchers": found.num_rows,
            "dispatchers_failed": len(failed),
            "failed": failed[:20],
            "limits": limits.digest,
            "rows": rows,
            "deliveries_per_second": round(rows["deliveries"] / max(folded - began, 1e-6)),
            "seconds": round(seconds, 3),
        }
        record_run(warehouse, "replay", span, started_at, summary)
    return summary


def _staged(
    spark: SparkSession, found: pa.Table, staging: Path, span: Interval, rule: Rule | None, limits: LimitRules
) -> pa.Table:
    """Run the tasks, largest first; the rows of ``STAGED`` come back, in a stable order."""
    # A plain function, pickled by name: the workers import the module and find the compiled kernels cached.
    task = partial(
        replay_partition,
        staging=str(staging),
        interval_start=span.start,
        interval_end=span.end,
        rule=rule,
        limits=limits,
    )

    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    rows = found.to_pylist()
    sizes = [row["events"] for row in rows]
    hands = deal(sizes, spark.sparkContext.defaultParallelism, least=_EVENTS_PER_TASK)
    dealt = spark.sparkContext.parallelize([[rows[one] for one in hand] for hand in hands], len(hands))
    frame = spark.createDataFrame(dealt.flatMap(list), tables.spark_schema(_DISPATCHERS))
    with tasks_done(spark, f"replay {span.name}: tasks done", len(hands)):
        result: pa.Table = frame.mapInArrow(tasks, tables.spark_schema(STAGED)).toArrow()
    return result.sort_by([(name, "ascending") for name in (*schema.DISPATCHER_KEY, "table")])


def with_local_paths(found: pa.Table) -> pa.Table:
    """The same, dispatchers of one file beside each other. Spark names files by URI; the tasks open them by path."""
    rows = found.cast(_DISPATCHERS).to_pylist()
    for row in rows:
        for column in ("event_files", "message_files"):
            row[column] = sorted(unquote(urlparse(uri).path) for uri in row[column])
    rows.sort(key=lambda row: (row["event_files"], *(row[name] for name in schema.DISPATCHER_KEY)))
    return pa.Table.from_pylist(rows, schema=_DISPATCHERS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay one interval; see ``--help``."""
    parser = stage.parser(
        "python -m spark_jobs.replay",
        "fold every dispatcher's log and publish one interval of results",
        limits=True,
    )
    options = parser.parse_args(arguments)

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        return replay(spark, options.warehouse, span, limits=options.limits)

    # The rows are read by the tasks themselves: the JVM only plans, however large the log.
    return stage.run(options, work, lambda _span: 0)


if __name__ == "__main__":
    sys.exit(main())
