"""Read and write the warehouse's Delta tables without a JVM.

Files are chosen from the Delta log and read by pyarrow itself (a process that reads through
``DeltaTable.to_pyarrow_table`` may abort at its end), batch by batch: a day's deliveries need not fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from dispatch_core.errors import DispatchAuditError
from dispatch_core.tables import check_version

PARTITION: Final = "interval_start"
_COMMIT_ATTEMPTS: Final = 5


class WarehouseError(DispatchAuditError):
    """A table that is missing, or that holds what this version cannot read."""


def utc(moment: datetime) -> datetime:
    """``moment`` in UTC; a time without a zone is refused, for it names no interval."""
    if moment.tzinfo is None:
        raise ValueError(
            f"{moment.isoformat()} has no time zone; give UTC, for example {moment.isoformat()}Z"
        )
    return moment.astimezone(UTC)


def _opened(root: Path) -> DeltaTable:
    table = DeltaTable(str(root))
    check_version(table.metadata().configuration, str(root))
    return table


def has_table(warehouse: Path, table: str) -> bool:
    """True if ``table`` has been written at least once."""
    return DeltaTable.is_deltatable(str(warehouse / table))


def require_tables(warehouse: Path, tables: Sequence[str]) -> None:
    """Raise ``WarehouseError`` naming the tables that do not exist and the step that writes them."""
    missing = [table for table in tables if not has_table(warehouse, table)]
    if missing:
        raise WarehouseError(
            f"{warehouse}: no Delta table {', '.join(missing)}; nothing was judged. "
            "Run ingest and replay for the interval first, or give the right --warehouse."
        )


def interval_dataset(warehouse: Path, table: str, interval_start: datetime) -> ds.Dataset | None:
    """The Parquet files of one interval of a table as a dataset without the partition column.

    None if the table does not exist or holds nothing for the interval.
    """
    if not has_table(warehouse, table):
        return None
    wanted = utc(interval_start)
    root = warehouse / table
    files = []
    for action in pa.table(_opened(root).get_add_actions(flatten=True)).to_pylist():
        moment = action.get(f"partition.{PARTITION}")
        if moment is None:
            raise WarehouseError(
                f"{root}: is not partitioned by {PARTITION}; write it anew with this version"
            )
        if action.get("deletion_vector"):
            raise WarehouseError(f"{root}: has deletion vectors, which are not read here; run OPTIMIZE/REORG")
        if _as_utc(moment) == wanted:
            files.append(str(root / unquote(action["path"])))
    if not files:
        return None
    dataset: ds.Dataset = ds.dataset(sorted(files), format="parquet")
    return dataset


def whole_dataset(warehouse: Path, table: str) -> ds.Dataset:
    """All rows of a table that is not partitioned."""
    root = warehouse / table
    actions = pa.table(_opened(root).get_add_actions(flatten=True)).to_pylist()
    files = sorted(str(root / unquote(action["path"])) for action in actions)
    dataset: ds.Dataset = ds.dataset(files, format="parquet")
    return dataset


def _as_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


#: After so many batches the gaps between arrays are given back, which the allocator would keep.
_BATCHES_BETWEEN: Final = 16


def read_batches(
    dataset: ds.Dataset | None, columns: Sequence[str], rows: ds.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of ``columns``, of the rows that the expression chooses; nothing for an absent dataset.

    Few are read ahead: by its defaults Arrow reads four files and sixteen batches, and takes gigabytes for large logs.
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
    """All rows of a small table, as dictionaries."""
    return [row for batch in read_batches(dataset, columns) for row in batch.to_pylist()]


def aggregate(
    batches: Iterator[pa.RecordBatch], keys: Sequence[str], sums: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Rows of ``keys`` with ``count`` and the sum of each of ``sums`` (under its own name).

    Works batch by batch, so memory follows the number of groups and not of rows.
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


def replace_interval(warehouse: Path, table: str, interval_start: datetime, rows: pa.Table) -> None:
    """Make ``rows`` the whole content of one interval of ``table``, in one Delta commit.

    Other intervals are untouched; a reader sees the old rows or the new ones. Another writer that commits in
    between makes this one try again, a bounded number of times.
    """
    target = str(warehouse / table)
    moment = utc(interval_start)
    for attempt in range(1, _COMMIT_ATTEMPTS + 1):
        try:
            if not has_table(warehouse, table):
                write_deltalake(target, rows, partition_by=[PARTITION], mode="error")
            else:
                predicate = f"{PARTITION} = '{moment.isoformat()}'"
                write_deltalake(target, rows, mode="overwrite", predicate=predicate)
            return
        except CommitFailedError:
            if attempt == _COMMIT_ATTEMPTS:
                raise
