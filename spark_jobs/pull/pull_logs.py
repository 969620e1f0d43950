"""Pull the log files of a source into the landing folder, and land an interval.

Log files are kept as *segments*, shared by all intervals (``spark_jobs.pull.segments``). A file that has not changed at its
source is not copied again (``spark_jobs.pull.copying``), so pulling an unchanged source again changes nothing. The commit
point of a pull is one commit to the catalogue, after everything is copied: a reader sees the earlier pull or this one, never
a mixture. If a pull is killed, the earlier one stays valid and the next one continues the work.

Links in a source are not followed unless asked for; links that are left out are named once
(``dispatch_core.recording.links``).

A file that is no longer at its source is kept and reported; a file whose contents changed is replaced and reported. A file
that grows while it is copied is copied up to the size that it had at the beginning.

The source is any object with the methods ``iterdir``, ``is_dir``, ``is_file``, ``exists``, ``open``, ``stat`` and the
attribute ``name`` of a ``pathlib.Path``: a local folder or file, a ``universal_pathlib`` path or Airflow's
``ObjectStoragePath``. Does not use Spark.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from dispatch_core.errors import DispatchAuditError, names_disk_errors
from dispatch_core.recording.files import file_format, in_words
from dispatch_core.recording.links import SourceWalk
from spark_jobs.intervals import Interval, interval
from spark_jobs.location import Location
from spark_jobs.pull import segments
from spark_jobs.pull.copying import Journal, copy_changed
from spark_jobs.pull.segments import Catalogue, LandedInterval, Segment, Sources
from spark_jobs.warehouse.delta_tables import Place

#: A summary names at most so many files that are gone or have changed; it counts all.
_NAMED_AT_MOST: Final = 20

Progress = Callable[[str], None]


class PullError(DispatchAuditError):
    """The source cannot be pulled, or the landing folder has no complete pull."""


def pull(
    source: Any | Sequence[Any],
    landing: Place,
    interval_start: datetime | str,
    *,
    interval_end: datetime | str | None = None,
    progress: Progress | None = None,
    keep_gone: bool = True,
    follow_links: bool = False,
) -> dict[str, Any]:
    """Copy every log file under ``source`` (one path or several) into the landing, and land the interval.

    ``keep_gone``: keep files that the source does not have any more (logs are rotated away); otherwise forget them.
    ``follow_links``: read what links below the sources lead to.
    Returns a summary: ``interval_start, interval_end, files, bytes, copied_files, copied_bytes, ignored, files_gone, gone,
    files_changed, changed, segments_missing, links_left_out, digest, folder, seconds``. Raises ``PullError`` naming the
    source if it is missing or has no log file, and if the interval overlaps another one that was run; what was landed before
    is kept.
    """
    began = time.monotonic()
    span = interval(interval_start, interval_end)
    pulled = pull_segments(source, landing, progress=progress, keep_gone=keep_gone, follow_links=follow_links)
    land(landing, span, pulled.sources)
    return {
        "stage": "pull",
        "interval_start": span.start.isoformat(),
        "interval_end": span.end.isoformat(),
        "files": len(pulled.files),
        "bytes": sum(segment.size_bytes for segment in pulled.files),
        "copied_files": pulled.copied_files,
        "copied_bytes": pulled.copied_bytes,
        "ignored": pulled.ignored,
        "files_gone": len(pulled.gone),
        "gone": pulled.gone[:_NAMED_AT_MOST],
        "files_changed": len(pulled.changed),
        "changed": pulled.changed[:_NAMED_AT_MOST],
        "segments_missing": pulled.missing[:_NAMED_AT_MOST],
        "links_left_out": pulled.links_left_out,
        "digest": _digest(pulled.files),
        "folder": str(landing),
        "seconds": round(time.monotonic() - began, 3),
    }


@dataclass(frozen=True, slots=True)
class Pulled:
    """Result of a pull: all files, counts of those copied, names that are gone or changed, gaps between segments, links."""

    sources: Sources
    files: list[Segment]
    copied_files: int
    copied_bytes: int
    ignored: int
    gone: list[str]
    changed: list[str]
    missing: list[str]
    links_left_out: list[str]


@names_disk_errors("pull")
def pull_segments(
    source: Any | Sequence[Any],
    landing: Place,
    *,
    progress: Progress | None = None,
    keep_gone: bool = True,
    follow_links: bool = False,
) -> Pulled:
    """Copy every log file of the sources into the landing, without landing an interval; otherwise like ``pull``."""
    say = progress or (lambda _line: None)
    listed = _as_sources(source)
    names: Sources = tuple(str(path.resolve() if isinstance(path, Path) else path) for path in listed)
    walk = SourceWalk(file_format, follow_links=follow_links, hidden=False)
    try:
        files, ignored = _find(listed, walk)
    finally:
        links = walk.messages()
        for line in links:
            say(f"pull: {line}")
    place = Location.of(landing)
    journal = Journal(place, names)
    catalogue = segments.read_catalogue(landing)
    known = catalogue.pop(names, {})
    others = [segment for files_of in catalogue.values() for segment in files_of.values()]
    found, copied = copy_changed(files, known, place, journal, say, others)
    gone: list[Segment] = []
    changed: list[str] = []

    def with_files(catalogue: Catalogue) -> Catalogue:
        """Add the files to a catalogue that another pull may have changed meanwhile."""
        before = catalogue.get(names, {})
        gone[:] = _gone(before, found)
        changed[:] = [
            name
            for name, segment in found.items()
            if name in before and before[name].sha256 != segment.sha256
        ]
        kept = {segment.name: replace(segment, gone=True) for segment in gone if keep_gone}
        return {**catalogue, names: found | kept}

    segments.update_catalogue(landing, with_files, pulled=names)
    catalogue = segments.read_catalogue(landing)
    for name in changed:
        grown = found[name].grown_from is not None
        say(
            f"pull: {name}: {'has grown' if grown else 'has changed; the new contents replace the earlier ones'}"
        )
    for segment in gone:
        say(f"pull: {segment.name}: gone from the source, {'kept' if keep_gone else 'forgotten'}")
    missing = segments.missing_segments(catalogue[names])
    for what in missing:
        say(f"pull: missing: {what}")
    return Pulled(
        sources=names,
        files=[catalogue[names][name] for name in sorted(catalogue[names])],
        copied_files=len(copied),
        copied_bytes=sum(segment.size_bytes for segment in copied),
        ignored=ignored,
        gone=[segment.name for segment in gone],
        changed=changed,
        missing=missing,
        links_left_out=links,
    )


@names_disk_errors("pull")
def land(landing: Place, span: Interval, sources: Sources) -> None:
    """Make ``span`` an interval of the landing that gets the rows of these sources.

    Retires overlapping intervals that existed only because a later one needed their rows. Raises ``PullError`` if ``span``
    overlaps an interval that was run itself: a row would belong to two intervals, or not to one any more. An interval may be
    run again with a later end.
    """
    unused: set[Sources] = set()

    def landed_with(known: list[LandedInterval]) -> list[LandedInterval]:
        changed = [LandedInterval(span, "run", sources)]
        for landed in known:
            other = landed.span
            if other.end <= span.start or span.end <= other.start:
                continue
            if other.start == span.start and (landed.role != "run" or other.end <= span.end):
                continue  # the same interval, or one that takes its place and has all its rows
            if landed.role == "run":
                raise PullError(
                    f"the interval {span.start.isoformat()} to {span.end.isoformat()} overlaps {other.start.isoformat()} to "
                    f"{other.end.isoformat()}, which was audited in this home already; rows would count twice. Nothing was "
                    "changed. Choose intervals that do not overlap those, or another home"
                )
            changed.append(replace(landed, role="retired"))
        starts = {landed.span.start for landed in changed}
        used = {landed.sources for landed in (*changed, *(o for o in known if o.span.start not in starts))}
        unused.clear()
        unused.update({landed.sources for landed in known} - used)
        return changed

    segments.update_intervals(landing, landed_with)
    if unused:  # no interval uses these sources any more
        segments.update_catalogue(
            landing,
            lambda catalogue: {of: files for of, files in catalogue.items() if of not in unused},
        )


def rest_of(landing: Place, span: Interval) -> Interval:
    """Return the part of an interval behind the ones in it that were audited already.

    So a daily schedule can follow an hourly one: if the hours until 15:00 were audited, the day's run takes what follows.
    The same run has the same part when it is repeated. Where an interval that was audited reaches beyond ``span``, or
    nothing was audited in it, ``span`` is returned as it is.
    """
    audited = [
        landed.span
        for landed in segments.landed_intervals(landing)
        if landed.role == "run" and landed.span.start < span.end and span.start < landed.span.end
    ]
    if any(other.start < span.start or span.end < other.end or other == span for other in audited):
        return span
    begins = [other.end if other.end < span.end else other.start for other in audited]
    return Interval(max([span.start, *begins]), span.end)


def landed_files(landing: Place, span: Interval) -> list[tuple[str, Location]]:
    """List name and place of each file of the interval's sources, by name.

    Raises ``PullError`` if nothing was landed, and ``LandingError`` if a file is missing or has another size than when it
    was landed.
    """
    landed = landed_segments(landing, span)
    segments.check_whole(landing, landed)
    return [(segment.name, segment.path(landing)) for segment in landed]


def landed_segments(landing: Place, span: Interval) -> list[Segment]:
    """List the segments of the interval's sources, by name. Raises ``PullError`` if the interval was not landed."""
    interval_landed = segments.read_interval(landing, span)
    if interval_landed is None or interval_landed.role == "retired":
        raise PullError(f"{landing}: nothing was landed for {span.name}; run pull first")
    files = segments.read_catalogue(landing).get(interval_landed.sources)
    if files is None:
        raise PullError(
            f"{landing}: the catalogue does not list {', '.join(interval_landed.sources)}; run pull again"
        )
    return [files[name] for name in sorted(files)]


