"""Which task does what: every piece once, the large ones alone and first, the small ones together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.task_grouping import deal

SIZES = st.lists(st.integers(0, 1000), max_size=60)


@given(SIZES, st.integers(1, 8), st.integers(1, 500))
def test_every_piece_is_dealt_once_and_no_task_of_several_is_above_the_share(
    sizes: list[int], cores: int, least: int
) -> None:
    hands = deal(sizes, cores, least=least)
    assert sorted(number for hand in hands for number in hand) == list(range(len(sizes)))
    weights = [sum(sizes[number] for number in hand) for hand in hands]
    assert weights == sorted(weights, reverse=True)
    share = max(least, sum(sizes) // (cores * 4))
    assert all(weight <= share for weight, hand in zip(weights, hands, strict=True) if len(hand) > 1)
    assert all(hand == sorted(hand) for hand in hands)


def test_many_small_pieces_make_few_tasks_and_a_large_one_stands_alone() -> None:
    hands = deal([10] * 500 + [100_000] + [10] * 4500, 2, least=1000)
    assert hands[0] == [500]
    # the share is an eighth of 150,000
    assert [len(hand) for hand in hands[1:]] == [1875, 1875, 1250]


def test_nothing_to_deal() -> None:
    assert deal([], 2, least=1) == []
