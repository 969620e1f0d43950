"""Numbers of texts, looked up by a hash of their bytes, so that no table of all texts is built for each look-up.

Two texts may have the same hash: every hit is compared with the text that has the number, and a text that differs is looked
up among all.

>>> words = pa.array(["order-17", "order-18"])
>>> ids = TextIds()
>>> ids.add(words)
>>> ids.find(pa.array(["order-18", "order-19"]), words).tolist()
[1, -1]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.jit import compiled_in_place as compiled

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]

NONE = -1


class TextIds:
    """Numbers of texts, given in order: the n-th that was added is n. The caller keeps the texts."""

    def __init__(self) -> None:
        self._hash: Ints = np.empty(0, np.int64)  # ascending
        self._id: Ids = np.empty(0, np.int32)  # of each
        self._count = 0

    def add(self, texts: pa.Array) -> None:
        """Give the next numbers to ``texts``, none of which is known yet."""
        hashes = hashes_of(texts)
        order = np.argsort(hashes, kind="stable")
        at = np.searchsorted(self._hash, hashes[order], side="right")
        self._hash = np.insert(self._hash, at, hashes[order])
        self._id = np.insert(self._id, at, (self._count + order).astype(np.int32))
        self._count += len(texts)

    def find(self, texts: pa.Array, known: pa.Array) -> Ids:
        """Return the number of each text, ``NONE`` if it has none. ``known``: the texts by their number."""
        texts = texts.cast(pa.string())
        ids = np.full(len(texts), NONE, np.int32)
        if not len(self._hash):
            return ids
        hashes = hashes_of(texts)
        at = np.minimum(np.searchsorted(self._hash, hashes), len(self._hash) - 1)
        hit = np.flatnonzero(self._hash[at] == hashes)
        ids[hit] = self._id[at[hit]]
        same = np.asarray(pc.equal(texts.take(pa.array(hit)), known.take(pa.array(ids[hit]))))
        other = hit[~same]
        if len(other):
            found = pc.index_in(texts.take(pa.array(other)), value_set=known)
            ids[other] = np.asarray(pc.fill_null(found, NONE))
        return ids

    def keep(self, new: Ids) -> None:
        """Renumber the texts: ``new`` has the new number by the old one, ``NONE`` = forgotten. The order stays."""
        ids = new[self._id]
        kept = ids != NONE
        self._hash, self._id = self._hash[kept], ids[kept]
        self._count = len(self._id)


def hashes_of(texts: pa.Array) -> Ints:
    """Return a 64 bit hash of the UTF-8 of each text; for look-ups in this process, no format depends on it.

    >>> first, same, other = hashes_of(pa.array(["order-17", "order-17", "order-18"]))
    >>> first == same, first == other
    (np.True_, np.False_)
    """
    texts = texts.cast(pa.string())
    out = np.empty(len(texts), np.int64)
    if len(texts):
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
        size = int(ends[-1] - ends[0])
        content = np.frombuffer(data, np.uint8, size, int(ends[0])) if size else np.zeros(1, np.uint8)
        _hash_all(ends - ends[0], np.array(content), out)
    return out


@compiled
def _hash_all(ends: Ints, data: npt.NDArray[np.uint8], out: Ints) -> None:
    """Write two FNV-1a hashes of 32 bits, from different starts and by different primes, of the bytes between two ends."""
    for at in range(len(out)):
        low, high = 2166136261, 3141592653
        for place in range(ends[at], ends[at + 1]):
            low = ((low ^ int(data[place])) * 16777619) & 0xFFFFFFFF
            high = ((high ^ int(data[place])) * 16785407) & 0xFFFFFFFF
        out[at] = (high - 0x80000000) * 0x100000000 + low


def warm_up() -> None:
    """Call every compiled function here once."""
    hashes_of(pa.array(["a"]))
