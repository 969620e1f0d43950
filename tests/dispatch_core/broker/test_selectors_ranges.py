"""Range-splitting selectors: the broker's (by width) and PIP-34's illustration (by rate)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.selectors.assignments import contains
from dispatch_core.broker.selectors.auto_split import AutoSplitSelector
from dispatch_core.broker.selectors.rate_split import RateSplitSelector
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError


def test_ranges_are_restored_as_a_record_has_them_or_not_at_all() -> None:
    selector = joined(3)
    moved = selector.restore({1: 100, 2: 65536, 3: 40000})
    assert selector.assignments().ranges == ((0, 100, 1), (101, 40000, 3), (40001, 65536, 2))
    assert set(moved.added) == {1, 2, 3}
    assert selector.add(4, "c4").added == {4: ((101, 20050),)}  # the widest, its lower half
    for wrong in ({1: 100, 2: 65536, 3: 40000}, {1: 1, 2: 2, 3: 3, 4: 4}, {1: 9, 2: 9, 3: 12, 4: 65536}):
        with pytest.raises(IllegalTransitionError, match="none of 4 consumers"):
            selector.restore(wrong)
    assert selector.assignments().of(4) == ((101, 20050),)


def joined(count: int, size: int = 65536) -> AutoSplitSelector:
    selector = AutoSplitSelector(size)
    for number in range(1, count + 1):
        selector.add(number, f"c{number}")
    return selector


#: Upper ends of the ranges, and their owners, as five consumers join.
JOINING = [
    ((65536, 1),),
    ((32768, 2), (65536, 1)),
    ((16384, 3), (32768, 2), (65536, 1)),
    ((16384, 3), (32768, 2), (49152, 4), (65536, 1)),
    ((8192, 5), (16384, 3), (32768, 2), (49152, 4), (65536, 1)),
]


def ends(selector: AutoSplitSelector) -> tuple[tuple[int, int], ...]:
    ranges = selector.assignments().ranges
    starts = [0, *(end + 1 for _, end, _ in ranges[:-1])]
    assert [start for start, _, _ in ranges] == starts[: len(ranges)]
    return tuple((end, owner) for _, end, owner in ranges)


@pytest.mark.parametrize("count", range(1, 6))
def test_joining(count: int) -> None:
    assert ends(joined(count)) == JOINING[count - 1]


def test_leaving_from_the_top_gives_the_range_down() -> None:
    selector = joined(5)
    selector.remove(1)
    assert ends(selector) == ((8192, 5), (16384, 3), (32768, 2), (65536, 4))
    selector.remove(2)
    assert ends(selector) == ((8192, 5), (16384, 3), (65536, 4))
    selector.remove(3)
    assert ends(selector) == ((8192, 5), (65536, 4))
    selector.remove(4)
    assert ends(selector) == ((65536, 5),)
    selector.remove(5)
    assert (ends(selector), selector.select(7)) == ((), None)


def test_leaving_in_reverse_undoes_joining() -> None:
    selector = joined(5)
    for count in (4, 3, 2, 1):
        selector.remove(count + 1)
        assert ends(selector) == JOINING[count - 1]


def test_the_projects_own_unit_test() -> None:
    assert ends(joined(4, size=64)) == ((16, 3), (32, 2), (48, 4), (64, 1))


def test_no_range_left() -> None:
    selector = joined(2, size=2)
    before = selector.assignments()
    with pytest.raises(SelectorRefusedError) as refused:
        selector.add(3, "c3")
    assert refused.value.reason == "No more range can assigned to new consumer, assigned consumers 2"
    assert "consumer 3 is refused" in str(refused.value)
    assert selector.assignments() == before


def test_equal_consumers_share_one_entry_of_the_map() -> None:
    """Equal consumers cannot happen on a healthy broker: the second join hides the first one's range from a removal."""
    selector = AutoSplitSelector(64, same=lambda first, second: first == second or {first, second} == {1, 2})
    for number in (1, 2, 3):
        selector.add(number, f"c{number}")
    selector.remove(1)  # finds the boundary noted last, which is the twin's
    assert selector.assignments().ranges == ((0, 16, 3), (17, 64, 1))
    selector.remove(2)
    assert selector.assignments().ranges == ((0, 16, 3), (17, 64, 1))


def test_a_tie_of_the_widest_range_that_goes_to_the_highest_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def highest(self: AutoSplitSelector) -> tuple[int, int]:
        return max(pairwise([0, *self._boundaries]), key=lambda pair: (pair[1] - pair[0], pair[1]))

    assert ends(joined(3)) == JOINING[2]
    monkeypatch.setattr(AutoSplitSelector, "_widest", highest)
    assert ends(joined(3)) == ((32768, 2), (49152, 3), (65536, 1))


histories = st.lists(st.integers(0, 12), max_size=30)


