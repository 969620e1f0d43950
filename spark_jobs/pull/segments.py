"""Keep landed log files as *segments*: stored once by their contents, and shared by all intervals.

::

    landing/segments/<token>/<file name>    the bytes, never changed
    landing/catalogue                       table: the files that each source had when it was last pulled
    landing/intervals                       table: an interval's bounds, its sources, its role
    landing/surveys                         table: the hours of a file's rows (spark_jobs.pull.segment_surveys)

A commit to the *catalogue* is the commit point of a pull. A file that is gone from its source stays in it, because logs are
rotated away. A file whose contents have changed is listed with the new contents. The tables are changed by one process after
the other without a lock (``spark_jobs.warehouse.records``). Files that no row names are removed by maintenance.

A landing of an earlier version, with ``catalogue.json`` and a manifest per interval, is read as long as there are no tables,
and taken over by the first change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.errors import DispatchAuditError
from spark_jobs.intervals import Interval, IntervalError, interval
from spark_jobs.location import Location
from spark_jobs.warehouse.delta_tables import Place
from spark_jobs.warehouse.records import Records

#: Files of an earlier version.
CATALOGUE: Final = "catalogue.json"
MANIFEST: Final = "manifest.json"
CATALOGUE_VERSION: Final = 1
MANIFEST_VERSION: Final = 2
_EARLIER_MANIFESTS: Final = (1,)
#: Files that are looked at at the same time.
_AT_ONCE: Final = 16

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
    this name, if the present contents begin with them. ``token``: folder of the file, by default its sha256, as an earlier
    version named it.
    """

    name: str
    sha256: str
    size_bytes: int
    mark: str | None = None
    gone: bool = False
    grown_from: str | None = None
    token: str | None = None

    @classmethod
    def of_json(cls, values: Any) -> Segment:
        """Read the result of ``asdict``. Raises ``ValueError`` naming the wrong or unknown field."""
        if not isinstance(values, dict):
            raise ValueError("a segment is an object")
        kinds = {field.name: str for field in fields(cls)} | {"size_bytes": int, "gone": bool}
        for name, value in values.items():
            if name not in kinds:
                raise ValueError(f"a segment has no {name[:80]!r}")
            if type(value) is not kinds[name] and not (
                value is None and name in ("mark", "grown_from", "token")
            ):
                raise ValueError(f"{name} of a segment cannot be {str(value)[:80]!r}")
        missing = [name for name in ("name", "sha256", "size_bytes") if name not in values]
        if missing:
            raise ValueError(f"{missing[0]} of a segment is missing")
        digests = values["sha256"], values.get("grown_from") or "0", values.get("token") or "0"
        if not all(map(_DIGEST.fullmatch, digests)):
            raise ValueError("sha256 of a segment is no digest")
        if _NO_NAME.search(values["name"]):
            raise ValueError(f"{values['name'][:80]!r} is no name of a segment")
        return cls(**values)

    def path(self, landing: Place) -> Location:
        """The place of the segment's bytes."""
        return stored_at(landing, self.token or self.sha256, self.name)


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


def stored_at(landing: Place, token: str, name: str) -> Location:
    """Return the place of a file with this name in a folder of its own."""
    return store_of(landing) / token / name.rpartition("/")[2]


def store_of(landing: Place) -> Location:
    """Return the folder of all segments."""
    return Location.of(landing) / "segments"


