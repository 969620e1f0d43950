"""Read the rows of one dispatcher, or of one topic, from the Parquet files of the tables.

The files hold many dispatchers, each as one run of rows sorted by position (messages) or ``seq`` (events). A row group whose
statistics exclude the dispatcher is not read. Repeated texts stay dictionary encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dispatch_core.arrays.batches import nulls, part_of
from dispatch_core.arrays.columns import marked
from dispatch_core.recording import kept_rows
from dispatch_core.recording.merged_entries import EntryFile, merged
from dispatch_core.recording.parquet import ROW_GROUP_ROWS
from dispatch_core.recording.schema import EVENTS, MESSAGES
from dispatch_core.recording.shared_groups import Form, about, rows_of
from dispatch_core.recording.stored_files import parquet_file

SLICE_ROWS: Final = -(-ROW_GROUP_ROWS // 3)
_MOST_AT_ONCE: Final = 524_288
_TEXTS: Final = (
    "kind",
    "ack_type",
    "key",
    "ordering_key_b64",
    "producer",
    "name",
    "key_shared_mode",
    "broker",
)
_ENCODED: Final = pa.dictionary(pa.int32(), pa.string())
#: Columns that tell the incarnations of a dispatcher apart.
INCARNATION: Final = ("broker", "incarnation")
Position = tuple[int, int]


def without_headers(events: pa.Table) -> pa.Table:
    """Return the lines of a log that are no headers."""
    headers = marked(events["kind"], "header")
    return kept(events, ~headers) if headers.any() else events


def kept(rows: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows where ``mask`` is true; consecutive rows, as after a header, without a copy."""
    at = np.flatnonzero(mask)
    if len(at) and at[-1] - at[0] == len(at) - 1:
        return part_of(rows, int(at[0]), int(at[0]) + len(at))
    if not len(at):
        return rows.slice(0, 0)
    return rows.filter(pa.array(mask))


def entries_of(paths: Sequence[str], wanted: Columns, topic: Mapping[str, str]) -> Iterator[pa.Table]:
    """Rows of one topic in the columns of ``wanted``, in order of position."""
    if len(paths) < 2:
        return rows_of_files(paths, wanted, topic)
    return merged(EntryFile(_lowest(path, topic), rows_of_files([path], wanted, topic)) for path in paths)


def _lowest(path: str, topic: Mapping[str, str]) -> Position | None:
    """A position that no entry of a topic in a file lies before; ``None`` if only its rows tell."""
    with opened(path) as file:
        return file.lowest(topic)


def rows_of_files(paths: Sequence[str], wanted: Columns, dispatcher: Mapping[str, str]) -> Iterator[pa.Table]:
    """Rows of one dispatcher in the columns of ``wanted``; columns that a file lacks are null."""
    for path in paths:
        with opened(path) as file:
            for group in file.groups(dispatcher):
                if not file.holds_only(group, dispatcher):
                    table = file.shared_rows(group, dispatcher, wanted.of)
                    if table.num_rows:
                        yield table
                    continue
                for table in file.rows(group, wanted.schema.names):
                    if table.num_rows:
                        yield wanted.of(table)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Columns of lines or of entries, told apart by identity: the hash of a schema takes a twentieth of a millisecond.

    ``as_stored``: rows come as a file has them, in their types, without the columns that the file lacks.
    """

    schema: pa.Schema
    as_stored: bool = False

    def of(self, table: pa.Table) -> pa.Table:
        """Bring rows of a file into these columns, texts dictionary encoded; columns that the file lacks are null."""
        return table if self.as_stored else in_columns(table, self.schema, texts=True)


@cache
def columns_of_events(names: tuple[str, ...]) -> Columns:
    """Return columns of the log's lines."""
    return Columns(pa.schema([EVENTS.field(name) for name in names]))


@cache
def columns_of_messages(names: tuple[str, ...]) -> Columns:
    """Return columns of the topic's entries."""
    return Columns(pa.schema([MESSAGES.field(name) for name in names]))


