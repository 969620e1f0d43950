"""Recordings on disk: which files belong to one, and their bytes in blocks of whole lines.

Nothing here knows what a line means. Compressed files are read as streams in constant memory; where one is
cut or damaged, everything before the damage is handed on first, then ``DamagedFileError`` says what is wrong.
"""

from __future__ import annotations

import glob
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

import zstandard

from dispatch_core.errors import DispatchAuditError

Content = Literal["messages", "events"]
Encoding = Literal["plain", "gzip", "zstd", "parquet"]

_SUFFIXES: Final[dict[str, Encoding]] = {
    ".jsonl": "plain",
    ".jsonl.gz": "gzip",
    ".jsonl.zst": "zstd",
    ".parquet": "parquet",
}
_PREFIXES: Final[dict[str, Content]] = {"messages": "messages", "events": "events", "trace": "events"}

_READ_BYTES: Final = 1 << 18
_FIRST_BLOCK_BYTES: Final = 1 << 16
_ZSTD_SLICE_BYTES: Final = 1 << 8
#: Blocks of real lines have fewer.
_BLOCK_LINES: Final = 1 << 16


class NoRecordingError(DispatchAuditError):
    """A path that leads to no recording."""


class DamagedFileError(DispatchAuditError):
    """A file whose bytes end or break before their time; what came before them was handed on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one file may make the reader hold or do.

    ``line_bytes``: a longer line is quarantined. ``file_bytes``: after so many decompressed bytes the file is
    left. ``raw_bytes``: how much of a quarantined line is kept. ``block_bytes``: about how much is parsed at
    once.
    """

    line_bytes: int = 16 << 20
    file_bytes: int = 1 << 40
    raw_bytes: int = 4096
    block_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of a file. ``first_line`` is the number of the first, from 1.

    The last line of a file may lack its newline. A line over the limit comes as a block of its own, cut, with
    ``too_long`` set to its length in bytes.
    """

    data: bytes
    first_line: int
    too_long: int = 0


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """One recording: a folder with the files of one run or one period.

    ``name`` is ``<parent>/<folder>``. ``ignored`` are event files beside a trace: a trace holds their lines
    already.
    """

    name: str
    folder: Path
    messages: tuple[Path, ...]
    events: tuple[Path, ...]
    ignored: tuple[Path, ...] = ()


def in_words(name: str) -> str:
    r"""A file's name as a text: bytes of it that are no UTF-8 (names are any bytes) as ``%XX``.

    >>> in_words("events-\udcff.jsonl"), in_words("events-1.jsonl")
    ('events-%FF.jsonl', 'events-1.jsonl')
    """
    return "".join(f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char for char in name)


def file_format(name: str) -> tuple[Content, Encoding] | None:
    """Content and encoding of a file of this name; None if the name is none of the format's."""
    base = name.rsplit("/", 1)[-1].lower()
    content = next((content for prefix, content in _PREFIXES.items() if base.startswith(prefix)), None)
    encoding = next((encoding for suffix, encoding in _SUFFIXES.items() if base.endswith(suffix)), None)
    return (content, encoding) if content and encoding else None


