"""Balance and waits against the same figures counted naively in Python."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from spark_jobs.aggregates.aggregate_interval import aggregate, balance, by_key, waits
from spark_jobs.aggregates.entry_waits import (
    first_waits,
    never_delivered,
    sent_earlier,
    sent_words,
    wait_buckets,
)
from spark_jobs.aggregates.load_findings import fair_loads
from spark_jobs.aggregates.log_numbers import log_numbers
from spark_jobs.intervals import interval
from spark_jobs.warehouse.contracts import stored_schema
from spark_jobs.warehouse.delta_tables import read_table
from spark_jobs.warehouse.spark_tables import spark_schema
from tests.spark_jobs.conftest import empty_row, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark_jobs.conftest import Home

pytestmark = pytest.mark.spark

DAY = interval("2026-11-21")
T0 = DAY.start_us


def test_balance_counts_what_was_delivered(sample: Home) -> None:
    entries: defaultdict[tuple[str, str], int] = defaultdict(int)
    size_bytes: defaultdict[tuple[str, str], int] = defaultdict(int)
    keys: defaultdict[tuple[str, str], set[object]] = defaultdict(set)
    for row in read_table(sample.warehouse, "deliveries").to_pylist():
        who = row["topic"], row["consumer_name"]
        entries[who] += 1
        size_bytes[who] += row["size_bytes"]
        keys[who].add(row["key"])
    # Hashes are owned under Key_Shared, and known where the release's rule was replayed.
    owned = {
        row["topic"]
        for row in read_table(sample.warehouse, "ownership").to_pylist()
        if "failover" not in row["topic"]
    }
    found = read_table(sample.warehouse, "balance").to_pylist()
    assert len(found) == sample.summaries["aggregates"]["rows"]["balance"]
    by_name = {(row["topic"], row["consumer_name"]): row for row in found}
    for who, count in entries.items():
        assert (by_name[who]["entries"], by_name[who]["size_bytes"]) == (count, size_bytes[who]), who
        assert by_name[who]["keys"] == len(keys[who] - {None}), who
    assert sum(row["entries"] for row in found) == sum(entries.values())
    for topic in {topic for topic, _name in entries}:
        mine = [row for row in found if row["topic"] == topic]
        assert sum(row["message_share"] for row in mine) == pytest.approx(1.0)
        shares = [row["hash_share"] for row in mine]
        if topic in owned:
            assert sum(shares) == pytest.approx(1.0)
        else:
            assert shares == [None] * len(mine)
    assert 0 < len(owned) < 5


def test_waits_are_first_sendings_minus_publish_times(sample: Home) -> None:
    waits: defaultdict[str, list[float]] = defaultdict(list)
    for row in read_table(sample.warehouse, "deliveries").to_pylist():
        if row["delivery_number"] == 1:
            waits[row["topic"]].append((row["t_us"] - row["publish_time_ms"] * 1000) / 1000)
    found = read_table(sample.warehouse, "waits").to_pylist()
    assert {row["topic"]: row["entries"] for row in found} == {
        topic: len(all_) for topic, all_ in waits.items()
    }
    for row in found:
        assert row["wait_ms_max"] == pytest.approx(max(waits[row["topic"]]))
        middle = sorted(waits[row["topic"]])
        half = len(middle) // 2
        median = middle[half] if len(middle) % 2 else (middle[half - 1] + middle[half]) / 2
        assert row["wait_ms_p50"] == pytest.approx(median)
    # The driver of the recordings waited until every entry had been delivered.
    assert {row["never_delivered"] for row in found} == {0}


def test_aggregating_again_changes_nothing(spark: SparkSession, sample: Home) -> None:
    before = {name: read_table(sample.warehouse, name).to_pylist() for name in ("balance", "waits")}
    aggregate(spark, sample.warehouse, DAY)
    after = {name: read_table(sample.warehouse, name).to_pylist() for name in before}
    assert {name: sorted(map(repr, rows)) for name, rows in after.items()} == {
        name: sorted(map(repr, rows)) for name, rows in before.items()
    }


def frame(spark: SparkSession, name: str, *rows: dict[str, object]) -> DataFrame:
    """Rows of a table; what a row leaves out is zero or empty text, or null where it may be."""
    contract = stored_schema(name)
    same = {"interval_start": DAY.start, "cluster": "c", "topic": "t", "subscription": "s", "incarnation": 0}
    return spark.createDataFrame(
        [{**empty_row(contract), **same, **row} for row in rows], spark_schema(contract)
    )


def test_the_hash_share_is_of_the_messages_sent_while_it_was_owned(
    spark: SparkSession, tmp_path: Path
) -> None:
    ranges = ((1, "a", 0, 99, 1, 100), (1, "a", 0, 49, 100, None), (2, "b", 50, 99, 100, None))
    spans = [
        {"consumer": consumer, "consumer_name": name, "range_start": start, "range_end": end}
        | {"from_seq": since, "until_seq": until}
        for consumer, name, start, end, since, until in ranges
    ]
    states = frame(spark, "dispatcher_state", {"subscription_type": "Key_Shared"})
    # Four messages while a was alone, the last of them in the stretch of the log in which b joins, and one after.
    sendings = ((1, 2, "x", 3, False), (3, 99, "x", 1, False), (1, 101, "eA==", 1, True))
    sent = frame(
        spark,
        "deliveries",
        *(
            {"consumer": to, "consumer_name": "a", "seq": seq, "key": key, "num_messages": number}
            | {"size_bytes": 5, "key_b64": coded}
            for to, seq, key, number, coded in sendings
        ),
    )
    made = {"deliveries": sent, "ownership": frame(spark, "ownership", *spans), "dispatcher_state": states}
    (sent,) = tables_of(spark, tmp_path, DAY, made, "deliveries")
    fair = fair_loads(spark, tmp_path, DAY)
    logs = log_numbers(states)
    found = balance(sent, by_key(sent, logs), logs, fair, DAY).collect()
    rows = {row["consumer_name"]: row.asDict() for row in found}
    assert rows["a"]["hash_share"] == pytest.approx((4 + 0.5) / 5)
    assert rows["b"]["hash_share"] == pytest.approx(0.5 / 5)
    measured = {
        name: rows["a"][name] for name in ("connections", "entries", "messages", "size_bytes", "keys")
    }
    assert measured == {"connections": 2, "entries": 3, "messages": 5, "size_bytes": 15, "keys": 2}
    assert (rows["b"]["entries"], rows["b"]["message_share"], rows["b"]["connections"]) == (0, 0.0, 1)


def test_waits_and_missing_entries_are_exact(spark: SparkSession) -> None:
    """Against plain counting, over waits of all sizes and signs and positions at every place of a word."""
    random = Random(5)
    sent: list[dict[str, Any]] = []
    stored: list[dict[str, Any]] = []
    for topic, entries in (("a", 700), ("b", 31), ("c", 1), ("silent", 40)):
        places = [
            (random.choice([1, 2, 7]), random.randrange(-1 if topic == "b" else 0, 500))
            for _ in range(entries)
        ]
        stored += [
            {"topic": topic, "ledger_id": ledger, "entry_id": entry} for ledger, entry in places if entry >= 0
        ]
        for ledger, entry in {} if topic == "silent" else set(places[: entries * 2 // 3 + 1]):
            wait_us = random.choice([-1, 1]) * random.randrange(1 << random.randrange(1, 40))
            one = {"topic": topic, "ledger_id": ledger, "entry_id": entry, "delivery_number": 1}
            published = T0 // 1000 if random.random() < 0.9 or topic == "c" else None
            sent.append({**one, "t_us": T0 + wait_us, "publish_time_ms": published})
            if random.random() < 0.2:
                sent.append({**sent[-1], "delivery_number": 2, "t_us": T0 + (1 << 50)})
    topics = ("a", "b", "c", "silent")
    known: list[dict[str, Any]] = [{"topic": topic, "incarnation": at} for topic in topics for at in (0, 3)]
    states = frame(spark, "dispatcher_state", *known)
    deliveries = frame(spark, "deliveries", *sent)
    held = [
        {"topic": "a", "incarnation": 3, "reason": reason, "message_ms": 40, "needless_ms": 15}
        for reason in ("draining_hash", "no_permits")
    ]
    blocked = frame(spark, "blocked", *held)
    measured = first_waits(deliveries, wait_buckets(deliveries, DAY), DAY)
    # Half of them in an earlier interval, which was not replayed: its log says what was sent.
    here = deliveries.where("entry_id % 2 = 0")
    before = [
        {"topic": row["topic"], "kind": "sent", "positions": [(row["ledger_id"], row["entry_id"])]}
        | {"interval_start": DAY.start - timedelta(days=1)}
        for row in sent
        if row["entry_id"] % 2
    ]
    earlier = sent_earlier(frame(spark, "consumer_events", *before), DAY)
    missing = never_delivered(sent_words(here, earlier), frame(spark, "messages", *stored), states)
    found = waits(measured, missing, states, blocked).collect()
    rows = {(row["topic"], row["incarnation"]): row for row in found}
    assert len(rows) == len(found) == 8
    sums = {who: (row["blocked_message_ms"], row["needless_message_ms"]) for who, row in rows.items()}
    assert sums == dict.fromkeys(rows, (0, 0)) | {("a", 3): (80, 30)}
    for topic in topics:
        mine = [row for row in sent if row["topic"] == topic]
        positions = {(row["ledger_id"], row["entry_id"]) for row in mine}
        all_stored = {(row["ledger_id"], row["entry_id"]) for row in stored if row["topic"] == topic}
        unsent = {one for one in all_stored - positions if not positions or one >= min(positions)}
        assert rows[topic, 3]["never_delivered"] == len(unsent), topic
        assert rows[topic, 0]["never_delivered"] == 0
        first = [row for row in mine if row["delivery_number"] == 1]
        assert rows[topic, 0]["entries"] == len(first)
        measured = [(row["t_us"] - T0) / 1000 for row in first if row["publish_time_ms"] is not None]
        figures = [rows[topic, 0][name] for name in ("wait_ms_p50", "wait_ms_p99", "wait_ms_max")]
        if measured:
            expected = [*np.percentile(measured, [50, 99]).tolist(), max(measured)]
            assert figures == pytest.approx(expected, rel=1e-12), topic
        else:
            assert figures == [None, None, None]
