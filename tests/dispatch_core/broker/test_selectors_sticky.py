"""Sticky ranges: every check of a joining consumer, both selection rules, and the ranges that clients may announce."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.selectors import factory
from dispatch_core.broker.selectors.node_ranges import equal_ranges, hashed_ranges
from dispatch_core.broker.selectors.selector import Announced
from dispatch_core.broker.selectors.sticky_ranges import EndPointRangesSelector, ExactRangesSelector
from dispatch_core.errors import SelectorRefusedError

Sticky = EndPointRangesSelector | ExactRangesSelector
BOTH = pytest.mark.parametrize("rule", [EndPointRangesSelector, ExactRangesSelector])


def twins(first: int, second: int) -> bool:
    """Consumers 1 and 2 are equal to the broker."""
    return first == second or {first, second} == {1, 2}


def refusal(selector: Sticky, consumer: int, ranges: Announced) -> str:
    before = selector.assignments()
    with pytest.raises(SelectorRefusedError) as refused:
        selector.add(consumer, "any", ranges)
    assert refused.value.consumer == consumer
    assert selector.assignments() == before
    return refused.value.reason


@BOTH
@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        (None, "Must specify key shared meta for consumer."),
        ([], "Ranges for KeyShared policy must not be empty."),
        ([(5, 4)], "Fixed hash range start > end"),
        ([(30, 40)], "Range conflict with consumer C1"),
        ([(0, 65535)], "Range conflict with consumer C1"),
        ([(22, 23)], "Range conflict with consumer C1"),  # inside one of its ranges
        ([(100, 110), (10, 12)], "Range conflict with consumer C1"),
    ],
)
def test_refusals(rule: type[Sticky], ranges: Announced, reason: str) -> None:
    selector = rule()
    selector.add(1, "one", [(0, 10), (20, 30)])
    assert refusal(selector, 2, ranges).startswith(reason)


def test_the_order_of_checks_and_which_range_is_named() -> None:
    exact, points = ExactRangesSelector(), EndPointRangesSelector()
    both_wrong = [(9, 8), (0, 5), (5, 6)]
    assert refusal(points, 1, both_wrong) == "Fixed hash range start > end"
    # Sorted by start, the overlap comes before the range that is the wrong way round.
    assert refusal(exact, 1, both_wrong) == "Consumer's own ranges conflict: [0,5] overlaps with [5,6]"
    assert refusal(exact, 1, [(5, 9), (2, 1)]) == "Fixed hash range start > end for range: [2,1]"
    points.add(1, "one", [(0, 5), (5, 6)])  # before #24730 a consumer is not compared with itself
    assert points.select(6) == 1


def test_selection_between_two_ranges_of_one_consumer() -> None:
    exact, points = ExactRangesSelector(), EndPointRangesSelector()
    for selector in (exact, points):
        selector.add(1, "one", [(0, 10), (20, 30)])
        selector.add(2, "two", [(40, 50)])
        assert [selector.select(slot) for slot in (0, 10, 20, 30, 40, 51)] == [1, 1, 1, 1, 2, None]
        assert selector.select(35) is None  # between two consumers
    assert [exact.select(15), points.select(15)] == [None, 1]


@BOTH
def test_a_gap_is_free_for_others(rule: type[Sticky]) -> None:
    selector = rule()
    selector.add(1, "one", [(0, 10), (20, 30)])
    selector.add(2, "two", [(12, 18)])
    assert [selector.select(slot) for slot in (10, 11, 12, 18, 19, 20)] == [1, None, 2, 2, None, 1]
    selector.remove(2)
    assert selector.assignments().ranges == ((0, 10, 1), (20, 30, 1))


def test_a_one_slot_range_is_hidden_from_the_report_of_end_points() -> None:
    selector = EndPointRangesSelector()
    selector.add(1, "one", [(65535, 65535)])
    assert (selector.select(65535), selector.assignments().ranges) == (1, ())
    selector.add(2, "two", [(0, 0), (10, 20)])  # end points 0, 10, 20, 65535: pairs shift
    assert selector.assignments().ranges == ((0, 10, 2),)


@BOTH
def test_a_dead_consumer_in_the_way_is_probed_first(rule: type[Sticky]) -> None:
    selector = rule()
    selector.add(1, "one", [(0, 10)])
    assert selector.in_the_way(2, [(20, 30)]) is None
    assert selector.in_the_way(2, [(5, 30)]) == 1
    selector.remove(1)  # its connection turned out dead
    selector.add(2, "two", [(5, 30)])
    assert selector.select(7) == 2
    with pytest.raises(SelectorRefusedError):
        selector.in_the_way(3, [(9, 8)])  # invalid by itself: no consumer is probed


def test_who_is_removed_among_equal_consumers() -> None:
    ranges = {1: [(0, 10)], 2: [(20, 30)]}
    left: list[tuple[Any, ...]] = []
    for selector in (
        EndPointRangesSelector(twins),
        ExactRangesSelector(twins),
        ExactRangesSelector(twins, remove_by_identity=True),
    ):
        for consumer, announced in ranges.items():
            selector.add(consumer, "same", announced)
        selector.remove(2)
        left.append(selector.assignments().ranges)
    assert left == [(), (), ((0, 10, 1),)]


@pytest.mark.parametrize(
    ("version", "exact", "by_identity"),
    [
        ("3.0.13", False, False),
        ("3.0.14", True, False),
        ("3.3.9", True, False),
        ("4.0.6", False, False),
        ("4.0.7", True, False),
        ("4.1.0", False, False),
        ("4.2.4", True, False),
        ("5.0.1", True, True),
    ],
)
def test_releases(version: str, exact: bool, by_identity: bool) -> None:
    rules = factory.rules(resolve(version, key_shared_mode="STICKY"))
    assert rules.selector is (ExactRangesSelector if exact else EndPointRangesSelector)
    assert dict(rules.parameters).get("remove_by_identity", False) is by_identity


closed = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair)))


@given(st.lists(st.lists(closed, min_size=1, max_size=3), max_size=8))
def test_exact_ranges_are_what_was_announced(announced: list[list[tuple[int, int]]]) -> None:
    """A consumer gets all of its slots and no other, or is refused and gets none."""
    selector = ExactRangesSelector()
    owner: dict[int, int] = {}
    for consumer, ranges in enumerate(announced):
        wanted = [slot for start, end in ranges for slot in range(start, end + 1)]
        free = len(set(wanted)) == len(wanted) and not owner.keys() & set(wanted)
        if free:
            selector.add(consumer, "any", ranges)
            owner |= dict.fromkeys(wanted, consumer)
        else:
            with pytest.raises(SelectorRefusedError):
                selector.add(consumer, "any", ranges)
        slots = np.arange(64, dtype=np.int64)
        assert selector.select_array(slots).tolist() == [owner.get(slot, -1) for slot in range(64)]


# --- what clients announce -------------------------------------------------------------------------------------------


def test_four_equal_nodes_of_the_article() -> None:
    assert [equal_ranges(4, node) for node in range(4)] == [
        [(0, 16383)],
        [(16384, 32767)],
        [(32768, 49151)],
        [(49152, 65535)],
    ]
    selector = ExactRangesSelector()
    for node in range(4):
        selector.add(node, f"node-{node}", equal_ranges(4, node))
    # Keys that all hash into the middle half load two nodes only.
    assert set(selector.select_array(np.arange(16384, 49152)).tolist()) == {1, 2}


def test_exactly_the_announced_slots() -> None:
    selector = ExactRangesSelector()
    selector.add(1, "one", [(0, 10000)])
    assert np.flatnonzero(selector.select_array(np.arange(65536)) == 1).tolist() == list(range(10001))


@given(st.integers(1, 12), st.integers(1, 40))
def test_hashed_ranges_are_a_sticky_set(nodes: int, points: int) -> None:
    """Ranges of hashed points are disjoint, complete and repeatable; the broker accepts them before and after #24730."""
    lists = [hashed_ranges(nodes, node, points=points) for node in range(nodes)]
    assert lists == [hashed_ranges(nodes, node, points=points) for node in range(nodes)]
    flat = sorted(pair for ranges in lists for pair in ranges)
    assert (flat[0][0], flat[-1][1]) == (0, 65535)
    assert all(first[1] + 1 == second[0] for first, second in pairwise(flat))
    assert all(points <= len(ranges) <= points + 1 for ranges in lists)
    for selector in (ExactRangesSelector(), EndPointRangesSelector()):
        for node, ranges in enumerate(lists):
            selector.add(node, f"node-{node}", ranges)
        for node, ranges in enumerate(lists):
            assert {selector.select(slot) for pair in ranges for slot in pair} == {node}


def test_many_points_even_out_the_load() -> None:
    def largest(points: int) -> int:
        lists = [hashed_ranges(10, node, points=points) for node in range(10)]
        return max(sum(end - start + 1 for start, end in ranges) for ranges in lists)

    assert largest(100) < 1.3 * 65536 / 10 < 2 * 65536 / 10 < largest(1)


def test_every_node_has_all_its_points_where_many_meet() -> None:
    assert len(hashed_ranges(16, 3, points=3000)) == 3000  # three slots of four are points


@pytest.mark.parametrize("numbers", [(0, 0, 1), (2, 2, 1), (2, -1, 1), (2, 0, 0), (65536, 0, 2)])
def test_numbers_that_make_no_sense(numbers: tuple[int, int, int]) -> None:
    nodes, index, points = numbers
    with pytest.raises(ValueError, match="index counts from 0"):
        hashed_ranges(nodes, index, points=points)
