"""Rules that a log without a trace shows: real logs keep theirs, and break those of others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import with_overrides
from dispatch_core.replay.replay_log import replay
from tests.dispatch_core.logs_without_trace import recorded, with_line

DAY, NEXT = datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC)

#: One recording per rule: draining hashes (ring, range, sticky), read position, last sent position, Failover.
DRAINING = "recordings/4.2.4/designed-rolling-restart-ch"
CLASSIC = "recordings/4.2.4/designed-rolling-restart-classic-ch"
FAILOVER = "recordings/4.2.4/designed-failover-modulo-p1"
LAST_SENT = "verify/4.0.0-preview.1/random-0024-range-quiet"
RANGE = "verify/4.2.4/random-0000-range-quiet"
STICKY = "verify/4.2.4/designed-sticky-in-order"


def tables_of(log: DispatcherLog) -> dict[str, list[dict[str, Any]]]:
    """Return the result tables of a log, as rows."""
    return {
        name: table.to_pylist() for name, table in replay(log, interval_start=DAY, interval_end=NEXT).items()
    }


def counts(log: DispatcherLog) -> tuple[int, int, int]:
    """Return the numbers of exact, uncertain and divergent deliveries."""
    state = tables_of(log)["dispatcher_state"][0]
    assert state["not_judged_reason"] is None
    assert state["decisions"] == state["exact"] + state["uncertain"] + state["divergent"]
    return state["exact"], state["uncertain"], state["divergent"]


@pytest.mark.parametrize("name", [DRAINING, FAILOVER, LAST_SENT, RANGE, STICKY])
def test_a_broker_keeps_its_own_rule(name: str) -> None:
    exact, uncertain, divergent = counts(recorded(name))
    assert exact > 0
    assert (uncertain, divergent) == (0, 0)


def test_reads_before_a_consumer_joined_are_not_known_without_a_trace() -> None:
    exact, uncertain, divergent = counts(recorded(CLASSIC))
    assert divergent == 0
    assert uncertain < exact / 50
    reasons = {row["reason"] for row in tables_of(recorded(CLASSIC))["divergences"]}
    assert reasons == {"how far was read when the consumer joined is not in the log"}


@pytest.mark.parametrize(
    ("name", "version", "settings", "reason"),
    [
        (DRAINING, None, {"subscriptionKeySharedUseConsistentHashing": False}, "belongs to another consumer"),
        (DRAINING, "4.0.0-preview.1", {}, "joined later"),
        (DRAINING, None, {"subscriptionKeySharedUseClassicPersistentImplementation": True}, "joined later"),
        (
            CLASSIC,
            None,
            {"subscriptionKeySharedUseClassicPersistentImplementation": False},
            "another consumer",
        ),
    ],
)
def test_a_broker_does_not_keep_the_rule_of_another(
    name: str, version: str | None, settings: dict[str, Any], reason: str
) -> None:
    rows = tables_of(with_overrides(recorded(name), version, settings))["divergences"]
    assert any(row["status"] == "divergent" and reason in row["reason"] for row in rows)


@pytest.mark.parametrize("name", [DRAINING, CLASSIC, FAILOVER])
def test_an_entry_sent_to_somebody_else_is_found_at_its_line(name: str) -> None:
    log = recorded(name)
    lines = log.events.to_pylist()
    joins = [
        line["t_us"] for line in lines if line["kind"] in ("consumer_added", "consumer_removed", "redeliver")
    ]
    connected: set[int] = set()
    found: list[int] = []
    for row, line in enumerate(lines):
        if line["kind"] == "consumer_added":
            connected.add(line["consumer"])
        elif line["kind"] == "consumer_removed":
            connected.discard(line["consumer"])
        calm = all(abs(line["t_us"] - t_us) > 100_000 for t_us in joins)
        if line["kind"] == "sent" and calm and len(connected) > 1:
            found = [row, min(connected - {line["consumer"]})]
            break
    row, other = found  # some delivery is far from every membership change
    line = lines[row]
    tampered = tables_of(with_line(log, row, consumer=other))
    differing = [decision for decision in tampered["divergences"] if decision["seq"] == line["seq"]]
    assert {(decision["status"], decision["recorded"]) for decision in differing} == {
        ("divergent", f"consumer {other}")
    }
    assert "divergence" in {finding["kind"] for finding in tampered["anomalies"]}
    judged = {delivery["judgement"] for delivery in tampered["deliveries"] if delivery["seq"] == line["seq"]}
    assert judged == {"divergent"}


def flows_of(log: DispatcherLog, consumer: int) -> list[int]:
    """Rows of the lines in which a consumer asks for messages."""
    lines = log.events.select(["kind", "consumer"]).to_pylist()
    return [at for at, line in enumerate(lines) if line == {"kind": "flow", "consumer": consumer}]


def without_lines(log: DispatcherLog, rows: list[int]) -> DispatcherLog:
    """The log without some lines, numbered anew."""
    lines = [line for at, line in enumerate(log.events.to_pylist()) if at not in rows]
    lines = [line | {"seq": seq} for seq, line in enumerate(lines, start=1)]
    return replace(log, events=pa.Table.from_pylist(lines, schema=log.events.schema))


@pytest.mark.slow
@pytest.mark.parametrize("name", [DRAINING, STICKY, RANGE])
def test_a_consumer_that_asked_for_nothing_is_sent_nothing_whoever_joins_meanwhile(name: str) -> None:
    log = recorded(name)
    lines = log.events.to_pylist()
    for consumer in {line["consumer"] for line in lines if line["kind"] == "sent"}:
        tables = tables_of(without_lines(log, flows_of(log, consumer)))
        sent = [row["judgement"] for row in tables["deliveries"] if row["consumer"] == consumer]
        assert set(sent) == {"divergent"}
        assert "divergence" in {row["kind"] for row in tables["anomalies"]}


@pytest.mark.parametrize(
    ("name", "whose", "late_us", "status"),
    [
        (DRAINING, "own", 20_000, "uncertain"),
        (DRAINING, "own", 200_000, "divergent"),
        (DRAINING, "another's", 20_000, "divergent"),
    ],
)
def test_only_flows_of_its_own_consumer_race_with_a_delivery_without_permits(
    name: str, whose: str, late_us: int, status: str
) -> None:
    log = recorded(name)
    lines = log.events.to_pylist()
    first = next(line for line in lines if line["kind"] == "sent")
    log = without_lines(log, flows_of(log, first["consumer"]))
    lines = log.events.to_pylist()
    row = next(at for at, line in enumerate(lines) if line["kind"] == "sent")
    asker = first["consumer"] if whose == "own" else first["consumer"] + 1
    asks = {"kind": "flow", "consumer": asker, "permits": 1, "t_us": first["t_us"] + late_us}
    lines[row + 1 : row + 1] = [asks]
    lines = [line | {"seq": seq} for seq, line in enumerate(lines, start=1)]
    late = replace(log, events=pa.Table.from_pylist(lines, schema=log.events.schema))
    found = [decision for decision in tables_of(late)["divergences"] if decision["seq"] == row + 1]
    assert {decision["status"] for decision in found} == {status}
    assert {decision["reason"] for decision in found} == {"the consumer has no permits left"}
    assert {decision["racing_seq"] for decision in found} == {row + 2 if status == "uncertain" else None}


def acked_before_sent(log: DispatcherLog, before_us: int, ack_type: str) -> tuple[DispatcherLog, int]:
    """Return a log that ends with an acknowledgement and a delivery of several entries, and the number of its last line.

    It names the first of these entries, as a client does that got it before a reload.
    """
    lines = log.events.to_pylist()
    row = next(at for at, line in enumerate(lines) if at > 20 and len(line["positions"] or ()) > 1)
    assert lines[row]["kind"] == "sent"
    ack = {"kind": "ack", "consumer": lines[row]["consumer"], "ack_type": ack_type}
    ack |= {"positions": lines[row]["positions"][:1], "t_us": lines[row - 1]["t_us"]}
    shift = before_us - (lines[row]["t_us"] - lines[row - 1]["t_us"])
    lines[row:] = [lines[row] | {"t_us": lines[row]["t_us"] + shift}]
    # All before it is acknowledged, so that the cursor passes the entry.
    every = log.messages.select(["ledger_id", "entry_id"]).to_pylist()
    earlier = every[: every.index(ack["positions"][0])]
    before = {"kind": "ack", "consumer": ack["consumer"], "ack_type": "Individual", "positions": earlier}
    lines[row:row] = [before | {"t_us": ack["t_us"]}, ack]
    lines = [line | {"seq": seq} for seq, line in enumerate(lines, start=1)]
    return replace(log, events=pa.Table.from_pylist(lines, schema=log.events.schema)), row + 3


@pytest.mark.parametrize("ack_type", ["Individual", "Cumulative"])
@pytest.mark.parametrize(("before_us", "status"), [(3_000, "uncertain"), (200_000, "divergent")])
def test_an_entry_acknowledged_after_its_read_may_still_be_sent(
    before_us: int, status: str, ack_type: str
) -> None:
    log, seq = acked_before_sent(recorded(FAILOVER), before_us, ack_type)
    (found,) = tables_of(log)["divergences"]
    assert (found["seq"], found["status"]) == (seq, status)
    assert ("it was acknowledged a moment before" in found["reason"]) == (status == "uncertain")


def set_back(log: DispatcherLog, row: int, back_us: int) -> DispatcherLog:
    """The log with a clock that goes back before a line, for good."""
    lines = log.events.to_pylist()
    shift = lines[row]["t_us"] - lines[row - 1]["t_us"] + back_us
    lines[row:] = [line | {"t_us": line["t_us"] - shift} for line in lines[row:]]
    return replace(log, events=pa.Table.from_pylist(lines, schema=log.events.schema))


def sent_too_early(log: DispatcherLog) -> int:
    """Count the findings that a recently joined consumer was sent an entry too early."""
    rows = tables_of(log)["anomalies"]
    return sum(row["kind"] == "divergence" and "joined later" in row["explanation"] for row in rows)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("back_us", [20_000, 3_600_000_000])
@pytest.mark.parametrize("version", ["4.0.0-preview.1", None])
def test_a_recently_joined_consumer_that_did_not_wait_is_found_behind_a_clock_that_went_back(
    version: str | None, back_us: int
) -> None:
    classic = {} if version else {"subscriptionKeySharedUseClassicPersistentImplementation": True}
    log = with_overrides(recorded(DRAINING), version, classic)
    expected = sent_too_early(log)
    assert expected
    assert sent_too_early(set_back(log, 5, back_us)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("back_us", [100_000, 300_000_000])
def test_reads_when_a_consumer_joined_are_not_known_behind_a_clock_that_went_back(back_us: int) -> None:
    log = recorded(CLASSIC)
    joins = [at for at, line in enumerate(log.events.to_pylist()) if line["kind"] == "consumer_added"]
    for row in {1, *(join for join in joins if join)}:
        assert counts(set_back(log, row, back_us))[2] == 0


def test_every_delivery_says_who_should_have_got_it() -> None:
    for delivery in tables_of(recorded(DRAINING))["deliveries"]:
        assert (delivery["judgement"], delivery["expected_consumer"]) == ("exact", delivery["consumer"])


def test_who_owned_what_follows_from_joins_and_leaves() -> None:
    owned = tables_of(recorded(RANGE))["ownership"]
    assert {row["range_start"] for row in owned if row["epoch"] == 1} == {0}
    assert all(row["range_start"] <= row["range_end"] for row in owned)
