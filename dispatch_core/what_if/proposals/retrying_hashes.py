"""PIP-493: negative acknowledgements in order. Later entries of a nacked key are withheld until it is acknowledged.

Theory of operation
-------------------
Today the broker hears of a negative acknowledgement when the client's delay is over, and sends later entries of the key
meanwhile. By the proposal the client tells it at once, and *returns* what it has of the key and the application has not
seen. From then on the hash is *retrying*:

=========================================  ===========================================================================
event                                      effect
=========================================  ===========================================================================
a client nacks an entry that it holds      its position is added to the hash; the entry stays pending until the
                                           delay is over, as today
the client returns later entries of the    they leave the pending acks and enter the replay queue with their hash; no
key                                        redelivery is counted, permits flow again
the delay is over                          the entry is requested, as today, and sent before what is withheld
all messages of the entry are acknowledged  its position is removed; without any the hash is free, and a read follows
                                           (keySharedUnblockingIntervalMs)
all consumers have left                    all is forgotten
=========================================  ===========================================================================

An entry is *withheld* exactly if it is later than the earliest position of its hash. Earlier ones, which a consumer that
left gave back, are sent. The rule holds at all gates, of normal and of replay reads. With ``most`` positions in all, entries
of other hashes are withheld too, so that no more can be added.

Invariants: no entry that is later than an unacknowledged nacked one of its hash is sent; the earliest nacked position of a
hash is never withheld; the positions in the tracker are nacked and not acknowledged.

Source: PIP-493 (apache/pulsar#26418).

A1, B1, A2, B2, A3, B3 at positions 0 to 5; the hash of A is 1, that of B is 2. A1 is nacked, then A2:

>>> import numpy as np
>>> entries, hashes = np.arange(6), np.array([1, 2, 1, 2, 1, 2])
>>> retrying = RetryingHashes()
>>> retrying.withheld(entries, hashes).tolist() == [False] * 6
True
>>> retrying.nack(0, 1), retrying.nack(2, 1)
(True, True)
>>> retrying.withheld(entries, hashes).tolist()
[False, False, True, False, True, False]
>>> retrying.acknowledged(0), retrying.withheld(entries, hashes).tolist()
(False, [False, False, False, False, True, False])
>>> retrying.acknowledged(2), len(retrying)
(True, 0)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: keySharedNegativeAckMaxRetryingPositionsPerSubscription.
MOST_POSITIONS: Final = 50_000
_NONE: Final = np.iinfo(np.int64).max


class RetryingHashes:
    """The nacked positions of each retrying hash, by numbers that never change."""

    def __init__(self, most: int = MOST_POSITIONS) -> None:
        self._most = most
        self._hash_of: dict[int, int] = {}  # position → hash
        self._positions: dict[int, list[int]] = {}  # hash → positions, ascending
        self._earliest = np.zeros(0, np.int64)  # by hash; _NONE = it is not retrying

    def __len__(self) -> int:
        """The number of positions."""
        return len(self._hash_of)

    def nack(self, position: int, hash_id: int) -> bool:
        """Add a nacked position; returns False, with nothing changed, if it is known."""
        if position in self._hash_of:
            return False
        self._hash_of[position] = hash_id
        insort(self._positions.setdefault(hash_id, []), position)
        if hash_id >= len(self._earliest):
            more = np.full(hash_id + 1 - len(self._earliest), _NONE)
            self._earliest = np.concatenate([self._earliest, more])
        self._earliest[hash_id] = self._positions[hash_id][0]
        return True

    def acknowledged(self, position: int) -> bool:
        """Remove a position whose entry is acknowledged; returns whether that frees its hash."""
        hash_id = self._hash_of.pop(position, None)
        if hash_id is None:
            return False
        positions = self._positions[hash_id]
        del positions[bisect_left(positions, position)]
        if positions:
            self._earliest[hash_id] = positions[0]
            return False
        del self._positions[hash_id]
        self._earliest[hash_id] = _NONE
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._hash_of.clear()
        self._positions.clear()
        self._earliest[:] = _NONE

    def withheld(self, positions: Ints, hashes: Ints) -> Flags:
        """Mark the positions that nobody may be sent now. ``hashes``: the hash of each."""
        earliest = np.full(len(positions), _NONE)
        known = hashes < len(self._earliest)
        earliest[known] = self._earliest[hashes[known]]
        withheld: Flags = positions > earliest
        if len(self) >= self._most:
            withheld |= earliest == _NONE
        return withheld
