"""Ids of hashes: one for each hash, in the order of first use, in any hash space."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.hash_ids import HashIds

hashes = st.lists(st.one_of(st.integers(-1, 40), st.integers(0, (1 << 31) - 1)), max_size=60)


@given(st.lists(hashes, max_size=12))
def test_every_hash_has_one_id_in_the_order_in_which_it_came_up(calls: list[list[int]]) -> None:
    ids, known = HashIds(), dict[int, int]()
    for call in calls:
        for value in sorted(set(call)):
            known.setdefault(value, len(known))
        assert ids.of(np.array(call, np.int64)).tolist() == [known[value] for value in call]
        assert ids.values.tolist() == list(known)
        assert len(ids) == len(known)
    for value in range(-1, 41):
        assert ids.find(value) == known.get(value)


def test_ids_stay_when_there_are_many() -> None:
    ids = HashIds()
    few = ids.of(np.arange(100, dtype=np.int64))
    many = np.arange(0, 1 << 20, 7, dtype=np.int64)
    found = ids.of(many)
    assert ids.of(np.arange(100, dtype=np.int64)).tolist() == few.tolist()
    assert (ids.values[found] == many).all()
    assert len(np.unique(found)) == len(many)


def test_saved_ids_are_known_by_their_hashes_again() -> None:
    ids = HashIds()
    hashes = np.random.default_rng(5).integers(0, 1 << 31, 10_000)
    ids.of(hashes)
    data = pickle.dumps(ids)
    assert len(data) < 8 * len(ids) + 1_000
    again = pickle.loads(data)
    assert again.of(hashes).tolist() == ids.of(hashes).tolist()
    new = np.array([1 << 31], np.int64)
    assert again.of(new).tolist() == ids.of(new).tolist() == [len(ids) - 1]
    assert len(pickle.loads(pickle.dumps(HashIds()))) == 0
