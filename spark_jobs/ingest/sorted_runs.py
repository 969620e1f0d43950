"""Find out if staged rows are *sorted runs*: the rows of each dispatcher (each topic, for messages) together and in order.

Sorted runs need no exchange and no sort; their staged files become files of the table. Most logs are sorted runs, because a
recorder writes a dispatcher's lines in the order of ``seq``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.schema import DISPATCHER_KEY
from spark_jobs.warehouse.contracts import GROUP, ORDER, in_one

#: One incarnation of a dispatcher.
_LOG: Final = (*DISPATCHER_KEY, "incarnation")

#: A log file with more dispatchers than this is not checked: its rows go through the exchange.
MOST_RUNS: Final = 10_000


class Runs:
    """Check if the rows of one log file are sorted runs, while they are staged for ``table``."""

    def __init__(self, table: str) -> None:
        self._group, self._order = GROUP[table], ORDER[table]
        self._last: tuple[Any, ...] | None = None
        self._place = (0, 0)
        self._begun: dict[tuple[Any, ...], None] = {}
        self._whole = True

    @property
    def groups(self) -> list[tuple[Any, ...]] | None:
        """The groups (``contracts.GROUP``) of the file in order; None if the rows of a group are apart or out of order."""
        return list(self._begun) if self._whole else None

    @property
    def present(self) -> list[tuple[Any, ...]]:
        """The groups that the file has rows of, sorted runs or not."""
        return list(self._begun)

    def follow(self, rows: pa.Table) -> None:
        """Take the next rows."""
        if not rows.num_rows:
            return
        if self._whole:
            self._follow_runs(rows)
        if not self._whole:
            names = rows.select(self._group).group_by(list(self._group), use_threads=False).aggregate([])
            self._begun.update(
                dict.fromkeys(zip(*(names[name].to_pylist() for name in self._group), strict=True))
            )

    def _follow_runs(self, rows: pa.Table) -> None:
        columns = [in_one(rows[name]) for name in self._group]
        begins = _begins(columns)
        begins[0] = tuple(column[0].as_py() for column in columns) != self._last
        major, minor = (rows[name].to_numpy() for name in self._order)
        fine = _not_before(major, minor) | begins[1:]
        self._whole = bool(fine.all()) and (bool(begins[0]) or self._place <= (major[0], minor[0]))
        for row in np.flatnonzero(begins)[: MOST_RUNS + 1].tolist():
            group = tuple(column[row].as_py() for column in columns)
            self._whole &= group not in self._begun
            self._begun[group] = None
            self._last = group
        self._whole &= len(self._begun) <= MOST_RUNS
        self._place = (major[-1], minor[-1])


class Headers:
    """Move the headers of a log file to where the rows of their logs begin.

    The reader yields all headers of a block before the block's rows. With several dispatchers in a block, a header would
    be apart from its dispatcher's rows, and sorted runs would not be recognised.
    """

    def __init__(self) -> None:
        self._waiting: list[pa.Table] = []

    def place(self, rows: pa.Table) -> pa.Table:
        """Take the next events and insert their headers. A header waits until rows of its log come."""
        if rows.num_rows and pc.all(pc.equal(rows["kind"], "header")).as_py():
            self._waiting.append(rows)
            return rows.slice(0, 0)
        if not (rows.num_rows and self._waiting):
            return rows
        headers = self.rest(rows.schema)
        first = _first_rows(rows)
        if first is None:
            return pa.concat_tables([headers, rows])
        places = [
            first.get(log) for log in zip(*(headers[column].to_pylist() for column in _LOG), strict=True)
        ]
        waiting = [number for number, place in enumerate(places) if place is None]
        if waiting:
            self._waiting.append(headers.take(waiting))
        slices, at = [], 0
        for place, number in sorted(
            (place, number) for number, place in enumerate(places) if place is not None
        ):
            slices += [rows.slice(at, place - at), headers.slice(number, 1)]
            at = place
        return pa.concat_tables([*slices, rows.slice(at)])

    def rest(self, wanted: pa.Schema) -> pa.Table:
        """Take the headers that still wait for rows, as a table of the events' schema."""
        waiting, self._waiting = self._waiting, []
        return pa.concat_tables([wanted.empty_table(), *waiting])


def _first_rows(rows: pa.Table) -> dict[tuple[Any, ...], int] | None:
    """Find the first row of each log; None if the logs alternate too often to be sorted runs."""
    columns = [in_one(rows[name]) for name in _LOG]
    begins = np.flatnonzero(_begins(columns))
    if len(begins) > MOST_RUNS:
        return None
    first: dict[tuple[Any, ...], int] = {}
    for row in begins.tolist():
        first.setdefault(tuple(column[row].as_py() for column in columns), row)
    return first


def _begins(columns: list[pa.Array]) -> npt.NDArray[np.bool_]:
    """Mark the rows that differ in any of the columns from the row before."""
    begins = np.zeros(len(columns[0]), dtype=bool)
    begins[:1] = True
    for column in columns:
        begins[1:] |= ~pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return begins


def _not_before(major: npt.NDArray[np.int64], minor: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark the rows, from the second on, that are not before their predecessor."""
    later: npt.NDArray[np.bool_] = major[1:] > major[:-1]
    return later | ((major[1:] == major[:-1]) & (minor[1:] >= minor[:-1]))


def not_runs(staged: Iterable[tuple[Sequence[str], Sequence[Sequence[Any]] | None]]) -> set[str]:
    """Choose the files of one table whose rows must be exchanged.

    These have rows out of order, or rows of a dispatcher that another log file has rows of, too. ``staged``: for each log
    file the paths with its rows, and their groups (``Runs.groups``).
    """
    logs_staged = list(staged)
    logs = Counter(tuple(group) for _paths, groups in logs_staged for group in groups or ())
    return {
        path
        for paths, groups in logs_staged
        if groups is None or any(logs[tuple(group)] > 1 for group in groups)
        for path in paths
    }
