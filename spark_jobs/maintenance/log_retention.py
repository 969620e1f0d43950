"""Remove logs of long ago from the tables and the landing; what is left begins with checkpoints.

A dispatcher's state is the fold of its log from its beginning. Before old lines go, each dispatcher's state at the end of
the last interval to be removed, as its snapshot has it, is written as a checkpoint line
(``dispatch_core.replay.beginnings``), with the entries that it needs. These few rows take the place of the last removed
interval. So later intervals are computed

* from their snapshots, while these hold: with the results that they had;
* from the checkpoint, by another version of the code or with other limits.

The log of a dispatcher without such a state stays as it is: a trace, one that is replayed as a whole, one of which the
snapshot is missing or of another version. An interval that ended before is not computed again (``Ledger.check_kept``).

Each table is changed by one commit. Where this ends in between, the next call goes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import pyarrow as pa

from dispatch_core.arrays.columns import marked
from dispatch_core.errors import SnapshotError, describe
from dispatch_core.recording.checkpoint import Position
from dispatch_core.recording.resumed_parts import is_deleted
from dispatch_core.recording.rows_behind import lines_behind
from dispatch_core.recording.schema import DISPATCHER_KEY
from dispatch_core.recording.shared_groups import run_starts
from dispatch_core.recording.stored_files import parquet_file
from dispatch_core.recording.stream import Cut
from dispatch_core.replay.beginnings import beginning_of
from dispatch_core.times import micros
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.pull.hours_survey import HOUR_US
from spark_jobs.pull.segment_surveys import known_surveys, survey_key
from spark_jobs.pull.segments import Segment, read_catalogue
from spark_jobs.replay.earlier_snapshots import earlier_snapshots
from spark_jobs.replay.snapshot_files import Saved, state_of
from spark_jobs.warehouse.contracts import GROUP, ORDER, conform, file_schema
from spark_jobs.warehouse.delta_tables import files_until, record_run, replace_until, write_rows
from spark_jobs.warehouse.run_ledger import REMOVAL, Ledger

#: Tables of which the rows of removed intervals go, beside those of the logs themselves.
_BESIDE_LOGS: Final = ("messages_ahead", "quarantine", "inputs")

#: Behind all positions: of a topic whose subscriptions are all deleted no entry is needed.
_BEHIND_ALL: Final = (1 << 62, 0)

Group = tuple[str, ...]
Note = Callable[[str, str, int, int], None]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The part of a dispatcher's old log that is kept.

    Attributes:
        since: lines of intervals from then on are kept; earlier ones if they lie behind ``cut``.
        cut: the place that ``lines`` stand for; ``None`` = nothing stands for any line, and all are kept.
        loads: broker and number of the incarnations up to the place.
        lines: the checkpoint, and ``limit`` lines.
        needed_from: the first position of which the entry is kept; ``None`` = all are.
        is_deleted: the subscription is deleted at the place: no line before it is needed.
    """

    since: datetime
    cut: Cut | None = None
    loads: Sequence[tuple[str | None, int]] = ()
    lines: pa.Table | None = None
    needed_from: Position | None = None
    is_deleted: bool = False


_EVERYTHING: Final = _Kept(datetime.min.replace(tzinfo=UTC))


def expired_logs(ledger: Ledger, now: datetime, days: int | None) -> Interval | None:
    """Find the last ingested interval that ended more than ``days`` ago, and that no other one reaches beyond.

    ``None``: there is none, or its logs are removed already.
    """
    if days is None:
        return None
    limit = (now - timedelta(days=days)).replace(microsecond=0)
    following = Interval(limit, limit + timedelta(seconds=1))
    for span in ledger.intervals_before(following):
        if all(
            start >= span.end_us or end <= span.end_us
            for start, (end, digest) in ledger.ingested().items()
            if digest
        ):
            return None if ledger.removals().get(span.end) else span
    return None


