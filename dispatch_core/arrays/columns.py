"""Arrow columns as numpy arrays, as all parts of the audit read their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FEW_WORDS: Final = 200


def ints(values: pa.ChunkedArray | pa.Array, absent: int = 0) -> Ints:
    """Return the values as int64, ``absent`` for null."""
    values = _one_chunk(values)
    if values.null_count:
        if values.null_count == len(values):
            return np.full(len(values), absent)
        values = pc.fill_null(values, absent)
    return np.asarray(values, dtype=np.int64)


def _one_chunk(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return the one chunk of a column that has one: an array is converted in a third of the time."""
    if isinstance(values, pa.ChunkedArray) and values.num_chunks == 1:
        return values.chunk(0)
    return values


def valid(values: pa.ChunkedArray | pa.Array) -> Mask:
    """Return a mask of the rows that have a value."""
    missing = values.null_count
    if not missing or missing == len(values):
        return np.full(len(values), not missing)
    return np.asarray(pc.is_valid(_one_chunk(values)))


def encoded(values: pa.ChunkedArray) -> tuple[npt.NDArray[Any], pa.Array]:
    """Return codes (0 for null, see ``valid``) and the distinct values; a column may be encoded already.

    Of few rows the values are those that the rows have: an encoded column may share the words of a whole row group.
    """
    column = _encoded(values)
    indices, words = column.indices, column.dictionary
    codes = np.asarray(indices.fill_null(0) if indices.null_count else indices)
    if len(words) > _FEW_WORDS + len(codes):
        used, codes = np.unique(codes, return_inverse=True)
        words = words.take(pa.array(used))
    return codes, words


def codes_with_null(values: pa.ChunkedArray) -> tuple[Ints, list[Any]]:
    """Return codes of the rows and the value of each code; the last code is that of null, whether a row has it or not.

    >>> codes, words = codes_with_null(pa.chunked_array([["a", None], ["a"]]))
    >>> codes.tolist(), words
    ([0, 1, 0], ['a', None])
    """
    codes, words = encoded(values)
    if values.null_count:
        codes = np.where(valid(values), codes, len(words))
    return codes.astype(np.int64), [*words.to_pylist(), None]


def encode(table: pa.Table, name: str) -> pa.Table:
    """Encode a text column of a table, so that later readers of its values need not."""
    column = _encoded(table[name])
    return table.set_column(table.schema.get_field_index(name), name, column)


def _encoded(values: pa.ChunkedArray) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(values.type):
        column = (values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()).dictionary_encode()
    elif values.num_chunks == 1:
        return values.chunk(0)
    elif values.num_chunks and all(
        same_words(chunk.dictionary, values.chunk(0).dictionary) for chunk in values.chunks
    ):
        codes = pa.concat_arrays([chunk.indices for chunk in values.chunks])
        return pa.DictionaryArray.from_arrays(codes, values.chunk(0).dictionary)
    else:
        column = values.unify_dictionaries().combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def same_words(words: pa.Array, other: pa.Array) -> bool:
    """True if two dictionaries are the same memory: slices of an encoded column share theirs."""
    if len(words) != len(other) or words.offset != other.offset or words.type != other.type:
        return False
    pairs = zip(words.buffers(), other.buffers(), strict=True)
    return all((a is None) == (b is None) and (a is None or a.address == b.address) for a, b in pairs)


def marked(values: pa.ChunkedArray, *wanted: str) -> Mask:
    """Return a mask of the rows whose text is one of ``wanted``; null is none of them."""
    codes, words = encoded(values)
    if not len(words):
        return np.zeros(len(values), dtype=np.bool_)
    hit = _among(words, wanted)
    if not hit.any():
        return np.zeros(len(values), dtype=np.bool_)
    found: Mask = hit[codes]
    return found & valid(values) if values.null_count else found


def _among(words: pa.Array, wanted: tuple[str, ...]) -> Mask:
    """Return a mask of the words that are ``wanted``. Few words are compared in Python: a call of Arrow takes as long as
    a hundred of them.
    """
    if len(words) > _FEW_WORDS:
        return np.asarray(pc.is_in(words, value_set=pa.array(wanted, words.type)))
    return np.array([word in wanted for word in words.to_pylist()], dtype=np.bool_)


def has(table: pa.Table, name: str) -> bool:
    """True if a table has a column of this name, once. Listing all names takes a hundred times as long."""
    return bool(table.schema.get_field_index(name) >= 0)


def rows_at(table: pa.Table, rows: npt.NDArray[np.intp]) -> pa.Table:
    """Return some rows of a table, given in ascending order; without a copy where they stand together."""
    count = len(rows)
    if not count or int(rows[-1]) - int(rows[0]) == count - 1:
        return table.slice(int(rows[0]) if count else 0, count)
    return table.take(pa.array(rows))


def replaced(table: pa.Table, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Give columns of a table other values of the same type.

    >>> replaced(pa.table({"kind": ["a"], "seq": [1]}), {"seq": [2]}).to_pylist()
    [{'kind': 'a', 'seq': 2}]
    """
    for name, values in columns.items():
        table = with_column(table, name, pa.array(values, table.schema.field(name).type))
    return table


def with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """Put an array in the place of a column."""
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)


def plain(table: pa.Table) -> pa.Table:
    """Decode the columns of a table that are encoded."""
    if not any(pa.types.is_dictionary(kind) for kind in table.schema.types):
        return table
    fields = [
        pa.field(f.name, f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in table.schema
    ]
    return table.cast(pa.schema(fields))
