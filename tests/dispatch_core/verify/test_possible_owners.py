"""Consumers that membership changes near a delivery may make its owner."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.selectors import factory
from dispatch_core.verify.without_trace.possible_owners import (
    MOST_CHANGES,
    ActiveConsumer,
    Change,
    Deliveries,
    Member,
    Place,
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
    return Change(t_us, t_us, Member(number, f"c{number}"))


def leaves(number: int, t_us: int) -> Change:
    return Change(t_us, t_us, leaves=number)


def taken(roster: Roster, *changes: Change) -> PossibleOwners:
    near = PossibleOwners()
    for change in changes:
        near.before(change, roster)
        roster.apply(change)
    return near


def owners(
    near: PossibleOwners,
    roster: Roster,
    hash_value: int,
    t_us: int,
    *ahead: Change,
    delivered: tuple[tuple[int, int, int], ...] = (),
) -> set[int]:
    """Consumers that may own a hash at ``t_us``, when ``(t_us, consumer, hash_value)`` were delivered before."""
    place = Place(t_us, t_us)
    earlier = Deliveries(*np.array([(us, us, *to) for us, *to in delivered], np.int64).reshape(-1, 4).T)
    return {
        consumer
        for consumer in range(1, 9)
        if near.may_own(consumer, hash_value, place, roster, earlier, ahead)
    }


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


def test_a_change_that_a_delivery_shows_stays_in_force() -> None:
    roster = failover()
    near = taken(roster, joins(1, 0), joins(2, A_SECOND))
    delivered = ((A_SECOND + 1, 2, 0),)
    assert owners(near, roster, 0, A_SECOND + 2) == {1, 2}
    near = taken(roster := failover(), joins(1, 0), joins(2, A_SECOND))
    assert owners(near, roster, 0, A_SECOND + 2, delivered=delivered) == {2}


def test_a_delivery_before_the_first_racing_change_shows_nothing() -> None:
    roster = failover()
    near = taken(roster, joins(1, 0), joins(2, A_SECOND))
    assert owners(near, roster, 0, A_SECOND + 2, delivered=((A_SECOND - 1, 2, 0),)) == {1, 2}


def test_a_delivery_that_races_with_an_earlier_change_as_well_shows_nothing() -> None:
    """Consumer 2 may have left after the delivery of 1: this one does not show that 3 is in force."""
    settled_us, asked_us = A_SECOND - RACE_US, A_SECOND + 2
    roster = failover()
    near = taken(roster, joins(1, 0), joins(2, 0), leaves(2, settled_us), joins(3, A_SECOND))
    assert owners(near, roster, 0, asked_us, delivered=((A_SECOND, 3, 0),)) == {1, 3}
    near = taken(roster := failover(), joins(1, 0), joins(2, 0), leaves(2, settled_us), joins(3, A_SECOND))
    assert owners(near, roster, 0, asked_us, delivered=((A_SECOND + 1, 3, 0),)) == {3}


def test_deliveries_that_no_order_explains_exclude_no_order() -> None:
    """Consumer 7 never was there: its delivery is wrong, and tells nothing of the others."""
    roster = failover()
    near = taken(roster, joins(1, 0), joins(2, A_SECOND))
    assert owners(near, roster, 0, A_SECOND + 2, delivered=((A_SECOND + 1, 7, 0),)) == {1, 2}


def histories(changes: list[Change]) -> Iterator[tuple[int, ...]]:
    """Yield the orders in which some of the changes may have taken effect; those of one consumer keep theirs."""
    for count in range(len(changes) + 1):
        for order in permutations(range(len(changes)), count):
            of_consumer = {
                number: [at for at, change in enumerate(changes) if change.consumer == number]
                for number in {change.consumer for change in changes}
            }
            in_order = {
                number: [at for at in order if changes[at].consumer == number] for number in of_consumer
            }
            if all(
                in_order[number] == of_consumer[number][: len(in_order[number])] for number in of_consumer
            ):
                yield order


@pytest.mark.parametrize("made", [ring, split, failover])
@given(data=st.data())
def test_an_owner_is_one_of_a_history_with_the_fewest_contradictions(made, data: st.DataObject) -> None:
    """Compare with all histories: an order of changes, and before which delivery each of them took effect."""
    kinds = data.draw(st.lists(st.sampled_from([joins, leaves]), min_size=1, max_size=3))
    changes = [kind(data.draw(st.integers(1, 4)), A_SECOND + 4 * at) for at, kind in enumerate(kinds)]
    delivered = tuple(
        (A_SECOND + 4 * at + 1, data.draw(st.integers(1, 4)), data.draw(st.sampled_from(HASHES)))
        for at in range(data.draw(st.integers(0, 4)))
    )
    base = made()
    for number in (1, 2):
        base.apply(joins(number, 0))
    rosters = {}
    for order in histories(changes):
        rosters[order] = base.copy()
        for at in order:
            rosters[order].apply(changes[at])
    fewest, of_owner = 1 << 60, {}
    hash_value = data.draw(st.sampled_from(HASHES))
    for order, after in rosters.items():
        for cuts in combinations_with_replacement(range(len(order) + 1), len(delivered)):
            wrong = sum(
                rosters[order[:cut]].owner(to[2]) != to[1] for cut, to in zip(cuts, delivered, strict=True)
            )
            fewest = min(fewest, wrong)
            owner = after.owner(hash_value)
            of_owner[owner] = min(of_owner.get(owner, 1 << 60), wrong)
    roster = base.copy()
    near = PossibleOwners()
    for change in changes:
        near.before(change, roster)
        roster.apply(change)
    found = owners(near, roster, hash_value, A_SECOND + 100, delivered=delivered)
    assert found == {owner for owner, wrong in of_owner.items() if wrong == fewest and owner is not None}


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