class StoredFile:
    """A Parquet file whose texts are read as dictionaries. ``shared_groups`` reads the row groups that dispatchers share."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._about = about(path)
        self.texts = tuple(name for name in _TEXTS if name in self._about.columns)
        self._file: pq.ParquetFile | None = None

    def __enter__(self) -> StoredFile:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._file is not None:
            self._file.close()

    def groups(self, dispatcher: Mapping[str, str]) -> list[int]:
        """The row groups that may hold rows of the dispatcher, by their statistics."""
        return [at for at, group in enumerate(self._about.groups) if group.may_hold(dispatcher)]

    def holds_only(self, group: int, dispatcher: Mapping[str, str]) -> bool:
        """True if a row group can hold no other rows than the dispatcher's."""
        return self._about.groups[group].holds_only(dispatcher)

    def lowest(self, topic: Mapping[str, str]) -> Position | None:
        """A position that no entry of the topic lies before, by the statistics of row groups that hold no other topic."""
        groups = self.groups(topic)
        known = [self._about.groups[at].lowest for at in groups if self.holds_only(at, topic)]
        found = [position for position in known if position is not None]
        return min(found) if found and len(found) == len(groups) else None

    def shared_rows(self, group: int, dispatcher: Mapping[str, str], form: Form) -> pa.Table:
        """The dispatcher's rows of a row group that dispatchers share."""
        return rows_of(self.path, group, dispatcher, form, self.texts)

    def rows(self, group: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows of a row group of the dispatcher alone, a batch at a time, in those of ``columns`` that are filled."""
        of_group = self._about.groups[group]
        filled = frozenset(self._about.filled(group))
        there = [name for name in columns if name in filled]
        if self._file is None:
            self._file = parquet_file(
                self.path, metadata=self._about.metadata, read_dictionary=list(self.texts)
            )
        if of_group.num_rows > _MOST_AT_ONCE:
            for batch in self._file.iter_batches(
                _MOST_AT_ONCE, row_groups=[group], columns=there, use_threads=False
            ):
                yield pa.Table.from_batches([batch])
            return
        # The whole row group at once: each batch would bring a copy of its dictionaries.
        whole = self._file.read_row_group(group, columns=there, use_threads=False)
        for start in range(0, whole.num_rows, SLICE_ROWS):
            yield whole.slice(start, SLICE_ROWS)


def opened(path: str) -> StoredFile | kept_rows.KeptRows:
    """Open a file of rows."""
    return kept_rows.KeptRows(path) if path.endswith(kept_rows.SUFFIX) else StoredFile(path)


def in_columns(table: pa.Table, wanted: pa.Schema, *, texts: bool = False) -> pa.Table:
    """The table in exactly the columns of ``wanted``; with ``texts`` those of ``_TEXTS`` are dictionary encoded."""
    arrays, other = [], {}
    there = {name: at for at, name in enumerate(table.column_names)}
    for number, field in enumerate(wanted):
        at = there.get(field.name)
        if at is None:
            kind = _ENCODED if texts and field.name in _TEXTS else field.type
            column = pa.chunked_array([nulls(table.num_rows, kind)])
        else:
            column = table.column(at)
            if texts and field.name in _TEXTS and not pa.types.is_dictionary(column.type):
                column = column.dictionary_encode()
        if column.type != field.type:
            if texts and pa.types.is_dictionary(column.type):
                other[number] = field.with_type(column.type)
            else:
                column = _as_type(column, field.type)
        arrays.append(column)
    schema = pa.schema([other.get(at, field) for at, field in enumerate(wanted)]) if other else wanted
    return pa.Table.from_arrays(arrays, schema=schema)


def _as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column in another type; where only the names of list elements differ, without a copy."""
    if pa.types.is_struct(kind):
        return pa.chunked_array([_as_struct(chunk, kind) for chunk in column.chunks], kind)
    if pa.types.is_list(kind):
        try:
            return pa.chunked_array([chunk.view(kind) for chunk in column.chunks], kind)
        except pa.ArrowInvalid:
            pass
    return column.cast(kind)


def _as_struct(chunk: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    """The array in another struct type; parts of a null struct that must not be null become 0."""
    parts = [chunk.field(at).cast(field.type) for at, field in enumerate(kind)]
    parts = [part if field.nullable else part.fill_null(0) for part, field in zip(parts, kind, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=chunk.is_null())
