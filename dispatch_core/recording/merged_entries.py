"""Merge the entries of a topic from the files of several intervals into one run in order of position.

An entry lies in the interval of its publish time, which the clock of its producer gives. Clocks differ, so the last entries
of an interval may stand behind the first ones of the next. An entry without a publish time lies in every interval; it comes
once.

Example: two producers, of which the clock of the second is 3 ms ahead. 3:4 is published at 11:59:59.999, 3:5 at 12:00:00.001
by the second clock, and 3:6 at 11:59:59.999 by the first. The file of the hour before noon holds 3:4 and 3:6, the next one
3:5. Merged they are 3:4, 3:5, 3:6.

A file is opened when the one before it comes near its first entry, so mostly one file is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.columns import valid
from dispatch_core.recording.checkpoint import Position
from dispatch_core.recording.repeats import equal_rows

#: Files that are looked at before they are opened: messages of a topic may continue in a second file of an interval, and
#: behind it comes the one with the messages that were published behind the interval's end.
_LOOKED_AT: Final = 2


@dataclass(frozen=True, slots=True)
class EntryFile:
    """The entries of a topic in one file.

    ``lowest``: no entry has a position before it; ``None`` = not known before the file is read. ``tables``: its entries in
    order of position; read from the first call of ``next`` on.
    """

    lowest: Position | None
    tables: Iterator[pa.Table]


def merged(files: Iterable[EntryFile]) -> Iterator[pa.Table]:
    """Yield the entries of several files in order of position.

    Entries that one file holds out of order, or twice, come out of order, or twice.

    Args:
        files: in the order of their intervals; each is asked for when the last but one before it was opened. Of entries
            that a file has before the first ones of the two files in front of it some may come too late.
    """
    waiting = iter(files)
    following = list(islice(waiting, _LOOKED_AT))
    opened: list[_Opened] = []
    while True:
        while (due := _due(following, opened)) is not None:
            file = _Opened.of(following.pop(due))
            following += islice(waiting, 1)
            if file is not None:
                opened.append(file)
        if not opened:
            return
        upto = min(file.last for file in opened)
        taken = [(number, file.take(upto)) for number, file in enumerate(opened) if file.first <= upto]
        yield taken[0][1] if len(taken) == 1 else _sorted(taken)
        opened = [file for file in opened if file.has_rows()]


def _due(following: Sequence[EntryFile], opened: list[_Opened]) -> int | None:
    """Return which of the next files may hold entries among those that come next from the opened ones."""
    if not following:
        return None
    if not opened:
        return 0
    upto = min(file.last for file in opened)
    for number, file in enumerate(following):
        if file.lowest is None:
            if number == 0 and opened[-1].first <= upto:
                return number
        elif file.lowest <= upto:
            return number
    return None


class _Opened:
    """A file of which the first rows have been read."""

    def __init__(self, table: pa.Table, tables: Iterator[pa.Table]) -> None:
        self._table, self._tables = table, tables
        self.first, self.last = _position(table, 0), _position(table, table.num_rows - 1)

    @classmethod
    def of(cls, file: EntryFile) -> _Opened | None:
        """Open a file; ``None`` if it holds no entry."""
        table = next(file.tables, None)
        return None if table is None else cls(table, file.tables)

    def take(self, upto: Position) -> pa.Table:
        """Take the rows up to a position from those that were read."""
        rows = self._table.num_rows
        if self.last > upto:
            beyond = _beyond(self._table, upto)
            rows = int(np.argmax(beyond))
        taken = self._table.slice(0, rows)
        self._table = self._table.slice(rows)
        return taken

    def has_rows(self) -> bool:
        """Read on if nothing is left of what was read; returns false at the end of the file."""
        if not self._table.num_rows:
            table = next(self._tables, None)
            if table is None:
                return False
            self._table = table
        self.first = _position(self._table, 0)
        self.last = _position(self._table, self._table.num_rows - 1)
        return True


def _position(table: pa.Table, row: int) -> Position:
    return table["ledger_id"][row].as_py(), table["entry_id"][row].as_py()


def _beyond(table: pa.Table, position: Position) -> npt.NDArray[np.bool_]:
    """Mark the rows behind a position."""
    ledgers, entries = table["ledger_id"].to_numpy(), table["entry_id"].to_numpy()
    beyond: npt.NDArray[np.bool_] = (ledgers > position[0]) | (
        (ledgers == position[0]) & (entries > position[1])
    )
    return beyond


def _sorted(taken: list[tuple[int, pa.Table]]) -> pa.Table:
    """Sort rows of several files by position; of equal rows without a publish time the one of the first file is kept."""
    table = pa.concat_tables([rows for _, rows in taken]).unify_dictionaries().combine_chunks()
    of_file = np.repeat([number for number, _ in taken], [rows.num_rows for _, rows in taken])
    ledgers, entries = table["ledger_id"].to_numpy(), table["entry_id"].to_numpy()
    order = np.lexsort((of_file, entries, ledgers))
    table, of_file = table.take(pa.array(order)), of_file[order]
    ledgers, entries = ledgers[order], entries[order]
    again = (ledgers[1:] == ledgers[:-1]) & (entries[1:] == entries[:-1]) & (of_file[1:] != of_file[:-1])
    rows = np.flatnonzero(again & ~valid(table["publish_time_ms"])[1:]) + 1
    if not len(rows):
        return table
    equal = equal_rows(table.take(pa.array(rows - 1)), table.take(pa.array(rows)))
    keep = np.ones(table.num_rows, np.bool_)
    keep[rows[equal]] = False
    return table.filter(pa.array(keep))
