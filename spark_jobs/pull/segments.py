"""Keep landed log files as *segments*: stored once by their contents, and shared by all intervals.

::

    landing/segments/<sha256>/<file name>               the bytes, never changed
    landing/segments/<sha256>/<file name>.about.json    the hours of its rows (spark_jobs.pull.hours_survey)
    landing/catalogue.json                              the files that each source had when it was last pulled
    landing/<interval>/manifest.json                    an interval: its bounds, its sources, its role

Replacing the *catalogue*, by one rename, is the commit point of a pull. A file that is gone from its source stays in it,
because logs are rotated away. A file whose contents have changed is listed with the new contents.

Uses files, not Spark.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args

from dispatch_core.errors import DispatchAuditError
from spark_jobs.intervals import Interval, IntervalError, interval

CATALOGUE: Final = "catalogue.json"
MANIFEST: Final = "manifest.json"
CATALOGUE_VERSION: Final = 1
MANIFEST_VERSION: Final = 2
_EARLIER_MANIFESTS: Final = (1,)

#: A segment of a recorder: series, time at which it was begun, number in its run of the broker (``docs/recorder.md``).
_NUMBERED: Final = re.compile(
    r"(?P<series>.*)-(?P<begun>\d{8}T\d{6}\.\d{3}Z)-(?P<number>\d{1,9})\.(?:jsonl|parquet)"
)

_DIGEST: Final = re.compile(r"[0-9a-f]{1,64}")
#: Matches names that lead out of the folder, or that no file system accepts.
_NO_NAME: Final = re.compile(r"[\0\ud800-\udc7f\udd00-\udfff]|(?:^|/)\.{0,2}(?:/|$)")

#: ``run``: audited by a run of its own. ``history``: a later run needed its rows. ``retired``: replaced by another interval.
Role = Literal["run", "history", "retired"]
#: The sources of one pull, as text, in their order.
Sources = tuple[str, ...]


class LandingError(DispatchAuditError):
    """The landing folder has no complete pull, or this code cannot read its files."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One log file of a source: its name in the landing and its contents.

    ``mark``: size, time or etag that the source reported when the file was copied; while they are the same, the file is not
    copied again. ``gone``: the source does not have the file any more. ``grown_from``: sha256 of the earlier contents under
    this name, if the present contents begin with them.
    """

    name: str
    sha256: str
    size_bytes: int
    mark: str | None = None
    gone: bool = False
    grown_from: str | None = None

    @classmethod
    def of_json(cls, values: Any) -> Segment:
        """Read the result of ``asdict``. Raises ``ValueError`` naming the wrong or unknown field."""
        if not isinstance(values, dict):
            raise ValueError("a segment is an object")
        kinds = {field.name: str for field in fields(cls)} | {"size_bytes": int, "gone": bool}
        for name, value in values.items():
            if name not in kinds:
                raise ValueError(f"a segment has no {name[:80]!r}")
            if type(value) is not kinds[name] and not (value is None and name in ("mark", "grown_from")):
                raise ValueError(f"{name} of a segment cannot be {str(value)[:80]!r}")
        missing = [name for name in ("name", "sha256", "size_bytes") if name not in values]
        if missing:
            raise ValueError(f"{missing[0]} of a segment is missing")
        if not (_DIGEST.fullmatch(values["sha256"]) and _DIGEST.fullmatch(values.get("grown_from") or "0")):
            raise ValueError("sha256 of a segment is no digest")
        if _NO_NAME.search(values["name"]):
            raise ValueError(f"{values['name'][:80]!r} is no name of a segment")
        return cls(**values)

    def path(self, landing: Path) -> Path:
        """Path of the segment's bytes."""
        return segment_path(landing, self.sha256, self.name)

    def is_whole(self, landing: Path) -> bool:
        """Tell if the file is there with the right number of bytes."""
        try:
            return self.path(landing).stat().st_size == self.size_bytes
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class LandedInterval:
    """An interval of the landing, and the sources whose rows it gets."""

    span: Interval
    role: Role
    sources: Sources


#: The files of the last pull of each list of sources, by name.
Catalogue = dict[Sources, dict[str, Segment]]


def missing_segments(names: Iterable[str]) -> list[str]:
    """Find gaps in the numbers of a recorder's segments; return a sentence for each.

    A broker numbers its segments from 1 each time it starts. Numbers do not show if the last segments of such a run are
    missing, or those before the first one; for events, holes in ``seq`` show it (``log_gap``).

    >>> missing_segments([f"events-b-20261122T1{hour}0000.000Z-{number}.jsonl" for hour, number in ((0, 1), (1, 3))])
    ['1 segment between events-b-20261122T100000.000Z-1.jsonl and events-b-20261122T110000.000Z-3.jsonl']
    """
    series: dict[str, list[tuple[str, int, str]]] = {}
    for name in names:
        found = _NUMBERED.match(name)
        if found:
            series.setdefault(found["series"], []).append((found["begun"], int(found["number"]), name))
    sentences = []
    for _, segments in sorted(series.items()):
        segments.sort()
        for (_, before, earlier), (_, number, later) in pairwise(segments):
            # A number that is not greater than the one before: the broker was restarted in between.
            lacking = number - before - 1 if number > before else number - 1
            if lacking > 0:
                sentences.append(f"{lacking} segment{'s' * (lacking > 1)} between {earlier} and {later}")
    return sentences


def segment_path(landing: Path, sha256: str, name: str) -> Path:
    """Return the path of the file with these contents and this name."""
    return Path(landing) / "segments" / sha256 / name.rpartition("/")[2]


