"""Compare the tables with the landing, and mark intervals whose results are out of date.

An interval is *stale* when it was replayed on other rows than the landing now has up to its end
(``spark_jobs.ingest.interval_plan``). Stale intervals are marked in ``run_metadata``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spark_jobs.ingest.interval_plan import (
    Expected,
    ahead_inputs_digest,
    as_expected,
    inputs_digest,
    logs_go_on,
    stale,
)
from spark_jobs.intervals import Interval
from spark_jobs.progress import say
from spark_jobs.pull import segments
from spark_jobs.pull.segment_surveys import Surveyed, surveyed
from spark_jobs.pull.segments import Sources
from spark_jobs.warehouse.delta_tables import Place, record_run
from spark_jobs.warehouse.run_ledger import Ingested, Ledger, history_digests, open_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def expected_intervals(spark: SparkSession | None, landing: Place) -> list[Expected]:
    """Compute the digest of the files that each interval of the landing should be made of."""
    catalogue = segments.read_catalogue(landing)
    files: dict[Sources, list[Surveyed]] = {}
    found = []
    for landed in segments.landed_intervals(landing):
        if landed.role == "retired":
            found.append(Expected(landed.span, ""))
            continue
        if landed.sources not in files:
            listed = catalogue.get(landed.sources, {}).values()
            files[landed.sources] = surveyed(spark, landing, segments.without_doubles(listed))
        surveys = files[landed.sources]
        found.append(
            Expected(
                landed.span,
                inputs_digest(surveys, landed.span),
                logs_go_on(surveys, landed.span),
                ahead_inputs_digest(surveys, landed.span),
            )
        )
    return found


def _now(spark: SparkSession | None, landing: Place, ledger: Ledger) -> tuple[Ingested, set[int]]:
    """Return the digests that the tables' intervals will have when nothing is outdated, and those with open ends."""
    expected = [interval for interval in expected_intervals(spark, landing) if ledger.is_kept(interval.span)]
    ingested = as_expected(expected, ledger.ingested())
    landed = {interval.span.start_us: interval.goes_on for interval in expected}
    go_on = {start for start in ledger.logs_go_on() if start not in landed}
    go_on |= {start for start, goes_on in landed.items() if goes_on}
    return ingested, open_ended(ingested, go_on)


def stale_intervals(landing: Place, warehouse: Place, spark: SparkSession | None = None) -> list[Interval]:
    """List the intervals that were replayed on another history than the landing has now, oldest first."""
    ledger = Ledger(warehouse)
    return stale(ledger.replayed(), *_now(spark, landing, ledger))


def mark_stale(spark: SparkSession | None, landing: Place, warehouse: Place) -> list[Interval]:
    """Mark newly stale intervals in ``run_metadata``; return all stale intervals."""
    ledger = Ledger(warehouse)
    now, open_ends = _now(spark, landing, ledger)
    found = stale(ledger.replayed(), now, open_ends)
    digests, marked = history_digests(now, open_ends), ledger.marked_stale()
    for span in found:
        if marked.get(span.start_us) != digests[span.start_us]:
            say(
                f"{span.name} is stale: rows before its end have changed since it was replayed, or its logs go on now"
            )
            summary = {"stage": "stale", **bounds_as_json(span), "history_digest": digests[span.start_us]}
            record_run(warehouse, "stale", span, datetime.now(UTC), summary)
    return found


def bounds_as_json(span: Interval) -> dict[str, str]:
    """Write an interval's bounds as summaries have them."""
    return {"interval_start": span.start.isoformat(), "interval_end": span.end.isoformat()}
