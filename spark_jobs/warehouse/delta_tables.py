"""Read and write the Delta tables of the warehouse, without a JVM.

Each table has the columns of its contract (``contracts.CONTRACTS``). Result tables are partitioned by ``interval_start``.
``replace_interval`` replaces all rows of one interval in one Delta commit: a reader sees the earlier rows or the new ones.
Run ids and clock times of processing are only in the tables ``contracts.APPENDED``; all others depend on the logs alone.

Tasks write Parquet files under their final names into the tables' folders; a commit names those that count. Others, of runs
that died or came second, are never read, and maintenance removes them (Delta's VACUUM). No file is renamed or locked, so a
warehouse may be a folder or a prefix of an object store. Of two runs that publish the same interval the second fails its
commit (``Publication``).
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from dispatch_core import tables
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.stored_files import parquet_file
from dispatch_core.times import from_micros
from spark_jobs.intervals import Interval
from spark_jobs.location import NOT_IN_A_PATH, Location
from spark_jobs.warehouse.contracts import (
    APPENDED,
    CONTRACTS,
    PARTITION,
    RUN_METADATA,
    StagedFile,
    conform,
    data_file,
    file_schema,
    joined_file,
    older_schema,
    same_type,
    stored_schema,
)
from spark_jobs.warehouse.staging import write_file

#: A folder or URL.
Place = Location | str | os.PathLike[str]

#: ``compact`` makes files of at most so many rows, and leaves files of at least half of it as they are.
ROWS_PER_FILE: Final = 1_000_000
#: Commits that others win before one gives up. Delta itself tries again beside writers of other intervals.
_COMMIT_ATTEMPTS: Final = 20
#: Opening a table reads every commit since its last checkpoint: one in ten commits writes one.
_CONFIGURATION: Final = {"delta.enableDeletionVectors": "false", "delta.checkpointInterval": "10"}
#: Every run of a stage adds a file to ``run_metadata``, and all are read by the next one.
_MOST_APPENDED: Final = 64
#: Files of an object store that are handled at the same time.
_AT_ONCE: Final = 8


class WarehouseError(DispatchAuditError):
    """A table that is missing, has other columns than its contract, or is being written by another run."""


class PublishedMeanwhileError(WarehouseError):
    """Another run published the same interval; what this one staged does not count, and another attempt may succeed."""

    another_attempt_may_do = True


def table_path(warehouse: Place, name: str) -> Location:
    """The place of one Delta table."""
    return Location.of(warehouse) / name


def open_delta(place: Location) -> DeltaTable:
    """Open the Delta table at a place, in its newest version."""
    return DeltaTable(place.url, storage_options=place.storage_options)


def is_delta(place: Location) -> bool:
    """True if a Delta table was created at a place."""
    return (place / "_delta_log").exists()


def create_delta(
    place: Location,
    schema: pa.Schema,
    *,
    partition_by: list[str] | None = None,
    configuration: Mapping[str, str | None] | None = None,
) -> None:
    """Create a Delta table where there is none; of several processes that do so one succeeds, and that is enough."""
    if place.local is not None:
        place.local.mkdir(parents=True, exist_ok=True)
    try:
        DeltaTable.create(
            place.url,
            schema=schema,
            mode="ignore",
            partition_by=partition_by,
            configuration=dict(configuration or {}) | _CONFIGURATION,
            storage_options=place.storage_options,
            raise_if_key_not_exists=False,
        )
    except (CommitFailedError, DeltaError):
        if not is_delta(place):
            raise


def has_table(warehouse: Place, name: str) -> bool:
    """True if the table was written at least once."""
    return is_delta(table_path(warehouse, name))


def ensure_table(warehouse: Place, name: str) -> DeltaTable:
    """Open a table, after creating it from its contract if it is missing.

    A table of an older home may lack the columns of ``contracts.ADDED`` until an interval is written to it. Raises
    ``WarehouseError`` for a table with other columns, and for a path that Delta or Spark would misread.
    """
    path = table_path(warehouse, name)
    if bad := sorted(set(path.url.partition("://")[2] or path.url) & NOT_IN_A_PATH):
        raise WarehouseError(
            f"{warehouse}: Delta and Spark misread a path that contains {' '.join(bad)}; nothing was written. "
            "Choose a folder without these characters in its path"
        )
    if not is_delta(path):
        create_delta(
            path,
            stored_schema(name),
            partition_by=None if name in APPENDED else [PARTITION],
            configuration={tables.VERSION_KEY: tables.VERSION},
        )
    table = _opened(path)
    check_columns(
        name, [(field.name, field.type) for field in pa.schema(table.schema().to_arrow())], where=str(path)
    )
    return table


def _opened(path: Location) -> DeltaTable:
    """Open a table. Raises ``TablesVersionError`` if a later major version made it."""
    table = open_delta(path)
    tables.check_version(table.metadata().configuration, str(path))
    return table


def check_columns(name: str, columns: list[tuple[str, pa.DataType]], *, where: str) -> None:
    """Raise ``WarehouseError`` unless the columns are the contract's, in its order and of its types."""
    wanted = [(field.name, field.type) for field in stored_schema(name)]
    if any(_same_columns(columns, schema) for schema in (stored_schema(name), older_schema(name))):
        return
    have_names, want_names = {column for column, _kind in columns}, {column for column, _kind in wanted}
    others = [
        f"{column} is {kind}, not {dict(wanted)[column]}"
        for column, kind in columns
        if column in want_names and not same_type(kind, dict(wanted)[column])
    ]
    raise WarehouseError(
        f"{where}: table {name} has other columns than this version writes: missing {sorted(want_names - have_names)}, "
        f"extra {sorted(have_names - want_names)}, types {others}; nothing was written. Move the warehouse away and "
        "run the intervals again, or use the version that made it"
    )


