"""Profiles: the variant of each rule that holds for a broker release and its ``broker.conf``.

A *profile* is everything the core needs to know about a broker before the first event. It is computed once, from the
release named in a log's header and the settings in force there, and never changes during a replay.

The map from releases to rules is data (``_CHANGES``): for each change the first patch release of every line that has it.
Source: the release notes and commits of each line, by pull request number. Lines below 3.0, which no recordings confirm, are
in ``old_releases``.

>>> resolve("4.2.4").ordering.value, resolve("3.0.17").ordering.value, resolve("4.0.0-preview.1").ordering.value
('draining hashes', 'read position', 'last sent position')
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from dispatch_core.broker import hashing, old_releases, settings
from dispatch_core.broker.versions import PREVIEW_PIP_282, Version, parse_version, reached, suffix, text_of
from dispatch_core.errors import ProfileError

_MAX_PARTITION: Final = 2**31 - 1
#: Profiles kept.
_KEPT: Final = 64


class Dispatcher(Enum):
    """The dispatcher that the broker builds for the subscription."""

    SINGLE_ACTIVE = "single active consumer"  # PersistentDispatcherSingleActiveConsumer
    KEY_SHARED = "sticky key"  # PersistentStickyKeyDispatcherMultipleConsumers
    KEY_SHARED_CLASSIC = "sticky key, classic"  # …Classic
    SHARED = "shared"  # PersistentDispatcherMultipleConsumers
    SHARED_CLASSIC = "shared, classic"  # …Classic
    # NonPersistentDispatcherSingleActiveConsumer
    NON_PERSISTENT_SINGLE_ACTIVE = "non-persistent, single active consumer"
    # NonPersistentStickyKeyDispatcherMultipleConsumers
    NON_PERSISTENT_KEY_SHARED = "non-persistent, sticky key"
    # NonPersistentDispatcherMultipleConsumers
    NON_PERSISTENT_SHARED = "non-persistent, shared"


_NON_PERSISTENT: Final = {
    "Exclusive": Dispatcher.NON_PERSISTENT_SINGLE_ACTIVE,
    "Failover": Dispatcher.NON_PERSISTENT_SINGLE_ACTIVE,
    "Key_Shared": Dispatcher.NON_PERSISTENT_KEY_SHARED,
    "Shared": Dispatcher.NON_PERSISTENT_SHARED,
}
#: Beginning of the name of a topic whose messages are stored nowhere (TopicDomain.non_persistent).
_NON_PERSISTENT_TOPIC: Final = "non-persistent://"


def is_non_persistent(topic: str | None) -> bool:
    """True if a topic is a non-persistent one, by its full name.

    >>> is_non_persistent("non-persistent://public/default/t"), is_non_persistent("persistent://public/default/t")
    (True, False)
    """
    return topic is not None and topic.startswith(_NON_PERSISTENT_TOPIC)


class OrderingRule(Enum):
    """The rule that keeps per-key order when a hash changes its owner."""

    NONE = "none"
    READ_POSITION = "read position"  # 3.x and classic
    LAST_SENT_POSITION = "last sent position"  # PIP-282
    DRAINING_HASHES = "draining hashes"  # PIP-379


class FailoverRule(Enum):
    """The rule that chooses the active consumer of a partition."""

    MODULO = "modulo"
    RING = "ring"


class RingVariant(Enum):
    """The way in which Key_Shared's consistent hashing places consumers on its ring."""

    A_REPLACING = "name and point, replacing"  # 2.6, until #8396: the later joiner replaces
    A = "name and point"  # consumers on one point share it by hash
    A0 = "name, NUL, point"  # #22053; sharing as A
    B = "name, NUL, index, NUL, point"  # #23327; the later joiner replaces
    C = "as B over 65535 slots"  # #23352, #23441, #23447; the first joiner keeps, others inherit
    C_CLASSIC = "as C over 2147483646 slots"


