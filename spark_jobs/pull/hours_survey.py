"""Survey a log file once for the hours (UTC) of its rows.

With a survey, an interval reads only the files that can have rows of it, and earlier rows are known before anything is
ingested. For Parquet, the column of times is read. For JSON lines, times are found by a regular expression, several times
faster than parsing. A block with lines that show no time is searched line by line. A file without any time is read by the
reader of the log format, which decides if its rows are valid (headers) or bad.

A survey may list an hour too many (of a bad line with a time), but never one too few.

Uses files, not Spark; ``spark_jobs.pull.segment_surveys`` keeps the surveys.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
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
from dispatch_core.recording.reader import Batch, read_file
from dispatch_core.recording.rows import RANGES
from spark_jobs.intervals import CLOCKS_AHEAD_US
from spark_jobs.location import Location

SURVEY_VERSION: Final = 2
HOUR_US: Final = 3_600_000_000

#: Per content: the field with a row's time, and the microseconds of its unit.
_TIME: Final[dict[Content, tuple[str, int]]] = {"events": ("t_us", 1), "messages": ("publish_time_ms", 1000)}
_LAST_US: Final = RANGES["t_us"][1]
#: Longest number that is read as a time; so many microseconds are more than thirty thousand years.
_DIGITS: Final = 18
#: A quotation mark inside a JSON string is escaped, so ``"t_us":`` in a line is a key. The ``,`` or ``}`` excludes
#: fractions.
_SHOWN: Final = {
    content: re.compile(rb'"%s"\s*:\s*(\d{1,%d})\s*[,}]' % (field.encode(), _DIGITS))
    for content, (field, _unit) in _TIME.items()
}


class SurveyError(DispatchAuditError):
    """The file's name is not that of a log file."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The hours and rows of one file.

    ``hours``: (hour since the epoch, rows, mark) in order. Hours with the same mark in two versions of a growing file have
    the same rows in both. ``untimed``: number of lines without a time (headers, footers, bad lines). ``carries``: the file
    has no row with a time but has other valid rows, which belong to every interval. ``complete``: the file ends with a
    whole line. ``first_minutes``: of a message log, the same as ``hours`` for the rows of the first ``CLOCKS_AHEAD_US`` of
    each hour.
    """

    hours: tuple[tuple[int, int, str], ...]
    untimed: int
    carries: bool
    complete: bool
    first_minutes: tuple[tuple[int, int, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Write the survey as JSON values."""
        return {
            "version": SURVEY_VERSION,
            "untimed": self.untimed,
            "carries": self.carries,
            "complete": self.complete,
            "hours": [list(hour) for hour in self.hours],
            "first_minutes": [list(hour) for hour in self.first_minutes],
        }

    @classmethod
    def of_json(cls, about: Any) -> Survey | None:
        """Read the result of ``as_json``; None if another version of this code wrote it."""
        if not isinstance(about, dict) or about.get("version") != SURVEY_VERSION:
            return None
        hours, first_minutes = (
            tuple((int(hour), int(rows), str(mark)) for hour, rows, mark in about[name])
            for name in ("hours", "first_minutes")
        )
        carries, complete = bool(about["carries"]), bool(about["complete"])
        return cls(hours, int(about["untimed"]), carries, complete, first_minutes)


def survey(path: Location | os.PathLike[str], mark: str, *, earlier: Survey | None = None) -> Survey:
    """Survey one file. ``mark`` identifies its contents; ``earlier`` is the survey of its earlier, shorter version.

    Does not raise for bad contents: a damaged file is surveyed up to the damage.
    """
    place = Location.of(path)
    known = file_format(place.name)
    if known is None:
        raise SurveyError(f"{place}: {place.name!r} is no log file name; nothing was surveyed")
    content, encoding = known
    seen = _Seen()
    if encoding == "parquet":
        _parquet(place, content, seen)
    else:
        _lines(place, content, encoding, seen)
    if not seen.hours:
        _carries(place, encoding, seen)
    before = earlier if earlier is not None and _goes_on(earlier, seen) else None
    hours = _marked(seen.hours, mark, () if before is None else before.hours)
    of_messages = seen.first_minutes if content == "messages" else Counter[int]()
    first_minutes = _marked(of_messages, mark, () if before is None else before.first_minutes)
    return Survey(hours, seen.untimed, seen.carries, seen.complete, first_minutes)


def _marked(
    rows_of: Counter[int], mark: str, earlier: Iterable[tuple[int, int, str]]
) -> tuple[tuple[int, int, str], ...]:
    """Give each hour the mark of the earlier version if it has as many rows there, else ``mark``."""
    marks = {(hour, rows): earlier_mark for hour, rows, earlier_mark in earlier}
    return tuple((hour, rows, marks.get((hour, rows), mark)) for hour, rows in sorted(rows_of.items()))


def _goes_on(earlier: Survey, seen: _Seen) -> bool:
    """True if the earlier version's rows are unchanged: it ended with a whole line, and no bad line was added."""
    return earlier.complete and earlier.untimed == seen.untimed


class _Seen:
    """Counts of a file while it is read."""

    def __init__(self) -> None:
        self.hours: Counter[int] = Counter()
        self.first_minutes: Counter[int] = Counter()
        self.untimed = 0
        self.carries = False
        self.complete = True

    def times(self, times: npt.NDArray[np.int64], unit_us: int) -> None:
        """Count rows with these times. A time that no calendar has is bad, and counts as none."""
        known = times[(times >= 0) & (times <= _LAST_US // unit_us)]
        self.untimed += len(times) - len(known)
        times = known
        if not len(times):
            return
        hours = times // (HOUR_US // unit_us)
        first = hours[times % (HOUR_US // unit_us) < CLOCKS_AHEAD_US // unit_us]
        for hour, rows in zip(*np.unique(first, return_counts=True), strict=True):
            self.first_minutes[int(hour)] += int(rows)
        low, high = int(hours.min()), int(hours.max())
        if low == high:
            self.hours[low] += len(hours)
            return
        found, counts = np.unique(hours, return_counts=True)
        for hour, rows in zip(found.tolist(), counts.tolist(), strict=True):
            self.hours[hour] += rows


def _lines(path: Location, content: Content, encoding: Encoding, seen: _Seen) -> None:
    field, unit_us = _TIME[content]
    shown = _SHOWN[content]
    try:
        with path.stream() as stream:
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
    """Find the time of a line whose key has escapes in it, or whose number has a fraction or an exponent."""
    if field.encode() not in line and b"\\u" not in line:
        return []
    try:
        number = int(json.loads(line)[field])
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return []
    text = str(number).encode()
    return [text] if number >= 0 and len(text) <= _DIGITS else []


def _parquet(path: Location, content: Content, seen: _Seen) -> None:
    field, unit_us = _TIME[content]
    try:
        with path.open() as stream, pq.ParquetFile(stream, pre_buffer=True) as file:
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


def _carries(path: Location, encoding: Encoding, seen: _Seen) -> None:
    """Read a file that shows no time with the reader of the log format, to see if it has valid rows."""
    try:
        with path.open() if encoding == "parquet" else path.stream() as stream:
            _count_valid(read_file(stream, name=path.name), seen)
    except OSError:
        seen.complete = False


def _count_valid(reading: Iterable[Batch], seen: _Seen) -> None:
    for batch in reading:
        if batch.table == "quarantine":
            continue
        field, unit_us = _TIME["messages" if batch.table == "messages" else "events"]
        column = batch.rows[field]
        seen.times(column.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False), unit_us)
        seen.carries = True
