"""Report runs that failed for other reasons than their verdict: the ``on_failure_callback`` of the tasks.

Airflow calls it in the worker after a task's last attempt, and in the DAG processor if the task's process was lost. One
message is sent per run, about the first task that failed; another one if the run was cleared and failed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow.sdk.exceptions import AirflowFailException

from dispatch_airflow.home import progress

#: Of the error, the last lines are shown.
_MOST_LINES: Final = 20
_MOST_CHARACTERS: Final = 4000


class BrokenPromisesError(AirflowFailException):
    """An interval that was judged FAIL. Its alert says so; the run itself worked."""


def report_failure(context: Mapping[str, Any]) -> None:
    """Send a message to the channels of operational messages: which task of which run failed, why, and where its log is."""
    error = context.get("exception")
    if isinstance(error, BrokenPromisesError):
        return
    from dispatch_airflow import notify

    subject, body, key = message(context, error)
    progress.warning("failed: %s", subject)
    notify.send_notice(subject, body, key)


def message(context: Mapping[str, Any], error: object) -> tuple[str, str, str]:
    """Write subject, text and idempotency key of the message about a task that failed."""
    from airflow.sdk.log import redact  # type: ignore[attr-defined]

    from dispatch_airflow.pages.links import base_url

    task, run = context["ti"], context.get("dag_run")
    index = getattr(task, "map_index", None)
    group = f"[{index}]" if index is not None and index >= 0 else ""
    where = f"{task.dag_id}, run {task.run_id}"
    said = "no error was noted; the task's process may have been killed"
    if error is not None:
        kept = str(redact(str(error))).strip().splitlines()[-_MOST_LINES:]
        said = "\n".join(kept)[-_MOST_CHARACTERS:] or type(error).__name__
    lines = [f"The task {task.task_id}{group} of {where} failed:", "", said, ""]
    start = getattr(run, "data_interval_start", None)
    if start is not None:
        lines.append(f"Data interval of the run: from {start}")
    if base_url() is not None:
        lines.append(f"Log: {task.log_url}")
    lines.append(
        "The log says what was kept and what to do. Clear the task to try again; that is always safe. Other tasks of this "
        "run that fail are not reported."
    )
    # Grows when the run is cleared, so that a failure after that is another message.
    cleared = getattr(run, "clear_number", None) or 0
    return (
        f"[dispatch-audit] {task.task_id} failed: {where}",
        "\n".join(lines),
        f"failed:{task.dag_id}:{task.run_id}:{cleared}",
    )
