"""The reader of log format 1.0: a file in, batches of messages, events and quarantined lines out.

One reader for the command line and for Spark's ``mapInArrow``. It never raises on what a file holds: a line
that breaks the format becomes a row of the quarantine, with file, line, field, reason and its bytes; a file
that cannot be read on becomes one such row, and everything before stays. What needs the order of lines (a
hole in ``seq``, an unknown consumer) is not judged here but by the audit.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording import rows as rules
from dispatch_core.recording.ahead import in_order, usable_threads
from dispatch_core.recording.batches import to_batch
from dispatch_core.recording.files import (
    Block,
    Content,
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
from dispatch_core.recording.identity import HeaderError, HeaderRow, Headers
from dispatch_core.recording.log import DispatcherLog, dispatcher_logs
from dispatch_core.recording.mismatch import mismatches
from dispatch_core.recording.parse import RAW_EVENTS, RAW_MESSAGES, BlockParser, Parsed, loaded
from dispatch_core.recording.schema import EVENTS, KINDS, MESSAGES, QUARANTINE

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

TableName = Literal["messages", "events", "quarantine"]

DEFAULT_LIMITS: Final = Limits()
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows for one of the three tables, in the order of the file."""

    table: TableName
    rows: pa.RecordBatch


@dataclass(slots=True)
class FileCounts:
    """What became of a file's lines (Parquet: rows); complete when the file has been read to its end.

    ``lines`` = ``about_file`` + ``accepted`` + ``quarantined``, always. Blank lines are counted apart.
    ``about_file`` are headers, and footers that name no dispatcher. ``file_problems`` are quarantine rows
    about the file as a whole. ``unknown_kinds`` counts accepted lines of kinds that this release does not
    know.
    """

    lines: int = 0
    about_file: int = 0
    accepted: int = 0
    quarantined: int = 0
    blank: int = 0
    file_problems: int = 0
    unknown_kinds: Counter[str] = field(default_factory=Counter)

    def add(self, other: FileCounts) -> None:
        """Add another file's counts."""
        self.lines += other.lines
        self.about_file += other.about_file
        self.accepted += other.accepted
        self.quarantined += other.quarantined
        self.blank += other.blank
        self.file_problems += other.file_problems
        self.unknown_kinds.update(other.unknown_kinds)


@dataclass(frozen=True)
class Recording:
    """A recording, read: one log per dispatcher and incarnation, and what was refused (schema ``QUARANTINE``).

    ``mismatches``: what says that files which seem to belong together do not, see there.
    """

    name: str
    folder: Path
    logs: list[DispatcherLog] = field(repr=False)
    quarantine: pa.Table = field(repr=False)
    counts: FileCounts
    mismatches: tuple[str, ...] = ()


def read_file(
    source: str | Path | BinaryIO,
    *,
    name: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    line_by_line: bool = False,
    threads: int | None = None,
) -> LogFile:
    """Prepare to read one file of a recording; iterate over the result to do it.

    ``source`` is a path or an open binary stream. ``name`` stands in ``source_file`` of every row and tells,
    by its last part, what the file holds and how (``messages*``/``events*``/``trace*``,
    ``.jsonl[.gz|.zst]``/``.parquet``); it defaults to the path and must be given for a stream.
    ``line_by_line`` parses without bulk attempts, with the same result. ``threads`` parse ahead (default: as many as
    there are cores, within bounds), with the same result too. Raises ``ValueError`` for a name that
    is none of the format's; whatever is wrong with the file itself comes as quarantine rows.
    """
    return LogFile(source, name=name, limits=limits, line_by_line=line_by_line, threads=threads)


