"""Read and write the Delta tables of the warehouse, without a JVM.

Each table has the columns of its contract (``contracts.CONTRACTS``). Result tables are partitioned by ``interval_start``.
``replace_interval`` replaces all rows of one interval in one Delta commit: a reader sees the earlier rows or the new ones.
Run ids and clock times of processing are only in the tables ``contracts.APPENDED``; all others depend on the logs alone.

Tasks, and Spark's own writer, put Parquet files into a *staging* folder of their run; ``replace_interval`` moves them under
the table and commits them. The next run of the same stage and interval removes the files of a run that died.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from dispatch_core import tables
from dispatch_core.errors import DispatchAuditError
from spark_jobs.intervals import Interval
from spark_jobs.progress import say
from spark_jobs.warehouse.contracts import (
    APPENDED,
    CONTRACTS,
    PARTITION,
    RUN_METADATA,
    StagedFile,
    conform,
    file_schema,
    older_schema,
    same_type,
    stored_schema,
)

#: ``compact`` makes files of at most so many rows, and leaves files of at least half of it as they are.
ROWS_PER_FILE: Final = 1_000_000
_COMMIT_ATTEMPTS: Final = 10
#: Characters of URLs and file patterns: Delta or Spark misreads a path that contains one.
_NOT_IN_A_PATH: Final = frozenset("[]{}*?^%#|\\")


class WarehouseError(DispatchAuditError):
    """A table that is missing, has other columns than its contract, or is being written by another run."""


def table_path(warehouse: Path, name: str) -> Path:
    """The folder of one Delta table."""
    return Path(warehouse) / name


def has_table(warehouse: Path, name: str) -> bool:
    """True if the table was written at least once."""
    return (table_path(warehouse, name) / "_delta_log").exists()


def ensure_table(warehouse: Path, name: str) -> DeltaTable:
    """Open a table, after creating it from its contract if it is missing.

    A table of an older home may lack the columns of ``contracts.ADDED`` until an interval is written to it. Raises
    ``WarehouseError`` for a table with other columns, and for a path that Delta or Spark would misread.
    """
    path = table_path(warehouse, name).absolute()
    if bad := sorted(set(str(path)) & _NOT_IN_A_PATH):
        raise WarehouseError(
            f"{warehouse}: Delta and Spark misread a path that contains {' '.join(bad)}; nothing was written. "
            "Choose a folder without these characters in its path"
        )
    if not has_table(warehouse, name):
        path.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            path,
            schema=stored_schema(name),
            mode="ignore",
            partition_by=None if name in APPENDED else [PARTITION],
            configuration={"delta.enableDeletionVectors": "false", tables.VERSION_KEY: tables.VERSION},
            raise_if_key_not_exists=False,
        )
    table = _opened(path)
    check_columns(
        name, [(field.name, field.type) for field in pa.schema(table.schema().to_arrow())], where=str(path)
    )
    return table


def _opened(path: Path) -> DeltaTable:
    """Open a table. Raises ``TablesVersionError`` if a later major version made it."""
    table = DeltaTable(path)
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


def _add_columns(warehouse: Path, name: str) -> None:
    """Give a table of an older home the columns that were added since; call it with the commit lock taken."""
    table = _opened(table_path(warehouse, name).absolute())
    there = {field.name for field in table.schema().fields}
    added = [field for field in stored_schema(name) if field.name not in there]
    if added:
        table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)


def replace_interval(warehouse: Path, name: str, span: Interval, staged: Iterable[StagedFile]) -> int:
    """Replace the interval's rows of one table by the staged files, in one Delta commit; return the number of rows.

    The files must have exactly the columns of ``file_schema``. Their names in the table sort in the order of ``staged``,
    because a log may continue from one file to the next. Runs of other intervals commit to the same table one after the
    other (``_commit_lock``). If other writers commit in between ``_COMMIT_ATTEMPTS`` times,
    ``deltalake.exceptions.CommitFailedError`` is raised and the interval keeps its earlier rows.
    """
    ensure_table(warehouse, name)
    root = table_path(warehouse, name)
    folder = f"{PARTITION}={span.start.strftime('%Y-%m-%d %H%%3A%M%%3A%S')}"
    (root / folder).mkdir(exist_ok=True)
    adds = []
    rows = 0
    for number, file in enumerate(staged):
        if file.rows == 0:
            continue
        relative = f"{folder}/part-{number:06d}-{uuid.uuid4().hex}.zstd.parquet"
        size_bytes = file.path.stat().st_size
        file.path.replace(root / relative)
        adds.append(
            AddAction(
                path=relative,
                size=size_bytes,
                partition_values={PARTITION: span.start.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
                modification_time=int(time.time() * 1000),
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
        )
        rows += file.rows
    with _commit_lock(warehouse, name):
        _add_columns(warehouse, name)
        for attempt in range(1, _COMMIT_ATTEMPTS + 1):
            table = _opened(root)
            if not adds and all(start != span.start for _path, start in _live_files(table, root, name)):
                break
            try:
                table.create_write_transaction(
                    adds,
                    mode="overwrite",
                    schema=stored_schema(name),
                    partition_by=[PARTITION],
                    partition_filters=[(PARTITION, "=", _partition_text(span))],
                )
                break
            except CommitFailedError:
                # A writer that does not take the lock committed in between. No other run writes this interval
                # (``stage_run``), so the same files can replace it in the newer version.
                if attempt == _COMMIT_ATTEMPTS:
                    raise
                time.sleep(0.05 * attempt)
    return rows


def replace_rows(warehouse: Path, name: str, span: Interval, rows: pa.Table, *, stage: str) -> None:
    """Replace the interval's rows of one table by the rows of ``rows``, which has the columns of the table's contract.

    Stages them as one file in a run of ``stage``; waits if another run of that stage and interval is under way.
    """
    with stage_run(warehouse, stage, span, wait=True) as folder:
        path = folder / f"{name}.parquet"
        pq.write_table(conform(rows, file_schema(name)), path, compression="zstd")
        replace_interval(warehouse, name, span, [StagedFile(name, path, rows.num_rows)])


def append_rows(warehouse: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Append rows to a table of ``contracts.APPENDED`` in one Delta commit."""
    ensure_table(warehouse, name)
    table = pa.Table.from_pylist(rows, schema=CONTRACTS[name])
    write_deltalake(table_path(warehouse, name), table, mode="append")


