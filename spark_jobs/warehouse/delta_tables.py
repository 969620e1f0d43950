"""The warehouse: one folder of Delta tables, and the one way rows get into them.

Every table has its contract (``contracts.CONTRACTS``): names, order and types of its columns, from ``dispatch_core``.
All but ``run_metadata`` are partitioned by ``interval_start``, and an interval's rows are always replaced as a whole by
one Delta commit (``replace_interval``): a reader sees the earlier rows or the new ones. Run ids and clock times of
processing are in ``run_metadata`` alone, so that every other table is a function of the logs.

Tasks, and Spark's own writer, put Parquet files into a *staging* folder of their run; ``replace_interval`` moves them under
the table and commits them. Files of a run that died are swept by the next run of that stage and interval. No JVM here.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from dispatch_core import tables
from dispatch_core.errors import DispatchAuditError
from spark_jobs.intervals import Interval
from spark_jobs.progress import say
from spark_jobs.warehouse.contracts import (
    CONTRACTS,
    PARTITION,
    RUN_METADATA,
    StagedFile,
    conform,
    file_schema,
    same_type,
    stored_schema,
)

#: Staged files below half of this are joined before they are published.
ROWS_PER_FILE: Final = 1_000_000
_COMMIT_ATTEMPTS: Final = 10
#: Characters of URLs and file patterns, which break a path in one library or the other.
_NOT_IN_A_PATH: Final = frozenset("[]{}*?^%#|\\")


class WarehouseError(DispatchAuditError):
    """A table that is missing, has other columns than its contract, or is being written by another run."""


def table_path(warehouse: Path, name: str) -> Path:
    """The folder of one Delta table."""
    return Path(warehouse) / name


def ensure_table(warehouse: Path, name: str) -> DeltaTable:
    """Create the table from its contract where it is missing; refuse one that was made with other columns."""
    path = table_path(warehouse, name).absolute()
    if bad := sorted(set(str(path)) & _NOT_IN_A_PATH):
        raise WarehouseError(
            f"{warehouse}: Delta and Spark take {' '.join(bad)} in a path for something else; nothing was written. "
            "Choose a folder whose path has none of it"
        )
    if not (path / "_delta_log").exists():
        path.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            path,
            schema=stored_schema(name),
            mode="ignore",
            partition_by=None if name == "run_metadata" else [PARTITION],
            configuration={"delta.enableDeletionVectors": "false", tables.VERSION_KEY: tables.VERSION},
            raise_if_key_not_exists=False,
        )
    table = _opened(path)
    check_columns(
        name, [(one.name, one.type) for one in pa.schema(table.schema().to_arrow())], where=str(path)
    )
    return table


def _opened(path: Path) -> DeltaTable:
    """A table that this code can read; ``TablesVersionError`` for one that a later major version made."""
    table = DeltaTable(path)
    tables.check_version(table.metadata().configuration, str(path))
    return table


def check_columns(name: str, columns: list[tuple[str, pa.DataType]], *, where: str) -> None:
    """Raise ``WarehouseError`` unless the columns are the contract's, in its order and of its types."""
    wanted = [(one.name, one.type) for one in stored_schema(name)]
    if [column for column, _kind in columns] == [column for column, _kind in wanted] and all(
        same_type(have, want) for (_a, have), (_b, want) in zip(columns, wanted, strict=True)
    ):
        return
    have_names, want_names = {one for one, _ in columns}, {one for one, _ in wanted}
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


