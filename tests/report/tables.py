"""Result tables made by hand, for reports of any size and with any names."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from dispatch_core import tables
from dispatch_core.replay.statistics_tables import Table
from dispatch_core.report.aggregate import ReportData, gather
from dispatch_core.report.flow import Flow
from dispatch_core.report.ring import Change
from dispatch_core.report.statistics import DispatchOverTime, StatisticsShown

#: A name of an attacker: markup of plotly, of a template and of HTML.
HOSTILE = "<script>alert(1)</script>"
HOSTILE_TOPIC = "persistent://public/default/<img src=x onerror=alert(2)>&\"'</script>"
HOSTILE_CONSUMER = "</script><b>%{x}</b><a href='javascript:alert(3)'>w</a>"

START_US = 1_795_248_000_000_000
IDENTITY = {
    "interval_start": datetime(2026, 11, 21, tzinfo=UTC),
    "cluster": "c",
    "topic": "t",
    "subscription": "s",
    "incarnation": 0,
}


def table(name: str, *rows: dict[str, Any]) -> pa.Table:
    """Make rows of a result table; missing values are zero, empty or null."""
    schema = tables.ALL_TABLES[name]
    zeros = {"string": "", "bool": False, "double": 0.0}
    empty = {
        field.name: None
        if field.nullable
        else []
        if pa.types.is_list(field.type)
        else zeros.get(str(field.type), 0)
        for field in schema
    }
    return pa.Table.from_pylist([{**empty, **IDENTITY, **row} for row in rows], schema=schema)


def state(**fields: Any) -> pa.Table:
    given = {"subscription_type": "Key_Shared", "broker_version": "4.2.4", "decisions": 10, "exact": 10}
    return table("dispatcher_state", given | fields)


def finding(**fields: Any) -> dict[str, Any]:
    return {
        "kind": "out_of_order",
        "severity": "critical",
        "key": "k",
        "hash": 7,
        "positions": ["5:31", "5:28"],
        "consumers": [1],
        "seqs": [40, 41],
        "t_us": START_US + 5,
        "explanation": "key k went backwards at w1: it got 5:31 and then 5:28",
    } | fields


def report(
    found: dict[str, pa.Table] | None = None,
    *,
    flow: Flow | None = None,
    changes: tuple[Change, ...] = (),
    seconds: int = 60,
    **more: Any,
) -> ReportData:
    """Make a report of the given tables; the others are empty."""
    span = START_US, START_US + seconds * 1_000_000
    all_tables = {name: table(name) for name in ("ownership", "blocked", "balance", "anomalies")}
    verdicts = [
        {
            "promise": promise,
            "verdict": verdict,
            "reason": "because",
            "findings": 1,
            "tolerated": 0,
            "top_findings": ("one",),
        }
        for promise, verdict in (("all", "FAIL"), ("per_key_order", "FAIL"), ("balance", "PASS"))
    ]
    given = {"title": "t", "subscription": "s", "interval": "a day", "verdicts": verdicts} | more
    return gather(
        all_tables | {"dispatcher_state": state()} | (found or {}),
        span_us=span,
        changes=changes,
        flow=flow or Flow(*span),
        **given,
    )


def hostile_report() -> ReportData:
    """Make tables in which every name is markup."""
    who = {"consumer": 1, "consumer_name": HOSTILE_CONSUMER}
    us = {"from_t_us": START_US, "until_t_us": START_US + 30_000_000}
    key = {"key": HOSTILE, "explanation": f"key {HOSTILE} went backwards at {HOSTILE_CONSUMER}"}
    flow = Flow(START_US, START_US + 60_000_000)
    flow.deliveries(
        pa.table(
            {"t_us": [START_US + 1, START_US + 20_000_000], "delivery_number": pa.array([1, 2], pa.int32())}
        )
    )
    flow.stored(pa.chunked_array([[START_US // 1000]]))
    return report(
        {
            "ownership": table(
                "ownership",
                who | us | {"range_end": 65_535},
                {
                    "consumer": 2,
                    "consumer_name": "5",
                    "from_t_us": START_US + 30_000_000,
                    "range_end": 65_535,
                },
            ),
            "blocked": table(
                "blocked",
                who | us | {"reason": "draining_hash", "message_ms": 40_000, "needless_ms": 5, "hash": 7},
                {"reason": "no_consumer", "from_t_us": START_US, "message_ms": 100},
            ),
            "balance": table(
                "balance",
                {"consumer_name": HOSTILE_CONSUMER, "messages": 3, "entries": 3, "message_share": 0.75},
                {"consumer_name": "5", "messages": 1, "entries": 1, "message_share": 0.25, "hash_share": 1.0},
            ),
            "anomalies": table("anomalies", finding(**key), finding(kind="split_key", uncertain=True)),
        },
        flow=flow,
        changes=(
            Change(START_US, True, HOSTILE_CONSUMER, 1),
            Change(START_US + 30_000_000, False, HOSTILE_CONSUMER, 2),
        ),
        title=HOSTILE_TOPIC,
        subscription=HOSTILE,
        statistics=hostile_statistics(),
    )


def hostile_statistics() -> StatisticsShown:
    """Make statistics in which every name is markup."""
    times = np.array([START_US, START_US + 30_000_000])
    return StatisticsShown(
        facts=(("note", HOSTILE),),
        tables=(Table("consumers", HOSTILE, ("name",), ((HOSTILE_CONSUMER,),), HOSTILE),),
        over_time=DispatchOverTime(
            from_us=START_US,
            step_us=1_000_000,
            consumers=(HOSTILE_CONSUMER, "5"),
            per_second=np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]),
            size_us=times,
            in_replay=np.array([0, 3]),
            draining=np.array([0, 1]),
            has_draining=True,
            until_us=START_US + 60_000_000,
            look_ahead_limit=5,
            moved_us=(),
            moved_keys=(),
        ),
    )


def large_report(deliveries: int = 1_000_000, consumers: int = 20, joins: int = 200) -> ReportData:
    """Make a day of load: a million deliveries, many changes of consistent hashing, more findings than a page lists."""
    random = np.random.default_rng(3)
    seconds = 3_600
    end_us = START_US + seconds * 1_000_000
    flow = Flow(START_US, end_us)
    for _ in range(10):
        t_us = START_US + np.sort(random.integers(0, seconds * 1_000_000, deliveries // 10))
        number = np.where(random.random(t_us.size) < 0.01, 2, 1).astype(np.int32)
        flow.deliveries(pa.table({"t_us": t_us, "delivery_number": number}))
        flow.stored(pa.chunked_array([(t_us[number == 1] - 20_000) // 1000]))
    names = np.array([f"worker-{at}" for at in range(consumers)])
    edges = np.sort(random.choice(np.arange(1, 65_535), 2_000, replace=False))
    low, high = np.r_[0, edges], np.r_[edges - 1, 65_535]
    times = np.linspace(START_US, end_us, joins + 1).astype(np.int64)
    owner = random.integers(0, consumers, low.size)
    parts = []
    for epoch in range(joins):
        moved = random.random(low.size) < 0.02
        owner = np.where(moved, random.integers(0, consumers, low.size), owner)
        parts.append(
            pa.table(
                {
                    "incarnation": np.zeros(low.size, np.int64),
                    "from_t_us": np.full(low.size, times[epoch]),
                    "until_t_us": np.full(low.size, times[epoch + 1]),
                    "consumer": owner.astype(np.int64),
                    "consumer_name": names[owner],
                    "range_start": low,
                    "range_end": high,
                }
            )
        )
    changes = tuple(
        Change(int(t_us), at % 2 == 0, f"worker-{at % consumers}", at) for at, t_us in enumerate(times[:-1])
    )
    findings = pa.Table.from_pylist(
        [
            IDENTITY
            | {"key_b64": False, "cause": None, "reason": None, "uncertain": False}
            | finding(key=f"key-{at}")
            for at in range(11_000)
        ],
        schema=tables.ANOMALIES,
    )
    rare = table("anomalies", finding(kind="redelivered", severity="info", cause="disconnect"))
    return report(
        {
            "ownership": pa.concat_tables(parts),
            "anomalies": pa.concat_tables([findings, rare]),
            "balance": table(
                "balance",
                *(
                    {"consumer_name": name, "messages": 50 + at, "message_share": 0.05, "hash_share": 0.05}
                    for at, name in enumerate(names.tolist())
                ),
            ),
            "blocked": table(
                "blocked",
                *(
                    {
                        "consumer": at % consumers,
                        "consumer_name": f"worker-{at % consumers}",
                        "reason": ("draining_hash", "no_permits", "replay_order")[at % 3],
                        "message_ms": at,
                        "from_t_us": START_US + at,
                        "until_t_us": START_US + 2 * at,
                    }
                    for at in range(1, 5_001)
                ),
            ),
        },
        flow=flow,
        changes=changes,
        seconds=seconds,
    )
