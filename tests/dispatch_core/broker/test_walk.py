"""The walk adds no rule: it passes events on, completes reads, and refuses impossible events without any change."""

from __future__ import annotations

import pytest

from dispatch_core.broker import profiles
from dispatch_core.broker.walk import Walk
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError, UnsupportedRuleError

PROFILE = profiles.resolve("4.2.4")


def test_a_read_waits_for_entries_and_takes_no_more_than_it_asked_for() -> None:
    walk = Walk(PROFILE, ["k"] * 5, stored=0)
    walk.join("c1", permits=2)
    assert walk.run() == {}
    walk.store(5)
    assert walk.read() == ["1:0", "1:1"]
    assert walk.read() == ["1:0", "1:1"], "in flight until it is dispatched"
    assert walk.dispatch() == {"c1": ["1:0", "1:1"]}
    assert walk.dispatch() == {}
    walk.give("c1", 10)
    assert walk.run() == {"c1": ["1:0", "1:1", "1:2", "1:3", "1:4"]}
    assert walk.run() == {}


def test_before_24898_a_read_that_waited_comes_back_empty_and_the_next_one_reads() -> None:
    walk = Walk(profiles.resolve("4.0.7"), ["k"], stored=0)
    walk.join("c1", permits=2)
    walk.run()
    walk.store(1)
    assert walk.read() == ["1:0"]
    assert walk.dispatch() == {"c1": ["1:0"]}


def test_all_leave_and_the_first_to_come_back_gets_everything_unacknowledged() -> None:
    walk = Walk(PROFILE, ["k"] * 3)
    walk.join("c1", permits=10)
    walk.run()
    walk.ack("1:0")
    walk.leave("c1")
    assert walk.run() == {}
    walk.join("c1", permits=10)
    assert walk.run() == {"c1": ["1:1", "1:2"]}
    assert walk.got == {"c1": ["1:0", "1:1", "1:2", "1:1", "1:2"]}


def test_parked_permits_reach_the_dispatcher_when_the_consumer_is_unblocked() -> None:
    walk = Walk(profiles.resolve("4.2.4", {"maxUnackedMessagesPerConsumer": 4}), ["k"] * 9)
    walk.join("c1", permits=4)
    assert walk.run() == {"c1": ["1:0", "1:1", "1:2", "1:3"]}
    walk.give("c1", 3)
    walk.ack("1:0")
    assert walk.run() == {}
    walk.ack("1:1")
    assert walk.run() == {"c1": ["1:4", "1:5"]}


def test_sticky_consumers_bring_their_ranges() -> None:
    keys = ["key-31", "key-57", "key-61", "key-207"]
    walk = Walk(profiles.resolve("4.2.4", key_shared_mode="STICKY"), keys)
    walk.join("low", permits=5, ranges=[(0, 30000)])
    with pytest.raises(SelectorRefusedError):
        walk.join("over", ranges=[(30000, 65535)])
    walk.join("high", permits=5, ranges=[(30001, 65535)])
    owners = [walk.owner(key) for key in keys]
    assert set(owners) == {"low", "high"}
    expected: dict[str, list[str]] = {}
    for at, owner in enumerate(owners):
        expected.setdefault(str(owner), []).append(f"1:{at}")
    assert walk.run() == expected


def test_what_cannot_happen_names_what_is_there_and_changes_nothing() -> None:
    walk = Walk(PROFILE, ["k"] * 3, stored=2, first="3:7")
    walk.join("c1", permits=1)
    walk.run()
    before = [array.copy() for array in walk.core.state]
    for event, message in (
        (lambda: walk.join("c1"), "c1 is connected"),
        (lambda: walk.give("c2", 1), "c2 is not connected; connected: c1"),
        (lambda: walk.leave("c2"), "c2 is not connected"),
        (lambda: walk.ack("3:9"), "3:9 is not stored; stored: 3:7 to 3:8"),
        (lambda: walk.ack("2:7"), "2:7 is not stored"),
        (lambda: walk.ack("3:6"), "3:6 is not stored"),
        (lambda: walk.nack("c1", "3:7", "3:8"), "c1 does not hold 3:8"),
        (lambda: walk.store(2), "the log has 3, 2 of them are stored"),
    ):
        with pytest.raises(IllegalTransitionError, match=message):
            event()
    assert all((saved == now).all() for saved, now in zip(before, walk.core.state, strict=True))


def test_only_key_shared_can_be_walked() -> None:
    with pytest.raises(UnsupportedRuleError, match="Key_Shared"):
        Walk(profiles.resolve("4.2.4", subscription_type="Failover"), ["k"])
