"""Rows of an interval's tables, subscription by subscription, for the pages: only the row groups that hold some of them.

Tables hold whole logs one behind the other, so the least and the greatest topic of a row group say whether it need be read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.contracts import CONTRACTS, conform, file_schema
from spark_jobs.intervals import Interval
from spark_jobs.warehouse import data_files

KEY: Final = ("cluster", "topic", "subscription")
_ROWS_AT_ONCE: Final = 1 << 17


def rows_by_key(
    warehouse: Path,
    table: str,
    span: Interval,
    columns: Sequence[str] | None = None,
    *,
    topics: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    key: Sequence[str] = KEY,
) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """Rows of one interval, in pieces of one ``key`` each; of a large one there are several.

    ``columns``: beside the key (default: all). ``topics``: sorted; rows of others are left out. ``kinds``: of those with
    others too.
    """
    names = list(dict.fromkeys([*key, *(columns or file_schema(table).names)]))
    wanted = pa.schema([CONTRACTS[table].field(one) for one in names])
    # Texts repeat: what is filtered and told apart by them stays as few texts and many numbers.
    texts = [field.name for field in wanted if pa.types.is_string(field.type)]
    for path in data_files(warehouse, table, span):
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            groups = _row_groups(file.metadata, topics)
            for batch in file.iter_batches(_ROWS_AT_ONCE, groups, names, use_threads=False):
                rows = pa.Table.from_batches([batch])
                for column, values in (("topic", topics), ("kind", kinds)):
                    if values is not None:
                        rows = rows.filter(pa.array(_one_of(rows[column], values)))
                if rows.num_rows:
                    yield from by_key(conform(rows, wanted), key)


def _row_groups(metadata: pq.FileMetaData, topics: Sequence[str] | None) -> list[int]:
    """The row groups that may hold one of these topics (sorted), all where their statistics do not tell."""
    every = list(range(metadata.num_row_groups))
    if topics is None or not every:
        return every
    paths = [metadata.row_group(0).column(at).path_in_schema for at in range(metadata.num_columns)]
    at = paths.index("topic")
    found = []
    for group in every:
        about = metadata.row_group(group).column(at).statistics
        if about is None or not about.has_min_max:
            found.append(group)
            continue
        first = bisect_left(topics, about.min)
        if first < len(topics) and topics[first] <= about.max:
            found.append(group)
    return found


def _one_of(texts: pa.ChunkedArray, values: Sequence[str]) -> Any:
    """Of each row whether its text is one of ``values``."""
    wanted = pa.array(values, pa.string())
    parts = []
    for chunk in texts.chunks:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        known = np.append(np.asarray(pc.is_in(encoded.dictionary, value_set=wanted)), False)
        parts.append(known[np.asarray(pc.fill_null(encoded.indices, len(known) - 1))])
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def by_key(rows: pa.Table, key: Sequence[str]) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """The rows of each key, in the order in which they stand."""
    code = np.zeros(rows.num_rows, np.int64)
    for name in key:
        encoded = rows[name].combine_chunks().dictionary_encode()
        code = code * len(encoded.dictionary) + np.asarray(encoded.indices)
        code = np.unique(code, return_inverse=True)[1]
    order = np.argsort(code, kind="stable")
    borders = np.flatnonzero(np.diff(code[order])) + 1
    rows = rows.take(pa.array(order)) if borders.size else rows
    for low, high in zip([0, *borders.tolist()], [*borders.tolist(), rows.num_rows], strict=True):
        part = rows.slice(low, high - low)
        yield tuple(part[name][0].as_py() for name in key), part
