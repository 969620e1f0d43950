"""Run ``dispatch-audit pipeline SOURCE...``: all stages in one process, without Airflow.

Runs pull → ingest → replay → aggregates → validate → advise → report for each interval, then prints the verdicts. Calls the
same functions as the DAG, on the same folders under ``--home`` (else ``DISPATCH_AUDIT_HOME``, else ``.dispatch-audit``):
``landing``, ``warehouse``, ``data-docs``, ``reports``. Without ``--interval-start`` it takes every UTC day on which the
source has an event, oldest first. Intervals audited before are audited again if this run changes rows that they depend
on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from dispatch_core.audit.sentences.names import printable
from dispatch_core.cli.log_lines import run_command, with_fields
from dispatch_core.cli.policy_file import add_policy_argument
from dispatch_core.cli.recordings import (
    add_as_of_arguments,
    add_link_argument,
    add_override_arguments,
    overrides_given,
)
from dispatch_core.cli.selection import add_refused_arguments
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.files import file_format
from dispatch_core.recording.links import SourceWalk
from spark_jobs import stage_command
from spark_jobs.intervals import Interval, day_of, interval
from spark_jobs.location import Location
from spark_jobs.progress import complain, quiet_on_a_pipe, say
from spark_jobs.pull.hours_survey import HOUR_US
from spark_jobs.pull.segments import Segment

HELP: Final = "pull, ingest, replay, judge: all stages without Airflow"
_WHOLE: Final = (
    "an interval is judged with all that its sources have, as findings over many topics need; give other sources, or a "
    "policy with rules for topics"
)
#: Options of other commands that mean nothing here.
_REFUSED: Final = {"--topic": _WHOLE, "--subscription": _WHOLE}
_ORDER: Final = {"FAIL": 0, "UNKNOWN": 1, "PASS": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("source", nargs="+", metavar="SOURCE", help="folder of recordings, log file, or glob")
    parser.add_argument(
        "--home",
        help="folder or URL (s3://bucket/prefix) for all results (default: $DISPATCH_AUDIT_HOME, else .dispatch-audit)",
    )
    parser.add_argument(
        "--interval-start",
        "--from",
        type=stage_command.moment,
        help="day or ISO 8601 time, UTC (default: every day on which the source has events)",
    )
    parser.add_argument(
        "--interval-end",
        "--to",
        type=stage_command.moment,
        help="exclusive (default: a day after the start)",
    )
    add_override_arguments(parser)
    add_link_argument(parser)
    add_refused_arguments(parser, _REFUSED)
    add_as_of_arguments(parser)
    add_policy_argument(parser)
    parser.add_argument(
        "--forget-gone",
        action="store_true",
        help="forget files that the sources do not have any more (default: keep them, as logs are rotated away)",
    )
    parser.add_argument(
        "--advice-events",
        type=int,
        metavar="N",
        help="simulate what would have prevented order violations, of logs with at most N lines of events; 0: of none "
        "(default 100000)",
    )
    parser.add_argument(
        "--prometheus-file",
        metavar="FILE",
        default=os.environ.get("DISPATCH_AUDIT_PROMETHEUS_FILE"),
        help="write the metrics of the newest interval there, for node_exporter's textfile collector; must end in .prom "
        "(default: $DISPATCH_AUDIT_PROMETHEUS_FILE, else none)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per verdict on stdout, nothing else there"
    )


def run(args: argparse.Namespace) -> int:
    """Run all stages; return 0 if every verdict is PASS, 1 if there is a FAIL, 2 if something could not be judged."""
    try:
        home = Location.of(args.home or os.environ.get("DISPATCH_AUDIT_HOME") or ".dispatch-audit")
        with quiet_on_a_pipe():
            verdicts = _audit(args, home)
    except DispatchAuditError as error:
        complain(f"error: {error}")
        return 2
    print("\n".join(_as_json(verdicts) if args.json else _for_people(verdicts, home)))
    if args.prometheus_file:
        from dispatch_expectations.prometheus_file import write_newest

        try:
            write_newest(args.prometheus_file, home / "warehouse", home / "outbox")
        except DispatchAuditError as error:
            complain(f"error: {error}")
            return 2
    found = {verdict.verdict for verdict in verdicts if verdict.promise == "all"}
    if "FAIL" in found:
        return 1
    return 0 if found == {"PASS"} else 2


def _audit(args: argparse.Namespace, home: Location) -> list[Any]:
    if args.interval_end and not args.interval_start:
        raise DispatchAuditError("--interval-end needs --interval-start")
    overrides = overrides_given(args)
    walk = SourceWalk(file_format, follow_links=args.follow_links)
    sources = [path for source in args.source for path in _expanded(source, walk)]
    for line in walk.messages():
        say(f"pull: {line}")
    from dispatch_core.what_if.advise import MOST_EVENTS
    from dispatch_expectations.policy import current_policy, load_policy
    from dispatch_expectations.validate import validate_interval
    from spark_jobs.aggregates.aggregate_interval import aggregate
    from spark_jobs.ingest.landing_changes import stale_intervals
    from spark_jobs.ingest.with_history import ingest_with_history
    from spark_jobs.pull.pull_logs import land, pull_segments
    from spark_jobs.replay.as_of import AsOf
    from spark_jobs.replay.replay_interval import replay
    from spark_jobs.reports.report_pages import folder_of, write_reports
    from spark_jobs.session import running_session
    from spark_jobs.stale_intervals import recompute
    from spark_jobs.warehouse.balance_window import outdated_windows
    from spark_jobs.warehouse.run_ledger import Ledger
    from spark_jobs.what_if.advice import advise_interval

    most_events = MOST_EVENTS if args.advice_events is None else args.advice_events
    policy = load_policy(args.policy) if args.policy else current_policy()
    limits = policy.limit_rules()
    asked = AsOf(args.as_of, args.complete)
    landing, warehouse = home / "landing", home / "warehouse"
    home.check()
    pulled = pull_segments(
        sources, landing, progress=say, keep_gone=not args.forget_gone, follow_links=args.follow_links
    )
    if args.interval_start:
        spans = [interval(args.interval_start, args.interval_end)]
    else:
        spans = [interval(day) for day in days_of(sources, landing, pulled.files)]
    for span in spans:
        land(landing, span, pulled.sources)
    verdicts: list[Any] = []

    def judge(span: Interval) -> None:
        with _stage("validate", span):
            say(f"validate {span.name}")
            verdicts.extend(validate_interval(warehouse, span.start, home / "data-docs", policy))
        with _stage("advise", span):
            out = folder_of(home / "reports", span)
            _say_summary(advise_interval(spark, warehouse, span, out, policy, most_events=most_events))
        with _stage("report", span):
            _say_summary(write_reports(warehouse, span, home / "reports"))

    def judge_again(span: Interval) -> None:
        with _stage("recompute", span):
            recompute(spark, landing, warehouse, [span], limits=limits, overrides=overrides)
        judge(span)

    with running_session(sum(segment.size_bytes for segment in pulled.files)) as spark:
        for span in spans:
            with _stage("ingest", span):
                _say_summary(ingest_with_history(spark, landing, warehouse, span))
            with _stage("replay", span):
                _say_summary(replay(spark, warehouse, span, limits=limits, overrides=overrides, asked=asked))
            with _stage("aggregates", span):
                _say_summary(aggregate(warehouse, span, limits=limits))
            judge(span)
        for span in stale_intervals(landing, warehouse, spark):
            if asked.mark and span in spans:
                continue  # judged as of the moment that was asked for
            judge_again(span)
        # Of these only the balance is out of date, and the sums that it is made of are there now.
        for span in outdated_windows(Ledger(warehouse)):
            judge_again(span)
    return verdicts


def _expanded(source: str, walk: SourceWalk) -> list[Path]:
    """Expand a source: an existing path, or the matches of a glob; a glob without a match is returned as it is."""
    if Path(source).exists():
        return [Path(source)]
    return walk.matching(source) or [Path(source)]


def days_of(sources: Sequence[Path], landing: Location, files: Sequence[Segment]) -> list[str]:
    """List the UTC days on which the landed event files have rows, oldest first."""
    from spark_jobs.pull.segment_surveys import surveyed

    events = [segment for segment in files if (file_format(segment.name) or ("",))[0] == "events"]
    hours = {hour for _one, survey in surveyed(None, landing, events) for hour, _rows, _mark in survey.hours}
    days = sorted({day_of(hour * HOUR_US) for hour in hours})
    if not days:
        raise DispatchAuditError(
            f"{', '.join(map(str, sources))}: no readable event in {len(files)} files; nothing was audited. "
            "Check that these are consumer-event logs or dispatcher traces (docs/log-format.md)"
        )
    return days


def _stage(name: str, span: Interval) -> AbstractContextManager[None]:
    """Name the stage and the interval in lines that are JSON."""
    return with_fields(stage=name, interval=span.start.isoformat())


def _say_summary(summary: dict[str, Any]) -> None:
    plain = (f"{name} {value:,}" for name, value in summary.items() if isinstance(value, (int, float)))
    say(f"{summary['stage']} {summary['interval_start'][:10]}: {', '.join(plain)}")


def _as_json(verdicts: Iterable[Any]) -> list[str]:
    return [
        json.dumps(asdict(verdict), default=str, sort_keys=True, ensure_ascii=False) for verdict in verdicts
    ]


def _for_people(verdicts: Sequence[Any], home: Location) -> list[str]:
    lines = []
    overall = [verdict for verdict in verdicts if verdict.promise == "all"]
    for row in sorted(overall, key=lambda row: (_ORDER.get(row.verdict, 0), row.interval_start, row.topic)):
        day = interval(row.interval_start).name
        lines.append(f"{row.verdict:8}{printable(row.topic)} / {printable(row.subscription)}  {day}")
        lines.append(f"        {printable(row.reason)}")
        lines += [f"        - {printable(finding)}" for finding in row.top_findings if row.verdict != "PASS"]
    counts = {verdict: sum(row.verdict == verdict for row in overall) for verdict in _ORDER}
    lines.append("")
    lines.append(
        ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "nothing judged"
    )
    lines += [f"tables     {home / 'warehouse'}", f"Data Docs  {home / 'data-docs'}"]
    lines.append(f"reports    {home / 'reports'}")
    return lines


if __name__ == "__main__":
    command = argparse.ArgumentParser(prog="dispatch-audit pipeline", description=HELP)
    add_arguments(command)
    sys.exit(run_command(lambda: run(command.parse_args())))
