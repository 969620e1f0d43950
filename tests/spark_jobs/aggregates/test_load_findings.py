"""Failover's active topics over all topics of a subscription: PIP-392's case, in the tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dispatch_core.audit.limit_rules import LimitRule, LimitRules
from dispatch_core.audit.limits import Limits
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.tables import BALANCE
from spark_jobs.aggregates import load_findings as uneven_module
from spark_jobs.aggregates.aggregate_interval import balance, by_key
from spark_jobs.aggregates.load_findings import (
    active_times,
    enough_topics,
    fair_loads,
    publish,
    uneven_load,
    uneven_topics,
)
from spark_jobs.aggregates.log_numbers import log_numbers
from spark_jobs.intervals import interval
from spark_jobs.warehouse.contracts import stored_schema
from spark_jobs.warehouse.delta_tables import read_table
from spark_jobs.warehouse.spark_tables import spark_schema
from tests.dispatch_core.audit.small_logs import added, message, numbered, read, removed, sent, write
from tests.spark_jobs.conftest import empty_row, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dispatch_core.recording.log import DispatcherLog

pytestmark = pytest.mark.spark

DAY = interval("2026-11-21")
T0 = DAY.start_us
TOPICS, CONSUMERS = 100, 10
RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "4.2.4"


def frame(spark: SparkSession, name: str, rows: list[dict[str, Any]]) -> DataFrame:
    """Rows of a table; what a row leaves out is zero or empty text, or null where it may be."""
    contract = stored_schema(name)
    same = {"interval_start": DAY.start, "cluster": "c", "subscription": "s", "incarnation": 0}
    return spark.createDataFrame(
        [{**empty_row(contract), **same, **row} for row in rows], spark_schema(contract)
    )


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
    from spark_jobs.warehouse import spark_tables
    from spark_jobs.warehouse.delta_tables import replace_interval

    replayed = frame(spark, "anomalies", [{"topic": "t", "kind": "out_of_order"}] * 3)
    (tmp_path / "first").mkdir()
    replace_interval(
        tmp_path, "anomalies", DAY, spark_tables.stage(replayed, "anomalies", tmp_path / "first")
    )
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


def load(spark: SparkSession, home: Path, hot: int) -> list[dict[str, Any]]:
    """A thousand keys at three consumers, of which the first has few hashes; ``hot`` messages of key 0 besides."""
    sent = [
        {"topic": "t", "seq": at + 1, "t_us": T0 + at, "consumer": key % 3, "consumer_name": f"w{key % 3}"}
        | {"ledger_id": 5, "entry_id": at, "key": f"k{key}", "key_b64": False, "num_messages": 1, "hash": key}
        for at, key in enumerate([*range(1_000), *[0] * hot])
    ]
    owned = [
        {"topic": "t", "consumer": at, "consumer_name": f"w{at}", "range_start": start, "range_end": end}
        for at, (start, end) in enumerate(((0, 9), (10, 54), (55, 99)))
    ]
    states = frame(spark, "dispatcher_state", [{"topic": "t", "subscription_type": "Key_Shared"}])
    small = LimitRules((LimitRule("*", "*", Limits(min_messages=1_000, share_ratio=2.0)),))
    made = {"deliveries": frame(spark, "deliveries", sent), "ownership": frame(spark, "ownership", owned)}
    (sent,) = tables_of(spark, home, DAY, {**made, "dispatcher_state": states}, "deliveries")
    return judged(home, sent, states, small)


def judged(home: Path, sent: DataFrame, states: DataFrame, limits: LimitRules) -> list[dict[str, Any]]:
    """What the aggregates find in these tables."""
    logs = log_numbers(states)
    keyed = by_key(sent, logs)
    fair = fair_loads(sent.sparkSession, home, DAY)
    rows = balance(sent, keyed, logs, fair, DAY).toArrow().to_pylist()
    return uneven_load(sent, keyed, logs, pa.Table.from_pylist(rows, schema=BALANCE), fair, limits)


def test_load_that_hangs_on_one_key_is_told_with_its_evidence(spark: SparkSession, tmp_path: Path) -> None:
    found = {one["kind"]: one for one in load(spark, tmp_path, 2_000)}
    assert set(found) == {"imbalance", "hot_consumer", "hot_key"}
    key = found["hot_key"]
    assert (key["key"], key["hash"], key["consumers"]) == ("k0", 0, [0])
    assert (key["positions"], key["seqs"], key["t_us"]) == (["5:0", "5:2999"], [1, 3_000], T0 + 2_999)
    assert "key k0 carries 66.7 % of 3,000 messages" in key["explanation"]
    assert found["imbalance"]["explanation"] == (
        "w0 got 77.8 % of 3,000 messages, 7.8 times its part of the hash space (10.0 %); "
        "key k0 alone is 86% of what it got"
    )
    assert found["hot_consumer"]["consumers"] == [0]
    assert set(key) == set(stored_schema("anomalies").names)


def test_load_as_the_hashes_are_is_no_finding_but_where_hashes_are_few(
    spark: SparkSession, tmp_path: Path
) -> None:
    # w0 has a tenth of the hashes and a third of the messages: too much for its hashes, not for one of three.
    assert [one["kind"] for one in load(spark, tmp_path, 0)] == ["imbalance"]


def test_logs_are_told_apart_however_many_tasks_they_are_divided_among(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"t{at}" for at in range(7)]
    sent = [
        {"topic": topic, "seq": seq, "t_us": T0, "consumer": 0, "consumer_name": "w0", "num_messages": 1 + at}
        for at, topic in enumerate(topics)
        for seq in range(1, 30 * at)
    ]
    owned = [
        {"topic": topic, "consumer": who, "consumer_name": f"w{who}", "range_start": 0, "range_end": who + at}
        | {"from_seq": 1 + 3 * who}
        for at, topic in enumerate(topics)
        for who in range(2)
    ]
    states = frame(
        spark, "dispatcher_state", [{"topic": t, "subscription_type": "Key_Shared"} for t in topics]
    )
    made = {"deliveries": frame(spark, "deliveries", sent), "ownership": frame(spark, "ownership", owned)}
    tables_of(spark, tmp_path, DAY, {**made, "dispatcher_state": states})
    found = []
    for at_once in (1, 1_000_000):
        monkeypatch.setattr(uneven_module, "_ROWS_OF_A_TASK", at_once)
        found.append(sorted(fair_loads(spark, tmp_path, DAY).to_pylist(), key=repr))
    assert found[0] == [
        row | {"by_hashes": pytest.approx(row["by_hashes"]), "by_number": pytest.approx(row["by_number"])}
        for row in found[1]
    ]
    assert len(found[0]) == 14
    assert {row["topic"] for row in found[0] if not row["by_hashes"]} == {"t0"}


#: Low enough that a small log is judged, and that some of what it holds is too much.
LOW = Limits(min_messages=20, min_keys_per_consumer=1, share_ratio=1.1, hot_key_share=0.02)


def made_up(folder: Path) -> DispatcherLog:
    """One consumer is alone for a third of the messages, two come, one of them goes and comes back."""
    stored = [message(n, "hot" if n % 3 == 0 else None if n % 7 == 0 else f"k{n}") for n in range(600)]
    events = [
        added(1),
        *(sent(1, n) for n in range(200)),
        *(added(n) for n in (2, 3)),
        *(sent(1 + n % 3, n) for n in range(200, 400)),
        removed(3),
        added(4, "worker-3"),
        *(sent((1, 2, 4)[n % 3], n) for n in range(400, 600)),
        # by time this outweighs all the rest
        {**removed(2), "t_us": 1_795_900_000_000_000},
    ]
    return read(write(folder / "a" / "b", stored, numbered(events), format="pulsar-consumer-events"))


@pytest.mark.parametrize("name", [*sorted(one.name for one in RECORDINGS.iterdir()), "made up"])
def test_command_line_and_pipeline_find_the_same(spark: SparkSession, tmp_path: Path, name: str) -> None:
    if name == "made up":
        log = made_up(tmp_path)
    else:
        (log,) = read_recording(find_recordings([str(RECORDINGS / name)])[0]).logs
    audit = audit_whole(log, limits=LOW)
    made = {
        table: spark.createDataFrame(rows.to_pylist(), spark_schema(rows.schema))
        for table, rows in (
            ("deliveries", audit.deliveries),
            ("ownership", audit.ownership),
            ("dispatcher_state", audit.state),
        )
    }
    home = tmp_path / "tables"
    (sent,) = tables_of(spark, home, DAY, made, "deliveries")
    fair = fair_loads(spark, home, DAY)
    logs = log_numbers(made["dispatcher_state"])
    shares = balance(sent, by_key(sent, logs), logs, fair, DAY).toArrow().to_pylist()
    assert {row["consumer_name"]: row["hash_share"] for row in shares} == {
        row["consumer_name"]: None if row["hash_share"] is None else pytest.approx(row["hash_share"])
        for row in audit.balance.to_pylist()
        if row["messages"] or row["hash_share"] is not None
    }
    rules = LimitRules((LimitRule("*", "*", LOW),))
    piped = judged(home, sent, made["dispatcher_state"], rules)
    kinds = {"imbalance", "hot_consumer", "hot_key"}
    told = [row for row in audit.anomalies.to_pylist() if row["kind"] in kinds]
    assert sorted(map(_plain, piped)) == sorted(map(_plain, told))
    assert told or "failover" in name


def _plain(row: dict[str, Any]) -> str:
    return repr({name: row[name] for name in sorted(row) if name != "interval_start"})
