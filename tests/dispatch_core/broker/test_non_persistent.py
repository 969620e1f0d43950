"""Non-persistent topics: who is sent an entry, what is dropped and counted, and what differs between releases."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.broker.non_persistent import (
    DropReason,
    NonPersistentDispatcher,
    NonPersistentKeyShared,
    NonPersistentShared,
    NonPersistentSingleActive,
    dispatcher,
)
from dispatch_core.broker.profiles import FailoverRule, OrderingRule, RingVariant, resolve
from dispatch_core.broker.round_robin import EndlessSearchError, next_consumer
from dispatch_core.broker.selectors import factory
from dispatch_core.broker.single_active_rules import ConsumerBusyError
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError, UnsupportedRuleError

TOPIC = "non-persistent://public/default/t"
TYPES = ("Shared", "Key_Shared", "Failover")


def made(
    kind: str, version: str = "4.2.4", partition: int = -1, mode: str = "AUTO_SPLIT", **config: Any
) -> NonPersistentDispatcher:
    profile = resolve(
        version,
        config,
        subscription_type=kind,
        partition_index=partition,
        key_shared_mode=mode,
        non_persistent=True,
    )
    return dispatcher(profile, TOPIC, exclusive=kind == "Exclusive")


def shared(version: str = "4.2.4", **levels: int) -> NonPersistentShared:
    """Make a Shared dispatcher with the consumers c1, c2 … of these priority levels, without permits."""
    core = made("Shared", version)
    assert isinstance(core, NonPersistentShared)
    for name, level in levels.items():
        core.join(int(name[1:]), name, level)
    return core


# --- every type ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_permits_count_messages_and_one_permit_is_enough_for_a_batch(kind: str) -> None:
    core = made(kind)
    core.join(1, "c1")
    core.flow(1, 1)
    assert core.publish(messages=10).consumer == 1
    assert core.permits(1) == -9
    assert core.publish(messages=4) == (None, DropReason.NO_PERMITS, 4)
    core.flow(1, 9)
    assert core.publish().reason is DropReason.NO_PERMITS
    core.flow(1, 1)
    assert core.publish().consumer == 1


@pytest.mark.parametrize("kind", TYPES)
def test_a_connection_that_is_not_writable_gets_nothing(kind: str) -> None:
    core = made(kind)
    core.join(1, "c1")
    core.flow(1, 5)
    core.set_writable(1, writable=False)
    assert core.publish(messages=2) == (None, DropReason.NOT_WRITABLE, 2)
    core.set_writable(1, writable=True)
    assert core.publish().consumer == 1
    assert core.permits(1) == 4


@pytest.mark.parametrize(("kind", "counted"), [("Shared", 3), ("Key_Shared", 0), ("Failover", 3)])
def test_nobody_connected(kind: str, counted: int) -> None:
    core = made(kind)
    assert core.publish(messages=3) == (None, DropReason.NO_CONSUMER, counted)
    core.join(1, "c1")
    core.flow(1, 5)
    core.leave(1)
    assert core.publish(messages=3) == (None, DropReason.NO_CONSUMER, counted)


@pytest.mark.parametrize("kind", TYPES)
def test_permits_of_a_consumer_that_has_left_are_gone(kind: str) -> None:
    core = made(kind)
    core.join(1, "c1")
    core.flow(1, 5)
    core.leave(1)
    core.flow(1, 5)  # the command comes late
    core.join(2, "c2")
    assert core.publish().reason is DropReason.NO_PERMITS


@pytest.mark.parametrize("kind", TYPES)
def test_members_are_added_and_removed_once(kind: str) -> None:
    core = made(kind)
    core.join(1, "c1")
    with pytest.raises(IllegalTransitionError):
        core.join(1, "c1")
    core.leave(1)
    with pytest.raises(IllegalTransitionError):
        core.leave(1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("leave"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("flow"), st.integers(1, 5), st.integers(1, 20)),
        st.tuples(st.just("full"), st.integers(1, 5), st.integers(0, 1)),
        st.tuples(st.just("publish"), st.integers(1, 65535), st.integers(1, 6)),
    ),
    max_size=80,
)


@pytest.mark.parametrize("kind", TYPES)
@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_whoever_is_sent_an_entry_could_take_it(kind: str, steps: list[tuple[str, int, int]]) -> None:
    """Permits of each consumer are what it granted less what it was sent; the total is their sum (#24885)."""
    core = made(kind)
    permits: dict[int, int] = {}
    unwritable: set[int] = set()
    numbers, connection = dict[int, int](), 0
    for step, consumer, count in steps:
        if step == "join" and consumer not in numbers:
            connection += 1
            numbers[consumer] = connection
            permits[connection] = 0
            core.join(connection, f"c{consumer}")
        elif step == "leave" and consumer in numbers:
            gone = numbers.pop(consumer)
            del permits[gone]
            unwritable.discard(gone)
            core.leave(gone)
        elif step == "flow" and consumer in numbers:
            permits[numbers[consumer]] += count
            core.flow(numbers[consumer], count)
        elif step == "full" and consumer in numbers:
            core.set_writable(numbers[consumer], writable=bool(count))
            (unwritable.discard if count else unwritable.add)(numbers[consumer])
        elif step == "publish":
            owner = core.owner(consumer)
            outcome = core.publish(consumer, count)
            assert (outcome.consumer is None) == (outcome.reason is not None)
            if outcome.consumer is None:
                assert outcome.counted in (0, count)
                if owner is not None:
                    assert permits[owner] <= 0 or owner in unwritable
            else:
                assert permits[outcome.consumer] > 0
                assert outcome.consumer not in unwritable
                assert owner in (None, outcome.consumer)
                permits[outcome.consumer] -= count
        assert {number: core.permits(number) for number in core.connected} == permits
        if isinstance(core, NonPersistentShared):
            assert core.total == sum(permits.values())


# --- Shared --------------------------------------------------------------------------------------------------------


def test_shared_takes_turns_entry_by_entry() -> None:
    core = shared(c1=0, c2=0, c3=0)
    for consumer in (1, 2, 3):
        core.flow(consumer, 100)
    assert Counter(core.publish().consumer for _ in range(30)) == {1: 10, 2: 10, 3: 10}


@pytest.mark.parametrize(("version", "sent"), [("4.2.4", 2), ("4.0.8", 2), ("4.0.7", None), ("3.0.14", None)])
def test_a_total_below_the_sum_of_permits_stays_in_earlier_releases(version: str, sent: int | None) -> None:
    """c1 leaves with 50 permits less than none. Before #24885 the total misses them until nobody is connected."""
    core = shared(version, c1=0, c2=0)
    core.flow(1, 1)
    assert core.publish(messages=51).consumer == 1
    core.flow(2, 10)
    assert core.publish() == (None, DropReason.TOTAL_USED_UP, 1)
    core.leave(1)
    assert core.publish().consumer == sent
    core.leave(2)
    core.join(3, "c3")
    core.flow(3, 1)
    assert core.publish().consumer == 3


def test_levels_count_in_the_order_of_joining() -> None:
    """c1 has the worse level and joined first: it is served, and once c2 had a turn it is not found."""
    core = shared(c1=1, c2=0)
    core.flow(1, 10)
    assert core.publish().consumer == 1
    core.flow(2, 1)
    assert core.publish().consumer == 2
    assert core.publish().consumer == 1  # behind the end of the list comes its first place
    assert core.publish(messages=2) == (None, DropReason.NOT_FOUND, 2)


def test_a_search_without_end_is_named() -> None:
    core = shared(c1=0, c2=1, c3=0)
    for consumer in (1, 3):
        core.flow(consumer, 1)
    core.flow(2, 5)
    assert [core.publish().consumer for _ in range(2)] == [1, 2]
    assert core.publish().consumer == 3
    core.leave(3)
    core.join(4, "c4", 0)
    assert core.publish().consumer == 2  # the index is 3 of 3: the search begins at 0
    with pytest.raises(EndlessSearchError, match="level 0 is available from place 2 on"):
        core.publish()


def java_search(levels: list[int], available: list[bool], index: int) -> int | None:
    """Search as AbstractDispatcherMultipleConsumers.getNextConsumer does, line by line; -2 = it never ends."""
    if not levels:
        return None
    if index >= len(levels):
        index = 0
    target = levels[index]
    if target != 0:
        for place in range(index):
            if levels[place] >= target:
                break
            if available[place]:
                return place
    if available[index]:
        return index
    scan, end = index + 1, index
    for _ in range(10 * len(levels)):
        if scan >= len(levels) or levels[scan] != target:
            end, scan = scan, levels.index(target)
        elif available[scan]:
            return scan
        else:
            scan += 1
        if scan == index:
            break
    else:
        return -2
    return next((place for place in range(end, len(levels)) if available[place]), None)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=7), st.integers(0, 8))
