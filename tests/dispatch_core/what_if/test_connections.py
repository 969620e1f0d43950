"""Connections that the recorded broker refused are no consumers of a simulation, whatever the simulated rules are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.what_if.compare import Row, rows_of
from dispatch_core.what_if.recorded import load_of
from dispatch_core.what_if.rules import RECORDED, RuleSet, named
from dispatch_core.what_if.run import simulate
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    added,
    flow,
    message,
    numbered,
    read,
    removed,
    sent,
    write,
)

ENTRIES = 40
STICKY = {"mode": "STICKY", "allow_out_of_order": False}


def log_of(
    folder: Path, lines: list[dict[str, Any]], kind: str = "Exclusive", **header: Any
) -> DispatcherLog:
    """Make a log of these lines, 1 ms apart, of entries with a key each, and of some more permits 1 s later."""
    events = numbered(line | {"t_us": T0_US + at * 1000} for at, line in enumerate(lines))
    end = {"seq": len(events) + 1, "t_us": T0_US + 1_000_000}
    published = [message(at, f"key-{at}", publish_time_ms=T0_US // 1000 + 10) for at in range(ENTRIES)]
    return read(
        write(folder / "a" / "b", published, [*events, flow(1, 1) | end], subscription_type=kind, **header)
    )


def first_and(*others: dict[str, Any]) -> list[dict[str, Any]]:
    return [added(1), flow(1, 1000), *others, sent(1, 0)]


def left_out(row: Row) -> list[str]:
    return [text for text in row.warnings if "refused by the recorded broker" in text]


def test_a_second_consumer_of_an_exclusive_subscription_is_no_member_of_a_shared_one(tmp_path: Path) -> None:
    """Without permits it would own half of the hashes, and nobody would be sent their entries."""
    log = log_of(tmp_path, first_and(added(2)))
    load = load_of(log)
    assert ([join.number for join in load.joins], [join.number for join in load.refused]) == ([1], [2])
    recorded, consistent = rows_of(log, [RECORDED, named("ch")], seeds=[0])
    assert recorded.simulated is not None
    assert consistent.simulated is not None
    assert (recorded.simulated.never_sent, consistent.simulated.never_sent) == (0, 0)
    assert left_out(recorded) == []
    (said,) = left_out(consistent)
    assert said.startswith("worker-2: ")
    assert "none of the permits" in said
    assert any(text.startswith("worker-2: the recorded broker refused") for text in consistent.assumptions)


def test_a_consumer_that_was_added_by_hand_gets_its_part(tmp_path: Path) -> None:
    """``--client consumers=N`` adds consumers that answer like recorded ones, so nothing is left unsent either."""
    log = log_of(tmp_path, first_and(added(2)))
    rules = named("ch")
    (row,) = rows_of(log, [replace(rules, clients=replace(rules.clients, consumers=2))], seeds=[0])
    assert row.simulated is not None
    assert row.simulated.never_sent == 0
    assert sorted(row.simulated.messages_of) == ["worker-1", "worker-1+1"]


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        pytest.param([removed(1), added(2)], [1, 2], id="after the first left"),
        pytest.param([added(2), flow(2), removed(1)], [1, 2], id="it was granted permits"),
        pytest.param([added(2), removed(1), added(3)], [1, 3], id="refused, then another"),
    ],
)
def test_who_was_accepted_by_an_exclusive_subscription(
    lines: list[dict[str, Any]], joined: list[int], tmp_path: Path
) -> None:
    load = load_of(log_of(tmp_path, [added(1), flow(1, 1000), *lines]))
    assert [join.number for join in load.joins] == joined


def sticky_log(folder: Path, ranges: dict[int, list[list[int]]]) -> DispatcherLog:
    """Make a log of two STICKY consumers with these ranges, the second without permits."""
    lines = [
        line | {"key_shared": STICKY | {"ranges": ranges[line["consumer"]]}} if "key_shared" in line else line
        for line in first_and(added(2))
    ]
    return log_of(folder, lines, "Key_Shared")


def test_ranges_that_overlap_are_refused_in_the_recording_and_accepted_by_auto_split(tmp_path: Path) -> None:
    log = sticky_log(tmp_path, {1: [[0, 65535]], 2: [[0, 100]]})
    recorded, split = rows_of(log, [RECORDED, named("range")], seeds=[0])
    assert [join.number for join in load_of(log).refused] == [2]
    assert left_out(recorded) == []
    assert split.simulated is not None
    assert (len(left_out(split)), split.simulated.never_sent) == (1, 0)


def test_a_release_that_accepts_what_the_recorded_one_refused_is_not_measured(tmp_path: Path) -> None:
    """Ranges of one consumer that meet are refused since #24730 only."""
    log = sticky_log(tmp_path, {1: [[0, 32767]], 2: [[40000, 50000], [45000, 60000]]})
    recorded, older = rows_of(log, [RECORDED, RuleSet("4.0.0", "4.0.0")], seeds=[0])
    assert (left_out(recorded), recorded.not_measured) == ([], None)
    assert len(left_out(older)) == 1
    assert (
        older.not_measured == "consumers that the recorded broker refused would be accepted, and are left out"
    )


@pytest.mark.parametrize("kind", ["Failover", "Key_Shared", "Shared"])
def test_a_consumer_above_the_limit_of_the_subscription_is_refused(tmp_path: Path, kind: str) -> None:
    """The third consumer of two is refused in the simulation, and takes no part; one that leaves makes room."""
    lines = [
        added(1),
        flow(1, 9),
        added(2),
        flow(2, 9),
        added(3),
        flow(3, 9),
        removed(1),
        added(4),
        flow(4, 9),
    ]
    log = log_of(tmp_path, lines, kind)
    for limit, members in (("2", {1, 2, 4}), ("0", {1, 2, 3, 4})):
        profile = RuleSet("limit", settings={"maxConsumersPerSubscription": limit}).profile_for(log)
        simulated = simulate(load_of(log), profile).events
        joined = simulated.filter(pc.equal(simulated["kind"], "consumer_added"))["consumer"].to_pylist()
        assert set(joined) == members


def test_a_recorded_limit_leaves_out_what_it_refused(tmp_path: Path) -> None:
    """A connection without permits above the recorded limit never was a consumer, so other rules have none of it."""
    for kind in ("Key_Shared", "Shared"):
        lines = [added(1), flow(1, 1000), added(2), sent(1, 0)]
        log = log_of(tmp_path / kind, lines, kind, config={"maxConsumersPerSubscription": 1})
        load = load_of(log)
        assert ([join.number for join in load.joins], [join.number for join in load.refused]) == ([1], [2])
