"""The callback for a run of ``dispatch_audit`` that has not judged its interval in time.

Airflow's scheduler watches the clock and has this called in the triggerer (a callback in the executor gets no connections in
Airflow 3.3). It cannot watch itself: while no scheduler runs, nothing is called, and every miss is reported when it is back
(docs/airflow.md lists what to watch from outside).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from dispatch_airflow.home import Home, ParameterError, progress

HOURS_VARIABLE: Final = "DISPATCH_AUDIT_DEADLINE_HOURS"
#: From the start of a day to six hours after its end.
DEFAULT_HOURS: Final = 30.0
_MOST_HOURS: Final = 24.0 * 366


def time_allowed() -> timedelta:
    """Time from the start of its interval within which a scheduled run must have judged it.

    Raises ``ParameterError`` where the environment names no time.
    """
    text = os.environ.get(HOURS_VARIABLE) or str(DEFAULT_HOURS)
    try:
        hours = float(text)
    except ValueError:
        hours = -1.0
    if not 0 < hours <= _MOST_HOURS:
        raise ParameterError(
            f"{HOURS_VARIABLE} is {text!r}; give the hours from the start of an interval to the time by which its verdicts "
            f"must be there, more than 0 and at most {_MOST_HOURS:.0f}"
        )
    return timedelta(hours=hours)


async def verdict_is_late(context: Mapping[str, Any]) -> None:
    """Airflow's callback: what ``tell_if_late`` does, beside the triggerer's other work."""
    from asgiref.sync import sync_to_async

    # Of all threads only asgiref's can ask Airflow for a connection.
    await sync_to_async(tell_if_late)(context)


def tell_if_late(context: Mapping[str, Any]) -> None:
    """Tell it by every channel if the run is one of the schedule and its verdicts are missing.

    A run that ended red because promises were broken has judged: its own alert said so. Backfills and runs by hand are
    watched by whoever started them.
    """
    run, due = context["dag_run"], context["deadline"]["deadline_time"]
    if run.get("run_type") != "scheduled":
        progress.info("deadline: %s is no run of the schedule", run.get("dag_run_id"))
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
    """Subject and text of the notice that a run has not judged its interval in time."""
    state = str(run.get("state"))
    if state == "failed":
        what = "The run ended without a verdict. Open its first red task: its log says what was wrong and what to do."
    elif state == "queued":
        what = (
            "The run waits to be started. See whether earlier runs of the DAG are still at work, and whether scheduler and "
            "executor have free slots."
        )
    else:
        what = "The run is still at work. Its task logs say how far it is; nothing has to be started anew."
    body = [
        f"The interval from {interval_start} should have been judged by {due}, and there is no verdict of it yet.",
        f"Run {run.get('dag_run_id')} of {run.get('dag_id')}: {state}, started {run.get('start_date') or 'not yet'}.",
        what,
    ]
    return f"No verdict in time: dispatch audit of {interval_start}", "\n".join(body)
