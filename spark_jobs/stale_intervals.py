"""List the intervals whose results are out of date, or recompute them.

An interval is out of date if rows before its end have changed since it was replayed (``landing_changes.stale_intervals``),
or if balance was judged without earlier intervals that there are now (``balance_window``). The latter need no replay.

Run as ``python -m spark_jobs.stale_intervals list --landing DIR --warehouse DIR``, or with ``recompute`` in place of
``list`` to ingest, replay and aggregate these intervals again, oldest first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.cli.log_lines import run_command
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log_profile import RECORDED, Overrides
from spark_jobs import stage_command
from spark_jobs.ingest.landing_changes import bounds_as_json, stale_intervals
from spark_jobs.intervals import Interval, interval
from spark_jobs.location import Location
from spark_jobs.one_process import one_process
from spark_jobs.progress import complain, say
from spark_jobs.pull import segments
from spark_jobs.warehouse.balance_window import outdated_windows
from spark_jobs.warehouse.run_ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def all_stale(landing: Location, warehouse: Location, spark: SparkSession | None = None) -> list[Interval]:
    """List the intervals whose results are out of date, oldest first."""
    found = {*stale_intervals(landing, warehouse, spark), *outdated_windows(Ledger(warehouse))}
    return sorted(found, key=lambda span: span.start)


def only_out_of_balance(
    landing: Location, warehouse: Location, spark: SparkSession | None = None
) -> set[Interval]:
    """Return the intervals of which only the balance is out of date; nothing of them has to be replayed."""
    return set(outdated_windows(Ledger(warehouse))) - set(stale_intervals(landing, warehouse, spark))


def recompute(
    spark: SparkSession,
    landing: Location,
    warehouse: Location,
    spans: Sequence[Interval],
    *,
    limits: LimitRules,
    overrides: Overrides = RECORDED,
) -> list[dict[str, str]]:
    """Replay and aggregate the intervals again, oldest first, after ingesting what the tables lack; return their bounds.

    Those of which only the balance is out of date are aggregated alone. The caller has to make their verdicts, reports and
    alerts again.
    """
    from spark_jobs.aggregates.aggregate_interval import aggregate
    from spark_jobs.ingest.with_history import ingest_if_outdated
    from spark_jobs.replay.replay_interval import replay

    done = []
    only_balance = only_out_of_balance(landing, warehouse, spark)
    for span in sorted(spans, key=lambda span: span.start):
        if span not in only_balance:
            if segments.read_interval(landing, span) is not None:  # its log files are still kept
                ingest_if_outdated(spark, landing, warehouse, span)
            replay(spark, warehouse, span, limits=limits, overrides=overrides)
        aggregate(warehouse, span, limits=limits)
        done.append(bounds_as_json(span))
        say(f"recompute {span.name}: {len(done)} of {len(spans)} intervals done")
    return done


def _between(text: str) -> Interval:
    """Convert an argument ``START/END`` to an interval (``argparse`` type)."""
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
        prog="python -m spark_jobs.stale_intervals",
        description="list or recompute intervals that were audited on another history than there is now",
    )
    parser.add_argument(
        "what", choices=("list", "recompute"), help="list the intervals, or compute them again"
    )
    parser.add_argument(
        "--landing", required=True, type=Location.of, help="the folder or URL that pull wrote to"
    )
    parser.add_argument(
        "--warehouse", required=True, type=Location.of, help="the folder or URL of the Delta tables"
    )
    parser.add_argument(
        "--interval",
        action="append",
        default=[],
        type=_between,
        metavar="START/END",
        help="recompute this interval; may be repeated (default: all stale intervals)",
    )
    stage_command.add_limits(parser)
    stage_command.add_overrides(parser)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    summary: dict[str, Any] = {"stage": "stale" if options.what == "list" else options.what}
    try:
        found = options.interval or all_stale(options.landing, options.warehouse)
        if options.what == "list":
            summary["stale"] = [bounds_as_json(span) for span in found]
        else:
            summary["recomputed"] = _recompute(options, found) if found else []
            # Their new sums are in the windows of later intervals.
            behind = [] if options.interval else outdated_windows(Ledger(options.warehouse))
            summary["recomputed"] += _recompute(options, behind) if behind else []
    except DispatchAuditError as error:
        complain(f"error: {error}")
        return 2
    summary["seconds"] = round(time.monotonic() - began, 3)
    print(json.dumps(summary, sort_keys=True), flush=True)
    return 0


def _recompute(options: argparse.Namespace, spans: Sequence[Interval]) -> list[dict[str, str]]:
    from spark_jobs.session import running_session

    size_bytes = sum(
        segment.size_bytes
        for files in segments.read_catalogue(options.landing).values()
        for segment in files.values()
    )
    small = set(spans) <= only_out_of_balance(options.landing, options.warehouse)
    with nullcontext(one_process()) if small else running_session(size_bytes) as spark:
        return recompute(
            spark,
            options.landing,
            options.warehouse,
            spans,
            limits=options.limits,
            overrides=options.overrides,
        )


if __name__ == "__main__":
    sys.exit(run_command(main, "stale"))
