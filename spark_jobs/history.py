"""The history of an interval: earlier rows are ingested before it, and what was made of another history is done again.

``ingest_with_history`` is the stage ``ingest`` of the pipeline. What is planned here stands in ``spark_jobs.history_plan``.

Run as ``python -m spark_jobs.history stale --landing DIR --warehouse DIR`` (which intervals should be done again?) or
``python -m spark_jobs.history recompute --landing DIR --warehouse DIR`` (do them again, oldest first).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.errors import DispatchAuditError, names_disk_errors
from dispatch_core.recording.log_profile import RECORDED, Overrides
from spark_jobs import segments, stage
from spark_jobs.history_plan import (
    Expected,
    Ingested,
    Surveyed,
    adopted,
    as_expected,
    history_digests,
    inputs_digest,
    missing_intervals,
    outdated,
    stale,
)
from spark_jobs.intervals import Interval, interval
from spark_jobs.ledger import Ledger
from spark_jobs.progress import complain, say
from spark_jobs.pull import landed_segments
from spark_jobs.segments import LandedInterval, Sources
from spark_jobs.surveys import surveyed
from spark_jobs.warehouse import record_run

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
    from spark_jobs.ingest import ingest, ingest_as_history

    files = surveyed(spark, landing, segments.without_doubles(landed_segments(landing, span)))
    _land_history(landing, span, files)
    ledger = Ledger(warehouse)
    earlier = [one for one in _expected(spark, landing) if one.span.start < span.start]
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
        "stale": [_as_json(one) for one in again if one != span],
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


def _expected(spark: SparkSession | None, landing: Path) -> list[Expected]:
    """What the rows of each interval of the landing should be made of."""
    catalogue = segments.read_catalogue(landing)
    files: dict[Sources, list[Surveyed]] = {}
    found = []
    for one in segments.landed_intervals(landing):
        if one.role == "retired":
            found.append(Expected(one.span, ""))
            continue
        if one.sources not in files:
            listed = catalogue.get(one.sources, {}).values()
            files[one.sources] = surveyed(spark, landing, segments.without_doubles(listed))
        found.append(Expected(one.span, inputs_digest(files[one.sources], one.span)))
    return found


def _now(spark: SparkSession | None, landing: Path, ledger: Ledger) -> Ingested:
    """What the tables would be made of, were nothing outdated."""
    return as_expected(_expected(spark, landing), ledger.ingested())


def stale_intervals(landing: Path, warehouse: Path, spark: SparkSession | None = None) -> list[Interval]:
    """The intervals that were replayed on another history than the landing holds now, oldest first."""
    ledger = Ledger(warehouse)
    return stale(ledger.replayed(), _now(spark, landing, ledger))


def mark_stale(spark: SparkSession | None, landing: Path, warehouse: Path) -> list[Interval]:
    """Mark in ``run_metadata`` what has become stale since it was last looked at; returns all stale intervals."""
    ledger = Ledger(warehouse)
    now = _now(spark, landing, ledger)
    found = stale(ledger.replayed(), now)
    digests, marked = history_digests(now), ledger.marked_stale()
    for one in found:
        if marked.get(one.start_us) != digests[one.start_us]:
            say(f"{one.name} is stale: rows before its end have changed since it was replayed")
            summary = {"stage": "stale", **_as_json(one), "history_digest": digests[one.start_us]}
            record_run(warehouse, "stale", one, datetime.now(UTC), summary)
    return found


def recompute(
    spark: SparkSession,
    landing: Path,
    warehouse: Path,
    spans: Sequence[Interval],
    *,
    limits: LimitRules,
    overrides: Overrides = RECORDED,
) -> list[dict[str, str]]:
    """Ingest (with history), replay and aggregate the intervals again, oldest first; returns them as JSON has them.

    Verdicts, reports and alerts of them are the caller's to make again.
    """
    from spark_jobs.aggregates import aggregate
    from spark_jobs.replay import replay

    done = []
    for span in sorted(spans, key=lambda one: one.start):
        if segments.read_interval(landing, span) is not None:  # its log files are still kept
            ingest_with_history(spark, landing, warehouse, span)
        replay(spark, warehouse, span, limits=limits, overrides=overrides)
        aggregate(spark, warehouse, span, limits=limits)
        done.append(_as_json(span))
        say(f"recompute {span.name}: {len(done)} of {len(spans)} intervals done")
    return done


def _as_json(span: Interval) -> dict[str, str]:
    return {"interval_start": span.start.isoformat(), "interval_end": span.end.isoformat()}


def _between(text: str) -> Interval:
    """An argument ``START/END``."""
    start, slash, end = text.partition("/")
    if not slash:
        raise argparse.ArgumentTypeError(f"{text!r} is no interval; write START/END, both ISO 8601")
    try:
        return interval(start, end)
    except DispatchAuditError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """List stale intervals, or recompute them; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.history",
        description="what was audited on another history than there is now",
    )
    parser.add_argument("what", choices=("stale", "recompute"), help="list them, or do them again")
    parser.add_argument("--landing", required=True, type=Path, help="the folder that pull wrote to")
    parser.add_argument("--warehouse", required=True, type=Path, help="the folder of the Delta tables")
    parser.add_argument(
        "--interval",
        action="append",
        default=[],
        type=_between,
        metavar="START/END",
        help="recompute this one; may be given again (default: all that are stale)",
    )
    stage.add_limits(parser)
    stage.add_overrides(parser)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    summary: dict[str, Any] = {"stage": options.what}
    try:
        found = options.interval or stale_intervals(options.landing, options.warehouse)
        if options.what == "stale":
            summary["stale"] = [_as_json(one) for one in found]
        else:
            summary["recomputed"] = _recompute(options, found) if found else []
    except DispatchAuditError as error:
        complain(f"error: {error}")
        return 2
    summary["seconds"] = round(time.monotonic() - began, 3)
    print(json.dumps(summary, sort_keys=True), flush=True)
    return 0


def _recompute(options: argparse.Namespace, spans: Sequence[Interval]) -> list[dict[str, str]]:
    from spark_jobs.session import running_session

    size_bytes = sum(
        one.size_bytes
        for files in segments.read_catalogue(options.landing).values()
        for one in files.values()
    )
    with running_session(size_bytes) as spark:
        return recompute(
            spark,
            options.landing,
            options.warehouse,
            spans,
            limits=options.limits,
            overrides=options.overrides,
        )


if __name__ == "__main__":
    sys.exit(main())
