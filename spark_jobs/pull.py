"""Pull: copy the log files of a source into the landing folder of one interval.

A landing folder holds one *manifest*, and the manifest is the commit point::

    landing/2026-11-21/manifest.json          what the interval's landing is: names, sizes, SHA-256
    landing/2026-11-21/<digest>/…             the files of that manifest, named by the digest of their contents

Files are copied into a folder of their own first and the manifest is swapped in by one atomic rename at the end: a
reader sees the earlier pull or this one, never a mixture, and a pull that dies leaves the earlier one standing.
Pulling the same source again gives the same digest and the same manifest.

The source is anything that walks like a ``pathlib.Path`` (``iterdir``, ``is_dir``, ``is_file``, ``exists``, ``open``,
``name``): a local folder or file, a ``universal_pathlib`` path or Airflow's ``ObjectStoragePath``. No Spark here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.files import file_format
from spark_jobs.intervals import Interval, interval

MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
_CHUNK_BYTES: Final = 1 << 20
_MAX_DEPTH: Final = 32

Progress = Callable[[str], None]


class PullError(DispatchAuditError):
    """A source that cannot be pulled, or a landing folder that holds no complete pull."""


def pull(
    source: Any | Sequence[Any],
    landing: Path,
    interval_start: datetime | str,
    *,
    interval_end: datetime | str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Copy every log file under ``source`` (one path-like or several) into the landing folder of the interval.

    Returns a summary: ``interval_start, files, bytes, ignored, digest, folder, seconds``. Raises ``PullError`` naming
    the source where it is missing or holds no log file; whatever was landed before is kept in that case.
    """
    began = time.monotonic()
    say = progress or (lambda _line: None)
    sources = _as_sources(source)
    target = landing_folder(landing, interval(interval_start, interval_end))
    files, ignored = _find(sources)
    target.mkdir(parents=True, exist_ok=True)
    with _only_one(target):
        _sweep(target)
        incoming = target / f".incoming-{uuid.uuid4().hex}"
        try:
            entries = []
            for number, (name, path) in enumerate(files, start=1):
                entries.append(_copy(path, name, incoming))
                say(f"pull: {number} of {len(files)} files, {name}, {entries[-1]['size_bytes']} bytes")
            digest = _digest(entries)
            _publish(target, incoming, digest, entries)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
    return {
        "stage": "pull",
        "interval_start": interval(interval_start).start.isoformat(),
        "files": len(entries),
        "bytes": sum(entry["size_bytes"] for entry in entries),
        "ignored": ignored,
        "digest": digest,
        "folder": str(target / digest),
        "seconds": round(time.monotonic() - began, 3),
    }


def landing_folder(landing: Path, span: Interval) -> Path:
    """The folder under ``landing`` that belongs to one interval."""
    return Path(landing) / span.name


def landed_files(landing: Path, span: Interval) -> list[tuple[str, Path]]:
    """Name and path of each file of the interval's manifest, in the manifest's order (by name).

    Raises ``PullError`` when nothing was landed, when the manifest is of a later version, or when a file is missing
    or has another size than the manifest says.
    """
    folder = landing_folder(landing, span)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PullError(
            f"{folder}: nothing was landed for {span.name} (no {MANIFEST}); run pull first"
        ) from None
    except ValueError as error:
        raise PullError(f"{folder / MANIFEST}: not readable as JSON ({error}); run pull again") from None
    if manifest.get("version") != MANIFEST_VERSION:
        raise PullError(
            f"{folder / MANIFEST}: version {manifest.get('version')!r}, this code reads {MANIFEST_VERSION}; run pull again"
        )
    found = []
    for entry in manifest["files"]:
        path = folder / manifest["digest"] / entry["name"]
        size_bytes = path.stat().st_size if path.is_file() else -1
        if size_bytes != entry["size_bytes"]:
            raise PullError(
                f"{path}: {'is missing' if size_bytes < 0 else f'has {size_bytes} bytes'}, the manifest says "
                f"{entry['size_bytes']} bytes; the tables are untouched, run pull again"
            )
        found.append((entry["name"], path))
    return found


def log_files(source: Any | Sequence[Any]) -> list[tuple[str, Any]]:
    """What ``pull`` would land of the source: name in the landing folder and path of each log file, sorted by name."""
    return _find(_as_sources(source))[0]


def _as_sources(source: Any | Sequence[Any]) -> list[Any]:
    listed = list(source) if isinstance(source, (list, tuple)) else [source]
    if not listed:
        raise PullError("no source given; name a folder of recordings or a log file")
    return [Path(one) if isinstance(one, str) else one for one in listed]


