"""Failover's active topics over all topics of a subscription: PIP-392's case, in the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dispatch_core.audit.limit_rules import LimitRule, LimitRules
from dispatch_core.audit.limits import Limits
from dispatch_core.tables import BALANCE
from spark_jobs.aggregates import by_key
from spark_jobs.intervals import interval
from spark_jobs.tables import spark_schema
from spark_jobs.uneven import active_times, enough_topics, publish, uneven_load, uneven_topics
from spark_jobs.warehouse import read_table, stored_schema

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DAY = interval("2026-11-21")
T0 = DAY.start_us
TOPICS, CONSUMERS = 100, 10


def frame(spark: SparkSession, name: str, rows: list[dict[str, Any]]) -> DataFrame:
    """Rows of a table; what a row leaves out is zero or empty text, or null where it may be."""
    contract = stored_schema(name)
    zeros: dict[str, object] = {"string": "", "bool": False}
    empty = {
        one.name: None if one.nullable else [] if pa.types.is_list(one.type) else zeros.get(str(one.type), 0)
        for one in contract
    }
    same = {"interval_start": DAY.start, "cluster": "c", "subscription": "s", "incarnation": 0}
    return spark.createDataFrame([{**empty, **same, **row} for row in rows], spark_schema(contract))


def topic(number: int) -> str:
    return f"persistent://public/default/t-{number:03}"


def times(spark: SparkSession, active_of: list[int], *, left: int | None = None) -> DataFrame:
    """Topics with ten connected consumers; ``active_of[t]`` is active for topic t; ``left`` had left the day before."""
    ownership = [
        {
            "topic": topic(number),
            "consumer": active,
            "consumer_name": f"w{active}",
            "from_t_us": T0 - 10,
            "range_end": 65_535,
        }
        for number, active in enumerate(active_of)
    ]
    member = {"kind": "consumer_added", "t_us": T0 - 20}
    events = [
        member | {"topic": topic(number), "consumer": one, "name": f"w{one}"}
        for number in range(len(active_of))
        for one in range(CONSUMERS)
    ]
    if left is not None:
        events += [
            {"topic": topic(number), "consumer": left, "kind": "consumer_removed", "t_us": T0 - 1}
            for number in range(len(active_of))
        ]
    states = [
        {"topic": topic(number), "subscription_type": "Failover", "last_t_us": T0 + 100}
        for number in range(len(active_of))
    ]
    states.append({"topic": "keys", "subscription_type": "Key_Shared", "last_t_us": T0 + 100})
    ownership.append({"topic": "keys", "consumer": 1, "consumer_name": "w1", "from_t_us": T0, "range_end": 5})
    made = frame(spark, "dispatcher_state", states)
    assert enough_topics(made, LimitRules())
    assert not enough_topics(made.limit(9), LimitRules())
    return active_times(
        frame(spark, "ownership", ownership), frame(spark, "consumer_events", events), made, DAY
    )


def test_one_consumer_active_for_every_topic_is_found_and_told(spark: SparkSession) -> None:
    measured = times(spark, [0] * TOPICS)
    rows = measured.collect()
    assert len(rows) == TOPICS * CONSUMERS
    assert {(row["consumer_name"] == "w0", row["active_us"]) for row in rows} == {(True, 100), (False, 0)}
    (one,) = uneven_topics(measured, DAY, LimitRules())
    assert one["kind"] == "failover_imbalance"
    assert one["interval_start"] == DAY.start
    assert "w0 is active for 100 of 100 topics" in one["explanation"]
    assert "PIP-392" in one["explanation"]


def test_active_topics_that_are_spread_evenly_are_no_finding(spark: SparkSession) -> None:
    assert uneven_topics(times(spark, [at % CONSUMERS for at in range(TOPICS)]), DAY, LimitRules()) == []


def test_who_left_before_the_interval_is_not_counted(spark: SparkSession) -> None:
    measured = times(spark, [at % (CONSUMERS - 1) for at in range(TOPICS)], left=9)
    assert "w9" not in {row["consumer_name"] for row in measured.collect()}
    assert uneven_topics(measured, DAY, LimitRules()) == []


def test_limits_follow_the_topic(spark: SparkSession) -> None:
    anything = LimitRules((LimitRule("persistent://public/*", "*", Limits(min_topics=1_000)),))
    assert uneven_topics(times(spark, [0] * TOPICS), DAY, anything) == []


def test_publishing_again_changes_nothing_and_keeps_the_replays_findings(
    spark: SparkSession, tmp_path: Path
) -> None:
    from spark_jobs import tables
    from spark_jobs.warehouse import replace_interval

    replayed = frame(spark, "anomalies", [{"topic": "t", "kind": "out_of_order"}] * 3)
    (tmp_path / "first").mkdir()
    replace_interval(tmp_path, "anomalies", DAY, tables.stage(replayed, "anomalies", tmp_path / "first"))
    none: list[dict[str, Any]] = []
    assert publish(spark, tmp_path, DAY, none, tmp_path / "first") is None
    rows = uneven_topics(times(spark, [0] * TOPICS), DAY, LimitRules())

    def kinds(published: list[dict[str, Any]], run: str) -> list[str]:
        (tmp_path / run).mkdir()
        publish(spark, tmp_path, DAY, published, tmp_path / run)
        return sorted(read_table(tmp_path, "anomalies", DAY)["kind"].to_pylist())

    both = ["failover_imbalance", *["out_of_order"] * 3]
    assert kinds(rows, "second") == kinds(rows, "third") == both
    assert kinds(none, "fourth") == both[1:], "what is no longer so goes"


def load(spark: SparkSession, hot: int) -> list[dict[str, Any]]:
    """A thousand keys at three consumers with equal hashes; ``hot`` messages of key 0 besides; small limits."""
    sent = [
        {"topic": "t", "seq": at + 1, "t_us": T0 + at, "consumer": key % 3, "consumer_name": f"w{key % 3}"}
        | {"ledger_id": 5, "entry_id": at, "key": f"k{key}", "key_b64": False, "num_messages": 1, "hash": key}
        for at, key in enumerate([*range(1_000), *[0] * hot])
    ]
    deliveries = frame(spark, "deliveries", sent)
    counts = [sum(row["consumer"] == one for row in sent) for one in range(3)]
    rows = [
        {"topic": "t", "consumer_name": f"w{one}", "messages": count, "keys": 333}
        | {"message_share": count / len(sent), "hash_share": (0.1, 0.45, 0.45)[one]}
        for one, count in enumerate(counts)
    ]
    balance = pa.Table.from_pylist(frame(spark, "balance", rows).toArrow().to_pylist(), schema=BALANCE)
    small = LimitRules((LimitRule("*", "*", Limits(min_messages=1_000, share_ratio=2.0)),))
    return uneven_load(deliveries, deliveries.transform(by_key), balance, small)


def test_load_that_hangs_on_one_key_is_told_with_its_evidence(spark: SparkSession) -> None:
    found = {one["kind"]: one for one in load(spark, 2_000)}
    assert set(found) == {"imbalance", "hot_consumer", "hot_key"}
    key = found["hot_key"]
    assert (key["key"], key["hash"], key["consumers"]) == ("k0", 0, [0])
    assert (key["positions"], key["seqs"], key["t_us"]) == (["5:0", "5:2999"], [1, 3_000], T0 + 2_999)
    assert "key k0 carries 66.7% of 3,000 messages" in key["explanation"]
    assert (
        "w0 got 77.8% of 3,000 messages, 7.8 times its part of the hash space"
        in found["imbalance"]["explanation"]
    )
    assert found["hot_consumer"]["consumers"] == [0]
    assert set(key) == set(stored_schema("anomalies").names)


def test_load_as_the_hashes_are_is_no_finding_but_where_hashes_are_few(spark: SparkSession) -> None:
    # w0 has a tenth of the hashes and a third of the messages: too much for its hashes, not for one of three.
    assert [one["kind"] for one in load(spark, 0)] == ["imbalance"]
