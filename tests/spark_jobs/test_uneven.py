"""Failover's active topics over all topics of a subscription: PIP-392's case, in the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dispatch_core.audit.limit_rules import LimitRule, LimitRules
from dispatch_core.audit.limits import Limits
from dispatch_core.tables import ANOMALIES
from spark_jobs.intervals import interval
from spark_jobs.tables import spark_schema
from spark_jobs.uneven import active_times, any_failover, found, publish
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
    assert any_failover(made)
    assert not any_failover(made.where("topic = 'keys'"))
    return active_times(
        frame(spark, "ownership", ownership), frame(spark, "consumer_events", events), made, DAY
    )


def test_one_consumer_active_for_every_topic_is_found_and_told(spark: SparkSession) -> None:
    measured = times(spark, [0] * TOPICS)
    rows = measured.collect()
    assert len(rows) == TOPICS * CONSUMERS
    assert {(row["consumer_name"] == "w0", row["active_us"]) for row in rows} == {(True, 100), (False, 0)}
    (one,) = found(measured, DAY, LimitRules()).to_pylist()
    assert one["kind"] == "failover_imbalance"
    assert one["interval_start"] == DAY.start
    assert "w0 is active for 100 of 100 topics" in one["explanation"]
    assert "PIP-392" in one["explanation"]


def test_active_topics_that_are_spread_evenly_are_no_finding(spark: SparkSession) -> None:
    assert found(times(spark, [at % CONSUMERS for at in range(TOPICS)]), DAY, LimitRules()).num_rows == 0


def test_who_left_before_the_interval_is_not_counted(spark: SparkSession) -> None:
    measured = times(spark, [at % (CONSUMERS - 1) for at in range(TOPICS)], left=9)
    assert "w9" not in {row["consumer_name"] for row in measured.collect()}
    assert found(measured, DAY, LimitRules()).num_rows == 0


def test_limits_follow_the_topic(spark: SparkSession) -> None:
    anything = LimitRules((LimitRule("persistent://public/*", "*", Limits(min_topics=1_000)),))
    assert found(times(spark, [0] * TOPICS), DAY, anything).num_rows == 0


def test_publishing_again_changes_nothing_and_keeps_the_replays_findings(
    spark: SparkSession, tmp_path: Path
) -> None:
    from spark_jobs import tables
    from spark_jobs.warehouse import replace_interval

    replayed = frame(spark, "anomalies", [{"topic": "t", "kind": "out_of_order"}] * 3)
    (tmp_path / "first").mkdir()
    replace_interval(tmp_path, "anomalies", DAY, tables.stage(replayed, "anomalies", tmp_path / "first"))
    none = ANOMALIES.empty_table()
    assert publish(spark, tmp_path, DAY, none, tmp_path / "first") is None
    rows = found(times(spark, [0] * TOPICS), DAY, LimitRules())

    def kinds(published: pa.Table, run: str) -> list[str]:
        (tmp_path / run).mkdir()
        publish(spark, tmp_path, DAY, published, tmp_path / run)
        return sorted(read_table(tmp_path, "anomalies", DAY)["kind"].to_pylist())

    both = ["failover_imbalance", *["out_of_order"] * 3]
    assert kinds(rows, "second") == kinds(rows, "third") == both
    assert kinds(none, "fourth") == both[1:], "what is no longer so goes"