def _same_columns(columns: list[tuple[str, pa.DataType]], wanted: pa.Schema) -> bool:
    return [column for column, _kind in columns] == wanted.names and all(
        same_type(have, want.type) for (_name, have), want in zip(columns, wanted, strict=True)
    )


def _with_all_columns(table: DeltaTable, name: str, path: Location) -> DeltaTable:
    """Give a table of an older home the columns that were added since; return it opened again."""
    there = {field.name for field in table.schema().fields}
    added = [field for field in stored_schema(name) if field.name not in there]
    if not added:
        return table
    with suppress(CommitFailedError):  # another process adds them at the same time
        table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)
    return _opened(path)


@dataclass(frozen=True, slots=True)
class Publication:
    """The right of one run to publish an interval: valid while no other run has published it since this one began.

    Each commit of a run writes its ``number`` into the table's log, as the version of an application transaction that is
    named after the interval. A run notes the numbers that it finds when it begins (``before``). A table that has another
    one at the commit was published by somebody else meanwhile. If two commits come at once, Delta accepts one of them.

    A run that is repeated under its own number goes on where it was: what has this number already is not committed again.
    """

    warehouse: Location
    span: Interval
    number: int
    before: dict[str, int | None]
    _staged: list[StagedFile] = field(default_factory=list, repr=False)
    _committed: set[Location] = field(default_factory=set, repr=False)

    @classmethod
    def begin(cls, warehouse: Place, span: Interval, names: Iterable[str]) -> Publication:
        """Begin a run that will publish the interval in these tables."""
        place = Location.of(warehouse)
        # Later runs have greater numbers; two of one microsecond differ by chance.
        number = (time.time_ns() // 1000 << 10) + random.randrange(1 << 10)  # noqa: S311 - not a secret
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            listed = list(names)
            before = dict(
                zip(listed, threads.map(lambda name: _published(place, name, span), listed), strict=True)
            )
        return cls(place, span, number, before)

    @classmethod
    def of_json(cls, warehouse: Place, span: Interval, values: Mapping[str, Any]) -> Publication:
        """Read the result of ``as_json``."""
        return cls(Location.of(warehouse), span, values["number"], dict(values["before"]))

    def as_json(self) -> dict[str, Any]:
        """Write it as JSON values, for a run whose steps are done by several processes."""
        return {"number": self.number, "before": self.before}

    @property
    def state(self) -> Location:
        """A folder for what the tasks of this run must know of each other."""
        return self.warehouse / "_staging" / f"run-{self.span.name}-{self.number}"

    def staged(self, files: Iterable[StagedFile]) -> None:
        """Note files that tasks have written for this run."""
        self._staged.extend(files)

    def check(self) -> None:
        """Raise ``PublishedMeanwhileError`` if another run has published the interval since this one began."""
        for name in self.before:
            self.is_done(_published(self.warehouse, name, self.span), name)

    def replace(self, name: str, staged: Sequence[StagedFile], keep: Collection[str] = ()) -> int:
        """Replace the interval's rows of one table, like ``replace_interval``."""
        self.staged(staged)
        paths = {file.path for file in staged}
        # From now on a commit may name them, even if its answer is lost on the way.
        self._committed.update(paths)
        try:
            return replace_interval(self.warehouse, name, self.span, staged, run=self, keep=keep)
        except PublishedMeanwhileError:
            self._committed.difference_update(paths)
            raise

    def is_done(self, published: int | None, name: str) -> bool:
        """True if this run has committed the table already: ``published`` is the number of the last run that has.

        Raises ``PublishedMeanwhileError`` if that is another one, which began to publish after this run had begun.
        """
        if published == self.number:
            return True
        if published != self.before.get(name):
            raise PublishedMeanwhileError(
                f"{self.warehouse}: another run published {name} of {self.span.name} while this one was at work; its rows "
                "stay, and what this run made is not used. Run it again if it should count"
            )
        return False

    def clean(self, keep: Iterable[StagedFile] = ()) -> None:
        """Remove what this run has staged and not committed, except for ``keep``; nothing reads it."""
        kept = self._committed.union(file.path for file in keep)
        delete_files({file.path for file in self._staged} - kept)


@contextmanager
def publishing(warehouse: Place, span: Interval, names: Iterable[str]) -> Iterator[Publication]:
    """Begin to publish an interval in some tables; at the end remove what was staged and not committed."""
    run = Publication.begin(warehouse, span, names)
    try:
        yield run
    finally:
        run.clean()
        run.state.delete_folder()


def _transaction(span: Interval) -> str:
    """Name the application transaction of an interval."""
    return f"{PARTITION}={span.start.isoformat()}"


def _published(warehouse: Location, name: str, span: Interval) -> int | None:
    """Return the number of the run that published the interval last; None if there is none."""
    path = warehouse / name
    return open_delta(path).transaction_version(_transaction(span)) if is_delta(path) else None


def delete_files(files: Iterable[Location]) -> None:
    """Remove files, several at a time."""
    listed = list(files)
    if listed:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(Location.delete, listed))


