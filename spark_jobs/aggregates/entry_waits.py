"""Waits of entries, and entries never delivered: exact, in plain hash aggregates, for any number of deliveries.

Two things would not scale, and are gone around:

* A percentile over all waits of a group holds as many values in one task as the group has. Waits are counted in *buckets*
  first (1/128 of their size wide), which tells in which buckets the wanted ranks lie; only the waits in these are then
  counted one by one.
* A join of all entries with all deliveries sorts both. Entries of one ledger are folded into *words* of 32 first, a bit for
  each: what is compared then are words.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.intervals import Interval
from spark_jobs.warehouse import spark_tables
from spark_jobs.warehouse.contracts import LOG

#: One incarnation of a dispatcher, and the dispatcher over all of them.
INCARNATION: Final = list(LOG)
SUBSCRIPTION: Final = [name for name in INCARNATION if name != "incarnation"]

_PERCENTILES: Final = {"wait_ms_p50": 0.5, "wait_ms_p99": 0.99}


def wait_buckets(deliveries: DataFrame, span: Interval) -> DataFrame:
    """Per incarnation and bucket of waits: the entries first sent in the interval, and the longest wait of them."""
    return (
        _first(deliveries, span)
        .groupBy(*INCARNATION, "bucket")
        .agg(F.count(F.lit(1)).alias("entries"), F.max("wait_us").alias("longest"))
    )


def _first(deliveries: DataFrame, span: Interval) -> DataFrame:
    """The wait of each entry first sent in the interval, and its bucket."""
    wait_us = F.col("t_us") - F.col("publish_time_ms") * 1000
    return (
        deliveries.where(spark_tables.in_interval(span))
        .where("delivery_number = 1")
        .select(*INCARNATION, wait_us.alias("wait_us"))
        .withColumn(
            "shift", F.greatest(F.floor(F.log2(F.greatest(F.abs("wait_us"), F.lit(1)))) - 7, F.lit(0))
        )
        .withColumn(
            "bucket", F.expr("shift * 128 + shiftright(abs(wait_us), int(shift))") * F.signum("wait_us")
        )
        .select(*INCARNATION, "wait_us", F.col("bucket").cast("long").alias("bucket"))
    )


def first_waits(deliveries: DataFrame, counted: DataFrame, span: Interval) -> DataFrame:
    """Per incarnation, of the entries first sent in the interval: their number, percentiles and maximum of the waits.

    ``counted`` is ``wait_buckets`` of the same deliveries. Percentiles are exact, interpolated between the two nearest
    ranks. Entries whose time of publishing is not known are counted and have no wait.
    """
    totals = counted.groupBy(*INCARNATION).agg(
        F.sum("entries").alias("entries"), F.max("longest").alias("longest")
    )
    ranked = counted.where("bucket IS NOT NULL").withColumns(
        {"known": _over(INCARNATION), "upto": _over(INCARNATION, "bucket")}
    )
    ranks = [rank for name in _PERCENTILES for rank in _ranks(name)]
    wanted = ranked.withColumn("before", F.col("upto") - F.col("entries")).where(
        " OR ".join(f"(before <= {rank} AND {rank} < upto)" for rank in ranks)
    )
    single = (
        _first(deliveries, span)
        .join(F.broadcast(wanted.select(*INCARNATION, "bucket", "before", "known")), [*INCARNATION, "bucket"])
        .groupBy(*INCARNATION, "bucket", "before", "known", "wait_us")
        .agg(F.count(F.lit(1)).alias("entries"))
        .withColumn("upto", F.col("before") + _over([*INCARNATION, "bucket"], "wait_us"))
    )
    found = single.groupBy(*INCARNATION).agg(*(_percentile(name).alias(name) for name in _PERCENTILES))
    return totals.join(found, INCARNATION, "left").select(
        *INCARNATION, "entries", *_PERCENTILES, (F.col("longest") / 1000).alias("wait_ms_max")
    )


def _over(group: list[str], order: str | None = None) -> Any:
    """The sum of ``entries`` in a group, up to this row where there is an order."""
    by = f" ORDER BY {order}" if order else ""
    return F.expr(f"sum(entries) OVER (PARTITION BY {', '.join(group)}{by})")


def _ranks(name: str) -> tuple[str, str]:
    """The two ranks, from 0, between which a percentile lies."""
    place = f"{_PERCENTILES[name]!r}D * (known - 1)"
    return f"floor({place})", f"ceil({place})"


def _percentile(name: str) -> Any:
    below, above = (f"min(CASE WHEN upto > {rank} THEN wait_us END)" for rank in _ranks(name))
    place = f"{_PERCENTILES[name]!r}D * (max(known) - 1)"
    return F.expr(f"({below} + ({place} - floor({place})) * ({above} - {below})) / 1000D")


def sent_earlier(events: DataFrame, span: Interval) -> DataFrame:
    """The positions that were sent in earlier intervals, from their log: the intervals need not have been replayed yet."""
    return (
        events.where(f"NOT ({spark_tables.in_interval(span)})")
        .where("kind = 'sent'")
        .select(*SUBSCRIPTION, F.explode("positions").alias("position"))
        .select(*SUBSCRIPTION, "position.ledger_id", "position.entry_id")
    )


def sent_words(deliveries: DataFrame, earlier: DataFrame) -> DataFrame:
    """Per subscription the positions that any incarnation has sent, as words (``sent``: a bit for each entry).

    ``deliveries`` are of the interval, ``earlier`` is ``sent_earlier``.
    """
    positions = [*SUBSCRIPTION, "ledger_id", "entry_id"]
    both = deliveries.select(*positions).unionByName(earlier.select(*positions))
    return _words(both, SUBSCRIPTION).withColumnRenamed("bits", "sent")


def never_delivered(sent: DataFrame, messages: DataFrame, states: DataFrame) -> DataFrame:
    """Per subscription (column ``never_delivered``): entries that no incarnation has sent, from the first that any has.

    ``sent`` is ``sent_words`` of all deliveries. A position that the message log names twice is one entry. A subscription
    that nothing is missing of has no row.
    """
    lowest = F.expr("word * 32 + bit_count((sent & -sent) - 1)")
    begins = sent.groupBy(*SUBSCRIPTION).agg(
        F.min(F.struct("ledger_id", lowest.alias("entry_id"))).alias("begin")
    )
    stored = _words(messages, ["cluster", "topic"])
    word = F.struct("ledger_id", "word")
    first_word = F.expr("named_struct('ledger_id', begin.ledger_id, 'word', shiftright(begin.entry_id, 5))")
    # Of the word in which the subscription begins, the bits from its first entry on.
    from_begin = F.expr("shiftleft(-1L, int(begin.entry_id & 31))")
    asked = F.when(F.col("begin").isNull() | (word > first_word), F.lit(-1).cast("long")).when(
        word == first_word, from_begin
    )
    missing = F.col("bits").bitwiseAND(F.coalesce(asked, F.lit(0).cast("long")))
    missing = missing.bitwiseAND(F.bitwise_not(F.coalesce("sent", F.lit(0).cast("long"))))
    return (
        states.select(*SUBSCRIPTION)
        .distinct()
        .join(begins, SUBSCRIPTION, "left")
        .join(stored, ["cluster", "topic"])
        .join(sent, [*SUBSCRIPTION, "ledger_id", "word"], "left")
        .groupBy(*SUBSCRIPTION)
        .agg(F.sum(F.bit_count(missing)).cast("long").alias("never_delivered"))
        .where("never_delivered > 0")
    )


def _words(rows: DataFrame, group: list[str]) -> DataFrame:
    """Positions as words: bit n of ``bits`` stands for entry ``word * 32 + n`` of the ledger.

    32, so that no sum or difference of them leaves the range of a signed 64-bit integer.
    """
    return (
        rows.select(
            *group,
            "ledger_id",
            F.shiftright("entry_id", 5).alias("word"),
            F.expr("shiftleft(1L, int(entry_id & 31))").alias("bit"),
        )
        .groupBy(*group, "ledger_id", "word")
        .agg(F.bit_or("bit").alias("bits"))
    )