@given(histories, st.sampled_from([4, 64, 65536]))
def test_any_history_covers_all_slots(history: list[int], size: int) -> None:
    """Ranges stay disjoint and complete, reported moves are the changes, and a bulk lookup agrees with single ones."""
    selector = AutoSplitSelector(size)
    live: list[int] = []
    slots = np.unique(np.linspace(0, size - 1, 40).astype(np.int64))
    owners = selector.select_array(slots)
    for number, choice in enumerate(history, start=1):
        try:
            if choice < 7:
                moved = selector.add(number, "any")
                live.append(number)
            elif live:
                moved = selector.remove(live.pop(choice % len(live)))
            else:
                continue
        except SelectorRefusedError:
            assert len(live) == len(selector.assignments().ranges)
            continue
        ranges = selector.assignments().ranges
        assert {owner for _, _, owner in ranges} == set(live)
        if live:
            assert (ranges[0][0], ranges[-1][1]) == (0, size)
        now = selector.select_array(slots)
        for slot, old, new in zip(slots.tolist(), owners.tolist(), now.tolist(), strict=True):
            assert new == (-1 if (owner := selector.select(slot)) is None else owner)
            assert contains(moved.removed.get(old, ()), slot) is (old != new and old >= 0)
            assert contains(moved.added.get(new, ()), slot) is (old != new and new >= 0)
        owners = now


# --- PIP-34 ----------------------------------------------------------------------------------------------------------

UNIT = 65536


def parts(ranges: tuple[tuple[int, int, int], ...]) -> dict[int, tuple[float, float]]:
    """Consumer → its part of the interval 0..1, right end open."""
    return {owner: (start / UNIT, (end + 1) / UNIT) for start, end, owner in ranges}


def test_pip_34_table() -> None:
    """T0 to T4: the busiest consumer is split, the joining one gets the upper half, the less busy neighbour inherits."""
    rates = {1: 10.0, 2: 20.0, 3: 10.0}
    selector = RateSplitSelector(rates.__getitem__)
    selector.add(1, "c1")  # T0
    assert parts(selector.assignments().ranges) == {1: (0, 1)}
    selector.add(2, "c2")  # T1
    assert parts(selector.assignments().ranges) == {1: (0, 0.5), 2: (0.5, 1)}
    selector.add(3, "c3")  # T2: c2 is busier than c1
    assert parts(selector.assignments().ranges) == {1: (0, 0.5), 2: (0.5, 0.75), 3: (0.75, 1)}
    selector.remove(1)  # T3: c2 is its only neighbour
    assert parts(selector.assignments().ranges) == {2: (0, 0.75), 3: (0.75, 1)}
    selector.remove(2)  # T4
    assert parts(selector.assignments().ranges) == {3: (0, 1)}


def test_the_same_events_under_the_rule_that_ships() -> None:
    selector = joined(2)
    assert ends(selector) == ((32768, 2), (65536, 1))
    selector.add(3, "c3")  # both halves are equally wide, the lower one is split
    assert ends(selector) == ((16384, 3), (32768, 2), (65536, 1))
    selector.remove(1)
    assert ends(selector) == ((16384, 3), (65536, 2))
    selector.remove(2)
    assert ends(selector) == ((65536, 3),)


def test_a_closing_consumer_gives_its_range_to_the_less_busy_side() -> None:
    for heir, rates in ((1, {1: 1.0, 2: 9.0, 3: 5.0}), (3, {1: 5.0, 2: 9.0, 3: 1.0})):
        selector = RateSplitSelector({1: 1.0, 2: 9.0, 3: 1.0}.__getitem__)
        for number in (1, 2, 3):
            selector.add(number, "any")
        selector._rate = rates.__getitem__
        assert set(selector.remove(2).added) == {heir}


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=40))
def test_pip_34_demands(history: list[tuple[int, int]]) -> None:
    """Every consumer has one range, all of them cover the whole, also after removals."""
    rates: dict[int, float] = {}
    selector = RateSplitSelector(rates.__getitem__, range_size=16)
    live: list[int] = []
    slots = np.arange(16, dtype=np.int64)
    for number, (choice, rate) in enumerate(history):
        rates[number] = float(rate)
        if choice < 7:
            try:
                selector.add(number, "any")
                live.append(number)
            except SelectorRefusedError:
                assert any(start == end for start, end, _ in selector.assignments().ranges)
        elif live:
            selector.remove(live.pop(choice % len(live)))
        ranges = selector.assignments().ranges
        assert sorted(owner for _, _, owner in ranges) == sorted(live)
        covered = [slot for start, end, _ in ranges for slot in range(start, end + 1)]
        assert covered == (list(range(16)) if live else [])
        chosen = [selector.select(slot) for slot in range(16)]
        assert selector.select_array(slots).tolist() == [-1 if c is None else c for c in chosen]
