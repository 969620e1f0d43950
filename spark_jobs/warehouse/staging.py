"""Stage the rows of one task in a few files per table, however many dispatchers or log files the task has.

A ``Sink`` takes the rows of one *work item* (a dispatcher, a log file) after the other. ``keep`` confirms the rows of an
item; until then ``discard`` removes them, so that an item that fails half-way leaves nothing in the files it shares with
others. An item of more than ``OWN_FILE_ROWS`` rows is streamed into a file of its own, so that memory is bounded however
large an item is; after ``FILE_ROWS`` rows another file follows.

Files are written under their final names, into the folders of the tables (``contracts.data_file``). They count when a
commit names them: the files of a task that is tried again, or of a run that died, are never read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from dispatch_core.recording.parquet import ROW_GROUP_ROWS, open_writer
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.warehouse.contracts import StagedFile, conform, data_file, file_schema

#: An item with more rows than this in one table gets a file of its own for them.
OWN_FILE_ROWS: Final = ROW_GROUP_ROWS
#: After so many rows another file follows, because writers and readers have a file's whole footer in memory, and the footer
#: grows with every row group.
FILE_ROWS: Final = 4_000_000
#: A row group of at least so many rows ends with an item, so that a reader can skip to the next item.
_EARLY_END_ROWS: Final = ROW_GROUP_ROWS // 2


class Sink:
    """Stage the rows of one task. Use as a context manager: an exception removes the files of an unclosed sink.

    The files are for the interval ``span`` of the tables of ``warehouse``. ``part`` decides on their order among those of
    other tasks. Without ``undo`` nothing can be discarded, and an item of any size is streamed into the shared file.
    """

    def __init__(self, warehouse: Location, span: Interval, part: str, *, undo: bool = True) -> None:
        self._warehouse, self._span, self._part, self._undo = Location.of(warehouse), span, part, undo
        self._open: dict[str, _Table] = {}
        self._closed = False

    def write(self, table: str, rows: pa.Table) -> None:
        """Write rows of the current item for ``table``, in order; columns are converted to the table's contract."""
        if rows.num_rows == 0:
            return
        if table not in self._open:
            self._open[table] = _Table(table, self._warehouse, self._span, self._part)
        self._open[table].write(rows, may_undo=self._undo)

    def rows(self, table: str) -> int:
        """Count the rows of a table that were kept, and those written since."""
        return self._open[table].rows if table in self._open else 0

    def keep(self, apart: Collection[str] = ()) -> dict[str, list[Location]]:
        """Confirm the rows of the current item, and begin the next one.

        Returns for each table that the item has rows of the files that will have them, in order. In the tables named by
        ``apart``, the item shares files only with other such items.
        """
        paths_by_table = {name: table.keep(apart=name in apart) for name, table in self._open.items()}
        return {name: paths for name, paths in paths_by_table.items() if paths}

    def discard(self) -> None:
        """Remove the rows written since the last ``keep``; only with ``undo``."""
        if not self._undo:
            raise RuntimeError("this sink was opened without undo: nothing in it can be discarded")
        for table in self._open.values():
            table.discard()

    def close(self) -> list[StagedFile]:
        """Discard what was not kept, and finish all files; sorted by table and name."""
        if self._undo:
            self.discard()
        staged = [
            file
            for name in sorted(self._open)
            for file in sorted(self._open[name].close(), key=lambda file: file.path)
        ]
        self._closed = True
        return staged

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_error: object) -> None:
        if not self._closed:
            for table in self._open.values():
                table.abandon()


def write_file(table: str, path: Location, parts: Iterable[pa.Table]) -> StagedFile:
    """Write a data file of a table, whose rows come in parts with the columns of ``contracts.file_schema``."""
    rows = 0
    with path.create() as stream:
        with open_writer(stream, file_schema(table)) as writer:
            for part in parts:
                writer.write_table(part)
                rows += part.num_rows
        size_bytes = stream.tell()
    return StagedFile(table, path, rows, size_bytes)


