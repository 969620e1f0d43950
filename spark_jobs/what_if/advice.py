"""Advise, for the subscriptions of a judged interval that break the order per key, what would have prevented it.

A task reads one dispatcher's log from the tables' files, from its beginning to the interval's end, and simulates changes
until one prevents the violations of the interval (``dispatch_core.what_if.advise``). That takes time, so it is bounded: by
the number of subscriptions, those with the most findings first, and by the lines of each log. What is left out says so, with
the command that computes it. Both bounds are counts and no times, so the same tables give the same advice.

Run as ``python -m spark_jobs.what_if.advice --interval-start 2026-11-21 --warehouse DIR --out DIR``: writes ``advice.json``
into the folder of the interval's reports. With ``--topic`` and ``--subscription`` it prints the advice for one subscription,
all changes that were tried, without bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.audit.catalogue import PER_KEY_ORDER
from dispatch_core.audit.policy.reader import shipped_rules
from dispatch_core.audit.policy.rules import PolicyRules
from dispatch_core.audit.promises.promise import FAIL
from dispatch_core.cli.log_lines import run_command
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.schema import DISPATCHER_KEY
from dispatch_core.report.advice import AdviceShown, not_computed
from dispatch_core.what_if.advise import MOST_EVENTS, Advice, advice
from dispatch_core.what_if.advise_text import for_page, for_people
from dispatch_core.what_if.compare import OrderLimits
from dispatch_core.what_if.rules import SEEDS
from spark_jobs import stage_command
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.progress import tasks_done
from spark_jobs.replay.dispatcher_files import dispatchers
from spark_jobs.replay.dispatcher_log import load_logs
from spark_jobs.warehouse.advice_file import Dispatcher, command_for, remove_advice, write_advice
from spark_jobs.warehouse.delta_tables import Place, data_files
from spark_jobs.warehouse.file_rows import file_rows
from spark_jobs.what_if.request import RequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Subscriptions of an interval that are simulated, those with the most findings first.
MOST_SUBSCRIPTIONS: Final = 10
_COLUMNS: Final = (*DISPATCHER_KEY, "promise", "verdict", "findings")


def advise_interval(
    spark: SparkSession,
    warehouse: Place,
    span: Interval,
    out: Place,
    policy: PolicyRules | None = None,
    *,
    most_events: int = MOST_EVENTS,
    most_subscriptions: int = MOST_SUBSCRIPTIONS,
) -> dict[str, Any]:
    """Write the advice for all subscriptions of an interval that break the order per key; return a summary.

    ``out``: the folder of the interval's reports. ``policy``: how many order violations are tolerated.
    """
    began = datetime.now(UTC)
    remove_advice(out)
    failed = failed_dispatchers(warehouse, span)
    there = {_key(row): row for row in dispatchers(spark, warehouse, span)} if failed else {}
    found: dict[Dispatcher, AdviceShown] = {}
    wanted: list[dict[str, Any]] = []
    for dispatcher in failed:
        command = command_for(warehouse, span, dispatcher)
        row = there.get(dispatcher)
        if row is None or not row["events"]:
            found[dispatcher] = not_computed("its log is no more in the tables", command)
        elif row["events"] > most_events:
            said = f"the log has {row['events']:,} lines, more than {most_events:,}"
            found[dispatcher] = not_computed(said, command)
        elif len(wanted) == most_subscriptions:
            said = f"{most_subscriptions} subscriptions with more findings were simulated before"
            found[dispatcher] = not_computed(said, command)
        else:
            wanted.append(row)
    for dispatcher, advised in _advised(spark, wanted, span, policy, alternatives=False):
        found[dispatcher] = for_page(advised, command_for(warehouse, span, dispatcher))
    if found:
        write_advice(out, {dispatcher: found[dispatcher] for dispatcher in failed})
    return {
        "stage": "advice",
        "interval_start": span.start.isoformat(),
        "failed": len(failed),
        "simulated": len(wanted),
        "advised": sum(bool(shown.effects) for shown in found.values()),
        "seconds": round((datetime.now(UTC) - began).total_seconds(), 3),
    }


def failed_dispatchers(warehouse: Place, span: Interval) -> list[Dispatcher]:
    """List the dispatchers that break the order per key in a judged interval, those with the most findings first."""
    ranked = []
    for rows in file_rows(data_files(warehouse, "verdicts", span), list(_COLUMNS)):
        for row in rows.to_pylist():
            if row["promise"] == PER_KEY_ORDER and row["verdict"] == FAIL:
                ranked.append((-row["findings"], _key(row)))
    return [dispatcher for _findings, dispatcher in sorted(ranked)]


def _key(row: dict[str, Any]) -> Dispatcher:
    return row["cluster"], row["topic"], row["subscription"]


def _advised(
    spark: SparkSession,
    rows: Sequence[dict[str, Any]],
    span: Interval,
    policy: PolicyRules | None,
    *,
    alternatives: bool,
) -> list[tuple[Dispatcher, list[Advice]]]:
    """Simulate, each dispatcher in a task of its own."""
    if not rows:
        return []
    policy = shipped_rules() if policy is None else policy
    tasks = [
        (row, span.start_us, OrderLimits.of(policy.rule_for(row["topic"], row["subscription"])), alternatives)
        for row in rows
    ]
    with tasks_done(spark, f"advice {span.name}: subscriptions done", len(tasks)):
        made: list[tuple[Dispatcher, list[Advice]]] = (
            spark.sparkContext.parallelize(tasks, len(tasks)).map(_advise).collect()
        )
    return made


def _advise(task: tuple[dict[str, Any], int, OrderLimits, bool]) -> tuple[Dispatcher, list[Advice]]:
    """Advise on the incarnations of one dispatcher. A log that cannot be read gives the reason."""
    row, from_us, tolerated, alternatives = task
    try:
        found = [
            advice(log, range(SEEDS), tolerated, alternatives=alternatives, from_us=from_us)
            for log in load_logs(row)
        ]
    except DispatchAuditError as error:
        found = [Advice("", *_key(row), 0, None, tolerated, problem=str(error))]
    return _key(row), found


def _one(
    spark: SparkSession, warehouse: Place, span: Interval, wanted: Dispatcher, policy: PolicyRules | None
) -> dict[str, Any]:
    """Print all that was tried for one dispatcher; return a summary."""
    rows = [row for row in dispatchers(spark, warehouse, span) if _key(row) == wanted and row["events"]]
    if not rows:
        cluster, topic, subscription = wanted
        raise RequestError(
            f"{topic} / {subscription} in cluster {cluster} has no lines in the interval {span.name}; nothing was simulated"
        )
    ((_key_of, found),) = _advised(spark, rows, span, policy, alternatives=True)
    print("".join(for_people(advised) for advised in found), end="")
    return {
        "stage": "advice",
        "interval_start": span.start.isoformat(),
        "advised": sum(bool(row.prevents) for row in found),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Advise on the subscriptions of one interval; see ``--help``."""
    parser = stage_command.parser(
        "python -m spark_jobs.what_if.advice", "advise changes that would have prevented order violations"
    )
    parser.add_argument("--out", type=Location.of, help="folder or URL of the interval's reports")
    parser.add_argument("--cluster", default="standalone", help="with --topic (default %(default)s)")
    parser.add_argument("--topic", help="print the advice for this topic's subscription alone")
    parser.add_argument("--subscription", help="see --topic")
    for name, default, text in (
        ("events", MOST_EVENTS, "logs with more lines of events are not simulated"),
        (
            "subscriptions",
            MOST_SUBSCRIPTIONS,
            "subscriptions that are simulated, those with the most findings first",
        ),
    ):
        parser.add_argument(
            f"--most-{name}", type=int, default=default, metavar="N", help=f"{text} (default {default:,})"
        )
    stage_command.add_policy_text(parser)
    options = parser.parse_args(arguments)
    alone = options.topic is not None and options.subscription is not None
    if not alone and options.out is None:
        parser.error("give --out, or --topic and --subscription")

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        policy = stage_command.policy_text_given(options)
        if alone:
            wanted = (options.cluster, options.topic, options.subscription)
            return _one(spark, options.warehouse, span, wanted, policy)
        return advise_interval(
            spark,
            options.warehouse,
            span,
            options.out,
            policy,
            most_events=options.most_events,
            most_subscriptions=options.most_subscriptions,
        )

    def is_small(span: Interval) -> bool:
        return alone or len(failed_dispatchers(options.warehouse, span)) <= 1

    return stage_command.run(options, work, lambda _span: 0, is_small=is_small)


if __name__ == "__main__":
    sys.exit(run_command(main, "advice"))
