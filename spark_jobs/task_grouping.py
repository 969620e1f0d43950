"""Group work into tasks: a large item gets a task of its own, small ones share one; largest tasks first.

A task costs Spark some ten milliseconds whatever it does, and each task stages files of its own: thousands of small items
of work would mostly pay for that. Few large tasks would leave cores idle at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: So many tasks per core: the last one to end keeps the others waiting for little.
_TASKS_PER_CORE: Final = 4


def group_into_tasks(sizes: Sequence[int], cores: int, *, least: int) -> list[list[int]]:
    """Group work items, by their number, into tasks; returns the tasks in the order in which they should start.

    ``sizes`` are in any unit; ``least`` is the size below which a task is not worth while. An item above the fair share
    stands alone; the others fill tasks up to the share, neighbours together and in their order. The result depends on
    the arguments alone.
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