def remove_logs(
    home: Location, last: Interval, *, dry_run: bool, note: Note, report: Callable[[str], None]
) -> None:
    """Remove logs up to the end of an interval, and let what is left begin with checkpoints; report what goes.

    ``note(kind, what, size_bytes, count)`` is called for all that is removed, or would be (``dry_run``). Nothing is
    removed where no snapshot tells the state of the dispatchers.
    """
    warehouse = home / "warehouse"
    ledger, began = Ledger(warehouse), datetime.now(UTC)
    earlier = earlier_snapshots(warehouse, ledger, Interval(last.end, last.end + timedelta(seconds=1)), None)
    if earlier is None:
        report(
            f"retain: logs up to {last.end.isoformat()} stay: no snapshot of an interval up to then can be used. Run the "
            "newest interval again with this version, then maintenance"
        )
        return
    kept = {group: _kept(group, saved, report) for group, saved in earlier.saved.items()}
    events, messages = (files_until(warehouse, name, last) for name in ("consumer_events", "messages"))
    if dry_run:
        for name, files in (("consumer_events", events), ("messages", messages)):
            _note_files(f"rows of {name}", [path for path, _start in files], last, note)
        _remove_landed(home / "landing", last, note, dry_run=True)
        return
    # From now on no run computes the intervals that lose their logs.
    summary = {"interval_start": last.start.isoformat(), "interval_end": last.end.isoformat()}
    summary |= {"stage": REMOVAL, "logs_from": last.end.isoformat()}
    record_run(warehouse, REMOVAL, last, began, summary | {"done": False})
    # Entries first would leave lines without the entries that they name.
    lines = _lines_kept(events, kept)
    _replace(warehouse, "consumer_events", lines, last, note)
    _replace(warehouse, "messages", _entries_kept(messages, _needed(kept, lines)), last, note)
    for name in _BESIDE_LOGS:
        gone = replace_until(warehouse, name, last, [])
        _note_files(f"rows of {name}", gone, last, note)
    _remove_landed(home / "landing", last, note, dry_run=False)
    record_run(warehouse, REMOVAL, last, began, summary | {"done": True})


def _kept(group: Group, saved: Saved | None, report: Callable[[str], None]) -> _Kept:
    """Decide what is kept of a dispatcher's log."""
    if saved is None:
        return _EVERYTHING
    try:
        state = state_of(saved.path, dict(zip(DISPATCHER_KEY, group, strict=True)))
    except SnapshotError as error:
        report(f"retain: the log of {' '.join(group)} stays: {describe(error)}")
        return _EVERYTHING
    if state is None:
        return _EVERYTHING
    beginning = beginning_of(state)
    loads = [(load.broker, load.number) for load in state.loads]
    deleted = state.cut.last_seq >= 0 and is_deleted(state.rare)
    return _Kept(saved.until, state.cut, loads, beginning.lines, beginning.needed_from, deleted)


def _lines_kept(files: Iterable[tuple[str, datetime]], kept: Mapping[Group, _Kept]) -> dict[Group, pa.Table]:
    """Return the lines of each dispatcher that stay: a header, what stands for lines before the place, those behind it."""
    logs: dict[Group, _Log] = {}
    for group, rows, start in _runs(files, "consumer_events", DISPATCHER_KEY):
        of_group = kept.get(group, _EVERYTHING)
        logs.setdefault(group, _Log()).add(rows, of_group, start)
    found = {group: log.lines(kept.get(group, _EVERYTHING)) for group, log in logs.items()}
    return {group: rows for group, rows in found.items() if rows.num_rows}


class _Log:
    """The old log of a dispatcher while its files are read."""

    def __init__(self) -> None:
        self._behind: list[pa.Table] = []
        #: The last one before the place, of the incarnation that goes on there.
        self._header: pa.Table | None = None
        self._before: list[pa.Table] = []  # only of a subscription that is deleted at the place

    def add(self, rows: pa.Table, of_group: _Kept, start: datetime) -> None:
        """Take the next rows, of the interval that begins at ``start``."""
        cut = of_group.cut
        if cut is None or start >= of_group.since:
            self._behind.append(rows)
            return
        behind = lines_behind(rows, cut, of_group.loads)
        self._behind.append(rows.filter(pa.array(behind)))
        if of_group.is_deleted:
            self._before.append(rows.filter(pa.array(~behind)))
        headers = rows.filter(pa.array(marked(rows["kind"], "header") & ~behind))
        goes_on = of_group.loads[cut.log] if cut.log < len(of_group.loads) else None
        for row in range(headers.num_rows):
            if (headers["broker"][row].as_py(), headers["incarnation"][row].as_py() or 0) == goes_on:
                self._header = headers.slice(row, 1)

    def lines(self, of_group: _Kept) -> pa.Table:
        """Return the lines that stay; none of a subscription that was deleted and not made again."""
        schema = file_schema("consumer_events")
        behind = [rows for rows in self._behind if rows.num_rows]
        first = [self._header] if self._header is not None else []
        if of_group.lines is not None:
            first.append(of_group.lines)
        if of_group.is_deleted:
            # The line of the deletion has to stay if the subscription was made again.
            first = self._before if behind else []
        tables = [conform(rows, schema) for rows in (*first, *behind)]
        return pa.concat_tables([schema.empty_table(), *tables])


