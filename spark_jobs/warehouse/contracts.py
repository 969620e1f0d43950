"""Contracts of the warehouse's tables and their files, column for column. No table format and no JVM here.

Replay tasks read and write such files; how rows get into a table is ``warehouse``'s, which loads the table format.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core import tables
from dispatch_core.recording import schema

RUN_METADATA: Final = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        tables.INTERVAL_START,
        pa.field("started_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("finished_at", pa.timestamp("us", tz="UTC"), nullable=False),
        # ingest: rows_in = rows_accepted + rows_quarantined + rows_other_interval
        pa.field("files", pa.int64()),
        pa.field("files_failed", pa.int64()),
        pa.field("rows_in", pa.int64()),
        pa.field("rows_accepted", pa.int64()),
        pa.field("rows_quarantined", pa.int64()),
        pa.field("rows_other_interval", pa.int64()),
        # replay
        pa.field("dispatchers", pa.int64()),
        pa.field("dispatchers_failed", pa.int64()),
        pa.field("summary_json", pa.string(), nullable=False),
    ]
)


def _with_interval(contract: pa.Schema) -> pa.Schema:
    return pa.schema([tables.INTERVAL_START, *contract])


#: Every table of the warehouse by name, column for column.
CONTRACTS: Final[dict[str, pa.Schema]] = {
    "messages": _with_interval(schema.MESSAGES),
    "consumer_events": _with_interval(schema.EVENTS),
    "quarantine": _with_interval(schema.QUARANTINE),
    **tables.ALL_TABLES,
    "run_metadata": RUN_METADATA,
}

PARTITION: Final = "interval_start"
#: The columns that tell logs of an interval apart: one incarnation of a dispatcher.
LOG: Final = tuple(one.name for one in tables.IDENTITY if one.name != PARTITION)


#: The columns by which the rows of an ingested table are grouped, and the order of the rows within a group.
GROUP: Final = {"messages": ("cluster", "topic"), "consumer_events": schema.DISPATCHER_KEY}
ORDER: Final = {"messages": ("ledger_id", "entry_id"), "consumer_events": ("incarnation", "seq")}


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished Parquet file in the staging folder, not yet part of any table."""

    table: str
    path: Path
    rows: int


def stored_schema(name: str) -> pa.Schema:
    """A table's contract as Delta can hold it: nullability inside structs and lists is given up."""
    return pa.schema([pa.field(one.name, _relaxed(one.type), one.nullable) for one in CONTRACTS[name]])


def file_schema(name: str) -> pa.Schema:
    """Columns of a data file: the stored schema without the partition column."""
    return pa.schema([one for one in stored_schema(name) if one.name != PARTITION or name == "run_metadata"])


def conform(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The table with exactly the wanted columns, order and types; nullability inside structs is re-established."""
    columns = [_conform(in_one(table[one.name]), one.type) for one in wanted]
    return pa.Table.from_arrays(columns, schema=wanted)


def in_one(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Combine a column's chunks; a column of one chunk, as most are, is not copied as Arrow would do."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _conform(column: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> pa.Array:
    array = (
        pa.concat_arrays(column.chunks)
        if isinstance(column, pa.ChunkedArray) and column.num_chunks
        else column
    )
    if isinstance(array, pa.ChunkedArray):
        return pa.array([], wanted)
    if array.type.equals(wanted):
        return array
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type):
        missing = array.is_null()
        children = []
        for one in wanted:
            child = _conform(pc.struct_field(array, one.name), one.type)
            # Under a missing struct a child has no value; a child that may not be null gets one there.
            children.append(child if one.nullable or child.null_count == 0 else pc.fill_null(child, 0))
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=missing)
    return array.cast(wanted)


def _relaxed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _relaxed(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(_relaxed(kind.value_type))
    return kind


def same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Equal but for the name of a list's element, which Spark, Delta and Arrow spell differently."""
    if pa.types.is_list(one) and pa.types.is_list(other):
        return same_type(one.value_type, other.value_type)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return [a.name for a in one] == [b.name for b in other] and all(
            same_type(a.type, b.type) for a, b in zip(one, other, strict=True)
        )
    return bool(one.equals(other))
