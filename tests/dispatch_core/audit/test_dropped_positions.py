"""Positions that have left a window, as runs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.audit.deliveries import dropped_positions
from dispatch_core.audit.deliveries.dropped_positions import DroppedPositions

PLACES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), unique=True).map(sorted)


def columns(positions: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(positions, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


@given(PLACES, st.data())
def test_what_was_dropped_is_known(positions: list[tuple[int, int]], data: st.DataObject) -> None:
    dropped = DroppedPositions()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(positions)), max_size=4)))
    for start, end in pairwise([0, *cuts, len(positions)]):
        dropped.add(*columns(positions[start:end]))
    assert dropped.last == (positions[-1] if positions else None)
    every = [(ledger, entry) for ledger in range(6) for entry in range(14)]
    assert dropped.hold(*columns(every)).tolist() == [place in set(positions) for place in every]


def test_the_oldest_runs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropped_positions, "MOST_RUNS", 3)
    dropped = DroppedPositions()
    for entry in range(0, 14, 2):
        dropped.add(*columns([(1, entry)]))
    known = dropped.hold(*columns([(1, entry) for entry in range(14)]))
    assert np.flatnonzero(known).tolist() == [8, 10, 12]