def replace_interval(
    warehouse: Place,
    name: str,
    span: Interval,
    staged: Iterable[StagedFile],
    *,
    run: Publication | None = None,
    keep: Collection[str] = (),
) -> int:
    """Replace the interval's rows of one table by the staged files, in one Delta commit; return the number of rows.

    The files stand in the table's folder already and must have exactly the columns of ``file_schema``. They are read in the
    order of their names (``contracts.data_file``), because a log may continue from one file to the next. Without a ``run``
    the interval is replaced whoever else publishes it. ``keep``: data files of the interval that stay; of them the rows are
    not counted. Raises ``PublishedMeanwhileError`` if another run has published it since ``run`` began, or one of ``keep``
    is gone, and ``deltalake.exceptions.CommitFailedError`` if other writers win ``_COMMIT_ATTEMPTS`` times; the interval
    then has its earlier rows.
    """
    root = table_path(warehouse, name)
    table = _with_all_columns(ensure_table(warehouse, name), name, root)
    files = [file for file in staged if file.rows]
    adds = _additions(root, span, files)
    rows = sum(file.rows for file in files)
    for attempt in range(1, _COMMIT_ATTEMPTS + 1):
        if run is not None and run.is_done(table.transaction_version(_transaction(span)), name):
            break
        live = {path for path, start in _live_files(table, root, name) if start == span.start}
        if not adds and not live:
            break
        if not live.issuperset(keep):
            raise PublishedMeanwhileError(
                f"{warehouse}: rows of {name} of {span.name} that were to be kept are gone; the others are as before. "
                "Run it again"
            )
        # With ``overwrite`` all files of the interval go; with ``append`` those that are named.
        removes = [_removal(root, path, span) for path in sorted(live.difference(keep))] if keep else []
        number = run.number if run is not None else 0
        try:
            table.create_write_transaction(
                [*adds, *removes],
                mode="append" if keep else "overwrite",
                schema=stored_schema(name),
                partition_by=[PARTITION],
                partition_filters=None if keep else [(PARTITION, "=", _partition_text(span))],
                commit_properties=None
                if run is None
                else CommitProperties(app_transactions=[Transaction(_transaction(span), number)]),
            )
            break
        except CommitFailedError:
            # Another run published this interval, and is named in the next round, or maintenance was faster.
            if attempt == _COMMIT_ATTEMPTS:
                raise
            time.sleep(random.uniform(0.02, 0.1) * attempt)  # noqa: S311 - not a secret
            table = _opened(root)
    return rows


