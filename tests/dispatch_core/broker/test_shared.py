"""Shared: turns by round robin and priority, sizes of turns by release, the replay set, and what is random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker import permits
from dispatch_core.broker import state as st_
from dispatch_core.broker.profiles import Dispatcher, resolve
from dispatch_core.broker.round_robin import TurnRule, entries_of_turn, next_consumer
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.errors import UnsupportedRuleError

CLASSIC = {"subscriptionSharedUseClassicPersistentImplementation": True}
TURN = "dispatcherMaxRoundRobinBatchSize"


def dispatcher(sizes: list[int], version: str = "4.2.4", **config: Any) -> SharedDispatcher:
    """Make a dispatcher over entries with so many messages each."""
    profile = resolve(version, config, subscription_type="Shared")
    return SharedDispatcher(profile, np.zeros(len(sizes), np.int64), np.array(sizes, np.int64), 8)


def connect(core: SharedDispatcher, granted: Mapping[int, int]) -> None:
    for consumer, count in granted.items():
        core.join(consumer, f"c{consumer}")
        if core.flow(consumer, count):
            core.flow_applied(consumer, count)


def turns(core: SharedDispatcher, entries: list[int], kind: str = "Normal") -> list[tuple[int, list[int]]]:
    """Dispatch a read result; return consumer and entries of each turn."""
    core.attempt_read()
    assert core.read_done(kind, entries)
    outcome = core.round(kind, entries)
    core.finish_round(outcome)
    core.check_invariants()
    return [(turn.consumer, turn.entries) for turn in outcome.turns]


@pytest.mark.parametrize(
    ("version", "config", "expected"),
    [
        ("4.2.4", {}, Dispatcher.SHARED),
        ("4.2.4", CLASSIC, Dispatcher.SHARED_CLASSIC),
        ("4.0.0-preview.1", {}, Dispatcher.SHARED),
        ("3.0.17", {}, Dispatcher.SHARED_CLASSIC),
        ("5.0.1", CLASSIC, Dispatcher.SHARED),
    ],
)
def test_dispatcher_of_a_release(version: str, config: dict[str, Any], expected: Dispatcher) -> None:
    profile = resolve(version, config, subscription_type="Shared")
    assert profile.dispatcher is expected
    assert profile.is_shared


def test_other_dispatchers_are_refused() -> None:
    with pytest.raises(UnsupportedRuleError):
        SharedDispatcher(resolve("4.2.4"), np.zeros(1, np.int64), np.ones(1, np.int64), 1)


def test_the_index_outlives_a_round_and_a_removal() -> None:
    core = dispatcher([1] * 9, **{TURN: 1})
    connect(core, {1: 9, 2: 9, 3: 9})
    assert turns(core, [0, 1]) == [(1, [0]), (2, [1])]
    core.leave(1)  # the index is 2: behind the end of the list
    assert turns(core, [2, 3]) == [(2, [2]), (3, [3])]


@pytest.mark.parametrize(
    ("version", "config", "expected"),
    [
        # ten batches of ten messages, permits for ten messages each
        ("4.2.4", {}, [(1, [0]), (2, [1])]),
        ("4.0.4", {}, [(1, [0]), (2, [1])]),
        ("4.0.3", {}, [(1, list(range(10)))]),
        ("4.2.4", CLASSIC, [(1, [0]), (2, [1])]),
        ("3.0.17", {}, [(1, [0]), (2, [1])]),
    ],
)
def test_permits_and_batches(
    version: str, config: dict[str, Any], expected: list[tuple[int, list[int]]]
) -> None:
    """#24092: between PIP-379 and 4.0.4 a consumer gets as many entries as it has permits."""
    core = dispatcher([10] * 10, version, **config)
    connect(core, {1: 10, 2: 10})
    assert turns(core, list(range(10))) == expected


def test_a_turn_ends_at_the_limit_of_unacknowledged_messages() -> None:
    core = dispatcher([1] * 9, maxUnackedMessagesPerConsumer=4)
    connect(core, {1: 9, 2: 2})
    assert turns(core, list(range(9))) == [(1, [0, 1, 2, 3]), (2, [4, 5])]
    assert core.is_blocked(1)
    assert np.flatnonzero(core.state.in_replay).tolist() == [6, 7, 8]
    for entry in (0, 1):
        core.ack(entry)
    assert turns(core, [6, 7, 8], "Replay") == [(1, [6, 7])]


def test_what_nobody_can_take_is_replayed_in_position_order() -> None:
    core = dispatcher([1] * 6, **{TURN: 2})
    connect(core, {1: 3})
    assert turns(core, [0, 1, 2, 3, 4, 5]) == [(1, [0, 1]), (1, [2])]
    core.redeliver(1, [1])
    connect(core, {2: 2})
    read = core.attempt_read()
    assert (read.kind, read.entries) == ("Replay", (1, 3))


def test_a_result_is_handed_out_in_its_own_order() -> None:
    """Without delayed delivery on the topic a replay read is not sorted (asyncReplayEntries)."""
    core = dispatcher([1] * 3)
    connect(core, {1: 2})
    assert turns(core, [2, 0, 1]) == [(1, [2, 0])]


def test_a_consumer_that_leaves_gives_its_entries_back() -> None:
    core = dispatcher([1] * 4)
    connect(core, {1: 2, 2: 2})
    assert turns(core, [0, 1]) == [(1, [0, 1])]
    core.leave(1)
    assert core.attempt_read().entries == (0, 1)
    core.leave(2)
    assert not core.state.in_replay.any()


