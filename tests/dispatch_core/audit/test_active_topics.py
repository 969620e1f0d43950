"""Failover over many topics: a consumer that is active for too many is found, and consumers that have their part are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dispatch_core import tables
from dispatch_core.audit.active_topics import ACTIVE_TIMES, CONNECTED, active_times, failover_imbalances
from dispatch_core.audit.limits import Limits
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.whole_log import WholeAudit, across, audit_whole
from tests.dispatch_core.audit.small_logs import T0_US, added, message, numbered, read, removed, sent, write
from tests.dispatch_core.audit.table_rows import table

HOUR_US = 3_600_000_000


def failover(folder: Path, number: int) -> tuple[DispatcherLog, WholeAudit]:
    """A topic of one partition, with three consumers that leave an hour later."""
    topic = f"persistent://public/default/t-{number}-partition-0"
    leaves = [removed(n) | {"t_us": T0_US + HOUR_US + n} for n in (1, 2, 3)]
    log = read(
        write(
            folder / "a" / f"r{number}",
            [message(0, "k", topic=topic)],
            numbered([*(added(n, f"c{n}") for n in (1, 2, 3)), sent(1, 0), *leaves]),
            topic=topic,
            partition_index=0,
            format="pulsar-consumer-events",
            subscription_type="Failover",
        )
    )
    return log, audit_whole(log)


def test_a_consumer_active_for_every_topic_is_found(tmp_path: Path) -> None:
    """PIP-392: topics of one partition all pick the same place of the list of consumers."""
    audits = [failover(tmp_path, number) for number in range(15)]
    (found,) = across(audits, Limits(min_topics=4))
    assert found["kind"] == "failover_imbalance"
    assert found["topic"] == "persistent://public/default/t-*"
    assert found["explanation"].startswith(
        "c1 is active for 15 of 15 topics of subscription s, an equal part would be 5.0"
    )
    assert "c2 and c3 are active for none" in found["explanation"]
    assert across(audits, Limits(min_topics=16)) == []


def row(topic: str, name: str, active_us: int, connected_us: int = HOUR_US, level: int = 0) -> dict[str, Any]:
    return {"cluster": "c", "topic": topic, "subscription": "s", "consumer_name": name} | {
        "active_us": active_us,
        "connected_us": connected_us,
        "priority_level": level,
    }


def found(rows: list[dict[str, Any]], limits: Limits | None = None) -> list[dict[str, Any]]:
    return failover_imbalances(pa.Table.from_pylist(rows, schema=ACTIVE_TIMES), limits or Limits())


def spread(counts: dict[str, int], beginning: str = "t") -> list[dict[str, Any]]:
    """Topics to which all of these consumers are connected, and which each is active for as many of them as given."""
    active = [name for name, count in counts.items() for _ in range(count)]
    return [
        row(f"{beginning}{topic:03}", name, HOUR_US * (name == of_topic))
        for topic, of_topic in enumerate(active)
        for name in counts
    ]


@pytest.mark.parametrize(
    ("counts", "number"),
    [
        ({"a": 100, "b": 0}, 1),
        ({"a": 100, "b": 0, "c": 0, "d": 0}, 1),
        ({"a": 10, "b": 0, "c": 0, "d": 0}, 1),
        ({"a": 50, "b": 50}, 0),
        ({"a": 10, "b": 9, "c": 0}, 0),  # by chance
        (
            {"a": 4} | {f"c{n}": int(n < 6) for n in range(11)},
            0,
        ),  # by chance: four of ten topics at one of twelve
        ({"a": 40, "b": 30, "c": 30, "d": 0}, 1),
        ({f"c{n}": 10 for n in range(10)}, 0),
        ({"a": 91} | {f"c{n}": 1 for n in range(9)}, 1),
        ({"a": 100}, 0),
        ({"a": 9, "b": 0, "c": 0, "d": 0}, 0),  # few topics
    ],
)
def test_topics_are_counted_per_consumer(counts: dict[str, int], number: int) -> None:
    assert len(found(spread(counts))) == number


def test_consumers_of_other_topics_have_no_part_in_these() -> None:
    """One application has 200 topics and one consumer, another one topic and five: nothing is uneven."""
    alone = [row(f"t{topic:03}", "a", HOUR_US) for topic in range(200)]
    few = [row("u", f"b{n}", HOUR_US * (n == 0)) for n in range(5)]
    assert found(alone + few) == []
    assert found(alone + few + spread({"a": 0, "c": 100}, "v")) != []


def test_a_rolling_restart_under_new_names_is_no_imbalance() -> None:
    """In the middle of the interval four consumers are replaced by four others, as pods of a deployment are."""
    rows = [
        row(f"t{topic:03}", f"{pod}{n}", half * (topic % 4 == n), half)
        for topic in range(100)
        for pod, half in (("old", HOUR_US // 2 + 5), ("new", HOUR_US // 2 - 5))
        for n in range(4)
    ]
    assert found(rows) == []


def test_who_came_late_has_a_small_part() -> None:
    rows = [
        row(f"t{topic:03}", f"c{n}", HOUR_US * (topic % 2 == n)) for topic in range(100) for n in range(2)
    ]
    late = [row(f"t{topic:03}", "late", 0, HOUR_US // 100) for topic in range(100)]
    assert found(rows + late) == []


def test_a_standby_of_lower_priority_waits_as_it_was_asked_to() -> None:
    """Consumers with a lower priority level (a greater number) get topics only when all others are gone."""
    rows = [row(f"t{topic:03}", "a", HOUR_US) for topic in range(100)]
    standby = [row(f"t{topic:03}", "b", 0, level=1) for topic in range(100)]
    assert found(rows + standby) == []
    assert found(rows + [entry | {"priority_level": 0} for entry in standby]) != []


def test_active_times_are_those_inside_the_interval() -> None:
    topics = [{"cluster": "c", "topic": name, "subscription": "s"} for name in ("t", "other")]
    spans = [("a", 0, 30), ("b", 30, 70), ("a", 70, None), ("a", 0, 5)]
    ownership = [
        {**topics[0], "consumer_name": name, "from_t_us": since, "until_t_us": until}
        for name, since, until in spans
    ] + [{**topics[1], "consumer_name": "x", "from_t_us": 0, "until_t_us": None}]
    connections = [("a", 0, None, 1), ("b", 30, 70, None), ("idle", 60, None, 2), ("idle", 10, 30, 0)]
    measured = active_times(
        table(tables.OWNERSHIP, ownership),
        pa.Table.from_pylist(
            [
                {
                    **topics[0],
                    "consumer_name": name,
                    "from_t_us": since,
                    "until_t_us": until,
                    "priority_level": level,
                }
                for name, since, until, level in connections
            ],
            schema=CONNECTED,
        ),
        pa.Table.from_pylist([{**topics[0], "last_t_us": 95}]),
        20,
        90,
    )
    assert measured.schema == ACTIVE_TIMES
    names = ("consumer_name", "active_us", "connected_us", "priority_level")
    assert [tuple(row[name] for name in names) for row in measured.to_pylist()] == [
        ("a", 10 + 20, 70, 1),
        ("b", 40, 40, None),
        ("idle", 0, 30 + 10, 0),
    ]
