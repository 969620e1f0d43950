"""Copy files of a source into the store of segments: several at a time, and only those that have changed.

Size, time or etag that the source reports decide if a file has to be read. Each copied file is recorded at once in a
*journal* beside the segments, so that the next pull continues where a killed one ended. The catalogue, which all readers
use, is written when everything is there (``spark_jobs.pull.pull_logs``).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from dispatch_core.errors import DispatchAuditError
from spark_jobs.pull.segments import Segment

_CHUNK_BYTES: Final = 1 << 20
#: Files that are copied at the same time: an object store answers each request slowly.
_AT_ONCE: Final = 8
#: Attempts to copy a file that is rewritten meanwhile.
_ATTEMPTS: Final = 3
#: Time and size do not identify the contents of a file that was written less than this before.
_TOO_FRESH_S: Final = 2.0
#: A folder younger than this may not be locked yet by the process that made it.
_YOUNG_S: Final = 60.0


class CopyError(DispatchAuditError):
    """A file of a source could not be copied; the message names it and what was kept."""


class Journal:
    """Journal of the files that a pull of some sources has copied; removed once the catalogue lists them.

    A line that is incomplete, or whose segment is missing, is ignored: its file is copied again.
    """

    def __init__(self, landing: Path, sources: Sequence[str]) -> None:
        key = hashlib.sha256(json.dumps(list(sources)).encode()).hexdigest()[:32]
        self._path = Path(landing) / "segments" / f".pulling-{key}.jsonl"

    def read(self) -> dict[str, Segment]:
        """Read the files that an earlier pull copied before it was killed, by name."""
        found = {}
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        for line in lines:
            try:
                segment = Segment.of_json(json.loads(line))
            except (ValueError, RecursionError):
                continue
            found[segment.name] = segment
        return found

    def add(self, copied: Segment) -> None:
        """Record that a file is in the store."""
        line = json.dumps(asdict(copied)).encode() + b"\n"
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(handle, line)  # in one call, so that two pulls do not mix their lines
        finally:
            os.close(handle)

    def close(self) -> None:
        """Remove the journal: the catalogue lists the files now."""
        self._path.unlink(missing_ok=True)


def copy_changed(
    files: Sequence[tuple[str, Any]],
    known: Mapping[str, Segment],
    landing: Path,
    journal: Journal,
    say: Callable[[str], None],
) -> tuple[dict[str, Segment], list[Segment]]:
    """Copy those of ``files`` (name, path) that have changed; return all segments by name, and those copied now.

    ``known``: the segments that the catalogue lists for these sources. Raises ``CopyError`` if a file cannot be copied; what
    was copied until then is kept, and the next pull does not copy it again.
    """
    (landing / "segments").mkdir(parents=True, exist_ok=True)
    journaled = journal.read()
    found: dict[str, Segment] = {}
    missing = []
    for name, path in files:
        mark = _mark(path)
        same = [
            segment
            for segment in (journaled.get(name), known.get(name))
            if segment is not None and segment.mark == mark
        ]
        whole = next((segment for segment in same if mark is not None and segment.is_whole(landing)), None)
        if whole is None:
            missing.append((name, path))
        else:
            found[name] = replace(whole, gone=False)
    copied: list[Segment] = []
    with _incoming(landing / "segments") as incoming, ThreadPoolExecutor(_AT_ONCE) as threads:
        under_way = [
            threads.submit(_copy, path, name, incoming, landing, known.get(name), journal)
            for name, path in missing
        ]
        try:
            for done in as_completed(under_way):
                segment = done.result()
                found[segment.name] = segment
                copied.append(segment)
                say(
                    f"pull: {len(copied)} of {len(missing)} files, {segment.name}, {segment.size_bytes} bytes"
                )
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    return found, copied


#: Fields by which object stores identify the contents of an object.
_OBJECT_MARKS: Final = (
    "ETag",
    "etag",
    "e_tag",
    "md5Hash",
    "generation",
    "LastModified",
    "last_modified",
    "mtime",
    "updated",
)


def _reported_state(path: Any) -> tuple[str | None, float]:
    """Return the state of a file as its source reports it (None: too little), and the time of the last write."""
    try:
        stat = path.stat()
    except (OSError, NotImplementedError, AttributeError):
        return None, 0.0
    if isinstance(stat, Mapping):
        marks = {name: str(stat[name]) for name in _OBJECT_MARKS if stat.get(name) is not None}
        state = json.dumps(marks | {"size": str(stat.st_size)}, sort_keys=True) if marks else None  # type: ignore[attr-defined]
        written = stat.get("mtime")
        return state, float(written) if isinstance(written, (int, float)) else 0.0
    modified = getattr(stat, "st_mtime_ns", stat.st_mtime)
    return f"{stat.st_size} bytes, modified {modified}", float(stat.st_mtime)


def _mark(path: Any) -> str | None:
    """Return what identifies the file's contents without reading it; None if it was written too recently."""
    state, written = _reported_state(path)
    return None if time.time() - written < _TOO_FRESH_S else state


