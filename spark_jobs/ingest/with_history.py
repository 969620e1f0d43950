"""Ingest an interval after all earlier rows: the stage ``ingest`` of the pipeline.

Earlier rows that no run has ingested are divided into intervals and ingested first, and so are earlier intervals whose files
have changed (``spark_jobs.ingest.interval_plan``).

Run as ``python -m spark_jobs.ingest --interval-start 2026-11-21 --landing DIR --warehouse DIR``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.errors import names_disk_errors
from spark_jobs import stage_command
from spark_jobs.ingest.ingest_interval import ingest, ingest_as_history
from spark_jobs.ingest.interval_plan import adopted, missing_intervals, of_interval, outdated
from spark_jobs.ingest.landing_changes import bounds_as_json, expected_intervals, mark_stale
from spark_jobs.intervals import Interval
from spark_jobs.progress import say
from spark_jobs.pull import segments
from spark_jobs.pull.pull_logs import landed_segments
from spark_jobs.pull.segment_surveys import Surveyed, known_surveys, survey_key, surveyed
from spark_jobs.pull.segments import LandedInterval
from spark_jobs.warehouse.delta_tables import Place
from spark_jobs.warehouse.run_ledger import Ledger

#: So much is ingested without Spark, in about the time in which Spark starts.
_SMALL_BYTES: Final = 4_000_000

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@names_disk_errors("ingest")
def ingest_with_history(
    spark: SparkSession, landing: Place, warehouse: Place, span: Interval
) -> dict[str, Any]:
    """Ingest what the tables lack of all intervals before ``span``, oldest first, then ``span`` itself.

    Returns the summary of the ingest of ``span``, with ``history`` (names of the intervals that were ingested before it),
    ``history_digest`` and ``stale`` (intervals that were audited on another history, oldest first; they are marked in
    ``run_metadata``). Raises what ``ingest`` raises; what was ingested until then stays.
    """
    history = _ingest_history(spark, landing, warehouse, span)
    try:
        summary = ingest(spark, landing, warehouse, span)
    finally:
        again = mark_stale(spark, landing, warehouse)
    return summary | {
        "history": history,
        "history_digest": Ledger(warehouse).history_of(span),
        "stale": [bounds_as_json(stale) for stale in again if stale != span],
    }


@names_disk_errors("ingest")
def ingest_if_outdated(spark: SparkSession, landing: Place, warehouse: Place, span: Interval) -> None:
    """Ingest an interval with history if the tables lack landed rows, or do not know whether its logs go on."""
    _ingest_history(spark, landing, warehouse, span)
    own = [interval for interval in expected_intervals(spark, landing) if interval.span == span]
    ledger = Ledger(warehouse)
    known = own and own[0].goes_on == (span.start_us in ledger.logs_go_on())
    if not known or outdated(own, ledger.ingested(), ledger.read_ahead()):
        ingest(spark, landing, warehouse, span)


def _ingest_history(spark: SparkSession, landing: Place, warehouse: Place, span: Interval) -> list[str]:
    """Ingest what the tables lack of all intervals before ``span``, oldest first; return their names."""
    files = surveyed(spark, landing, segments.without_doubles(landed_segments(landing, span)))
    ledger = Ledger(warehouse)
    _land_history(landing, span, files, ledger)
    earlier = [
        interval for interval in expected_intervals(spark, landing) if interval.span.start < span.start
    ]
    done = []
    for interval in outdated(earlier, ledger.ingested(), ledger.read_ahead()):
        if not ledger.is_kept(interval.span):
            say(
                f"ingest {span.name}: rows of {interval.span.name} came late, and are not used: "
                "logs of that time were removed by maintenance (keep_logs)"
            )
            continue
        say(
            f"ingest {span.name}: {interval.span.name} is earlier, and the tables lack some of its landed rows"
        )
        if ingest_as_history(spark, landing, warehouse, interval.span) is not None:
            done.append(interval.span.name)
    return done


def _land_history(landing: Place, span: Interval, files: Sequence[Surveyed], ledger: Ledger) -> None:
    """Add intervals for all earlier rows that belong to none, and let intervals take over wider sources (``adopted``).

    Rows of a time of which the logs were removed belong to none.
    """

    def with_earlier(known: list[LandedInterval]) -> list[LandedInterval]:
        own = next(landed for landed in known if landed.span.start == span.start)
        missing = missing_intervals(span, known, files)
        return [
            *adopted(known, own.sources),
            *(
                LandedInterval(earlier, "history", own.sources)
                for earlier in missing
                if ledger.is_kept(earlier)
            ),
        ]

    segments.update_intervals(landing, with_earlier)


def _bytes_to_read(landing: Place, span: Interval) -> int:
    """Return the bytes of the files that have rows of an interval, and of new ones, which may have rows of earlier ones."""
    known = known_surveys(landing)
    files = landed_segments(landing, span)
    old = [(file, known[key]) for file in files if (key := survey_key(file)) in known]
    new_bytes = sum(file.size_bytes for file in files) - sum(file.size_bytes for file, _survey in old)
    return new_bytes + sum(file.size_bytes for file in of_interval(old, span))


def main(arguments: Sequence[str] | None = None) -> int:
    """Ingest one interval, and before it earlier rows that the tables lack; see ``--help``."""
    parser = stage_command.parser(
        "python -m spark_jobs.ingest",
        "ingest landed files of one interval, and of earlier ones that the tables lack, into Delta tables",
        landing=True,
    )
    options = parser.parse_args(arguments)

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        return ingest_with_history(spark, options.landing, options.warehouse, span)

    def size_bytes(span: Interval) -> int:
        return sum(segment.size_bytes for segment in landed_segments(options.landing, span))

    def is_small(span: Interval) -> bool:
        return _bytes_to_read(options.landing, span) <= _SMALL_BYTES

    return stage_command.run(options, work, size_bytes, is_small=is_small)