class LogFile:
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
        self.name = in_words(name)
        self.content: Content = known[0]
        self.encoding: Encoding = known[1]
        self.counts = FileCounts()
        self._source = source
        self.limits = limits
        self._line_by_line = line_by_line
        self.threads = usable_threads() if threads is None else threads
        self._schema = MESSAGES if self.content == "messages" else EVENTS
        self._parser = BlockParser(RAW_MESSAGES if self.content == "messages" else RAW_EVENTS)
        self._headers = Headers(self.content)
        self._refused: list[dict[str, Any]] = []
        self._footer = _FooterCheck()

    def __iter__(self) -> Iterator[Batch]:
        """Read the file."""
        try:
            if self.encoding == "parquet":
                from dispatch_core.recording.parquet import read_parquet

                yield from read_parquet(self, self._source)
            elif isinstance(self._source, (str, Path)):
                with Path(self._source).open("rb") as stream:
                    yield from self._lines(stream)
            else:
                yield from self._lines(self._source)
        except _StopReading:
            pass  # its quarantine row is waiting
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

    def _parsed(self, block: Block) -> tuple[_Lines, Parsed | None]:
        """A block's rows, None for a line that is too long; runs ahead of the judging, in threads."""
        lines = _Lines(block)
        if block.too_long:
            return lines, None
        return lines, self._parser.parse(lines.text, line_by_line=self._line_by_line)

    def _block(self, lines: _Lines, parsed: Parsed) -> Iterator[Batch]:
        self.counts.blank += parsed.blank
        faults = deque(sorted(parsed.faults, key=lambda fault: fault.line))
        at, count = 0, len(parsed.rows)
        for row in (*_header_rows(parsed.rows), count):
            line = int(parsed.lines[row]) if row < count else None
            # Faults before the header only: after a header that stops the reading, nothing is judged any more.
            while faults and (line is None or faults[0].line < line):
                fault = faults.popleft()
                self.counts.lines += 1
                self.refuse(lines.number(fault.line), fault.field, fault.reason, lines.raw(fault.line))
            if row > at:
                self.counts.lines += row - at
                yield from self._segment(parsed.rows, parsed.lines, at, row, lines)
            at = row + 1
            if line is not None:
                self.counts.lines += 1
                yield from self._header(line, lines)
        self._footer.pass_over(lines.block.data)

    def _header(self, line: int, lines: _Lines) -> Iterator[Batch]:
        raw = lines.raw(line)
        try:
            begun = self._headers.take(lines.words(line), lines.number(line))
        except HeaderError as error:
            self.refuse(lines.number(line), error.field, error.reason, raw)
            if error.stops:
                raise _StopReading from error
            return
        self.counts.about_file += 1
        yield from self._header_batch(begun)

    def _segment(
        self, table: pa.Table, at_line: npt.NDArray[np.int64], start: int, stop: int, lines: _Lines
    ) -> Iterator[Batch]:
        """Rows between two headers."""
        if stop - start < len(table):
            index = pa.array(np.arange(start, stop))
            table, at_line = table.take(index), at_line[start:stop]
        count = len(table)
        faults = rules.Faults(count)
        columns = rules.from_json(table, faults)
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

    # ---- for Parquet: the same judgement and counts ----

    def accept(
        self,
        columns: rules.Columns,
        count: int,
        faults: rules.Faults,
        about_file: npt.NDArray[np.bool_],
        raw: Callable[[int], bytes],
    ) -> Iterator[Batch]:
        """Judge rows, quarantine those at fault, hand on the others. ``raw(row)`` gives a row's bytes."""
        if about_file.any():
            # Lines about the file belong to no dispatcher: no rule of rows applies to them.
            for row in np.flatnonzero(about_file & faults.mask).tolist():
                self.refuse(int(columns["source_line"][row].as_py()), *faults.found[row], raw(row))
            self.counts.about_file += int((about_file & ~faults.mask).sum())
            left = np.flatnonzero(~about_file)
            index = pa.array(left)
            columns = {name: values.take(index) for name, values in columns.items()}
            faults, all_raw, count = faults.taken(left), raw, len(left)

            def raw(row: int) -> bytes:
                return all_raw(int(left[row]))

        if not count:
            return
        if self.content == "messages":
            rules.judge_messages(columns, count, faults)
            if "num_messages" not in columns or columns["num_messages"].null_count:
                one = pa.repeat(pa.scalar(1, pa.int64()), count)
                columns["num_messages"] = (
                    pc.fill_null(columns["num_messages"], 1) if "num_messages" in columns else one
                )
        else:
            _gap_defaults(columns, count)
            rules.judge_events(columns, count, faults)
        identity, begun = self._headers.resolve(columns, count, faults)
        columns.update(identity)
        yield from self._header_batch(begun)
        for row in np.flatnonzero(faults.mask).tolist():
            self.refuse(int(columns["source_line"][row].as_py()), *faults.found[row], raw(row))
        kept = count
        if faults.mask.any():
            keep = pa.array(~faults.mask)
            columns = {name: values.filter(keep) for name, values in columns.items()}
            kept = int((~faults.mask).sum())
        self.counts.accepted += kept
        if kept:
            if self.content == "events":
                self._count_unknown_kinds(columns["kind"])
            yield Batch(self.content, to_batch(columns, kept, self._schema))

    def begin(self, text: str | None, row: int, identity: rules.Columns) -> Iterator[Batch]:
        """Hand on the header in a Parquet row, for the dispatcher that the row names. Raises ``HeaderError``."""
        yield from self._header_batch(self._headers.begin(text, row, identity))

    def _count_unknown_kinds(self, kinds: pa.Array) -> None:
        for pair in pc.value_counts(kinds).to_pylist():
            if pair["values"] not in KINDS:
                self.counts.unknown_kinds[pair["values"]] += pair["counts"]

    def _header_batch(self, begun: list[HeaderRow]) -> Iterator[Batch]:
        if begun:
            rows = [
                {
                    **header.identity._asdict(),
                    "seq": 0,
                    "kind": "header",
                    "header_json": header.text,
                    "source_file": self.name,
                    "source_line": header.line,
                }
                for header in begun
            ]
            columns = rules.columns_of(pa.Table.from_pylist(rows))
            yield Batch("events", to_batch(columns, len(rows), EVENTS))

    def refuse(self, line: int, column: str | None, reason: str, raw: bytes, *, cut: bool = False) -> None:
        """Put a line into quarantine."""
        self.counts.quarantined += 1
        limit = self.limits.raw_bytes
        self._refused.append(
            {
                "source_file": self.name,
                "source_line": line,
                "field": column,
                "reason": reason,
                "raw": raw[:limit],
                "raw_truncated": cut or len(raw) > limit,
            }
        )

    def refuse_file(self, reason: str) -> None:
        """Put a problem of the file as a whole into quarantine."""
        self.counts.file_problems += 1
        self._refused.append({"source_file": self.name, "reason": reason, "raw_truncated": False})

    def quarantined(self) -> Iterator[Batch]:
        """The quarantine rows gathered since the last call, in the order of the lines."""
        if self._refused:
            refused, self._refused = self._refused, []
            refused.sort(key=lambda row: row.get("source_line") or 1 << 62)
            yield Batch("quarantine", pa.RecordBatch.from_pylist(refused, schema=QUARANTINE))