def read_catalogue(landing: Path) -> Catalogue:
    """Read the files that the sources had when they were last pulled; empty before the first pull."""
    path = Path(landing) / CATALOGUE
    document = _read_document(path)
    if document is None:
        return {}
    if document.get("version") != CATALOGUE_VERSION:
        raise _of_another_version(path, document, CATALOGUE_VERSION)
    try:
        return {_sources(pull["sources"]): _files(pull["files"]) for pull in document["pulled"]}
    except (LookupError, TypeError, ValueError) as error:
        raise _unlike(path, error) from None


def _files(listed: list[Any]) -> dict[str, Segment]:
    files = [Segment.of_json(segment) for segment in listed]
    return {segment.name: segment for segment in files}


def _sources(listed: Any) -> Sources:
    if not isinstance(listed, list) or not all(isinstance(source, str) for source in listed):
        raise ValueError(f"sources cannot be {str(listed)[:80]!r}")
    return tuple(listed)


def _read_document(path: Path) -> dict[str, Any] | None:
    """Read a JSON object from a file of the landing; None if the file does not exist."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise LandingError(
            f"{path}: not readable as JSON ({error}); move it away and run pull again"
        ) from None
    if not isinstance(document, dict):
        raise LandingError(f"{path}: not a JSON object; move it away and run pull again")
    return document


def _of_another_version(path: Path, document: Mapping[str, Any], known: int) -> LandingError:
    said = str(document.get("version"))[:80]
    return LandingError(
        f"{path}: version {said!r}, this code reads {known}; use the version that wrote it, or move the landing folder "
        "away and run pull again"
    )


def _unlike(path: Path, error: Exception) -> LandingError:
    what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
    return LandingError(f"{path}: not as this code writes it ({what}); move it away and run pull again")


def write_catalogue(landing: Path, catalogue: Catalogue) -> None:
    """Replace the catalogue, in one step; only under ``landing_lock``."""
    pulled = [
        {"sources": list(sources), "files": [asdict(files[name]) for name in sorted(files)]}
        for sources, files in sorted(catalogue.items())
    ]
    _replace_file(Path(landing) / CATALOGUE, {"version": CATALOGUE_VERSION, "pulled": pulled})


def interval_folder(landing: Path, span: Interval) -> Path:
    """Return the folder of an interval below ``landing``."""
    return Path(landing) / span.name


def read_interval(landing: Path, span: Interval) -> LandedInterval | None:
    """Read the landed interval that starts where ``span`` does; None if there is none."""
    return _manifest(interval_folder(landing, span) / MANIFEST)


def landed_intervals(landing: Path) -> list[LandedInterval]:
    """Read all intervals of the landing, retired ones too, oldest first."""
    found = (_manifest(path) for path in Path(landing).glob(f"*/{MANIFEST}"))
    return sorted((landed for landed in found if landed is not None), key=lambda landed: landed.span.start)


def _manifest(path: Path) -> LandedInterval | None:
    document = _read_document(path)
    if document is None:
        return None
    if document.get("version") in _EARLIER_MANIFESTS:
        return None  # an earlier version kept the files in the interval's folder; the next pull replaces it
    if document.get("version") != MANIFEST_VERSION:
        raise _of_another_version(path, document, MANIFEST_VERSION)
    try:
        start, end, role = (document[name] for name in ("interval_start", "interval_end", "role"))
        if not (isinstance(start, str) and isinstance(end, str)) or role not in get_args(Role):
            raise ValueError(f"{start!r} to {end!r} as {role!r}"[:200])
        return LandedInterval(interval(start, end), role, _sources(document["sources"]))
    except (LookupError, ValueError, IntervalError) as error:
        raise _unlike(path, error) from None


def write_interval(landing: Path, landed: LandedInterval) -> None:
    """Replace the manifest of an interval, in one step; only under ``landing_lock``."""
    folder = interval_folder(landing, landed.span)
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "version": MANIFEST_VERSION,
        "interval_start": landed.span.start.isoformat(),
        "interval_end": landed.span.end.isoformat(),
        "role": landed.role,
        "sources": list(landed.sources),
    }
    _replace_file(folder / MANIFEST, document)


def _replace_file(path: Path, document: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.new")  # under the lock, so no other process writes it
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(document, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


@contextmanager
def landing_lock(landing: Path) -> Iterator[None]:
    """Lock catalogue and manifests for one process at a time; wait for the others, which take moments."""
    Path(landing).mkdir(parents=True, exist_ok=True)
    with (Path(landing) / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def log_name(name: str) -> str:
    """Return a file's name without format and compression: a log that was compressed later is the same log."""
    folder, _, base = name.rpartition("/")
    return f"{folder}/{base.partition('.jsonl')[0].removesuffix('.parquet')}"


def without_doubles(segments: Iterable[Segment]) -> list[Segment]:
    """Choose the segments to read: event files beside a trace are left out, because the trace has their lines."""
    listed = sorted(segments, key=lambda segment: segment.name)
    traced = {segment.name.rpartition("/")[0] for segment in listed if _begins(segment.name, "trace")}
    return [
        segment
        for segment in listed
        if not (segment.name.rpartition("/")[0] in traced and _begins(segment.name, "events"))
    ]


def _begins(name: str, word: str) -> bool:
    return name.rpartition("/")[2].lower().startswith(word)


def check_whole(landing: Path, segments: Sequence[Segment]) -> None:
    """Raise ``LandingError`` if a segment's file is missing or has another size than when it was landed."""
    for segment in segments:
        path = segment.path(landing)
        size_bytes = path.stat().st_size if path.is_file() else -1
        if size_bytes != segment.size_bytes:
            raise LandingError(
                f"{path}: {'is missing' if size_bytes < 0 else f'has {size_bytes} bytes'}, the catalogue says "
                f"{segment.size_bytes} bytes for {segment.name}; the tables are untouched, run pull again"
            )