def replace_interval(warehouse: Path, name: str, span: Interval, staged: Iterable[StagedFile]) -> int:
    """Replace the interval's rows of one table by the staged files, in one Delta commit; returns the rows.

    The files must hold exactly the columns of ``file_schema``. In the table their names keep their order: a log may go on
    from one to the next. Runs of other intervals commit to the same table one after the other (``_commit_lock``). Other
    writers may come between; after ``_COMMIT_ATTEMPTS`` such collisions ``deltalake.exceptions.CommitFailedError`` is raised
    and the interval is as before.
    """
    ensure_table(warehouse, name)
    root = table_path(warehouse, name)
    folder = f"{PARTITION}={span.start.strftime('%Y-%m-%d %H%%3A%M%%3A%S')}"
    (root / folder).mkdir(exist_ok=True)
    adds = []
    rows = 0
    for number, one in enumerate(staged):
        if one.rows == 0:
            continue
        relative = f"{folder}/part-{number:06d}-{uuid.uuid4().hex}.zstd.parquet"
        size_bytes = one.path.stat().st_size
        one.path.replace(root / relative)
        adds.append(
            AddAction(
                path=relative,
                size=size_bytes,
                partition_values={PARTITION: span.start.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
                modification_time=int(time.time() * 1000),
                data_change=True,
                stats=json.dumps({"numRecords": one.rows}),
            )
        )
        rows += one.rows
    with _commit_lock(warehouse, name):
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
                # Somebody who does not take the lock committed in between. This interval is this run's alone
                # (``stage_run``), so the same files replace it on top of the newer version.
                if attempt == _COMMIT_ATTEMPTS:
                    raise
                time.sleep(0.05 * attempt)
    return rows


def compact(staged: list[StagedFile], staging: Path) -> list[StagedFile]:
    """Join small staged files of one table into few: thousands of dispatchers must not make thousands of files.

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
                for one in group:
                    writer.write_table(pq.ParquetFile(one.path).read())
            result.append(StagedFile(first.table, path, sum(one.rows for one in group)))
        group.clear()

    for one in staged:
        if one.rows >= ROWS_PER_FILE // 2:
            result.append(one)
            continue
        if sum(part.rows for part in group) + one.rows > ROWS_PER_FILE:
            close()
        group.append(one)
    close()
    return result


def read_table(warehouse: Path, name: str, span: Interval | None = None) -> pa.Table:
    """All rows of a table, or those of one interval, with the contract's columns; a missing table has no rows."""
    path = table_path(warehouse, name)
    if not (path / "_delta_log").exists():
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
    """The data files of one interval of a table's newest version, in a stable order; none of a missing table."""
    return [file for file, start in files_until(warehouse, name, span) if start == span.start]


def files_until(warehouse: Path, name: str, span: Interval) -> list[tuple[str, datetime]]:
    """The data files of all intervals up to this one, as of the table's newest version, each with its interval's start;
    earlier intervals first, in a stable order. A missing table has none. Paths are absolute.

    Raises ``WarehouseError`` where the table has other columns than its contract.
    """
    path = table_path(warehouse, name).absolute()
    if not (path / "_delta_log").exists():
        return []
    files = _live_files(ensure_table(warehouse, name), path, name)
    return [(file, start) for file, start in files if start is not None and start <= span.start]


def all_files(warehouse: Path, name: str) -> list[str]:
    """All data files of a table's newest version; none of a missing table. Paths are absolute."""
    path = table_path(warehouse, name).absolute()
    if not (path / "_delta_log").exists():
        return []
    return [file for file, _start in _live_files(_opened(path), path, name)]


def _live_files(table: DeltaTable, root: Path, name: str) -> list[tuple[str, datetime | None]]:
    """The data files of a table's newest version with the start of the interval of each, in a stable order."""
    actions = pa.table(table.get_add_actions(flatten=True))
    # Paths stand URL-encoded in the log.
    paths = [str(root / unquote(one)) for one in actions["path"].to_pylist()]
    if name == "run_metadata":
        return [(path, None) for path in sorted(paths)]
    starts = actions[f"partition.{PARTITION}"].to_pylist()
    return sorted(zip(paths, starts, strict=True), key=lambda pair: (pair[1], pair[0]))


def record_run(
    warehouse: Path, stage: str, span: Interval, started_at: datetime, summary: dict[str, Any]
) -> None:
    """Append one row to ``run_metadata``: what this run of a stage did, and when."""
    ensure_table(warehouse, "run_metadata")
    row: dict[str, Any] = {one.name: summary.get(one.name) for one in RUN_METADATA}
    row |= {
        "run_id": os.environ.get("AIRFLOW_CTX_DAG_RUN_ID") or uuid.uuid4().hex,
        "stage": stage,
        "interval_start": span.start,
        "started_at": started_at,
        "finished_at": datetime.now(UTC),
        "summary_json": json.dumps(summary, sort_keys=True, default=str),
    }
    write_deltalake(
        table_path(warehouse, "run_metadata"), pa.Table.from_pylist([row], schema=RUN_METADATA), mode="append"
    )


@contextmanager
def stage_run(warehouse: Path, stage: str, span: Interval, *, wait: bool = False) -> Iterator[Path]:
    """The staging folder of one run of a stage for an interval; only one such run at a time.

    Leftovers of a run of the same stage and interval that died are removed first, and the folder is removed at the
    end. When another process is at it, this waits (``wait``) or raises ``WarehouseError`` at once; the lock dies with its
    holder.
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
            say(f"{stage} {span.name}: another run is at it; waiting for its end")
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
    """One commit to a table at a time; waits. A commit takes milliseconds, and the lock dies with its holder.

    Delta takes any two concurrent overwrites for a conflict, also of different partitions; with many intervals at once
    retries alone do not end.
    """
    home = Path(warehouse) / "_staging"
    home.mkdir(parents=True, exist_ok=True)
    with (home / f".commit-{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(leftover: Path) -> None:
    """Remove a dead run's folder; its last tasks may be writing into it for a moment yet."""
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