class _StopReading(Exception):  # noqa: N818 - a way out, not an error
    """Nothing after this point of the file is to be read."""


class _Lines:
    """A block's lines by their place in it; divided only when one is asked for."""

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
        """Where the line begins in the block; ``start(line + 1)`` is where it ends, with its line end."""
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
        """Bytes went by unseen: only the count can be checked up to the next footer."""
        self._crc = None

    def pass_over(self, data: bytes) -> None:
        """A block has been read to its end."""
        if self._crc is not None:
            self._crc = zlib.crc32(data[self._done :] if self._done else data, self._crc)
        self._done = 0

    def check(self, lines: _Lines, line: int) -> tuple[str | None, str] | None:
        """Field and reason if the footer on this line is not true; counting begins anew after it."""
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
    return None


def _header_rows(table: pa.Table) -> list[int]:
    if "format" not in table.column_names:
        return []
    rows: list[int] = np.flatnonzero(table["format"].is_valid().to_numpy()).tolist()
    return rows


def _gap_defaults(columns: rules.Columns, count: int) -> None:
    """A gap line may leave out ``seq`` (then ``from``) and ``lost`` (then all from ``from`` to ``to``)."""
    if "gap_from_seq" not in columns or "gap_to_seq" not in columns:
        return
    is_gap = pc.fill_null(pc.equal(columns.get("kind", pa.nulls(count, pa.string())), "gap"), False)
    missing = pa.nulls(count, pa.int64())
    seq = columns.get("seq", missing)
    columns["seq"] = pc.if_else(is_gap, pc.coalesce(seq, columns["gap_from_seq"]), seq)
    # Unchecked arithmetic: bounds are judged on from and to themselves.
    all_of_it = pc.add(pc.subtract(columns["gap_to_seq"], columns["gap_from_seq"]), 1)
    lost = columns.get("gap_lines", missing)
    columns["gap_lines"] = pc.if_else(is_gap, pc.coalesce(lost, all_of_it), lost)


def read_recording(source: RecordingSource, *, limits: Limits = DEFAULT_LIMITS) -> Recording:
    """Read all files of a recording. Rows carry ``<recording>/<file>`` as ``source_file``."""
    batches: dict[str, list[pa.RecordBatch]] = {"messages": [], "events": [], "quarantine": []}
    counts = FileCounts()
    for file in (*source.messages, *source.events):
        reading = read_file(file, name=f"{source.name}/{file.name}", limits=limits)
        for batch in reading:
            batches[batch.table].append(batch.rows)
        counts.add(reading.counts)
    messages = pa.Table.from_batches(batches["messages"], schema=MESSAGES)
    events = pa.Table.from_batches(batches["events"], schema=EVENTS)
    quarantine = pa.Table.from_batches(batches["quarantine"], schema=QUARANTINE)
    logs = dispatcher_logs(messages, events, source.name)
    return Recording(source.name, source.folder, logs, quarantine, counts, tuple(mismatches(messages, logs)))