def _entries_kept(
    files: Iterable[tuple[str, datetime]], needed: Mapping[Group, Position | None]
) -> dict[Group, pa.Table]:
    """Return the entries of each topic that stay."""
    parts: defaultdict[Group, list[pa.Table]] = defaultdict(list)
    for topic, rows, _start in _runs(files, "messages", GROUP["messages"]):
        position = needed.get(topic)
        if position is not None:
            ledgers, entries = (rows[name].to_numpy() for name in ("ledger_id", "entry_id"))
            ledger, entry = position
            rows = rows.filter(pa.array((ledgers > ledger) | ((ledgers == ledger) & (entries >= entry))))  # noqa: PLW2901
        if rows.num_rows:
            parts[topic].append(conform(rows, file_schema("messages")))
    order = [(name, "ascending") for name in ORDER["messages"]]
    return {topic: pa.concat_tables(tables).sort_by(order) for topic, tables in parts.items()}


def _needed(kept: Mapping[Group, _Kept], lines: Mapping[Group, pa.Table]) -> dict[Group, Position | None]:
    """Return for each topic the first position that some dispatcher of it needs; ``None`` = all are needed."""
    of_topic: defaultdict[Group, list[Position | None]] = defaultdict(list)
    for group, of_group in kept.items():
        if of_group.is_deleted:
            of_topic[group[:2]].append(None if group in lines else _BEHIND_ALL)
        else:
            of_topic[group[:2]].append(of_group.needed_from)
    for group in lines.keys() - kept.keys():
        of_topic[group[:2]].append(None)
    return {
        topic: None if None in positions else min(position for position in positions if position is not None)
        for topic, positions in of_topic.items()
    }


def _runs(
    files: Iterable[tuple[str, datetime]], name: str, group: Sequence[str]
) -> Iterator[tuple[Group, pa.Table, datetime]]:
    """Yield the rows of each dispatcher, or topic, in the order of the files, with the start of their interval."""
    wanted = file_schema(name)
    for path, start in files:
        with parquet_file(path) as file:
            for number in range(file.num_row_groups):
                rows = conform(file.read_row_group(number, use_threads=False), wanted)
                keys = [rows[column].combine_chunks() for column in group]
                edges = [*run_starts(keys).tolist(), rows.num_rows]
                for begin, end in pairwise(edges):
                    run = rows.slice(begin, end - begin)
                    yield tuple(run[column][0].as_py() for column in group), run, start


def _replace(
    warehouse: Location, name: str, rows: Mapping[Group, pa.Table], last: Interval, note: Note
) -> None:
    """Put the rows that stay in the place of all rows of a table up to the end of the logs' last interval."""
    tables = [rows[group] for group in sorted(rows)]
    staged = write_rows(warehouse, name, last, pa.concat_tables([file_schema(name).empty_table(), *tables]))
    _note_files(f"rows of {name}", replace_until(warehouse, name, last, [staged]), last, note)


def _note_files(kind: str, paths: Sequence[str], last: Interval, note: Note) -> None:
    if paths:
        size_bytes = sum(Location.of(path).size_bytes() or 0 for path in paths)
        note(kind, f"up to {last.end.isoformat()}", size_bytes, len(paths))


def _remove_landed(landing: Location, last: Interval, note: Note, *, dry_run: bool) -> None:
    """Remove landed files of which all rows belong to removed intervals; the catalogue goes on naming them."""
    for segment in removed_segments(landing, last.end):
        place = segment.path(landing)
        if place.exists():
            note("landed files", segment.name, segment.size_bytes, 1)
            if not dry_run:
                place.delete()


def removed_segments(landing: Location, logs_from: datetime) -> list[Segment]:
    """List the landed files of which all rows are of before a time."""
    first_hour = micros(logs_from) // HOUR_US
    known = known_surveys(landing)
    old: dict[Location, Segment] = {}
    others: set[Location] = set()
    for files in read_catalogue(landing).values():
        for segment in files.values():
            survey = known.get(survey_key(segment))
            hours = () if survey is None else survey.hours
            if hours and max(hour for hour, _rows, _mark in hours) < first_hour:
                old.setdefault(segment.path(landing), segment)
            else:
                others.add(segment.path(landing))
    return [segment for place, segment in old.items() if place not in others]