@settings(max_examples=400, deadline=None)
def test_the_search_is_the_brokers_for_lists_of_any_order(
    consumers: list[tuple[int, bool]], index: int
) -> None:
    levels = [level for level, _ in consumers]
    available = [is_available for _, is_available in consumers]
    expected = java_search(levels, available, index)
    if expected == -2:
        with pytest.raises(EndlessSearchError):
            next_consumer(levels, lambda place: available[place], index)
    else:
        assert next_consumer(levels, lambda place: available[place], index) == expected
    in_order = sorted(levels)
    assert java_search(in_order, available, index) != -2  # of a sorted list the search always ends


# --- Key_Shared ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.0.0", "3.0.17", "3.3.6", "4.0.0", "4.2.4"])
@pytest.mark.parametrize("ring", [True, False])
def test_key_shared_asks_the_selector_of_the_release(version: str, ring: bool) -> None:
    config = {"subscriptionKeySharedUseConsistentHashing": ring}
    core = made("Key_Shared", version, **config)
    assert isinstance(core, NonPersistentKeyShared)
    selector = factory.build(resolve(version, config))
    for consumer in (1, 2, 3):
        core.join(consumer, f"c{consumer}")
        core.flow(consumer, 1000)
        selector.add(consumer, f"c{consumer}")
    hashes = range(1, 65_000, 1_000)
    assert [core.publish(value).consumer for value in hashes] == [selector.select(value) for value in hashes]
    core.leave(2)
    selector.remove(2)
    assert [core.publish(value).consumer for value in hashes] == [selector.select(value) for value in hashes]


