"""The reader of log format 1.0: a file in, batches of messages, events and quarantined lines out.

The command line and Spark's ``mapInArrow`` use the same reader. It never raises because of a file's content: a line that
breaks the format becomes a row of the quarantine, with file, line, field, reason and its bytes; a file that becomes
unreadable adds one such row, and everything before it stays. Faults that depend on the order of lines (a hole in ``seq``, an
unknown consumer) are found by the audit.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording import rows as rules
from dispatch_core.recording.ahead import in_order, usable_threads
from dispatch_core.recording.files import (
    Block,
    DamagedFileError,
    Encoding,
    Limits,
    NoRecordingError,
    RecordingSource,
    blocks,
    file_format,
    find_recordings,
    in_words,
)
from dispatch_core.recording.identity import HeaderError
from dispatch_core.recording.log import DispatcherLog, DispatcherLogs, mismatches
from dispatch_core.recording.lost_rows import Refused, with_lost_ends
from dispatch_core.recording.parquet import read_parquet
from dispatch_core.recording.parse import RAW_EVENTS, RAW_MESSAGES, BlockParser, Parsed, loaded
from dispatch_core.recording.row_judge import Batch, FileCounts, RowJudge
from dispatch_core.recording.schema import EVENTS, MESSAGES, QUARANTINE

__all__ = [
    "Batch",
    "DamagedFileError",
    "FileCounts",
    "Limits",
    "LogFile",
    "NoRecordingError",
    "Recording",
    "RecordingSource",
    "find_recordings",
    "read_file",
    "read_recording",
]

DEFAULT_LIMITS: Final = Limits()
#: Refused lines that ``Recording`` holds.
KEPT_REFUSED: Final = 1000
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Recording:
    """A recording that was read: one log per dispatcher and incarnation, and the refused lines (schema ``QUARANTINE``).

    ``quarantine``: the first refused lines, at most ``KEPT_REFUSED``; a file of nothing else would not fit in memory.
    ``mismatches``: warnings about files whose headers do not fit together (``log.mismatches``), and about fields that
    cannot be read.
    """

    name: str
    folder: Path
    logs: Sequence[DispatcherLog] = field(repr=False)
    quarantine: pa.Table = field(repr=False)
    counts: FileCounts
    mismatches: tuple[str, ...] = ()

    @property
    def refused(self) -> int:
        """Number of refused lines and of files at fault, also of those that ``quarantine`` does not hold."""
        return self.counts.quarantined + self.counts.file_problems


def read_file(
    source: str | Path | BinaryIO,
    *,
    name: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    line_by_line: bool = False,
    threads: int | None = None,
) -> LogFile:
    """Open one file of a recording; iterate over the result to read it.

    Args:
        source: a path or an open binary stream.
        name: becomes ``source_file`` of every row. Its last part gives the content (``messages*``, ``events*``, ``trace*``)
            and the form (``.jsonl[.gz|.zst]``, ``.parquet``). Default: the path; required for a stream.
        limits: bounds on memory and work.
        line_by_line: parse without bulk attempts, with the same result.
        threads: parse ahead in so many threads, with the same result. Default: the number of cores, within bounds.

    Raises:
        ValueError: the log format has no such name. Faults of the file itself become quarantine rows.
    """
    return LogFile(source, name=name, limits=limits, line_by_line=line_by_line, threads=threads)


class LogFile(RowJudge):
    """One file being read: iterate for its ``Batch``es (once); ``counts`` is complete afterwards."""

    def __init__(
        self,
        source: str | Path | BinaryIO,
        *,
        name: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        line_by_line: bool = False,
        threads: int | None = None,
    ) -> None:
        if name is None:
            if not isinstance(source, (str, Path)):
                raise ValueError("a stream needs a name that says what it holds, such as trace.jsonl.gz")
            name = str(source)
        known = file_format(name)
        if known is None:
            raise ValueError(
                f"{name}: not a name of the log format; expected messages*, events* or trace* "
                "with .jsonl, .jsonl.gz, .jsonl.zst or .parquet"
            )
        super().__init__(in_words(name), known[0], limits)
        self.encoding: Encoding = known[1]
        self._source = source
        self._line_by_line = line_by_line
        self.threads = usable_threads() if threads is None else threads
        self._parser = (
            BlockParser(RAW_MESSAGES, rules.SPARED) if self.content == "messages" else BlockParser(RAW_EVENTS)
        )
        self._footer = _FooterCheck()

    def __iter__(self) -> Iterator[Batch]:
        """Read the file."""
        try:
            if self.encoding == "parquet":
                yield from read_parquet(self, self._source)
            elif isinstance(self._source, (str, Path)):
                with Path(self._source).open("rb") as stream:
                    yield from self._lines(stream)
            else:
                yield from self._lines(self._source)
        except _StopReading:
            pass  # ``quarantined`` below yields its row
        except DamagedFileError as error:
            self.refuse_file(str(error))
        except OSError as error:
            self.refuse_file(f"cannot be read: {error.strerror or error}")
        yield from self.quarantined()

    # ---- lines ----

    def _lines(self, stream: BinaryIO) -> Iterator[Batch]:
        for lines, parsed in in_order(self._parsed, blocks(stream, self.encoding, self.limits), self.threads):
            block = lines.block
            if block.first_line == 1 and block.data.startswith(_UTF16_BOMS):
                self.refuse_file("the text is UTF-16; the log format is UTF-8")
                raise _StopReading
            if parsed is None:
                self.counts.lines += 1
                reason = f"line of {block.too_long} bytes, longer than the limit of {self.limits.line_bytes}"
                self.refuse(block.first_line, None, reason, block.data, cut=True)
                self._footer.lose_checksum()
            else:
                yield from self._block(lines, parsed)
            yield from self.quarantined()

    def _parsed(self, block: Block) -> tuple[Lines, Parsed | None]:
        """A block's rows, None for a line that is too long; called in threads, ahead of the judging."""
        lines = Lines(block)
        if block.too_long:
            return lines, None
        return lines, self._parser.parse(lines.text, line_by_line=self._line_by_line)

    def _block(self, lines: Lines, parsed: Parsed) -> Iterator[Batch]:
        self.counts.blank += parsed.blank
        faults = deque(sorted(parsed.faults, key=lambda fault: fault.line))
        at, count = 0, len(parsed.rows)
        converted = self._converted(parsed)
        for row in (*_header_rows(parsed.rows), count):
            line = int(parsed.lines[row]) if row < count else None
            # Only faults before the header: a header may stop the reading, and then no later line counts.
            while faults and (line is None or faults[0].line < line):
                fault = faults.popleft()
                self.counts.lines += 1
                self.refuse(lines.number(fault.line), fault.field, fault.reason, lines.raw(fault.line))
            if row > at:
                self.counts.lines += row - at
                yield from self._segment(*converted, parsed.lines, at, row, lines)
            at = row + 1
            if line is not None:
                self.counts.lines += 1
                yield from self._header(line, lines)
        self._footer.pass_over(lines.block.data)

    def _header(self, line: int, lines: Lines) -> Iterator[Batch]:
        raw = lines.raw(line)
        try:
            begun = self.headers.take(lines.words(line), lines.number(line))
        except HeaderError as error:
            self.refuse(lines.number(line), error.field, error.reason, raw)
            if error.stops:
                raise _StopReading from error
            return
        self.counts.about_file += 1
        yield from self.header_batch(begun)

    def _converted(self, parsed: Parsed) -> tuple[rules.Columns, rules.Faults]:
        """Columns of the schema of all rows, headers included, and the faults of their values."""
        faults = self.faults(len(parsed.rows))
        if parsed.unread:
            for row, line in enumerate(parsed.lines.tolist()):
                for fault in parsed.unread.get(line, ()):
                    faults.add_row(row, fault.field, fault.reason)
        return rules.from_json(parsed.rows, faults), faults

    def _segment(
        self,
        columns: rules.Columns,
        faults: rules.Faults,
        at_line: npt.NDArray[np.int64],
        start: int,
        stop: int,
        lines: Lines,
    ) -> Iterator[Batch]:
        """Rows between two headers, of the columns of a block."""
        count = stop - start
        if count < len(at_line):
            columns = {name: values.slice(start, count) for name, values in columns.items()}
            faults, at_line = faults.taken(np.arange(start, stop)), at_line[start:stop]
        about_file = np.zeros(count, dtype=bool)
        has_seq = columns["seq"].is_valid().to_numpy(zero_copy_only=False) if "seq" in columns else about_file
        for row in rules.rows_of_kind(columns, "footer"):
            if wrong := self._footer.check(lines, int(at_line[row])):
                faults.add_row(row, *wrong)
            about_file[row] = self.content == "messages" or not has_seq[row]
        columns["source_line"] = pa.array(at_line + lines.block.first_line)
        columns["source_file"] = pa.repeat(pa.scalar(self.name, pa.string()), count)
        for kind in ("checkpoint", "footer") if self.content == "events" else ():
            wanted = rules.rows_of_kind(columns, kind)
            if wanted:
                texts: list[str | None] = [None] * count
                for row in wanted:
                    texts[row] = lines.words(int(at_line[row]))
                columns[f"{kind}_json"] = pa.array(texts, type=pa.string())
        yield from self.accept(columns, count, faults, about_file, lambda row: lines.raw(int(at_line[row])))


