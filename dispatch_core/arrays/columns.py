"""Arrow columns as numpy arrays: what every part of the audit reads from its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def ints(values: pa.ChunkedArray | pa.Array, absent: int = 0) -> Ints:
    """The values as int64, ``absent`` for null."""
    if values.null_count:
        values = pc.fill_null(values, absent)
    return np.asarray(values, dtype=np.int64)


def valid(values: pa.ChunkedArray | pa.Array) -> Mask:
    """Where there is a value."""
    if not values.null_count:
        return np.ones(len(values), dtype=np.bool_)
    return np.asarray(pc.is_valid(values))


def encoded(values: pa.ChunkedArray) -> tuple[npt.NDArray[Any], pa.Array]:
    """Codes into the distinct values (0 for null, see ``valid``), and those; a column may come encoded already."""
    column = _encoded(values)
    codes = column.indices
    return np.asarray(codes.fill_null(0) if codes.null_count else codes), column.dictionary


def encode(table: pa.Table, name: str) -> pa.Table:
    """The table with a text column encoded, so that whoever asks for its values pays no second time."""
    column = _encoded(table[name])
    return table.set_column(table.schema.get_field_index(name), name, column)


def _encoded(values: pa.ChunkedArray) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(values.type):
        column = values.combine_chunks().dictionary_encode()
    elif values.num_chunks == 1:
        return values.chunk(0)
    elif values.num_chunks and all(
        same_words(one.dictionary, values.chunk(0).dictionary) for one in values.chunks
    ):
        codes = pa.concat_arrays([one.indices for one in values.chunks])
        return pa.DictionaryArray.from_arrays(codes, values.chunk(0).dictionary)
    else:
        column = values.unify_dictionaries().combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def same_words(one: pa.Array, other: pa.Array) -> bool:
    """Whether two dictionaries are the very same memory: slices of one encoded column share theirs."""
    if len(one) != len(other) or one.offset != other.offset or one.type != other.type:
        return False
    pairs = zip(one.buffers(), other.buffers(), strict=True)
    return all((a is None) == (b is None) and (a is None or a.address == b.address) for a, b in pairs)


def marked(values: pa.ChunkedArray, *wanted: str) -> Mask:
    """Where a text column holds one of ``wanted``; null is none of them."""
    codes, words = encoded(values)
    if not len(words):
        return np.zeros(len(values), dtype=np.bool_)
    hit = np.asarray(pc.is_in(words, value_set=pa.array(wanted, words.type)))
    if not hit.any():
        return np.zeros(len(values), dtype=np.bool_)
    found: Mask = hit[codes]
    return found & valid(values) if values.null_count else found


def plain(table: pa.Table) -> pa.Table:
    """The table with columns that came encoded decoded."""
    if not any(pa.types.is_dictionary(kind) for kind in table.schema.types):
        return table
    fields = [
        pa.field(f.name, f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in table.schema
    ]
    return table.cast(pa.schema(fields))