#: Rows of the catalogue. ``listed``: false for a file that was copied by a pull which has not ended yet.
_CATALOGUED: Final = pa.schema(
    [
        pa.field("sources", pa.string()),
        pa.field("listed", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("sha256", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("mark", pa.string()),
        pa.field("gone", pa.bool_()),
        pa.field("grown_from", pa.string()),
        pa.field("token", pa.string()),
    ]
)
_INTERVALS: Final = pa.schema(
    [pa.field(name, pa.string()) for name in ("interval_start", "interval_end", "role", "sources")]
)


def _catalogue(landing: Place) -> Records:
    return Records(Location.of(landing) / "catalogue", _CATALOGUED)


def _intervals(landing: Place) -> Records:
    return Records(Location.of(landing) / "intervals", _INTERVALS)


def tables_of(landing: Place) -> list[Location]:
    """List the places of the landing's tables."""
    return [Location.of(landing) / name for name in ("catalogue", "intervals", "surveys")]


def read_catalogue(landing: Place) -> Catalogue:
    """Read the files that the sources had when they were last pulled; empty before the first pull."""
    return _listed(_catalogue(landing).read()) or _earlier_catalogue(Location.of(landing))


def _listed(rows: pa.Table) -> Catalogue:
    found: Catalogue = {}
    for sources, segment in _segments(rows, listed=True):
        found.setdefault(sources, {})[segment.name] = segment
    return found


def _segments(rows: pa.Table, *, listed: bool) -> list[tuple[Sources, Segment]]:
    wanted = rows.filter(pc.equal(rows["listed"], listed))
    texts = {text: tuple(json.loads(text)) for text in wanted["sources"].unique().to_pylist()}
    return [
        (texts[row.pop("sources")], Segment(**row)) for row in wanted.drop_columns(["listed"]).to_pylist()
    ]


def _rows(sources: Sources, files: Iterable[Segment], *, listed: bool) -> pa.Table:
    text = json.dumps(list(sources))
    rows = [{"sources": text, "listed": listed, **asdict(segment)} for segment in files]
    return pa.Table.from_pylist(rows, schema=_CATALOGUED)


def update_catalogue(
    landing: Place, change: Callable[[Catalogue], Catalogue | None], *, pulled: Sources | None = None
) -> None:
    """Replace the catalogue by what ``change`` makes of it; nothing is written if that is None or the same.

    ``change`` is called again if another process has changed the catalogue meanwhile. ``pulled``: forget what pulls of these
    sources have copied without listing it.
    """

    def changed(rows: pa.Table) -> pa.Table | None:
        listed = _listed(rows)
        after = change(listed or _earlier_catalogue(Location.of(landing)))
        copied = _segments(rows, listed=False)
        kept = [(sources, segment) for sources, segment in copied if sources != pulled]
        if after is None or (after == listed and len(kept) == len(copied)):
            return None
        return pa.concat_tables(
            [
                _CATALOGUED.empty_table(),
                *(_rows(sources, after[sources].values(), listed=True) for sources in sorted(after)),
                *(_rows(sources, [segment], listed=False) for sources, segment in kept),
            ]
        )

    _catalogue(landing).update(changed)


def copied_segments(landing: Place, sources: Sources) -> dict[str, Segment]:
    """Read the files that pulls of these sources have copied and not listed yet, by name; of two the later one."""
    found = _segments(_catalogue(landing).read(), listed=False)
    return {segment.name: segment for of_sources, segment in found if of_sources == sources}


def add_copied(landing: Place, sources: Sources, files: Sequence[Segment]) -> None:
    """Note files that a pull has copied, so that the next one does not copy them again if this one dies."""
    _catalogue(landing).append(_rows(sources, files, listed=False))


def read_interval(landing: Place, span: Interval) -> LandedInterval | None:
    """Read the landed interval that starts where ``span`` does; None if there is none."""
    return next((landed for landed in landed_intervals(landing) if landed.span.start == span.start), None)


def landed_intervals(landing: Place) -> list[LandedInterval]:
    """Read all intervals of the landing, retired ones too, oldest first."""
    return _of_rows(_intervals(landing).read()) or _earlier_intervals(Location.of(landing))


def _of_rows(rows: pa.Table) -> list[LandedInterval]:
    found = (
        LandedInterval(
            interval(row["interval_start"], row["interval_end"]),
            row["role"],
            tuple(json.loads(row["sources"])),
        )
        for row in rows.to_pylist()
    )
    return sorted(found, key=lambda landed: landed.span.start)


def update_intervals(
    landing: Place, change: Callable[[list[LandedInterval]], Iterable[LandedInterval]]
) -> None:
    """Add the intervals that ``change`` returns for the known ones, in place of those with the same start.

    ``change`` is called again if another process has changed the intervals meanwhile.
    """

    def changed(rows: pa.Table) -> pa.Table | None:
        known = _of_rows(rows) or _earlier_intervals(Location.of(landing))
        by_start = {landed.span.start: landed for landed in known}
        after = by_start | {landed.span.start: landed for landed in change(known)}
        if after == by_start and rows.num_rows:
            return None
        made = [
            {
                "interval_start": landed.span.start.isoformat(),
                "interval_end": landed.span.end.isoformat(),
                "role": landed.role,
                "sources": json.dumps(list(landed.sources)),
            }
            for landed in after.values()
        ]
        return pa.Table.from_pylist(made, schema=_INTERVALS)

    _intervals(landing).update(changed)


def write_interval(landing: Place, landed: LandedInterval) -> None:
    """Add one interval, in place of one with the same start."""
    update_intervals(landing, lambda _known: [landed])


# ---- landings of an earlier version ----


def _earlier_catalogue(landing: Location) -> Catalogue:
    path = landing / CATALOGUE
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


def _read_document(path: Location) -> dict[str, Any] | None:
    """Read a JSON object from a file of the landing; None if the file does not exist."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise LandingError(
            f"{path}: not readable as JSON ({error}); move it away and run pull again"
        ) from None
    if not isinstance(document, dict):
        raise LandingError(f"{path}: not a JSON object; move it away and run pull again")
    return document


def _of_another_version(path: Location, document: Mapping[str, Any], known: int) -> LandingError:
    said = str(document.get("version"))[:80]
    return LandingError(
        f"{path}: version {said!r}, this code reads {known}; use the version that wrote it, or move the landing folder "
        "away and run pull again"
    )


def _unlike(path: Location, error: Exception) -> LandingError:
    what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
    return LandingError(f"{path}: not as this code writes it ({what}); move it away and run pull again")


def _earlier_intervals(landing: Location) -> list[LandedInterval]:
    folders = [folder for folder in landing.folders() if folder.name[:1].isdecimal()]
    found = (_manifest(folder / MANIFEST) for folder in folders)
    return sorted((landed for landed in found if landed is not None), key=lambda landed: landed.span.start)


def _manifest(path: Location) -> LandedInterval | None:
    document = _read_document(path)
    if document is None or document.get("version") in _EARLIER_MANIFESTS:
        return None
    if document.get("version") != MANIFEST_VERSION:
        raise _of_another_version(path, document, MANIFEST_VERSION)
    try:
        start, end, role = (document[name] for name in ("interval_start", "interval_end", "role"))
        if not (isinstance(start, str) and isinstance(end, str)) or role not in get_args(Role):
            raise ValueError(f"{start!r} to {end!r} as {role!r}"[:200])
        return LandedInterval(interval(start, end), role, _sources(document["sources"]))
    except (LookupError, ValueError, IntervalError) as error:
        raise _unlike(path, error) from None


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


def check_whole(landing: Place, segments: Sequence[Segment]) -> None:
    """Raise ``LandingError`` if a segment's file is missing or has another size than when it was landed."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        sizes = list(threads.map(lambda segment: segment.path(landing).size_bytes(), segments))
    for segment, size_bytes in zip(segments, sizes, strict=True):
        if size_bytes != segment.size_bytes:
            raise LandingError(
                f"{segment.path(landing)}: {'is missing' if size_bytes is None else f'has {size_bytes} bytes'}, the "
                f"catalogue says {segment.size_bytes} bytes for {segment.name}; the tables are untouched, run pull again"
            )
