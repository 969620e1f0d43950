"""Small Delta tables for what the stages know: read and changed as a whole, by one process after the other.

``Records.update`` reads all rows, changes them and commits the result, only if nobody else has committed since the rows
were read; otherwise it reads and changes them again. So no lock is needed: of two processes that change the same rows, the
second sees what the first one did.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.stored_files import parquet_file
from spark_jobs.location import Location
from spark_jobs.warehouse.delta_tables import create_delta, is_delta, live_files, open_delta

#: Commits that others win before a change is given up.
_ATTEMPTS: Final = 60


class RecordsError(DispatchAuditError):
    """Records that cannot be read, or that other processes change all the time."""


@dataclass(frozen=True, slots=True)
class Records:
    """The rows of one small table at a place. All columns of ``schema`` are in every row."""

    place: Location
    schema: pa.Schema

    def exists(self) -> bool:
        """True if rows were committed at least once, or the table was created."""
        return is_delta(self.place)

    def read(self) -> pa.Table:
        """Read all rows; none if there is no table."""
        return self._rows(self._opened()) if self.exists() else self.schema.empty_table()

    def _opened(self) -> DeltaTable:
        try:
            return open_delta(self.place)
        except DeltaError as error:
            raise RecordsError(
                f"{self.place}: not readable as a Delta table ({' '.join(str(error).split())[:200]}); nothing was changed. "
                "Bring it back from a backup, or move it away and pull again"
            ) from None

    def _rows(self, table: DeltaTable) -> pa.Table:
        parts = [self.schema.empty_table()]
        for path in live_files(table, self.place):
            with parquet_file(path) as file:
                parts.append(file.read().select(self.schema.names).cast(self.schema))
        return pa.concat_tables(parts)

    def update(self, change: Callable[[pa.Table], pa.Table | None]) -> None:
        """Replace all rows by what ``change`` makes of them; nothing is committed if it returns None.

        ``change`` is called again if another process has committed meanwhile.
        """
        if not self.exists():
            create_delta(self.place, self.schema)
        for attempt in range(_ATTEMPTS):
            table = self._opened()
            rows = change(self._rows(table))
            if rows is None or self._committed(table, rows, mode="overwrite"):
                return
            time.sleep(random.uniform(0.01, 0.05) * min(attempt + 1, 10))  # noqa: S311 - not a secret
        raise RecordsError(
            f"{self.place}: other processes changed it {_ATTEMPTS} times; nothing was changed. Try again"
        )

    def append(self, rows: pa.Table) -> None:
        """Add rows, whatever others do."""
        if not self.exists():
            create_delta(self.place, self.schema)
        for attempt in range(_ATTEMPTS):
            if self._committed(self._opened(), rows, mode="append"):
                return
            time.sleep(random.uniform(0.01, 0.05) * min(attempt + 1, 10))  # noqa: S311 - not a secret
        raise RecordsError(
            f"{self.place}: other processes changed it {_ATTEMPTS} times; nothing was added. Try again"
        )

    def _committed(self, table: DeltaTable, rows: pa.Table, *, mode: str) -> bool:
        """Commit rows to the version that was opened; False if there is a newer one."""
        path = self.place / f"part-{uuid.uuid4().hex}.zstd.parquet"
        adds = []
        if rows.num_rows:
            with path.create() as stream:
                pq.write_table(rows.cast(self.schema), stream, compression="zstd")
                size_bytes = stream.tell()
            adds.append(AddAction(path.name, size_bytes, {}, int(time.time() * 1000), True, "{}"))
        try:
            table.create_write_transaction(
                adds,
                mode=mode,
                schema=self.schema,
                # Delta's own attempts would rebase the rows onto a version that was not read.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            if path.url in live_files(self._opened(), self.place):
                return True  # it was accepted, and the answer was lost on the way
            path.delete()
            return False
        return True


_TURNS: Final = pa.schema(
    [pa.field("name", pa.string()), pa.field("holder", pa.string()), pa.field("until", pa.float64())]
)
#: A process that died loses its turn after so long; one that lives renews it before.
_TURN_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.2


class TurnError(DispatchAuditError):
    """Another process has had the turn for too long."""

    another_attempt_may_do = True


@contextmanager
def turn(place: Location, name: str, *, wait_s: float) -> Iterator[None]:
    """Let one process at a time do what cannot be taken back, such as sending mail; wait for the others.

    For what is committed to a table no turn is needed. ``place``: of the table that says whose turn it is. Raises
    ``TurnError`` if another process has it for longer than ``wait_s``. The turn of a process that died ends by itself.
    """
    records, holder = Records(place, _TURNS), uuid.uuid4().hex
    deadline = time.monotonic() + wait_s
    while not _taken(records, name, holder):
        if time.monotonic() > deadline:
            raise TurnError(f"{place}: another process has had the turn of {name} for {wait_s:.0f} s")
        time.sleep(_LOOK_AGAIN_S)
    done = threading.Event()

    def renew() -> None:
        while not done.wait(_TURN_S / 3):
            _taken(records, name, holder)

    renewing = threading.Thread(target=renew, name=f"turn of {name}", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        done.set()
        renewing.join()
        records.update(lambda rows: rows.filter(pc.not_equal(rows["holder"], holder)))


def _taken(records: Records, name: str, holder: str) -> bool:
    """Take or renew a turn; False if another process has it."""
    taken = False

    def change(rows: pa.Table) -> pa.Table | None:
        nonlocal taken
        now = time.time()
        others = [row for row in rows.to_pylist() if row["until"] > now and row["holder"] != holder]
        taken = all(row["name"] != name for row in others)
        if not taken:
            return None
        renewed = {"name": name, "holder": holder, "until": now + _TURN_S}
        return pa.Table.from_pylist([*others, renewed], schema=_TURNS)

    records.update(change)
    return taken
