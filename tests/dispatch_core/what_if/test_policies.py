"""Policies of a log that are simulated, and the sentence about those that are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.what_if.advise import Advice, Change, Tried
from dispatch_core.what_if.advise_text import for_page
from dispatch_core.what_if.compare import NO_VIOLATION, Row, rows_of
from dispatch_core.what_if.policies import cursor_moves, not_simulated, unacked_limits
from dispatch_core.what_if.recorded import load_of
from dispatch_core.what_if.rules import RECORDED, RuleSet, named
from dispatch_core.what_if.run import deliveries_of, simulate
from dispatch_core.what_if.tell import as_json, for_people
from dispatch_core.what_if.upgrade_risk import risk
from tests.dispatch_core.audit.small_logs import T0_US, added, flow, message, numbered, read, sent, write

DATA = Path(__file__).resolve().parents[2] / "data"


def said_of(found: str | None) -> str | None:
    """Return the sentence about what a log has, with its effect."""
    if found is None:
        return None
    return f"the simulation lacks {found}"


def recorded(name: str) -> DispatcherLog:
    (source,) = find_recordings([DATA / name])
    (log,) = read_recording(source).logs
    return log


def small_log(folder: Path, *lines: dict[str, Any], kind: str = "Key_Shared", **fields: Any) -> DispatcherLog:
    """Make a log of a consumer with permits, these lines behind it, and one entry with these fields."""
    config = fields.pop("config", {})
    events = numbered([added(1), flow(1), *lines, sent(1, 0)])
    published = [message(0, "k", **fields)]
    return read(write(folder / "a" / "b", published, events, subscription_type=kind, config=config))


def limit(what: str, value: int | None = None, *, active: bool = True) -> dict[str, Any]:
    return {"kind": "limit", "what": what, "value": value, "active": active}


@pytest.mark.parametrize(
    ("recording", "moves"),
    [
        ("operations/4.0.0/ops-0000-skip-ch", True),
        ("operations/4.2.4/legal-0000-delayed-ch", False),  # the reset that opens its cursor
        ("operations/4.2.4/legal-0011-rate-failover", False),
        ("recordings/4.2.4/designed-rolling-restart-ch", False),
        ("recordings/4.2.4/designed-failover-modulo-p1", False),
    ],
)
def test_a_log_whose_cursor_is_moved_is_like_no_recording_that_was_measured(
    recording: str, moves: bool
) -> None:
    log = recorded(recording)
    assert (cursor_moves(log) > 0) == moves
    (row,) = rows_of(log, [RECORDED], seeds=[0])
    assert ("moves of the cursor" in (row.not_measured or "")) == moves


@pytest.mark.parametrize(
    ("recording", "said"),
    [
        ("legal-0000-delayed-ch", "delayed delivery of 20 entries; waits come out too short"),
        ("legal-0011-rate-failover", "a dispatch rate; waits come out too short"),
        ("legal-0002-unacked-policy-ch", None),
        ("legal-0008-unsubscribed-shared", "a deletion of the subscription"),
    ],
)
def test_what_real_logs_have_and_a_simulation_lacks(recording: str, said: str | None) -> None:
    log = recorded(f"operations/4.2.4/{recording}")
    assert not_simulated(log, log) == said_of(said)


@pytest.mark.parametrize(
    ("lines", "fields", "said"),
    [
        ([], {}, None),
        ([limit("dispatch_rate", 15)], {}, "a dispatch rate; waits come out too short"),
        ([limit("dispatch_rate", 15, active=False)], {}, None),
        ([limit("unacked_topic", 8)], {}, None),
        ([limit("of a later format")], {}, None),
        ([limit("entry_filter")], {}, "an entry filter"),
        (
            [limit("delayed_delivery"), limit("replicated_subscription")],
            {},
            "delayed delivery and a replicated subscription; waits come out too short",
        ),
        ([{"kind": "step", "note": "compaction"}], {}, "a compacted read"),
        ([{"kind": "subscription_deleted"}], {}, "a deletion of the subscription"),
        (
            [{"kind": "cursor_moved", "by": "seek", "to": "5:-1"}],
            {},
            "moves of the cursor (skip, clear, expiry, reset, seek)",
        ),
        ([], {"txn": "(1,7)"}, "transactions"),
        ([], {"deliver_at_ms": T0_US // 1000}, None),
        (
            [],
            {"deliver_at_ms": T0_US // 1000 + 1},
            "delayed delivery of 1 entry; waits come out too short",
        ),
        (
            [],
            {"deliver_at_ms": T0_US // 1000 + 1, "config": {"delayedDeliveryEnabled": "false"}},
            None,
        ),
        (
            [],
            {"config": {"dispatchThrottlingRatePerTopicInMsg": 100}},
            "a dispatch rate; waits come out too short",
        ),
        ([], {"config": {"dispatchThrottlingRatePerTopicInMsg": -1}}, None),
    ],
)
def test_each_thing_that_is_not_simulated(
    lines: list[dict[str, Any]], fields: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    log = small_log(tmp_path, *lines, **fields)
    assert not_simulated(log, log) == said_of(said)


def test_a_dispatch_rate_of_the_other_rules_is_not_simulated_either(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    rate = RuleSet("rate", settings={"dispatchThrottlingRatePerTopicInMsg": 10})
    recorded_rules, limited = rows_of(log, [RECORDED, rate], seeds=[0])
    assert recorded_rules.not_measured is None
    assert limited.not_measured == "the simulation lacks a dispatch rate; waits come out too short"


def test_delivery_times_count_only_where_a_type_delays(tmp_path: Path) -> None:
    """A Failover subscription does not delay; the same load under Key_Shared would."""
    log = small_log(tmp_path, kind="Failover", deliver_at_ms=T0_US // 1000 + 5_000)
    assert not_simulated(log, log) is None
    as_failover, as_key_shared = rows_of(log, [RECORDED, named("ch")], seeds=[0])
    assert as_failover.not_measured is None
    assert (as_key_shared.not_measured or "").startswith("the simulation lacks delayed delivery of 1 entry")


def test_every_answer_says_so_once(tmp_path: Path) -> None:
    """In the text, the JSON, a line of upgrade-risk and the advice of a page."""
    log = small_log(tmp_path, limit("dispatch_rate", 15))
    said = "the simulation lacks a dispatch rate; waits come out too short"
    (row,) = rows_of(log, [named("range")], seeds=[0])
    assert row.warnings.count(said) == 1
    assert for_people([row]).count(said) == 1
    assert said in as_json(row)["warnings"]
    assert as_json(row)["confidence"]["not_measured"] == said
    assert sum(said in text for text in risk([row]).as_json()["not_judged"]) == 1
    assert for_page([_advice(row)], "command").sentence.count(said) == 1


def _advice(row: Row) -> Advice:
    assert row.recorded is not None
    broken = replace(row.recorded, out_of_order=1)
    tried = Tried(Change("setting", "set range", named("range")), replace(row, recorded=broken), None)
    return Advice("", "c", "t", "s", 0, broken, NO_VIOLATION, prevents=(tried,))


def test_a_shared_subscription_says_so_beside_its_order(tmp_path: Path) -> None:
    log = small_log(tmp_path, limit("dispatch_rate", 15), kind="Shared")
    (row,) = rows_of(log, [RECORDED], seeds=[0])
    assert "the simulation lacks a dispatch rate; waits come out too short" in for_people([row])


def test_limits_of_unacknowledged_messages_by_time(tmp_path: Path) -> None:
    """A topic's limit counts before a namespace's; other limits change nothing."""
    lines = [
        limit("unacked_namespace", 8),
        limit("unacked_topic", 5),
        limit("dispatch_rate", 1),
        limit("unacked_topic", active=False),
        limit("unacked_namespace", active=False),
    ]
    log = small_log(tmp_path, *lines)
    assert [(limit.from_us, limit.messages) for limit in unacked_limits(log)] == [
        (T0_US + 3_000_000, 8), (T0_US + 4_000_000, 5), (T0_US + 6_000_000, 8), (T0_US + 7_000_000, None),
    ]  # fmt: skip


def test_a_limit_of_unacknowledged_messages_by_a_policy_is_simulated() -> None:
    """A policy of 8 messages lets entries wait 2 s in the recording, and in its simulation; without it they do not."""
    log = recorded("operations/4.2.4/legal-0002-unacked-policy-ch")
    (row,) = rows_of(log, [RECORDED], seeds=[0])
    assert row.recorded is not None
    assert row.simulated is not None
    before, after = row.recorded.wait_ms.p99, row.simulated.wait_ms.p99
    assert before is not None
    assert after is not None
    assert 2_000 < before == pytest.approx(after, rel=0.05)
    assert row.not_measured is None
    load = load_of(log)
    assert load.profile is not None
    unlimited = replace(load, unacked_limits=())
    with_it, without = (
        simulate(some, load.profile, deliveries=deliveries_of(some)).events for some in (load, unlimited)
    )
    assert last_first_sent_us(without) < last_first_sent_us(with_it) - 500_000


def last_first_sent_us(events: pa.Table) -> int:
    """Return the median time of ``sent`` lines."""
    times = sorted(row["t_us"] for row in events.to_pylist() if row["kind"] == "sent")
    return int(times[len(times) // 2])
