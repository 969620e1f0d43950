"""Consumers that subscribe with another policy or subscription type than they were recorded with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatch_core.broker.profiles import Dispatcher
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.simulation.world import PART, WHOLE
from dispatch_core.what_if.client_changes import (
    AS_RECORDED,
    AUTO_SPLIT,
    FAILOVER,
    KEY_SHARED,
    STICKY,
    ClientChangeError,
    ClientChanges,
    changes_given,
    fitted,
    individual,
    recorded_policy,
)
from dispatch_core.what_if.compare import rows_of
from dispatch_core.what_if.recorded import RecordedLoad, load_of
from dispatch_core.what_if.rules import RECORDED, RuleSet, named
from dispatch_core.what_if.run import deliveries_of, simulate
from dispatch_core.what_if.tell import sentence
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    ack,
    added,
    message,
    numbered,
    read,
    removed,
    sent,
    write,
)

#: Of the hash space the first consumer has a half, and the second a quarter: entries of the rest are never sent.
RANGES = {1: [[0, 32767]], 2: [[32768, 49151]]}


def sticky_log(folder: Path, entries: int = 40) -> DispatcherLog:
    """Make a log of two STICKY consumers that leave a quarter of the hash space to nobody."""
    lines: list[dict[str, Any]] = []
    for number, ranges in RANGES.items():
        policy = {"mode": STICKY, "allow_out_of_order": False, "ranges": ranges}
        lines += [
            added(number) | {"key_shared": policy},
            {"kind": "flow", "consumer": number, "permits": 1000},
        ]
    lines.append(sent(1, 0))
    events = numbered(line | {"t_us": T0_US + at * 1000} for at, line in enumerate(lines))
    events.append(
        {"seq": len(events) + 1, "t_us": T0_US + 1_000_000, "kind": "flow", "consumer": 1, "permits": 1}
    )
    published = [message(at, f"key-{at}", publish_time_ms=T0_US // 1000 + 10) for at in range(entries)]
    return read(write(folder / "a" / "b", published, events))


def test_a_selector_by_name_is_one_of_consumers_that_split_the_space(tmp_path: Path) -> None:
    """``--rules ch`` on a STICKY log is not STICKY again: what nobody could be sent would have been sent."""
    log = sticky_log(tmp_path)
    recorded, consistent = rows_of(log, [RECORDED, named("ch")], seeds=[0])
    assert recorded.profile.endswith("sticky ranges")
    assert consistent.profile == "4.2.4 sticky key, draining hashes, consistent hashing"
    assert recorded.simulated is not None
    assert consistent.simulated is not None
    assert 0 < recorded.simulated.never_sent < 40
    assert consistent.simulated.never_sent == 0
    assert "the consumers would subscribe with AUTO_SPLIT instead of STICKY" in consistent.warnings
    assert "entries were never sent, under these rules none would be missing" in sentence(consistent)
    assert consistent.not_measured == "no client script was recorded with both settings of its consumers"
    assert recorded.not_measured is None


def test_consumers_that_become_sticky_share_the_space(tmp_path: Path) -> None:
    log = read(write(tmp_path / "a" / "b", [message(0, "k")], numbered([added(1), added(2), sent(1, 0)])))
    rules = RuleSet("sticky", clients=ClientChanges(key_shared_policy=STICKY))
    profile = rules.profile_for(log)
    assert profile.key_shared_mode == STICKY
    load = fitted(load_of(log), profile)
    assert [join.ranges for join in load.joins] == [((0, 32767),), ((32768, 65535),)]
    (said,) = rules.clients.describe(log)
    assert said == (
        "the consumers would subscribe with STICKY instead of AUTO_SPLIT, each name with an equal part of the hash space"
    )


def test_ranges_that_were_announced_are_kept(tmp_path: Path) -> None:
    log = sticky_log(tmp_path)
    load = load_of(log)
    assert recorded_policy(log) == STICKY
    assert fitted(load, RECORDED.profile_for(log)) is load


@pytest.mark.parametrize(
    ("kind", "wanted", "dispatcher"),
    [
        ("Failover", KEY_SHARED, Dispatcher.KEY_SHARED),
        ("Key_Shared", FAILOVER, Dispatcher.SINGLE_ACTIVE),
        ("Exclusive", FAILOVER, Dispatcher.SINGLE_ACTIVE),
    ],
)
def test_another_subscription_type(kind: str, wanted: str, dispatcher: Dispatcher, tmp_path: Path) -> None:
    events = numbered([added(1), sent(1, 0)])
    log = read(write(tmp_path / "a" / "b", [message(0, "k")], events, subscription_type=kind))
    changes = ClientChanges(wanted, AUTO_SPLIT if wanted == KEY_SHARED else None)
    changed = changes.applied_to(log)
    rules = RuleSet("other", clients=changes)
    assert rules.profile_for(log).dispatcher is dispatcher
    assert bool(changes.describe(log)) == (kind != "Exclusive")
    assert changed.header["subscription_type"] == ("Exclusive" if kind == "Exclusive" else wanted)


def test_settings_are_read_by_their_names() -> None:
    texts = ["subscriptionType=Failover", "keySharedPolicy=STICKY", "receiverQueueSize=7", "consumers=3"]
    texts += ["acknowledgementsGroupTimeMicros=100000", "consumerName:a=c"]
    found = changes_given(texts)
    assert found.names == {"a": "c"}
    assert (found.subscription_type, found.receiver_queue_size, found.consumers) == ("Failover", 7, 3)
    assert changes_given([f"{name}={value}" for name, value in found.settings.items()]) == found
    for wrong in (
        "receiverQueueSize=0",
        "receiverQueueSize=x",
        "consumers=-1",
        "keySharedPolicy=sticky",
        "ackTimeout=1",
        "x",
    ):
        with pytest.raises(ClientChangeError, match="--client"):
            changes_given([wrong])


def busy_load(folder: Path) -> RecordedLoad:
    """Make a load of two consumers with acknowledgements, 1 ms after each other."""
    lines = [added(1), added(2)]
    lines += [
        {"kind": "flow", "consumer": number, "permits": permits}
        for number, permits in ((1, 5), (2, 9), (1, 4))
    ]
    lines += [sent(1, 0, 1), ack(1, 0), ack(1, 1), removed(2)]
    events = numbered(line | {"t_us": T0_US + at * 1000} for at, line in enumerate(lines))
    return load_of(read(write(folder / "a" / "b", [message(at, "k") for at in range(2)], events)))


def test_a_receiver_queue_is_granted_at_once_and_refilled_by_what_is_acknowledged(tmp_path: Path) -> None:
    load = ClientChanges(receiver_queue_size=3).on(busy_load(tmp_path))
    at_us, consumer, permits = (column.tolist() for column in load.flows)
    assert (consumer, permits) == ([1, 2], [3, 3])
    assert at_us == [T0_US + 2000, T0_US + 3000]


def test_acknowledgements_wait_for_the_end_of_their_group(tmp_path: Path) -> None:
    load = busy_load(tmp_path)
    grouped = ClientChanges(acknowledgements_group_us=5_000).on(load)
    assert (load.acks.at_us - T0_US).tolist() == [6_000, 7_000]
    assert (grouped.acks.at_us - T0_US).tolist() == [10_000, 10_000]
    assert ClientChanges(acknowledgements_group_us=0).on(load) is load


def test_more_and_fewer_consumers(tmp_path: Path) -> None:
    load = busy_load(tmp_path)
    more, fewer = (ClientChanges(consumers=count).on(load) for count in (4, 1))
    assert [(join.name, join.like) for join in more.joins] == [
        ("worker-1", None), ("worker-1+1", 1), ("worker-2", None), ("worker-2+1", 2),
    ]  # fmt: skip
    assert len({join.number for join in more.joins}) == 4
    assert len(more.leaves) == 2
    assert more.flows[2].tolist() == [5, 9, 4, 5, 9]
    assert [join.name for join in fewer.joins] == ["worker-1"]
    assert (fewer.flows[1].tolist(), list(fewer.leaves)) == ([1, 1], [])
    for changed in (more, fewer):
        assert changed.profile is not None
        assert simulate(changed, changed.profile, deliveries=deliveries_of(load)).events.num_rows > 0


def test_other_names(tmp_path: Path) -> None:
    load = busy_load(tmp_path)
    renamed = ClientChanges(names={"worker-2": "other"}).on(load)
    assert [join.name for join in renamed.joins] == ["worker-1", "other"]
    with pytest.raises(ClientChangeError, match="no consumer is called 'nobody'"):
        ClientChanges(names={"nobody": "x"}).on(load)


def test_clients_as_recorded_change_nothing(tmp_path: Path) -> None:
    log = sticky_log(tmp_path)
    assert not AS_RECORDED
    assert AS_RECORDED.applied_to(log) is log
    assert AS_RECORDED.describe(log) == ()


def test_cumulative_acknowledgements_become_individual_ones_of_key_shared(tmp_path: Path) -> None:
    """Key_Shared takes no cumulative ones: without others nothing would be acknowledged, and permits would run out."""
    lines: list[dict[str, Any]] = [added(1), {"kind": "flow", "consumer": 1, "permits": 5}]
    for first in range(0, 40, 5):
        lines += [
            sent(1, *range(first, first + 5)),
            ack(1, first + 4, cumulative=True),
            {"kind": "flow", "consumer": 1, "permits": 5},
        ]
    # deliveries begin behind the delay of the first choice, a second
    times = [T0_US + 20_000 + at * 10_000 + (at > 1) * 1_200_000 for at in range(len(lines))]
    events = numbered(line | {"t_us": time_us} for line, time_us in zip(lines, times, strict=True))
    published = [message(at, f"key-{at % 7}") for at in range(40)]
    log = read(write(tmp_path / "a" / "b", published, events, subscription_type="Failover"))
    recorded, consistent = rows_of(log, [RECORDED, named("ch")], seeds=[0])
    for row in (recorded, consistent):
        assert row.simulated is not None
        assert (row.simulated.never_sent, row.simulated.redelivered) == (0, 0)
    load, profile = load_of(log), named("ch").profile_for(log)
    lines = simulate(load, profile, deliveries=deliveries_of(load)).events.to_pylist()
    assert sum(len(line["positions"]) for line in lines if line["kind"] == "ack") == 40
    acks = fitted(load, profile).acks
    assert sorted(acks.entry.tolist()) == list(range(40))
    assert set(acks.kind.tolist()) == {WHOLE}
    assert individual(acks) is acks


def test_a_cumulative_acknowledgement_of_part_of_a_batch_stays_one_of_its_messages(tmp_path: Path) -> None:
    """Entry 1 has two messages, of which the first is acknowledged, and all of entry 0."""
    lines = [added(1), sent(1, 0, 1), ack(1, 1, sets=[[2]], cumulative=True)]
    published = [message(0, "k"), message(1, "k", num_messages=2)]
    log = read(write(tmp_path / "a" / "b", published, numbered(lines), subscription_type="Failover"))
    acks = individual(load_of(log).acks)
    assert list(zip(acks.entry.tolist(), acks.kind.tolist(), strict=True)) == [(1, PART), (0, WHOLE)]
    assert dict(acks.words) == {0: (2,)}
