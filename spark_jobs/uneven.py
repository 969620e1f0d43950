"""Findings that only show across dispatchers: how evenly Failover's active topics are spread (PIP-392's case).

Spark sums up who was active where and for how long; the pure function of ``dispatch_core.audit.balance`` judges, as it does
for the command line. What reaches the driver is a row per topic and consumer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatch_core.audit.balance import ActiveTime, failover_imbalances
from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.limits import Limits
from dispatch_core.tables import ANOMALIES
from spark_jobs import tables
from spark_jobs.intervals import Interval
from spark_jobs.warehouse import StagedFile, data_files, replace_interval

#: Kinds whose rows this stage adds to those of the replay.
KINDS: Final = ("failover_imbalance",)

_TOPIC: Final = ("cluster", "topic", "subscription")


def active_times(ownership: DataFrame, events: DataFrame, states: DataFrame, span: Interval) -> DataFrame:
    """Per Failover topic and consumer that was connected in the interval: microseconds in which it was the active one.

    ``ownership`` and ``states`` are of the interval, ``events`` of all intervals up to it. An activity without an end lasts
    until the topic's last event. A consumer that was connected and never active has 0.
    """
    topics = (
        states.where("subscription_type = 'Failover'")
        .groupBy(*_TOPIC)
        .agg(F.max("last_t_us").alias("last_t_us"))
    )
    until = F.least(F.coalesce("until_t_us", "last_t_us"), F.lit(span.end_us))
    since = F.greatest("from_t_us", F.lit(span.start_us))
    active = ownership.join(topics, list(_TOPIC)).select(
        *_TOPIC,
        F.coalesce("consumer_name", F.lit("")).alias("consumer_name"),
        F.greatest(until - since, F.lit(0)).alias("active_us"),
    )
    members = events.where("kind IN ('consumer_added', 'consumer_removed')").join(
        F.broadcast(topics.select(*_TOPIC)), list(_TOPIC)
    )
    connection = [*_TOPIC, "incarnation", "consumer"]
    gone = members.where(f"kind = 'consumer_removed' AND t_us < {span.start_us}").select(*connection)
    connected = (
        members.where(f"kind = 'consumer_added' AND t_us < {span.end_us}")
        .join(gone, connection, "left_anti")
        .select(*_TOPIC, F.coalesce("name", F.lit("")).alias("consumer_name"), F.lit(0).alias("active_us"))
    )
    return (
        active.unionByName(connected)
        .groupBy(*_TOPIC, "consumer_name")
        .agg(F.sum("active_us").cast("long").alias("active_us"))
    )


def any_failover(states: DataFrame) -> bool:
    """Whether there is a Failover topic at all; most intervals of most clusters are done with that."""
    return not states.where("subscription_type = 'Failover'").isEmpty()


def found(times: DataFrame, span: Interval, limits: LimitRules) -> pa.Table:
    """Rows of ``anomalies`` for the subscriptions whose active topics are spread unevenly.

    A rule of limits holds for the topics that it matches; topics with other limits are judged apart.
    """
    by_limits: dict[Limits, list[ActiveTime]] = {}
    for row in times.sort(*_TOPIC, "consumer_name").toArrow().to_pylist():
        mine = limits.limits_for(row["topic"], row["subscription"])
        by_limits.setdefault(mine, []).append(ActiveTime(**row))
    rows = [
        {**one, "interval_start": span.start, "incarnation": 0}
        for mine, group in by_limits.items()
        for one in failover_imbalances(group, mine)
    ]
    return pa.Table.from_pylist(rows, schema=ANOMALIES)


def publish(
    spark: SparkSession, warehouse: Path, span: Interval, rows: pa.Table, staging: Path
) -> int | None:
    """Make ``rows`` the interval's anomalies of ``KINDS``, beside those of the replay; returns how many it holds then.

    ``None``: there are none and there were none, nothing was written. Doing it again changes nothing.
    """
    if not rows.num_rows and not _has_kinds(warehouse, span):
        return None
    kept = (
        tables.read(spark, warehouse, "anomalies")
        .where(tables.in_interval(span))
        .where(~F.col("kind").isin(*KINDS))
    )
    both = kept.unionByName(spark.createDataFrame(rows.to_pylist(), tables.spark_schema(ANOMALIES)))
    staged: list[StagedFile] = tables.stage(both, "anomalies", staging)
    return replace_interval(warehouse, "anomalies", span, staged)


def _has_kinds(warehouse: Path, span: Interval) -> bool:
    files = data_files(warehouse, "anomalies", span)
    if not files:
        return False
    kinds: Any = ds.dataset(files, format="parquet").scanner(columns=["kind"])
    return any(
        pc.any(pc.is_in(batch["kind"], value_set=pa.array(KINDS))).as_py() for batch in kinds.to_batches()
    )
