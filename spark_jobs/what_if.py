"""What-if over a warehouse: every dispatcher of an interval under every set of rules, each pair in a Spark task of its own.

A task reads one dispatcher's log from the tables' files and makes the predictions of ``dispatch_core.what_if.compare``: pure
calls that need nothing of each other. Predictions over all topics of a subscription are made from theirs, on the driver.
Nothing is written to the warehouse.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording import schema
from dispatch_core.what_if.compare import Row, groups_of, rows_of
from dispatch_core.what_if.rules import SEEDS, RuleSet
from dispatch_core.what_if.tell import as_json
from spark_jobs.dispatcher_log import load_logs
from spark_jobs.found import dispatchers
from spark_jobs.intervals import Interval

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
    spark: SparkSession, warehouse: Path, span: Interval, rules: Sequence[RuleSet], *, seeds: int = SEEDS
) -> pa.Table:
    """Predict what the dispatchers of the interval would have met under ``rules``: rows of ``PREDICTIONS``, ordered.

    A dispatcher's log is taken from its beginning up to the interval. One whose log cannot be read stops no other.
    """
    asked = [(one, rule, seeds) for one in dispatchers(spark, warehouse, span) for rule in rules]
    if not asked:
        return PREDICTIONS.empty_table()
    made = spark.sparkContext.parallelize(asked, len(asked)).flatMap(_predict).collect()
    rows = [one for one in made if isinstance(one, Row)]
    told = [_row_of(one) if isinstance(one, Row) else one for one in made]
    told.sort(key=lambda row: (row["cluster"], row["topic"], row["subscription"], row["incarnation"] or 0))
    return pa.Table.from_pylist([*told, *map(_row_of, groups_of(rows))], schema=PREDICTIONS)


def _predict(asked: tuple[dict[str, Any], RuleSet, int]) -> list[Row | dict[str, Any]]:
    """One task: the predictions for the incarnations of a dispatcher, or why its log cannot be read."""
    dispatcher, rules, seeds = asked
    try:
        return [row for log in load_logs(dispatcher) for row in rows_of(log, [rules], seeds=range(seeds))]
    except DispatchAuditError as error:
        where = {name: dispatcher[name] for name in schema.DISPATCHER_KEY}
        return [
            {**where, "incarnation": None, "rules": rules.name, "verdict": "UNKNOWN", "problem": str(error)}
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