class _StopReading(Exception):  # noqa: N818 - a way out, not an error
    """Nothing after this point of the file is to be read."""


class Lines:
    """A block's lines by their place in it; the block is split only when a line is needed."""

    def __init__(self, block: Block) -> None:
        self.block = block
        first = block.first_line == 1 and block.data.startswith(_UTF8_BOM)
        self.text = block.data[len(_UTF8_BOM) :] if first else block.data
        self._divided: list[bytes] | None = None
        self._starts: npt.NDArray[np.int64] | None = None

    def number(self, line: int) -> int:
        """The line's number in the file, from 1."""
        return self.block.first_line + line

    def raw(self, line: int) -> bytes:
        """The line's bytes as in the file, without its line end."""
        if self._divided is None:
            self._divided = self.block.data.split(b"\n")
        return self._divided[line].removesuffix(b"\r")

    def words(self, line: int) -> str:
        """The line's text, without a byte order mark or space around it."""
        return self.raw(line).decode("utf-8-sig").strip(" \t\r")

    def start(self, line: int) -> int:
        """The offset in the block at which the line begins; ``start(line + 1)`` is where it ends, with its line end."""
        if self._starts is None:
            breaks = np.flatnonzero(np.frombuffer(self.block.data, dtype=np.uint8) == ord("\n"))
            self._starts = np.concatenate([[0], breaks + 1, [len(self.block.data)]])
        return int(self._starts[line])


