"""The columns of the warehouse's tables and of their files, in their order, with their types, and the files' names.

Neither Delta nor a JVM is loaded here, so that Spark tasks can import it cheaply; ``delta_tables`` commits rows to tables.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core import tables
from dispatch_core.arrays.columns import has
from dispatch_core.recording import schema
from spark_jobs.intervals import Interval
from spark_jobs.location import Location

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
#: One row per notification about a finding, so that each channel gets each notification once.
ALERTS_SENT: Final = pa.schema(
    [
        pa.field("channel", pa.string(), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in ("cluster", "topic", "subscription")),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("identity", pa.string(), nullable=False),
        tables.INTERVAL_START,
        pa.field("number", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("evidence", pa.string(), nullable=False),
        pa.field("idempotency_key", pa.string(), nullable=False),
        pa.field("sent_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


#: What the rows of an interval were made of, for each dispatcher (its events) and each topic (its messages, no
#: ``subscription``), and what differed when other rows were ingested (``ingest.inputs``).
INPUTS: Final = pa.schema(
    [
        tables.INTERVAL_START,
        pa.field("age", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        *(pa.field(name, pa.string()) for name in schema.DISPATCHER_KEY),
        pa.field("digest", pa.string()),
    ]
)


#: One row per dispatcher: the state of its replay shortly before the interval's end (``replay.snapshot_files``).
SNAPSHOTS: Final = pa.schema(
    [
        tables.INTERVAL_START,
        *(pa.field(name, pa.string(), nullable=False) for name in schema.DISPATCHER_KEY),
        pa.field("history", pa.string(), nullable=False),
        pa.field("settings", pa.string(), nullable=False),
        pa.field("code", pa.string(), nullable=False),
        pa.field("format", pa.int64(), nullable=False),
        pa.field("sha256", pa.string()),
        pa.field("kept_in", pa.string()),
        pa.field("kept_end_us", pa.int64()),
        pa.field("state", pa.binary()),
        pa.field("events", pa.binary()),
        pa.field("messages", pa.binary()),
        pa.field("ends_lost", pa.string()),
    ]
)


def _with_interval(contract: pa.Schema) -> pa.Schema:
    return pa.schema([tables.INTERVAL_START, *contract])


#: Every table of the warehouse by name, column for column.
CONTRACTS: Final[dict[str, pa.Schema]] = {
    "messages": _with_interval(schema.MESSAGES),
    "messages_ahead": _with_interval(schema.MESSAGES),
    "consumer_events": _with_interval(schema.EVENTS),
    "quarantine": _with_interval(schema.QUARANTINE),
    "inputs": INPUTS,
    **tables.ALL_TABLES,
    "snapshots": SNAPSHOTS,
    "run_metadata": RUN_METADATA,
    "alerts_sent": ALERTS_SENT,
}
#: Tables that are only appended to and have no partitions. They depend on when something was done, not on the logs alone,
#: and are left out where results are compared.
APPENDED: Final = ("run_metadata", "alerts_sent")
#: Tables that are left out where results are compared: those, what is known of the inputs, and the cache of the replays.
NOT_COMPARED: Final = (*APPENDED, "inputs", "snapshots")

PARTITION: Final = "interval_start"
#: Kinds of ``anomalies`` that are found over all topics, and added to those of the replay.
KINDS_OVER_TOPICS: Final = ("failover_imbalance",)
#: Likewise, of intervals shorter than a day alone: kinds that are found over the 24 hours to the interval's end.
KINDS_OVER_A_DAY: Final = ("imbalance", "hot_consumer", "hot_key")

#: Columns that the tables of logs in an older home may lack: log format 1.1, operations on the cursor. They stand last.
ADDED: Final = frozenset(
    (
        *("keys", "deliver_at_ms", "txn"),
        *("by", "moved_from", "moved_to", "entries", "what", "limit_active"),
        *("op", "target", "after", "individually_deleted"),
    )
)
#: Columns that a table of an older home may lack, by table.
_ADDED_TO: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(("messages", "messages_ahead", "consumer_events"), ADDED),
    "balance": frozenset(("equal_share",)),
    "snapshots": frozenset(("ends_lost",)),
}
_ADDED_ANYWHERE: Final = frozenset().union(*_ADDED_TO.values())
#: The columns that identify a log within an interval: one incarnation of a dispatcher.
LOG: Final = tuple(field.name for field in tables.IDENTITY if field.name != PARTITION)

#: The columns by which the rows of an ingested table are grouped, and the order of the rows within a group.
GROUP: Final = {
    "messages": ("cluster", "topic"),
    "messages_ahead": ("cluster", "topic"),
    "consumer_events": schema.DISPATCHER_KEY,
}
ORDER: Final = {
    "messages": ("ledger_id", "entry_id"),
    "messages_ahead": ("ledger_id", "entry_id"),
    "consumer_events": ("incarnation", "seq"),
}


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished Parquet file under its final name that no commit names yet."""

    table: str
    path: Location
    rows: int
    size_bytes: int

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> StagedFile:
        """Read the result of ``as_json``."""
        return cls(values["table"], Location.of(values["path"]), values["rows"], values["size_bytes"])

    def as_json(self) -> dict[str, Any]:
        """Write it as plain values, as tasks report it: a row of ``STAGED_FILE``."""
        return {
            "table": self.table,
            "path": self.path.url,
            "rows": self.rows,
            "size_bytes": self.size_bytes,
        }


