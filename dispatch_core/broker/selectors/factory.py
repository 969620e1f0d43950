"""The selector of a Key_Shared subscription: the one place that goes from a profile to a selector.

>>> from dispatch_core.broker.profiles import resolve
>>> build(resolve("4.2.4")).assignments()
Assignments(ranges=())
>>> rules(resolve("3.0.0")).selector.__name__, rules(resolve("3.3.6")).selector.__name__
('SharedPointsSelector', 'ReplacingPointsSelector')
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dispatch_core.broker import hashing
from dispatch_core.broker.profiles import Profile, RingVariant
from dispatch_core.broker.selectors.auto_split import AutoSplitSelector
from dispatch_core.broker.selectors.consistent_hashing import ConsistentHashingSelector
from dispatch_core.broker.selectors.consistent_hashing_replacing import ReplacingPointsSelector
from dispatch_core.broker.selectors.consistent_hashing_shared import SharedPointsSelector
from dispatch_core.broker.selectors.selector import Same, Selector
from dispatch_core.broker.selectors.sticky_ranges import EndPointRangesSelector, ExactRangesSelector


@dataclass(frozen=True, slots=True)
class SelectorRules:
    """A selector and its parameters. Releases with equal rules select alike."""

    selector: Callable[..., Selector]
    parameters: tuple[tuple[str, Any], ...] = ()

    def new(self, same: Same = operator.eq) -> Selector:
        """Make a selector. ``same``: the broker's ``equals`` of two consumers (consumer id and address)."""
        return self.selector(**dict(self.parameters), same=same)


def build(profile: Profile, same: Same = operator.eq) -> Selector:
    """Make a selector under the rules of ``profile``.

    A dispatcher makes one in its constructor, ``self._selector = factory.build(profile, same)``, then calls
    ``add(consumer, name, ranges)`` with the ranges of the subscribe command (None where it has no key-shared metadata)
    and ``remove(consumer)``. ``same``: the broker's ``equals`` of two consumers (consumer id and address).
    """
    return rules(profile).new(same)


def rules(profile: Profile) -> SelectorRules:
    """Return the selector that the dispatchers of ``profile`` make."""
    if profile.key_shared_mode == "STICKY":
        return sticky_ranges(profile)
    return ring(profile) if profile.consistent_hashing else auto_split(profile)


def auto_split(profile: Profile, range_size: int = hashing.DEFAULT_RANGE_SIZE) -> SelectorRules:
    """Return the rules of range splitting; the broker always uses 65536 slots."""
    return SelectorRules(
        AutoSplitSelector, (("range_size", range_size), ("group_report", _groups_report(profile)))
    )


def sticky_ranges(profile: Profile) -> SelectorRules:
    """Return the rules of fixed ranges, exact or by end points (#24730)."""
    grouped = ("group_report", _groups_report(profile))
    if "sticky_ranges_exact" in profile.changes:
        by_identity = "sticky_removes_by_identity" in profile.changes
        return SelectorRules(ExactRangesSelector, (grouped, ("remove_by_identity", by_identity)))
    return SelectorRules(EndPointRangesSelector, (grouped,))


def ring(profile: Profile) -> SelectorRules:
    """Return the rules of consistent hashing in the variant of the release and its dispatcher."""
    points = ("replica_points", profile.number("subscriptionKeySharedConsistentHashingReplicaPoints"))
    match profile.ring_variant:
        case RingVariant.A_REPLACING:
            return SelectorRules(ReplacingPointsSelector, (points, ("indexed", False)))
        case RingVariant.A:
            return SelectorRules(SharedPointsSelector, (points, ("separator", "")))
        case RingVariant.A0:
            return SelectorRules(SharedPointsSelector, (points, ("separator", "\0")))
        case RingVariant.B:
            return SelectorRules(ReplacingPointsSelector, (points,))
        case RingVariant.C:
            return SelectorRules(ConsistentHashingSelector, (points, ("space", hashing.CONSISTENT_4X)))
        case RingVariant.C_CLASSIC:
            return classic_ring(points[1])


def classic_ring(replica_points: int) -> SelectorRules:
    """Return the rules of the classic dispatchers' ring of 4.x; 5.0 still has the selector, but no such dispatcher."""
    return SelectorRules(
        ConsistentHashingSelector,
        (("replica_points", replica_points), ("space", hashing.CONSISTENT_CLASSIC)),
    )


def _groups_report(profile: Profile) -> bool:
    """True if the release reports a map from consumer to ranges: those without PIP-379's snapshots do."""
    return "draining_hashes" not in profile.changes
