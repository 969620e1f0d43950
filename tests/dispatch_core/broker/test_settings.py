"""Settings under their broker.conf names: read, refused and ignored ones, and the defaults of each release line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dispatch_core.broker import settings
from dispatch_core.broker.client_settings import OWNERS, client_setting
from dispatch_core.broker.profiles import Dispatcher, resolve
from dispatch_core.errors import ProfileError

ROOT = Path(__file__).resolve().parents[3]
CLASSIC = "subscriptionKeySharedUseClassicPersistentImplementation"
LOOK_AHEAD = "keySharedLookAheadMsgInReplayThresholdPer"


@pytest.mark.parametrize(
    ("name", "by_release"),
    [
        ("activeConsumerFailoverDelayTimeMillis", {"3.0.0": 1000, "4.2.4": 1000, "5.0.1": 1000}),
        ("activeConsumerFailoverConsistentHashing", {"3.0.0": False, "4.2.4": False}),
        ("subscriptionKeySharedUseConsistentHashing", {"3.0.0": True, "5.0.1": True}),
        ("subscriptionKeySharedConsistentHashingReplicaPoints", {"3.0.0": 100, "5.0.1": 100}),
        (CLASSIC, {"3.0.0": False, "4.0.0": False, "4.2.4": False}),
        (f"{LOOK_AHEAD}Consumer", {"4.0.0-preview.1": 2000, "4.0.0": 2000, "4.2.4": 2000, "5.0.1": 4000}),
        (f"{LOOK_AHEAD}Subscription", {"4.0.0-preview.1": 20000, "4.2.4": 20000, "5.0.1": 40000}),
        ("dispatcherMaxReadBatchSize", {"3.0.0": 100, "5.0.1": 100}),
        ("maxUnackedMessagesPerConsumer", {"3.0.0": 50000, "5.0.1": 50000}),
        ("maxUnackedMessagesPerSubscription", {"3.0.0": 200000, "5.0.1": 200000}),
        ("preciseDispatcherFlowControl", {"3.0.0": False, "5.0.1": False}),
        (
            "acknowledgmentAtBatchIndexLevelEnabled",
            {"3.3.9": False, "4.0.0-preview.1": False, "4.0.13": False, "4.1.0": True, "5.0.1": True},
        ),
    ],
)
def test_defaults_per_line(name: str, by_release: dict[str, int | bool]) -> None:
    assert {release: resolve(release).settings[name] for release in by_release} == by_release


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("dispatcherMaxReadBatchSize", 16, 16),
        ("dispatcherMaxReadBatchSize", " 16 ", 16),
        ("activeConsumerFailoverDelayTimeMillis", "-1", -1),
        ("preciseDispatcherFlowControl", "TRUE", True),
        ("preciseDispatcherFlowControl", False, False),
    ],
)
def test_values_are_read_as_broker_conf_writes_them(name: str, given: object, read: object) -> None:
    assert resolve("4.2.4", {name: given}).settings[name] == read


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("dispatcherMaxReadBatchSize", "many", "an integer"),
        ("dispatcherMaxReadBatchSize", 0, "an integer from 1 to"),
        ("dispatcherMaxReadBatchSize", 1.5, "an integer"),
        ("dispatcherMaxReadBatchSize", True, "an integer"),
        ("dispatcherMaxReadBatchSize", None, "an integer"),
        ("dispatcherMaxReadBatchSize", 2**31, "an integer from"),
        ("dispatcherMaxReadBatchSize", "٣", "an integer"),
        ("maxUnackedMessagesPerConsumer", "9" * 5000, "an integer"),
        ("preciseDispatcherFlowControl", 1, "true or false"),
        ("preciseDispatcherFlowControl", "yes", "true or false"),
        ("subscriptionKeySharedConsistentHashingReplicaPoints", 0, "from 1 to"),
    ],
)
def test_a_value_no_rule_follows_from_is_named(name: str, value: object, says: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(name)) as caught:
        resolve("4.2.4", {name: value})
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("maxUnackedMessagePerConsumer", "maxUnackedMessagesPerConsumer"),
        ("MAXUNACKEDMESSAGESPERCONSUMER", "maxUnackedMessagesPerConsumer"),
        ("keySharedUnblockingInterval", "keySharedUnblockingIntervalMs"),
        ("dispatcherMaxReadBatch", "dispatcherMaxReadBatchSize"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ProfileError, match=f"the nearest is {nearest}"):
        resolve("4.2.4", {name: 1})


@pytest.mark.parametrize(
    ("name", "whose", "shown"),
    [
        ("receiverQueueSize", "the client's consumer", "permits"),
        ("receiver_queue_size", "the client's consumer", "permits"),
        ("acktimeoutmillis", "the client's consumer", "redelivery requests"),
        ("batchingMaxMessages", "the client's producer", "numbers of messages"),
        ("serviceUrl", "the client", "no decision of the broker depends on it"),
    ],
)
def test_a_clients_setting_is_called_one_with_the_next_step(name: str, whose: str, shown: str) -> None:
    with pytest.raises(ProfileError) as caught:
        settings.given([f"{name}=5"])
    text = str(caught.value)
    assert f"{name!r} is no setting of broker.conf but a setting of {whose}: " in text
    assert shown in text
    assert text.endswith("change it in the client and record again")


def test_a_misspelt_setting_of_a_client_is_called_one() -> None:
    with pytest.raises(
        ProfileError, match="nearest is receiverQueueSize, a setting of the client's consumer"
    ):
        settings.check_name("recieverQueueSize")


def test_no_setting_of_a_client_is_one_of_the_broker() -> None:
    assert set(OWNERS).isdisjoint(settings.known_names())
    assert {client_setting(name) for name in OWNERS} == set(OWNERS)


def test_a_known_name_that_changes_no_decision_is_listed_as_ignored() -> None:
    config = {"clusterName": "eu", "brokerServicePort": 6650, "dispatcherMaxReadBatchSize": 16}
    assert resolve("4.2.4", config).ignored_settings == ("brokerServicePort", "clusterName")


def test_a_setting_that_a_release_does_not_know_has_no_effect_there() -> None:
    flag = {CLASSIC: True, f"{LOOK_AHEAD}Consumer": 7, "keySharedUnblockingIntervalMs": 3}
    preview = resolve("4.0.0-preview.1", flag)
    assert preview.dispatcher is Dispatcher.KEY_SHARED
    assert preview.ignored_settings == ("keySharedUnblockingIntervalMs", CLASSIC)
    assert preview.number(f"{LOOK_AHEAD}Consumer") == 7
    old = resolve("3.1.3", {"activeConsumerFailoverConsistentHashing": True})
    assert old.ignored_settings == ("activeConsumerFailoverConsistentHashing",)
    gone = resolve("5.0.1", {CLASSIC: True})
    assert (gone.dispatcher, gone.ignored_settings) == (Dispatcher.KEY_SHARED, (CLASSIC,))


@pytest.mark.parametrize("config", [[], "x", 3])
def test_a_config_that_is_no_table_is_an_error(config: object) -> None:
    with pytest.raises(ProfileError, match="table of settings"):
        resolve("4.2.4", config)  # type: ignore[arg-type]


def test_assignments_of_a_command_line() -> None:
    assert settings.given(["dispatcherMaxReadBatchSize=16", "dispatcherMaxReadBatchSize = 17"]) == {
        "dispatcherMaxReadBatchSize": 17
    }
    for text in ("dispatcherMaxReadBatchSize", "=3", "dispatcherMaxReadBatchSize=", "dispatcherMaxRead=3"):
        with pytest.raises(ProfileError):
            settings.given([text])


def test_every_setting_that_counts_as_read_is_read_and_documented() -> None:
    """An unused setting would be listed as used."""
    sources = [p for p in (ROOT / "dispatch_core").rglob("*.py") if p.name != "settings.py"]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for name in settings.SETTINGS:
        assert f'"{name}"' in code
        assert f"`{name}`" in page
    assert set(settings.SETTINGS) <= settings.known_names()
