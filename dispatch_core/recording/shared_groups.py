"""Row groups that many small dispatchers share: read once, each dispatcher's run cut out of them.

A reader that goes from one small dispatcher to the next would unpack the same row group for each of them, some hundred
times. Here the last few are kept, with the place of each run. Only for files that are never written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

#: Row groups kept: of messages and of events, each in two choices of columns.
_KEPT: Final = 4

_Place = tuple[str, ...]


def rows_of(
    path: str, group: int, dispatcher: Mapping[str, str], columns: Sequence[str], texts: Sequence[str] = ()
) -> pa.Table:
    """The rows of ``dispatcher`` (columns and their values) in one row group, in those of ``columns`` that the file has.

    ``texts`` come dictionary encoded. The table shares its memory with the row group.
    """
    table, runs = _read(path, group, tuple(dispatcher), tuple(columns), tuple(texts))
    parts = [table.slice(start, stop - start) for start, stop in runs.get(tuple(dispatcher.values()), ())]
    return parts[0] if len(parts) == 1 else pa.concat_tables([table.slice(0, 0), *parts])


@lru_cache(maxsize=_KEPT)
def _read(
    path: str, group: int, whose: tuple[str, ...], columns: tuple[str, ...], texts: tuple[str, ...]
) -> tuple[pa.Table, dict[_Place, list[tuple[int, int]]]]:
    """A row group, and from where to where each dispatcher's rows stand in it."""
    with pq.ParquetFile(path, read_dictionary=[*texts, *whose]) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        table = file.read_row_group(group, columns=list(dict.fromkeys((*there, *whose))), use_threads=False)
    begins = np.zeros(table.num_rows, dtype=bool)
    begins[:1] = True
    keys = [table[name].combine_chunks() for name in whose]
    for key in keys:
        code = _codes(key)
        begins[1:] |= code[1:] != code[:-1]
    starts = np.flatnonzero(begins)
    runs: dict[_Place, list[tuple[int, int]]] = {}
    names = [key.take(pa.array(starts)).cast(pa.string()).to_pylist() for key in keys]
    for start, stop, *place in zip(
        starts.tolist(), [*starts[1:].tolist(), table.num_rows], *names, strict=True
    ):
        runs.setdefault(tuple(place), []).append((start, stop))
    plain = [
        name
        for name in whose
        if name in there and name not in texts and pa.types.is_dictionary(table[name].type)
    ]
    for name in plain:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].cast(pa.string()))
    return table.select(there), runs


def _codes(key: pa.Array) -> np.ndarray:
    """Integers that differ where neighbouring values do; null is a value of its own."""
    if not pa.types.is_dictionary(key.type):
        key = key.dictionary_encode()
    codes: np.ndarray = pc.fill_null(key.indices, -1).to_numpy(zero_copy_only=False)
    return codes
