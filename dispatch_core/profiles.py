"""Broker release + ``broker.conf`` → which variant of each rule holds.

A *profile* is everything the core needs to know about a broker before the first event. It is computed once, from the
release named in a log's header and the settings in force there, and never changes during a replay.

How a release maps to rules is data (``_CHANGES``): for each change the first patch release of every line that has it.
Source: the release notes and commits of each line, by pull request number.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from dispatch_core import hashing
from dispatch_core.errors import ProfileError

Version = tuple[int, int, int]


class Dispatcher(Enum):
    """Which dispatcher the broker would build for the subscription."""

    SINGLE_ACTIVE = "single active consumer"  # PersistentDispatcherSingleActiveConsumer
    KEY_SHARED = "sticky key"  # PersistentStickyKeyDispatcherMultipleConsumers
    KEY_SHARED_CLASSIC = "sticky key, classic"  # …Classic
    SHARED = "shared"  # not replayed


class OrderingRule(Enum):
    """How per-key order is kept when a hash changes its owner."""

    NONE = "none"
    READ_POSITION = "read position"  # 3.x and classic
    LAST_SENT_POSITION = "last sent position"  # PIP-282
    DRAINING_HASHES = "draining hashes"  # PIP-379


class FailoverRule(Enum):
    """How the active consumer of a partition is chosen."""

    MODULO = "modulo"
    RING = "ring"


#: First release of each line with the change; a line that is absent never has it, a later line always has it.
_CHANGES: Final[dict[str, dict[tuple[int, int], int]]] = {
    "failover_ring_flag": {(3, 0): 8, (3, 3): 3, (4, 0): 1, (4, 1): 0},  # #23584, PIP-392
    "blocked_hash_memory": {(4, 0): 3, (4, 1): 0},  # #23874
    "added_ranges": {(4, 0): 7, (4, 1): 1, (4, 2): 0},  # #24736
    "remaining_unacked_count": {(4, 0): 11, (4, 2): 2},  # #25592
    "look_ahead_needs_more": {(4, 0): 13, (4, 2): 4},  # #26236
    "failover_read_epoch": {(4, 0): 13, (4, 2): 4},  # #26174
    "waiting_read_gets_entries": {(4, 0): 8, (4, 1): 2, (4, 2): 0},  # #24898
    "batch_index_ack_default": {(4, 1): 0},  # #24203, PIP-391
}

NEWEST_KNOWN: Final[Version] = (5, 0, 1)
OLDEST_KNOWN: Final[Version] = (3, 0, 0)
PREVIEW_PIP_282: Final = "4.0.0-preview.1"

#: Settings the core reads, with the defaults of 4.2. Lines that differ are handled in ``_defaults``.
_DEFAULTS: Final[dict[str, int | bool]] = {
    "activeConsumerFailoverDelayTimeMillis": 1000,
    "activeConsumerFailoverConsistentHashing": False,
    "subscriptionKeySharedUseConsistentHashing": True,
    "subscriptionKeySharedConsistentHashingReplicaPoints": 100,
    "subscriptionKeySharedUseClassicPersistentImplementation": False,
    "keySharedLookAheadMsgInReplayThresholdPerConsumer": 2000,
    "keySharedLookAheadMsgInReplayThresholdPerSubscription": 20000,
    "keySharedUnblockingIntervalMs": 10,
    "dispatcherMaxReadBatchSize": 100,
    "dispatcherMinReadBatchSize": 1,
    "maxUnackedMessagesPerConsumer": 50000,
    "maxUnackedMessagesPerSubscription": 200000,
    "preciseDispatcherFlowControl": False,
}


@dataclass(frozen=True, slots=True)
class Profile:
    """The rules in force. Settings keep their ``broker.conf`` names, in ``settings``."""

    broker_version: str
    version: Version
    dispatcher: Dispatcher
    ordering: OrderingRule
    consistent_hashing: bool  # Key_Shared AUTO_SPLIT: ring (True) or range split (False)
    hash_space: hashing.HashSpace
    fallback_key: bool  # key-less entries hashed by producer and sequence id
    failover: FailoverRule
    changes: frozenset[str]  # names of ``_CHANGES`` that this release contains
    settings: Mapping[str, int | bool]
    ignored_settings: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        """A short name for people, e.g. ``4.2.4 sticky key, draining hashes, consistent hashing``."""
        if self.dispatcher is Dispatcher.SINGLE_ACTIVE:
            return f"{self.broker_version} {self.dispatcher.value}, {self.failover.value}"
        if self.dispatcher is Dispatcher.SHARED:
            return f"{self.broker_version} {self.dispatcher.value}"
        selector = "consistent hashing" if self.consistent_hashing else "auto-split hash range"
        return f"{self.broker_version} {self.dispatcher.value}, {self.ordering.value}, {selector}"

    @property
    def digest(self) -> str:
        """Identifies release and settings; part of a snapshot's key."""
        text = json.dumps(
            [self.broker_version, self.name, sorted(self.settings.items())], separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def number(self, setting: str) -> int:
        """The value of a numeric setting by its ``broker.conf`` name."""
        return int(self.settings[setting])


def parse_version(text: str) -> Version:
    """``"4.2.4"``, ``"4.0.0-preview.1"``, ``"4.1.0-SNAPSHOT"`` → (major, minor, patch).

    Raises ``ProfileError`` for text that is no version and for versions below 3.0.0.
    """
    match = (
        re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:[-.][0-9A-Za-z.-]+)?", text.strip())
        if isinstance(text, str)
        else None
    )
    if match is None:
        raise ProfileError(
            f"broker version {text!r} is not a version such as 4.2.4: correct it in the log's header "
            "or give the right one with --broker-version"
        )
    version = (int(match[1]), int(match[2]), int(match[3]))
    if version < OLDEST_KNOWN:
        raise ProfileError(
            f"broker version {text} is below 3.0.0, the oldest release whose rules are known here"
        )
    return version


