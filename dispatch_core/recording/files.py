"""Find the files of recordings, and read their bytes in blocks of whole lines.

The lines are not interpreted here. Compressed files are read as streams in constant memory. From a cut or damaged file
everything before the damage is returned first; then ``DamagedFileError`` gives the reason.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

import zstandard

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.links import SourceWalk

Content = Literal["messages", "events"]
Encoding = Literal["plain", "gzip", "zstd", "parquet"]

_SUFFIXES: Final[dict[str, Encoding]] = {
    ".jsonl": "plain",
    ".jsonl.gz": "gzip",
    ".jsonl.zst": "zstd",
    ".parquet": "parquet",
}
_PREFIXES: Final[dict[str, Content]] = {"messages": "messages", "events": "events", "trace": "events"}
#: How names of client logs begin. They are files of no recording: ``client_files`` finds them.
_CLIENT_PREFIX: Final = "client"

_READ_BYTES: Final = 1 << 18
_FIRST_BLOCK_BYTES: Final = 1 << 16
_ZSTD_SLICE_BYTES: Final = 1 << 8
#: Blocks of real lines have fewer.
_BLOCK_LINES: Final = 1 << 16


class NoRecordingError(DispatchAuditError):
    """A path at which there is no recording."""


class DamagedFileError(DispatchAuditError):
    """A truncated or damaged file; everything before the damage was returned."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on memory and work for one file, in bytes.

    ``line_bytes``: a longer line is quarantined. ``file_bytes``: after so many decompressed bytes reading stops.
    ``raw_bytes``: kept of a quarantined line. ``block_bytes``: parsed at once, approximately.
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

    ``name`` is ``<parent>/<folder>``. ``ignored`` are event files beside a trace, whose lines the trace contains.
    """

    name: str
    folder: Path
    messages: tuple[Path, ...]
    events: tuple[Path, ...]
    ignored: tuple[Path, ...] = ()


def in_words(name: str) -> str:
    r"""A file's name as text, with bytes that are not UTF-8 shown as ``%XX``.

    >>> in_words("events-\udcff.jsonl"), in_words("events-1.jsonl")
    ('events-%FF.jsonl', 'events-1.jsonl')
    """
    return "".join(f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char for char in name)


def file_format(name: str) -> tuple[Content, Encoding] | None:
    """Content and encoding of a file by its name; None if the log format has no such name."""
    base = name.rsplit("/", 1)[-1].lower()
    content = next((content for prefix, content in _PREFIXES.items() if base.startswith(prefix)), None)
    encoding = next((encoding for suffix, encoding in _SUFFIXES.items() if base.endswith(suffix)), None)
    return (content, encoding) if content and encoding else None


def client_encoding(name: str) -> Encoding | None:
    """Encoding of a client log by its name; None if it is no name of one.

    >>> client_encoding("client-worker-1.jsonl.gz"), client_encoding("client.parquet"), client_encoding("events.jsonl")
    ('gzip', None, None)
    """
    base = name.rsplit("/", 1)[-1].lower()
    if not base.startswith(_CLIENT_PREFIX) or base.endswith(".parquet"):
        return None
    return next((encoding for suffix, encoding in _SUFFIXES.items() if base.endswith(suffix)), None)


def find_recordings(
    paths: Sequence[str | Path],
    *,
    follow_links: bool = False,
    say: Callable[[str], None] | None = None,
) -> list[RecordingSource]:
    """Find the recordings at ``paths``: folders, folders above them (searched recursively), files of a recording, or globs.

    Ordered by name, each folder once.

    Args:
        paths: as the user names them.
        follow_links: read what links below these paths lead to.
        say: gets one line for each link that was left out.

    Raises:
        NoRecordingError: names the path at which there is none.
    """
    walk = SourceWalk(file_format, follow_links=follow_links)
    folders: dict[Path, dict[str, Path]] = {}
    try:
        for path in paths:
            text = str(path)
            exists = Path(text).exists()
            hits = [Path(text)] if exists else walk.matching(text)
            files = [file for hit in hits for file in _log_files(hit, walk)]
            if not files:
                links = "; links were left out, see above" if walk.messages() else ""
                if not (exists or hits):
                    raise NoRecordingError(
                        f"{text}: no such file or folder, and nothing matches it as a pattern{links}"
                    )
                raise NoRecordingError(
                    f"{text}: no recording in it; a recording is a folder with files named "
                    f"messages*.jsonl, events*.jsonl or trace*.jsonl (also .jsonl.gz, .jsonl.zst or .parquet){links}"
                )
            for file in files:
                folder = file.parent.resolve()
                folders.setdefault(folder, {})[file.name] = folder / file.name
    finally:
        if say is not None:
            for line in walk.messages():
                say(line)
    sources = [_source(folder, sorted(files.values())) for folder, files in folders.items()]
    return sorted(sources, key=lambda source: (source.name, str(source.folder)))


def _log_files(hit: Path, walk: SourceWalk) -> list[Path]:
    """The log files of the recording that a file belongs to, or of all recordings below a folder."""
    if hit.is_file():
        if not file_format(hit.name):
            return []
        beside = [path for _parts, path in walk.files(hit.parent, deep=False) if file_format(path.name)]
        return [hit, *beside]
    try:
        return [path for _parts, path in walk.files(hit) if file_format(path.name)]
    except OSError as error:
        raise NoRecordingError(
            f"{error.filename or hit}: cannot be read ({error.strerror or error})"
        ) from None


def _source(folder: Path, files: Sequence[Path]) -> RecordingSource:
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
    ended = False  # true if a line ends in ``pending``
    line = 1
    skipped = 0  # bytes of a too long line that were already dropped
    damage: DamagedFileError | None = None
    source = _decompressed(stream, encoding, limits)
    while True:
        try:
            chunk = next(source, None)
        except DamagedFileError as error:
            damage, chunk = error, None
        if chunk is None:
            break
        if skipped:  # inside a too long line
            end = chunk.find(b"\n")
            if end < 0:
                skipped += len(chunk)
                continue
            yield Block(b"".join(pending), line, skipped + end)
            line, skipped, pending, pending_bytes = line + 1, 0, [], 0
            chunk = chunk[end + 1 :]
        pending.append(chunk)
        pending_bytes += len(chunk)
        ended = ended or b"\n" in chunk
        # The first block is small: it contains the header, whose many fields no other line has.
        enough = limits.block_bytes if line > 1 else min(limits.block_bytes, _FIRST_BLOCK_BYTES)
        # Not joined before a line has ended or is too long: a damaged file comes in chunks of a few bytes.
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
    """Split whole lines into blocks: a block of its own for each line that is too long, and a bounded number of lines."""
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
    """Blocks of at most ``_BLOCK_LINES`` lines: the parsed form of a short line may take a hundred times its bytes."""
    while data.count(b"\n") > _BLOCK_LINES:
        end = -1
        for _ in range(_BLOCK_LINES):
            end = data.find(b"\n", end + 1)
        yield Block(data[: end + 1], first_line)
        data, first_line = data[end + 1 :], first_line + _BLOCK_LINES
    yield Block(data, first_line)


def _decompressed(stream: BinaryIO, encoding: Encoding, limits: Limits) -> Iterator[bytes]:
    chunks = {"plain": _plain, "gzip": _gunzip, "zstd": _unzstd}[encoding](stream)
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > limits.file_bytes:
            keep = len(chunk) - (total - limits.file_bytes)
            if keep:
                yield chunk[:keep]
            raise DamagedFileError(
                f"more than {limits.file_bytes} bytes after decompression: the rest was not read; "
                "split the file, or raise the limit"
            )
        yield chunk


def _plain(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(_READ_BYTES):
        yield chunk


def _gunzip(stream: BinaryIO) -> Iterator[bytes]:
    """Members of a gzip file one after the other; zero padding after the last is allowed, as gzip itself does."""
    unzip = zlib.decompressobj(wbits=31)
    members, started = 0, False
    while chunk := stream.read(_READ_BYTES):
        while chunk:
            if not started:
                chunk = chunk.lstrip(b"\0") if members else chunk
                if not chunk:
                    break
                started = True
            before = unzip.copy()
            try:
                out = unzip.decompress(chunk, _READ_BYTES * 4)
            except zlib.error as error:
                # zlib drops what it had decoded in the failing call: do that call again, byte by byte.
                yield from _until_damage(before, chunk)
                raise DamagedFileError(_gzip_damage(error, members)) from error
            if out:
                yield out
            if unzip.eof:
                chunk = unzip.unused_data
                unzip = zlib.decompressobj(wbits=31)
                members, started = members + 1, False
            else:
                chunk = unzip.unconsumed_tail
    if started:
        if rest := unzip.flush():
            yield rest
        if not unzip.eof:
            raise DamagedFileError(
                "the gzip data ends too early (truncated file): lines before the cut were kept"
            )
    if not members and not started:
        raise DamagedFileError("empty file: not gzip data")


def _until_damage(unzip: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    for at in range(len(chunk)):
        try:
            out = unzip.decompress(chunk[at : at + 1])
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
    while read_bytes := stream.read(_READ_BYTES):
        # In slices, because one call decodes all its input, and few bytes may expand to very many.
        for at in range(0, len(read_bytes), _ZSTD_SLICE_BYTES):
            chunk = read_bytes[at : at + _ZSTD_SLICE_BYTES]
            while chunk:
                started = True
                try:
                    out = frame.decompress(chunk)
                except zstandard.ZstdError as error:
                    raise DamagedFileError(_zstd_damage(error, frames)) from error
                if out:
                    yield out
                if not frame.eof:
                    break
                chunk = frame.unused_data
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
