"""Segments: landed log files, kept once by their contents and shared by all intervals.

::

    landing/segments/<sha256>/<file name>               the bytes, never changed
    landing/segments/<sha256>/<file name>.about.json    which hours they hold rows of (spark_jobs.pull.hours_survey)
    landing/catalogue.json                              which file names each source had when it was last pulled
    landing/<interval>/manifest.json                    an interval: its bounds, its sources, and why it is there

The *catalogue* is the commit point of a pull: one rename swaps it in. A file that has gone from its source stays in it (logs
are rotated away; what they said has happened), and one whose contents changed stands for the new contents.

Knows files, not Spark.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args

from dispatch_core.errors import DispatchAuditError
from spark_jobs.intervals import Interval, IntervalError, interval
from spark_jobs.pull.hours_survey import Survey, survey

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
#: What is in no name of a file: a name that leads elsewhere, or that no file system has.
_NO_NAME: Final = re.compile(r"[\0\ud800-\udc7f\udd00-\udfff]|(?:^|/)\.{0,2}(?:/|$)")

#: ``run``: a run was asked for it. ``history``: a later run needed its rows. ``retired``: gave way to another interval.
Role = Literal["run", "history", "retired"]
#: The sources of one pull, as text, in their order.
Sources = tuple[str, ...]


class LandingError(DispatchAuditError):
    """A landing folder that holds no complete pull, or whose files this code cannot read."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One log file of a source: its name in the landing and its contents.

    ``mark``: what the source said about the file when it was copied (size, time or etag); while it says the same, the file
    is not copied again. ``gone``: the source has it no more. ``grown_from``: the contents that stood under this name before,
    where these begin with them.
    """

    name: str
    sha256: str
    size_bytes: int
    mark: str | None = None
    gone: bool = False
    grown_from: str | None = None

    @classmethod
    def of_json(cls, values: Any) -> Segment:
        """Read the result of ``asdict``; raises ``ValueError`` naming what is no part of a segment."""
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
    """An interval that the landing knows of, and the sources whose rows it gets."""

    span: Interval
    role: Role
    sources: Sources


#: What the sources held: by sources, by name.
Catalogue = dict[Sources, dict[str, Segment]]


def missing_segments(names: Iterable[str]) -> list[str]:
    """Find segments that a recorder must have written and that are not among ``names``: a sentence for each gap.

    A broker numbers its segments from 1 each time it starts. The last segments of such a run cannot be missed by their
    numbers, nor those before the first that there is: for events, holes in ``seq`` tell (``log_gap``).

    >>> missing_segments([f"events-b-20261122T1{hour}0000.000Z-{number}.jsonl" for hour, number in ((0, 1), (1, 3))])
    ['1 segment between events-b-20261122T100000.000Z-1.jsonl and events-b-20261122T110000.000Z-3.jsonl']
    """
    series: dict[str, list[tuple[str, int, str]]] = {}
    for name in names:
        found = _NUMBERED.match(name)
        if found:
            series.setdefault(found["series"], []).append((found["begun"], int(found["number"]), name))
    told = []
    for _, segments in sorted(series.items()):
        segments.sort()
        for (_, before, earlier), (_, number, later) in pairwise(segments):
            # Not above the one before: the broker has started again in between.
            lacking = number - before - 1 if number > before else number - 1
            if lacking > 0:
                told.append(f"{lacking} segment{'s' * (lacking > 1)} between {earlier} and {later}")
    return told


def segment_path(landing: Path, sha256: str, name: str) -> Path:
    """Path of a file of these contents and this name."""
    return Path(landing) / "segments" / sha256 / name.rpartition("/")[2]


def read_catalogue(landing: Path) -> Catalogue:
    """Read the files that the sources held when they were last pulled; empty before the first pull."""
    path = Path(landing) / CATALOGUE
    held = _held(path)
    if held is None:
        return {}
    if held.get("version") != CATALOGUE_VERSION:
        raise _of_another_version(path, held, CATALOGUE_VERSION)
    try:
        return {_sources(one["sources"]): _files(one["files"]) for one in held["pulled"]}
    except (LookupError, TypeError, ValueError) as error:
        raise _unlike(path, error) from None


def _files(listed: list[Any]) -> dict[str, Segment]:
    files = [Segment.of_json(one) for one in listed]
    return {one.name: one for one in files}


def _sources(listed: Any) -> Sources:
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ValueError(f"sources cannot be {str(listed)[:80]!r}")
    return tuple(listed)


def _held(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file of the landing; None where there is none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise LandingError(
            f"{path}: not readable as JSON ({error}); move it away and run pull again"
        ) from None
    if not isinstance(held, dict):
        raise LandingError(f"{path}: no JSON object; move it away and run pull again")
    return held


def _of_another_version(path: Path, held: Mapping[str, Any], known: int) -> LandingError:
    said = str(held.get("version"))[:80]
    return LandingError(
        f"{path}: version {said!r}, this code reads {known}; use the version that wrote it, or move the landing folder "
        "away and run pull again"
    )


def _unlike(path: Path, error: Exception) -> LandingError:
    what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
    return LandingError(f"{path}: not as this code writes it ({what}); move it away and run pull again")


def write_catalogue(landing: Path, catalogue: Catalogue) -> None:
    """Swap in another catalogue; only under ``landing_lock``."""
    pulled = [
        {"sources": list(sources), "files": [asdict(files[name]) for name in sorted(files)]}
        for sources, files in sorted(catalogue.items())
    ]
    _swap_in(Path(landing) / CATALOGUE, {"version": CATALOGUE_VERSION, "pulled": pulled})


def interval_folder(landing: Path, span: Interval) -> Path:
    """The folder under ``landing`` that belongs to one interval."""
    return Path(landing) / span.name


def read_interval(landing: Path, span: Interval) -> LandedInterval | None:
    """The interval that stands under the name of ``span``, with its own end; None where nothing was landed for it."""
    return _manifest(interval_folder(landing, span) / MANIFEST)


def landed_intervals(landing: Path) -> list[LandedInterval]:
    """All intervals that the landing knows of, retired ones too, oldest first."""
    found = (_manifest(path) for path in Path(landing).glob(f"*/{MANIFEST}"))
    return sorted((one for one in found if one is not None), key=lambda one: one.span.start)


def _manifest(path: Path) -> LandedInterval | None:
    held = _held(path)
    if held is None:
        return None
    if held.get("version") in _EARLIER_MANIFESTS:
        return None  # of a version that kept the files in the interval's folder; the next pull replaces it
    if held.get("version") != MANIFEST_VERSION:
        raise _of_another_version(path, held, MANIFEST_VERSION)
    try:
        start, end, role = (held[name] for name in ("interval_start", "interval_end", "role"))
        if not (isinstance(start, str) and isinstance(end, str)) or role not in get_args(Role):
            raise ValueError(f"{start!r} to {end!r} as {role!r}"[:200])
        return LandedInterval(interval(start, end), role, _sources(held["sources"]))
    except (LookupError, ValueError, IntervalError) as error:
        raise _unlike(path, error) from None


def write_interval(landing: Path, one: LandedInterval) -> None:
    """Swap in the manifest of an interval; only under ``landing_lock``."""
    folder = interval_folder(landing, one.span)
    folder.mkdir(parents=True, exist_ok=True)
    held = {
        "version": MANIFEST_VERSION,
        "interval_start": one.span.start.isoformat(),
        "interval_end": one.span.end.isoformat(),
        "role": one.role,
        "sources": list(one.sources),
    }
    _swap_in(folder / MANIFEST, held)


def _swap_in(path: Path, held: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.new")  # under the lock: nobody else writes it
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(held, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


@contextmanager
def landing_lock(landing: Path) -> Iterator[None]:
    """One process at a time changes catalogue and manifests; waits. Held for moments, and it dies with its holder."""
    Path(landing).mkdir(parents=True, exist_ok=True)
    with (Path(landing) / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def log_name(name: str) -> str:
    """A file's name without what says how it is packed: a log that was compressed later is the same log."""
    folder, _, base = name.rpartition("/")
    return f"{folder}/{base.partition('.jsonl')[0].removesuffix('.parquet')}"


