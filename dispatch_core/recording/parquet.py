"""Parquet as a form of the log format: the columns of the schema, one row per message or event.

A file holds the columns of ``MESSAGES`` or ``EVENTS`` under their names. Columns may be missing (null) or in another order,
further columns are ignored, and a type that holds the same values (int32 for int64, large or dictionary strings) is
accepted. A header is a row of kind ``header``. ``source_file`` and ``source_line`` of a row are this file and the row's
number from 1, whatever the file has in such columns.

Why not ``pyarrow.dataset``: a row at fault has to be quarantined with its number while the others are kept, and dictionaries
of a damaged file have to be checked before they are decoded; a dataset scan raises and ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dispatch_core.recording import rows as rules
from dispatch_core.recording.files import DamagedFileError
from dispatch_core.recording.identity import IDENTITY, HeaderError
from dispatch_core.recording.parquet_footer import FooterError, RowGroup, row_groups
from dispatch_core.recording.row_judge import Batch, RowJudge
from dispatch_core.recording.schema import EVENTS, MESSAGES

_ROWS_AT_ONCE: Final = 1 << 16
#: Bounds on what one batch may take: items of lists, and bytes of texts.
_VALUES_AT_ONCE: Final = 1 << 25
_TEXT_BYTES_AT_ONCE: Final = 64 << 20
_POSITIONS: Final = ("positions", *rules.SINGLE_POSITIONS)
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


def open_writer(
    path: str | Path | pa.NativeFile, schema: pa.Schema, *, plain: bool = False
) -> pq.ParquetWriter:
    """Open a Parquet file to write rows of ``schema`` to, with encodings that suit logs and result tables.

    Texts repeat, so they are dictionary encoded. Integers are positions, times and sequence numbers, so they are stored as
    differences (``DELTA_BINARY_PACKED``), which takes less time and a third of the space of the default. Compression is zstd
    at its fastest level. ``plain``: columns that are dictionaries in ``schema`` are read back as texts. ``path`` may
    be an open stream, which stays open.
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


def read_parquet(reading: RowJudge, source: str | Path | BinaryIO) -> Iterator[Batch]:
    """The batches of a Parquet file; called by the reader, which counts and quarantines."""
    if isinstance(source, (str, Path)):
        with Path(source).open("rb") as stream:
            yield from _read(reading, stream, str(source))
    else:
        yield from _read(reading, source, source)


