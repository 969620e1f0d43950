"""Find the loads of topics of which rows behind the last line could not be read, by the table ``quarantine``.

Refused rows are rare. Where there are none, this costs a look at that table; otherwise the names and places of the rows of
those intervals are read, and the names of later ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording import schema
from dispatch_core.recording.lost_rows import REST_OF_FILE, Refused
from dispatch_core.recording.stored_files import parquet_rows
from dispatch_core.recording.table_rows import INCARNATION
from spark_jobs.intervals import Interval
from spark_jobs.warehouse.delta_tables import Place, all_files, files_until

#: Column of a dispatcher's row: the incarnations of which rows behind the last line could not be read.
ENDS_LOST: Final = pa.field(
    "ends_lost", pa.list_(pa.struct([pa.field("broker", pa.string()), pa.field("incarnation", pa.int64())]))
)
_PLACE: Final = ["source_file", "source_line"]

Dispatcher = tuple[str, ...]
#: Broker and number of an incarnation.
Load = tuple[str | None, int]


def with_lost_ends(warehouse: Place, span: Interval) -> dict[Dispatcher, list[Load]]:
    """Return the dispatchers, with their loads, that have lost rows behind the last line of a load up to this interval.

    A refused row concerns the loads of its file whose last line stands before it. A file of which no row could be read
    concerns those of its folder.
    """
    quarantined: defaultdict[datetime, list[pa.Table]] = defaultdict(list)
    for path, start in files_until(warehouse, "quarantine", span):
        quarantined[start].append(parquet_rows(path, columns=_PLACE))
    lost: set[tuple[Dispatcher, Load]] = set()
    if not quarantined:
        return {}
    events = files_until(warehouse, "consumer_events", span)
    behind = sorted(set(all_files(warehouse, "consumer_events")) - {path for path, _start in events})
    following: dict[tuple[Dispatcher, str], int] = {}
    for place in _places(behind):
        at = place.dispatcher, place.file
        following[at] = min(place.first, following.get(at, REST_OF_FILE))
    for start in sorted({start for _path, start in events} | quarantined.keys()):
        if not lost and start not in quarantined:
            continue
        places = _places(path for path, of_interval in events if of_interval == start)
        # a load that goes on in a later interval shows what is missing between as a hole
        lost -= {(place.dispatcher, place.load) for place in places}
        if start in quarantined:
            refused = Refused.of(pa.concat_tables(quarantined[start]), {place.file for place in places})
            ends = {
                (place.dispatcher, place.load): place
                for place in sorted(places, key=lambda place: place.last_us)
                if place.last_us >= 0
            }
            firsts = _first_lines(places, following)
            lost |= {
                (dispatcher, load)
                for (dispatcher, load), end in ends.items()
                if refused.behind(end.file, end.last, _next_line(end, firsts[dispatcher, end.file]))
            }
    found: defaultdict[Dispatcher, list[Load]] = defaultdict(list)
    for dispatcher, load in sorted(lost, key=lambda end: (end[0], end[1][0] or "", end[1][1])):
        found[dispatcher].append(load)
    return dict(found)


class _Place(NamedTuple):
    """The lines of a load in a file: the first, the last event and its time, -1 = headers only."""

    dispatcher: Dispatcher
    load: Load
    file: str
    first: int
    last: int
    last_us: int


def _first_lines(
    places: Iterable[_Place], following: Mapping[tuple[Dispatcher, str], int]
) -> dict[tuple[Dispatcher, str], tuple[list[int], int]]:
    """Return by dispatcher and file the first line of each load, ascending, and the first one of later intervals."""
    firsts: defaultdict[tuple[Dispatcher, str], list[int]] = defaultdict(list)
    for place in places:
        firsts[place.dispatcher, place.file].append(place.first)
    return {at: (sorted(lines), following.get(at, REST_OF_FILE)) for at, lines in firsts.items()}


def _next_line(end: _Place, firsts: tuple[list[int], int]) -> int:
    """Return the next line of a dispatcher in the file in which a load of it ends, by ``_first_lines``."""
    lines, of_later_intervals = firsts
    at = bisect_right(lines, end.last)
    return min(lines[at] if at < len(lines) else REST_OF_FILE, of_later_intervals)


def _places(paths: Iterable[str]) -> list[_Place]:
    """Return the lines of each load in each log file, by the rows of data files."""
    names = [*schema.DISPATCHER_KEY, *INCARNATION, "source_file"]
    parts = []
    for path in paths:
        rows = parquet_rows(path, columns=[*names, "kind", "t_us", "source_line"])
        last = pc.if_else(pc.equal(rows["kind"], "header"), -1, rows["source_line"])
        rows = rows.append_column("last", last)
        parts.append(
            rows.group_by(names).aggregate([("source_line", "min"), ("last", "max"), ("t_us", "max")])
        )
    if not parts:
        return []
    joined = pa.concat_tables(parts).rename_columns([*names, "first", "last", "t_us"])
    ends = [("first", "min"), ("last", "max"), ("t_us", "max")]
    return [
        _Place(
            tuple(row[name] for name in schema.DISPATCHER_KEY),
            (row["broker"], row["incarnation"] or 0),
            row["source_file"] or "",
            REST_OF_FILE if row["first_min"] is None else row["first_min"],
            REST_OF_FILE if row["last_max"] is None else row["last_max"],
            -1 if row["t_us_max"] is None else row["t_us_max"],
        )
        for row in joined.group_by(names).aggregate(ends).to_pylist()
    ]
