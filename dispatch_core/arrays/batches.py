"""Make batches of exactly a schema from the columns that are there; missing columns become null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

_USUAL_ROWS: Final = 1 << 17
_MOST_SCHEMAS: Final = 256
_NO_ROWS: Final[dict[int, tuple[pa.Schema, pa.Table]]] = {}
_WITHOUT_VALUES: Final[dict[int, tuple[pa.Schema, pa.RecordBatch]]] = {}


def to_batch(columns: Mapping[str, pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Make a batch of exactly ``schema``; missing columns become null, others are dropped."""
    arrays = _without_values(rows, schema)
    for at, name in enumerate(schema.names):
        values = columns.get(name)
        if values is not None:
            kind = arrays[at].type
            arrays[at] = values if values.type == kind else values.cast(kind)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _without_values(rows: int, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of a schema as nulls, of few rows by one call for all; cached as in ``no_rows``."""
    if rows > _USUAL_ROWS:
        return [nulls(rows, kind) for kind in schema.types]
    found = _WITHOUT_VALUES.get(id(schema))
    if found is None:
        if len(_WITHOUT_VALUES) >= _MOST_SCHEMAS:
            _WITHOUT_VALUES.clear()
        usual = [_usual(kind) for kind in schema.types]
        found = _WITHOUT_VALUES[id(schema)] = schema, pa.RecordBatch.from_arrays(usual, names=schema.names)
    columns: list[pa.Array] = found[1].slice(0, rows).columns
    return columns


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return the empty table of a schema; cached, as making one of many columns takes a quarter of a millisecond.

    Cached by the identity of the schema, because its hash takes a twentieth of a millisecond.
    """
    found = _NO_ROWS.get(id(schema))
    if found is None:
        if len(_NO_ROWS) >= _MOST_SCHEMAS:
            _NO_ROWS.clear()
        # With the schema, so that no other object gets its identity.
        found = _NO_ROWS[id(schema)] = schema, schema.empty_table()
    return found[1]


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Make a table of rows. They are converted as structs, in one call: a call for each column takes twice as long."""
    structs = pa.array(rows, pa.struct(list(schema)))
    return pa.Table.from_arrays(structs.flatten(), schema=schema)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables; a single one is returned as it is, with what is known of it (``line_kinds``)."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def part_of(table: pa.Table, start: int, stop: int) -> pa.Table:
    """Return the rows from ``start`` to ``stop``; the table itself if these are all."""
    return table if not start and stop >= table.num_rows else table.slice(start, stop - start)


def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Return ``rows`` nulls of a type; up to ``_USUAL_ROWS`` they are cached, as most columns of most batches are empty."""
    return _usual(kind).slice(0, rows) if rows <= _USUAL_ROWS else _nulls(rows, kind)


@cache
def _usual(kind: pa.DataType) -> pa.Array:
    return _nulls(_USUAL_ROWS, kind)


def _nulls(rows: int, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(kind) or all(field.nullable for field in kind):
        return pa.nulls(rows, kind)
    # Parquet refuses null parts that must not be null, even where the whole is null.
    parts = [pa.nulls(rows, field.type).fill_null(0) for field in kind]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pa.array(np.ones(rows, dtype=bool)))
