"""Totals of an interval's deliveries by connection and key, for a log that comes batch by batch.

``balance`` makes everything that it says of these sums: what each consumer got, of how many keys, and which keys carry too
much. Memory follows the different pairs of connection and key, some 150 bytes each, not the deliveries.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import plain
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


class KeyTotals:
    """Sums by connection and key. Feed it every delivery of the interval, in order."""

    def __init__(self) -> None:
        self._deliveries = 0
        self._merged = TOTALS.empty_table()
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0

    def add(self, deliveries: pa.Table) -> None:
        """Add the next deliveries: rows of ``tables.DELIVERIES``, in the order of the log."""
        count = deliveries.num_rows
        if not count:
            return
        number = pa.array(np.arange(self._deliveries, self._deliveries + count))
        self._deliveries += count
        evidence = [number, *(deliveries[name] for name in EVIDENCE[1:])]
        sums = [pa.repeat(1, count), messages_of(deliveries), pc.fill_null(deliveries["size_bytes"], 0)]
        group = [deliveries[name] for name in _GROUP]
        totals = _summed(pa.table([*group, *sums, *evidence, *evidence], names=TOTALS.names))
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


def _summed(rows: pa.Table) -> pa.Table:
    """Bring rows of the same connection and key together; ``rows`` are in the order of the log."""
    numbered = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
    sums = [*((name, "sum") for name in _SUMS), ("row", "min"), ("row", "max")]
    grouped = numbered.group_by(list(_GROUP), use_threads=False).aggregate(sums).sort_by("row_min")
    ends = {
        end: rows.select([f"{end}_{name}" for name in EVIDENCE]).take(grouped[f"row_{at}"])
        for end, at in (("first", "min"), ("last", "max"))
    }
    columns = [grouped[name] for name in _GROUP] + [grouped[f"{name}_sum"] for name in _SUMS]
    columns += [column for end in ends.values() for column in end.columns]
    return pa.table(columns, names=TOTALS.names)
