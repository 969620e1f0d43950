"""Write copies of recordings: a trace reduced to its log of level E (``strip``), or any recording in another form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.files import Content, RecordingSource, file_format, in_words
from dispatch_core.recording.identity import DEFAULT_CLUSTER, IDENTITY
from dispatch_core.recording.json_lines import json_lines
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import FileCounts, read_file
from dispatch_core.recording.schema import EVENTS, KINDS, MESSAGES
from dispatch_core.recording.writer import FootedLines, ParquetRows, RowFile, compressed

_SOURCE: Final = ("source_file", "source_line")
_GAP: Final = {"gap_from_seq": "from", "gap_to_seq": "to", "gap_lines": "lost"}
_DEFAULTS: Final = {"cluster": DEFAULT_CLUSTER, "incarnation": 0}
_STRIPPED: Final = "events.jsonl.gz"

#: Lines about the log itself that stay; marks of a driver and checksums of the trace are left out.
_ABOUT_THE_LOG: Final = ("gap", "checkpoint")
_LEVEL_E: Final = tuple(name for name, kind in KINDS.items() if kind.level == "E")
_TRACE_ONLY: Final = frozenset(name for kind in KINDS.values() for name in kind.trace_only)
_OPTIONAL_KINDS: Final = (
    "active_notified",
    "subscribe_rejected",
    "cursor_moved",
    "subscription_deleted",
    "limit",
)
_OPTIONAL_FIELDS: Final = ("blocked", "ack_sets")

#: The columns of the rows of each kind of file.
SCHEMAS: Final[dict[Content, pa.Schema]] = {"messages": MESSAGES, "events": EVENTS}


#: Files that an error names in an occupied folder.
_NAMED_AT_MOST: Final = 5


class WouldOverwriteError(DispatchAuditError):
    """The target folder is the folder of the recording itself, or is not empty."""


@dataclass(frozen=True, slots=True)
class Written:
    """The copy of a recording: its folder, the lines written, and the input lines that could not be read."""

    folder: Path
    lines: int
    unreadable: int


def target(source: RecordingSource, out: Path) -> Path:
    """The folder of a recording's copy: ``out/<parent>/<folder>``. Raises ``WouldOverwriteError``."""
    folder = out / source.folder.parent.name / source.folder.name
    if folder.resolve() == source.folder.resolve():
        raise WouldOverwriteError(
            f"{source.name}: {folder} is where the recording itself stands; nothing was written. Name another folder"
        )
    return folder


def check_vacant(sources: Sequence[RecordingSource], folders: Sequence[Path]) -> None:
    """Check the folders of the sources' copies: each is missing or empty, and no two files have one place.

    Raises ``WouldOverwriteError``: a copy would mix with what is there, and be read with it as one recording.
    """
    taken: dict[Path, RecordingSource] = {}
    for source, folder in zip(sources, folders, strict=True):
        there = sorted(in_words(path.name) for path in folder.iterdir()) if folder.is_dir() else []
        if folder.exists() and not folder.is_dir():
            raise WouldOverwriteError(f"{source.name}: {folder} is a file; nothing was written")
        if there:
            more = f" and {len(there) - _NAMED_AT_MOST} more" if len(there) > _NAMED_AT_MOST else ""
            raise WouldOverwriteError(
                f"{source.name}: {folder} is occupied, by {', '.join(there[:_NAMED_AT_MOST])}{more}; nothing was written. "
                "Name another folder, or empty this one"
            )
        other = taken.setdefault(folder.resolve(), source)
        if other is not source:
            raise WouldOverwriteError(
                f"{source.folder} and {other.folder} would both be written to {folder}; nothing was written. Copy them apart"
            )
        by_stem: dict[str, Path] = {}
        for file in (*source.messages, *source.events):
            first = by_stem.setdefault(stem(file.name), file)
            if first is not file:
                raise WouldOverwriteError(
                    f"{source.name}: {in_words(first.name)} and {in_words(file.name)} would be written to one file; nothing "
                    "was written. Rename one of them, or remove it if they are the same log"
                )