def _contains(version: Version, change: str) -> bool:
    lines = _CHANGES[change]
    line = version[:2]
    if line in lines:
        return version[2] >= lines[line]
    return line > max(lines)


def resolve(
    broker_version: str,
    config: Mapping[str, Any] | None = None,
    *,
    subscription_type: str = "Key_Shared",
    partition_index: int = -1,
    key_shared_mode: str = "AUTO_SPLIT",
    allow_out_of_order: bool = False,
) -> Profile:
    """Return the profile of a subscription.

    ``config``: values in force under their ``broker.conf`` names; absent ones take the release's default.
    Raises ``ProfileError`` for a version or value no rule can be derived from.
    """
    version = parse_version(broker_version)
    warnings: list[str] = []
    if version > NEWEST_KNOWN:
        newest = ".".join(map(str, NEWEST_KNOWN))
        warnings.append(
            f"broker version {broker_version} is newer than {newest}: the rules of {newest} were used"
        )
        version = NEWEST_KNOWN
    preview = broker_version.strip().removeprefix("v") == PREVIEW_PIP_282
    settings, ignored = _settings(version, config or {})
    changes = frozenset() if preview else frozenset(name for name in _CHANGES if _contains(version, name))
    dispatcher = _dispatcher(version, preview, settings, subscription_type)
    consistent = (
        bool(settings["subscriptionKeySharedUseConsistentHashing"]) and key_shared_mode == "AUTO_SPLIT"
    )
    modern = version >= (4, 0, 0) and not preview
    if not modern:
        space = hashing.MURMUR_31
    elif not consistent:
        space = hashing.RANGE_4X
    elif dispatcher is Dispatcher.KEY_SHARED_CLASSIC:
        space = hashing.CONSISTENT_CLASSIC
    else:
        space = hashing.CONSISTENT_4X
    ring = bool(settings["activeConsumerFailoverConsistentHashing"]) and "failover_ring_flag" in changes
    return Profile(
        broker_version=broker_version.strip(),
        version=version,
        dispatcher=dispatcher,
        ordering=_ordering(dispatcher, preview, key_shared_mode, allow_out_of_order),
        consistent_hashing=consistent,
        hash_space=space,
        fallback_key=modern,
        failover=FailoverRule.RING if ring or partition_index < 0 else FailoverRule.MODULO,
        changes=changes,
        settings=settings,
        ignored_settings=ignored,
        warnings=tuple(warnings),
    )


def partition_index(header: Mapping[str, Any]) -> int:
    """The topic's partition index from a log's header; -1 = not partitioned. Raises ``ProfileError`` for no integer."""
    value = header.get("partition_index")
    if value is None:
        return -1
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProfileError(f"partition_index {value!r} in the log's header is no integer: correct the header")
    return value


def _settings(version: Version, config: Mapping[str, Any]) -> tuple[dict[str, int | bool], tuple[str, ...]]:
    if not isinstance(config, Mapping):
        raise ProfileError(
            f"the header's config is no table of settings but {str(config)[:80]!r}: correct the header"
        )
    settings = dict(_DEFAULTS)
    if version >= (5, 0, 0):  # #25992
        settings["keySharedLookAheadMsgInReplayThresholdPerConsumer"] = 4000
        settings["keySharedLookAheadMsgInReplayThresholdPerSubscription"] = 40000
    for name, default in _DEFAULTS.items():
        if name not in config:
            continue
        value = config[name]
        wanted = bool if isinstance(default, bool) else int
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise ProfileError(
                f"setting {name} = {value!r}: expected {'true or false' if wanted is bool else 'an integer'}"
            )
        settings[name] = value
    return settings, tuple(sorted(set(config) - set(_DEFAULTS)))


def _dispatcher(
    version: Version, preview: bool, settings: Mapping[str, int | bool], subscription_type: str
) -> Dispatcher:
    if subscription_type in ("Failover", "Exclusive"):
        return Dispatcher.SINGLE_ACTIVE
    if subscription_type == "Shared":
        return Dispatcher.SHARED
    if subscription_type != "Key_Shared":
        raise ProfileError(
            f"subscription type {subscription_type!r} is none of Key_Shared, Failover, Exclusive, Shared: "
            "correct the log's header"
        )
    classic_flag = bool(settings["subscriptionKeySharedUseClassicPersistentImplementation"])
    if version < (4, 0, 0) or (classic_flag and not preview and version < (5, 0, 0)):
        return Dispatcher.KEY_SHARED_CLASSIC
    return Dispatcher.KEY_SHARED


def _ordering(
    dispatcher: Dispatcher, preview: bool, key_shared_mode: str, allow_out_of_order: bool
) -> OrderingRule:
    if dispatcher in (Dispatcher.SINGLE_ACTIVE, Dispatcher.SHARED) or allow_out_of_order:
        return OrderingRule.NONE
    if dispatcher is Dispatcher.KEY_SHARED_CLASSIC:
        return OrderingRule.READ_POSITION
    if key_shared_mode != "AUTO_SPLIT":
        return OrderingRule.NONE
    return OrderingRule.LAST_SENT_POSITION if preview else OrderingRule.DRAINING_HASHES
