"""Find and read client logs (level *C*): what the clients of a subscription saw, one file per consumer.

A file is read as the reader of recordings reads its files: a line that breaks the format is quarantined, everything before a
damage is kept, nothing in a file's content raises. Each header begins a *session*: one consumer, from its creation to its
close. Client logs are merged as a whole (``client_log``), so their lines are kept in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from dispatch_core.recording import rows as rules
from dispatch_core.recording.files import (
    DamagedFileError,
    Limits,
    NoRecordingError,
    blocks,
    client_encoding,
    in_words,
)
from dispatch_core.recording.identity import DEFAULT_CLUSTER, HeaderError, checked_header
from dispatch_core.recording.links import SourceWalk
from dispatch_core.recording.parse import RAW_CLIENTS, BlockParser, Parsed
from dispatch_core.recording.reader import DEFAULT_LIMITS, KEPT_REFUSED, Lines
from dispatch_core.recording.row_judge import FileCounts, Refusals
from dispatch_core.recording.schema import CLIENT_KINDS, QUARANTINE

#: Fields of the header of a client log that are texts, beside those of all headers.
_TEXTS: Final = ("consumer", "host", "library")
#: The kind of line that ends a session.
CLOSED: Final = "footer"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")


class ClientLine(NamedTuple):
    """One line of a client log. ``lost``: number of lines that are missing right before it."""

    line: int
    lost: int
    seq: int | None
    t_us: int
    kind: str
    cluster: str
    topic: str | None
    subscription: str | None
    consumer: str | None
    ledger_id: int | None
    entry_id: int | None
    batch_index: int | None
    batch_size: int | None
    key: str | None
    key_b64: bool | None
    ordering_key_b64: str | None
    redelivery_count: int | None
    ack_type: str | None
    error: str | None
    disconnected_us: int | None
    connected: bool | None


_OPTIONAL: Final = tuple(
    name
    for name in ClientLine._fields
    if name not in ("line", "lost", "t_us", "kind", "cluster", "topic", "subscription", "consumer")
)


@dataclass(slots=True)
class ClientSession:
    """One consumer from its creation to its close, as its client logged it.

    Attributes:
        source: file that it comes from.
        header: its header, ``{}`` without one.
        lines: those of known kinds, in the order of the file.
        replaced_us: the file goes on with another header: time of its first line, by which this consumer was gone.
    """

    source: str
    header: Mapping[str, Any]
    lines: list[ClientLine] = field(default_factory=list, repr=False)
    replaced_us: int | None = None

    @property
    def host(self) -> str:
        """The host whose clock the times are of; by default each file has a clock of its own."""
        return str(self.header.get("host") or f"file {self.source}")

    @property
    def disconnects_known(self) -> bool | None:
        """True if the client writes lost connections, False if it does not; ``None`` = the header does not say."""
        records = self.header.get("records")
        return None if records is None else "disconnected_us" in records


@dataclass(frozen=True, slots=True)
class ClientLogs:
    """The client logs at some paths: sessions, refused lines (the first ``KEPT_REFUSED``), counts."""

    name: str
    folder: Path
    sessions: list[ClientSession] = field(repr=False)
    quarantine: pa.Table = field(repr=False)
    counts: FileCounts


def find_client_logs(
    paths: Sequence[str | Path], *, follow_links: bool = False, say: Callable[[str], None] | None = None
) -> list[Path]:
    """Find the client logs at ``paths``: files named ``client*.jsonl[.gz|.zst]``, folders above them, or globs.

    Returns them in order of their names, each once. ``say`` gets one line for each link that was left out.
    """
    walk = SourceWalk(client_encoding, follow_links=follow_links)
    found: dict[Path, None] = {}
    for path in paths:
        text = str(path)
        for hit in [Path(text)] if Path(text).exists() else walk.matching(text):
            try:
                files = [hit] if hit.is_file() else [file for _parts, file in walk.files(hit)]
            except OSError as error:
                raise NoRecordingError(
                    f"{error.filename or hit}: cannot be read ({error.strerror or error})"
                ) from None
            found.update((file.resolve(), None) for file in files if client_encoding(file.name))
    if say is not None:
        for line in walk.messages():
            say(line)
    return sorted(found)


def read_client_logs(files: Sequence[Path], *, limits: Limits = DEFAULT_LIMITS) -> ClientLogs:
    """Read client logs together. They are named by the folder that has all of them: ``<parent>/<folder>``."""
    folder = Path(os.path.commonpath([file.parent for file in files]))
    counts = FileCounts()
    sessions: list[ClientSession] = []
    refused: list[pa.RecordBatch] = []
    for file in files:
        reading = _Reading(in_words(str(file.relative_to(folder))), limits)
        reading.read(file)
        sessions += reading.sessions
        counts.add(reading.counts)
        refused += [batch.rows for batch in reading.quarantined()]
    quarantine = pa.Table.from_batches(refused, schema=QUARANTINE).slice(0, KEPT_REFUSED)
    return ClientLogs(in_words(f"{folder.parent.name}/{folder.name}"), folder, sessions, quarantine, counts)


class _Reading(Refusals):
    """One file being read."""

    def __init__(self, name: str, limits: Limits) -> None:
        super().__init__(name, limits)
        self.sessions: list[ClientSession] = []
        self._lost = 0  # refused lines since the last one that was kept
        self._seq: int | None = 0

    def read(self, file: Path) -> None:
        """Read the file to its end, or to where it is damaged."""
        encoding = client_encoding(file.name)
        assert encoding is not None
        parser = BlockParser(RAW_CLIENTS)
        try:
            with file.open("rb") as stream:
                for block in blocks(stream, encoding, self.limits):
                    lines = Lines(block)
                    if block.first_line == 1 and block.data.startswith(_UTF16_BOMS):
                        self.refuse_file("the text is UTF-16; the log format is UTF-8")
                        return
                    if block.too_long:
                        self.counts.lines += 1
                        self._lost += 1
                        reason = f"line of {block.too_long} bytes, longer than the limit of {self.limits.line_bytes}"
                        self.refuse(block.first_line, None, reason, block.data, cut=True)
                    elif not self._take(parser.parse(lines.text), lines):
                        return
        except DamagedFileError as error:
            self.refuse_file(str(error))
        except OSError as error:
            self.refuse_file(f"cannot be read: {error.strerror or error}")

    def _take(self, parsed: Parsed, lines: Lines) -> bool:
        """Take a block; returns False if the rest of the file cannot be used."""
        self.counts.blank += parsed.blank
        for number, judged in sorted(
            (*self._judged(parsed), *((fault.line, (fault.field, fault.reason)) for fault in parsed.faults)),
            key=lambda item: item[0],
        ):
            self.counts.lines += 1
            if judged is None:
                try:
                    self._begin(lines.words(number))
                except HeaderError as error:
                    self.refuse(lines.number(number), error.field, error.reason, lines.raw(number))
                    if error.stops:
                        return False
            elif isinstance(judged, dict):
                self._keep(lines.number(number), judged, lines.raw(number))
            else:
                self._refuse(lines.number(number), *judged, lines.raw(number))
        return True

    def _judged(self, parsed: Parsed) -> Iterator[tuple[int, dict[str, Any] | tuple[str | None, str] | None]]:
        """Yield by line: the values of a row, the field and reason for which it is refused, or None for a header."""
        if not parsed.rows.num_rows:
            return
        faults = rules.Faults(parsed.rows.num_rows)
        columns = rules.from_json(parsed.rows, faults)
        is_header = np.zeros(parsed.rows.num_rows, np.bool_)
        if "format" in columns:
            is_header = columns["format"].is_valid().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(is_header).tolist():
            yield int(parsed.lines[row]), None
        left = np.flatnonzero(~is_header)
        if not len(left):
            return
        index = pa.array(left)
        columns = {name: values.take(index) for name, values in columns.items()}
        faults = faults.taken(left)
        rules.judge_clients(columns, len(left), faults)
        values = {name: column.to_pylist() for name, column in columns.items()}
        for row, at in enumerate(left.tolist()):
            line = int(parsed.lines[at])
            if faults.mask[row]:
                yield line, faults.found[row]
            else:
                yield line, {name: column[row] for name, column in values.items()}

    def _begin(self, text: str) -> None:
        """Begin the session of a header. Raises ``HeaderError``."""
        header = checked_header(text, "clients")
        for name in _TEXTS:
            if header.get(name) is not None and not isinstance(header[name], str):
                raise HeaderError(name, f"expected a text, found {str(header[name])[:60]}")
        self.counts.about_file += 1
        self.sessions.append(ClientSession(self.name, header))
        self._seq, self._lost = 0, 0

    def _keep(self, number: int, values: Mapping[str, Any], raw: bytes) -> None:
        if not self.sessions:
            self.sessions.append(ClientSession(self.name, {}))
        session = self.sessions[-1]
        named = {name: values.get(name) or session.header.get(name) for name in ("topic", "subscription")}
        of_file = values["kind"] not in CLIENT_KINDS or values["kind"] == CLOSED
        missing = next((name for name, value in named.items() if not value), None)
        if missing is not None and not of_file:
            self._refuse(number, missing, f"the line names no {missing}, and no header before it does", raw)
            return
        self.counts.accepted += 1
        lost, self._lost = self._lost, 0
        seq = values.get("seq")
        if seq is not None:
            if self._seq is not None:
                lost = max(lost, seq - self._seq - 1)
            self._seq = seq
        elif self._seq == 0:
            self._seq = None  # the lines of this session have no numbers
        if values["kind"] not in CLIENT_KINDS:
            self.counts.unknown_kinds[values["kind"]] += 1
            return
        if len(self.sessions) > 1 and not session.lines:
            self.sessions[-2].replaced_us = values["t_us"]
        session.lines.append(
            ClientLine(
                line=number,
                lost=lost,
                t_us=values["t_us"],
                kind=values["kind"],
                cluster=values.get("cluster") or session.header.get("cluster") or DEFAULT_CLUSTER,
                topic=named["topic"],
                subscription=named["subscription"],
                consumer=values.get("consumer") or session.header.get("consumer"),
                **{name: values.get(name) for name in _OPTIONAL},
            )
        )

    def _refuse(self, number: int, name: str | None, reason: str, raw: bytes) -> None:
        self._lost += 1
        self.refuse(number, name, reason, raw)
