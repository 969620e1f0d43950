"""The replay set as an ordered set, and the read attempts that follow what is added to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.broker import profiles, replay_set
from dispatch_core.broker.state import BLOCKED_ON_UNACKED, N_REPLAY, NO_HASH, REPLAY_HIGH, new_state
from dispatch_core.broker.walk import Walk


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


# --- the read attempt behind a leave ---------------------------------------------------------------------------------

CLASSIC = {"subscriptionKeySharedUseClassicPersistentImplementation": True}


def shared(release: str, *, classic: bool = False) -> profiles.Profile:
    """Return the rules of a Shared subscription whose consumers take one entry a turn."""
    known = {
        "dispatcherMaxRoundRobinBatchSize": 1,
        "subscriptionSharedUseClassicPersistentImplementation": classic,
    }
    return profiles.resolve(release, known, subscription_type="Shared")


ALWAYS = {
    "3.0.17": profiles.resolve("3.0.17"),
    "preview": profiles.resolve("4.0.0-preview.1"),
    "classic": profiles.resolve("4.2.4", CLASSIC),
    "Shared of 3.3.9": shared("3.3.9"),
    "Shared classic": shared("4.2.4", classic=True),
}
WHEN_ADDED = {
    **{release: profiles.resolve(release) for release in ("4.0.0", "4.2.4", "5.0.1")},
    **{f"Shared of {release}": shared(release) for release in ("4.0.4", "5.0.1")},
}


def pair(rules: profiles.Profile, stored: int) -> Walk:
    """Connect c1, which has permits, and c2; entries of their keys are sent."""
    walk = Walk(rules, [f"key-{number}" for number in range(16)], stored=stored)
    for name in ("c1", "c2"):
        walk.join(name, permits=100)
    walk.run()
    return walk


@pytest.mark.parametrize("rules", [*ALWAYS.values(), *WHEN_ADDED.values()], ids=[*ALWAYS, *WHEN_ADDED])
def test_a_leave_is_followed_by_a_read_if_it_adds_to_the_replay_set(rules: profiles.Profile) -> None:
    """Since 4.0 by none if it does not; before, by one in any case."""
    always = rules in ALWAYS.values()
    holding, empty = pair(rules, 8), pair(rules, 8)
    assert holding.pending("c2")
    for name in ("c1", "c2"):
        empty.ack(*empty.pending(name))
    for walk in (holding, empty):
        walk.store(8)
        walk.leave("c2")
    assert [len(walk.in_replay()) for walk in (holding, empty)] == [0, 0]
    assert len(holding.got["c1"]) > len(pair(rules, 8).got["c1"])
    assert (len(empty.got["c1"]) > len(pair(rules, 8).got["c1"])) == always
    last = pair(rules, 8)
    for name in ("c1", "c2"):
        last.leave(name)
    assert not last.core.read_follows([7]), "nobody is left"


@pytest.mark.parametrize("rules", WHEN_ADDED.values(), ids=WHEN_ADDED)
@given(pending=st.sets(st.integers(0, 7)), acknowledged=st.integers(0, 8))
@settings(deadline=None, max_examples=40)
def test_a_read_follows_what_enters_the_replay_set(
    rules: profiles.Profile, pending: set[int], acknowledged: int
) -> None:
    """Whatever is taken back: exactly if one of it is above mark-delete."""
    core = pair(rules, 8).core
    for entry in range(acknowledged):
        core.ack(entry)
    added = [replay_set.add_to_replay(core.state, entry, NO_HASH) for entry in sorted(pending)]
    assert core.read_follows(sorted(pending)) == any(added) == (core.state.s[N_REPLAY] > 0)
    core.state.s[BLOCKED_ON_UNACKED] = 1
    assert core.read_follows(sorted(pending), was_blocked=True) == any(added), "it is blocked still"
    core.state.s[BLOCKED_ON_UNACKED] = 0
    assert core.read_follows(sorted(pending), was_blocked=True)