class _File:
    """A Parquet file that is being written, in row groups of at least ``ROW_GROUP_ROWS`` rows."""

    def __init__(self, table: str, path: Location) -> None:
        self.table, self.path, self.rows = table, path, 0
        self._schema = file_schema(table)
        self._stream: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._size_bytes = 0

    def write(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self._flush()

    def end_item(self) -> None:
        if self._waiting_rows >= _EARLY_END_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._stream = self.path.create()
            self._writer = open_writer(self._stream, self._schema)
        self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=ROW_GROUP_ROWS)
        self._waiting, self._waiting_rows = [], 0

    def finish(self) -> None:
        """Write the remaining rows and the footer."""
        self._flush()
        if self._writer is not None and self._stream is not None:
            self._writer.close()
            self._size_bytes = self._stream.tell()
            self._stream.close()
            self._writer = self._stream = None

    def staged(self) -> StagedFile:
        self.finish()
        return StagedFile(self.table, self.path, self.rows, self._size_bytes)

    def abandon(self) -> None:
        """Remove the file, or what there is of it."""
        if self._stream is not None and self._writer is not None:
            # They may have failed already, and what they hold is not wanted.
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
            with suppress(OSError, pa.ArrowException):
                self._stream.close()
            self._writer = self._stream = None
        elif not self._size_bytes:
            return
        self.path.delete()


class _Table:
    """The files of one table: those that items share, and those of large items."""

    def __init__(self, name: str, warehouse: Location, span: Interval, part: str) -> None:
        self._name, self._warehouse, self._span, self._part = name, warehouse, span, part
        self._schema = file_schema(name)
        self._whole: list[_File] = []
        self._shared: dict[bool, _File] = {}  # by whether its items stand apart
        self._own: list[_File] = []  # of the current item; the last is being written
        self._item: list[pa.Table] = []
        self._item_rows = 0
        self._made = 0
        self.rows = 0

    def write(self, rows: pa.Table, *, may_undo: bool) -> None:
        rows = conform(rows, self._schema)
        self.rows += rows.num_rows
        if not may_undo:
            self._share([rows], apart=False)
            return
        self._item_rows += rows.num_rows
        if not self._own:
            self._item.append(rows)
            if self._item_rows > OWN_FILE_ROWS:
                self._own.append(self._next_file())
                self._own[-1].write(pa.concat_tables(self._item))
                self._item = []
            return
        if self._own[-1].rows >= FILE_ROWS:
            self._own[-1].finish()
            self._own.append(self._next_file())
        self._own[-1].write(rows)

    def keep(self, *, apart: bool) -> list[Location]:
        paths = []
        if self._own:
            self._own[-1].finish()
            self._whole += self._own
            paths = [file.path for file in self._own]
        elif self._item:
            paths = [self._share(self._item, apart=apart)]
        shared = self._shared.get(apart)
        if shared is not None:
            shared.end_item()
            if shared.rows >= FILE_ROWS:
                shared.finish()
                self._whole.append(self._shared.pop(apart))
        self._own, self._item, self._item_rows = [], [], 0
        return paths

    def discard(self) -> None:
        self.rows -= self._item_rows
        for file in self._own:
            file.abandon()
        self._own, self._item, self._item_rows = [], [], 0

    def close(self) -> list[StagedFile]:
        return [file.staged() for file in (*self._whole, *self._shared.values())]

    def abandon(self) -> None:
        for file in (*self._whole, *self._shared.values(), *self._own):
            file.abandon()

    def _share(self, parts: list[pa.Table], *, apart: bool) -> Location:
        if apart not in self._shared:
            self._shared[apart] = self._next_file()
        for rows in parts:
            self._shared[apart].write(rows)
        return self._shared[apart].path

    def _next_file(self) -> _File:
        self._made += 1
        part = f"{self._part}-{self._made:04d}"
        return _File(self._name, data_file(self._warehouse, self._name, self._span, part))
