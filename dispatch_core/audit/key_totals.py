"""Totals of an interval's deliveries by connection and key, for a log that comes batch by batch.

``balance`` makes everything that it says of these sums: what each consumer got, of how many keys, and which keys carry too
much. Memory follows the different pairs of connection and key, some 150 bytes each, not the deliveries.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import Ints, ints, plain
from dispatch_core.arrays.jit import compiled
from dispatch_core.audit.hash_share import messages_of

_GROUP: Final = ("consumer", "consumer_name", "key", "key_b64")
_SUMS: Final = ("entries", "messages", "size_bytes")
#: What is kept of the first and of the last delivery of a pair; ``number`` counts the deliveries of the interval.
EVIDENCE: Final = ("number", "seq", "t_us", "ledger_id", "entry_id", "hash")

#: One row per connection and key; entries without a key have one row with a null ``key``.
TOTALS: Final = pa.schema(
    [
        pa.field("consumer", pa.int64()),
        pa.field("consumer_name", pa.string()),
        pa.field("key", pa.string()),
        pa.field("key_b64", pa.bool_()),
        *(pa.field(name, pa.int64()) for name in _SUMS),
        *(pa.field(f"{end}_{name}", pa.int64()) for end in ("first", "last") for name in EVIDENCE),
    ]
)
#: Rows that wait to be merged, at least: merging costs as much as all rows that there are.
_MERGE_FROM: Final = 262_144


class Pairs(NamedTuple):
    """Small integers that stand for the connection and the key of each delivery; a key of -1 = none."""

    connection: npt.NDArray[np.int32]
    key: npt.NDArray[np.int32]


class KeyTotals:
    """Sums by connection and key. Feed it every delivery of the interval, in order."""

    def __init__(self) -> None:
        self._deliveries = 0
        self._merged = TOTALS.empty_table()
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0

    def add(self, deliveries: pa.Table, pairs: Pairs | None = None) -> None:
        """Add the next deliveries: rows of ``tables.DELIVERIES``, in the order of the log; ``pairs``: theirs, if known."""
        count = deliveries.num_rows
        if not count:
            return
        number = pa.array(np.arange(self._deliveries, self._deliveries + count))
        self._deliveries += count
        evidence = [number, *(deliveries[name] for name in EVIDENCE[1:])]
        sums = [pa.repeat(1, count), messages_of(deliveries), pc.fill_null(deliveries["size_bytes"], 0)]
        group = [deliveries[name] for name in _GROUP]
        totals = _summed(pa.table([*group, *sums, *evidence, *evidence], names=TOTALS.names), pairs)
        self._waiting.append(plain(totals).cast(TOTALS))
        self._waiting_rows += totals.num_rows
        if self._waiting_rows > max(_MERGE_FROM, 2 * self._merged.num_rows):
            self._merge()

    def table(self) -> pa.Table:
        """Return the totals: rows of ``TOTALS``, in the order of the first delivery of each."""
        if self._waiting:
            self._merge()
        return self._merged

    def _merge(self) -> None:
        whole = pa.concat_tables([self._merged, *self._waiting])
        self._merged = (
            whole if len(self._waiting) == 1 and whole.num_rows == self._waiting_rows else _summed(whole)
        )
        self._waiting, self._waiting_rows = [], 0


def _summed(rows: pa.Table, pairs: Pairs | None = None) -> pa.Table:
    """Bring rows of the same connection and key together; ``rows`` are in the order of the log."""
    if pairs is None:
        names = _codes(rows["consumer_name"])
        consumer = _codes(rows["consumer"]) * (int(names.max(initial=0)) + 1) + names
        key = 2 * _codes(rows["key"]) + np.asarray(rows["key_b64"])
    else:
        consumer, key = pairs.connection.astype(np.int64), pairs.key.astype(np.int64) + 1
    sums = np.stack([ints(rows[name]) for name in _SUMS])
    ends = np.empty((2, len(key)), np.int64)
    count = _gather(key, consumer, sums, ends, np.full(int(key.max(initial=0)) + 1, -1, np.int64))
    first, last = (pa.array(ends[at, :count]) for at in (0, 1))
    columns = [rows[name].take(first) for name in _GROUP]
    columns += [pa.array(sums[at, :count]) for at in range(len(_SUMS))]
    columns += [rows[f"first_{name}"].take(first) for name in EVIDENCE]
    columns += [rows[f"last_{name}"].take(last) for name in EVIDENCE]
    return pa.table(columns, names=TOTALS.names)


def _codes(column: pa.ChunkedArray) -> Ints:
    """Number the values of a column from 1; 0 = null."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return ints(encoded.indices, -1) + 1


@compiled
def _gather(key: Ints, consumer: Ints, sums: Ints, ends: Ints, head: Ints) -> int:
    """Sum up rows of the same pair (``key``, ``consumer``), in place; returns the number of pairs.

    Columns of ``sums`` (a row per sum) and ``ends`` (the first and the last row of each pair) are then those of the pairs,
    in the order of their first rows. ``head``: -1 for each key.
    """
    count = 0
    following = np.empty(len(key), np.int64)  # the next pair of the same key
    for row in range(len(key)):
        pair = head[key[row]]
        while pair >= 0 and consumer[ends[0, pair]] != consumer[row]:
            pair = following[pair]
        if pair < 0:
            pair = count
            count += 1
            following[pair], head[key[row]] = head[key[row]], pair
            ends[0, pair] = row
            for at in range(len(sums)):
                sums[at, pair] = sums[at, row]
        else:
            for at in range(len(sums)):
                sums[at, pair] += sums[at, row]
        ends[1, pair] = row
    return count