def without_doubles(segments: Iterable[Segment]) -> list[Segment]:
    """The segments to read: event files beside a trace are left out, for it holds their lines already."""
    listed = sorted(segments, key=lambda one: one.name)
    traced = {one.name.rpartition("/")[0] for one in listed if _begins(one.name, "trace")}
    return [
        one for one in listed if not (one.name.rpartition("/")[0] in traced and _begins(one.name, "events"))
    ]


def _begins(name: str, word: str) -> bool:
    return name.rpartition("/")[2].lower().startswith(word)


def about_path(landing: Path, segment: Segment) -> Path:
    """Path of a segment's survey."""
    path = segment.path(landing)
    return path.with_name(f"{path.name}.about.json")


def known_survey(landing: Path, segment: Segment) -> Survey | None:
    """The survey of a segment, if it was made already."""
    try:
        return Survey.of_json(json.loads(about_path(landing, segment).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None  # not made yet, or half written by somebody who was killed


def make_survey(landing: Path, segment: Segment) -> Survey:
    """Survey a segment and keep what was found beside it."""
    before = None
    if segment.grown_from is not None:
        before = known_survey(landing, replace(segment, sha256=segment.grown_from))
    made = survey(segment.path(landing), segment.sha256[:16], earlier=before)
    path = about_path(landing, segment)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(json.dumps(made.as_json()), encoding="utf-8")
    temporary.replace(path)
    return made


def check_whole(landing: Path, segments: Sequence[Segment]) -> None:
    """Raise ``LandingError`` where a segment's file is missing or has another size than it was landed with."""
    for one in segments:
        path = one.path(landing)
        size_bytes = path.stat().st_size if path.is_file() else -1
        if size_bytes != one.size_bytes:
            raise LandingError(
                f"{path}: {'is missing' if size_bytes < 0 else f'has {size_bytes} bytes'}, the catalogue says "
                f"{one.size_bytes} bytes for {one.name}; the tables are untouched, run pull again"
            )