#: First release of each line with the change; a line that is absent never has it, a later line always has it. Rows of
#: the release notes that every line from 3.0 on contains (ring for non-partitioned Failover #19502, liveness probe
#: #20026, replay-hash rule #10762, min-replay rule #12890) are rows of ``old_releases``; pure lock
#: or log changes (#23854) are rows of neither.
_CHANGES: Final[dict[str, dict[tuple[int, int], int]]] = {
    # Key_Shared selectors
    "ring_point_separator": {(3, 0): 3, (3, 1): 3, (3, 2): 1, (3, 3): 0},  # #22053, variant A0
    "ring_name_index": {(3, 0): 7, (3, 3): 2, (4, 0): 0},  # #23327, variant B
    "ring_keeps_owner": {(4, 0): 0},  # #23352, #23441, #23447, variant C: 65535 slots, collisions queue
    "sticky_ranges_exact": {(3, 0): 14, (3, 3): 9, (4, 0): 7, (4, 1): 1, (4, 2): 0},  # #24730
    "sticky_removes_by_identity": {(5, 0): 0},  # the exclusive selector of 5.0.1; `equals` before
    # key-less entries
    "fallback_key": {(4, 0): 0},  # #23219
    # ordering rules
    "last_sent_position": {},  # #21953, PIP-282: one preview only
    "draining_hashes": {(4, 0): 0},  # #23352, #23423, #23429, PIP-379
    "classic_dispatchers": {(4, 0): 0},  # #23424
    "sticky_never_recently_joined": {(4, 0): 0},  # #23275
    "recently_joined_sorted": {(3, 0): 9, (3, 3): 4, (4, 0): 2},  # #23795, #23802
    "recently_joined_sorted_if_needed": {(3, 0): 14, (3, 3): 9, (4, 0): 7, (4, 1): 1, (4, 2): 0},  # #24634
    "blocked_hash_memory": {(4, 0): 3, (4, 1): 0},  # #23874
    "added_ranges": {(4, 0): 7, (4, 1): 1, (4, 2): 0},  # #24736
    # dispatch loop
    "no_stuck_consumers": {(3, 0): 1},  # #20335
    "replay_pre_filter": {(3, 0): 5, (3, 2): 3, (3, 3): 0},  # #22245, #22533
    "retry_backoff": {(4, 0): 0},  # #23226; reverted in 3.0 and 3.3 before a release had it
    "look_ahead_limit": {(4, 0): 0},  # #23231
    "cancel_clears_replay_read": {(3, 0): 7, (3, 3): 2, (4, 0): 0},  # #23384
    "byte_limit_on_replay": {(4, 0): 3, (4, 1): 0},  # #23894
    "shared_batch_size": {(4, 0): 4, (4, 1): 0},  # #24092, #24117
    "waiting_read_gets_entries": {(3, 0): 15, (3, 3): 10, (4, 0): 8, (4, 1): 2, (4, 2): 0},  # #24898
    "look_ahead_needs_more": {(4, 0): 13, (4, 2): 4},  # #26236
    "out_of_order_by_permits": {(4, 0): 14, (4, 2): 5},  # #26268, on both lines after the newest release
    "larger_look_ahead": {(5, 0): 0},  # #25992, defaults only
    # acknowledgements and permits
    "batch_index_ack_default": {(4, 1): 0},  # #24203, PIP-391
    "unblock_before_lowering": {(3, 0): 2, (3, 1): 1, (3, 2): 0},  # #21126
    "unblock_again_after_lowering": {(3, 0): 10, (3, 3): 5, (4, 0): 3},  # #23796
    "trim_only_on_expiry": {(4, 0): 11, (4, 2): 2},  # #25581: no trimming at read attempts
    "redeliver_in_one_batch": {(4, 0): 11, (4, 2): 2},  # #25589
    "remaining_unacked_count": {(4, 0): 11, (4, 2): 2},  # #25592
    # statistics
    "replay_set_stat": {(3, 0): 7, (3, 2): 5, (3, 3): 2, (4, 0): 0},  # #23224, msgInReplay
    # Failover and Exclusive
    "dead_exclusive_replaced": {(3, 0): 2, (3, 2): 0},  # #21183
    "failover_ring_flag": {(3, 0): 8, (3, 3): 3, (4, 0): 1, (4, 1): 0},  # #23584, PIP-392
    "failover_read_epoch": {(4, 0): 13, (4, 2): 4},  # #26174
    # non-persistent topics
    "non_persistent_removal_lowers_total": {(3, 0): 15, (4, 0): 8, (4, 1): 2, (4, 2): 0},  # #24885
}

#: Changes that were taken back or replaced: first release of each line *without* them, read like ``_CHANGES``.
_GONE: Final[dict[str, dict[tuple[int, int], int]]] = {
    "cancel_clears_replay_read": {(3, 0): 10, (3, 3): 5, (4, 0): 3},  # #23855
    "unblock_before_lowering": {(4, 0): 11, (4, 2): 2},  # #25592: tested once, after
    "classic_dispatchers": {(5, 0): 0},
}

