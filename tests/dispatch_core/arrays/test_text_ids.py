"""Numbers of texts, against a dictionary."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.arrays import text_ids
from dispatch_core.arrays.text_ids import NONE, TextIds

#: Texts with equal hashes must get different ids; with few letters some texts come again.
BATCHES = st.lists(st.lists(st.text("aé\0", max_size=4), max_size=12), max_size=6)


def numbered(batches: list[list[str]]) -> None:
    ids, known, expected = TextIds(), pa.array([], pa.string()), {}
    for batch in batches:
        words = list(dict.fromkeys(batch))
        texts = pa.array(["before", *words, "behind"], pa.string()).slice(1, len(words))
        assert ids.find(texts, known).tolist() == [expected.get(word, NONE) for word in words]
        new = [word for word in words if word not in expected]
        ids.add(pa.array(new, pa.string()))
        expected |= {word: len(expected) + at for at, word in enumerate(new)}
        known = pa.concat_arrays([known, pa.array(new, pa.string())])
    living = np.array([at % 3 != 1 for at in range(len(known))], dtype=bool)
    ids.keep(np.where(living, np.cumsum(living) - 1, NONE).astype(np.int32))
    known = known.filter(pa.array(living))
    assert ids.find(known, known).tolist() == list(range(len(known)))
    gone = pa.array([word for word, at in expected.items() if not living[at]], pa.string())
    assert ids.find(gone, known).tolist() == [NONE] * len(gone)


@given(BATCHES)
def test_numbers_are_given_in_order_and_found_again(batches: list[list[str]]) -> None:
    numbered(batches)


@given(BATCHES)
def test_texts_of_one_hash_are_distinguished(batches: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_ids, "hashes_of", lambda texts: np.full(len(texts), 7, np.int64))
        numbered(batches)


def test_hashes_of_near_texts_differ() -> None:
    hashes = text_ids.hashes_of(pa.array([f"key-{number}" for number in range(100_000)]))
    assert len(np.unique(hashes)) == 100_000
    assert len(np.unique(hashes & 0xFFFF)) > 50_000
