"""Rows that grow at their end and are dropped at their front."""

from __future__ import annotations

import pickle

import numpy as np

from dispatch_core.arrays.growing import Growing


def test_a_saved_array_holds_its_rows_alone_and_grows_on() -> None:
    rows = Growing(np.int64)
    rows.append(np.arange(10_000))
    rows.append(np.arange(10_000))
    rows.drop(19_990)
    data = pickle.dumps(rows)
    assert len(data) < 500
    again = pickle.loads(data)
    again.append(np.array([7]))
    assert again.values.tolist() == [*range(9_990, 10_000), 7]
    assert rows.values.tolist() == [*range(9_990, 10_000)]
