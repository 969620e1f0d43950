"""Write recordings: the log format as Parquet or JSON lines, the same bytes for the same rows.

A file is written under a temporary name and gets its own name when it is complete.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import pyarrow as pa
import zstandard

from dispatch_core.recording.json_lines import json_lines
from dispatch_core.recording.parquet import ROW_GROUP_ROWS, open_writer

FORMATS: Final = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst")
#: The end of a file's name until it is complete.
PARTIAL: Final = ".partial"


class RowFile(ABC):
    """A log file to write rows to. It gets its name when it is closed; as a context manager, only without an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(path.name + PARTIAL)

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Append rows."""

    @abstractmethod
    def _finish(self) -> None:
        """Write what is pending and close the file."""

    def close(self) -> None:
        """Complete the file and give it its name."""
        self._finish()
        self._partial.replace(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self.close()


class ParquetRows(RowFile):
    """Rows in Parquet, gathered into groups of ``ROW_GROUP_ROWS``."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        super().__init__(path)
        self._file = open_writer(self._partial, schema, plain=True)
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        self._waiting.append(table)
        self._rows += len(table)
        if self._rows >= ROW_GROUP_ROWS:
            self._group()

    def _group(self) -> None:
        if not self._rows:
            return
        table = pa.concat_tables(self._waiting)
        if len(self._waiting) > 1:
            table = table.unify_dictionaries().combine_chunks()
        self._waiting, self._rows = [], 0
        self._file.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def _finish(self) -> None:
        self._group()
        self._file.close()


class _JsonRows(RowFile):
    def __init__(self, path: Path, header: Mapping[str, Any] | None, *, names_dispatcher: bool) -> None:
        super().__init__(path)
        self._raw = self._partial.open("wb")
        self._stream: BinaryIO = compressed(self._raw, path.name)
        self._names_dispatcher = names_dispatcher
        if header is not None:
            self._stream.write(json.dumps(header, separators=(",", ":")).encode() + b"\n")

    def write(self, table: pa.Table) -> None:
        self._stream.write(json_lines(table, names_dispatcher=self._names_dispatcher))

    def _finish(self) -> None:
        self._stream.close()
        self._raw.close()


def compressed(raw: BinaryIO, name: str) -> BinaryIO:
    """A stream that writes to ``raw`` in the form of the ending of ``name``; the same input gives the same bytes."""
    if name.endswith(".gz"):
        return gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0)  # type: ignore[return-value]
    if name.endswith(".zst"):
        return zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False)  # type: ignore[return-value]
    return io.BufferedWriter(raw)  # type: ignore[arg-type]


class FootedLines:
    """JSON lines into a stream, ended by a footer with their number and checksum (docs/log-format.md)."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self._lines = self._crc = 0

    def write(self, data: bytes | bytearray) -> None:
        """Append whole lines."""
        self.stream.write(data)
        self._lines += data.count(b"\n")
        self._crc = zlib.crc32(data, self._crc)

    def end(self) -> None:
        """Write the footer; the stream stays open."""
        footer = {"kind": "footer", "lines": self._lines, "crc32": f"{self._crc:08x}"}
        self.stream.write(json.dumps(footer, separators=(",", ":")).encode() + b"\n")


class RecordingFiles:
    """The message log and the event log of one recording, of one dispatcher or of many."""

    def __init__(
        self,
        folder: Path,
        form: str,
        messages_schema: pa.Schema,
        events_schema: pa.Schema,
        *,
        cluster: str,
        trace: bool,
        many: bool,
    ) -> None:
        """Create the files.

        Args:
            folder: the recording's folder.
            form: one of ``FORMATS``.
            messages_schema: the columns of the tables given to ``messages``.
            events_schema: the columns of the tables given to ``events``.
            cluster: the cluster in the header of the messages.
            trace: the events are those of a dispatcher trace.
            many: the files hold more than one dispatcher, so each line of JSON names its own.
        """
        folder.mkdir(parents=True, exist_ok=True)
        events = folder / f"{'trace' if trace else 'events'}.{form}"
        messages = folder / f"messages.{form}"
        self._events: RowFile
        self._messages: RowFile
        if form == "parquet":
            self._events = ParquetRows(events, events_schema)
            self._messages = ParquetRows(messages, messages_schema)
        else:
            general = {"format": "pulsar-message-log", "format_version": "1.0", "cluster": cluster}
            self._events = _JsonRows(events, None, names_dispatcher=many)
            self._messages = _JsonRows(messages, general, names_dispatcher=True)

    def messages(self, table: pa.Table) -> None:
        """Append rows of ``MESSAGES``."""
        self._messages.write(table)

    def events(self, table: pa.Table) -> None:
        """Append rows of ``EVENTS``."""
        self._events.write(table)

    def close(self) -> None:
        """Complete both files."""
        self._messages.close()
        self._events.close()
