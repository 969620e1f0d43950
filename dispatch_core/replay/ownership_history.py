"""Gather who owned what over time: while the replay runs, or from membership alone where rules are not replayed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.broker.hashing import CONSISTENT_4X, CONSISTENT_CLASSIC
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.ownership import WHOLE_TOPIC, OwnershipSpans
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.selectors.consistent_hashing import ConsistentHashingSelector
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Line

_MEMBERSHIP: Final = frozenset({"selector_added", "selector_removed"})


@dataclass(slots=True)
class History:
    """Feed it every line after the core has taken it."""

    ownership: OwnershipSpans = field(default_factory=OwnershipSpans)

    def key_shared(self, line: Line, core: KeySharedDispatcher) -> None:
        """A line of a Key_Shared log."""
        if line.kind in _MEMBERSHIP:
            self.ownership.reported(line.seq, line.t_us, core.assignments().ranges)

    def single_active(self, line: Line, core: SingleActiveDispatcher) -> None:
        """A line of a Failover or Exclusive log."""
        ranges = () if core.active is None else ((*WHOLE_TOPIC, core.active),)
        self.ownership.reported(line.seq, line.t_us, ranges)


def ownership_alone(log: DispatcherLog, profile: Profile) -> OwnershipSpans:
    """Compute who owned which range from joins and leaves alone: for logs of level E and for rules that are not replayed.

    The selector follows an add within a millisecond; here it takes effect with the ``consumer_added`` line. Empty for
    selectors that this core version does not know (3.x, auto-split range, sticky ranges) and for single-active
    subscriptions, whose ranges say nothing.
    """
    spans = OwnershipSpans()
    known = profile.hash_space in (CONSISTENT_4X, CONSISTENT_CLASSIC) and profile.consistent_hashing
    if not known or profile.dispatcher not in (Dispatcher.KEY_SHARED, Dispatcher.KEY_SHARED_CLASSIC):
        return spans
    points = profile.number("subscriptionKeySharedConsistentHashingReplicaPoints")
    selector = ConsistentHashingSelector(points, profile.hash_space)
    membership = log.events.filter(
        pc.is_in(log.events["kind"], pa.array(["consumer_added", "consumer_removed"]))
    )
    columns = ("seq", "t_us", "kind", "consumer", "name")
    connected: set[int] = set()
    for seq, t_us, kind, consumer, name in zip(*(membership[c].to_pylist() for c in columns), strict=True):
        if consumer is None or (kind == "consumer_added") == (consumer in connected):
            continue  # an add of the connected or a removal of the unknown: the audit reports it
        if kind == "consumer_added":
            connected.add(consumer)
            selector.add(consumer, name)
        else:
            connected.remove(consumer)
            selector.remove(consumer)
        spans.reported(seq, t_us, selector.assignments().ranges)
    return spans
