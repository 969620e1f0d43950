"""Read row groups that many small dispatchers share once, and slice each dispatcher's rows from them.

Why not ``pyarrow.dataset`` with a filter: it decodes the row group again for each dispatcher. For 100 dispatchers of one row
group that took 2.6 s against 0.04 s here. The last few row groups are kept, with the place of each dispatcher's run. Only
for files that are never written again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dispatch_core.recording.stored_files import is_url, parquet_file, parquet_footer

#: Row groups kept: of messages and of events, each the one that a dispatcher begins in and the one that it ends in.
_KEPT: Final = 4
#: Forms of row groups kept.
_KEPT_FORMS: Final = 3 * _KEPT
#: Columns that are not needed from files of many dispatchers.
_UNREAD: Final = frozenset({"source_file", "source_line"})
#: Columns of an entry's position.
_POSITION: Final = ("ledger_id", "entry_id")

_Place = tuple[str, ...]
#: The first row, and the row behind the last one, of each run of a dispatcher's rows.
Runs = Sequence[tuple[int, int]]
#: Brings the rows of a whole row group into another form, each row for itself. Forms are told apart by identity.
Form = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class Group:
    """The statistics of a row group.

    ``between``: lowest and highest value of each column of texts. ``empty``: the columns, except lists and structs, in
    which no row has a value; most kinds of lines fill few columns. ``lowest``: no entry has a position before it; ``None``
    = not known, or the rows are no entries.
    """

    num_rows: int
    between: Mapping[str, tuple[str, str]]
    with_nulls: frozenset[str]
    empty: frozenset[str]
    lowest: tuple[int, int] | None = None

    def may_hold(self, dispatcher: Mapping[str, str]) -> bool:
        """True if rows of the dispatcher (columns and their values) may be in the row group."""
        return all(
            low <= dispatcher[name] <= high
            for name, (low, high) in self.between.items()
            if name in dispatcher
        )

    def holds_only(self, dispatcher: Mapping[str, str]) -> bool:
        """True if the row group can hold no other rows than the dispatcher's."""
        return all(
            self.between.get(name) == (value, value) and name not in self.with_nulls
            for name, value in dispatcher.items()
        )


@dataclass(frozen=True, slots=True)
class About:
    """The content of a file's footer. ``columns``: in their order."""

    metadata: pq.FileMetaData
    columns: tuple[str, ...]
    groups: tuple[Group, ...]

    def filled(self, group: int) -> list[str]:
        """The columns in which a row group has values (and maybe others), in their order."""
        return [name for name in self.columns if name not in self.groups[group].empty]


def about(path: str) -> About:
    """The footer of a stored Parquet file, read again only when the file has changed. Raises pyarrow's errors.

    Objects of a store are not asked for changes: their names are never used again.
    """
    if is_url(path):
        return _about(path, 0, 0)
    status = os.stat(path)  # noqa: PTH116 - asked for each dispatcher
    return _about(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _about(path: str, _mtime_ns: int, _size_bytes: int) -> About:
    metadata = parquet_footer(path)
    groups = tuple(_group(metadata.row_group(at)) for at in range(metadata.num_row_groups))
    return About(metadata, tuple(metadata.schema.to_arrow_schema().names), groups)


def _group(group: pq.RowGroupMetaData) -> Group:
    between: dict[str, tuple[str, str]] = {}
    with_nulls = set()
    empty = set()
    lowest: dict[str, int] = {}
    for at in range(group.num_columns):
        column = group.column(at)
        statistics = column.statistics
        if statistics is None:
            continue
        name = column.path_in_schema
        if statistics.has_min_max and isinstance(statistics.min, str):
            between[name] = statistics.min, statistics.max
            if statistics.null_count:
                with_nulls.add(name)
        if name in _POSITION and statistics.has_min_max:
            lowest[name] = statistics.min
        # Columns inside lists and structs have a dotted path; statistics do not distinguish an empty list from null.
        if "." not in name and statistics.has_null_count and statistics.null_count == group.num_rows:
            empty.add(name)
    position = (lowest["ledger_id"], lowest["entry_id"]) if len(lowest) == len(_POSITION) else None
    return Group(group.num_rows, between, frozenset(with_nulls), frozenset(empty), position)


def rows_of(
    path: str, group: int, dispatcher: Mapping[str, str], form: Form, texts: Sequence[str] = ()
) -> pa.Table:
    """The rows of ``dispatcher`` (columns and their values) in one row group, in a form.

    ``form`` is applied once to the row group, for all its dispatchers: to the columns that have values, but for
    ``source_file`` and ``source_line``, which are never read. ``texts`` and the columns of ``dispatcher`` come dictionary
    encoded. The table shares its memory with the row group.
    """
    table, runs = _formed(path, group, tuple(dispatcher), tuple(texts), form)
    parts = [table.slice(start, stop - start) for start, stop in runs.get(tuple(dispatcher.values()), ())]
    return parts[0] if len(parts) == 1 else pa.concat_tables([table.slice(0, 0), *parts])


@lru_cache(maxsize=_KEPT_FORMS)
def _formed(
    path: str, group: int, whose: tuple[str, ...], texts: tuple[str, ...], form: Form
) -> tuple[pa.Table, dict[_Place, list[tuple[int, int]]]]:
    table, runs = whole_group(path, group, whose, texts)
    return form(table), runs


@lru_cache(maxsize=_KEPT)
def whole_group(
    path: str, group: int, whose: tuple[str, ...], texts: tuple[str, ...]
) -> tuple[pa.Table, dict[_Place, list[tuple[int, int]]]]:
    """A row group, and the first row and the row behind the last one of each run of a dispatcher in it.

    All columns are read at once, because two calls for the same dispatcher ask for different columns.
    """
    known = about(path)
    wanted = [name for name in known.filled(group) if name not in _UNREAD]
    with parquet_file(path, metadata=known.metadata, read_dictionary=[*texts, *whose]) as file:
        table = file.read_row_group(group, columns=list(dict.fromkeys((*wanted, *whose))), use_threads=False)
    keys = [table[name].combine_chunks() for name in whose]
    starts = run_starts(keys)
    runs: dict[_Place, list[tuple[int, int]]] = {}
    names = [key.take(pa.array(starts)).cast(pa.string()).to_pylist() for key in keys]
    for start, stop, *place in zip(
        starts.tolist(), [*starts[1:].tolist(), table.num_rows], *names, strict=True
    ):
        runs.setdefault(tuple(place), []).append((start, stop))
    return table, runs


def run_starts(keys: Sequence[pa.Array]) -> np.ndarray:
    """The first row, and the rows that differ in any of ``keys`` from the row before them."""
    begins = np.zeros(len(keys[0]), dtype=bool)
    begins[:1] = True
    for key in keys:
        code = _codes(key)
        begins[1:] |= code[1:] != code[:-1]
    return np.flatnonzero(begins)


def _codes(key: pa.Array) -> np.ndarray:
    """Integers that differ where neighbouring values do; null is a value of its own."""
    if not pa.types.is_dictionary(key.type):
        key = key.dictionary_encode()
    codes: np.ndarray = pc.fill_null(key.indices, -1).to_numpy(zero_copy_only=False)
    return codes
