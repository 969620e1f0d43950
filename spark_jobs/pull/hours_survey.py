"""Survey a log file once for the hours (UTC) of its rows.

An interval then reads the files that can hold rows of it and no others, and what earlier hours hold is known before anything
is ingested. Of Parquet the column of times is read, of JSON lines the times are found as text, several times faster than a
line is parsed. A block in which not every line shows its time is looked at line by line, and a file without any is given to
the one reader of the log format: only that says whether its rows carry something (headers) or are all bad.

A survey may name an hour too many (a line with a time that turns out to be bad), never one too few.

Knows files, not Spark; ``spark_jobs.pull.segments`` keeps what it says.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.files import (
    Content,
    DamagedFileError,
    Encoding,
    Limits,
    blocks,
    file_format,
)
from dispatch_core.recording.reader import read_file
from dispatch_core.recording.rows import RANGES

SURVEY_VERSION: Final = 1
HOUR_US: Final = 3_600_000_000

#: Per content: the field that holds a row's time, and how many microseconds its unit has.
_TIME: Final[dict[Content, tuple[str, int]]] = {"events": ("t_us", 1), "messages": ("publish_time_ms", 1000)}
_LAST_US: Final = RANGES["t_us"][1]
#: Of the longest number that is looked at; a time of this many microseconds is thirty thousand years away.
_DIGITS: Final = 18
#: A quotation mark inside a JSON string is escaped, so ``"t_us":`` in a line is a key. What ends it keeps fractions out.
_SHOWN: Final = {
    content: re.compile(rb'"%s"\s*:\s*(\d{1,%d})\s*[,}]' % (field.encode(), _DIGITS))
    for content, (field, _unit) in _TIME.items()
}


class SurveyError(DispatchAuditError):
    """A file that is no log file by its name."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The hours and rows of one file.

    ``hours``: (hour since the epoch, rows, mark) in order; hours with one mark in two versions of a growing file hold the
    same rows in both. ``untimed``: rows and lines that show no time (headers, footers, bad lines). ``carries``: a file
    without any timed row has rows all the same, which belong to every interval. ``complete``: it ends with a whole
    line.
    """

    hours: tuple[tuple[int, int, str], ...]
    untimed: int
    carries: bool
    complete: bool

    def as_json(self) -> dict[str, Any]:
        """For ``about.json``."""
        return {
            "version": SURVEY_VERSION,
            "untimed": self.untimed,
            "carries": self.carries,
            "complete": self.complete,
            "hours": [list(one) for one in self.hours],
        }

    @classmethod
    def of_json(cls, about: Any) -> Survey | None:
        """Read the result of ``as_json``; None if another version of this code wrote it."""
        if not isinstance(about, dict) or about.get("version") != SURVEY_VERSION:
            return None
        hours = tuple((int(hour), int(rows), str(mark)) for hour, rows, mark in about["hours"])
        return cls(hours, int(about["untimed"]), bool(about["carries"]), bool(about["complete"]))


def survey(path: Path, mark: str, *, earlier: Survey | None = None) -> Survey:
    """Survey one file. ``mark`` stands for its contents; ``earlier`` is the survey of a file that it begins with.

    Does not raise for what the file holds: what cannot be read on is surveyed up to there.
    """
    known = file_format(path.name)
    if known is None:
        raise SurveyError(f"{path}: {path.name!r} is no log file name; nothing was surveyed")
    content, encoding = known
    seen = _Seen()
    if encoding == "parquet":
        _parquet(path, content, seen)
    else:
        _lines(path, content, encoding, seen)
    if not seen.hours:
        _carries(path, seen)
    before = (
        {}
        if earlier is None or not _goes_on(earlier, seen)
        else {(hour, rows): kept for hour, rows, kept in earlier.hours}
    )
    hours = tuple((hour, rows, before.get((hour, rows), mark)) for hour, rows in sorted(seen.hours.items()))
    return Survey(hours, seen.untimed, seen.carries, seen.complete)


def _goes_on(earlier: Survey, seen: _Seen) -> bool:
    """Tell if the rows of the earlier version are unchanged: it ended with a whole line, and no bad line was added."""
    return earlier.complete and earlier.untimed == seen.untimed


class _Seen:
    """Counts of a file while it is read."""

    def __init__(self) -> None:
        self.hours: Counter[int] = Counter()
        self.untimed = 0
        self.carries = False
        self.complete = True

    def times(self, times: npt.NDArray[np.int64], unit_us: int) -> None:
        """Rows with these times. One that no calendar has is none: its row is bad."""
        known = times[(times >= 0) & (times <= _LAST_US // unit_us)]
        self.untimed += len(times) - len(known)
        times = known
        if not len(times):
            return
        hours = times // (HOUR_US // unit_us)
        low, high = int(hours.min()), int(hours.max())
        if low == high:
            self.hours[low] += len(hours)
            return
        found, counts = np.unique(hours, return_counts=True)
        for hour, rows in zip(found.tolist(), counts.tolist(), strict=True):
            self.hours[hour] += rows


def _lines(path: Path, content: Content, encoding: Encoding, seen: _Seen) -> None:
    field, unit_us = _TIME[content]
    shown = _SHOWN[content]
    try:
        with path.open("rb") as stream:
            for block in blocks(stream, encoding, Limits()):
                data = block.data
                found = shown.findall(data)
                if len(found) != data.count(b"\n") + (not data.endswith(b"\n")):
                    found = _line_by_line(data.split(b"\n"), shown, field, seen)
                seen.times(np.array(found, dtype=f"S{_DIGITS}").astype(np.int64), unit_us)
                seen.complete = data.endswith(b"\n")
    except (DamagedFileError, OSError):
        seen.complete = False


def _line_by_line(lines: Iterable[bytes], shown: re.Pattern[bytes], field: str, seen: _Seen) -> list[bytes]:
    found: list[bytes] = []
    for line in lines:
        times = shown.findall(line) or _written_otherwise(line, field)
        found += times
        seen.untimed += not times and bool(line.strip())
    return found


def _written_otherwise(line: bytes, field: str) -> list[bytes]:
    """The time of a line whose key has escapes in it, or whose number has a fraction or an exponent."""
    if field.encode() not in line and b"\\u" not in line:
        return []
    try:
        number = int(json.loads(line)[field])
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return []
    text = str(number).encode()
    return [text] if number >= 0 and len(text) <= _DIGITS else []


def _parquet(path: Path, content: Content, seen: _Seen) -> None:
    field, unit_us = _TIME[content]
    try:
        with pq.ParquetFile(path) as file:
            if field not in file.schema_arrow.names or not pa.types.is_integer(
                file.schema_arrow.field(field).type
            ):
                return
            for number in range(file.metadata.num_row_groups):
                column = file.read_row_group(number, columns=[field], use_threads=False)[field]
                seen.untimed += column.null_count
                seen.times(column.drop_null().cast(pa.int64()).to_numpy(), unit_us)
    except (OSError, pa.ArrowException):
        seen.complete = False


def _carries(path: Path, seen: _Seen) -> None:
    """Of a file that shows no time: have the reader say what it holds."""
    reading = read_file(path)
    for batch in reading:
        if batch.table == "quarantine":
            continue
        field, unit_us = _TIME["messages" if batch.table == "messages" else "events"]
        column = batch.rows[field]
        seen.times(column.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False), unit_us)
        seen.carries = True