def find_recordings(paths: Sequence[str | Path]) -> list[RecordingSource]:
    """The recordings at ``paths``: folders, folders above them (searched to the bottom), files of one, or
    globs.

    Ordered by name, each folder once. Raises ``NoRecordingError`` naming the path that led to none.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        text = str(path)
        found: list[Path] = [Path(text)] if Path(text).exists() else _matching(text)
        hits = [folder for hit in sorted(found) for folder in _folders(hit)]
        if not hits:
            if not found:
                raise NoRecordingError(f"{text}: no such file or folder, and nothing matches it as a pattern")
            raise NoRecordingError(
                f"{text}: no recording in it; a recording is a folder with files named "
                "messages*.jsonl, events*.jsonl or trace*.jsonl (also .jsonl.gz, .jsonl.zst or .parquet)"
            )
        folders.update(dict.fromkeys(hits))
    sources = [_source(folder) for folder in folders]
    return sorted(sources, key=lambda source: (source.name, str(source.folder)))


def _matching(pattern: str) -> list[Path]:
    # glob.glob, because Path.glob refuses absolute patterns.
    return [Path(path) for path in glob.glob(pattern, recursive=True)]  # noqa: PTH207


def _folders(hit: Path) -> list[Path]:
    if hit.is_file():
        return [hit.parent.resolve()] if file_format(hit.name) else []
    files = (file for file in hit.rglob("*") if file_format(file.name) and file.is_file())
    return sorted({file.parent.resolve() for file in files})


def _source(folder: Path) -> RecordingSource:
    files = sorted(file for file in folder.iterdir() if file_format(file.name) and file.is_file())
    messages = tuple(file for file in files if _content(file) == "messages")
    events = tuple(file for file in files if _content(file) == "events")
    traces = tuple(file for file in events if file.name.lower().startswith("trace"))
    ignored = tuple(file for file in events if file not in traces) if traces else ()
    name = in_words(f"{folder.parent.name}/{folder.name}")
    return RecordingSource(name, folder, messages, traces or events, ignored)


def _content(file: Path) -> Content | None:
    known = file_format(file.name)
    return known[0] if known else None


def blocks(stream: BinaryIO, encoding: Encoding, limits: Limits) -> Iterator[Block]:
    """The lines of a plain, gzip or zstd stream in blocks of about ``limits.block_bytes``, byte for byte.

    Raises ``DamagedFileError`` after the last readable line, and ``OSError`` as the stream does.
    """
    pending: list[bytes] = []  # an incomplete line and what follows it
    pending_bytes = 0
    ended = False  # whether a line ends in ``pending``
    line = 1
    skipped = 0  # bytes of a too long line that were thrown away already
    damage: DamagedFileError | None = None
    source = _decompressed(stream, encoding, limits)
    while True:
        try:
            piece = next(source, None)
        except DamagedFileError as error:
            damage, piece = error, None
        if piece is None:
            break
        if skipped:  # inside a too long line
            end = piece.find(b"\n")
            if end < 0:
                skipped += len(piece)
                continue
            yield Block(b"".join(pending), line, skipped + end)
            line, skipped, pending, pending_bytes = line + 1, 0, [], 0
            piece = piece[end + 1 :]
        pending.append(piece)
        pending_bytes += len(piece)
        ended = ended or b"\n" in piece
        # The first block is small: in it stands the header, whose many fields no other line has.
        enough = limits.block_bytes if line > 1 else min(limits.block_bytes, _FIRST_BLOCK_BYTES)
        # Not joined before a line has ended or is too long: a damaged file comes in pieces of some bytes.
        if pending_bytes < min(enough, limits.line_bytes) or not (ended or pending_bytes > limits.line_bytes):
            continue
        data = b"".join(pending)
        cut = data.rfind(b"\n") + 1
        if cut:
            yield from _checked(data[:cut], line, limits)
            line += data.count(b"\n", 0, cut)
            data = data[cut:]
        if len(data) > limits.line_bytes:
            skipped = len(data)
            data = data[: limits.raw_bytes]
        pending, pending_bytes, ended = [data], len(data), False
    rest = b"".join(pending)
    if skipped:
        yield Block(rest, line, skipped)
    elif rest:
        yield from _checked(rest, line, limits)
    if damage is not None:
        raise damage


def _checked(data: bytes, first_line: int, limits: Limits) -> Iterator[Block]:
    """Whole lines as one block, or as several: around the lines that are too long, and where there are very many."""
    if len(data) <= limits.line_bytes:
        yield from _divided(data, first_line)
        return
    start, line, good_start, good_line = 0, first_line, 0, first_line
    while start < len(data):
        end = data.find(b"\n", start)
        stop = len(data) if end < 0 else end
        if stop - start > limits.line_bytes:
            if start > good_start:
                yield from _divided(data[good_start:start], good_line)
            yield Block(data[start : min(stop, start + limits.raw_bytes)], line, stop - start)
            good_start, good_line = stop + 1, line + 1
        start, line = stop + 1, line + 1
    if good_start < len(data):
        yield from _divided(data[good_start:], good_line)


def _divided(data: bytes, first_line: int) -> Iterator[Block]:
    """Blocks of at most ``_BLOCK_LINES`` lines: what is kept of a line may take a hundred times the room of the line."""
    while data.count(b"\n") > _BLOCK_LINES:
        end = -1
        for _ in range(_BLOCK_LINES):
            end = data.find(b"\n", end + 1)
        yield Block(data[: end + 1], first_line)
        data, first_line = data[end + 1 :], first_line + _BLOCK_LINES
    yield Block(data, first_line)


def _decompressed(stream: BinaryIO, encoding: Encoding, limits: Limits) -> Iterator[bytes]:
    pieces = {"plain": _plain, "gzip": _gunzip, "zstd": _unzstd}[encoding](stream)
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > limits.file_bytes:
            keep = len(piece) - (total - limits.file_bytes)
            if keep:
                yield piece[:keep]
            raise DamagedFileError(
                f"more than {limits.file_bytes} bytes after decompression: the rest was not read; "
                "split the file, or raise the limit"
            )
        yield piece


def _plain(stream: BinaryIO) -> Iterator[bytes]:
    while piece := stream.read(_READ_BYTES):
        yield piece


def _gunzip(stream: BinaryIO) -> Iterator[bytes]:
    """Members of a gzip file one after the other; zero padding after the last is allowed, as gzip itself does."""
    unzip = zlib.decompressobj(wbits=31)
    members, started = 0, False
    while piece := stream.read(_READ_BYTES):
        while piece:
            if not started:
                piece = piece.lstrip(b"\0") if members else piece
                if not piece:
                    break
                started = True
            before = unzip.copy()
            try:
                out = unzip.decompress(piece, _READ_BYTES * 4)
            except zlib.error as error:
                # zlib drops what it had decoded in the failing call: do that call again, byte by byte.
                yield from _until_damage(before, piece)
                raise DamagedFileError(_gzip_damage(error, members)) from error
            if out:
                yield out
            if unzip.eof:
                piece = unzip.unused_data
                unzip = zlib.decompressobj(wbits=31)
                members, started = members + 1, False
            else:
                piece = unzip.unconsumed_tail
    if started:
        if rest := unzip.flush():
            yield rest
        if not unzip.eof:
            raise DamagedFileError(
                "the gzip data ends too early (truncated file): lines before the cut were kept"
            )
    if not members and not started:
        raise DamagedFileError("empty file: not gzip data")


def _until_damage(unzip: zlib._Decompress, piece: bytes) -> Iterator[bytes]:
    for at in range(len(piece)):
        try:
            out = unzip.decompress(piece[at : at + 1])
        except zlib.error:
            return
        if out:
            yield out


def _gzip_damage(error: zlib.error, members: int) -> str:
    text = str(error)
    if "incorrect header check" in text or "unknown compression" in text:
        return "bytes after the end of the gzip data" if members else "not gzip data, despite the file's name"
    return f"damaged gzip data ({text}): lines before the damage were kept"


def _unzstd(stream: BinaryIO) -> Iterator[bytes]:
    """Frames of a zstd file one after the other."""
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    frames, started = 0, False
    while chunk := stream.read(_READ_BYTES):
        # In slices, because one call decodes all it is given: few bytes can stand for very many.
        for at in range(0, len(chunk), _ZSTD_SLICE_BYTES):
            piece = chunk[at : at + _ZSTD_SLICE_BYTES]
            while piece:
                started = True
                try:
                    out = frame.decompress(piece)
                except zstandard.ZstdError as error:
                    raise DamagedFileError(_zstd_damage(error, frames)) from error
                if out:
                    yield out
                if not frame.eof:
                    break
                piece = frame.unused_data
                frame = decompressor.decompressobj()
                frames, started = frames + 1, False
    if started:
        raise DamagedFileError(
            "the zstd data ends too early (truncated file): lines before the cut were kept"
        )
    if not frames:
        raise DamagedFileError("empty file: not zstd data")


def _zstd_damage(error: zstandard.ZstdError, frames: int) -> str:
    if "Unknown frame descriptor" in str(error):
        return "bytes after the end of the zstd data" if frames else "not zstd data, despite the file's name"
    return f"damaged zstd data ({error}): lines before the damaged block were kept"
