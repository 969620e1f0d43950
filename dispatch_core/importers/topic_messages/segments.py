"""Write the message log of one topic in rolling segments, each a complete file.

A segment is written as ``messages-<topic>-<number>.jsonl.zst.partial``, which no reader accepts, and gets its name when its
footer is written. The segments are the only state of a topic: the next run continues after the last entry of the last
segment. A ``.partial`` file left by a killed run is made a segment first.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from dispatch_core.errors import DispatchAuditError
from dispatch_core.importers.topic_messages.entries import Position
from dispatch_core.recording.files import DamagedFileError, Limits, blocks, file_format
from dispatch_core.recording.writer import PARTIAL, FootedLines, compressed

FORMS: Final = ("jsonl.zst", "jsonl.gz", "jsonl")
#: A segment ends after so many bytes of lines, or so many seconds after its first line.
SEGMENT_BYTES: Final = 64 << 20
SEGMENT_SECONDS: Final = 3600.0

_LONGEST_NAME: Final = 80
_WAITING_BYTES: Final = 1 << 16
_POSITION: Final = re.compile(r"(-?\d+):(-?\d+)")
#: Header fields that must be the same in every run, so that the keys of a topic can be compared.
_SAME: Final = ("cluster", "keys")


class SegmentsError(DispatchAuditError):
    """Segments after which the recording cannot continue."""


class MessageSegments:
    """The segments of one topic in a folder."""

    def __init__(
        self,
        folder: Path,
        topic: str,
        header: Mapping[str, Any],
        *,
        form: str = FORMS[0],
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: float = SEGMENT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find the existing segments, and make a segment of the lines that a killed run left.

        Raises ``SegmentsError`` if the existing segments have other header fields, or cannot be read.
        """
        self._folder, self._stem = folder, stem_of(topic)
        self._header, self._form = dict(header), form
        self._bytes, self._seconds, self._clock = segment_bytes, segment_seconds, clock
        self._file: _Segment | None = None
        self.written: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True)
        for left in sorted(folder.glob(f"{self._stem}-*{PARTIAL}")):
            self._recover(left)
        self._number, self.last = self._known()

    def write(self, line: bytes, position: Position) -> None:
        """Append an entry's line; begins a new segment when the current one is full."""
        if self._file is None:
            self._number += 1
            name = f"{self._stem}-{self._number:06d}.{self._form}"
            self._file = _Segment(self._folder / name, self._header, self._clock())
        self._file.write(line)
        self.last = position
        if self._file.bytes >= self._bytes or self._clock() - self._file.began >= self._seconds:
            self.close()

    def flush(self) -> None:
        """Flush the written lines to the partial file, so that a killed process loses none of them."""
        if self._file is not None:
            self._file.flush()
            if self._clock() - self._file.began >= self._seconds:
                self.close()

    def close(self) -> None:
        """End the open segment: write its footer and give it its name."""
        if self._file is not None:
            file, self._file = self._file, None
            self.written.append(file.close())

    def _segments(self) -> list[tuple[int, Path]]:
        found = []
        for path in self._folder.glob(f"{self._stem}-*"):
            number = path.name.removeprefix(f"{self._stem}-").partition(".")[0]
            if file_format(path.name) and number.isdecimal():
                found.append((int(number), path))
        return sorted(found)

    def _known(self) -> tuple[int, Position | None]:
        """Number of the last segment (0 without segments) and the last recorded position (None without an entry)."""
        segments = self._segments()
        number = segments[-1][0] if segments else 0
        for _, path in reversed(segments):
            last = None
            try:
                for row in _rows(path):
                    if "format" in row:
                        self._check(path, row)
                    last = _position(row) or last
            except (DamagedFileError, OSError, ValueError) as error:
                raise SegmentsError(
                    f"{path}: {error}: the position to continue from is unknown; nothing was changed. Mend the file, or "
                    "move it and the later ones elsewhere, and run again"
                ) from error
            if last is not None:
                return number, last
        return number, None

    def _check(self, path: Path, header: Mapping[str, Any]) -> None:
        for name in _SAME:
            if header.get(name) != self._header.get(name):
                raise SegmentsError(
                    f"{path}: it was recorded with {name} {header.get(name)!r}, this run has "
                    f"{self._header.get(name)!r}: give the same, or another --out; nothing was changed"
                )

    def _recover(self, partial: Path) -> None:
        """Make a segment of the complete lines that a killed run left."""
        path = partial.with_name(partial.name.removesuffix(PARTIAL))
        if not path.exists():
            mended: _Segment | None = None
            for line in _whole_lines(partial):
                row = json.loads(line)
                if mended is None and "format" in row:
                    mended = _Segment(path, row, self._clock(), ending=f"{PARTIAL}.mended")
                elif mended is not None and _position(row) is not None:
                    mended.write(line)
            if mended is not None:
                self.written.append(mended.close())
        partial.unlink()


class _Segment:
    """One file. ``bytes``: of lines so far; ``began``: its first time, by the given clock."""

    def __init__(self, path: Path, header: Mapping[str, Any], began: float, *, ending: str = PARTIAL) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ending)
        self._raw: BinaryIO = self._partial.open("wb")
        self._lines = FootedLines(compressed(self._raw, path.name))
        self.bytes = 0
        self._waiting = bytearray()
        self.began = began
        self.write(_json(header))

    def write(self, line: bytes) -> None:
        self._waiting += line
        self.bytes += len(line)
        if len(self._waiting) >= _WAITING_BYTES:
            self._write()

    def _write(self) -> None:
        # In large parts: a call of the compressor costs more than the line.
        self._lines.write(self._waiting)
        self._waiting.clear()

    def flush(self) -> None:
        self._write()
        self._lines.stream.flush()
        self._raw.flush()

    def close(self) -> Path:
        self._write()
        self._lines.end()
        if self._path.name.endswith(".jsonl"):
            self._lines.stream.flush()  # its buffer would close the file with it
        else:
            self._lines.stream.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        self._raw.close()
        self._partial.replace(self._path)
        return self._path


def stem_of(topic: str) -> str:
    """The prefix of the names of a topic's segments: legible, and unique to the topic.

    >>> stem_of("persistent://public/default/orders-partition-0")
    'messages-public-default-orders-partition-0-3a6b83b9'
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", topic.partition("://")[2] or topic).strip("-.")
    return f"messages-{name[-_LONGEST_NAME:]}-{hashlib.sha256(topic.encode()).hexdigest()[:8]}"


def _json(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _position(row: Mapping[str, Any]) -> Position | None:
    found = _POSITION.fullmatch(str(row.get("position")))
    return (int(found[1]), int(found[2])) if found else None


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in _lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    known = file_format(path.name.removesuffix(PARTIAL))
    assert known is not None, "only segments are looked for"
    with path.open("rb") as stream:
        for block in blocks(stream, known[1], Limits()):
            yield from block.data.splitlines(keepends=True)


def _whole_lines(partial: Path) -> Iterator[bytes]:
    """The complete lines of a file that may have been cut off."""
    try:
        for line in _lines(partial):
            if not line.endswith(b"\n"):
                return
            yield line
    except DamagedFileError:
        return
