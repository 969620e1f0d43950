"""Totals of an interval's deliveries by connection and key, for a log that comes batch by batch.

``balance`` makes everything that it says of these sums: what each consumer got, of how many keys, and which keys carry too
much. Memory follows the different pairs of connection and key, some 150 bytes each, not the deliveries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.batches import no_rows
from dispatch_core.arrays.columns import Ints, codes_with_null, ints
from dispatch_core.arrays.jit import compiled
from dispatch_core.audit.hash_share import messages_of
from dispatch_core.tables import EVIDENCE, IDENTITY, KEY_TOTALS

_GROUP: Final = ("consumer", "consumer_name", "key", "key_b64")
_SUMS: Final = ("entries", "messages", "size_bytes")
#: One row per connection and key: the columns of ``tables.KEY_TOTALS`` without those of the incarnation.
TOTALS: Final = pa.schema([field for field in KEY_TOTALS if field not in IDENTITY])
#: Rows that wait to be merged, at least: merging costs as much as all rows that there are.
_MERGE_FROM: Final = 262_144


Column: TypeAlias = pa.Array | pa.ChunkedArray


class Pairs(NamedTuple):
    """Small integers that stand for the connection and the key of each delivery; a key of -1 = none."""

    connection: npt.NDArray[np.int32]
    key: npt.NDArray[np.int32]


class KeyTotals:
    """Sums by connection and key. Feed it every delivery of the interval, in order."""

    def __init__(self) -> None:
        self._deliveries = 0
        self._merged = no_rows(TOTALS)
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0

    def add(self, deliveries: pa.Table, pairs: Pairs | None = None) -> None:
        """Add the next deliveries: rows of ``tables.DELIVERIES``, in the order of the log; ``pairs``: theirs, if known."""
        count = deliveries.num_rows
        if not count:
            return
        if pairs is None:
            connection, key = _connection_codes(deliveries), key_codes(deliveries)
        else:
            connection, key = pairs.connection.astype(np.int64), pairs.key.astype(np.int64) + 1
        sums = np.empty((len(_SUMS), count), np.int64)
        sums[0], sums[1], sums[2] = 1, messages_of(deliveries), ints(deliveries["size_bytes"])
        number = pa.array(np.arange(self._deliveries, self._deliveries + count))
        self._deliveries += count
        evidence = [number, *(deliveries[name] for name in EVIDENCE[1:])]
        totals = _summed(connection, key, sums, [deliveries[name] for name in _GROUP], evidence, evidence)
        self._waiting.append(totals)
        self._waiting_rows += totals.num_rows
        if self._waiting_rows > max(_MERGE_FROM, 2 * self._merged.num_rows):
            self._merge()

    def join(self, totals: pa.Table, deliveries_before: int) -> None:
        """Add rows of ``TOTALS`` of later deliveries, whose numbers begin behind ``deliveries_before`` others."""
        for end in ("first", "last"):
            at = totals.column_names.index(f"{end}_number")
            numbers = pa.array(ints(totals[f"{end}_number"]) + deliveries_before)
            totals = totals.set_column(at, f"{end}_number", numbers)
        self._waiting.append(totals.cast(TOTALS))
        self._waiting_rows += totals.num_rows

    def table(self) -> pa.Table:
        """Return the totals: rows of ``TOTALS``, in the order of the first delivery of each."""
        if self._waiting:
            self._merge()
        return self._merged

    def _merge(self) -> None:
        if len(self._waiting) == 1 and not self._merged.num_rows:
            self._merged = self._waiting[0]
        else:
            rows = pa.concat_tables([self._merged, *self._waiting])
            sums = np.stack([ints(rows[name]) for name in _SUMS])
            first, last = ([rows[f"{end}_{name}"] for name in EVIDENCE] for end in ("first", "last"))
            group = [rows[name] for name in _GROUP]
            self._merged = _summed(_connection_codes(rows), key_codes(rows), sums, group, first, last)
        self._waiting, self._waiting_rows = [], 0


def joined(intervals: Iterable[pa.Table]) -> pa.Table:
    """Join the totals of an incarnation over several intervals, oldest first, to those of all their deliveries.

    >>> row = dict.fromkeys(TOTALS.names) | {"consumer": 1, "key": "k", "key_b64": False, "first_number": 0}
    >>> row |= {"last_number": 2, "entries": 3, "messages": 3, "size_bytes": 9}
    >>> hour = pa.Table.from_pylist([row], schema=TOTALS)
    >>> joined([hour, hour]).select(["entries", "first_number", "last_number"]).to_pylist()
    [{'entries': 6, 'first_number': 0, 'last_number': 5}]
    """
    totals, deliveries = KeyTotals(), 0
    for rows in intervals:
        totals.join(rows, deliveries)
        deliveries += int(ints(rows["entries"]).sum())
    return totals.table()


def _summed(
    connection: Ints,
    key: Ints,
    sums: Ints,
    group: Sequence[Column],
    first: Sequence[Column],
    last: Sequence[Column],
) -> pa.Table:
    """Bring rows of the same connection and key together: rows of ``TOTALS``, in the order of the first row of each.

    Args:
        connection: a number for the connection of each row.
        key: a number for its key, not negative.
        sums: a row for each of ``_SUMS``; overwritten.
        group: columns of the rows for ``_GROUP``.
        first: columns for ``EVIDENCE``, of which those of a pair's first row are kept.
        last: the same for the last row.
    """
    ends = np.empty((2, len(key)), np.int64)
    count = _gather(key, connection, sums, ends, np.full(int(key.max(initial=0)) + 1, -1, np.int64))
    first_row, last_row = (pa.array(ends[at, :count]) for at in (0, 1))
    columns = [
        *(column.take(first_row) for column in group),
        *(pa.array(sums[at, :count]) for at in range(len(_SUMS))),
        *(column.take(first_row) for column in first),
        *(column.take(last_row) for column in last),
    ]
    return pa.table(
        [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, TOTALS, strict=True)
        ],
        schema=TOTALS,
    )


def _connection_codes(rows: pa.Table) -> Ints:
    number, _numbers = codes_with_null(rows["consumer"])
    name, names = codes_with_null(rows["consumer_name"])
    return number * len(names) + name


def key_codes(rows: pa.Table) -> Ints:
    """Number the keys of ``rows`` (``key``, ``key_b64``); rows without a key have numbers too."""
    return 2 * codes_with_null(rows["key"])[0] + ints(rows["key_b64"].cast(pa.int8()))


@compiled
def _gather(key: Ints, connection: Ints, sums: Ints, ends: Ints, head: Ints) -> int:
    """Sum up rows of the same pair (``key``, ``connection``), in place; returns the number of pairs.

    Columns of ``sums`` (a row per sum) and ``ends`` (the first and the last row of each pair) are then those of the pairs,
    in the order of their first rows. ``head``: -1 for each key.
    """
    count = 0
    following = np.empty(len(key), np.int64)  # the next pair of the same key
    for row in range(len(key)):
        pair = head[key[row]]
        while pair >= 0 and connection[ends[0, pair]] != connection[row]:
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