def join_files(warehouse: Path, name: str) -> None:
    """Rewrite the small files of a table of ``contracts.APPENDED`` into few; if another writer is faster, do nothing."""
    with suppress(CommitFailedError):
        DeltaTable(table_path(warehouse, name).absolute()).optimize.compact()


def compact(staged: list[StagedFile], staging: Path) -> list[StagedFile]:
    """Join small staged files of one table, so that thousands of dispatchers do not make thousands of files.

    Rows keep the order of ``staged``. Files of at least half of ``ROWS_PER_FILE`` rows are left as they are.
    """
    result: list[StagedFile] = []
    group: list[StagedFile] = []

    def close() -> None:
        if len(group) == 1:
            result.append(group[0])
        elif group:
            first = group[0]
            path = staging / f"{first.table}-{uuid.uuid4().hex}.parquet"
            with pq.ParquetWriter(path, file_schema(first.table), compression="zstd") as writer:
                for file in group:
                    writer.write_table(pq.ParquetFile(file.path).read())
            result.append(StagedFile(first.table, path, sum(file.rows for file in group)))
        group.clear()

    for file in staged:
        if file.rows >= ROWS_PER_FILE // 2:
            result.append(file)
            continue
        if sum(member.rows for member in group) + file.rows > ROWS_PER_FILE:
            close()
        group.append(file)
    close()
    return result


