"""Releases and settings → rules."""

from __future__ import annotations

import pytest

from dispatch_core import hashing
from dispatch_core.errors import ProfileError
from dispatch_core.profiles import Dispatcher, FailoverRule, OrderingRule, parse_version, resolve


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


def test_a_later_version_takes_the_newest_known_and_says_so() -> None:
    profile = resolve("7.1.0")
    assert profile.version == (5, 0, 1)
    assert "newer than 5.0.1" in profile.warnings[0]


@pytest.mark.parametrize("version", ["", "four", "4.2", "2.10.4", "4.2.4.4.4x!", "99999999999.0.0"])
def test_a_version_that_makes_no_sense_is_an_error(version: str) -> None:
    with pytest.raises(ProfileError, match="version"):
        parse_version(version)


def test_bad_settings_are_errors_and_unused_ones_are_listed() -> None:
    with pytest.raises(ProfileError, match="dispatcherMaxReadBatchSize"):
        resolve("4.2.4", {"dispatcherMaxReadBatchSize": "many"})
    assert resolve("4.2.4", {"brokerServicePort": 6650}).ignored_settings == ("brokerServicePort",)


def test_type_of_subscription_decides_the_dispatcher() -> None:
    assert resolve("4.2.4", subscription_type="Shared").dispatcher is Dispatcher.SHARED
    assert resolve("4.2.4", subscription_type="Exclusive").dispatcher is Dispatcher.SINGLE_ACTIVE
    with pytest.raises(ProfileError, match="subscription type"):
        resolve("4.2.4", subscription_type="Key-Shared")
