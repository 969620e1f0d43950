"""Rows of an interval's tables, subscription by subscription, for the pages: only the row groups that hold some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from dispatch_core.recording.schema import DISPATCHER_KEY
from spark_jobs.intervals import Interval
from spark_jobs.warehouse.contracts import CONTRACTS, conform, file_schema, in_one
from spark_jobs.warehouse.delta_tables import data_files
from spark_jobs.warehouse.file_rows import file_rows


def rows_by_key(
    warehouse: Path,
    table: str,
    span: Interval,
    columns: Sequence[str] | None = None,
    *,
    topics: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    key: Sequence[str] = DISPATCHER_KEY,
) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """Rows of one interval, in tables of one ``key`` each; a large key has several.

    ``columns``: beside the key (default: all). ``topics``: sorted; rows of others are left out. ``kinds``: of those with
    others too.
    """
    names = list(dict.fromkeys([*key, *(columns or file_schema(table).names)]))
    wanted = pa.schema([CONTRACTS[table].field(one) for one in names])
    for rows in file_rows(data_files(warehouse, table, span), names, topics=topics, kinds=kinds):
        yield from by_key(conform(rows, wanted), key)


def by_key(rows: pa.Table, key: Sequence[str]) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """The rows of each key, in the order in which they stand."""
    code = np.zeros(rows.num_rows, np.int64)
    for name in key:
        encoded = in_one(rows[name]).dictionary_encode()
        code = code * len(encoded.dictionary) + np.asarray(encoded.indices)
        code = np.unique(code, return_inverse=True)[1]
    order = np.argsort(code, kind="stable")
    borders = np.flatnonzero(np.diff(code[order])) + 1
    rows = rows.take(pa.array(order)) if borders.size else rows
    for low, high in zip([0, *borders.tolist()], [*borders.tolist(), rows.num_rows], strict=True):
        part = rows.slice(low, high - low)
        yield tuple(part[name][0].as_py() for name in key), part
