"""Keep the state of each dispatcher's replay at the end of an interval, and begin a later interval with it.

The table ``snapshots`` has a row for each dispatcher and interval that was replayed. It is a cache: it depends on the code,
and is outside any comparison of tables. A row is *usable* for a later interval if

* the dispatcher's own rows up to the end of its interval are the same as then: ``history`` tells which rows there were of
  all dispatchers, and the table ``inputs`` whose have changed since,
* the code of the core, the limits and what holds in place of the logs' headers are the same,
* its bytes have their checksum.

Otherwise the log is replayed from the newest usable row before, or from its beginning, with the same result. A dispatcher
that an interval has no rows of keeps the snapshot that it had (``kept_in``), so the newest interval knows all dispatchers.
The row of one whose log cannot be cut, as that of a trace, has neither a state nor rows: it is replayed from the beginning.

Knows files and Arrow, not Spark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import dispatch_core
from dispatch_core.errors import SnapshotError
from dispatch_core.recording import kept_rows, schema
from dispatch_core.recording.rows_behind import rows_behind
from dispatch_core.recording.stored_files import parquet_file
from dispatch_core.replay import snapshots
from dispatch_core.replay.snapshots import KeptState, ReplayState, StateKeeper, decoded
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.warehouse.contracts import StagedFile, data_file, file_schema

TABLE: Final = "snapshots"
#: Lines and entries of so long before an interval's end are left to the next one. It covers the time in which a line may
#: race with another, and clocks of producers that differ, microseconds.
BEFORE_END_US: Final = 2_000_000
#: No snapshot has more rows behind its place: one with more costs more than it saves.
_MOST_ROWS: Final = 1_000_000
#: A row group ends when it has so many bytes: a task reads those that hold its dispatchers.
_GROUP_BYTES: Final = 1 << 20
#: Row groups that a task keeps.
_KEPT_GROUPS: Final = 2
#: Environment variable: if it is set, no snapshot is used and none is written.
WITHOUT: Final = "DISPATCH_AUDIT_WITHOUT_SNAPSHOTS"
_BLOBS: Final = ("state", "events", "messages")
Group = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """A usable snapshot of a dispatcher: the end of its interval, and the file that has its row.

    ``until``: end of the interval up to which the dispatcher is known to have no rows behind it.
    """

    end: datetime
    path: str
    until: datetime


class SnapshotWriter:
    """Writes the snapshots of one task to a file. Use it as a context manager, and ``close`` it at the end.

    A dispatcher's row has the ``snapshot_key`` under which its snapshot can be used; without one nothing is written.
    """

    def __init__(self, warehouse: Location, part: str, span: Interval) -> None:
        self._span = span
        self._path = data_file(warehouse, TABLE, span, part)
        self._stream: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[dict[str, Any]] = []
        self._waiting_bytes = 0
        self._rows = 0

    def write(self, dispatcher: Mapping[str, Any], keeper: StateKeeper, before: KeptState | None) -> None:
        """Write the snapshot of a dispatcher; see ``snapshot_of``."""
        self._add(dispatcher, snapshot_of(dispatcher, self._span, keeper, before))

    def keep(self, dispatcher: Mapping[str, Any]) -> None:
        """Write that a dispatcher keeps the snapshot that its row names, or has none."""
        kept: dict[str, Any] = {}
        if dispatcher.get("idle") and dispatcher["snapshot_file"] is not None:
            kept = {"kept_in": dispatcher["snapshot_file"], "kept_end_us": dispatcher["snapshot_end_us"]}
        self._add(dispatcher, kept)

    def _add(self, dispatcher: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
        if dispatcher.get("snapshot_key") is None:
            return
        row: dict[str, Any] = dict.fromkeys(file_schema(TABLE).names)
        row |= {name: dispatcher[name] for name in schema.DISPATCHER_KEY}
        row |= {**json.loads(dispatcher["snapshot_key"]), "code": core_digest(), "format": snapshots.FORMAT}
        row["ends_lost"] = digest_of_ends(dispatcher.get("ends_lost"))
        self._waiting.append(row | dict(columns))
        self._waiting_bytes += sum(len(columns.get(name) or b"") for name in _BLOBS)
        self._rows += 1
        if self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._stream = self._path.create()
            self._writer = pq.ParquetWriter(self._stream, file_schema(TABLE), compression="none")
        self._writer.write_table(pa.Table.from_pylist(self._waiting, schema=file_schema(TABLE)))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> list[StagedFile]:
        """Finish the file; returns it, if there are any rows."""
        self._flush()
        if self._writer is None or self._stream is None:
            return []
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stream.close()
        self._writer = self._stream = None
        return [StagedFile(TABLE, self._path, self._rows, size_bytes)]

    def __enter__(self) -> SnapshotWriter:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._writer is None or self._stream is None:
            return
        # They may have failed already, and what they hold is not wanted.
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        with suppress(OSError, pa.ArrowException):
            self._stream.close()
        self._path.delete()


def digest_of_ends(loads: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return a digest of the incarnations of a dispatcher whose last lines are lost; ``None`` for none."""
    return hashlib.sha256(json.dumps(loads).encode()).hexdigest()[:32] if loads else None


