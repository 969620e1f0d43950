"""Ingest an interval after its history: all earlier rows are in the tables before the interval's own.

Earlier rows that no run has brought are cut into intervals and ingested first, and so are earlier intervals whose files have
changed (``spark_jobs.ingest.interval_plan``). This is the stage ``ingest`` of the pipeline.

Run as ``python -m spark_jobs.ingest --interval-start 2026-11-21 --landing DIR --warehouse DIR``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatch_core.errors import names_disk_errors
from spark_jobs import stage_command
from spark_jobs.ingest.ingest_interval import ingest, ingest_as_history
from spark_jobs.ingest.interval_plan import adopted, missing_intervals, outdated
from spark_jobs.ingest.landing_changes import bounds_as_json, expected_intervals, mark_stale
from spark_jobs.intervals import Interval
from spark_jobs.progress import say
from spark_jobs.pull import segments
from spark_jobs.pull.pull_logs import landed_segments
from spark_jobs.pull.segment_surveys import Surveyed, surveyed
from spark_jobs.pull.segments import LandedInterval
from spark_jobs.warehouse.run_ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@names_disk_errors("ingest")
def ingest_with_history(
    spark: SparkSession, landing: Path, warehouse: Path, span: Interval
) -> dict[str, Any]:
    """Bring the tables up to date with the landing for all intervals before ``span``, oldest first, then ingest it.

    Returns the summary of its own ingest, with ``history`` (names of the intervals that were ingested before it),
    ``history_digest`` and ``stale`` (intervals that were audited on another history, oldest first; they are marked in
    ``run_metadata``). Raises what ``ingest`` raises; intervals that were done before that stay done.
    """
    files = surveyed(spark, landing, segments.without_doubles(landed_segments(landing, span)))
    _land_history(landing, span, files)
    ledger = Ledger(warehouse)
    earlier = [one for one in expected_intervals(spark, landing) if one.span.start < span.start]
    history = []
    for one in outdated(earlier, ledger.ingested()):
        say(f"ingest {span.name}: {one.span.name} comes before it and is not in the tables as it is landed")
        if ingest_as_history(spark, landing, warehouse, one.span) is not None:
            history.append(one.span.name)
    try:
        summary = ingest(spark, landing, warehouse, span)
    finally:
        again = mark_stale(spark, landing, warehouse)
    ledger.refresh()
    return summary | {
        "history": history,
        "history_digest": ledger.history_of(span),
        "stale": [bounds_as_json(one) for one in again if one != span],
    }


def _land_history(landing: Path, span: Interval, files: Sequence[Surveyed]) -> None:
    """Make intervals of all earlier rows that stand in none, and have intervals follow sources that hold all of theirs."""
    with segments.landing_lock(landing):
        known = segments.landed_intervals(landing)
        mine = next(one for one in known if one.span.start == span.start)
        for one in adopted(known, mine.sources):
            segments.write_interval(landing, one)
        for earlier in missing_intervals(span, known, files):
            segments.write_interval(landing, LandedInterval(earlier, "history", mine.sources))


def main(arguments: Sequence[str] | None = None) -> int:
    """Ingest one interval, and before it what its history lacks; see ``--help``."""
    parser = stage_command.parser(
        "python -m spark_jobs.ingest",
        "landed files of one interval, and of earlier ones that are not in the tables yet, into Delta tables",
        landing=True,
    )
    options = parser.parse_args(arguments)

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        return ingest_with_history(spark, options.landing, options.warehouse, span)

    def size_bytes(span: Interval) -> int:
        return sum(one.size_bytes for one in landed_segments(options.landing, span))

    return stage_command.run(options, work, size_bytes)
