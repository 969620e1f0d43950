"""Command line of the replay: one interval at once, or one step of a replay in groups.

Run as ``python -m spark_jobs.replay --interval-start 2026-11-21 --warehouse DIR``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from spark_jobs import stage_command
from spark_jobs.intervals import Interval
from spark_jobs.progress import complain
from spark_jobs.replay.replay_groups import (
    discard,
    fold_group,
    is_small_plan,
    may_fold_here,
    plan,
    publish_groups,
)
from spark_jobs.replay.replay_interval import replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STEPS: Final = {
    "plan": "Deal the dispatchers of an interval out to groups.",
    "group": "Fold the dispatchers of one group.",
    "publish": "Publish what all groups folded: one commit per table.",
    "discard": "Remove what a run planned and folded.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay one interval, or do one step of it; see ``--help``."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and not words[0].startswith("-"):
        return run_step(words)
    parser = stage_command.parser(
        "python -m spark_jobs.replay",
        "Fold every dispatcher's log and publish one interval of results. In steps, for tasks that are mapped: "
        "plan, group, publish, discard (each has its own --help).",
        limits=True,
        overrides=True,
    )
    options = parser.parse_args(words)

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        return replay(spark, options.warehouse, span, limits=options.limits, overrides=options.overrides)

    # The rows are read by the tasks themselves: the JVM only plans, however large the log.
    return stage_command.run(options, work, lambda _span: 0)


def run_step(words: Sequence[str]) -> int:
    """``plan``, ``group``, ``publish`` or ``discard`` as a command; the first word says which."""
    step, *rest = words
    if step not in _STEPS:
        complain(f"error: {step!r} is no step of a replay; there are {', '.join(_STEPS)}")
        return 2
    plans = step == "plan"
    parser = stage_command.parser(
        f"python -m spark_jobs.replay {step}", _STEPS[step], limits=plans, overrides=plans
    )
    parser.add_argument("--run-id", required=True, help="whose plan it is; the same for all steps of one run")
    if step == "plan":
        parser.add_argument("--groups", type=int, default=8, help="at most so many (default %(default)s)")
    if step == "group":
        parser.add_argument("--group", type=int, required=True, help="which, from 0")
    options = parser.parse_args(rest)
    home, run_id = options.warehouse, options.run_id
    if step == "publish":
        return stage_command.run_here(options, lambda span: publish_groups(home, span, run_id))
    if step == "discard":
        return stage_command.run_here(options, lambda span: discard(home, span, run_id))

    def work(spark: SparkSession, span: Interval) -> dict[str, Any]:
        if step == "plan":
            return plan(
                spark,
                home,
                span,
                run_id,
                groups=options.groups,
                limits=options.limits,
                overrides=options.overrides,
            )
        return fold_group(spark, home, span, run_id, options.group)

    def is_small(span: Interval) -> bool:
        if step == "plan":
            return is_small_plan(home, span)
        return may_fold_here(home, span, run_id, options.group)

    return stage_command.run(options, work, lambda _span: 0, is_small=is_small)
