"""Consumers that membership changes near a delivery may make its owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.selectors import factory
from dispatch_core.verify.without_trace.possible_owners import (
    MOST_CHANGES,
    ActiveConsumer,
    Change,
    Member,
    PossibleOwners,
    Roster,
    SelectorRoster,
)
from dispatch_core.verify.without_trace.races import RACE_US

A_SECOND = 1_000_000
HASHES = (1, 9_000, 21_772, 33_000, 47_000, 58_952)


def ring() -> SelectorRoster:
    return SelectorRoster(factory.build(resolve("4.2.4")))


def split() -> SelectorRoster:
    return SelectorRoster(
        factory.build(resolve("4.2.4", {"subscriptionKeySharedUseConsistentHashing": False}))
    )


def failover() -> ActiveConsumer:
    return ActiveConsumer(topic="t", partition_index=1, ring=False, exclusive=False)


def joins(number: int, t_us: int) -> Change:
    return Change(t_us, Member(number, f"c{number}"))


def leaves(number: int, t_us: int) -> Change:
    return Change(t_us, leaves=number)


def taken(roster: Roster, *changes: Change) -> PossibleOwners:
    near = PossibleOwners()
    for change in changes:
        near.before(change, roster)
        roster.apply(change)
    return near


def owners(near: PossibleOwners, roster: Roster, hash_value: int, t_us: int, *ahead: Change) -> set[int]:
    return {consumer for consumer in range(1, 9) if near.may_own(consumer, hash_value, t_us, roster, ahead)}


def test_without_a_change_near_by_the_owner_alone_may_own_a_hash() -> None:
    roster = ring()
    near = taken(roster, joins(1, 0), joins(2, 0))
    for hash_value in HASHES:
        assert owners(near, roster, hash_value, A_SECOND) == {roster.owner(hash_value)}


def test_a_join_near_by_leaves_the_owners_before_and_after_it() -> None:
    roster = ring()
    near = taken(roster, joins(1, 0), joins(2, 0))
    before = {hash_value: roster.owner(hash_value) for hash_value in HASHES}
    near.before(joins(3, A_SECOND), roster)
    roster.apply(joins(3, A_SECOND))
    assert any(roster.owner(hash_value) == 3 for hash_value in HASHES)
    for t_us in (A_SECOND - RACE_US, A_SECOND, A_SECOND + RACE_US):
        for hash_value in HASHES:
            expected = {before[hash_value], roster.owner(hash_value)}
            assert owners(near, roster, hash_value, t_us) == expected
    for hash_value in HASHES:
        assert owners(near, roster, hash_value, A_SECOND - RACE_US - 1) == {before[hash_value]}
        assert owners(near, roster, hash_value, A_SECOND + RACE_US + 1) == {roster.owner(hash_value)}


def test_two_changes_may_have_come_in_either_order() -> None:
    """Split ranges depend on the order: the second consumer takes half of all, the third half of a half."""
    roster = split()
    near = taken(roster, joins(1, 0), joins(2, A_SECOND), joins(3, A_SECOND + 1))
    assert roster.owner(20_000) == 2
    assert owners(near, roster, 20_000, A_SECOND) == {1, 2, 3}
    assert owners(near, roster, 65_000, A_SECOND) == {1}


def test_a_consumer_does_not_leave_before_it_joins() -> None:
    roster = failover()
    near = taken(roster, joins(1, 0), joins(2, A_SECOND), leaves(2, A_SECOND + 1))
    # Partition 1 of two consumers is the second one's.
    assert owners(near, roster, 0, A_SECOND) == {1, 2}
    assert owners(near, roster, 0, 3 * A_SECOND) == {1}


def test_changes_that_follow_count() -> None:
    roster = failover()
    near = taken(roster, joins(1, 0))
    assert owners(near, roster, 0, A_SECOND, joins(2, A_SECOND + RACE_US)) == {1, 2}
    assert owners(near, roster, 0, A_SECOND, joins(2, A_SECOND + RACE_US + 1)) == {1}


def test_any_consumer_may_own_a_hash_among_too_many_changes() -> None:
    roster = ring()
    near = taken(roster, joins(1, 0), *(joins(number, A_SECOND) for number in range(2, MOST_CHANGES + 3)))
    assert owners(near, roster, HASHES[0], A_SECOND) == set(range(1, 9))
    assert len(owners(near, roster, HASHES[0], 3 * A_SECOND)) == 1


def test_a_restored_roster_did_not_come_about_by_the_changes_before() -> None:
    roster = failover()
    near = taken(roster, joins(1, 0), joins(2, A_SECOND))
    near.restart()
    assert owners(near, roster, 0, A_SECOND) == {roster.owner(0)}


@pytest.mark.parametrize("made", [ring, split, failover])
@given(data=st.data())
def test_what_is_forgotten_changes_no_later_answer(made, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(0, 20 * RACE_US), min_size=1, max_size=12).map(sorted))
    connected, changes = [], []
    for t_us in times:
        number = data.draw(st.integers(1, 5))
        if number in connected:
            connected.remove(number)
            changes.append(leaves(number, t_us))
        else:
            connected.append(number)
            changes.append(joins(number, t_us))
    until_us = data.draw(st.integers(0, times[-1]))
    whole_roster, roster = made(), made()
    whole = taken(whole_roster, *changes)
    first = [change for change in changes if change.t_us <= until_us]
    near = taken(roster, *first)
    near.forget(until_us)
    for change in changes[len(first) :]:
        near.before(change, roster)
        roster.apply(change)
    t_us = data.draw(st.integers(until_us, times[-1] + 2 * RACE_US))
    for hash_value in HASHES:
        assert owners(near, roster, hash_value, t_us) == owners(whole, whole_roster, hash_value, t_us)
