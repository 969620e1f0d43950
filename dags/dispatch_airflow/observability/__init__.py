"""Tell other systems about runs: metrics through Airflow and in a file, lineage through OpenLineage.

None of it fails a task, because the results of the audit do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from dispatch_airflow.home import progress

_Of = ParamSpec("_Of")


def never_fails(tell: Callable[_Of, None]) -> Callable[_Of, None]:
    """Make an error of a function an error in the task's log, and go on."""

    @wraps(tell)
    def without_errors(*args: _Of.args, **kwargs: _Of.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever a server or a library does, the verdict stands
            progress.error(
                "%s.%s: %s: %s; what it tells is missing there, the results of the audit stay",
                tell.__module__.rpartition(".")[2], tell.__name__, type(error).__name__, error,
            )  # fmt: skip

    return without_errors
