"""The retry policy of all DAGs: which failures of a task are worth another attempt."""

from __future__ import annotations

from typing import Final

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

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
