"""Findings about balance: consumers and keys that carry too much, and Failover's active topics (PIP-392's case).

Spark sums up; what reaches the driver is a row per consumer and membership change, per hot key, or per topic and
consumer. What is too much is for ``dispatch_core.audit`` to say, in the functions that the command line
calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatch_core.arrays.columns import marked
from dispatch_core.audit.balance import (
    ActiveTime,
    KeyLoad,
    Load,
    Uneven,
    failover_imbalances,
    not_judged,
    uneven,
)
from dispatch_core.audit.catalogue import KINDS as CATALOGUE
from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.audit.sentences.names import NAMELESS
from dispatch_core.tables import ANOMALIES, BALANCE
from spark_jobs.aggregates.hash_share_task import FAIR, LOGS, fair_of_logs
from spark_jobs.aggregates.log_numbers import named, numbered
from spark_jobs.intervals import Interval
from spark_jobs.warehouse import spark_tables
from spark_jobs.warehouse.contracts import LOG, StagedFile
from spark_jobs.warehouse.delta_tables import data_files, replace_interval
from spark_jobs.warehouse.file_rows import file_rows

#: Kinds whose rows this stage adds to those of the replay.
KINDS: Final = ("imbalance", "hot_key", "hot_consumer", "failover_imbalance")

_TOPIC: Final = ("cluster", "topic", "subscription")
#: About so many rows of ownership go into one task; a log is never divided.
_ROWS_OF_A_TASK: Final = 1_000_000


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


def enough_topics(states: DataFrame, limits: LimitRules) -> bool:
    """Tell if there are enough Failover topics to judge; in most intervals of most clusters there are not."""
    least = min(DEFAULT_LIMITS.min_topics, *(rule.limits.min_topics for rule in limits.rules), 1 << 30)
    topics = states.where("subscription_type = 'Failover'").select(*_TOPIC).distinct()
    return topics.limit(max(least, 1)).count() >= least


def uneven_topics(times: DataFrame, span: Interval, limits: LimitRules) -> list[dict[str, Any]]:
    """Rows of ``anomalies`` for the subscriptions whose active topics are spread unevenly.

    A rule of limits holds for the topics that it matches; topics with other limits are judged apart.
    """
    by_limits: dict[Limits, list[ActiveTime]] = {}
    for row in times.sort(*_TOPIC, "consumer_name").toArrow().to_pylist():
        mine = limits.limits_for(row["topic"], row["subscription"])
        by_limits.setdefault(mine, []).append(ActiveTime(**row))
    return [
        {**one, "interval_start": span.start, "incarnation": 0}
        for mine, group in by_limits.items()
        for one in failover_imbalances(group, mine)
    ]


def fair_loads(spark: SparkSession, warehouse: Path, span: Interval) -> pa.Table:
    """``fair.fair_parts`` of all Key_Shared logs of the interval: rows of ``fair_task.FAIR``, one per log and name.

    Failover and Exclusive own no hashes and have no rows. Each log is looked at alone, so nothing is exchanged: many small
    dispatchers own more spans of hashes than they send messages. How many logs a task takes follows from the rows
    alone, not from the machine: sums of fractions differ in their last digits with what they are summed beside.
    """
    states = file_rows(data_files(warehouse, "dispatcher_state", span), [*LOG, "subscription_type"])
    keyed = (rows.filter(pa.array(marked(rows["subscription_type"], "Key_Shared"))) for rows in states)
    logs = sorted({tuple(row.values()) for rows in keyed for row in rows.select(LOG).to_pylist()})
    ownership, deliveries = (data_files(warehouse, name, span) for name in ("ownership", "deliveries"))
    if not logs or not ownership:
        return FAIR.empty_table()
    tasks = min(len(logs), 1 + sum(pq.read_metadata(path).num_rows for path in ownership) // _ROWS_OF_A_TASK)
    partitions = [[logs[at] for at in mine] for mine in np.array_split(np.arange(len(logs)), tasks)]
    dealt = spark.sparkContext.parallelize(partitions, tasks).flatMap(list)
    work = partial(fair_of_logs, ownership=ownership, deliveries=deliveries)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work(batches)

    frame = spark.createDataFrame(dealt, spark_tables.spark_schema(LOGS))
    found: pa.Table = frame.mapInArrow(task, spark_tables.spark_schema(FAIR)).toArrow()
    return found.cast(FAIR)


def uneven_load(
    deliveries: DataFrame,
    keyed: DataFrame,
    logs: DataFrame,
    balance: pa.Table,
    fair: pa.Table,
    limits: LimitRules,
) -> list[dict[str, Any]]:
    """Rows of ``anomalies`` for consumers and keys that carry too much, where there is enough to judge.

    ``deliveries`` are of the interval, ``keyed`` is ``aggregates.by_key`` of them and ``logs``, ``balance`` the rows made
    of both, ``fair`` is ``fair_loads``. What is too much is decided by ``dispatch_core.audit.balance.uneven``.
    """
    judged = {}
    for log, rows in _by_log(balance.to_pylist()).items():
        mine = limits.limits_for(*log[1:3])
        if not_judged(pa.Table.from_pylist(rows, schema=BALANCE), mine) is None:
            judged[log] = (rows, mine)
    if not judged:
        return []
    parts = {(log, row["name"]): row for log, rows in _by_log(fair.to_pylist()).items() for row in rows}
    hottest, keys = _hot_keys(keyed, logs, judged)
    found = []
    for log, (rows, mine) in judged.items():
        loads = []
        for row in rows:
            name = row["consumer_name"]
            part = parts.get((log, name), {"by_hashes": 0.0, "by_number": 0.0})
            hot = hottest.get((log, name), (None, 0))
            loads.append(Load(name, row["messages"], part["by_hashes"], part["by_number"], *hot))
        found += [_row(rows[0], one) for one in uneven(loads, keys.get(log, []), mine)]
    return _with_evidence(deliveries, found)


def _by_log(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda one: [one[name] for name in LOG]):
        groups.setdefault(tuple(row[name] for name in LOG), []).append(row)
    return groups


def _hot_keys(
    keyed: DataFrame,
    logs: DataFrame,
    judged: dict[tuple[Any, ...], tuple[list[dict[str, Any]], Limits]],
) -> tuple[dict[tuple[Any, ...], tuple[str, int]], dict[tuple[Any, ...], list[KeyLoad]]]:
    """By log and consumer name the key that is at least half of what it got; by log the keys that may be too hot."""
    session = keyed.sparkSession
    whose = "cluster string, topic string, subscription string, incarnation long"
    got = [(*log, row["consumer_name"], row["messages"]) for log, (rows, _) in judged.items() for row in rows]
    of_consumers = session.createDataFrame(got, f"{whose}, consumer_name string, got long")
    half = keyed.join(F.broadcast(numbered(of_consumers, logs)), ["log", "consumer_name"])
    half = half.where("2 * messages >= got").transform(named, logs)
    hottest: dict[tuple[Any, ...], tuple[str, int]] = {}
    for row in half.sort(F.desc("messages"), "key", "key_b64").toArrow().to_pylist():
        consumer = tuple(row[name] for name in LOG), row["consumer_name"]
        hottest.setdefault(consumer, (row["key"], row["messages"]))
    most = [
        (*log, limits.hot_key_share * sum(row["messages"] for row in rows))
        for log, (rows, limits) in judged.items()
    ]
    carried = (
        keyed.join(F.broadcast(numbered(session.createDataFrame(most, f"{whose}, most double"), logs)), "log")
        .groupBy("log", "key", "key_b64", "most")
        .agg(F.sum("messages").alias("messages"))
        .where("messages > most")
        .transform(named, logs)
    )
    keys = {
        log: [KeyLoad(row["key"], row["key_b64"], row["messages"]) for row in rows]
        for log, rows in _by_log(carried.toArrow().to_pylist()).items()
    }
    return hottest, keys


def _row(shared: dict[str, Any], found: Uneven) -> dict[str, Any]:
    empty: dict[str, Any] = {one.name: None if one.nullable else [] for one in ANOMALIES}
    identity = {name: shared[name] for name in ("interval_start", *LOG)}
    told = {"kind": found.kind, "severity": CATALOGUE[found.kind].severity, "uncertain": False}
    about = {"key": found.key, "key_b64": found.key_b64, "_consumer": found.consumer_name}
    return empty | identity | told | about | {"explanation": found.explanation}


def name_of_consumer() -> Any:
    """The column ``consumer_name``, as ``sentences.names.names_in`` fills it."""
    return F.coalesce("consumer_name", F.concat(F.lit(f"{NAMELESS} "), F.col("consumer")))


def _with_evidence(deliveries: DataFrame, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first and the last delivery to the consumer, or of the key: one query for all, and none where there is none."""
    if not found:
        return []
    wanted = deliveries.sparkSession.createDataFrame(
        [
            (at, *(one[name] for name in LOG), one["_consumer"], one["key"], one["key_b64"])
            for at, one in enumerate(found)
        ],
        "at long, cluster string, topic string, subscription string, incarnation long, "
        "wanted_consumer string, wanted_key string, wanted_b64 boolean",
    )
    delivery = F.struct("seq", "index_in_send", "t_us", "ledger_id", "entry_id", "hash")
    ends = (
        deliveries.join(F.broadcast(wanted), list(LOG))
        .where(
            (F.col("wanted_key").isNull() & (name_of_consumer() == F.col("wanted_consumer")))
            | ((F.col("key") == F.col("wanted_key")) & (F.col("key_b64") == F.col("wanted_b64")))
        )
        .groupBy("at")
        .agg(
            F.min(delivery).alias("first"),
            F.max(delivery).alias("last"),
            F.sort_array(F.collect_set("consumer")).alias("consumers"),
        )
    )
    for row in ends.toArrow().to_pylist():
        one, both = found[row["at"]], (row["first"], row["last"])
        one["positions"] = list(dict.fromkeys(f"{end['ledger_id']}:{end['entry_id']}" for end in both))
        one["seqs"] = sorted({end["seq"] for end in both})
        one["consumers"], one["t_us"] = row["consumers"], row["last"]["t_us"]
        one["hash"] = row["last"]["hash"] if one["key"] is not None else None
    return [{name: value for name, value in one.items() if name != "_consumer"} for one in found]