def test_without_consumers_a_result_goes_to_the_replay_set() -> None:
    core = dispatcher([1] * 2)
    connect(core, {1: 2})
    core.attempt_read()
    core.read_done("Normal", [0, 1])
    core.leave(1)
    outcome = core.round("Normal", [0, 1])
    core.finish_round(outcome)
    assert (outcome.to_replay, outcome.retry, outcome.dropped) == ([0, 1], True, False)
    core.join(2, "c2")  # the first one begins with a rewound cursor
    assert not core.state.in_replay.any()
    assert core.state.s[st_.READ_POSITION] == 0


def test_the_size_of_a_read_is_random_only_by_precise_flow_control() -> None:
    core = dispatcher([5, 1, 1, 1], preciseDispatcherFlowControl=True, **{TURN: 1})
    connect(core, {1: 10, 2: 10})
    assert core.read_sizes() == [20]
    assert turns(core, [0, 1]) == [(1, [0]), (2, [1])]
    # 14 permits are left; the average batch of one consumer has five messages, that of the other one
    assert core.read_sizes() == [3, 14]
    plain = dispatcher([5])
    assert plain.read_sizes() == []
    connect(plain, {1: 10})
    assert plain.read_sizes() == [10]


def test_a_copy_has_the_index() -> None:
    core = dispatcher([1] * 4, **{TURN: 1})
    connect(core, {1: 9, 2: 9})
    saved = core.save()
    first = turns(core, [0])
    core.restore(saved)
    assert turns(core, [0]) == first == [(1, [0])]


def sent_twice() -> SharedDispatcher:
    """A dispatcher in which consumers 2 and 3 hold entry 0.

    All consumers leave while a replay read of it is in flight. Its result is dispatched all the same, and then the cursor,
    which is rewound, reads the entry again.
    """
    core = dispatcher([1] * 3, **CLASSIC)
    connect(core, {1: 1})
    assert turns(core, [0]) == [(1, [0])]
    core.redeliver(1, [0])
    core.flow(1, 1)
    assert core.attempt_read().entries == (0,)
    core.leave(1)
    connect(core, {3: 1, 2: 1})  # the second of the list has the next turn
    assert turns(core, [0], "Replay") == [(2, [0])]
    core.attempt_read()
    assert not core.read_done("Normal", [1])
    assert turns(core, [0]) == [(3, [0])]
    return core


def test_an_entry_that_is_sent_twice_is_pending_on_both() -> None:
    core = sent_twice()
    assert [core.pending_on(consumer) for consumer in (2, 3)] == [[0], [0]]
    assert [core.holder(0, by) for by in (2, 3, None)] == [2, 3, 3]
    saved = core.save()
    acked = core.ack(0, by=3)
    assert acked is not None
    assert acked.consumer == 3
    assert [core.unacked(consumer) for consumer in (2, 3)] == [1, 0]
    assert [core.pending_on(consumer) for consumer in (2, 3)] == [[0], []]
    assert core.droppable() == 0
    core.restore(saved)
    acked = core.ack(0, by=2)
    assert acked is not None
    assert acked.consumer == 2
    assert [core.pending_on(consumer) for consumer in (2, 3)] == [[], [0]]
    acked = core.ack(0, by=2)
    assert acked is not None
    assert acked.consumer == 3
    assert core.droppable() == 1


def test_an_entry_that_two_hold_is_asked_for_by_each() -> None:
    core = sent_twice()
    core.redeliver(2, [0])
    assert [core.pending_on(consumer) for consumer in (2, 3)] == [[], [0]]
    assert core.state.in_replay[0]
    core.leave(3)
    core.flow(2, 1)
    assert core.attempt_read().entries == (0,)


Consumers = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6)


@given(Consumers, st.integers(0, 8))
def test_next_consumer_is_the_brokers(consumers: list[tuple[int, bool]], index: int) -> None:
    """Against the broker's own way: it scans the list in three loops (AbstractDispatcherMultipleConsumers)."""
    consumers = sorted(consumers, key=lambda consumer: consumer[0])
    levels = [level for level, _ in consumers]
    found = next_consumer(levels, lambda at: consumers[at][1], index)
    at = index if index < len(levels) else 0
    available = [place for place, (_, is_available) in enumerate(consumers) if is_available]
    if not available:
        assert found is None
        return
    best = min(levels[place] for place in available)
    assert found is not None
    # A better level wins only if the index is not of level 0, which has none better.
    assert levels[found] == best or levels[at] == best
    of_level = [place for place in available if levels[place] == levels[found]]
    if levels[found] == levels[at]:
        assert found == min((place for place in of_level if place >= at), default=of_level[0])
    else:
        assert found == of_level[0]


@given(
    st.sampled_from(TurnRule),
    st.integers(1, 500),
    st.integers(1, 500),
    st.integers(0, 500),
    st.integers(1, 50),
    st.integers(1, 40),
)
def test_a_turn_has_an_entry_and_no_more_than_there_are_permits(
    rule: TurnRule, left: int, count: int, room: int, average: int, size: int
) -> None:
    entries = entries_of_turn(int(rule), left, count, room, average, size)
    assert 1 <= entries <= count
    if rule is TurnRule.ENTRIES:
        assert entries <= size
    assert entries_of_turn(int(rule), left, count, permits.UNLIMITED, average, size) >= entries