#: What 4.0.0-preview.1 (2024-09-27) contains: cut from the main line before PIP-379 replaced PIP-282.
_IN_PREVIEW: Final = frozenset(
    (
        "ring_point_separator",
        "last_sent_position",
        "sticky_never_recently_joined",
        "no_stuck_consumers",
        "replay_pre_filter",
        "retry_backoff",
        "look_ahead_limit",
        "unblock_before_lowering",
        "replay_set_stat",
        "dead_exclusive_replaced",
    )
)

#: Newest release of each line whose rules are known; later ones of a line take what the line's tip held in August 2026.
_NEWEST_OF_LINE: Final[dict[tuple[int, int], int]] = {
    (3, 0): 17, (3, 1): 3, (3, 2): 4, (3, 3): 9, (4, 0): 13, (4, 1): 3, (4, 2): 4, (5, 0): 1,
}  # fmt: skip
NEWEST_KNOWN: Final[Version] = (5, 0, 1)


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
    partition_index: int  # -1 = not partitioned
    key_shared_mode: str  # AUTO_SPLIT or STICKY
    allow_out_of_order: bool
    changes: frozenset[str]  # names of ``_CHANGES`` and ``old_releases.CHANGES`` that this release contains
    settings: Mapping[str, int | bool]
    ignored_settings: tuple[str, ...]  # given, but without effect on dispatch or unknown to the release
    warnings: tuple[str, ...]  # belong into every verdict

    @property
    def name(self) -> str:
        """A short name for people, e.g. ``4.2.4 sticky key, draining hashes, consistent hashing``."""
        release, rules = self.broker_version, text_of(self.version)
        if release.removeprefix("v") not in (rules, PREVIEW_PIP_282):
            release = f"{release} by the rules of {rules}"
        if self.dispatcher in (Dispatcher.SINGLE_ACTIVE, Dispatcher.NON_PERSISTENT_SINGLE_ACTIVE):
            return f"{release} {self.dispatcher.value}, {self.failover.value}"
        if self.is_shared:
            return f"{release} {self.dispatcher.value}"
        selector = "consistent hashing" if self.consistent_hashing else "auto-split hash range"
        if self.key_shared_mode == "STICKY":
            selector = "sticky ranges"
        if self.is_non_persistent:
            return f"{release} {self.dispatcher.value}, {selector}"
        return f"{release} {self.dispatcher.value}, {self.ordering.value}, {selector}"

    @property
    def is_shared(self) -> bool:
        """True for a Shared subscription."""
        return self.dispatcher in (
            Dispatcher.SHARED,
            Dispatcher.SHARED_CLASSIC,
            Dispatcher.NON_PERSISTENT_SHARED,
        )

    @property
    def is_non_persistent(self) -> bool:
        """True for a subscription of a non-persistent topic."""
        return self.dispatcher in _NON_PERSISTENT.values()

    @property
    def digest(self) -> str:
        """An identifier of release and settings, part of a snapshot's key."""
        text = json.dumps(
            [self.broker_version, self.name, sorted(self.settings.items())], separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def ring_variant(self) -> RingVariant:
        """The ring that Key_Shared's consistent hashing uses in this release.

        >>> [resolve(version).ring_variant.name for version in ("3.1.2", "3.1.3", "3.0.7", "4.0.0")]
        ['A', 'A0', 'B', 'C']
        """
        if "ring_keeps_owner" in self.changes:
            return (
                RingVariant.C_CLASSIC if self.dispatcher is Dispatcher.KEY_SHARED_CLASSIC else RingVariant.C
            )
        if "ring_name_index" in self.changes:
            return RingVariant.B
        if "ring_points_shared" not in self.changes:
            return RingVariant.A_REPLACING
        return RingVariant.A0 if "ring_point_separator" in self.changes else RingVariant.A

    def number(self, setting: str) -> int:
        """Return the value of a numeric setting by its ``broker.conf`` name."""
        return int(self.settings[setting])


def contains(version: Version, change: str) -> bool:
    """True if a release has a change: it is at or past the first with it, and before the first without it again.

    >>> [contains(version, "added_ranges") for version in ((4, 0, 6), (4, 0, 7), (4, 2, 4))]
    [False, True, True]
    """
    return reached(version, _CHANGES[change]) and not reached(version, _GONE.get(change, {}))


def first_releases(change: str, *, without: bool = False) -> list[Version]:
    """Return the first release of each line with a change, or the first ``without`` it again.

    >>> first_releases("cancel_clears_replay_read", without=True)
    [(3, 0, 10), (3, 3, 5), (4, 0, 3)]
    """
    lines = _GONE.get(change, {}) if without else _CHANGES[change]
    return [(*line, patch) for line, patch in sorted(lines.items())]


def known_releases() -> list[Version]:
    """Return every release whose rules are known, of the lines that recordings confirm (3.0 on), oldest first."""
    return [(*line, patch) for line, newest in sorted(_NEWEST_OF_LINE.items()) for patch in range(newest + 1)]


def _known(broker_version: str, version: Version) -> tuple[Version, tuple[str, ...]]:
    """Return the release whose rules are used, and the warnings about that."""
    line = version[:2]
    if old_releases.is_old(version):
        return _known_old(broker_version, version)
    if version > NEWEST_KNOWN:
        newest = text_of(NEWEST_KNOWN)
        return NEWEST_KNOWN, (
            f"broker version {broker_version} is newer than {newest}, the newest known: the rules of {newest} were used",
        )
    if line not in _NEWEST_OF_LINE:
        below = max(known for known in _NEWEST_OF_LINE if known < line)
        tip = (*below, _NEWEST_OF_LINE[below])
        return tip, (
            f"broker version {broker_version} belongs to no known line: the rules of {text_of(tip)} were used",
        )
    if version[2] > _NEWEST_OF_LINE[line]:
        newest = text_of((*line, _NEWEST_OF_LINE[line]))
        return version, (
            f"broker version {broker_version} is newer than {newest}, the newest known of its line: the rules of "
            f"{newest} were used, with what the line had received by August 2026",
        )
    named = suffix(broker_version)
    if named and broker_version.removeprefix("v") != PREVIEW_PIP_282:
        release = text_of(version)
        return version, (f"broker version {broker_version} is no release: the rules of {release} were used",)
    return version, ()


def _known_old(broker_version: str, version: Version) -> tuple[Version, tuple[str, ...]]:
    """Return the release below 3.0 whose rules are used, and the warnings about that."""
    line, newest_of = version[:2], old_releases.NEWEST_OF_LINE
    used = version
    if line not in newest_of:
        below = max(known for known in newest_of if known < line)
        used = (*below, newest_of[below])
    elif version[2] > newest_of[line]:
        used = (*line, newest_of[line])
    warning = old_releases.WARNING.format(release=text_of(used))
    if used == version and not suffix(broker_version):
        return used, (warning,)
    return used, (
        f"broker version {broker_version} is no known release: the rules of {text_of(used)} were used",
        warning,
    )


def resolve(
    broker_version: str,
    config: Mapping[str, Any] | None = None,
    *,
    subscription_type: str = "Key_Shared",
    partition_index: int = -1,
    key_shared_mode: str = "AUTO_SPLIT",
    allow_out_of_order: bool = False,
    non_persistent: bool = False,
) -> Profile:
    """Return the profile of a subscription.

    ``config``: values in force under their ``broker.conf`` names; absent ones take the release's default.
    ``non_persistent``: of a non-persistent topic (``is_non_persistent``).
    Raises ``ProfileError`` for a version or value no rule can be derived from.
    """
    settings_text = None if config is None else json.dumps(config)
    return _resolved(
        broker_version,
        settings_text,
        subscription_type,
        partition_index,
        key_shared_mode,
        allow_out_of_order,
        non_persistent,
    )


@lru_cache(maxsize=_KEPT)
def _resolved(
    broker_version: str,
    settings_text: str | None,
    subscription_type: str,
    partition_index: int,
    key_shared_mode: str,
    allow_out_of_order: bool,
    non_persistent: bool,
) -> Profile:
    """Return the profile of a subscription; the last ones are kept, as a run has many dispatchers of few profiles."""
    config = None if settings_text is None else json.loads(settings_text)
    asked = parse_version(broker_version)
    broker_version = broker_version.strip()
    version, warnings = _known(broker_version, asked)
    preview = broker_version.removeprefix("v") == PREVIEW_PIP_282
    values, ignored = settings.in_force(version, config, preview=preview)
    changes = _changes_of(version, preview=preview)
    if key_shared_mode == "STICKY" and "sticky_mode" not in changes:
        raise ProfileError(f"broker version {broker_version} has no STICKY consumers: they came with 2.5.0")
    dispatcher = _dispatcher(changes, values, subscription_type)
    if non_persistent:
        dispatcher = _NON_PERSISTENT[subscription_type]
        # A topic that is not partitioned counts as partition 0, where a persistent one asks the ring
        # (NonPersistentSubscription.addConsumer).
        partition_index = max(partition_index, 0)
    consistent = bool(values["subscriptionKeySharedUseConsistentHashing"]) and key_shared_mode == "AUTO_SPLIT"
    if "draining_hashes" not in changes:
        space = hashing.MURMUR_31
    elif not consistent:
        space = hashing.RANGE_4X
    elif dispatcher is Dispatcher.KEY_SHARED_CLASSIC:
        space = hashing.CONSISTENT_CLASSIC
    else:
        space = hashing.CONSISTENT_4X
    ring = bool(values["activeConsumerFailoverConsistentHashing"]) and "failover_ring_flag" in changes
    return Profile(
        broker_version=broker_version,
        version=version,
        dispatcher=dispatcher,
        ordering=_ordering(dispatcher, changes, key_shared_mode, allow_out_of_order),
        consistent_hashing=consistent,
        hash_space=space,
        fallback_key="fallback_key" in changes,
        failover=FailoverRule.RING
        if ring or (partition_index < 0 and "failover_ring" in changes)
        else FailoverRule.MODULO,
        partition_index=partition_index,
        key_shared_mode=key_shared_mode,
        allow_out_of_order=allow_out_of_order,
        changes=changes,
        settings=values,
        ignored_settings=ignored,
        warnings=warnings,
    )


def _changes_of(version: Version, *, preview: bool) -> frozenset[str]:
    """Return the names of all changes that a release has."""
    old = old_releases.had_by(version) - old_releases.ALSO_LATER
    if preview:
        return _IN_PREVIEW | old
    if old_releases.is_old(version):
        return old_releases.had_by(version)
    return old | frozenset(name for name in _CHANGES if contains(version, name))


def partition_index(header: Mapping[str, Any], topic: str = "") -> int:
    """Return the topic's partition index: the log header's, else the number its name ends with; -1 = not partitioned.

    Raises ``ProfileError`` for a header value that is no index. Source: TopicName.getPartitionIndex.

    >>> partition_index({}, "persistent://public/default/orders-partition-3")
    3
    >>> partition_index({"partition_index": -1}, "persistent://public/default/orders-partition-03")
    -1
    """
    value = header.get("partition_index")
    if value is None:
        _, found, digits = str(header.get("topic") or topic).rpartition("-partition-")
        plain = digits.isascii() and digits.isdecimal() and digits == digits.lstrip("0").rjust(1, "0")
        return int(digits) if found and plain and len(digits) <= 10 and int(digits) <= _MAX_PARTITION else -1
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= _MAX_PARTITION:
        raise ProfileError(
            f"partition_index {str(value)[:80]!r} in the log's header is no partition index (-1 = not partitioned): "
            "correct the header"
        )
    return value


def _dispatcher(
    changes: frozenset[str], values: Mapping[str, int | bool], subscription_type: str
) -> Dispatcher:
    if subscription_type in ("Failover", "Exclusive"):
        return Dispatcher.SINGLE_ACTIVE
    if subscription_type not in ("Key_Shared", "Shared"):
        raise ProfileError(
            f"subscription type {subscription_type!r} is none of Key_Shared, Failover, Exclusive, Shared: "
            "correct the log's header"
        )
    shared = subscription_type == "Shared"
    name = "Shared" if shared else "KeyShared"
    classic = values[f"subscription{name}UseClassicPersistentImplementation"]
    if not {"draining_hashes", "last_sent_position"} & changes or (
        classic and "classic_dispatchers" in changes
    ):
        return Dispatcher.SHARED_CLASSIC if shared else Dispatcher.KEY_SHARED_CLASSIC
    return Dispatcher.SHARED if shared else Dispatcher.KEY_SHARED


def _ordering(
    dispatcher: Dispatcher, changes: frozenset[str], key_shared_mode: str, allow_out_of_order: bool
) -> OrderingRule:
    if dispatcher not in (Dispatcher.KEY_SHARED, Dispatcher.KEY_SHARED_CLASSIC) or allow_out_of_order:
        return OrderingRule.NONE
    if dispatcher is Dispatcher.KEY_SHARED_CLASSIC:
        return OrderingRule.READ_POSITION if "read_position" in changes else OrderingRule.NONE
    if key_shared_mode != "AUTO_SPLIT":
        return OrderingRule.NONE
    if "last_sent_position" in changes:
        return OrderingRule.LAST_SENT_POSITION
    return OrderingRule.DRAINING_HASHES