def read_staged(staged: list[StagedFile], span: Interval) -> pa.Table:
    """Rows of ``balance`` that are staged and not published yet."""
    parts = [pq.ParquetFile(one.path).read() for one in staged]
    rows = [row | {"interval_start": span.start} for part in parts for row in part.to_pylist()]
    return pa.Table.from_pylist(rows, schema=BALANCE)


def publish(
    spark: SparkSession, warehouse: Path, span: Interval, rows: pa.Table, staging: Path
) -> int | None:
    """Make ``rows`` the interval's anomalies of ``KINDS``, beside those of the replay; returns how many it holds then.

    ``None``: there are none and there were none, nothing was written. Doing it again changes nothing.
    """
    if not rows and not _has_kinds(warehouse, span):
        return None
    kept = spark_tables.read(spark, warehouse, "anomalies", span).where(~F.col("kind").isin(*KINDS))
    both = kept.unionByName(spark.createDataFrame(rows, spark_tables.spark_schema(ANOMALIES)))
    staged: list[StagedFile] = spark_tables.stage(both, "anomalies", staging)
    return replace_interval(warehouse, "anomalies", span, staged)


def _has_kinds(warehouse: Path, span: Interval) -> bool:
    files = data_files(warehouse, "anomalies", span)
    if not files:
        return False
    kinds: Any = ds.dataset(files, format="parquet").scanner(columns=["kind"])
    return any(
        pc.any(pc.is_in(batch["kind"], value_set=pa.array(KINDS))).as_py() for batch in kinds.to_batches()
    )
