"""Failover and Exclusive: choice of the active consumer.

Consumers are sorted by priority level (0 is the highest), then by name in UTF-16 code unit order, then by join order.
Only the best level takes part. A partition takes number ``partition_index % n`` of the sorted list (*modulo*); a
non-partitioned topic, or any topic with PIP-392's flag, looks up its name on a ring of 100 points per consumer.

Source: AbstractDispatcherSingleActiveConsumer.pickAndScheduleActiveConsumer; #19502, PIP-392 (#23584).

>>> trio = [Candidate(1, "c3", 0), Candidate(2, "c1", 0), Candidate(3, "c2", 0)]
>>> [pick(trio, partition_index=p, topic="t", ring=False).active for p in range(4)]
[2, 3, 1, 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.selector import Same, utf16

RING_POINTS: Final = 100  # CONSUMER_CONSISTENT_HASH_REPLICAS; not configurable


@dataclass(frozen=True, slots=True)
class Candidate:
    """A connected consumer: the log's number, its name and priority level."""

    consumer: int
    name: str
    priority_level: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Outcome of a choice: the active consumer and all consumers in the dispatcher's order."""

    active: int
    order: tuple[int, ...]


def pick(candidates: Sequence[Candidate], *, partition_index: int, topic: str, ring: bool) -> Choice:
    """Choose among ``candidates``, given in the dispatcher's present order (join order at first).

    ``ring``: look the full topic name up on the ring instead of the modulo. Without it, a topic that is not partitioned has
    the consumer that joined first, whatever its level (until #19502). Raises ``ValueError`` for nobody.
    """
    if not candidates:
        raise ValueError("no consumer to choose from")
    if partition_index < 0 and not ring:
        return Choice(candidates[0].consumer, tuple(c.consumer for c in candidates))
    ordered = sorted(candidates, key=sort_key)
    eligible = [c for c in ordered if takes_part(c, ordered[0])]
    index = _ring_index(eligible, topic) if ring else partition_index % len(eligible)
    return Choice(eligible[index].consumer, tuple(c.consumer for c in ordered))


def sort_key(candidate: Candidate) -> tuple[int, bytes]:
    """Return the sort key of the dispatcher's order: priority level, then name; join order where both are equal.

    >>> sorted([Candidate(1, "consumer-2", 0), Candidate(2, "consumer-10", 0)], key=sort_key)[0].name
    'consumer-10'
    """
    return candidate.priority_level, utf16(candidate.name)


def takes_part(candidate: Candidate, first: Candidate) -> bool:
    """True if a consumer can become active: it has the best priority level, that of the first in order.

    >>> takes_part(Candidate(1, "c1", 0), Candidate(2, "c2", 0)), takes_part(Candidate(1, "c1", 1), Candidate(2, "c2", 0))
    (True, False)
    """
    return candidate.priority_level == first.priority_level


def wins_point(joining: int, holder: int) -> bool:
    """True if a consumer takes a point of the ring over from its holder: the higher index in the order, written later, does.

    >>> wins_point(2, 1), wins_point(1, 2)
    (True, False)
    """
    return joining > holder


def first_equal(order: Sequence[int], consumer: int, same: Same) -> int | None:
    """Return the consumer that is removed when ``consumer`` leaves: the first in order that equals it; None for nobody."""
    return next((member for member in order if same(member, consumer)), None)


def _ring_index(consumers: Sequence[Candidate], topic: str) -> int:
    nearest = 0
    way = _way_to_point(consumers[0].name, topic)
    for index, candidate in enumerate(consumers[1:], start=1):
        other = _way_to_point(candidate.name, topic)
        if other < way or (other == way and wins_point(index, nearest)):
            nearest, way = index, other
    return nearest


@lru_cache(maxsize=1 << 16)
def _way_to_point(name: str, topic: str) -> int:
    """Return how far along the ring the next point of a consumer is from that of the topic, 0 = the same point.

    It is kept because each of many consumers that join chooses among all of them.
    """
    start = hashing.h31(hashing.utf8(topic))
    # No separator between name and number: c1 + "10" and c11 + "0" are one point.
    return min(
        (hashing.h31(hashing.utf8(f"{name}{number}")) - start) % hashing.H31_SIZE
        for number in range(RING_POINTS)
    )
