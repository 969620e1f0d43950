"""Tasks, makers of tasks and arguments that several DAGs share."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, Final

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule, task

from dispatch_airflow import failures
from dispatch_airflow.home import Home
from dispatch_airflow.sources import namespaces

#: Airflow's rule (the task's ``retries``) for a step that may succeed another time, and for all errors that are not ours;
#: none for wrong input. The first rule that matches holds.
RETRIES: Final = ExceptionRetryPolicy(
    [
        RetryRule(
            "dispatch_airflow.home.StepError", RetryAction.DEFAULT, reason="another attempt may succeed"
        ),
        RetryRule(
            "dispatch_core.errors.DispatchAuditError",
            RetryAction.FAIL,
            reason="another attempt would fail in the same way",
        ),
    ]
)
#: Arguments of all tasks but those that send alerts: what their callback would report is that nothing can be sent.
DEFAULT_ARGS: Final[dict[str, Any]] = {
    "owner": "dispatch-audit",
    "retry_policy": RETRIES,
    "on_failure_callback": failures.report_failure,
}

#: A summary is one XCom, not one per key.
step = partial(task, multiple_outputs=False)


@step(retries=1, retry_delay=timedelta(seconds=30))
def list_sources() -> list[str]:
    """List the namespaces of the sources whose results the home has."""
    return namespaces(Home.current())
