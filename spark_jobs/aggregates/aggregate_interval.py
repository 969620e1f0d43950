"""Aggregates across consumers: ``balance`` and ``waits``, as Spark SQL over what replay published.

Per dispatcher and incarnation; Great Expectations judges these small tables and never sees single deliveries.
Run as ``python -m spark_jobs.aggregates --interval-start 2026-11-21 --warehouse DIR``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.errors import names_disk_errors
from dispatch_core.tables import IDENTITY
from spark_jobs import stage_command
from spark_jobs.aggregates.entry_waits import (
    INCARNATION,
    SUBSCRIPTION,
    first_waits,
    never_delivered,
    sent_earlier,
    sent_words,
    wait_buckets,
)
from spark_jobs.aggregates.load_findings import (
    active_times,
    enough_topics,
    fair_loads,
    name_of_consumer,
    publish,
    read_staged,
    uneven_load,
    uneven_topics,
)
from spark_jobs.aggregates.log_numbers import log_numbers, named, numbered
from spark_jobs.intervals import Interval
from spark_jobs.warehouse import spark_tables
from spark_jobs.warehouse.contracts import LOG
from spark_jobs.warehouse.delta_tables import record_run, replace_interval, stage_run, table_path

DISPATCHER = [one.name for one in IDENTITY]
#: The limits that hold where no policy is given.
NO_RULES = LimitRules()


def by_key(deliveries: DataFrame, logs: DataFrame) -> DataFrame:
    """Messages delivered per log (its number in ``logs``), consumer name and key, redeliveries too."""
    return (
        numbered(deliveries.where("key IS NOT NULL"), logs)
        .select("log", name_of_consumer().alias("consumer_name"), "key", "key_b64", "num_messages")
        .groupBy("log", "consumer_name", "key", "key_b64")
        .agg(F.sum(F.coalesce("num_messages", F.lit(1))).cast("long").alias("messages"))
    )


def balance(
    deliveries: DataFrame, keyed: DataFrame, logs: DataFrame, fair: pa.Table, span: Interval
) -> DataFrame:
    """Compare what each consumer name got in the interval with its share of the hash space.

    ``keyed`` is ``by_key`` of the same deliveries and ``logs``, ``fair`` is ``fair_loads``. ``entries``, ``messages`` and
    ``size_bytes`` count every delivery, redeliveries too; ``keys`` are distinct. A consumer that owned hashes and got
    nothing has a row of zeros. Connections of one name are one consumer: that is what a rolling restart keeps.
    ``message_share`` is of the dispatcher's messages; ``hash_share`` is the share of them that the consumer's hashes stood
    for when they were sent (``audit.hash_share``), null for Failover and Exclusive, and where nothing was sent.
    """
    sent = deliveries.select(
        *DISPATCHER, name_of_consumer().alias("consumer_name"), "consumer", "num_messages", "size_bytes"
    )
    # Sets are gathered from few rows, after the sums: over many groups Spark would sort all rows for them.
    got = (
        sent.groupBy(*DISPATCHER, "consumer_name", "consumer")
        .agg(
            F.count(F.lit(1)).alias("entries"),
            F.sum(F.coalesce("num_messages", F.lit(1))).cast("long").alias("messages"),
            F.sum(F.coalesce("size_bytes", F.lit(0))).alias("size_bytes"),
        )
        .groupBy(*DISPATCHER, "consumer_name")
        .agg(
            F.collect_set("consumer").alias("sent_to"),
            *(F.sum(name).alias(name) for name in ("entries", "messages", "size_bytes")),
        )
    )
    keys = keyed.groupBy("log", "consumer_name").agg(F.count(F.lit(1)).alias("keys")).transform(named, logs)
    parts = (
        deliveries.sparkSession.createDataFrame(fair)
        .withColumnsRenamed({"name": "consumer_name", "by_hashes": "hash_messages"})
        .withColumn("interval_start", F.lit(span.start))
    )
    both = got.join(keys, [*LOG, "consumer_name"], "left").join(parts, [*DISPATCHER, "consumer_name"], "full")
    connections = F.size(F.array_union(F.coalesce("sent_to", _no_ids()), F.coalesce("owned_by", _no_ids())))
    messages, hashes = (
        F.expr(f"sum({name}) OVER (PARTITION BY {', '.join(DISPATCHER)})")
        for name in ("messages", "hash_messages")
    )
    return both.select(
        *DISPATCHER,
        "consumer_name",
        connections.cast("long").alias("connections"),
        *(F.coalesce(name, _none()).alias(name) for name in ("entries", "messages", "size_bytes", "keys")),
        F.coalesce(F.try_divide("messages", messages), F.lit(0.0)).alias("message_share"),
        F.when(hashes > 0, F.coalesce("hash_messages", F.lit(0.0)) / hashes).alias("hash_share"),
    )


def waits(measured: DataFrame, missing: DataFrame, states: DataFrame, blocked: DataFrame) -> DataFrame:
    """Waits from storage to first delivery, for entries first delivered in the interval.

    ``measured`` is ``first_waits`` of the interval; ``missing`` is ``never_delivered`` of the deliveries and messages of all
    intervals up to this one. ``never_delivered`` counts the entries stored by the interval's end that no incarnation has
    sent by then, from the first position that the subscription ever got on (what lies before it may have been read by
    nobody); it stands at the latest incarnation, zero at the others. Whether a rule held them is the audit's to say.
    ``blocked`` is of the interval: what rules held back is summed up.
    """
    held = blocked.groupBy(*DISPATCHER).agg(
        F.sum("message_ms").alias("blocked_message_ms"), F.sum("needless_ms").alias("needless_message_ms")
    )
    latest = F.expr(f"incarnation = max(incarnation) OVER (PARTITION BY {', '.join(SUBSCRIPTION)})")
    return (
        states.select(*DISPATCHER)
        .distinct()
        .withColumn("is_latest", latest)
        .join(measured, INCARNATION, "left")
        .join(missing, SUBSCRIPTION, "left")
        .join(held, DISPATCHER, "left")
        .select(
            *DISPATCHER,
            F.coalesce("entries", _none()).alias("entries"),
            F.when(F.col("is_latest"), F.coalesce("never_delivered", _none()))
            .otherwise(_none())
            .alias("never_delivered"),
            "wait_ms_p50",
            "wait_ms_p99",
            "wait_ms_max",
            *(
                F.coalesce(name, _none()).alias(name)
                for name in ("blocked_message_ms", "needless_message_ms")
            ),
        )
    )


@names_disk_errors("aggregates")
def aggregate(
    spark: SparkSession, warehouse: Path, span: Interval, *, limits: LimitRules = NO_RULES
) -> dict[str, Any]:
    """Replace the interval's rows of ``balance`` and ``waits``, and add what only shows over all topics to ``anomalies``.

    ``limits``: how much is too much, for which topics. Returns a summary with the rows of each.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    with stage_run(warehouse, "aggregates", span, wait=True) as staging:
        events = spark_tables.read_until(spark, warehouse, "consumer_events", span)
        messages = spark_tables.read_until(spark, warehouse, "messages", span)
        states, ownership, blocked, sent = (
            spark_tables.read(spark, warehouse, name, span)
            for name in ("dispatcher_state", "ownership", "blocked", "deliveries")
        )
        # Each of these is asked for several times, and made by passing over all rows.
        logs = log_numbers(states).persist()
        keyed = by_key(sent, logs).persist()
        buckets = wait_buckets(sent, span).persist()
        words = sent_words(sent, sent_earlier(events, span)).persist()
        fair = fair_loads(spark, warehouse, span)
        frames = {
            "balance": balance(sent, keyed, logs, fair, span),
            "waits": waits(
                first_waits(sent, buckets, span), never_delivered(words, messages, states), states, blocked
            ),
        }
        staged = {
            name: spark_tables.stage(frame.coalesce(1), name, staging) for name, frame in frames.items()
        }
        uneven = uneven_load(sent, keyed, logs, read_staged(staged["balance"], span), fair, limits)
        for frame in (keyed, logs, buckets, words):
            frame.unpersist()
        rows = {name: replace_interval(warehouse, name, span, files) for name, files in staged.items()}
        if enough_topics(states, limits):
            uneven += uneven_topics(active_times(ownership, events, states, span), span, limits)
        published = publish(spark, warehouse, span, uneven, staging)
        if published is not None:
            rows["anomalies"] = published
        summary: dict[str, Any] = {
            "stage": "aggregates",
            "interval_start": span.start.isoformat(),
            "limits": limits.digest,
            "rows": rows,
            "seconds": round(time.monotonic() - began, 3),
        }
        record_run(warehouse, "aggregates", span, started_at, summary)
    return summary


def _none() -> Any:
    return F.lit(0).cast("long")


def _no_ids() -> Any:
    return F.array().cast("array<long>")


def main(arguments: Sequence[str] | None = None) -> int:
    """Aggregate one interval; see ``--help``."""
    parser = stage_command.parser(
        "python -m spark_jobs.aggregates",
        "balance and waits of one interval, from what replay wrote",
        limits=True,
    )
    options = parser.parse_args(arguments)

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        return aggregate(spark, options.warehouse, span, limits=options.limits)

    def size_bytes(_span: Interval) -> int:
        folder = table_path(options.warehouse, "deliveries")
        return sum(file.stat().st_size for file in folder.rglob("*.parquet"))

    return stage_command.run(options, work, size_bytes)