def read_table(warehouse: Path, name: str, span: Interval | None = None) -> pa.Table:
    """Read all rows of a table, or those of one interval, with the contract's columns; a missing table has no rows."""
    path = table_path(warehouse, name)
    if not has_table(warehouse, name):
        return CONTRACTS[name].empty_table()
    table = _opened(path)
    parts = [CONTRACTS[name].empty_table()]
    for file_path, start in _live_files(table, path, name):
        if span is not None and start is not None and start != span.start:
            continue
        part = conform(pq.ParquetFile(file_path).read(), file_schema(name))
        if start is not None:
            moment = pa.repeat(pa.scalar(start, tables.INTERVAL_START.type), part.num_rows)
            part = part.add_column(0, tables.INTERVAL_START, moment)
        parts.append(conform(part, CONTRACTS[name]))
    return pa.concat_tables(parts)


def data_files(warehouse: Path, name: str, span: Interval) -> list[str]:
    """List the data files of one interval (absolute paths), in a stable order; a missing table has none.

    Raises ``WarehouseError`` if the table has other columns than its contract.
    """
    return [file for file, start in files_until(warehouse, name, span) if start == span.start]


def files_until(warehouse: Path, name: str, span: Interval) -> list[tuple[str, datetime]]:
    """List the data files of all intervals up to this one (absolute paths), each with its interval's start.

    Earlier intervals come first, in a stable order. A missing table has none. Raises ``WarehouseError`` if the table has
    other columns than its contract.
    """
    path = table_path(warehouse, name).absolute()
    if not has_table(warehouse, name):
        return []
    files = _live_files(ensure_table(warehouse, name), path, name)
    return [(file, start) for file, start in files if start is not None and start <= span.start]


def all_files(warehouse: Path, name: str) -> list[str]:
    """List all data files of a table (absolute paths); a missing table has none."""
    path = table_path(warehouse, name).absolute()
    if not has_table(warehouse, name):
        return []
    return [file for file, _start in _live_files(_opened(path), path, name)]


def _live_files(table: DeltaTable, root: Path, name: str) -> list[tuple[str, datetime | None]]:
    """List the data files of a table's newest version, each with the start of its interval, in a stable order."""
    actions = pa.table(table.get_add_actions(flatten=True))
    # Paths are URL-encoded in the log.
    paths = [str(root / unquote(path)) for path in actions["path"].to_pylist()]
    if name in APPENDED:
        return [(path, None) for path in sorted(paths)]
    starts = actions[f"partition.{PARTITION}"].to_pylist()
    return sorted(zip(paths, starts, strict=True), key=lambda pair: (pair[1], pair[0]))


def record_run(
    warehouse: Path, stage: str, span: Interval, started_at: datetime, summary: dict[str, Any]
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


@contextmanager
def stage_run(warehouse: Path, stage: str, span: Interval, *, wait: bool = False) -> Iterator[Path]:
    """Make the staging folder of one run of a stage for an interval, and remove it at the end.

    Only one run of a stage and interval can be under way: if another process has one, this waits (``wait``) or raises
    ``WarehouseError`` at once. The lock ends with the process that has it. Leftovers of a run that died are removed first.
    """
    home = Path(warehouse) / "_staging" / f"{stage}-{span.name}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise WarehouseError(
                    f"{warehouse}: another run is doing {stage} for {span.name} right now; wait for its end and try again"
                ) from None
            say(f"{stage} {span.name}: waiting for the end of another run")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in home.iterdir():
            if leftover.is_dir():
                _sweep(leftover)
        folder = home / uuid.uuid4().hex
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _commit_lock(warehouse: Path, name: str) -> Iterator[None]:
    """Allow one commit to a table at a time; wait for the others, which take milliseconds each.

    Delta treats any two concurrent overwrites as a conflict, even of different partitions. With many intervals at once,
    retries alone would not end.
    """
    home = Path(warehouse) / "_staging"
    home.mkdir(parents=True, exist_ok=True)
    with (home / f".commit-{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(leftover: Path) -> None:
    """Remove the folder of a run that died; its last tasks may still be writing into it for a moment."""
    for _attempt in range(20):
        shutil.rmtree(leftover, ignore_errors=True)
        if not leftover.exists():
            return
        time.sleep(0.25)
    raise WarehouseError(
        f"{leftover}: leftovers of a run that died cannot be removed; remove the folder and try again"
    )


def _partition_text(span: Interval) -> str:
    return span.start.strftime("%Y-%m-%d %H:%M:%S")