@cache
def core_digest() -> str:
    """Return a digest of the code of the core: a snapshot holds for the code that wrote it alone."""
    root = Path(str(dispatch_core.__file__)).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def from_beginning(dispatcher: dict[str, Any], span: Interval) -> dict[str, Any]:
    """Return the row of a dispatcher with all files of its log, and without a snapshot."""
    if dispatcher.get("snapshot_file") is None:
        return dispatcher
    # Imported late: tasks that have their snapshots do without Delta.
    from spark_jobs.warehouse.delta_tables import data_files, files_until

    warehouse = dispatcher["warehouse"]
    return dispatcher | {
        "snapshot_file": None,
        "event_files": [path for path, _start in files_until(warehouse, "consumer_events", span)],
        "message_files": [path for path, _start in files_until(warehouse, "messages", span)]
        + data_files(warehouse, "messages_ahead", span),
    }


def snapshot_of(
    dispatcher: Mapping[str, Any], span: Interval, keeper: StateKeeper, before: KeptState | None
) -> dict[str, Any]:
    """Return the columns of a snapshot: the state that ``keeper`` has, and the rows of the log behind it.

    Args:
        dispatcher: its identity and its files, as they were replayed.
        span: the interval.
        keeper: as the replay left it.
        before: the state that the replay went on from; it still holds where the keeper has no later one.
    """
    if keeper.traced:
        return {}
    identity = {name: dispatcher[name] for name in schema.DISPATCHER_KEY}
    state = keeper.kept or before
    cut, loads = (None, []) if state is None else (state.cut, state.loads)
    events, messages = rows_behind(
        dispatcher["event_files"], dispatcher["message_files"], identity, cut, loads, span.end_us
    )
    if events.num_rows + messages.num_rows > _MOST_ROWS:
        return {}
    blobs = {
        "state": None if state is None else state.data,
        "events": kept_rows.as_bytes(events) if events.num_rows else None,
        "messages": kept_rows.as_bytes(messages) if messages.num_rows else None,
    }
    return blobs | {"sha256": _checksum(blobs)}


def _checksum(blobs: Mapping[str, bytes | None]) -> str:
    digest = hashlib.sha256()
    for name in _BLOBS:
        digest.update(f"{name} {len(blobs[name] or b'')} ".encode() + (blobs[name] or b""))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Opened:
    """A snapshot that a replay goes on from: the state (``None`` = the log is young), and files of the rows behind it.

    ``kept``: the state as it was read.
    """

    state: ReplayState | None
    kept: KeptState | None
    event_files: list[str]
    message_files: list[str]


#: Of a replay from the beginning.
NOTHING_SAVED: Final = Opened(None, None, [], [])


def opened(path: str, identity: Mapping[str, str], folder: Path) -> Opened:
    """Read the snapshot of a dispatcher; the rows behind it come as files in ``folder``.

    Raises ``SnapshotError`` where it is missing or damaged.
    """
    row = _checked_row(path, identity)
    state = None if row["state"] is None else decoded(row["state"])
    unread = None if state is None else KeptState.of(state, row["state"])
    files: dict[str, list[str]] = {}
    for name in ("events", "messages"):
        files[name] = []
        if row[name] is not None:
            place = folder / f"{name}{kept_rows.SUFFIX}"
            place.write_bytes(row[name])
            files[name] = [str(place)]
    return Opened(state, unread, files["events"], files["messages"])


def state_of(path: str, identity: Mapping[str, str]) -> ReplayState | None:
    """Read the state alone of a dispatcher's snapshot; ``None`` = the log is young. Raises as ``opened`` does."""
    row = _checked_row(path, identity)
    return None if row["state"] is None else decoded(row["state"])


def _checked_row(path: str, identity: Mapping[str, str]) -> dict[str, Any]:
    """Read the row of a dispatcher; raises ``SnapshotError`` where it is missing or damaged."""
    try:
        row = _row(path, tuple(identity[name] for name in schema.DISPATCHER_KEY))
    except (OSError, pa.ArrowException) as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}") from error
    if row is None or row["sha256"] is None:
        raise SnapshotError("the snapshot is missing")
    if _checksum(row) != row["sha256"]:
        raise SnapshotError("the snapshot is damaged: its bytes do not have their checksum")
    return row


def _row(path: str, group: Group) -> dict[str, Any] | None:
    """The row of a dispatcher; of its file the row groups are read that may hold it."""
    with parquet_file(path) as file:
        metadata = file.metadata
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    places = [names.index(name) for name in schema.DISPATCHER_KEY]
    for number in range(metadata.num_row_groups):
        row_group = metadata.row_group(number)
        statistics = [row_group.column(place).statistics for place in places]
        if all(
            known is None or not known.has_min_max or known.min <= value <= known.max
            for known, value in zip(statistics, group, strict=True)
        ):
            row = _rows_of_group(path, number).get(group)
            if row is not None:
                return row
    return None


@lru_cache(maxsize=_KEPT_GROUPS)
def _rows_of_group(path: str, number: int) -> dict[Group, dict[str, Any]]:
    with parquet_file(path) as file:
        rows = file.read_row_group(number, columns=[*schema.DISPATCHER_KEY, "sha256", *_BLOBS]).to_pylist()
    return {tuple(row[name] for name in schema.DISPATCHER_KEY): row for row in rows}