def log_files(source: Any | Sequence[Any]) -> list[tuple[str, Any]]:
    """List the log files that ``pull`` would land: name in the landing folder and path of each, sorted by name."""
    return _find(_as_sources(source), SourceWalk(file_format, hidden=False))[0]


def _as_sources(source: Any | Sequence[Any]) -> list[Any]:
    listed = list(source) if isinstance(source, (list, tuple)) else [source]
    if not listed:
        raise PullError("no source given; name a folder of recordings or a log file")
    return [Path(source) if isinstance(source, str) else source for source in listed]


def _find(sources: list[Any], walk: SourceWalk) -> tuple[list[tuple[str, Any]], int]:
    """Find all log files of the sources: (name in the landing folder, path) sorted by name; count other files."""
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
        for parts, path in walk.files(source, (label,) if label else ()):
            if file_format(path.name):
                found[_safe_name(parts, path)] = path
            else:
                ignored += 1
        if len(found) == before:
            links = ", links left out, see above" if walk.messages() else ""
            raise PullError(
                f"{source}: has no log file ({ignored} other files ignored{links}); expected messages*, events* or trace* "
                "as .jsonl, .jsonl.gz, .jsonl.zst or .parquet. Nothing was pulled"
            )
    return sorted(found.items()), ignored


def _not_a_log(name: str) -> str:
    return (
        f"{name!r} is no log file name; expected messages*, events* or trace* "
        "as .jsonl, .jsonl.gz, .jsonl.zst or .parquet"
    )


def _label(source: Any, taken: set[str]) -> str:
    """Choose the first part of all names of one source: its own name, with a number if another source has it."""
    resolved = source.resolve() if isinstance(source, Path) else source
    label = base = str(resolved.name)
    number = 2
    while label in taken:
        label = f"{base}-{number}"
        number += 1
    taken.add(label)
    return label


def _safe_name(parts: Iterable[str], path: Any) -> str:
    """Make the name in the landing folder: valid text, and no path that leads out of the folder."""
    name = in_words("/".join(parts))
    bad = any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in name.split("/"))
    if bad:
        raise PullError(f"{path}: the name {name!r} would lead out of the landing folder. Nothing was pulled")
    return name


def _gone(known: Mapping[str, Segment], found: Mapping[str, Segment]) -> list[Segment]:
    """List the known files that the source has no more, neither compressed otherwise nor under another name."""
    names = {segments.log_name(name) for name in found}
    contents = {segment.sha256 for segment in found.values()}
    return [
        segment
        for name, segment in sorted(known.items())
        if name not in found and segments.log_name(name) not in names and segment.sha256 not in contents
    ]


def _digest(files: Sequence[Segment]) -> str:
    contents = [[segment.name, segment.sha256] for segment in files]
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:32]
