"""Balance: totals against plain sums, who carries too much and who only came late."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dispatch_core import tables
from dispatch_core.audit.balance import not_judged
from dispatch_core.audit.limits import Limits
from dispatch_core.replay.interval_totals import with_totals
from dispatch_core.replay.whole_log import WholeAudit, audit_whole
from tests.dispatch_core.audit.small_logs import (
    Event,
    ack,
    added,
    message,
    numbered,
    read,
    removed,
    sent,
    write,
)
from tests.dispatch_core.audit.table_rows import table
from tests.dispatch_core.logs_without_trace import CLASSIC, log_of

#: Low enough that a small log is judged.
SOON = Limits(min_messages=20, min_keys_per_consumer=1)


def whole(folder: Path, messages: list[Event], events: list[Event], limits: Limits = SOON) -> WholeAudit:
    log = read(write(folder, messages, numbered(events), format="pulsar-consumer-events"))
    return audit_whole(log, limits=limits)


def of_kind(audit: WholeAudit, kind: str) -> list[dict[str, Any]]:
    return [row for row in audit.anomalies.to_pylist() if row["kind"] == kind]


def one_by_one(consumer: int, entries: range) -> list[Event]:
    return [event for entry in entries for event in (sent(consumer, entry), ack(consumer, entry))]


def test_totals_are_the_sums_of_the_deliveries() -> None:
    log = log_of(CLASSIC)
    audit = audit_whole(log)
    rows = audit.deliveries.to_pylist()
    assert audit.balance.schema == tables.BALANCE
    total = sum(row["num_messages"] for row in rows)
    for consumer in audit.balance.to_pylist():
        own = [row for row in rows if row["consumer_name"] == consumer["consumer_name"]]
        assert consumer["entries"] == len(own)
        assert consumer["messages"] == sum(row["num_messages"] for row in own)
        assert consumer["size_bytes"] == sum(row["size_bytes"] for row in own)
        assert consumer["keys"] == len({row["key"] for row in own})
        assert consumer["connections"] == len({row["consumer"] for row in own})
        assert consumer["message_share"] == consumer["messages"] / total
    assert sum(consumer["hash_share"] for consumer in audit.balance.to_pylist()) == pytest.approx(1)
    (waits,) = audit.waits.to_pylist()
    first = [row for row in rows if row["delivery_number"] == 1]
    took = sorted((row["t_us"] - row["publish_time_ms"] * 1000) / 1000 for row in first)
    assert (waits["entries"], waits["never_delivered"]) == (len(first), 0)
    assert waits["wait_ms_max"] == pytest.approx(took[-1])
    assert took[len(took) // 2 - 1] <= waits["wait_ms_p50"] <= took[len(took) // 2]


def test_entries_that_were_not_sent_are_counted_from_the_first_that_was(tmp_path: Path) -> None:
    audit = whole(
        tmp_path / "a" / "b",
        [message(n, f"k{n}") for n in range(6)],
        [added(1), *one_by_one(1, range(2, 4)), *one_by_one(1, range(5, 6))],
    )
    assert audit.waits["never_delivered"].to_pylist() == [1]


def test_a_consumer_that_gets_far_more_than_its_hashes_is_found(tmp_path: Path) -> None:
    stored = [message(n, "hot" if n < 90 else f"k{n}") for n in range(100)]
    events = [*(added(n) for n in range(1, 11)), *one_by_one(1, range(100))]
    audit = whole(tmp_path / "a" / "b", stored, events)
    (uneven,) = of_kind(audit, "imbalance")
    assert (uneven["consumers"], uneven["positions"]) == ([1], ["5:0", "5:99"])
    assert "worker-1 got 100.0 % of 100 messages" in uneven["explanation"]
    assert "key hot alone is 90%" in uneven["explanation"]
    (hot,) = of_kind(audit, "hot_consumer")
    assert hot["consumers"] == [1]
    (key,) = of_kind(audit, "hot_key")
    assert (key["key"], key["positions"], key["seqs"]) == ("hot", ["5:0", "5:89"], [11, 189])
    assert "carries 90.0 % of 100 messages" in key["explanation"]


def test_who_was_alone_while_everything_was_sent_is_not_blamed(tmp_path: Path) -> None:
    """By time worker-1 owned a tenth of the hash space; when messages were sent it owned all of it."""
    stored = [message(n, f"k{n}") for n in range(40)]
    later = [{**added(n), "t_us": 1_795_300_000_000_000 + n} for n in range(2, 11)]
    end = [{**removed(1), "t_us": 1_795_900_000_000_000}]
    audit = whole(tmp_path / "a" / "b", stored, [added(1), *one_by_one(1, range(40)), *later, *end])
    share = next(row["hash_share"] for row in audit.balance.to_pylist() if row["consumer_name"] == "worker-1")
    assert share == 1.0
    assert not of_kind(audit, "imbalance")
    assert not of_kind(audit, "hot_consumer")


def test_too_little_is_not_judged(tmp_path: Path) -> None:
    stored = [message(n, "hot") for n in range(30)]
    events = [*(added(n) for n in range(1, 11)), *one_by_one(1, range(30))]
    for limits, why in (
        (Limits(), "30 messages were sent; below 10,000"),
        (Limits(min_messages=30), "1 keys at 10 consumers; below 50 for each"),
    ):
        audit = whole(tmp_path / str(limits.min_messages) / "b", stored, events, limits)
        assert not {row["kind"] for row in audit.anomalies.to_pylist()} & {
            "imbalance",
            "hot_key",
            "hot_consumer",
        }
        assert why in (not_judged(audit.balance, limits) or "")


def test_balance_sums_up_all_connections_of_a_name(tmp_path: Path) -> None:
    """Four messages while ``a`` was alone, the last of them before ``b`` joins, and one after; two connections are ``a``."""
    ranges = ((1, "a", 0, 99, 1, 100), (1, "a", 0, 49, 100, None), (2, "b", 50, 99, 100, None))
    ownership = [
        {"consumer": consumer, "consumer_name": name, "range_start": start, "range_end": end}
        | {"from_seq": since, "until_seq": until}
        for consumer, name, start, end, since, until in ranges
    ]
    deliveries = [
        {"consumer": to, "consumer_name": "a", "seq": seq, "key": key, "num_messages": number}
        | {"size_bytes": 5, "key_b64": coded}
        for to, seq, key, number, coded in (
            (1, 2, "x", 3, False),
            (3, 99, "x", 1, False),
            (1, 101, "eA==", 1, True),
        )
    ]
    log = read(
        write(tmp_path / "a" / "b", [message(0, "x")], numbered([added(1)]), format="pulsar-consumer-events")
    )
    found = {name: schema.empty_table() for name, schema in tables.REPLAY_TABLES.items()}
    found |= {
        "deliveries": table(tables.DELIVERIES, deliveries),
        "ownership": table(tables.OWNERSHIP, ownership),
    }
    totals = with_totals(log, found, datetime(2026, 11, 21, tzinfo=UTC), Limits(), never_delivered=0)
    rows = {row["consumer_name"]: row for row in totals["balance"].to_pylist()}
    assert rows["a"]["hash_share"] == pytest.approx((4 + 0.5) / 5)
    assert rows["b"]["hash_share"] == pytest.approx(0.5 / 5)
    columns = ("connections", "entries", "messages", "size_bytes", "keys")
    assert tuple(rows["a"][name] for name in columns) == (2, 3, 5, 15, 2)
    assert tuple(rows["b"][name] for name in columns) == (1, 0, 0, 0, 0)