def replace_until(warehouse: Place, name: str, span: Interval, staged: Sequence[StagedFile]) -> list[str]:
    """Replace the rows of an interval and of all before it by the staged files, which become rows of ``span``.

    One Delta commit does it. Returns the files that are gone from the table. Raises
    ``deltalake.exceptions.CommitFailedError`` if other writers win ``_COMMIT_ATTEMPTS`` times; then the table has its
    earlier rows.
    """
    root = table_path(warehouse, name)
    if not is_delta(root):
        return []
    for attempt in range(1, _COMMIT_ATTEMPTS + 1):
        table = _with_all_columns(ensure_table(warehouse, name), name, root)
        gone = [
            (path, start)
            for path, start in _live_files(table, root, name)
            if start is not None and start <= span.start
        ]
        actions: list[AddAction | RemoveAction] = [
            *_additions(root, span, staged),
            *(_removal(root, path, Interval(start, span.end)) for path, start in gone),
        ]
        if not actions:
            break
        try:
            table.create_write_transaction(
                actions, mode="append", schema=stored_schema(name), partition_by=[PARTITION]
            )
            break
        except CommitFailedError:
            if attempt == _COMMIT_ATTEMPTS:
                raise
            time.sleep(random.uniform(0.02, 0.1) * attempt)  # noqa: S311 - not a secret
    return [path for path, _start in gone]


def _additions(root: Location, span: Interval, staged: Iterable[StagedFile]) -> list[AddAction]:
    return [
        AddAction(
            path=file.path.below(root),
            size=file.size_bytes,
            partition_values=_partition_values(span),
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=json.dumps({"numRecords": file.rows}),
        )
        for file in staged
        if file.rows
    ]


