"""Report runs of ``dispatch_audit`` that have not judged their interval in time: the callback of the DAG's deadline.

Airflow's scheduler checks deadlines, and the triggerer calls this (in the executor a callback has no connections in Airflow
3.3). While no scheduler runs, nothing is called; the deadlines missed meanwhile are reported when it runs again.
docs/airflow.md lists what to monitor from outside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from dispatch_airflow.home import Home, ParameterError, progress

HOURS_VARIABLE: Final = "DISPATCH_AUDIT_DEADLINE_HOURS"
#: From the end of a day, or of a longer interval, until its verdicts must be there.
_AFTER_DAYS: Final = timedelta(hours=6)
#: The same of a shorter interval.
_AFTER_HOURS: Final = timedelta(minutes=15)
_MOST_HOURS: Final = 24.0 * 366
#: So many intervals of a schedule are looked at, to find the longest.
_LOOKED_AT: Final = 400


def longest_interval(schedule: str) -> timedelta:
    """Return the longest interval between two ticks of a cron expression.

    >>> longest_interval("0 * * * *"), longest_interval("0 8-18 * * *")
    (datetime.timedelta(seconds=3600), datetime.timedelta(seconds=50400))

    Raises ``ParameterError`` for a text that is no cron expression.
    """
    from croniter import croniter  # type: ignore[import-untyped]

    try:
        ticks = croniter(schedule, datetime(2024, 1, 1))
        times = [ticks.get_next(datetime) for _ in range(_LOOKED_AT)]
    except ValueError as error:  # croniter's own errors are ValueErrors
        raise ParameterError(f"the schedule {schedule!r} is no cron expression: {error}") from None
    return max(after - before for before, after in pairwise(times))


def time_allowed(schedule: str) -> timedelta:
    """Return the time from the start of an interval of a schedule until its verdicts must be there.

    By default that is the interval, and 15 minutes, or 6 hours if it is a day or longer. Raises ``ParameterError`` if the
    environment variable is no time.
    """
    text = os.environ.get(HOURS_VARIABLE)
    if not text:
        longest = longest_interval(schedule)
        return longest + (_AFTER_HOURS if longest < timedelta(days=1) else _AFTER_DAYS)
    try:
        hours = float(text)
    except ValueError:
        hours = -1.0
    if not 0 < hours <= _MOST_HOURS:
        raise ParameterError(
            f"{HOURS_VARIABLE} is {text!r}; give the hours from the start of an interval until its verdicts "
            f"must be there, more than 0 and at most {_MOST_HOURS:.0f}"
        )
    return timedelta(hours=hours)


async def verdict_is_late(context: Mapping[str, Any]) -> None:
    """Call ``report_if_late`` in a thread, so that the triggerer can do other work: Airflow's callback."""
    from asgiref.sync import sync_to_async

    # Only threads of asgiref can get a connection from Airflow.
    await sync_to_async(report_if_late)(context)


def report_if_late(context: Mapping[str, Any]) -> None:
    """Send a notice by every channel if the run is a scheduled one and its verdicts are missing.

    A run that failed because promises were broken has verdicts, and an alert of its own. Backfills and manual runs are not
    reported.
    """
    run, due = context["dag_run"], context["deadline"]["deadline_time"]
    if run.get("run_type") != "scheduled":
        progress.info("deadline: %s is not a scheduled run", run.get("dag_run_id"))
        return
    start = str(run.get("data_interval_start") or run.get("logical_date"))
    if judged(start):
        progress.info("deadline: the verdicts of %s are there", start)
        return
    from dispatch_airflow import notify

    subject, body = message(run, start, str(due))
    progress.warning("deadline: %s", subject)
    notify.send_notice(subject, body, f"deadline:{run.get('dag_id')}:{run.get('dag_run_id')}")


def judged(interval_start: str) -> bool:
    """True if the interval has verdicts."""
    from dispatch_expectations.validate import read_verdicts
    from spark_jobs.intervals import parse_moment

    return bool(read_verdicts(Home.current().warehouse, parse_moment(interval_start)))


def message(run: Mapping[str, Any], interval_start: str, due: str) -> tuple[str, str]:
    """Write subject and text of the notice that a run has not judged its interval in time."""
    state = str(run.get("state"))
    if state == "failed":
        what = "The run ended without a verdict. Open its first failed task: the log says what is wrong and what to do."
    elif state == "queued":
        what = (
            "The run is waiting to start. Check if earlier runs of the DAG are still running, and if scheduler and executor "
            "have free slots."
        )
    else:
        what = "The run is still running. Its task logs show its progress; it need not be started again."
    body = [
        f"The interval from {interval_start} should have been judged by {due}, and has no verdict yet.",
        f"Run {run.get('dag_run_id')} of {run.get('dag_id')}: {state}, started {run.get('start_date') or 'not yet'}.",
        what,
    ]
    return f"No verdict in time: dispatch audit of {interval_start}", "\n".join(body)
