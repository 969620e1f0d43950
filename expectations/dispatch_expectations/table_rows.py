"""Read rows of the warehouse's tables with pyarrow, batch by batch: a day's deliveries need not fit in memory.

``spark_jobs.warehouse.delta_tables`` lists the files. pyarrow reads them itself, because a process that reads through
``DeltaTable.to_pyarrow_table`` may abort at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from dispatch_core.recording.stored_files import parquet_dataset
from spark_jobs.intervals import interval
from spark_jobs.warehouse.delta_tables import Place, WarehouseError, all_files, data_files, has_table

#: After so many batches, unused memory is given back to the system; the allocator would keep it.
_BATCHES_BETWEEN: Final = 16


def require_tables(warehouse: Place, tables: Sequence[str]) -> None:
    """Raise ``WarehouseError`` naming the tables that do not exist and the step that writes them."""
    missing = [table for table in tables if not has_table(warehouse, table)]
    if missing:
        raise WarehouseError(
            f"{warehouse}: no Delta table {', '.join(missing)}; nothing was judged. "
            "Run ingest and replay for the interval first, or give the right --warehouse."
        )


def interval_dataset(warehouse: Place, table: str, interval_start: datetime) -> ds.Dataset | None:
    """Open the rows of one interval of a table, without the partition column; None if there are none."""
    return _dataset(data_files(warehouse, table, interval(interval_start)))


def whole_dataset(warehouse: Place, table: str) -> ds.Dataset | None:
    """Open all rows of a table that has no partitions; None if there are none."""
    return _dataset(all_files(warehouse, table))


def _dataset(files: list[str]) -> ds.Dataset | None:
    return parquet_dataset(files) if files else None


def read_batches(
    dataset: ds.Dataset | None, columns: Sequence[str], rows: ds.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of ``columns``, only rows that match the expression; nothing if there is no dataset.

    Reads few batches ahead. With Arrow's defaults, four files and sixteen batches, large logs would take gigabytes.
    """
    if dataset is not None:
        batches = dataset.to_batches(
            columns=list(columns), filter=rows, batch_readahead=2, fragment_readahead=1, use_threads=False
        )
        for number, batch in enumerate(batches, start=1):
            yield batch
            if number % _BATCHES_BETWEEN == 0:
                pa.default_memory_pool().release_unused()


def read_rows(dataset: ds.Dataset | None, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read all rows of a small table as dictionaries."""
    return [row for batch in read_batches(dataset, columns) for row in batch.to_pylist()]


def aggregate(
    batches: Iterator[pa.RecordBatch], keys: Sequence[str], sums: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Group rows by ``keys``: each group with ``count`` and the sum of each of ``sums`` (under its own name).

    Works batch by batch, so memory grows with the number of groups, not of rows.
    """
    functions = [("count", "sum"), *((name, "sum") for name in sums)]
    partial: pa.Table | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        table = pa.Table.from_batches([batch]).append_column(
            "count", pa.array([1] * batch.num_rows, pa.int64())
        )
        table = _group(table, keys, functions)
        partial = table if partial is None else _group(pa.concat_tables([partial, table]), keys, functions)
    return [] if partial is None else partial.to_pylist()


def _group(table: pa.Table, keys: Sequence[str], functions: list[tuple[str, str]]) -> pa.Table:
    grouped = table.group_by(list(keys), use_threads=False).aggregate(functions)
    names = [name.removesuffix("_sum") if name not in keys else name for name in grouped.column_names]
    return grouped.rename_columns(names)