def without_trace(events: pa.Table, *, minimal: bool = False) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Reduce a dispatcher trace to its log of level E: the lines and fields that a recorder without a trace can write.

    Args:
        events: schema ``EVENTS``, sorted by ``seq``.
        minimal: leave out the kinds and fields that are optional on level E, too.

    Returns:
        The rows, numbered from 1 without the holes that the removed lines would leave, and the former ``seq`` of each.
        A hole that the trace already has stays a hole of one number; if the trace lacks its first lines, numbers begin at 2.
        Lines with the same number keep a common number.
    """
    seq = np.asarray(events["seq"], dtype=np.int64)
    kinds = events["kind"].cast(pa.string())
    wanted = set(_LEVEL_E) - (set(_OPTIONAL_KINDS) if minimal else set())
    kept = np.asarray(pc.is_in(kinds, value_set=pa.array([*sorted(wanted), *_ABOUT_THE_LOG])))
    gap = np.asarray(pc.equal(kinds, "gap"))
    # a gap line accounts for the missing lines around it, and a checkpoint for those before the first line
    missing = np.zeros(len(seq), dtype=np.int64)
    missing[1:] = (np.diff(seq) > 1) & ~gap[1:] & ~gap[:-1]
    if len(seq):
        missing[0] = seq[0] > 1 and kinds[0].as_py() not in _ABOUT_THE_LOG
    rows = np.flatnonzero(kept)
    source = seq[rows]
    step = np.minimum(np.diff(np.cumsum(missing)[rows], prepend=0), 1)
    step += np.diff(source, prepend=source[:1] - 1) > 0
    anew = np.cumsum(step)
    taken = events.filter(pa.array(kept))
    columns: dict[str, Any] = {name: taken[name] for name in EVENTS.names}
    for name in (*_TRACE_ONLY, *(_OPTIONAL_FIELDS if minimal else ())):
        columns[name] = pa.nulls(len(taken), EVENTS.field(name).type)
    columns["seq"] = pa.array(anew, pa.int64())
    at_gap = gap[rows]
    if at_gap.any():
        for name in ("gap_from_seq", "gap_to_seq"):
            columns[name] = pa.array(anew, pa.int64(), mask=~at_gap)
    return pa.table([columns[name] for name in EVENTS.names], schema=EVENTS), source


def strip_recording(
    source: RecordingSource, logs: Iterable[DispatcherLog], folder: Path, *, minimal: bool
) -> int:
    """Write the level E log of a recording: its message files unchanged, its events as ``events.jsonl.gz``.

    Every line carries ``source_seq``, its ``seq`` in the trace. Returns the number of lines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.messages:
        shutil.copyfile(file, folder / file.name)
    count = 0
    with _JsonLines(folder / _STRIPPED) as out:
        for log in logs:
            events, source_seq = without_trace(log.events, minimal=minimal)
            names = {name: getattr(log, name) for name in IDENTITY}
            header = {"format_version": "1.0", **log.header, "format": "pulsar-consumer-events"}
            if minimal:
                header.pop("records", None)  # the lines that it promises are left out
            out.header(_with_names(header, names))
            out.rows(events.append_column("source_seq", pa.array(source_seq)), names=False)
            count += len(events)
    return count


def write_log(log: DispatcherLog, folder: Path) -> tuple[Path, Path]:
    """Write one log as ``events.jsonl`` and ``messages.jsonl``, and return their paths, in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    events, messages = folder / "events.jsonl", folder / "messages.jsonl"
    with _JsonLines(events) as out:
        names = {name: getattr(log, name) for name in IDENTITY}
        header = {"format_version": "1.1", **log.header, "format": "pulsar-consumer-events"}
        out.header(_with_names(header, names))
        out.rows(log.events.drop_columns(list(_SOURCE)), names=False)
    with _JsonLines(messages) as out:
        out.write(log.messages)
    return events, messages


def convert_recording(source: RecordingSource, folder: Path, form: str) -> FileCounts:
    """Write every file of a recording in another form (``writer.FORMATS``); returns the counts of its lines."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = FileCounts()
    for file in (*source.messages, *source.events):
        reading = read_file(file)
        path = folder / f"{stem(file.name)}.{form}"
        content = file_format(file.name)
        assert content is not None
        schema = SCHEMAS[content[0]]
        with new_file(path, content[0]) as out:
            for batch in reading:
                if batch.table != "quarantine":
                    out.write(pa.Table.from_batches([batch.rows]).select(schema.names))
        counts.add(reading.counts)
    return counts


