"""Copy files of a source into the store of segments: several at a time, and only those that have changed.

Size, time or etag that the source reports decide if a file has to be read. A copied file gets its final name at once, in a
folder of its own. What was copied is noted from time to time (``Journal``), so that the next pull continues about where a
killed one ended. The catalogue, which all readers use, is written when everything is there (``spark_jobs.pull.pull_logs``).
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from threading import Lock
from typing import Any, Final

from dispatch_core.errors import DispatchAuditError
from spark_jobs.location import Location
from spark_jobs.pull.segments import Segment, Sources, add_copied, copied_segments, store_of, stored_at

_CHUNK_BYTES: Final = 1 << 20
#: Files that are copied at the same time: an object store answers each request slowly.
_AT_ONCE: Final = 8
#: Attempts to copy a file that is rewritten meanwhile.
_ATTEMPTS: Final = 3
#: Time and size do not identify the contents of a file that was written less than this before.
_TOO_FRESH_S: Final = 2.0
#: Copied files are noted together when so many are waiting, or the first one has waited so long.
_NOTED_TOGETHER: Final = 256
_NOTED_AFTER_S: Final = 10.0


class CopyError(DispatchAuditError):
    """A file of a source could not be copied; the message names it and what was kept."""


class Journal:
    """The files that a pull of some sources has copied and that the catalogue does not list yet.

    Used by several threads. ``note`` writes down those that are not noted yet; a pull that is killed before loses them.
    """

    def __init__(self, landing: Location, sources: Sources) -> None:
        self._landing, self._sources = landing, sources
        self._waiting: list[Segment] = []
        self._noted_at = time.monotonic()
        self._lock = Lock()

    def read(self) -> dict[str, Segment]:
        """Read the files that an earlier pull copied before it ended without listing them, by name."""
        return copied_segments(self._landing, self._sources)

    def add(self, copied: Segment) -> None:
        """Take a file that is in the store."""
        with self._lock:
            self._waiting.append(copied)
            late = time.monotonic() - self._noted_at > _NOTED_AFTER_S
            if late or len(self._waiting) >= _NOTED_TOGETHER:
                self._note()

    def note(self) -> None:
        """Write down all files that were taken."""
        with self._lock:
            self._note()

    def _note(self) -> None:
        if self._waiting:
            add_copied(self._landing, self._sources, self._waiting)
        self._waiting, self._noted_at = [], time.monotonic()


class _Store:
    """The stored files by contents and name, so that each contents is kept once. Used by several threads."""

    def __init__(self, landing: Location, known: Iterable[Segment]) -> None:
        self.landing = landing
        self._sizes = {found.location: found.size_bytes for found in store_of(landing).files()}
        self._kept = {self._key(segment): segment for segment in known if self.has(segment)}
        self._lock = Lock()

    def has(self, segment: Segment) -> bool:
        """Tell if the segment's file was there with the right number of bytes when this object was made."""
        return self._sizes.get(segment.path(self.landing)) == segment.size_bytes

    def kept_once(self, copied: Segment) -> Segment:
        """Return the segment under which the contents are kept; remove the copy if there was one already."""
        with self._lock:
            first = self._kept.setdefault(self._key(copied), copied)
        if first.path(self.landing) != copied.path(self.landing):
            copied.path(self.landing).delete()
        return replace(copied, token=first.token)

    @staticmethod
    def _key(segment: Segment) -> tuple[str, str]:
        return segment.sha256, segment.name.rpartition("/")[2]


def copy_changed(
    files: Sequence[tuple[str, Any]],
    known: Mapping[str, Segment],
    landing: Location,
    journal: Journal,
    say: Callable[[str], None],
    others: Iterable[Segment] = (),
) -> tuple[dict[str, Segment], list[Segment]]:
    """Copy those of ``files`` (name, path) that have changed; return all segments by name, and those copied now.

    ``known``: the segments that the catalogue lists for these sources; ``others``: those of other sources. Raises
    ``CopyError`` if a file cannot be copied; what was copied until then is kept, and the next pull does not copy it again.
    """
    journaled = journal.read()
    store = _Store(landing, (*known.values(), *journaled.values(), *others))
    found: dict[str, Segment] = {}
    missing = []
    for name, path in files:
        mark = _mark(path)
        same = [
            segment
            for segment in (journaled.get(name), known.get(name))
            if segment is not None and segment.mark == mark
        ]
        whole = next((segment for segment in same if mark is not None and store.has(segment)), None)
        if whole is None:
            missing.append((name, path))
        else:
            found[name] = replace(whole, gone=False)
    copied: list[Segment] = []
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        under_way = [
            threads.submit(_copy, path, name, store, known.get(name), journal) for name, path in missing
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
            journal.note()
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


def _copy(path: Any, name: str, store: _Store, before: Segment | None, journal: Journal) -> Segment:
    """Copy one file into the store and record it. What is appended meanwhile is left for the next pull."""
    token = uuid.uuid4().hex
    target = stored_at(store.landing, token, name)
    for _attempt in range(_ATTEMPTS):
        copied = _copy_once(path, name, target, before)
        if copied is not None:
            kept = store.kept_once(replace(copied, token=token))
            journal.add(kept)
            return kept
    target.delete()
    raise CopyError(
        f"{path}: was rewritten while it was copied, {_ATTEMPTS} times; what was landed before is kept. Pull again when "
        "it is no longer being rewritten"
    )


def _copy_once(path: Any, name: str, target: Location, before: Segment | None) -> Segment | None:
    """Copy a file into ``target`` once; None if the source was rewritten meanwhile."""
    mark, state, limit = _mark(path), _reported_state(path), _size_bytes(path)
    sha256 = hashlib.sha256()
    size_bytes = 0
    grown_from = None
    try:
        with path.open("rb") as source, target.create() as copy:
            while chunk := source.read(_chunk_bytes(size_bytes, limit, before)):
                sha256.update(chunk)
                copy.write(chunk)
                size_bytes += len(chunk)
                if before is not None and size_bytes == before.size_bytes:
                    grown_from = before.sha256 if sha256.hexdigest() == before.sha256 else None
        target.sync()
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