def _partition_values(span: Interval) -> dict[str, str | None]:
    return {PARTITION: span.start.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


def _removal(root: Location, path: str, span: Interval) -> RemoveAction:
    below = Location.of(path).below(root)
    return RemoveAction(below, True, int(time.time() * 1000), partition_values=_partition_values(span))


def write_rows(warehouse: Place, name: str, span: Interval, rows: pa.Table, part: str = "rows") -> StagedFile:
    """Write rows as a data file of a table, which counts when it is committed."""
    path = data_file(Location.of(warehouse), name, span, part)
    return write_file(name, path, [conform(rows, file_schema(name))])


def replace_rows(warehouse: Place, name: str, span: Interval, rows: pa.Table) -> None:
    """Replace the interval's rows of one table by the rows of ``rows``, which has the columns of the table's contract."""
    with publishing(warehouse, span, [name]) as run:
        run.replace(name, [write_rows(warehouse, name, span, rows)])


def append_rows(warehouse: Place, name: str, rows: list[dict[str, Any]]) -> None:
    """Append rows to a table of ``contracts.APPENDED`` in one Delta commit, and join its files if they are many."""
    table = ensure_table(warehouse, name)
    write_deltalake(table, pa.Table.from_pylist(rows, schema=CONTRACTS[name]), mode="append")
    if len(table.file_uris()) >= _MOST_APPENDED:
        join_files(warehouse, name)


def join_files(warehouse: Place, name: str) -> None:
    """Rewrite the small files of a table of ``contracts.APPENDED`` into few; if another writer is faster, do nothing."""
    with suppress(CommitFailedError):
        open_delta(table_path(warehouse, name)).optimize.compact()


def compact(staged: Sequence[StagedFile], run: Publication | None = None) -> list[StagedFile]:
    """Join small staged files of one table, so that thousands of dispatchers do not make thousands of files.

    Rows keep the order of ``staged``, which is that of the names. Files of at least half of ``ROWS_PER_FILE`` rows are left
    as they are.
    """
    result: list[StagedFile] = []
    group: list[StagedFile] = []

    def close() -> None:
        if len(group) == 1:
            result.append(group[0])
        elif group:
            result.append(_joined(group))
            if run is not None:
                run.staged(result[-1:])
        group.clear()

    for file in staged:
        if file.rows >= ROWS_PER_FILE // 2:
            close()
            result.append(file)
            continue
        if sum(member.rows for member in group) + file.rows > ROWS_PER_FILE:
            close()
        group.append(file)
    close()
    return result


def _joined(files: Sequence[StagedFile]) -> StagedFile:
    """Write the rows of several files into a new one, which takes the first one's place in the order."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return write_file(files[0].table, joined_file(files[0].path), threads.map(_rows_of, files))


def _rows_of(file: StagedFile) -> pa.Table:
    with parquet_file(file.path.url) as parquet:
        return parquet.read()


def read_table(warehouse: Place, name: str, span: Interval | None = None) -> pa.Table:
    """Read all rows of a table, or those of one interval, with the contract's columns; a missing table has no rows."""
    path = table_path(warehouse, name)
    if not is_delta(path):
        return CONTRACTS[name].empty_table()
    parts = [CONTRACTS[name].empty_table()]
    for file_path, start in _live_files(_opened(path), path, name):
        if span is not None and start is not None and start != span.start:
            continue
        with parquet_file(file_path) as file:
            part = conform(file.read(), file_schema(name))
        if start is not None:
            moment = pa.repeat(pa.scalar(start, tables.INTERVAL_START.type), part.num_rows)
            part = part.add_column(0, tables.INTERVAL_START, moment)
        parts.append(conform(part, CONTRACTS[name]))
    return pa.concat_tables(parts)


def data_files(warehouse: Place, name: str, span: Interval) -> list[str]:
    """List the data files of one interval (paths or URLs), in a stable order; a missing table has none.

    Raises ``WarehouseError`` if the table has other columns than its contract.
    """
    return [file for file, start in files_until(warehouse, name, span) if start == span.start]


def files_until(warehouse: Place, name: str, span: Interval) -> list[tuple[str, datetime]]:
    """List the data files of all intervals up to this one (paths or URLs), each with its interval's start.

    Earlier intervals come first, in a stable order. A missing table has none. Raises ``WarehouseError`` if the table has
    other columns than its contract.
    """
    path = table_path(warehouse, name)
    if not is_delta(path):
        return []
    files = _live_files(ensure_table(warehouse, name), path, name)
    return [(file, start) for file, start in files if start is not None and start <= span.start]


def rows_of_files(warehouse: Place, name: str, span: Interval) -> dict[str, int]:
    """Return the data files of one interval (paths or URLs) with the number of their rows."""
    path = table_path(warehouse, name)
    if not is_delta(path):
        return {}
    actions = pa.table(_opened(path).get_add_actions(flatten=True))
    columns = (
        _paths(actions, path),
        actions[f"partition.{PARTITION}"].to_pylist(),
        actions["num_records"].to_pylist(),
    )
    return {file: rows for file, start, rows in zip(*columns, strict=True) if start == span.start}


def committed_at(warehouse: Place, name: str) -> dict[datetime, datetime]:
    """Return when the rows of each interval of a table were committed, by the interval's start."""
    path = table_path(warehouse, name)
    if not is_delta(path):
        return {}
    actions = pa.table(_opened(path).get_add_actions(flatten=True))
    newest_ms: dict[datetime, int] = {}
    starts, times_ms = actions[f"partition.{PARTITION}"], actions["modification_time"]
    for start, time_ms in zip(starts.to_pylist(), times_ms.to_pylist(), strict=True):
        newest_ms[start] = max(time_ms, newest_ms.get(start, 0))
    return {start: from_micros(time_ms * 1000) for start, time_ms in newest_ms.items()}


def all_files(warehouse: Place, name: str) -> list[str]:
    """List all data files of a table (paths or URLs); a missing table has none."""
    path = table_path(warehouse, name)
    if not is_delta(path):
        return []
    return [file for file, _start in _live_files(_opened(path), path, name)]


def live_files(table: DeltaTable, root: Location) -> list[str]:
    """List the data files of an opened table at ``root`` (paths or URLs), in a stable order."""
    return sorted(_paths(pa.table(table.get_add_actions(flatten=True)), root))


def _live_files(table: DeltaTable, root: Location, name: str) -> list[tuple[str, datetime | None]]:
    """List the data files of a table's newest version, each with the start of its interval, in a stable order."""
    actions = pa.table(table.get_add_actions(flatten=True))
    paths = _paths(actions, root)
    if name in APPENDED:
        return [(path, None) for path in sorted(paths)]
    starts = actions[f"partition.{PARTITION}"].to_pylist()
    return sorted(zip(paths, starts, strict=True), key=lambda pair: (pair[1], pair[0]))


def _paths(actions: pa.Table, root: Location) -> list[str]:
    # Paths are URL-encoded in the log.
    return [(root / unquote(path)).url for path in actions["path"].to_pylist()]


def record_run(
    warehouse: Place, stage: str, span: Interval, started_at: datetime, summary: dict[str, Any]
) -> None:
    """Append one row to ``run_metadata``: what this run of a stage did, and when."""
    row: dict[str, Any] = {name: summary.get(name) for name in RUN_METADATA.names}
    row |= {
        "run_id": os.environ.get("AIRFLOW_CTX_DAG_RUN_ID") or uuid.uuid4().hex,
        "stage": stage,
        "interval_start": span.start,
        "started_at": started_at,
        "finished_at": datetime.now(UTC),
        "summary_json": json.dumps(summary, sort_keys=True, default=str),
    }
    append_rows(warehouse, "run_metadata", [row])


def _partition_text(span: Interval) -> str:
    return span.start.strftime("%Y-%m-%d %H:%M:%S")
