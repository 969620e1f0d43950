"""Shrink a script that diverges: leave out steps while it still does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.soak.script import Script


def shrink(script: Script, still: Callable[[Script], bool], most: int) -> Script:
    """Return a script with fewer steps for which ``still`` holds, after at most ``most`` calls of it.

    Parts of half of the steps are left out first, then of a quarter, down to single steps. ``still`` plays a script, and a
    race need not come again: what it denies stays in the script, so the result has been seen to diverge.

    >>> from tests.soak.script import Step, script_of
    >>> long = replace(script_of(1), steps=tuple(Step("pause", count=i) for i in range(20)))
    >>> [step.count for step in shrink(long, lambda s: {3, 17} <= {step.count for step in s.steps}, 100).steps]
    [3, 17]
    """
    calls = 0
    length = len(script.steps) // 2
    while length >= 1:
        at = 0
        while at < len(script.steps):
            if calls == most:
                return script
            calls += 1
            shorter = replace(script, steps=script.steps[:at] + script.steps[at + length :])
            if still(shorter):
                script = shorter
            else:
                at += length
        length //= 2
    return script
