"""Rules by name, and the matrix of all rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.broker.profiles import Dispatcher, FailoverRule, OrderingRule
from dispatch_core.errors import ProfileError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.what_if.rules import (
    RECORDED,
    RuleNameError,
    RuleSet,
    asked_for,
    matrix_for,
    named,
    without_effect,
)
from tests.dispatch_core.audit.small_logs import added, message, numbered, read, sent, write


def log(folder: Path, version: str | None = "4.2.4", **fields: Any) -> DispatcherLog:
    recorded = read(write(folder / "a" / "b", [message(0, "k")], numbered([added(1), sent(1, 0)]), **fields))
    return replace(recorded, header={**recorded.header, "broker_version": version})


@pytest.mark.parametrize(
    ("name", "version", "ordering", "consistent", "classic"),
    [
        ("ch", "4.2.4", OrderingRule.DRAINING_HASHES, True, False),
        ("range", "4.2.4", OrderingRule.DRAINING_HASHES, False, False),
        ("classic-range", "4.2.4", OrderingRule.READ_POSITION, False, True),
        ("4.0.0-preview.1-ch", "4.0.0-preview.1", OrderingRule.LAST_SENT_POSITION, True, False),
        (" 3.0.17-RANGE ", "3.0.17", OrderingRule.READ_POSITION, False, True),
    ],
)
def test_names_of_key_shared(
    name: str, version: str, ordering: OrderingRule, consistent: bool, classic: bool, tmp_path: Path
) -> None:
    profile = named(name).profile_for(log(tmp_path))
    assert (profile.broker_version, profile.ordering, profile.consistent_hashing) == (
        version,
        ordering,
        consistent,
    )
    assert (profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC) == classic


def test_names_of_failover(tmp_path: Path) -> None:
    recorded = log(tmp_path, subscription_type="Failover", partition_index=3)
    found = [named(name).profile_for(recorded).failover for name in ("modulo", "ring", "3.0.1-ring")]
    assert found == [
        FailoverRule.MODULO,
        FailoverRule.RING,
        FailoverRule.MODULO,
    ]  # 3.0.1 does not know the flag


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("chh", "the nearest is ch"),
        ("4.2.4ch", "VARIANT or RELEASE-VARIANT"),
        ("", "variants are ch, range"),
        ("clasic-range", "the nearest is classic-range"),
    ],
)
def test_a_name_that_means_nothing_says_what_does(name: str, said: str) -> None:
    with pytest.raises(RuleNameError, match=said):
        named(name)


def test_a_release_that_is_none_is_refused() -> None:
    for name in ("2.3.0-ch", "4.x-ch", "-ch"):
        with pytest.raises((ProfileError, RuleNameError)):
            named(name)


def test_settings_stand_below_the_variant() -> None:
    rules = named(
        "range", "4.0.0", {"dispatcherMaxReadBatchSize": 7, "subscriptionKeySharedUseConsistentHashing": True}
    )
    assert rules.broker_version == "4.0.0"
    assert rules.settings["dispatcherMaxReadBatchSize"] == 7
    assert rules.settings["subscriptionKeySharedUseConsistentHashing"] is False


def test_what_a_command_line_asks_for() -> None:
    ring = {"activeConsumerFailoverConsistentHashing": True}
    assert asked_for([], None, {}, matrix=False) == [RECORDED]
    assert asked_for([], None, {}, matrix=True) == []
    assert asked_for([], "4.2.4", ring, matrix=False) == [
        RuleSet("4.2.4 activeConsumerFailoverConsistentHashing=true", "4.2.4", ring)
    ]
    assert [rules.name for rules in asked_for(["ch", "3.0.17-ch"], None, {}, matrix=True)] == [
        "ch",
        "3.0.17-ch",
    ]


def test_the_matrix_has_every_rule_once(tmp_path: Path) -> None:
    recorded = log(tmp_path)
    profiles = [rules.profile_for(recorded) for rules in matrix_for(recorded, None, {})]
    assert {profile.ordering for profile in profiles} == {
        OrderingRule.DRAINING_HASHES,
        OrderingRule.READ_POSITION,
        OrderingRule.LAST_SENT_POSITION,
    }
    assert len({(profile.broker_version, profile.name) for profile in profiles}) == len(profiles)
    names = [rules.name for rules in matrix_for(recorded, None, {})]
    assert names[:4] == ["4.2.4-ch", "4.2.4-range", "4.2.4-classic-ch", "4.2.4-classic-range"]
    assert "5.0.1-classic-ch" not in names  # 5.0 has none


def test_the_matrix_of_failover_and_of_sticky_ranges(tmp_path: Path) -> None:
    failover = log(tmp_path / "1", subscription_type="Failover", partition_index=0)
    assert [rules.name for rules in matrix_for(failover, None, {})] == ["4.2.4-modulo", "4.2.4-ring"]
    old = log(tmp_path / "2", "3.0.1", subscription_type="Failover", partition_index=0)
    assert [rules.name for rules in matrix_for(old, None, {})] == ["3.0.1-modulo", "3.0.17-ring"]
    ranges = [[0, 65535]]
    sticky = added(1) | {"key_shared": {"mode": "STICKY", "allow_out_of_order": False, "ranges": ranges}}
    announced = read(write(tmp_path / "3" / "b", [message(0, "k")], numbered([sticky])))
    names = [rules.name for rules in matrix_for(announced, None, {})]
    assert names[:2] == ["4.2.4", "4.2.4-classic"]
    assert not any(name.endswith(("ch", "range")) for name in names)


def test_a_log_without_a_release_needs_one(tmp_path: Path) -> None:
    recorded = log(tmp_path, None)
    assert {rules.broker_version for rules in matrix_for(recorded, None, {})} == {
        "3.0.17",
        "4.0.0-preview.1",
        "4.2.4",
    }
    with pytest.raises(ProfileError, match="--broker-version"):
        named("ch").profile_for(recorded)


UNBLOCK = "keySharedUnblockingIntervalMs"


def test_settings_that_change_nothing_are_named(tmp_path: Path) -> None:
    shared = log(tmp_path / "1")
    failover = log(tmp_path / "2", subscription_type="Failover", partition_index=-1)
    ring = {"activeConsumerFailoverConsistentHashing": True}
    cases: list[tuple[DispatcherLog, str, dict[str, Any], str]] = [
        (shared, "4.2.4", ring, "no effect on a subscription with several consumers"),
        (failover, "4.2.4", ring, "always uses the ring"),
        (failover, "3.0.1", ring, "no effect in 3.0.1"),
        (failover, "4.2.4", {"subscriptionKeySharedUseConsistentHashing": True}, "with one active consumer"),
        (shared, "4.2.4", {"clusterName": "eu"}, "changes no decision that is simulated"),
        (shared, "4.2.4", {UNBLOCK: "soon"}, "its default of 10 is taken"),
        (shared, "3.0.17", {UNBLOCK: 20}, "no effect on the dispatcher of 3.x"),
        (shared, "4.0.0-preview.1", {UNBLOCK: 20}, "no effect in 4.0.0-preview.1"),
        (failover, "4.2.4", {"dispatcherRetryBackoffMaxTimeInMs": 20}, "with one active consumer"),
    ]
    for recorded, version, settings, said in cases:
        rules = RuleSet("given", version, settings)
        (text,) = without_effect(rules, rules.profile_for(recorded))
        assert said in text
    effective = RuleSet("given", None, {"dispatcherMaxReadBatchSize": 7, UNBLOCK: "20"})
    assert without_effect(effective, effective.profile_for(shared)) == ()
    assert effective.timers == {UNBLOCK: "20"}
