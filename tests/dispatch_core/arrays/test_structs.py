"""Structs of arrays passed by their address."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from numba import typeof
from numba.core.errors import TypingError

from dispatch_core.arrays.jit import compiled_in_place
from dispatch_core.arrays.structs import ByAddress, by_address
from dispatch_core.broker.state import State, new_state


@by_address
class Pair(NamedTuple):
    """Two arrays of different element sizes."""

    small: npt.NDArray[np.int32]
    large: npt.NDArray[np.int64]


@compiled_in_place
def add_up(pair: Pair, at: int) -> int:
    """Move ``small[at]`` into ``large`` and return their sum."""
    pair.large[at] += pair.small[at]
    return pair.large[at]


@compiled_in_place
def add_all_up(pair: Pair, others: Pair) -> int:
    """Sum the differences of two structs, each passed on to another compiled function."""
    total = 0
    for at in range(len(pair.small)):
        total += add_up(pair, at) - add_up(others, at)
    return total


def pair(*values: int) -> Pair:
    return Pair(np.array(values, np.int32), np.full(len(values), 100, np.int64))


def test_each_array_is_read_and_written_as_itself() -> None:
    first, other = pair(1, 2, 3), pair(0, 0, 7)
    assert add_all_up(first, other) == -1
    assert first.large.tolist() == [101, 102, 103]
    assert other.large.tolist() == [100, 100, 107]


def test_a_part_of_an_array_is_that_part() -> None:
    whole = np.arange(10)
    assert add_up(Pair(np.ones(3, np.int32), whole[4:7]), 2) == 7
    assert whole.tolist() == [0, 1, 2, 3, 4, 5, 7, 7, 8, 9]


def test_the_state_is_passed_by_address() -> None:
    state = new_state(np.zeros(2, np.int32), np.ones(2, np.int32), n_hashes=1, n_consumers=1)
    kind = typeof(state)
    assert isinstance(kind, ByAddress)
    assert kind == typeof(state)
    assert len(kind.name) == len("State_") + len(State._fields)


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((2, 2), np.int64), np.zeros(8, np.int64)[::2], 5],
    ids=["two dimensions", "with gaps", "no array"],
)
def test_what_cannot_be_described_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, TypingError), match="Pair holds a value of type"):
        typeof(Pair(np.zeros(2, np.int32), wrong))
