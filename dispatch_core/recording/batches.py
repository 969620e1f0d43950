"""Columns that a block or row group has to batches of exactly a schema; what is missing is null."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa

from dispatch_core.recording.schema import POSITION

_USUAL_ROWS: Final = 1 << 17


def to_batch(columns: Mapping[str, pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of exactly ``schema``; columns that are not there are null, others are dropped."""
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            values = nulls(rows, field.type)
        arrays.append(values if values.type == field.type else values.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@cache
def no_rows(schema: pa.Schema) -> pa.Table:
    """The empty table of a schema; making one of many columns takes a quarter of a millisecond, and tables never change."""
    return schema.empty_table()


def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Nulls of a type; of usual numbers always the same ones, for most columns of most batches are empty."""
    return _usual(kind).slice(0, rows) if rows <= _USUAL_ROWS else _nulls(rows, kind)


@cache
def _usual(kind: pa.DataType) -> pa.Array:
    return _nulls(_USUAL_ROWS, kind)


def _nulls(rows: int, kind: pa.DataType) -> pa.Array:
    if kind != POSITION:
        return pa.nulls(rows, kind)
    # Parquet refuses positions of null parts even where the position itself is null.
    zeros = pa.array(np.zeros(rows, dtype=np.int64))
    return pa.StructArray.from_arrays(
        [zeros, zeros], fields=list(POSITION), mask=pa.array(np.ones(rows, dtype=bool))
    )
