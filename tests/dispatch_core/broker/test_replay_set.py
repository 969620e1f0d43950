"""The replay set as an ordered set: the next entry, however far apart the entries are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.broker import replay_set
from dispatch_core.broker.state import NO_HASH, REPLAY_HIGH, new_state


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
@settings(deadline=None)
def test_walk_meets_every_entry_in_order(log: tuple[int, set[int]]) -> None:
    """Iterating by ``next`` gives the set in ascending order, also after removals."""
    length, wanted = log
    state = new_state(np.zeros(length, np.int32), np.ones(length, np.int32), 1, 1)
    for entry in sorted(wanted, reverse=True):
        replay_set.add_to_replay(state, entry, NO_HASH)
    assert walked(state) == sorted(wanted)
    for entry in sorted(wanted)[::2]:
        replay_set.remove_from_replay(state, entry)
    assert walked(state) == sorted(wanted)[1::2]


def walked(state: replay_set.State) -> list[int]:
    entry = int(replay_set.first_in_replay(state))
    found = []
    while 0 <= entry < int(state.s[REPLAY_HIGH]):
        found.append(entry)
        entry = int(replay_set.next_in_replay(state, entry + 1))
    return found