def _find(sources: list[Any]) -> tuple[list[tuple[str, Any]], int]:
    """All log files of the sources as (name in the landing folder, path), sorted by name; and how many were ignored."""
    found: dict[str, Any] = {}
    ignored = 0
    labels: set[str] = set()
    for source in sources:
        if not source.exists():
            raise PullError(
                f"{source}: no such file or folder; check the path of the source. Nothing was pulled"
            )
        label = _label(source, labels)
        if source.is_file():
            if not file_format(source.name):
                raise PullError(f"{source}: {_not_a_log(source.name)}. Nothing was pulled")
            found[_safe_name((label, source.name) if label != source.name else (source.name,), source)] = (
                source
            )
            continue
        before = len(found)
        for parts, path in _walk(source, (label,) if label else (), 0):
            if file_format(path.name):
                found[_safe_name(parts, path)] = path
            else:
                ignored += 1
        if len(found) == before:
            raise PullError(
                f"{source}: holds no log file ({ignored} other files ignored); expected messages*, events* or trace* "
                "as .jsonl, .jsonl.gz, .jsonl.zst or .parquet. Nothing was pulled"
            )
    return sorted(found.items()), ignored


def _not_a_log(name: str) -> str:
    return (
        f"{name!r} is no log file name; expected messages*, events* or trace* "
        "as .jsonl, .jsonl.gz, .jsonl.zst or .parquet"
    )


def _label(source: Any, taken: set[str]) -> str:
    """The first part of all names of one source: its own name, numbered where two sources share it."""
    resolved = source.resolve() if isinstance(source, Path) else source
    label = base = str(resolved.name)
    number = 2
    while label in taken:
        label = f"{base}-{number}"
        number += 1
    taken.add(label)
    return label


def _walk(folder: Any, parts: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every file under ``folder`` with its path parts; hidden files and folders are left out."""
    if depth > _MAX_DEPTH:
        raise PullError(
            f"{folder}: more than {_MAX_DEPTH} folders deep (a link that leads back?). Nothing was pulled"
        )
    for child in sorted(folder.iterdir(), key=lambda path: str(path.name)):
        name = str(child.name)
        if not name or name.startswith("."):
            continue
        if child.is_dir():
            yield from _walk(child, (*parts, name), depth + 1)
        elif child.is_file():
            yield (*parts, name), child


def _safe_name(parts: Iterable[str], path: Any) -> str:
    """The name in the landing folder; a name from an object store must not lead out of it."""
    name = "/".join(parts)
    bad = any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in name.split("/"))
    if bad:
        raise PullError(f"{path}: the name {name!r} would lead out of the landing folder. Nothing was pulled")
    return name


def _copy(path: Any, name: str, incoming: Path) -> dict[str, Any]:
    target = incoming / name
    target.parent.mkdir(parents=True, exist_ok=True)
    sha256 = hashlib.sha256()
    size_bytes = 0
    try:
        with path.open("rb") as source, target.open("xb") as copy:
            while chunk := source.read(_CHUNK_BYTES):
                sha256.update(chunk)
                copy.write(chunk)
                size_bytes += len(chunk)
    except OSError as error:
        raise PullError(
            f"{path}: could not be copied after {size_bytes} bytes ({error}); what was landed before is kept"
        ) from error
    return {"name": name, "size_bytes": size_bytes, "sha256": sha256.hexdigest()}


def _digest(entries: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:32]


def _publish(target: Path, incoming: Path, digest: str, entries: list[dict[str, Any]]) -> None:
    final = target / digest
    if final.exists() and _holds(final, entries):
        shutil.rmtree(incoming)  # the same contents stand there already, and a reader may be using them
    else:
        shutil.rmtree(final, ignore_errors=True)
        incoming.rename(final)
    manifest = {"version": MANIFEST_VERSION, "digest": digest, "files": entries}
    temporary = target / f".{MANIFEST}.{uuid.uuid4().hex}"
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(manifest, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(target / MANIFEST)
    for child in target.iterdir():
        if child.is_dir() and child.name != digest:
            shutil.rmtree(child)


def _holds(folder: Path, entries: list[dict[str, Any]]) -> bool:
    """Whether every file of the manifest is in the folder with its size; a damaged folder is replaced."""
    paths = ((folder / entry["name"], entry["size_bytes"]) for entry in entries)
    return all(path.is_file() and path.stat().st_size == size_bytes for path, size_bytes in paths)


def _sweep(target: Path) -> None:
    """Remove what a pull that died left behind; called under the lock, so nobody is using it."""
    for child in target.glob(".incoming-*"):
        shutil.rmtree(child)
    for child in target.glob(f".{MANIFEST}.*"):
        child.unlink()


@contextmanager
def _only_one(target: Path) -> Iterator[None]:
    """Let one process at a time change the landing folder of an interval; the lock dies with its holder."""
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
