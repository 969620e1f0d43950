"""What happened over time, gathered while the fold runs: who owned which range, and which hashes were held back.

Both are lists of *spans*: opened by the event that began them, closed by the one that ended them; a span still open at
the end of the log has no end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.hashing import CONSISTENT_4X, CONSISTENT_CLASSIC
from dispatch_core.key_shared import KeySharedDispatcher
from dispatch_core.ownership import OwnershipSpans
from dispatch_core.profiles import Dispatcher, Profile
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.selectors.consistent_hashing import ConsistentHashingSelector
from dispatch_core.single_active import SingleActiveDispatcher
from dispatch_core.verify.inputs import Line

WHOLE_TOPIC: Final = (0, 65535)
_MEMBERSHIP: Final = frozenset({"selector_added", "selector_removed"})
_MAY_FREE: Final = frozenset(
    {"pending_ack_removed", "selector_added", "selector_removed", "redeliver", "round_begin"}
)


@dataclass(slots=True)
class Span:
    """From one event to another, inclusive start, exclusive end; ``until`` fields None = still so."""

    from_seq: int
    from_t_us: int
    until_seq: int | None = None
    until_t_us: int | None = None

    def close(self, line: Line) -> None:
        """End the span at ``line``."""
        self.until_seq, self.until_t_us = line.seq, line.t_us


@dataclass(slots=True)
class Held(Span):
    """Entries of ``hash`` were held back because ``holder`` had not finished with it."""

    hash: int = 0
    holder: int | None = None
    attempts: int = 0


@dataclass(slots=True)
class History:
    """Feed it every line after the core has taken it."""

    ownership: OwnershipSpans = field(default_factory=OwnershipSpans)
    blocked: list[Held] = field(default_factory=list)
    _held: dict[int, Held] = field(default_factory=dict)

    def key_shared(self, line: Line, core: KeySharedDispatcher, refused: list[tuple[int, int]]) -> None:
        """A line of a Key_Shared log; ``refused``: (consumer, hash) that draining held back at this line."""
        if line.kind in _MEMBERSHIP:
            self.ownership.reported(line.seq, line.t_us, core.assignments().ranges)
        for _, hash_value in refused:
            held = self._held.get(hash_value)
            if held is None:
                held = Held(line.seq, line.t_us, hash=hash_value, holder=core.drains_for(hash_value))
                self._held[hash_value] = held
                self.blocked.append(held)
            held.attempts += 1
        if self._held and line.kind in _MAY_FREE:
            for hash_value in [h for h in self._held if core.drains_for(h) is None]:
                self._held.pop(hash_value).close(line)

    def single_active(self, line: Line, core: SingleActiveDispatcher) -> None:
        """A line of a Failover or Exclusive log."""
        ranges = () if core.active is None else ((*WHOLE_TOPIC, core.active),)
        self.ownership.reported(line.seq, line.t_us, ranges)


def ownership_alone(log: DispatcherLog, profile: Profile) -> OwnershipSpans:
    """Who owned which range, from joins and leaves alone: for logs of level E and for rules that are not replayed.

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
