"""A simulated Shared dispatcher: consumers take turns, by priority, and everything is acknowledged once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from dispatch_core.broker.round_robin import TurnRule
from dispatch_core.broker.shared import turn_rule
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.simulation.scenario import ScenarioError
from tests.dispatch_core.simulation.simulated import simulated, small

RELEASES = ("4.2.4", "4.0.0", "3.0.17")
CLASSIC = {"subscriptionSharedUseClassicPersistentImplementation": True}
FORBIDDEN = ("duplicate_after_ack", "double_outstanding", "lost_unacked")


def shared(folder: Path, **wanted: Any) -> DispatcherLog:
    return simulated(folder, subscription_type="Shared", **wanted)


def lines(log: DispatcherLog, kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = log.events.filter(
        pc.equal(log.events["kind"].cast("string"), kind)
    ).to_pylist()
    return rows


def delivered(log: DispatcherLog) -> Counter[int]:
    """Count the entries that each consumer was sent."""
    count: Counter[int] = Counter()
    for row in lines(log, "sent"):
        count[row["consumer"]] += len(row["positions"])
    return count


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("churn", ["none", "rolling-restart", "random"])
def test_every_entry_is_acknowledged_and_none_is_sent_twice_without_a_cause(
    tmp_path: Path, version: str, churn: str
) -> None:
    log = shared(tmp_path, broker_version=version, churn=churn, nack_share=0.05, seed=len(churn))
    acked = {tuple(position.values()) for row in lines(log, "ack") for position in row["positions"]}
    assert len(acked) == log.messages.num_rows == 600
    kinds = set(audit_whole(log).anomalies["kind"].to_pylist())
    assert not kinds & set(FORBIDDEN)


def test_turns_are_as_long_as_the_setting(tmp_path: Path) -> None:
    """Everything is there at once, and four consumers have permits for all of it: a turn is 20 entries."""
    log = shared(tmp_path, settings={"dispatcherMaxRoundRobinBatchSize": 20}, rate=1_000_000, queue=1000)
    sizes = Counter(len(row["positions"]) for row in lines(log, "sent"))
    assert sizes[20] >= 0.8 * sizes.total()
    assert max(sizes) == 20
    assert turn_rule(profile_of(log)) is TurnRule.ENTRIES
    assert max(delivered(log).values()) - min(delivered(log).values()) <= 40


def test_the_highest_level_gets_all_while_it_has_permits(tmp_path: Path) -> None:
    log = shared(tmp_path, priority_levels=(0, 1, 1, 1), queue=2000)
    assert delivered(log) == {1: 600}


def test_lower_levels_get_the_rest(tmp_path: Path) -> None:
    log = shared(tmp_path, priority_levels=(0, 1, 1, 1), queue=5, ack_us=20_000)
    count = delivered(log)
    assert len(count) == 4
    assert count.total() >= 600


def test_a_stuck_consumer_keeps_what_it_has(tmp_path: Path) -> None:
    """Nothing waits for another entry: the others get all that the stuck consumer has no permits for."""
    log = shared(tmp_path, stuck_consumers=1, queue=30)
    count = delivered(log)
    assert min(count.values()) == 30
    assert not set(audit_whole(log).anomalies["kind"].to_pylist()) & {*FORBIDDEN, "stuck_subscription"}


def test_a_trace_of_it_is_refused() -> None:
    with pytest.raises(ScenarioError, match="--level E"):
        small(subscription_type="Shared", trace=True)


@pytest.mark.parametrize("settings", [{}, CLASSIC])
def test_the_same_scenario_gives_the_same_log(tmp_path: Path, settings: dict[str, bool]) -> None:
    first, second = (
        shared(tmp_path / name, settings=settings, churn="random", nack_share=0.1) for name in ("a", "b")
    )
    assert first.events.drop_columns(["source_file"]).equals(second.events.drop_columns(["source_file"]))
