"""Group work into tasks: a large item gets a task of its own, small ones share one; largest tasks first.

A task costs Spark some ten milliseconds and stages files of its own, which is too much for each of thousands of small items.
Few large tasks would leave cores idle at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: Tasks per core: with several, all cores end at about the same time.
_TASKS_PER_CORE: Final = 4


def group_into_tasks(sizes: Sequence[int], cores: int, *, least: int) -> list[list[int]]:
    """Group work items into tasks; return tasks of item numbers, in the order in which they should start.

    ``sizes``: of the items, in any unit. ``least``: the smallest size of a task that is worth while. An item larger than the
    fair share gets a task of its own; the others fill tasks up to the share, in their order. The result depends on the
    arguments alone.
    """
    share = max(least, sum(sizes) // (cores * _TASKS_PER_CORE))
    tasks = [[number] for number, size in enumerate(sizes) if size >= share]
    open_task: list[int] = []
    open_size = 0
    for number, size in enumerate(sizes):
        if size >= share:
            continue
        if open_task and open_size + size > share:
            tasks.append(open_task)
            open_task, open_size = [], 0
        open_task.append(number)
        open_size += size
    if open_task:
        tasks.append(open_task)
    return sorted(tasks, key=lambda task: (-sum(sizes[number] for number in task), task))
