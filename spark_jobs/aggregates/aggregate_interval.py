"""Find what only shows over all topics of a subscription: how Failover's active consumers are spread (PIP-392).

All that one dispatcher's log shows is found by its replay. Spark reads who was connected and who was active, and
``dispatch_core.audit.balance`` judges it.
Run as ``python -m spark_jobs.aggregates --interval-start 2026-11-21 --warehouse DIR``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatch_core.audit.active_topics import active_times, failover_imbalances
from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.errors import names_disk_errors
from dispatch_core.tables import ANOMALIES
from spark_jobs import stage_command
from spark_jobs.intervals import Interval
from spark_jobs.warehouse import spark_tables
from spark_jobs.warehouse.delta_tables import data_files, record_run, replace_interval, stage_run, table_path

#: Kinds whose rows this stage adds to those of the replay.
KINDS: Final = ("failover_imbalance",)
#: The limits that hold where no policy is given.
NO_RULES: Final = LimitRules()

_TOPIC: Final = ["cluster", "topic", "subscription"]


@names_disk_errors("aggregates")
def aggregate(
    spark: SparkSession, warehouse: Path, span: Interval, *, limits: LimitRules = NO_RULES
) -> dict[str, Any]:
    """Add the findings over all topics to the interval's ``anomalies``; doing it again changes nothing.

    ``limits``: how much is too much, for which topics. Returns a summary with the rows of each table that was written.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    with stage_run(warehouse, "aggregates", span, wait=True) as staging:
        states, ownership = (
            spark_tables.read(spark, warehouse, name, span) for name in ("dispatcher_state", "ownership")
        )
        events = spark_tables.read_until(spark, warehouse, "consumer_events", span)
        found = []
        if enough_topics(states, limits):
            found = uneven_topics(activity(ownership, events, states, span), span, limits)
        rows = {}
        if found or _has_kinds(warehouse, span):
            rows["anomalies"] = _publish(spark, warehouse, span, found, staging)
        summary: dict[str, Any] = {
            "stage": "aggregates",
            "interval_start": span.start.isoformat(),
            "limits": limits.digest,
            "rows": rows,
            "seconds": round(time.monotonic() - began, 3),
        }
        record_run(warehouse, "aggregates", span, started_at, summary)
    return summary


def enough_topics(states: DataFrame, limits: LimitRules) -> bool:
    """Tell if there are enough Failover topics to judge; in most intervals of most clusters there are not."""
    least = min(DEFAULT_LIMITS.min_topics, *(rule.limits.min_topics for rule in limits.rules), 1 << 30)
    topics = states.where("subscription_type = 'Failover'").select(*_TOPIC).distinct()
    return topics.limit(max(least, 1)).count() >= least


def activity(ownership: DataFrame, events: DataFrame, states: DataFrame, span: Interval) -> pa.Table:
    """Return ``active_topics.active_times`` of the Failover topics of an interval.

    ``ownership`` and ``states`` are of the interval, ``events`` of all intervals up to it. What is collected is a row per
    topic and activity, or connection.
    """
    last = (
        states.where("subscription_type = 'Failover'")
        .groupBy(*_TOPIC)
        .agg(F.max("last_t_us").alias("last_t_us"))
    )
    topics = F.broadcast(last.select(*_TOPIC))
    spans = ownership.join(topics, _TOPIC).select(*_TOPIC, "from_t_us", "until_t_us", "consumer_name")
    members = events.where("kind IN ('consumer_added', 'consumer_removed')").join(topics, _TOPIC)
    connection = [*_TOPIC, "incarnation", "consumer"]
    joined = F.col("kind") == "consumer_added"
    connected = (
        members.groupBy(*connection)
        .agg(
            F.first(F.when(joined, F.col("name")), ignorenulls=True).alias("consumer_name"),
            F.min(F.when(joined, F.col("t_us"))).alias("from_t_us"),
            F.max(F.when(~joined, F.col("t_us"))).alias("until_t_us"),
            F.min(F.when(joined, F.col("priority_level"))).cast("bigint").alias("priority_level"),
        )
        .where(f"from_t_us < {span.end_us} AND coalesce(until_t_us >= {span.start_us}, true)")
        .select(*_TOPIC, "consumer_name", "from_t_us", "until_t_us", "priority_level")
    )
    return active_times(spans.toArrow(), connected.toArrow(), last.toArrow(), span.start_us, span.end_us)


def uneven_topics(times: pa.Table, span: Interval, limits: LimitRules) -> list[dict[str, Any]]:
    """Return rows of ``anomalies`` for the subscriptions whose active topics are spread unevenly.

    ``times``: rows of ``active_topics.ACTIVE_TIMES``. A rule of limits holds for the topics that it matches; topics with
    other limits are judged apart.
    """
    by_limits: dict[Limits, list[int]] = {}
    topics = zip(times["topic"].to_pylist(), times["subscription"].to_pylist(), strict=True)
    for row, topic in enumerate(topics):
        by_limits.setdefault(limits.limits_for(*topic), []).append(row)
    return [
        {**finding, "interval_start": span.start, "incarnation": 0}
        for of_topic, rows in by_limits.items()
        for finding in failover_imbalances(times.take(pa.array(rows)), of_topic)
    ]


def _publish(
    spark: SparkSession, warehouse: Path, span: Interval, found: list[dict[str, Any]], staging: Path
) -> int:
    """Replace the interval's anomalies of ``KINDS``, beside those of the replay; returns how many anomalies there are."""
    kept = spark_tables.read(spark, warehouse, "anomalies", span).where(~F.col("kind").isin(*KINDS))
    added = spark.createDataFrame(found, spark_tables.spark_schema(ANOMALIES))
    staged = spark_tables.stage(kept.unionByName(added), "anomalies", staging)
    return replace_interval(warehouse, "anomalies", span, staged)


def _has_kinds(warehouse: Path, span: Interval) -> bool:
    files = data_files(warehouse, "anomalies", span)
    if not files:
        return False
    kinds: Any = ds.dataset(files, format="parquet").scanner(columns=["kind"])
    return any(
        pc.any(pc.is_in(batch["kind"], value_set=pa.array(KINDS))).as_py() for batch in kinds.to_batches()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Aggregate one interval; see ``--help``."""
    parser = stage_command.parser(
        "python -m spark_jobs.aggregates",
        "findings over all topics of one interval, from what replay wrote",
        limits=True,
    )
    options = parser.parse_args(arguments)

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        return aggregate(spark, options.warehouse, span, limits=options.limits)

    def size_bytes(_span: Interval) -> int:
        folder = table_path(options.warehouse, "ownership")
        return sum(file.stat().st_size for file in folder.rglob("*.parquet"))

    return stage_command.run(options, work, size_bytes)
