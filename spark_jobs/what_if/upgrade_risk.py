"""Compare release A with release B over all subscriptions of a range of intervals, each in a Spark task of its own.

A task reads one dispatcher's log from the tables' files, from its beginning to the end of the range, and compares both
releases (``dispatch_core.what_if.upgrade_risk``); what happens in the range is measured. Only its figures come back. Nothing
is written to the warehouse.

Run as ``python -m spark_jobs.what_if.upgrade_risk --interval-start 2026-11-21 --interval-end 2026-11-28 --warehouse DIR
--out DIR --broker-version 5.0.1``: writes ``upgrade-risk.json`` (for programs), ``upgrade-risk.html`` (for people) and
``index.html``, which leads to it, into the folder ``--out``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.audit.policy.reader import shipped_rules
from dispatch_core.audit.policy.rules import PolicyRules
from dispatch_core.audit.sentences.lists import counted
from dispatch_core.broker import settings
from dispatch_core.cli.log_lines import run_command
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording import schema
from dispatch_core.what_if.compare import OrderLimits, Row
from dispatch_core.what_if.rules import SEEDS
from dispatch_core.what_if.upgrade_risk import (
    NOT_JUDGED,
    WORSE,
    Upgrade,
    counts,
    risk,
    risks_of,
    summary,
    upgrade,
)
from dispatch_core.what_if.upgrade_risk_groups import folded
from dispatch_core.what_if.upgrade_risk_page import front_page, risk_page
from spark_jobs import stage_command
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.progress import say, tasks_done
from spark_jobs.replay.dispatcher_files import dispatchers
from spark_jobs.replay.dispatcher_log import load_logs
from spark_jobs.warehouse.delta_tables import Place, files_until
from spark_jobs.what_if.request import Request, RequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Files of a comparison, for programs and for people.
JSON: Final = "upgrade-risk.json"
PAGE: Final = "upgrade-risk.html"
#: A dispatcher with more lines of events is not simulated unless asked for.
MOST_EVENTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RiskRequest:
    """The releases, the dispatchers (patterns with shell wildcards), and how much is simulated.

    ``most_events``: dispatchers whose logs have more lines of events than this are not judged.
    """

    upgrade: Upgrade
    topics: str = "*"
    subscriptions: str = "*"
    seeds: int = SEEDS
    most_events: int = MOST_EVENTS

    def as_json(self) -> dict[str, Any]:
        """As JSON values, for the page and for programs."""
        return {
            **self.upgrade.as_json(),
            "topics": self.topics,
            "subscriptions": self.subscriptions,
            "seeds": self.seeds,
            "most_events": self.most_events,
        }


def risk_request(
    release: str,
    *,
    assignments: Sequence[str] = (),
    against: str | None = None,
    topics: str = "*",
    subscriptions: str = "*",
    seeds: int = SEEDS,
    most_events: int = MOST_EVENTS,
) -> RiskRequest:
    """Make a request from texts; ``assignments`` are ``NAME=VALUE`` of ``broker.conf``, for release B.

    Raises ``DispatchAuditError`` that begins with the name of what is wrong.
    """
    if not release.strip():
        raise RequestError("broker_version is empty; nothing was simulated. Give release B, such as 5.0.1")
    asked = upgrade(release.strip(), settings.given(list(assignments)), (against or "").strip() or None)
    same = Request.checked(topics, subscriptions, seeds)
    if most_events < 1:
        raise RequestError(f"most_events: {most_events}: give a number from 1; nothing was simulated")
    return RiskRequest(asked, same.topics, same.subscriptions, same.seeds, most_events)


def compare_releases(
    spark: SparkSession,
    warehouse: Place,
    span: Interval,
    wanted: RiskRequest,
    out: Place,
    policy: PolicyRules | None = None,
) -> dict[str, Any]:
    """Compare, and write the page into the folder ``out`` in place of an earlier one; return a summary.

    ``span``: from the start of the first interval to the end of the last one. ``policy``: how many order violations are
    tolerated; ``None`` = as the shipped policy says. Raises ``RequestError`` if no interval or no dispatcher is in it.
    """
    began = datetime.now(UTC)
    last = _last_interval(warehouse, span)
    there = [row for row in dispatchers(spark, warehouse, last, since=span.start) if not row["idle"]]
    patterns = Request(topics=wanted.topics, subscriptions=wanted.subscriptions)
    found = [dispatcher for dispatcher in there if patterns.wants(dispatcher)]
    if not found:
        raise RequestError(
            f"the patterns {wanted.topics!r} (topics) and {wanted.subscriptions!r} (subscriptions) match none of the "
            f"{len(there)} dispatchers from {span.start.isoformat()} to {span.end.isoformat()}; nothing was simulated"
        )
    say(
        f"upgrade risk {span.name}: {len(found)} of {len(there)} dispatchers, {wanted.seeds} simulations of each release"
    )
    rows = risks(spark, found, wanted, span, policy)
    asked = {
        "interval_start": span.start.isoformat(),
        "interval_end": span.end.isoformat(),
        **wanted.as_json(),
    }
    subscriptions = write_risks(out, asked, rows)
    outcomes = counts(row["outcome"] for row in subscriptions)
    return {
        "stage": "upgrade-risk",
        "interval_start": span.start.isoformat(),
        "interval_end": span.end.isoformat(),
        "dispatchers": len(found),
        "outcomes": outcomes,
        "worse": sum(outcomes[name] for name in WORSE),
        "not_judged": outcomes[NOT_JUDGED],
        "said": summary(outcomes, wanted.upgrade),
        "index": str(Location.of(out) / PAGE),
        "seconds": round((datetime.now(UTC) - began).total_seconds(), 3),
    }


def risks(
    spark: SparkSession,
    found: Sequence[dict[str, Any]],
    wanted: RiskRequest,
    span: Interval,
    policy: PolicyRules | None = None,
) -> list[dict[str, Any]]:
    """Compare some dispatchers (of ``spark_jobs.replay.dispatcher_files``); the worst first, as ``Risk.as_json`` says."""
    policy = shipped_rules() if policy is None else policy
    tasks = [
        (
            dispatcher,
            wanted,
            span.start_us,
            OrderLimits.of(policy.rule_for(dispatcher["topic"], dispatcher["subscription"])),
        )
        # The largest logs first, so that the last task to end keeps nobody waiting.
        for dispatcher in sorted(found, key=lambda row: -row["events"])
    ]
    with tasks_done(spark, f"upgrade risk {span.name}: dispatchers done", len(tasks)):
        made = spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(_compare).collect()
    return [row for _rank, row in sorted(made, key=lambda ranked: ranked[0])]


def _compare(
    task: tuple[dict[str, Any], RiskRequest, int, OrderLimits],
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Compare the incarnations of one dispatcher: each one's rank and figures."""
    dispatcher, wanted, from_us, tolerated = task
    asked = wanted.upgrade
    try:
        if dispatcher["events"] > wanted.most_events:
            raise RequestError(
                f"{counted(dispatcher['events'], 'line', 'lines')} of events are more than {wanted.most_events:,} "
                "(most_events), so it was not simulated"
            )
        found = [
            risks_of(log, asked, seeds=range(wanted.seeds), tolerated=tolerated, from_us=from_us)
            for log in load_logs(dispatcher)
        ]
    except DispatchAuditError as error:
        where = {name: dispatcher[name] for name in schema.DISPATCHER_KEY}
        row = Row(
            **where, recording="", subscription_type="", incarnation=None, rules=asked.rules[-1], profile="",
            recorded=None, problem=str(error),
        )  # fmt: skip
        found = [risk([row])]
    return [(risk_found.rank, risk_found.as_json()) for risk_found in found]