def _with_names(header: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The header with the names of its dispatcher and incarnation added where it lacks them."""
    said = {name: header.get(name) or _DEFAULTS.get(name) for name in names}
    return {**header, **{name: value for name, value in names.items() if value != said[name]}}


def stem(name: str) -> str:
    """The name of a log file without the ending that gives its form."""
    ends = (".jsonl.gz", ".jsonl.zst", ".jsonl", ".parquet")
    return name[: -len(next(end for end in ends if name.lower().endswith(end)))]


def new_file(path: Path, content: Content) -> RowFile:
    """A log file to write, in the form that its name gives; use it as a context manager."""
    return _ParquetCopy(path, SCHEMAS[content]) if path.name.endswith(".parquet") else _JsonLines(path)


class _ParquetCopy(ParquetRows):
    """Rows as the reader gave them, in the columns of the log format."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = pa.schema([field for field in schema if field.name not in _SOURCE])
        super().__init__(path, self._schema)

    def write(self, table: pa.Table) -> None:
        """Append rows of a batch as the reader gave it."""
        super().write(table.select(self._schema.names).cast(self._schema))


class _JsonLines(RowFile):
    """JSON lines, ended by a footer with their number and checksum.

    As long as the file has one dispatcher, its header stands first and the lines do not name it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._raw: BinaryIO = self._partial.open("wb")
        self._lines = FootedLines(compressed(self._raw, path.name))
        self._identity: tuple[Any, ...] | None = None  # the only dispatcher so far, and its header is written
        self._many = False

    def header(self, header: Mapping[str, Any]) -> None:
        """A header line."""
        self._lines.write(json.dumps(header, separators=(",", ":")).encode() + b"\n")

    def rows(self, table: pa.Table, *, names: bool) -> None:
        """Lines; ``names``: each with the dispatcher and incarnation that it belongs to."""
        if table.num_rows:
            made = _whole_lines(table, names=names) if "kind" in table.column_names else table
            self._lines.write(json_lines(made, names_dispatcher=names, names_incarnation=names))

    def write(self, table: pa.Table) -> None:
        """Rows of a batch as the reader gave it."""
        if "ledger_id" in table.column_names:
            self.rows(table.drop_columns(list(_SOURCE)), names=True)
            return
        table = table.filter(pc.not_equal(table["kind"].cast(pa.string()), "footer"))
        if not table.num_rows:
            return
        identity = _identity_of_all(table)
        if self._identity is None and not self._many and table["kind"][0].as_py() == "header":
            self._identity = identity
        self._many = self._many or identity is None or identity != self._identity
        self.rows(table.drop_columns(list(_SOURCE)), names=self._many)

    def _finish(self) -> None:
        self._lines.end()
        self._lines.stream.close()
        self._raw.close()


def _identity_of_all(table: pa.Table) -> tuple[Any, ...] | None:
    """The incarnation that all rows belong to; ``None`` if there are several."""
    values = [pc.unique(table[name]) for name in IDENTITY]
    return tuple(found[0].as_py() for found in values) if all(len(found) == 1 for found in values) else None


def _whole_lines(events: pa.Table, *, names: bool) -> pa.Table:
    """Give headers and checkpoints their whole line as text, and the columns of gap lines their names in JSON."""
    kinds = events["kind"].cast(pa.string())
    texts: list[str | None] = [None] * len(events)
    at = np.flatnonzero(np.asarray(pc.is_in(kinds, value_set=pa.array(["header", "checkpoint"]))))
    for index, row in zip(at.tolist(), events.take(pa.array(at)).to_pylist(), strict=True):
        named = {name: row[name] for name in IDENTITY if row[name] is not None}
        if row["kind"] == "header":
            line = _with_names(json.loads(row["header_json"]), named)
        else:
            line = {name: row[name] for name in ("seq", "t_us", "kind")} | (named if names else {})
            line = json.loads(row["checkpoint_json"] or "{}") | line
            line |= {"source_seq": row["source_seq"]} if "source_seq" in row else {}
        texts[index] = json.dumps(line, separators=(",", ":"))
    hidden = ("header_json", "checkpoint_json", "footer_json", *(() if names else ("broker",)))
    kept = events.drop_columns([name for name in hidden if name in events.column_names])
    kept = kept.rename_columns([_GAP.get(name, name) for name in kept.column_names])
    return kept.append_column("header_json", pa.array(texts, pa.string()))