class _FooterCheck:
    """Counts and checksum of the lines since the file's start or its last footer."""

    def __init__(self) -> None:
        self._crc: int | None = 0
        self._first_line = 1
        self._done = 0  # bytes of the present block that belong to an earlier footer

    def lose_checksum(self) -> None:
        """Note that bytes were dropped: up to the next footer only the count can be checked."""
        self._crc = None

    def pass_over(self, data: bytes) -> None:
        """Add a block that has been read to its end."""
        if self._crc is not None:
            self._crc = zlib.crc32(data[self._done :] if self._done else data, self._crc)
        self._done = 0

    def check(self, lines: Lines, line: int) -> tuple[str | None, str] | None:
        """Field and reason if the footer on this line is wrong, else None; counting begins again after it."""
        counted = lines.number(line) - self._first_line
        before = lines.block.data[self._done : lines.start(line)]
        crc = None if self._crc is None else zlib.crc32(before, self._crc)
        self._first_line, self._crc, self._done = lines.number(line) + 1, 0, lines.start(line + 1)
        return _footer_fault(lines.words(line), counted, crc)


def _footer_fault(text: str, counted: int, crc: int | None) -> tuple[str | None, str] | None:
    try:
        footer = loaded(text)
    except ValueError as error:
        return None, f"a footer that is no valid JSON: {error}"
    said = footer.get("lines")
    if said is not None and (type(said) is not int or said != counted):
        return (
            "lines",
            f"the footer says {said!r} lines, {counted} were read: lines were lost, added or doubled",
        )
    said = footer.get("crc32")
    if said is not None and crc is not None and said != f"{crc:08x}":
        return "crc32", f"the footer says {said!r}, the lines before it have {crc:08x}: they were changed"
    lost = footer.get("lost")
    if lost is not None and (type(lost) is not int or lost > 0):
        return "lost", f"the footer says that the recorder lost {lost!r} lines: entries may be missing"
    return None


def _header_rows(table: pa.Table) -> list[int]:
    if "format" not in table.column_names:
        return []
    rows: list[int] = np.flatnonzero(table["format"].is_valid().to_numpy()).tolist()
    return rows


def read_recording(source: RecordingSource, *, limits: Limits = DEFAULT_LIMITS) -> Recording:
    """Read all files of a recording. Rows carry ``<recording>/<file>`` as ``source_file``."""
    batches: dict[str, list[pa.RecordBatch]] = {"messages": [], "events": [], "quarantine": []}
    counts = FileCounts()
    kept_refused = 0
    for file in (*source.messages, *source.events):
        reading = read_file(file, name=f"{source.name}/{file.name}", limits=limits)
        for batch in reading:
            rows = batch.rows
            if batch.table == "quarantine":
                if kept_refused == KEPT_REFUSED:
                    continue
                rows = rows.slice(0, KEPT_REFUSED - kept_refused)
                kept_refused += rows.num_rows
            batches[batch.table].append(rows)
        counts.add(reading.counts)
    messages = pa.Table.from_batches(batches["messages"], schema=MESSAGES)
    events = pa.Table.from_batches(batches["events"], schema=EVENTS)
    quarantine = pa.Table.from_batches(batches["quarantine"], schema=QUARANTINE)
    refused = Refused.of(quarantine, pc.unique(events["source_file"]).to_pylist())
    logs = with_lost_ends(DispatcherLogs(messages, events, source.name), refused)
    batches.clear()
    pa.default_memory_pool().release_unused()  # what parsing took, often more than the rows take
    warnings = (*mismatches(messages, logs), *_unknown_fields(counts))
    return Recording(source.name, source.folder, logs, quarantine, counts, warnings)


#: How an entry counts whose field cannot be read, where it does not count without it.
_INSTEAD: Final = {
    "num_messages": "each entry counts as one message, so permits, stalls by missing permits and shares of messages may "
    "be wrong for its consumers",
}


def _unknown_fields(counts: FileCounts) -> list[str]:
    """One warning for each field that cannot be read in message lines."""
    return [
        f"{name} cannot be read in {count} message {'line' if count == 1 else 'lines'}, the first at "
        f"{counts.first_unknown[name]}; {_INSTEAD.get(name, 'the entries count, without it')}"
        for name, count in sorted(counts.unknown_fields.items())
    ]
