"""Predict every dispatcher of an interval under every set of rules, each pair in a Spark task of its own.

A task reads one dispatcher's log from the tables' files and makes the predictions of ``dispatch_core.what_if.compare``.
Predictions over all topics of a subscription are made from these, on the driver. Nothing is written to the warehouse.

Run as ``python -m spark_jobs.what_if --interval-start 2026-11-21 --warehouse DIR --out DIR --rules ch --rules classic-ch``:
writes ``comparison.json`` (for programs) and then ``index.html`` (for people) into the folder ``--out``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from dispatch_core.audit.policy.reader import shipped_rules
from dispatch_core.audit.policy.rules import PolicyRules
from dispatch_core.audit.sentences.lists import listed
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording import schema
from dispatch_core.times import micros
from dispatch_core.what_if.compare import OrderLimits, Row, groups_of, rows_of
from dispatch_core.what_if.rules import RECORDED, SEEDS, RuleSet
from dispatch_core.what_if.tell import as_json
from spark_jobs import stage_command
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.progress import say, tasks_done
from spark_jobs.replay.dispatcher_files import dispatchers
from spark_jobs.replay.dispatcher_log import load_logs
from spark_jobs.warehouse.delta_tables import Place, files_until
from spark_jobs.what_if.comparison_page import comparison_page
from spark_jobs.what_if.request import KNOWN_RULES, MATRIX, Request, RequestError, request

#: One row per incarnation and rules; then one per subscription with several topics and rules, whose ``topic`` is null.
#: ``prediction`` is an object of ``dispatch-audit what-if --json``; null where the log could not be read (``problem``).
PREDICTIONS: Final = pa.schema(
    [
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("topic", pa.string()),
        pa.field("subscription", pa.string(), nullable=False),
        pa.field("incarnation", pa.int64()),
        pa.field("rules", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("problem", pa.string()),
        pa.field("prediction", pa.string()),
    ]
)


def what_if(
    spark: SparkSession, warehouse: Place, span: Interval, rules: Sequence[RuleSet], *, seeds: int = SEEDS
) -> pa.Table:
    """Predict the deliveries of the interval's dispatchers under ``rules``; return rows of ``PREDICTIONS``, sorted.

    A dispatcher's log is read and simulated from its beginning up to the interval's end, and what happens in the interval is
    measured. A log that cannot be read does not stop the others.
    """
    found = dispatchers(spark, warehouse, span)
    return predictions(spark, found, Request(rules=tuple(rules), seeds=seeds), span)


def predictions(
    spark: SparkSession,
    found: Sequence[dict[str, Any]],
    wanted: Request,
    span: Interval,
    policy: PolicyRules | None = None,
) -> pa.Table:
    """Do the same for some dispatchers (of ``spark_jobs.replay.dispatcher_files``), as a request says.

    ``policy``: how many order violations are tolerated; ``None`` = what the shipped policy says.
    """
    policy = shipped_rules() if policy is None else policy
    from_us = micros(span.start)
    # Which rules a matrix has is known only when the log is read, so one task makes all of them.
    single = [Request(rules=(rule,), seeds=wanted.seeds) for rule in wanted.rules]
    requests = [wanted] if wanted.matrix else single
    tasks = [(dispatcher, part, from_us) for dispatcher in found for part in requests]
    if not tasks:
        return PREDICTIONS.empty_table()
    with tasks_done(spark, f"what-if {span.name}: simulations done", len(tasks)):
        made = spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(_predict).collect()
    judged = [
        replace(row, tolerated=OrderLimits.of(policy.rule_for(row.topic, row.subscription)))
        if isinstance(row, Row)
        else row
        for row in made
    ]
    predicted = [_row_of(row) if isinstance(row, Row) else row for row in judged]
    predicted.sort(
        key=lambda row: (row["cluster"], row["topic"], row["subscription"], row["incarnation"] or 0)
    )
    groups = groups_of(row for row in judged if isinstance(row, Row))
    return pa.Table.from_pylist([*predicted, *map(_row_of, groups)], schema=PREDICTIONS)


def _predict(task: tuple[dict[str, Any], Request, int]) -> list[Row | dict[str, Any]]:
    """Predict the incarnations of one dispatcher; rows of ``PREDICTIONS`` with the reason if its log cannot be read."""
    dispatcher, wanted, from_us = task
    try:
        return [
            row
            for log in load_logs(dispatcher)
            for row in rows_of(log, wanted.rules_for(log), seeds=range(wanted.seeds), from_us=from_us)
        ]
    except DispatchAuditError as error:
        where = {name: dispatcher[name] for name in schema.DISPATCHER_KEY}
        names = [rule.name for rule in wanted.rules] or [MATRIX]
        return [
            {**where, "incarnation": None, "rules": name, "verdict": "UNKNOWN", "problem": str(error)}
            for name in names
        ]


def _row_of(row: Row) -> dict[str, Any]:
    return {
        "cluster": row.cluster,
        "topic": row.topic or None,
        "subscription": row.subscription,
        "incarnation": row.incarnation,
        "rules": row.rules.name,
        "verdict": row.verdict,
        "problem": row.problem,
        "prediction": json.dumps(as_json(row), ensure_ascii=False),
    }


def compare(
    spark: SparkSession,
    warehouse: Place,
    span: Interval,
    wanted: Request,
    out: Place,
    policy: PolicyRules | None = None,
) -> dict[str, Any]:
    """Predict, and write the comparison into the folder ``out`` in place of an earlier one; return a summary.

    ``policy``: see ``predictions``. Raises ``RequestError`` if the interval has no dispatcher or the patterns match none.
    """
    began = datetime.now(UTC)
    _check_interval(warehouse, span)
    there = [row for row in dispatchers(spark, warehouse, span) if not row["idle"]]
    found = [dispatcher for dispatcher in there if wanted.wants(dispatcher)]
    if not found:
        names = sorted({f"{dispatcher['topic']} / {dispatcher['subscription']}" for dispatcher in there})
        raise RequestError(
            f"the patterns {wanted.topics!r} (topics) and {wanted.subscriptions!r} (subscriptions) match none of the "
            f"{len(there)} dispatchers of {span.name}; nothing was simulated. There are {listed(names)}"
        )
    say(
        f"what-if {span.name}: {len(found)} of {len(there)} dispatchers, {wanted.seeds} simulations per rules"
    )
    rows = predictions(spark, found, wanted, span, policy).to_pylist()
    write_comparison(out, {"interval_start": span.start.isoformat(), **wanted.as_json()}, rows)
    verdicts = Counter(row["verdict"] for row in rows if row["topic"] is not None)
    return {
        "stage": "what-if",
        "interval_start": span.start.isoformat(),
        "dispatchers": len(found),
        "predictions": len(rows),
        **{name: verdicts[name] for name in ("PASS", "FAIL", "UNKNOWN")},
        "index": str(Location.of(out) / "index.html"),
        "seconds": round((datetime.now(UTC) - began).total_seconds(), 3),
    }


def _check_interval(warehouse: Place, span: Interval) -> None:
    """Raise ``RequestError``, naming some intervals of the tables, unless the tables have an interval with this start."""
    ever = Interval(datetime(9998, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
    starts = {start for _file, start in files_until(warehouse, "consumer_events", ever)}
    if span.start not in starts:
        nearest = sorted(starts, key=lambda start: abs(start - span.start))
        raise RequestError(
            f"no interval that starts at {span.start.isoformat()} was ingested; nothing was simulated. "
            + (
                f"There are {listed(start.isoformat() for start in nearest)}"
                if starts
                else "There is none at all"
            )
            + "; run dispatch_audit (or dispatch-audit pipeline) for the interval first"
        )


def write_comparison(out: Place, asked: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
    """Write ``comparison.json`` and ``index.html`` into the folder ``out``, in place of an earlier comparison."""
    rows = list(rows)
    documents = [row | {"prediction": row["prediction"] and json.loads(row["prediction"])} for row in rows]
    text = json.dumps({"asked": asked, "predictions": documents}, ensure_ascii=False, indent=1)
    (Location.of(out) / "comparison.json").write_text(text)
    (Location.of(out) / "index.html").write_text(comparison_page(asked, rows))
    for stored in Location.of(out).children():
        if stored.location.name not in ("comparison.json", "index.html"):
            stored.location.delete()


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare sets of rules on the logs of one interval; see ``--help``."""
    parser = stage_command.parser(
        "python -m spark_jobs.what_if", "predict an interval's deliveries under other rules, and compare"
    )
    parser.add_argument("--out", required=True, type=Location.of, help="folder or URL of the comparison")
    parser.add_argument("--topics", default="*", metavar="PATTERN", help="with * and ? (default: all)")
    parser.add_argument("--subscriptions", default="*", metavar="PATTERN", help="with * and ? (default: all)")
    parser.add_argument(
        "--rules",
        action="append",
        default=[],
        metavar="NAME",
        help=f"may be given again: {', '.join(KNOWN_RULES)}, or any RELEASE-VARIANT (default: {RECORDED.name})",
    )
    parser.add_argument("--broker-version", metavar="VERSION", help="release for rules that name none")
    stage_command.add_settings(parser)
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="simulations per rules")
    stage_command.add_policy_text(parser)
    options = parser.parse_args(arguments)

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        wanted = request(
            options.rules,
            broker_version=options.broker_version,
            assignments=options.settings,
            topics=options.topics,
            subscriptions=options.subscriptions,
            seeds=options.seeds,
        )
        policy = stage_command.policy_text_given(options)
        return compare(spark, options.warehouse, span, wanted, options.out, policy)

    return stage_command.run(options, work, lambda _span: 0)
