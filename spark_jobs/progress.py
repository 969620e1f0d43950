"""Report the progress of jobs on stderr: one rewritten line on a terminal, a line every ten seconds in a task's log.

The entry points of stages always report, because their stderr is a task log. The command line reports only on a terminal,
and as JSON (``quiet_on_a_pipe``). Errors are always printed. ``dispatch_core.cli.log_lines`` chooses the form of the lines.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from dispatch_core.audit.sentences.names import printable
from dispatch_core.cli.log_lines import OUTPUT, as_json, write_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS_BETWEEN_LINES: Final = 10.0
_silent = False


@contextmanager
def quiet_on_a_pipe() -> Iterator[None]:
    """Show progress within the block only if stderr is a terminal, or lines are JSON objects."""
    global _silent  # noqa: PLW0603 - stderr is one per process, and so is this
    before, _silent = _silent, not (sys.stderr.isatty() or as_json())
    try:
        yield
    finally:
        _silent = before


def say(line: str) -> None:
    """Print a line of progress."""
    if not _silent:
        write_line(printable(line))


def complain(line: str) -> None:
    """Print an error, also where progress is not shown."""
    write_line(printable(line), logging.ERROR, OUTPUT)


@contextmanager
def tasks_done(spark: SparkSession, label: str, total: int) -> Iterator[None]:
    """Report how many of the ``total`` tasks of a Spark job are done while the block runs it."""
    if _silent:
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, label, total, done), name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(spark: SparkSession, label: str, total: int, done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    terminal = sys.stderr.isatty() and not as_json()
    reported, reported_at = -1, time.monotonic()
    while not done.wait(0.5 if terminal else 2.0):
        stages = (
            stage
            for job in tracker.getActiveJobsIds()
            if (info := tracker.getJobInfo(job))
            for stage in info.stageIds
        )
        finished = min(
            total,
            max(
                (info.numCompletedTasks for stage in stages if (info := tracker.getStageInfo(stage))),
                default=0,
            ),
        )
        if finished == reported or not (terminal or time.monotonic() - reported_at >= _SECONDS_BETWEEN_LINES):
            continue
        reported, reported_at = finished, time.monotonic()
        line = f"{label}: {finished} of {total}"
        if terminal:
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        else:
            write_line(line)
    if terminal:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