def test_a_hash_that_moves_goes_to_its_new_owner_at_once() -> None:
    core = made("Key_Shared")
    core.join(1, "c1")
    core.flow(1, 10)
    assert [core.publish(value).consumer for value in range(1, 60_000, 6_000)] == [1] * 10
    core.join(2, "c2")
    core.flow(2, 10)
    moved = [value for value in range(1, 60_000, 6_000) if core.owner(value) == 2]
    assert moved
    assert {core.publish(value).consumer for value in moved} == {2}


def test_settings_of_classic_dispatchers_change_nothing() -> None:
    config = {"subscriptionKeySharedUseClassicPersistentImplementation": True}
    profile = resolve("4.2.4", config, non_persistent=True)
    plain = resolve("4.2.4", non_persistent=True)
    assert profile.ring_variant is RingVariant.C
    assert (profile.hash_space, profile.dispatcher) == (plain.hash_space, plain.dispatcher)
    assert profile.ordering is OrderingRule.NONE


def test_sticky_ranges_that_overlap_are_refused_and_holes_have_no_owner() -> None:
    core = made("Key_Shared", mode="STICKY")
    core.join(1, "c1", ranges=[(0, 99)])
    with pytest.raises(SelectorRefusedError):
        core.join(2, "c2", ranges=[(50, 199)])
    assert core.connected == (1,)
    core.flow(1, 5)
    assert core.publish(40).consumer == 1
    assert core.publish(140, messages=3) == (None, DropReason.NO_CONSUMER, 0)  # not counted


# --- Failover and Exclusive ----------------------------------------------------------------------------------------


def test_a_topic_that_is_not_partitioned_is_partition_0() -> None:
    core = made("Failover")
    assert isinstance(core, NonPersistentSingleActive)
    assert core.profile.failover is FailoverRule.MODULO
    for consumer, name in ((1, "c3"), (2, "c1"), (3, "c2")):
        core.join(consumer, name)
        core.flow(consumer, 10)
    assert core.publish().consumer == core.active == 2  # the first by name
    core.leave(2)
    assert core.publish().consumer == 3  # at once: no failover delay
    assert made("Failover", partition=4).owner(0) is None


def test_failover_by_ring_where_the_setting_says_so() -> None:
    profile = resolve(
        "4.2.4",
        {"activeConsumerFailoverConsistentHashing": True},
        subscription_type="Failover",
        non_persistent=True,
    )
    assert profile.failover is FailoverRule.RING


def test_exclusive_refuses_a_second_consumer_and_its_hash_ranges_count_for_nothing() -> None:
    core = made("Exclusive")
    core.join(1, "c1", ranges=[(0, 9)])
    with pytest.raises(ConsumerBusyError):
        core.join(2, "c2")
    core.flow(1, 5)
    assert core.publish(60_000).consumer == 1


def test_profiles_of_persistent_topics_are_refused() -> None:
    with pytest.raises(UnsupportedRuleError, match="not a dispatcher of a non-persistent topic"):
        dispatcher(resolve("4.2.4"))