def _read(reading: RowJudge, stream: BinaryIO, source: str | BinaryIO) -> Iterator[Batch]:
    try:
        groups = row_groups(stream)
        stream.seek(0)
        file = pq.ParquetFile(source)
        schema = file.schema_arrow
        wordy = {name for group in groups for name in group.wordy}.intersection(schema.names)
        if wordy:
            file.close()
            stream.seek(0)
            file = pq.ParquetFile(source, read_dictionary=sorted(wordy))
    except (FooterError, pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"no readable Parquet file: {_words(error)}") from error
    except KeyError as error:
        raise DamagedFileError(
            f"no readable Parquet file: its footer contradicts itself about {error}"
        ) from error
    with file:
        names = _with_values(groups, _usable_columns(reading, schema))
        names = [*names, *(name for name in _NEEDED[reading.content] if name not in names)]
        size = sum(group.size_bytes for group in groups)
        if size > reading.limits.file_bytes:
            raise DamagedFileError(
                f"{size} bytes of data, more than the limit of {reading.limits.file_bytes}: not read"
            )
        first_row = 1
        most = max((group.values for group in groups), default=0)
        at_once = max(1, min(_ROWS_AT_ONCE, _ROWS_AT_ONCE * _VALUES_AT_ONCE // max(1, most)))
        batches = file.iter_batches(at_once, columns=names, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise _damaged(first_row, _words(error)) from error
            if batch is None:
                # With damaged page headers Arrow ends early and raises nothing.
                said = sum(group.rows for group in groups)
                if first_row - 1 != said:
                    raise _damaged(first_row, f"its footer says {said} rows")
                return
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if pa.types.is_dictionary(column.type) and not _within(column):
                    raise _damaged(first_row, f"column {name} refers to texts beyond its dictionary")
            for part in _bounded(batch):
                try:
                    yield from _rows(reading, part, first_row)
                except HeaderError:
                    return  # nothing after it is to be read; its quarantine row is waiting
                yield from reading.quarantined()
                first_row += len(part)


def _damaged(first_row: int, why: str) -> DamagedFileError:
    return DamagedFileError(
        f"damaged Parquet data after row {first_row - 1}: {why}; rows before it were kept"
    )


def _within(texts: pa.DictionaryArray) -> bool:
    """True if all indices of a dictionary lie in it: Arrow does not check the indices of a file."""
    found = pc.min_max(texts.indices)
    least, most = found["min"].as_py(), found["max"].as_py()
    return least is None or (least >= 0 and most < len(texts.dictionary))


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split the batch so that the decoded texts of each part are bounded: few encoded bytes may stand for gigabytes."""
    sizes = np.zeros(len(batch), dtype=np.int64)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            sizes += _lengths(column)
    ends = np.cumsum(sizes)
    start = 0
    while start < len(batch):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _TEXT_BYTES_AT_ONCE, side="right")))
        yield batch.slice(start, stop - start)
        start = stop


def _lengths(texts: pa.Array) -> npt.NDArray[np.int64]:
    """The length of each text in bytes; 0 for null."""
    if pa.types.is_dictionary(texts.type):
        if not (pa.types.is_string(texts.type.value_type) or pa.types.is_large_string(texts.type.value_type)):
            return np.zeros(len(texts), dtype=np.int64)
        lengths = pc.binary_length(texts.dictionary).take(texts.indices)
    else:
        lengths = pc.binary_length(texts)
    found: npt.NDArray[np.int64] = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _usable_columns(reading: RowJudge, schema: pa.Schema) -> list[str]:
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
        found, expected = schema.field(name).type, wanted.field(name).type
        if not (_holds_same(found, expected, name) and _castable(found, expected)):
            raise DamagedFileError(f"column {name} is {str(found)[:200]}, expected {expected}: not read")
    return names


def _holds_same(found: pa.DataType, wanted: pa.DataType, name: str) -> bool:
    """True if a type holds the values of another with the same meaning: no time in another unit, no number as text."""
    types = pa.types
    if types.is_dictionary(found):
        found = found.value_type
    if types.is_null(found):
        return True
    if types.is_integer(wanted):
        unit = name.rpartition("_")[2]
        return types.is_integer(found) or (types.is_timestamp(found) and found.unit == unit)
    if types.is_string(wanted):
        return types.is_string(found) or types.is_large_string(found) or types.is_string_view(found)
    if types.is_boolean(wanted):
        return types.is_boolean(found)
    if types.is_list(wanted):
        many = types.is_list(found) or types.is_large_list(found)
        return many and _holds_same(found.value_type, wanted.value_type, "")
    parts = {field.name for field in found} if types.is_struct(found) else set()
    return all(
        field.name in parts and _holds_same(found.field(field.name).type, field.type, "") for field in wanted
    )


def _castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    try:
        pa.nulls(0, found).cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _with_values(groups: list[RowGroup], names: list[str]) -> list[str]:
    """Leave out the columns that, by the file's statistics, have no value: most kinds of lines fill few columns.

    Lists stay, because statistics do not distinguish an empty list from null.
    """
    empty = frozenset.intersection(*(group.empty for group in groups)) if groups else frozenset()
    return [name for name in names if name not in empty]


def _rows(reading: RowJudge, batch: pa.RecordBatch, first_row: int) -> Iterator[Batch]:
    count = len(batch)
    faults = reading.faults(count)
    columns = _columns(reading, batch, faults)
    columns["source_file"] = pa.repeat(pa.scalar(reading.name, pa.string()), count)
    columns["source_line"] = pa.array(np.arange(first_row, first_row + count))
    if "ranges" in columns:
        rules.judge_ranges(columns["ranges"], faults)
    about_file = np.zeros(count, dtype=bool)
    stop: HeaderError | None = None
    if reading.content == "events":
        for row in rules.rows_of_kind(columns, "header"):
            about_file[row] = True
            if faults.mask[row]:
                continue
            text = columns["header_json"][row].as_py() if "header_json" in columns else None
            identity = {name: columns[name].slice(row, 1) for name in IDENTITY if name in columns}
            try:
                yield from reading.begin(text, first_row + row, identity)
            except HeaderError as error:
                faults.add_row(row, error.field, error.reason)
                if error.stops:
                    stop = error
                    count = row + 1
                    break
    if stop is not None:
        columns = {name: values.slice(0, count) for name, values in columns.items()}
        faults, about_file = faults.taken(np.arange(count)), about_file[:count]
    reading.counts.lines += count
    yield from reading.accept(columns, count, faults, about_file, lambda row: _row_text(batch, row))
    if stop is not None:
        raise stop


def _columns(reading: RowJudge, batch: pa.RecordBatch, faults: rules.Faults) -> rules.Columns:
    wanted = MESSAGES if reading.content == "messages" else EVENTS
    columns: rules.Columns = {}
    for name in batch.schema.names:
        values, kind = batch.column(name), wanted.field(name).type
        if values.null_count == len(values):
            continue  # as if the column were missing
        if pa.types.is_string(kind):
            values = _short_enough(values, name, reading.limits.line_bytes, faults)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        values = _texts(values, name, faults)
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


def _short_enough(values: pa.Array, name: str, most: int, faults: rules.Faults) -> pa.Array:
    """The texts without those over the limit of a line's length, which are faults."""
    if pa.types.is_null(values.type):
        return values
    lengths = _lengths(values)
    wrong = lengths > most
    if not wrong.any():
        return values
    faults.add(
        wrong,
        rules.shown(name),
        lambda row: f"text of {lengths[row]} bytes, longer than the limit of {most}",
        whole=True,
    )
    mask = pa.array(wrong)
    if pa.types.is_dictionary(values.type):
        return pa.DictionaryArray.from_arrays(pc.if_else(mask, None, values.indices), values.dictionary)
    return pc.if_else(mask, None, values)


def _texts(values: pa.Array, name: str, faults: rules.Faults) -> pa.Array:
    """Replace texts that are not UTF-8 by null and add a fault for each: Parquet texts may be any bytes."""
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
        return pc.if_else(pa.array(wrong), None, values)
    return values


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