def _last_interval(warehouse: Place, span: Interval) -> Interval:
    """Return the last interval of the tables that starts in the range, to the end of the range."""
    ever = Interval(datetime(9998, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
    starts = {start for _file, start in files_until(warehouse, "consumer_events", ever)}
    inside = [start for start in starts if span.start <= start < span.end]
    if not inside:
        known = (
            f"the tables have intervals from {min(starts).isoformat()} to {max(starts).isoformat()}"
            if starts
            else "none was"
        )
        raise RequestError(
            f"no interval that starts from {span.start.isoformat()} to {span.end.isoformat()} was ingested; {known}. "
            "Nothing was simulated; run dispatch_audit (or dispatch-audit pipeline) for the intervals first"
        )
    return Interval(max(inside), span.end)


def write_risks(out: Place, asked: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write the files of a comparison into the folder ``out``, in place of an earlier one; return its subscriptions."""
    folder = Location.of(out)
    subscriptions = folded(rows)
    facts = {
        "time": f"{asked['interval_start']} to {asked['interval_end']}",
        "topics, subscriptions": f"{asked['topics']}, {asked['subscriptions']}",
        "simulations of each release": asked["seeds"],
    }
    files = {
        JSON: json.dumps({"asked": asked, "risks": rows}, ensure_ascii=False, indent=1),
        PAGE: risk_page(asked, subscriptions, facts),
        "index.html": front_page(asked, subscriptions, PAGE),
    }
    for name, text in files.items():
        (folder / name).write_bytes(text.encode("utf-8", "backslashreplace"))
    for stored in folder.children():
        if stored.location.name not in files:
            stored.location.delete()
    return subscriptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two releases on the logs of a range of intervals; see ``--help``."""
    parser = stage_command.parser(
        "python -m spark_jobs.what_if.upgrade_risk",
        "compare two releases over all subscriptions, the worst first",
    )
    parser.add_argument("--out", required=True, type=Location.of, help="folder or URL of the comparison")
    parser.add_argument("--broker-version", required=True, metavar="VERSION", help="release B")
    parser.add_argument("--against", metavar="VERSION", help="release A (default: what was recorded)")
    stage_command.add_settings(parser)
    parser.add_argument("--topics", default="*", metavar="PATTERN", help="with * and ? (default: all)")
    parser.add_argument("--subscriptions", default="*", metavar="PATTERN", help="with * and ? (default: all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="simulations of each release")
    parser.add_argument(
        "--most-events",
        type=int,
        default=MOST_EVENTS,
        metavar="N",
        help="logs with more lines of events are not simulated (default %(default)s)",
    )
    stage_command.add_policy_text(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="one line for each partition before the summary, the worst first",
    )
    options = parser.parse_args(arguments)
    outcome: dict[str, Any] = {}

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        wanted = risk_request(
            options.broker_version,
            assignments=options.settings,
            against=options.against,
            topics=options.topics,
            subscriptions=options.subscriptions,
            seeds=options.seeds,
            most_events=options.most_events,
        )
        policy = stage_command.policy_text_given(options)
        outcome.update(compare_releases(spark, options.warehouse, span, wanted, options.out, policy))
        if options.json:
            for row in json.loads((options.out / JSON).read_text())["risks"]:
                print(json.dumps(row, ensure_ascii=False))
        return outcome

    return stage_command.run(options, work, lambda _span: 0)


if __name__ == "__main__":
    sys.exit(run_command(main, "upgrade-risk"))
