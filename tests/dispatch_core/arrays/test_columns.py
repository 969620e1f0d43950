"""Encoded columns of texts: the rows of one log may share the words of many."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dispatch_core.arrays.columns import encoded, marked


@pytest.mark.parametrize("words", [3, 1_000])
@pytest.mark.parametrize("rows", [0, 4, 2_000])
def test_rows_are_marked_whatever_the_number_of_words(words: int, rows: int) -> None:
    values = [None if at % 7 == 3 else f"w{at % words}" for at in range(rows)]
    shared = pa.array([f"w{at}" for at in range(words)])
    indices = pa.array([None if value is None else int(value[1:]) for value in values], pa.int32())
    column = pa.chunked_array([pa.DictionaryArray.from_arrays(indices, shared)])
    for given in (column, pa.chunked_array([pa.array(values, pa.string())])):
        assert marked(given, "w1", "w2").tolist() == [value in ("w1", "w2") for value in values]


def test_few_rows_of_many_words_get_their_own_words() -> None:
    shared = pa.array([f"w{at}" for at in range(1_000)])
    indices = pa.array([900, None, 17, 900], pa.int32())
    codes, words = encoded(pa.chunked_array([pa.DictionaryArray.from_arrays(indices, shared)]))
    assert len(words) <= 3
    assert [words[codes[at]].as_py() for at in (0, 2, 3)] == ["w900", "w17", "w900"]