def _copy(
    path: Any, name: str, incoming: Path, landing: Path, before: Segment | None, journal: Journal
) -> Segment:
    """Copy one file into the store and record it. What is appended meanwhile is left for the next pull."""
    target = incoming / uuid.uuid4().hex
    for _attempt in range(_ATTEMPTS):
        copied = _copy_once(path, name, target, before)
        if copied is not None:
            _store(target, copied, landing)
            journal.add(copied)
            return copied
    raise CopyError(
        f"{path}: was rewritten while it was copied, {_ATTEMPTS} times; what was landed before is kept. Pull again when "
        "it is no longer being rewritten"
    )


def _copy_once(path: Any, name: str, target: Path, before: Segment | None) -> Segment | None:
    """Copy a file into ``target`` once; None if the source was rewritten meanwhile."""
    mark, state, limit = _mark(path), _reported_state(path), _size_bytes(path)
    sha256 = hashlib.sha256()
    size_bytes = 0
    grown_from = None
    try:
        with path.open("rb") as source, target.open("wb") as copy:
            while chunk := source.read(_chunk_bytes(size_bytes, limit, before)):
                sha256.update(chunk)
                copy.write(chunk)
                size_bytes += len(chunk)
                if before is not None and size_bytes == before.size_bytes:
                    grown_from = before.sha256 if sha256.hexdigest() == before.sha256 else None
            copy.flush()
            os.fsync(copy.fileno())
        if limit is not None and (size_bytes != limit or _reported_state(path) != state):
            with path.open("rb") as source:
                if size_bytes != limit or _sha256_of(source, limit) != sha256.hexdigest():
                    return None
            mark = None  # it has grown meanwhile: the next pull reads it again
    except OSError as error:
        raise CopyError(
            f"{path}: could not be copied after {size_bytes} bytes ({error}); what was landed before is kept"
        ) from error
    digest = sha256.hexdigest()
    return Segment(name, digest, size_bytes, mark, grown_from=None if grown_from == digest else grown_from)


def _chunk_bytes(at: int, limit: int | None, before: Segment | None) -> int:
    """Compute the bytes to read next: stop at the end of the earlier contents, and at the size when the copy began."""
    stops = [
        stop - at for stop in (limit, before.size_bytes if before else None) if stop is not None and stop > at
    ]
    return 0 if limit is not None and at >= limit else min([_CHUNK_BYTES, *stops])


def _size_bytes(path: Any) -> int | None:
    try:
        return int(path.stat().st_size)
    except (OSError, NotImplementedError, AttributeError, TypeError, ValueError):
        return None


def _sha256_of(stream: Any, size_bytes: int) -> str:
    sha256 = hashlib.sha256()
    left = size_bytes
    while left and (chunk := stream.read(min(_CHUNK_BYTES, left))):
        sha256.update(chunk)
        left -= len(chunk)
    return sha256.hexdigest()


def _store(copy: Path, segment: Segment, landing: Path) -> None:
    """Move a copied file to its place. A file with the same contents there is left: it may be being read."""
    if segment.is_whole(landing):
        copy.unlink()
        return
    target = segment.path(landing)
    target.parent.mkdir(exist_ok=True)
    copy.replace(target)


@contextmanager
def _incoming(store: Path) -> Iterator[Path]:
    """Make a folder for files that are being copied, after removing those of killed pulls, which nobody has locked."""
    for leftover in store.glob(".incoming-*"):
        with _lock_if_free(leftover) as free:
            if free and _age_s(leftover) > _YOUNG_S:
                shutil.rmtree(leftover, ignore_errors=True)
    folder = store / f".incoming-{uuid.uuid4().hex}"
    folder.mkdir()
    with _lock_if_free(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@contextmanager
def _lock_if_free(folder: Path) -> Iterator[bool]:
    """Try to lock a folder; yield True if this process has the lock. The lock ends with the process."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # its pull has just ended
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)
