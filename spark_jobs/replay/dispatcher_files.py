"""Find the dispatchers of an interval, and the data files that hold the rows of each.

Read from the files' footers: a row group whose first and last name are the same holds nothing else, and of the others the
names alone are read. So this costs by the row groups, not by the rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.recording import schema
from dispatch_core.recording.stored_files import parquet_file
from dispatch_core.times import micros
from spark_jobs.intervals import Interval
from spark_jobs.replay.earlier_snapshots import EarlierSnapshots
from spark_jobs.replay.snapshot_files import Saved
from spark_jobs.warehouse.contracts import GROUP
from spark_jobs.warehouse.delta_tables import Place, data_files, files_until

Group = tuple[str, ...]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Tasks per core that look into files: enough that the last one to end keeps nobody waiting for long.
_TASKS_PER_CORE: Final = 4
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_NO_FILES: Final[dict[str, Any]] = {
    "events": 0,
    "event_files": [],
    "message_files": [],
    "snapshot_file": None,
    "snapshot_end_us": None,
    "idle": False,
}


def dispatchers(
    spark: SparkSession,
    warehouse: Place,
    span: Interval,
    earlier: EarlierSnapshots | None = None,
    *,
    since: datetime | None = None,
) -> list[dict[str, Any]]:
    """The dispatchers of the interval with the files of their log, those of one file beside each other.

    Each with ``cluster``, ``topic``, ``subscription``, ``events`` (its rows of ``consumer_events`` in these files),
    ``event_files`` and ``message_files`` (paths, in the order of the intervals; last those of ``messages_ahead``, of this
    interval alone). A dispatcher belongs to the interval when one of its lines (its header, too) or of its topic's messages
    does.

    With ``earlier`` those that have a snapshot there come with the files behind it alone, and with it (``snapshot_file``).
    Dispatchers of ``earlier`` that do not belong to the interval come, too: ``idle``, with ``snapshot_file`` and
    ``snapshot_end_us`` of the snapshot that they keep, if they have one.

    ``since``: also those of earlier intervals that start at this time or later.
    """
    since = span.start if since is None else since
    files = [
        (name, path, start)
        for name in ("consumer_events", "messages")
        for path, start in files_until(warehouse, name, span)
    ]
    # Their topics have lines in this interval. The path is behind those of the table ``messages``.
    ahead = [("messages_ahead", path, span.end) for path in data_files(warehouse, "messages_ahead", span)]
    saved = {} if earlier is None else earlier.saved
    end = _BEGINNING if earlier is None else earlier.end
    look = _Look()
    look.at(spark, [file for file in files if file[2] >= end] + ahead, since, span)
    known = {group for group in look.files if len(group) == len(schema.DISPATCHER_KEY)} | set(saved)
    here = {group for group in known if group in look.here or group[:2] in look.here}
    # Of dispatchers without a snapshot, or of which rows came late, files before the newest snapshots are needed, too.
    begins = {group: begin for group in here if (begin := _begin(saved.get(group))) < end}
    if begins:
        first = min(begins.values())
        before = _Look()
        before.at(spark, [file for file in files if first <= file[2] < end], since, span)
        look.join(before, begins.keys() | {group[:2] for group in begins})
    found = [look.row(group, saved.get(group)) for group in here]
    found.sort(key=lambda row: (row["event_files"], *(row[name] for name in schema.DISPATCHER_KEY)))

    def keeps(group: Group) -> bool:
        """Tell if nothing came between the snapshot and the interval's end."""
        return _begin(saved.get(group)) == end and group not in look.files and group[:2] not in look.files

    idle = sorted(group for group in known - here)
    return found + [_idle_row(group, saved.get(group) if keeps(group) else None) for group in idle]


def _begin(snapshot: Saved | None) -> datetime:
    """Return the start of the first interval that is read behind a snapshot."""
    return _BEGINNING if snapshot is None else snapshot.until


def _idle_row(group: Group, snapshot: Saved | None) -> dict[str, Any]:
    row = dict(zip(schema.DISPATCHER_KEY, group, strict=True)) | _NO_FILES | {"idle": True}
    if snapshot is not None:
        row |= {"snapshot_file": snapshot.path, "snapshot_end_us": micros(snapshot.end)}
    return row


class _Look:
    """Files of each dispatcher and topic with their rows, by the footers; ``here``: those of the interval."""

    def __init__(self) -> None:
        self.files: defaultdict[Group, dict[str, int]] = defaultdict(dict)
        self.here: set[Group] = set()
        self._starts: dict[str, datetime] = {}

    def at(
        self, spark: SparkSession, files: Sequence[tuple[str, str, datetime]], since: datetime, span: Interval
    ) -> None:
        """Look into files: table, path and start of the interval."""
        asked = [(name, path, since <= start <= span.start) for name, path, start in files]
        self._starts |= {path: start for _name, path, start in files}
        context = spark.sparkContext
        tasks = max(1, min(len(asked), context.defaultParallelism * _TASKS_PER_CORE))
        for path, now, groups in context.parallelize(asked, tasks).map(_look).collect():
            for group, count in groups:
                self.files[group][path] = count
                if now:
                    self.here.add(group)

    def join(self, other: _Look, groups: Set[Group]) -> None:
        """Take what another look found about some groups."""
        self._starts |= other._starts
        for group in groups & other.files.keys():
            self.files[group] |= other.files[group]

    def row(self, group: Group, snapshot: Saved | None) -> dict[str, Any]:
        """Return the row of a dispatcher, with the snapshot that it goes on from and the files behind it."""
        events, messages = (self._since(of, _begin(snapshot)) for of in (group, group[:2]))
        row = dict(zip(schema.DISPATCHER_KEY, group, strict=True)) | _NO_FILES
        row |= {"events": sum(events.values()), "event_files": sorted(events)}
        row |= {"message_files": sorted(messages)}
        return row if snapshot is None else row | {"snapshot_file": snapshot.path}

    def _since(self, group: Group, begin: datetime) -> dict[str, int]:
        files = self.files.get(group, {})
        return {path: rows for path, rows in files.items() if self._starts[path] >= begin}


def _look(asked: tuple[str, str, bool]) -> tuple[str, bool, list[tuple[tuple[str, ...], int]]]:
    """One file, in a Spark task: what it holds."""
    table, path, now = asked
    return path, now, sorted(groups_in(path, GROUP[table]).items())


def groups_in(path: str, group: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Count the rows of each group (values of the text columns ``group``) in a Parquet file."""
    rows: Counter[tuple[str, ...]] = Counter()
    # The names come in runs: as dictionaries they are read, and counted, in a fraction of the time.
    with parquet_file(path, read_dictionary=list(group)) as file:
        leaves = [file.metadata.schema.column(at).path for at in range(file.metadata.num_columns)]
        places = [leaves.index(name) for name in group]
        for number in range(file.metadata.num_row_groups):
            row_group = file.metadata.row_group(number)
            only = tuple(_only_value(row_group.column(place).statistics) for place in places)
            if None not in only:
                rows[only] += row_group.num_rows
                continue
            names = file.read_row_group(number, columns=list(group), use_threads=False).unify_dictionaries()
            counted = names.group_by(list(group), use_threads=False).aggregate([([], "count_all")])
            for row in counted.to_pylist():
                rows[tuple(row[name] for name in group)] += row["count_all"]
    return rows


def _only_value(statistics: Any) -> Any:
    """The one value that a column has in a row group; None where there are several, or the footer does not say."""
    if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
        return None
    return statistics.min if statistics.min == statistics.max else None
