"""A simulated log is legal under its rules, repeatable, and equal to the recording under the recorded rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch_core.errors import UnsupportedRuleError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, with_overrides
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.recording.schema import EVENTS
from dispatch_core.replay.replay_log import replay
from dispatch_core.what_if.broker_delays import acks_borne_out
from dispatch_core.what_if.recorded import RecordedLoad, load_of
from dispatch_core.what_if.rules import named
from dispatch_core.what_if.run import deliveries_of, simulate
from tests.dispatch_core.logs_without_trace import DATA, stripped
from tests.dispatch_core.simulation.simulated import simulated, small
from tests.dispatch_core.what_if.outcomes import findings, first_consumers
from tests.sample import some

CLASSIC = "subscriptionKeySharedUseClassicPersistentImplementation"
RING = "subscriptionKeySharedUseConsistentHashing"
SAMPLES = sorted(path for part in ("recordings", "verify") for path in (DATA / part).glob("*/*-*"))
SAMPLE_IDS = [f"{path.parent.name}/{path.name}" for path in SAMPLES]
KEY_SHARED = ("4.2.4/designed-rolling-restart-classic-ch", "4.2.4/designed-drain-one-by-one-ch")
DAY = datetime(2020, 1, 1, tzinfo=UTC)
#: Samples that depend on milliseconds (bench/results/what-if-accuracy.md): share of first consumers, True = same findings.
UNLIKE = {
    "4.2.4/designed-rolling-restart-ch": (0.95, False),
}


def log_of(path: Path) -> DispatcherLog:
    (log,) = read_recording(find_recordings([str(path)])[0]).logs
    return stripped(log)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("path", SAMPLES, ids=SAMPLE_IDS)
def test_under_the_recorded_rules_it_is_as_recorded(path: Path) -> None:
    log = log_of(path)
    load = load_of(log)
    assert load.profile is not None
    again = simulate(load, load.profile)
    recorded, found = first_consumers(log), first_consumers(again)
    share, alike = UNLIKE.get(f"{path.parent.name}/{path.name}", (0.99, True))
    same = sum(found.get(position) == consumer for position, consumer in recorded.items())
    assert same >= share * len(recorded.keys() | found.keys())
    assert (findings(again) == findings(log)) == alike


@pytest.mark.sampled(5)
@pytest.mark.parametrize("path", some(SAMPLES, 2), ids=some(SAMPLE_IDS, 2))
def test_what_is_simulated_is_a_log_that_the_rules_would_have_made(path: Path) -> None:
    """The replay without a trace does not know of the simulation and judges every delivery by the rules."""
    load = load_of(log_of(path))
    assert load.profile is not None
    log = simulate(load, load.profile)
    assert log.events.schema == EVENTS
    assert log.events["seq"].to_pylist() == list(range(1, log.events.num_rows + 1))
    times = log.events["t_us"].to_numpy()
    assert (np.diff(times) >= 0).all()
    state = replay(log, interval_start=DAY, interval_end=DAY + timedelta(days=40_000))["dispatcher_state"]
    (row,) = state.to_pylist()
    assert row["decisions"] > 0
    assert row["divergent"] == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", KEY_SHARED)
@pytest.mark.parametrize(
    ("version", "changed"),
    [("4.2.4", {RING: False}), ("4.2.4", {CLASSIC: True}), ("4.0.0-preview.1", {}), ("3.0.17", {})],
)
def test_other_rules_hold_in_what_they_make(name: str, version: str, changed: dict[str, bool]) -> None:
    log = log_of(DATA / "recordings" / name)
    other = with_overrides(log, version, {CLASSIC: False, **changed})
    found = simulate(load_of(log), profile_of(other))
    assert found.header["broker_version"] == version
    state = replay(found, interval_start=DAY, interval_end=DAY + timedelta(days=40_000))["dispatcher_state"]
    (row,) = state.to_pylist()
    assert row["profile"] == profile_of(other).name
    assert row["divergent"] == 0
    recorded = set(first_consumers(log))
    assert set(first_consumers(found)) <= recorded
    # 4.0.0-preview.1 holds entries back longer, and the clients leave at their recorded times.
    if version != "4.0.0-preview.1":
        assert set(first_consumers(found)) == recorded


def test_the_defect_of_classic_rules_is_predicted_and_its_cure_too() -> None:
    log = log_of(DATA / "recordings" / KEY_SHARED[0])
    load = load_of(log)

    def violations(changed: dict[str, bool]) -> int:
        profile = profile_of(with_overrides(log, "4.2.4", changed))
        kinds = Counter(kind for kind, _ in findings(simulate(load, profile)).elements())
        return kinds["out_of_order"] + kinds["split_key"]

    assert violations({CLASSIC: True}) > 0
    assert violations({CLASSIC: False}) == 0


@pytest.mark.slow
def test_the_same_seed_gives_the_same_log_and_another_one_another() -> None:
    load = load_of(log_of(DATA / "recordings" / KEY_SHARED[0]))
    assert load.profile is not None
    deliveries = deliveries_of(load)
    first, again, other = (
        simulate(load, load.profile, seed=seed, deliveries=deliveries).events for seed in (3, 3, 4)
    )
    assert first.equals(again)
    assert not first.equals(other)


@pytest.mark.slow
def test_clients_can_be_put_under_rules_of_another_subscription_type() -> None:
    """Failover to Key_Shared and back: what is simulated is a log of the other type that its rules would have made."""
    failover = log_of(DATA / "recordings" / "4.2.4/designed-failover-modulo-p1")
    key_shared = log_of(DATA / "recordings" / KEY_SHARED[0])
    for log, rules, kind in ((failover, "classic-ch", "Key_Shared"), (key_shared, "ring", "Failover")):
        found = simulate(load_of(log), named(rules).profile_for(log))
        assert found.header["subscription_type"] == kind
        tables = replay(found, interval_start=DAY, interval_end=DAY + timedelta(days=40_000))
        (row,) = tables["dispatcher_state"].to_pylist()
        assert row["decisions"] > 0
        assert row["divergent"] == 0


@pytest.mark.slow
def test_key_shared_is_not_simulated_as_shared() -> None:
    log = log_of(DATA / "recordings" / KEY_SHARED[0])
    shared = replace(log, header={**log.header, "subscription_type": "Shared"})
    with pytest.raises(UnsupportedRuleError, match="promises no order, so a Key_Shared one is not simulated"):
        simulate(load_of(log), profile_of(shared))


def test_a_log_that_does_not_say_its_rules_can_be_simulated_all_the_same() -> None:
    log = log_of(DATA / "recordings" / KEY_SHARED[1])
    bare = replace(log, header={"topic": log.topic, "subscription_type": "Key_Shared"})
    load = load_of(bare)
    assert load.profile is None
    assert deliveries_of(load) is None
    found = simulate(load, profile_of(with_overrides(bare, "4.2.4", {})))
    assert set(first_consumers(found)) == set(first_consumers(log))


def shown(load: RecordedLoad) -> int:
    """Count the acknowledgements that come from a connection that got the entry before."""
    deliveries = deliveries_of(load)
    assert deliveries is not None
    return acks_borne_out(load, deliveries)


@given(
    seed=st.integers(0, 1000),
    churn=st.sampled_from(["none", "rolling-restart", "scale"]),
    nacks=st.sampled_from([0.0, 0.05]),
    kind=st.sampled_from(["Key_Shared", "Failover"]),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_simulation_of_a_simulation_sends_what_it_did(
    seed: int, churn: str, nacks: float, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For generated logs entries go to the recorded consumers, and nearly all acknowledgements are explained."""
    wanted = {"seed": seed, "churn": churn, "nack_share": nacks, "subscription_type": kind, "messages": 200}
    log = simulated(tmp_path_factory.mktemp("made"), **wanted)
    load = load_of(log)
    assert load.profile is not None
    found = first_consumers(simulate(load, load.profile))
    recorded = first_consumers(log)
    assert set(found) == set(recorded)
    assert sum(found[position] == consumer for position, consumer in recorded.items()) >= 0.9 * len(recorded)
    assert shown(load) >= 0.9 * len(load.acks.entry)
    assert small(**wanted).messages == log.messages.num_rows
    assert isinstance(log.events, pa.Table)


@pytest.mark.parametrize("value", [200, "200"])
def test_the_timers_of_the_header_are_kept(value: object) -> None:
    """A freed hash waits for the unblock timer, whatever other reasons it has to wait."""
    load = load_of(log_of(DATA / "recordings" / KEY_SHARED[1]))
    assert load.profile is not None
    usual = simulate(load, load.profile).events
    slow = replace(load, header={"config": {"keySharedUnblockingIntervalMs": value}})
    assert not simulate(slow, load.profile).events.equals(usual)


@pytest.mark.parametrize("value", ["x" * 10_000, None, [1], -5, True])
def test_a_timer_that_is_none_is_the_usual_one(value: object) -> None:
    load = load_of(log_of(DATA / "recordings" / KEY_SHARED[1]))
    assert load.profile is not None
    odd = replace(load, header={"config": {"keySharedUnblockingIntervalMs": value}})
    assert simulate(odd, load.profile).events.equals(simulate(load, load.profile).events)
