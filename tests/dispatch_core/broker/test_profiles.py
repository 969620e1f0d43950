"""Releases and settings → rules."""

from __future__ import annotations

import pytest

from dispatch_core.broker import hashing
from dispatch_core.broker.profiles import Dispatcher, FailoverRule, OrderingRule, partition_index, resolve
from dispatch_core.errors import ProfileError


@pytest.mark.parametrize(
    ("version", "config", "ordering", "space"),
    [
        ("4.2.4", {}, OrderingRule.DRAINING_HASHES, hashing.CONSISTENT_4X),
        (
            "4.0.0",
            {"subscriptionKeySharedUseConsistentHashing": False},
            OrderingRule.DRAINING_HASHES,
            hashing.RANGE_4X,
        ),
        (
            "4.2.4",
            {"subscriptionKeySharedUseClassicPersistentImplementation": True},
            OrderingRule.READ_POSITION,
            hashing.CONSISTENT_CLASSIC,
        ),
        ("4.0.0-preview.1", {}, OrderingRule.LAST_SENT_POSITION, hashing.MURMUR_31),
        ("3.0.7", {}, OrderingRule.READ_POSITION, hashing.MURMUR_31),
        (
            "5.0.1",  # the classic dispatchers are gone there
            {"subscriptionKeySharedUseClassicPersistentImplementation": True},
            OrderingRule.DRAINING_HASHES,
            hashing.CONSISTENT_4X,
        ),
    ],
)
def test_rule_and_hash_space(
    version: str, config: dict, ordering: OrderingRule, space: hashing.HashSpace
) -> None:
    profile = resolve(version, config)
    assert (profile.ordering, profile.hash_space) == (ordering, space)


@pytest.mark.parametrize(
    ("version", "contains"),
    [
        ("3.0.7", False),
        ("3.0.8", True),
        ("3.1.3", False),
        ("3.3.2", False),
        ("3.3.3", True),
        ("4.0.0", False),
        ("4.0.1", True),
    ],
)
def test_pip_392_flag_exists_only_in_some_releases(version: str, contains: bool) -> None:
    config = {"activeConsumerFailoverConsistentHashing": True}
    profile = resolve(version, config, subscription_type="Failover", partition_index=0)
    assert (profile.failover is FailoverRule.RING) is contains
    assert (
        resolve(version, {}, subscription_type="Failover", partition_index=0).failover is FailoverRule.MODULO
    )
    assert (
        resolve(version, {}, subscription_type="Failover", partition_index=-1).failover is FailoverRule.RING
    )


@pytest.mark.parametrize(
    ("change", "version", "contains"),
    [
        ("look_ahead_needs_more", "4.2.3", False),
        ("look_ahead_needs_more", "4.2.4", True),
        ("look_ahead_needs_more", "4.0.13", True),
        ("look_ahead_needs_more", "4.1.9", False),
        ("remaining_unacked_count", "4.1.3", False),
        ("added_ranges", "4.1.0", False),
        ("added_ranges", "4.2.0", True),
        ("blocked_hash_memory", "5.0.1", True),
    ],
)
def test_changes_follow_their_line(change: str, version: str, contains: bool) -> None:
    assert (change in resolve(version).changes) is contains


def test_type_of_subscription_decides_the_dispatcher() -> None:
    assert resolve("4.2.4", subscription_type="Shared").dispatcher is Dispatcher.SHARED
    assert resolve("4.2.4", subscription_type="Exclusive").dispatcher is Dispatcher.SINGLE_ACTIVE
    with pytest.raises(ProfileError, match="subscription type"):
        resolve("4.2.4", subscription_type="Key-Shared")


@pytest.mark.parametrize(
    ("topic", "index"),
    [
        ("persistent://public/default/orders", -1),
        ("persistent://public/default/orders-partition-0", 0),
        ("persistent://public/default/orders-partition-12", 12),
        ("persistent://public/default/a-partition-1-partition-2", 2),
        ("persistent://public/default/orders-partition-012", -1),
        ("persistent://public/default/orders-partition--1", -1),
        ("persistent://public/default/orders-partition-x", -1),
        ("persistent://public/default/orders-partition-99999999999", -1),
        ("persistent://public/default/orders-partition-", -1),
    ],
)
def test_the_partition_index_is_read_off_the_topic_where_the_header_has_none(topic: str, index: int) -> None:
    assert partition_index({}, topic) == index
    assert partition_index({"topic": topic}) == index
    assert partition_index({"topic": topic, "partition_index": 7}) == 7


@pytest.mark.parametrize("value", ["3", 1.0, True, -2, 2**31])
def test_a_partition_index_that_is_none_is_an_error(value: object) -> None:
    with pytest.raises(ProfileError, match="partition_index"):
        partition_index({"partition_index": value})


def test_the_mode_of_the_consumers_is_part_of_the_profile() -> None:
    sticky = resolve("4.2.4", key_shared_mode="STICKY")
    assert (sticky.ordering, sticky.hash_space) == (OrderingRule.NONE, hashing.RANGE_4X)
    assert sticky.name == "4.2.4 sticky key, none, sticky ranges"
    assert resolve("3.0.7", key_shared_mode="STICKY").ordering is OrderingRule.READ_POSITION
    assert resolve("4.2.4", allow_out_of_order=True).ordering is OrderingRule.NONE
