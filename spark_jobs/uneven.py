"""Findings about balance: consumers and keys that carry too much, and Failover's active topics (PIP-392's case).

Spark sums up; what reaches the driver is a row per consumer, per hot key, or per topic and consumer. Where the command line
has a whole log in memory (``dispatch_core.audit.balance``) it weighs a consumer's hashes by the messages sent while it had
them; here they are weighted by time, as the table ``balance`` has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatch_core.audit.balance import ActiveTime, failover_imbalances, not_judged
from dispatch_core.audit.catalogue import KINDS as CATALOGUE
from dispatch_core.audit.findings import shown
from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.tables import ANOMALIES, BALANCE
from spark_jobs import tables
from spark_jobs.intervals import Interval
from spark_jobs.warehouse import StagedFile, data_files, replace_interval

#: Kinds whose rows this stage adds to those of the replay.
KINDS: Final = ("imbalance", "hot_key", "hot_consumer", "failover_imbalance")

_TOPIC: Final = ("cluster", "topic", "subscription")
_LOG: Final = (*_TOPIC, "incarnation")


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
    """Whether there are as many Failover topics as are judged; most intervals of most clusters are done with that."""
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


def uneven_load(
    deliveries: DataFrame, keyed: DataFrame, balance: pa.Table, limits: LimitRules
) -> list[dict[str, Any]]:
    """Rows of ``anomalies`` for consumers and keys that carry too much, where there is enough to judge.

    ``deliveries`` are of the interval, ``keyed`` is ``aggregates.by_key`` of them, ``balance`` the rows made of both. What a
    consumer should have is its share of the hash space as the table has it: weighted by time.
    """
    judged = []
    for dispatcher, rows in _by_dispatcher(balance.to_pylist()).items():
        mine = limits.limits_for(*dispatcher[1:3])
        table = pa.Table.from_pylist(rows, schema=BALANCE)
        owned = [row for row in rows if row["hash_share"] is not None]
        if owned and not_judged(table, mine) is None:
            judged.append((rows[0], owned, mine))
    if not judged:
        return []
    heavy = [one for shared, owned, mine in judged for one in _heavy_consumers(shared, owned, mine)]
    heavy += _heavy_keys(keyed, judged)
    return _with_evidence(deliveries, heavy)


def _by_dispatcher(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda one: (*(one[name] for name in _LOG), one["consumer_name"])):
        groups.setdefault(tuple(row[name] for name in _LOG), []).append(row)
    return groups


def _heavy_consumers(
    shared: dict[str, Any], rows: list[dict[str, Any]], limits: Limits
) -> Iterator[dict[str, Any]]:
    whole = sum(row["messages"] for row in rows)
    fair = {
        "imbalance": ("its part of the hash space", lambda row: row["hash_share"]),
        "hot_consumer": ("an equal part", lambda _row: 1 / len(rows)),
    }
    for kind, (means, share_of) in fair.items():
        for row in rows:
            share = share_of(row)
            if share > 0 and row["message_share"] > limits.share_ratio * share:
                text = (
                    f"{shown(row['consumer_name'])} got {row['message_share']:.1%} of {whole:,} messages, "
                    f"{row['message_share'] / share:.1f} times {means} ({share:.1%})"
                )
                if kind == "hot_consumer":
                    text += f"; it owned {row['hash_share']:.1%} of the hash space"
                yield _row(shared, kind, text) | {"_consumer": row["consumer_name"]}


def _heavy_keys(
    keyed: DataFrame, judged: list[tuple[dict[str, Any], list[dict[str, Any]], Limits]]
) -> Iterator[dict[str, Any]]:
    """A key's part of all messages, of every dispatcher that is judged."""
    least = min(mine.hot_key_share for _shared, _owned, mine in judged)
    session = keyed.sparkSession
    wholes = [
        (*(shared[name] for name in _LOG), sum(row["messages"] for row in owned))
        for shared, owned, _ in judged
    ]
    whole = session.createDataFrame(
        wholes, "cluster string, topic string, subscription string, incarnation long, whole long"
    )
    carried = (
        keyed.join(F.broadcast(whole), list(_LOG))
        .groupBy(*_LOG, "key", "key_b64")
        .agg(F.sum("messages").alias("messages"), F.first("whole").alias("whole"))
        .where(F.col("messages") > F.lit(least) * F.col("whole"))
        .sort(*_LOG, "key", "key_b64")
    )
    of = {tuple(shared[name] for name in _LOG): (shared, mine) for shared, _owned, mine in judged}
    for row in carried.toArrow().to_pylist():
        shared, mine = of[tuple(row[name] for name in _LOG)]
        if row["messages"] > mine.hot_key_share * row["whole"]:
            text = (
                f"key {shown(row['key'])} carries {row['messages'] / row['whole']:.1%} of {row['whole']:,} messages: "
                "whoever owns its hash gets at least as much, however the ranges are cut; split the key, or give its "
                "consumer room"
            )
            yield _row(shared, "hot_key", text) | {"key": row["key"], "key_b64": row["key_b64"]}


def _row(shared: dict[str, Any], kind: str, text: str) -> dict[str, Any]:
    empty: dict[str, Any] = {one.name: None if one.nullable else [] for one in ANOMALIES}
    identity = {name: shared[name] for name in ("interval_start", *_LOG)}
    found = {"kind": kind, "severity": CATALOGUE[kind].severity, "key_b64": False, "uncertain": False}
    return empty | identity | found | {"explanation": text}


def _with_evidence(deliveries: DataFrame, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first and the last sending to the consumer, or of the key: one query for all, and none where there is none."""
    if not found:
        return []
    wanted = deliveries.sparkSession.createDataFrame(
        [
            (at, *(one[name] for name in _LOG), one.get("_consumer"), one["key"], one["key_b64"])
            for at, one in enumerate(found)
        ],
        "at long, cluster string, topic string, subscription string, incarnation long, "
        "wanted_consumer string, wanted_key string, wanted_b64 boolean",
    )
    name = F.coalesce("consumer_name", F.concat(F.lit("consumer "), F.col("consumer")))
    sending = F.struct("seq", "index_in_send", "t_us", "ledger_id", "entry_id", "hash")
    ends = (
        deliveries.join(F.broadcast(wanted), list(_LOG))
        .where(
            (F.col("wanted_key").isNull() & (name == F.col("wanted_consumer")))
            | ((F.col("key") == F.col("wanted_key")) & (F.col("key_b64") == F.col("wanted_b64")))
        )
        .groupBy("at")
        .agg(
            F.min(sending).alias("first"),
            F.max(sending).alias("last"),
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
    kept = (
        tables.read(spark, warehouse, "anomalies")
        .where(tables.in_interval(span))
        .where(~F.col("kind").isin(*KINDS))
    )
    both = kept.unionByName(spark.createDataFrame(rows, tables.spark_schema(ANOMALIES)))
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
