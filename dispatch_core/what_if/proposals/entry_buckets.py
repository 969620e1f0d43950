"""PIP-486: entry buckets. A segment's second hash ring is cut into buckets, and each bucket belongs to one consumer.

Theory of operation
-------------------
The low 16 bits of the murmur hash of a key (*hashB*) lie on a ring that the segment cuts into N buckets of equal width, for
all of its life. The broker takes for the hash of an entry that of its bucket, the *canonical hash*: the first hash of the
bucket, 1 for the first one, as 0 stands for no hash. So all that Key_Shared does per hash it does per bucket: pending acks,
the order of replays, draining. A bucket that moves drains at its former owner before the new one gets entries of it.

=================================  ==============================================================
event                              buckets
=================================  ==============================================================
a consumer joins or leaves         all are dealt anew: of k consumers, sorted by name, number j owns
                                   those from j*N/k to before (j+1)*N/k
more consumers than buckets        k - N of them own none
=================================  ==============================================================

Invariants: every hash of the ring lies in exactly one bucket; two consumers differ by at most one bucket; entries of a key
share a bucket, so the order of a key follows from the order of its bucket.

Source: PIP-486; EntryBucketConsumerSelector, PersistentEntryBucketDispatcherMultipleConsumers (apache/pulsar#26208).

Four buckets and two consumers, then a third one whose name comes first:

>>> import numpy as np
>>> canonical(np.array([0, 0x3FFF, 0x4000, 0x7FFFFFFF]), 4).tolist()
[1, 1, 16384, 49152]
>>> selector = EntryBucketSelector(4)
>>> [selector.add(number, name).added for number, name in ((1, "b"), (2, "c"))]
[{1: ((0, 65535),)}, {2: ((32768, 65535),)}]
>>> selector.add(3, "a").added
{3: ((0, 16383),)}
>>> [selector.select(hash_value) for hash_value in (1, 16384, 32768, 49152)]
[3, 1, 2, 2]
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.broker.selectors.assignments import Assignments, Impacted, Owned, impacted
from dispatch_core.broker.selectors.selector import Announced, utf16

Ints = npt.NDArray[np.int64]

RING_SIZE: Final = 1 << 16
_NOBODY: Final = -1


def starts(buckets: int) -> Ints:
    """Return the first hash of each bucket.

    >>> starts(3).tolist()
    [0, 21845, 43690]
    """
    return np.arange(buckets, dtype=np.int64) * RING_SIZE // buckets


def canonical(h31: Ints, buckets: int) -> Ints:
    """Return the canonical hash of the bucket of each key.

    ``h31``: masked murmur hashes of keys, whose low 16 bits are hashB.
    """
    first = starts(buckets)
    return np.maximum(first[np.searchsorted(first, h31 % RING_SIZE, side="right") - 1], 1)


class EntryBucketSelector:
    """Buckets dealt to the connected consumers; see ``broker.selectors.selector.Selector``.

    Consumers of one name stay in the order in which they joined; the broker sorts them by their consumer ids.
    """

    def __init__(self, buckets: int) -> None:
        self._starts = starts(buckets)
        self._members: dict[int, str] = {}  # connected consumers, in the order in which they joined

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Deal the buckets anew, with the consumer. ``ranges`` do not matter here."""
        before = self.assignments()
        self._members[consumer] = name
        return impacted(before, self.assignments())

    def remove(self, consumer: int) -> Impacted:
        """Deal the buckets anew, without the consumer."""
        before = self.assignments()
        self._members.pop(consumer, None)
        return impacted(before, self.assignments())

    def select(self, sticky_hash: int) -> int | None:
        """Return the owner of the bucket of a hash; None for nobody."""
        owner = int(self.select_array(np.array([sticky_hash]))[0])
        return None if owner == _NOBODY else owner

    def select_array(self, sticky_hashes: Ints) -> Ints:
        """Apply ``select`` to a whole array; -1 for nobody."""
        bucket = np.searchsorted(self._starts, self.places(sticky_hashes), side="right") - 1
        return self.owners()[bucket]

    def places(self, sticky_hashes: Ints) -> Ints:
        """Return the hashes themselves, on the ring."""
        return sticky_hashes % RING_SIZE

    def assignments(self) -> Assignments:
        """Return the buckets with their owners."""
        owners = self.owners().tolist()
        first = self._starts.tolist()
        ends = [start - 1 for start in first[1:]] + [RING_SIZE - 1]
        ranges: Owned = tuple(
            (start, end, owner)
            for start, end, owner in zip(first, ends, owners, strict=True)
            if owner != _NOBODY
        )
        return Assignments(ranges)

    def owners(self) -> Ints:
        """Return the owner of each bucket, -1 = nobody."""
        count = len(self._starts)
        owners = np.full(count, _NOBODY, np.int64)
        order = sorted(self._members, key=lambda member: utf16(self._members[member]))
        for at, member in enumerate(order):
            owners[at * count // len(order) : (at + 1) * count // len(order)] = member
        return owners
