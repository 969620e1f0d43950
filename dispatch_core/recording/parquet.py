"""Parquet as a form of the log format: the columns of the schema, one row per message or event.

A file holds ``MESSAGES`` or ``EVENTS`` under their names; columns may be missing (null) or stand in another
order, further ones are ignored, and a type that holds the same values (int32 for int64, large or dictionary
strings) is taken. A header is a row of kind ``header``. ``source_file`` and ``source_line`` of the rows read
are this file and the row's number from 1, whatever the file says in such columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dispatch_core.recording import rows as rules
from dispatch_core.recording.files import DamagedFileError
from dispatch_core.recording.identity import IDENTITY, HeaderError
from dispatch_core.recording.schema import EVENTS, MESSAGES

if TYPE_CHECKING:
    from dispatch_core.recording.reader import Batch, LogFile

_ROWS_AT_ONCE: Final = 1 << 16
_POSITIONS: Final = ("positions", "read_position", "mark_delete")
_NEEDED: Final = {
    "messages": ("topic", "ledger_id", "entry_id"),
    "events": ("topic", "subscription", "seq", "t_us", "kind"),
}


#: Rows of a row group: small enough to skip to a dispatcher by the statistics, large enough that 60 columns cost little.
ROW_GROUP_ROWS: Final = 1 << 17


def write_parquet(table: pa.Table, path: str | Path) -> None:
    """Write rows of ``MESSAGES`` or ``EVENTS`` as a Parquet file of the log format."""
    schema = MESSAGES if "ledger_id" in table.column_names else EVENTS
    kept = pa.schema([field for field in schema if field.name not in ("source_file", "source_line")])
    with open_writer(path, kept) as writer:
        writer.write_table(table.select(kept.names).cast(kept), row_group_size=ROW_GROUP_ROWS)


def open_writer(path: str | Path, schema: pa.Schema, *, plain: bool = False) -> pq.ParquetWriter:
    """A Parquet file to write rows of ``schema`` to, in the encodings that suit logs and what is made of them.

    Texts repeat: dictionaries. Integers are positions, times, numbers that go up step by step: differences, bit by bit
    (``DELTA_BINARY_PACKED``), which takes less time and a third of the room of the default. zstd at its fastest level.
    Texts of ``schema`` may be dictionaries; where the file is to be ``plain``, a reader finds texts all the same.
    """
    leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=[
            name for name, kind in leaves if pa.types.is_string(kind) or pa.types.is_dictionary(kind)
        ],
        column_encoding={
            name: "DELTA_BINARY_PACKED"
            for name, kind in leaves
            if pa.types.is_integer(kind) or pa.types.is_timestamp(kind)
        },
        store_schema=not plain,
    )


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The columns that Parquet makes of a column, by their paths."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind


def read_parquet(reading: LogFile, source: str | Path | BinaryIO) -> Iterator[Batch]:
    """The batches of a Parquet file; called by the reader, which counts and quarantines."""
    try:
        file = pq.ParquetFile(source)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DamagedFileError(f"no readable Parquet file: {_words(error)}") from error
    with file:
        names = _with_values(file.metadata, _usable_columns(reading, file.schema_arrow))
        names = [*names, *(name for name in _NEEDED[reading.content] if name not in names)]
        size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))
        if size > reading.limits.file_bytes:
            raise DamagedFileError(
                f"{size} bytes of data, more than the limit of {reading.limits.file_bytes}: not read"
            )
        first_row = 1
        batches = file.iter_batches(_ROWS_AT_ONCE, columns=names, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
                raise DamagedFileError(
                    f"damaged Parquet data after row {first_row - 1}: {_words(error)}; rows before it were kept"
                ) from error
            if batch is None:
                return
            yield from _rows(reading, batch, first_row)
            yield from reading.quarantined()
            first_row += len(batch)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _usable_columns(reading: LogFile, schema: pa.Schema) -> list[str]:
    wanted = MESSAGES if reading.content == "messages" else EVENTS
    names = [
        field.name for field in wanted if field.name in schema.names and not field.name.startswith("source_")
    ]
    for name in names:
        if schema.names.count(name) > 1:
            raise DamagedFileError(f"column {name} stands in the file twice: not read")
    for name in _NEEDED[reading.content]:
        if name not in names:
            raise DamagedFileError(
                f"column {name} is missing; a Parquet log of {reading.content} needs at least "
                f"{', '.join(_NEEDED[reading.content])}: not read"
            )
    for name in names:
        try:
            pa.nulls(0, schema.field(name).type).cast(wanted.field(name).type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DamagedFileError(
                f"column {name} is {schema.field(name).type}, expected {wanted.field(name).type}: not read"
            ) from error
    return names


def _with_values(data: pq.FileMetaData, names: list[str]) -> list[str]:
    """Without the columns in which no row has a value, as far as the file's statistics tell: most kinds leave most empty.

    Lists stay: statistics do not tell a list without items from none.
    """
    empty = set()
    for at in range(data.num_columns):
        column = data.schema.column(at)
        if column.max_repetition_level == 0 and column.path == column.name and data.num_row_groups:
            chunks = (data.row_group(group).column(at) for group in range(data.num_row_groups))
            if all(_all_null(chunk) for chunk in chunks):
                empty.add(column.name)
    return [name for name in names if name not in empty]


def _all_null(chunk: pq.ColumnChunkMetaData) -> bool:
    known = chunk.statistics
    return known is not None and known.has_null_count and known.null_count == chunk.num_values


def _rows(reading: LogFile, batch: pa.RecordBatch, first_row: int) -> Iterator[Batch]:
    count = len(batch)
    reading.counts.lines += count
    faults = rules.Faults(count)
    columns = _columns(reading, batch, faults)
    columns["source_file"] = pa.repeat(pa.scalar(reading.name, pa.string()), count)
    columns["source_line"] = pa.array(np.arange(first_row, first_row + count))
    if "ranges" in columns:
        rules.judge_ranges(columns["ranges"], faults)
    about_file = np.zeros(count, dtype=bool)
    if reading.content == "events":
        for row in rules.rows_of_kind(columns, "header"):
            about_file[row] = True
            text = columns["header_json"][row].as_py() if "header_json" in columns else None
            identity = {name: columns[name].slice(row, 1) for name in IDENTITY if name in columns}
            try:
                yield from reading.begin(text, first_row + row, identity)
            except HeaderError as error:
                faults.add_row(row, error.field, error.reason)
    yield from reading.accept(columns, count, faults, about_file, lambda row: _row_text(batch, row))


def _columns(reading: LogFile, batch: pa.RecordBatch, faults: rules.Faults) -> rules.Columns:
    wanted = MESSAGES if reading.content == "messages" else EVENTS
    columns: rules.Columns = {}
    for name in batch.schema.names:
        values, kind = batch.column(name), wanted.field(name).type
        if values.null_count == len(values):
            continue  # as if the column were missing
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        _judge_texts(values, name, faults)
        if name in _POSITIONS:
            rules.judge_positions(name, values, faults)
            columns[name] = rules.solid(values)
            continue
        try:
            columns[name] = values.cast(kind)
        except pa.ArrowInvalid:
            made, wrong = [], np.zeros(len(values), dtype=bool)
            for row in range(len(values)):
                try:
                    made.append(values.slice(row, 1).cast(kind))
                except pa.ArrowInvalid:
                    made.append(pa.nulls(1, kind))
                    wrong[row] = True
            columns[name] = pa.concat_arrays(made)
            faults.add(wrong, rules.shown(name), f"no value of type {kind}")
    return columns


def _judge_texts(values: pa.Array, name: str, faults: rules.Faults) -> None:
    """Texts in Parquet may be any bytes: those that are no UTF-8 are faults."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        wrong = np.zeros(len(values), dtype=bool)
        for row in range(len(values)):
            try:
                values.slice(row, 1).validate(full=True)
            except pa.ArrowInvalid:
                wrong[row] = True
        faults.add(wrong, rules.shown(name), "not UTF-8")


def _row_text(batch: pa.RecordBatch, row: int) -> bytes:
    """A row as JSON, for the quarantine; bytes that are no text are shown escaped."""
    shown = {}
    for name in batch.schema.names:
        value = batch.column(name).slice(row, 1)
        try:
            shown[name] = value.to_pylist()[0]
        except UnicodeDecodeError:
            shown[name] = repr(pc.cast(value, pa.binary())[0].as_py())
    return json.dumps(
        {name: value for name, value in shown.items() if value is not None}, default=str
    ).encode()
