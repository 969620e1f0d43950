"""Balance and waits in the tables against plain counting, and Failover over all topics of a subscription (PIP-392)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dispatch_core.audit.limit_rules import LimitRule, LimitRules
from dispatch_core.audit.limits import Limits
from spark_jobs.aggregates.aggregate_interval import (
    _has_kinds,
    _publish,
    aggregate,
    enough_topics,
    failover_states,
    times,
    uneven_topics,
)
from spark_jobs.intervals import interval
from spark_jobs.warehouse.contracts import KINDS_OVER_TOPICS, stored_schema
from spark_jobs.warehouse.delta_tables import Publication, read_table, replace_rows
from tests.dispatch_core.audit.table_rows import empty_row

if TYPE_CHECKING:
    from tests.spark_jobs.conftest import Home

pytestmark = pytest.mark.spark

DAY = interval("2026-11-21")
T0 = DAY.start_us
TOPICS, CONSUMERS = 100, 10


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
    assert len(found) == sample.summaries["replay"]["rows"]["balance"]
    by_name = {(row["topic"], row["consumer_name"]): row for row in found}
    for who, count in entries.items():
        assert (by_name[who]["entries"], by_name[who]["size_bytes"]) == (count, size_bytes[who]), who
        assert by_name[who]["keys"] == len(keys[who] - {None}), who
    assert sum(row["entries"] for row in found) == sum(entries.values())
    for topic in {topic for topic, _name in entries}:
        of_topic = [row for row in found if row["topic"] == topic]
        assert sum(row["message_share"] for row in of_topic) == pytest.approx(1.0)
        shares = [row["hash_share"] for row in of_topic]
        if topic in owned:
            assert sum(shares) == pytest.approx(1.0)
        else:
            assert shares == [None] * len(of_topic)
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


def test_aggregating_again_changes_nothing(sample: Home) -> None:
    before = {name: read_table(sample.warehouse, name).to_pylist() for name in ("balance", "waits")}
    aggregate(sample.warehouse, DAY)
    after = {name: read_table(sample.warehouse, name).to_pylist() for name in before}
    assert {name: sorted(map(repr, rows)) for name, rows in after.items()} == {
        name: sorted(map(repr, rows)) for name, rows in before.items()
    }


def table_of(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of a table; what a row leaves out is zero or empty text, or null where it may be."""
    contract = stored_schema(name)
    same = {"interval_start": DAY.start, "cluster": "c", "subscription": "s", "incarnation": 0}
    return pa.Table.from_pylist([{**empty_row(contract), **same, **row} for row in rows], schema=contract)


def topic(number: int) -> str:
    return f"persistent://public/default/t-{number:03}"


def measured_times(active_of: list[int], *, left: int | None = None) -> pa.Table:
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
        member | {"topic": topic(number), "consumer": consumer, "name": f"w{consumer}"}
        for number in range(len(active_of))
        for consumer in range(CONSUMERS)
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
    made = failover_states([table_of("dispatcher_state", states)])
    assert enough_topics(made, LimitRules())
    assert not enough_topics(made.slice(0, 9), LimitRules())
    return times([table_of("ownership", ownership)], [table_of("consumer_events", events)], made, DAY)


def test_one_consumer_active_for_every_topic_is_found_and_told() -> None:
    measured = measured_times([0] * TOPICS)
    rows = measured.to_pylist()
    assert len(rows) == TOPICS * CONSUMERS
    assert {(row["consumer_name"] == "w0", row["active_us"]) for row in rows} == {(True, 100), (False, 0)}
    (finding,) = uneven_topics(measured, DAY, LimitRules())
    assert finding["kind"] == "failover_imbalance"
    assert finding["interval_start"] == DAY.start
    assert "w0 is active for 100 of 100 topics" in finding["explanation"]
    assert "PIP-392" in finding["explanation"]


def test_active_topics_that_are_spread_evenly_are_no_finding() -> None:
    assert uneven_topics(measured_times([at % CONSUMERS for at in range(TOPICS)]), DAY, LimitRules()) == []


def test_who_left_before_the_interval_is_not_counted() -> None:
    measured = measured_times([at % (CONSUMERS - 1) for at in range(TOPICS)], left=9)
    assert "w9" not in {row["consumer_name"] for row in measured.to_pylist()}
    assert uneven_topics(measured, DAY, LimitRules()) == []


def test_limits_follow_the_topic() -> None:
    anything = LimitRules((LimitRule("persistent://public/*", "*", Limits(min_topics=1_000)),))
    assert uneven_topics(measured_times([0] * TOPICS), DAY, anything) == []


def test_publishing_again_changes_nothing_and_keeps_the_replays_findings(tmp_path: Path) -> None:
    replayed = table_of("anomalies", [{"topic": "t", "kind": "out_of_order"}] * 3)
    replace_rows(tmp_path, "anomalies", DAY, replayed)
    assert not _has_kinds(tmp_path, DAY, KINDS_OVER_TOPICS)
    none: list[dict[str, Any]] = []
    rows = uneven_topics(measured_times([0] * TOPICS), DAY, LimitRules())

    def kinds(published: list[dict[str, Any]]) -> list[str]:
        _publish(Publication.begin(tmp_path, DAY, ["anomalies"]), published, KINDS_OVER_TOPICS)
        return sorted(read_table(tmp_path, "anomalies", DAY)["kind"].to_pylist())

    both = ["failover_imbalance", *["out_of_order"] * 3]
    assert kinds(rows) == kinds(rows) == both
    assert _has_kinds(tmp_path, DAY, KINDS_OVER_TOPICS)
    assert kinds(none) == both[1:], "what is no longer so goes"
