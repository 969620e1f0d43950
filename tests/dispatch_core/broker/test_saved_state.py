"""A state that is saved, changed by rules and restored is as before."""

from __future__ import annotations

import numpy as np
import pytest

from dispatch_core.broker.ordering.draining_hashes import drain, should_block
from dispatch_core.broker.pending_acks import hold, let_go
from dispatch_core.broker.replay_set import add_to_replay, clear_replay
from dispatch_core.broker.state import STAMP, State, example_state, restore, save


@pytest.fixture
def st() -> State:
    """Two consumers and four entries of two hashes; the first hash drains for consumer 0, which holds its entries."""
    st = example_state(entries=4, hashes=2, consumers=2)
    for entry in (0, 2):
        hold(st, 0, entry, 0)
        drain(st, 0, 0)
    add_to_replay(st, 1, 1)
    return st


@pytest.mark.parametrize("all_hashes", [False, True])
def test_what_drains_and_what_is_replayed_is_restored(st: State, all_hashes: bool) -> None:
    before = State(*(values.copy() for values in st))
    saved = save(st, 0, 4, all_hashes=all_hashes)
    assert should_block(st, 1, 0, np.zeros(3, np.int64))
    for entry in (0, 2):
        let_go(st, 0, entry)
        add_to_replay(st, entry, 0)
    assert not (st.drain_owner == before.drain_owner).all()
    clear_replay(st)
    st.s[STAMP] += 1
    restore(st, saved)
    before.s[STAMP] += 1
    for name, values, expected in zip(State._fields, st, before, strict=True):
        assert values.tolist() == expected.tolist(), name


def test_only_hashes_that_drain_are_copied_as_draining(st: State) -> None:
    saved = save(st, 3, 4)
    assert (saved.low, saved.high, saved.draining_ids.tolist()) == (0, 4, [0, 0])
    let_go(st, 0, 0)
    let_go(st, 0, 2)
    assert save(st, 0, 4).draining_ids.tolist() == []