#: The fields of a staged file as a task reports it.
STAGED_FILE: Final = (
    pa.field("table", pa.string()),
    pa.field("path", pa.string()),
    pa.field("rows", pa.int64()),
    pa.field("size_bytes", pa.int64()),
)


def interval_folder(warehouse: Location, table: str, span: Interval) -> Location:
    """Return the folder of an interval's data files."""
    return warehouse / table / f"{PARTITION}={span.start.strftime('%Y-%m-%d %H%%3A%M%%3A%S')}"


def data_file(warehouse: Location, table: str, span: Interval, part: str) -> Location:
    """Return a name for a new data file that no other file has or will have.

    The files of an interval are read in the order of their names, so ``part`` decides on the order.
    """
    return interval_folder(warehouse, table, span) / f"part-{part}-{uuid.uuid4().hex}{_SUFFIX}"


def joined_file(first: Location) -> Location:
    """Return a name for a new file that takes the place of ``first`` in the order."""
    return first.parent / f"{first.name.removesuffix(_SUFFIX)[:-_UUID]}{uuid.uuid4().hex}{_SUFFIX}"


_SUFFIX: Final = ".zstd.parquet"
_UUID: Final = 32


@cache
def stored_schema(name: str) -> pa.Schema:
    """A table's contract as Delta can store it: fields inside structs and lists become nullable."""
    return pa.schema(
        [pa.field(field.name, _relaxed(field.type), field.nullable) for field in CONTRACTS[name]]
    )


@cache
def file_schema(name: str) -> pa.Schema:
    """The columns of a table's data files: the stored schema without the partition column."""
    return pa.schema([field for field in stored_schema(name) if field.name != PARTITION or name in APPENDED])


def older_schema(name: str) -> pa.Schema:
    """The columns that a table of an older home has: the stored schema without those that were added later."""
    added = _ADDED_TO.get(name, frozenset())
    return pa.schema([field for field in stored_schema(name) if field.name not in added])


def conform(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Bring a table to the wanted columns, order and types; fields inside structs get their nullability back.

    Columns that were added later than the table's rows (``_ADDED_TO``) are null.
    """
    if all(has(table, name) for name in wanted.names):
        table = table.select(wanted.names)
        if table.schema.equals(wanted) and all(column.num_chunks == 1 for column in table.columns):
            return table
    columns = [
        pa.nulls(table.num_rows, field.type)
        if field.name in _ADDED_ANYWHERE and field.name not in table.column_names
        else _conform(in_one(table[field.name]), field.type)
        for field in wanted
    ]
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
        for field in wanted:
            child = _conform(pc.struct_field(array, field.name), field.type)
            # A child of a missing struct is null; one that is not nullable gets 0 there.
            children.append(child if field.nullable or child.null_count == 0 else pc.fill_null(child, 0))
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=missing)
    return array.cast(wanted)


def _relaxed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _relaxed(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_relaxed(kind.value_type))
    return kind


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Compare types; the name of a list's element, which Spark, Delta and Arrow spell differently, is ignored."""
    if pa.types.is_list(left) and pa.types.is_list(right):
        return same_type(left.value_type, right.value_type)
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        return [field.name for field in left] == [field.name for field in right] and all(
            same_type(a.type, b.type) for a, b in zip(left, right, strict=True)
        )
    return bool(left.equals(right))
