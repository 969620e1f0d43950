"""Cut a recording into segment files over several intervals, like a recorder that begins a new file at times.

All times, of events and of published messages, are scaled by one factor in each interval, so that the recording fills the
intervals exactly. Order and ``seq`` do not change. Lines name their dispatcher; the header is in the first segment.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.files import Content, RecordingSource, file_format
from dispatch_core.recording.reader import FileCounts, read_file
from dispatch_core.recording.rewrite import SCHEMAS, new_file, stem
from dispatch_core.recording.writer import RowFile

#: Per content: the column of a row's time, and how many microseconds its unit has.
_TIME: Final[dict[Content, tuple[str, int]]] = {"events": ("t_us", 1), "messages": ("publish_time_ms", 1000)}
#: More files than this of one kind are not written.
MOST_SEGMENTS: Final = 1000


class CutError(DispatchAuditError):
    """A recording without times, or a number of intervals or segments that cannot be."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The new times of a recording: intervals of equal length from ``start_us`` (microseconds UTC) on, each in segments.

    ``at_us``: the recorded times at which the second, third, ... interval begins; without them all are equally long.
    """

    start_us: int
    interval_us: int
    intervals: int
    segments_per_interval: int = 1
    at_us: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if (
            min(self.interval_us, self.intervals, self.segments_per_interval) < 1
            or self.segments > MOST_SEGMENTS
        ):
            raise CutError(
                f"{self.intervals} intervals of {self.interval_us} us in {self.segments_per_interval} segments each: take 1 "
                f"to {MOST_SEGMENTS} segments in all, of intervals of some length; nothing was written"
            )
        if self.at_us and (
            len(self.at_us) != self.intervals - 1 or list(self.at_us) != sorted(set(self.at_us))
        ):
            raise CutError(
                f"{self.intervals} intervals have {self.intervals - 1} moments between them, one after the other; "
                f"{len(self.at_us)} are given: {', '.join(map(str, self.at_us))}; nothing was written"
            )

    @property
    def segments(self) -> int:
        """The number of segments in all intervals."""
        return self.intervals * self.segments_per_interval

    def segment_of(self, times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The segment, from 1, of times of the cut."""
        interval, within = np.divmod(times_us - self.start_us, self.interval_us)
        return (
            interval * self.segments_per_interval
            + within * self.segments_per_interval // self.interval_us
            + 1
        )

    def times(self, times_us: npt.NDArray[np.int64], first_us: int, last_us: int) -> npt.NDArray[np.int64]:
        """Scale recorded times to the times of the cut; their order does not change."""
        ends = self.at_us or tuple(
            first_us + (last_us + 1 - first_us) * number // self.intervals
            for number in range(1, self.intervals)
        )
        if ends and not first_us < ends[0] <= ends[-1] <= last_us:
            raise CutError(
                f"the moments {', '.join(map(str, ends))} do not lie within {first_us} to {last_us}, where the recording "
                "begins and ends; nothing was written"
            )
        knots = np.array([first_us, *ends, last_us + 1], dtype=np.int64)
        interval = np.searchsorted(knots, times_us, side="right") - 1
        length_us = np.maximum(np.diff(knots), 1)[interval]
        within = np.floor((times_us - knots[interval]) * (self.interval_us / length_us)).astype(np.int64)
        # Rounding must not move the last time of an interval beyond its end.
        return self.start_us + interval * self.interval_us + np.minimum(within, self.interval_us - 1)


def cut_recording(source: RecordingSource, folder_of: dict[int, Path], form: str, cut: Cut) -> FileCounts:
    """Write the recording's segments, each (from 1) into its folder in ``folder_of``; returns the counts of its lines.

    The files are named ``<stem>-<segment>.<form>``. Raises ``CutError`` if no line has a time.
    """
    files = (*source.messages, *source.events)
    first_us, last_us = _bounds(source.name, files)
    counts = FileCounts()
    for file in files:
        reading = read_file(file)
        known = file_format(file.name)
        assert known is not None
        content = known[0]
        column, unit_us = _TIME[content]
        with ExitStack() as stack:
            out: dict[int, RowFile] = {}
            for batch in reading:
                if batch.table == "quarantine":
                    continue
                rows = pa.Table.from_batches([batch.rows]).select(SCHEMAS[content].names)
                at = rows.column_names.index(column)
                timed = rows[column].is_valid().to_numpy(zero_copy_only=False)
                times = pc.fill_null(rows[column], first_us // unit_us).to_numpy()
                moved = cut.times(times * unit_us, first_us, last_us)
                rows = rows.set_column(at, column, pa.array(moved // unit_us, mask=~timed))
                number = cut.segment_of(moved // unit_us * unit_us)
                for segment in np.unique(number).tolist():
                    if segment not in out:
                        folder_of[segment].mkdir(parents=True, exist_ok=True)
                        path = folder_of[segment] / f"{stem(file.name)}-{segment:03d}.{form}"
                        out[segment] = stack.enter_context(new_file(path, content))
                    out[segment].write(rows.filter(pa.array(number == segment)))
        counts.add(reading.counts)
    return counts


def _bounds(name: str, files: tuple[Path, ...]) -> tuple[int, int]:
    """The first and the last time in the files, in microseconds."""
    seen: Counter[str] = Counter()
    bounds = []
    for file in files:
        for batch in read_file(file):
            seen[batch.table] += batch.rows.num_rows
            if batch.table == "quarantine":
                continue
            column, unit_us = _TIME[batch.table]
            ends = pc.min_max(batch.rows[column]).as_py()
            if ends["min"] is not None:
                bounds += [ends["min"] * unit_us, ends["max"] * unit_us]
    if not bounds:
        raise CutError(
            f"{name}: not one line has a time ({dict(seen) or 'no lines'}); nothing was written. Cut a recording with events"
        )
    return min(bounds), max(bounds)
