"""PIP-474: overflow of hot keys. Entries of hashes that fill the replay queue move to a ledger of their own.

Theory of operation
-------------------
A consumer that hangs leaves its entries in the replay queue. Normal reads stop when the queue has as many entries as the
look-ahead limit, and then nobody gets anything new (``seconds_to_stop``). The proposal takes such hashes out of the queue
before that:

=======================  ===================================================================================
step                     rule
=======================  ===================================================================================
detection                at ``watermark`` of the limit or more: the ``top`` hashes with the most entries in the
                         queue are *hot*, if together they have ``dominance`` of it
diversion                entries of a hot hash, read or waiting in the queue, are written to the overflow, then
                         acknowledged at the cursor: mark-delete moves on, and the queue shrinks
dispatch                 the owner of the hash gets them from the overflow in their order, ``batch`` at a time, as
                         far as it has permits and the hash does not drain for another consumer
release                  a hash is hot until none of its entries are in the queue or wait in the overflow, and
                         ``cooldown_us`` has passed
=======================  ===================================================================================

Invariants: an entry waits in the overflow or in the replay queue, never in both; while a hash is hot, all its entries that
are read go to the end of the ledger, so those that were never sent keep their order.

The document does not say what becomes of entries of a hot hash that were sent before it was hot, and come back because
their consumer asks for them again or leaves. By its words they go to the end of the ledger, too, behind later entries.

With many keys behind a hung consumer none of them is hot: of 40 hashes alike, the top 10 have a quarter of the queue.

Source: PIP-474 (apache/pulsar#25706).

>>> hot_hashes({1: 900, 2: 700, 3: 10}, size=1610, limit=2000)
(1, 2, 3)
>>> hot_hashes({1: 900, 2: 600, 3: 10}, size=1510, limit=2000)  # below the watermark
()
>>> hot_hashes(dict.fromkeys(range(40), 50), size=2000, limit=2000)
()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class HotKeyRule:
    """The parameters of the proposal, with its defaults."""

    watermark: float = 0.8  # keySharedHotKeyDetectionWatermark
    top: int = 10  # keySharedHotKeyTopN
    dominance: float = 0.5  # keySharedHotKeyDominanceThreshold
    batch: int = 100  # keySharedHotKeyOverflowDispatchBatch
    cooldown_us: int = 60_000_000  # keySharedHotKeyReleaseCooldownMs


DEFAULT_RULE: Final = HotKeyRule()


def seconds_to_stop(limit: int, per_second: float) -> float:
    """Return after how long normal reads stop, if so many entries a second stay in the replay queue.

    The example of the proposal: a consumer without permits whose keys get 125 messages a second.

    >>> seconds_to_stop(20_000, 125)
    160.0
    """
    return limit / per_second


def is_pressed(size: int, limit: int, rule: HotKeyRule = DEFAULT_RULE) -> bool:
    """True if the replay queue has reached the watermark, so that hot hashes are looked for."""
    return size >= rule.watermark * limit


def hot_hashes(
    counts: Mapping[int, int], *, size: int, limit: int, rule: HotKeyRule = DEFAULT_RULE
) -> tuple[int, ...]:
    """Return the hot hashes, the fullest first. ``counts``: entries in the replay queue by hash; ``size``: of all of it."""
    if not is_pressed(size, limit, rule):
        return ()
    top = sorted((hash_id for hash_id, count in counts.items() if count), key=lambda at: (-counts[at], at))
    top = top[: rule.top]
    if sum(counts[hash_id] for hash_id in top) < rule.dominance * size:
        return ()
    return tuple(top)


#: A place in the overflow ledger, and the number of the entry there.
Placed = tuple[int, int]


@dataclass(slots=True)
class Overflow:
    """The overflow of a subscription: entries waiting to be sent, for each hot hash in the order of the ledger.

    >>> overflow = Overflow()
    >>> overflow.mark([7])
    >>> overflow.divert(7, 3, now_us=10), overflow.divert(7, 5, now_us=20)
    (None, None)
    >>> overflow.take(7, 1), overflow.waiting(7)
    ([(0, 3)], 1)
    >>> overflow.put_back(7, (0, 3))
    >>> overflow.take(7, 9)
    [(0, 3), (1, 5)]
    >>> overflow.release({7: 0}, now_us=60_000_019), overflow.release({7: 0}, now_us=60_000_020)
    ([], [7])
    """

    rule: HotKeyRule = DEFAULT_RULE
    diverted: int = 0  # entries so far
    _waiting: dict[int, deque[Placed]] = field(default_factory=dict)  # hot hash → entries
    _latest_us: dict[int, int] = field(default_factory=dict)  # hot hash → when an entry was diverted last

    def mark(self, hashes: Iterable[int]) -> None:
        """Mark hashes as hot."""
        for hash_id in hashes:
            self._waiting.setdefault(hash_id, deque())
            self._latest_us.setdefault(hash_id, 0)

    @property
    def hot(self) -> list[int]:
        """The hot hashes, in the order in which they were marked."""
        return list(self._waiting)

    def divert(self, hash_id: int, number: int, *, now_us: int) -> None:
        """Append an entry of a hot hash to the ledger."""
        self._waiting[hash_id].append((self.diverted, number))
        self._latest_us[hash_id] = now_us
        self.diverted += 1

    def waiting(self, hash_id: int) -> int:
        """Return how many entries of a hash wait."""
        return len(self._waiting.get(hash_id, ()))

    def take(self, hash_id: int, most: int) -> list[Placed]:
        """Take the next entries of a hash that are sent now, at most a batch."""
        entries = self._waiting[hash_id]
        return [entries.popleft() for _ in range(min(most, self.rule.batch, len(entries)))]

    def put_back(self, hash_id: int, placed: Placed) -> None:
        """Put back an entry that was taken, at its place in the ledger: it came back unacknowledged."""
        self.mark([hash_id])
        self._waiting[hash_id] = deque(sorted({*self._waiting[hash_id], placed}))

    def release(self, counts: Mapping[int, int], *, now_us: int) -> list[int]:
        """End hot hashes of which nothing waits any more, and return them. ``counts``: as for ``hot_hashes``."""
        cold = [
            hash_id
            for hash_id, entries in self._waiting.items()
            if not entries
            and not counts.get(hash_id, 0)
            and now_us - self._latest_us[hash_id] >= self.rule.cooldown_us
        ]
        for hash_id in cold:
            del self._waiting[hash_id], self._latest_us[hash_id]
        return cold

    def first(self) -> int | None:
        """Return the lowest entry that waits; None for none."""
        return min((number for entries in self._waiting.values() for _, number in entries), default=None)
