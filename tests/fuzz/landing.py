"""Files of landings that an earlier version wrote, kept surveys, logs. Damaged ones are named, or count as missing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from dispatch_core.errors import DispatchAuditError
from spark_jobs.ingest.ingest_task import stage_files
from spark_jobs.intervals import interval
from spark_jobs.pull import segment_surveys, segments
from spark_jobs.pull.hours_survey import Survey, survey
from spark_jobs.pull.segments import Segment
from tests.fuzz.documents import document
from tests.fuzz.lines import Content, good
from tests.fuzz.texts import says, spoiled

Made = tuple[bytes, Callable[[], int]]

_SPAN: Final = interval("2026-11-21")
_EVER: Final = interval("1970-01-01", "9999-12-31T23:59:59")
_SEGMENT: Final = Segment("rec/events.jsonl", "a" * 64, 5, "mark")
_ODD: Final[tuple[Any, ...]] = (
    None,
    1,
    -1,
    1 << 70,
    1.5,
    "",
    "x",
    "\0",
    "../../x",
    "a" * 5000,
    [],
    {},
    [1],
    {"a": 1},
    True,
    "\ud800",
)
_CATALOGUE: Final = {"version": 1, "pulled": [{"sources": ["/s"], "files": [asdict(_SEGMENT)]}]}
_MANIFEST: Final = {
    "version": 2,
    "interval_start": _SPAN.start.isoformat(),
    "interval_end": _SPAN.end.isoformat(),
    "role": "run",
    "sources": ["/s"],
}
_SURVEY: Final = {"version": 1, "untimed": 1, "carries": False, "complete": True, "hours": [[490000, 5, "m"]]}


def _document(rng: Random, value: Any) -> bytes:
    if rng.random() < 0.9:
        value = spoiled(rng, value, _ODD)
    text = json.dumps(value).encode()
    pick = rng.random()
    if pick < 0.1:
        return text[: rng.randrange(len(text) + 1)]
    if pick < 0.15:
        at = rng.randrange(len(text) + 1)
        return (
            text[:at] + rng.choice((b"\xff", b"\0", b"[" * 2000, b"9" * 5000, b"Infinity")) + text[at + 1 :]
        )
    if pick < 0.16:
        return b"[" * 200_000
    return text


def _folder() -> Path:
    """Return the landing folder of this process; each document replaces the one before."""
    return Path(_place(os.getpid()).name)


@cache
def _place(_process: int) -> tempfile.TemporaryDirectory[str]:
    place = tempfile.TemporaryDirectory(prefix="fuzz-")
    (Path(place.name) / "segments").mkdir()
    return place


def catalogue(rng: Random) -> Made:
    """Make the catalogue of a landing folder."""
    data = _document(rng, _CATALOGUE)

    def check() -> int:
        folder = _folder()
        (folder / segments.CATALOGUE).write_bytes(data)
        try:
            found = segments.read_catalogue(folder)
        except DispatchAuditError as error:
            says(error, str(folder / segments.CATALOGUE))
            return 1
        for files in found.values():
            for name, segment in files.items():
                assert segment.name == name
                assert segment.path(folder).below(segments.store_of(folder))
        return 1

    return data, check


def manifest(rng: Random) -> Made:
    """Make the manifest of an interval."""
    data = _document(rng, _MANIFEST)

    def check() -> int:
        folder = _folder()
        path = folder / _SPAN.name / segments.MANIFEST
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        try:
            found = segments.landed_intervals(folder)
        except DispatchAuditError as error:
            says(error, str(path))
            return 1
        for landed in found:
            assert landed.role in ("run", "history", "retired")
            assert all(isinstance(source, str) for source in landed.sources)
        return 1

    return data, check


def about(rng: Random) -> Made:
    """Make a kept survey: a damaged one must count as missing."""
    data = _document(rng, _SURVEY)

    def check() -> int:
        found = segment_surveys._of_text(data.decode("utf-8", "replace"))
        assert found is None or isinstance(found, Survey)
        return 1

    return data, check


def surveyed(rng: Random) -> Made:
    """Survey a log: no hour may be missing, whatever the file contains."""
    content: Content = rng.choice(("events", "messages"))
    made = document(rng, content)

    def check() -> int:
        from tests.dispatch_core.recording.reading import read

        folder = _folder()
        path = folder / made.name
        path.write_bytes(made.data)
        found = survey(path, "m")
        assert Survey.of_json(json.loads(json.dumps(found.as_json()))) == found
        result = read(made.data, made.name, threads=1)
        times = [row["t_us"] for row in result.events.to_pylist() if row["t_us"] is not None]
        times += [
            row["publish_time_ms"] * 1000
            for row in result.messages.to_pylist()
            if row["publish_time_ms"] is not None
        ]
        missing = {time // 3_600_000_000 for time in times} - {hour for hour, _rows, _mark in found.hours}
        assert not missing, missing
        return 2

    return made.data, check


def ingested(rng: Random) -> Made:
    """Make the files of an ingest task: counts must add up, and a good file between bad ones keeps all its rows."""
    contents: tuple[Content, ...] = ("events", "messages")
    hostile = [document(rng, rng.choice(contents)) for _ in range(2)]
    made = [good(rng, "events", at) for at in range(1, 9)]
    inside = [line for line in made if line.values["t_us"] < _EVER.end_us]
    clean = b"".join(line.data + b"\n" for line in inside)
    data = clean + b"".join(broken.data for broken in hostile)

    def check() -> int:
        folder = _folder()
        staging = folder / "staging"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        files = []
        for at, (name, packed) in enumerate(
            [
                (hostile[0].name, hostile[0].data),
                ("events.jsonl", clean),
                (hostile[1].name, hostile[1].data),
            ]
        ):
            (folder / str(at)).mkdir(exist_ok=True)
            path = folder / str(at) / name
            path.write_bytes(packed)
            files.append((f"{at}/{name}", path))
        reports = stage_files("00000", files, staging, _EVER)
        assert [report["name"] for report in reports] == [name for name, _ in files]
        for report in reports:
            counted = report["rows_accepted"] + report["rows_quarantined"] + report["rows_other_interval"]
            assert report["rows_in"] == counted, report
        assert reports[1]["rows_accepted"] == len(inside)
        rows = sum(report["rows"] for report in reports[0]["staged"])
        assert rows >= sum(report["rows_accepted"] + report["rows_quarantined"] for report in reports), rows
        return len(reports)

    return data, check


READERS: Final[dict[str, Callable[[Random], Made]]] = {
    "catalogue": catalogue,
    "manifest": manifest,
    "survey_kept": about,
    "survey": surveyed,
    "ingest": ingested,
}
