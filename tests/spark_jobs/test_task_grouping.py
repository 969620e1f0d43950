"""Grouping into tasks: every item once, large ones alone and first, small ones together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.task_grouping import group_into_tasks

SIZES = st.lists(st.integers(0, 1000), max_size=60)


@given(SIZES, st.integers(1, 8), st.integers(1, 500))
def test_every_item_is_in_one_task_and_no_task_of_several_is_above_the_share(
    sizes: list[int], cores: int, least: int
) -> None:
    tasks = group_into_tasks(sizes, cores, least=least)
    assert sorted(number for task in tasks for number in task) == list(range(len(sizes)))
    weights = [sum(sizes[number] for number in task) for task in tasks]
    assert weights == sorted(weights, reverse=True)
    share = max(least, sum(sizes) // (cores * 4))
    assert all(weight <= share for weight, task in zip(weights, tasks, strict=True) if len(task) > 1)
    assert all(task == sorted(task) for task in tasks)


def test_many_small_items_make_few_tasks_and_a_large_one_is_alone() -> None:
    tasks = group_into_tasks([10] * 500 + [100_000] + [10] * 4500, 2, least=1000)
    assert tasks[0] == [500]
    # the share is an eighth of 150,000
    assert [len(task) for task in tasks[1:]] == [1875, 1875, 1250]


def test_nothing_to_deal() -> None:
    assert group_into_tasks([], 2, least=1) == []
