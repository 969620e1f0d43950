"""Folders of one installation, loggers of tasks and errors of steps."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dispatch_core.errors import DispatchAuditError

HOME_VARIABLE: Final = "DISPATCH_AUDIT_HOME"
SOURCE_VARIABLE: Final = "DISPATCH_AUDIT_SOURCE"
#: Path of a file of settings that hold in place of those in the logs' headers.
SETTINGS_VARIABLE: Final = "DISPATCH_AUDIT_SETTINGS"

#: Lines of a task for people; ``make run`` shows them on the terminal.
progress = logging.getLogger("dispatch_audit.progress")
#: All other lines of child processes.
output = logging.getLogger("dispatch_audit.output")


class StepError(DispatchAuditError):
    """A step failed, and another attempt may succeed, such as after a Spark process that was killed."""


class ParameterError(DispatchAuditError):
    """A run's parameters name no interval, no source or no rules."""


@contextmanager
def clear_failure() -> Iterator[None]:
    """Turn a step's errors into Airflow's: another attempt only for ``StepError``, not for wrong input."""
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    try:
        yield
    except StepError as error:
        raise AirflowException(str(error)) from error
    except DispatchAuditError as error:
        raise AirflowFailException(str(error)) from error


@dataclass(frozen=True, slots=True)
class Home:
    """The folder in which one installation keeps what it lands, writes and publishes."""

    root: Path

    @classmethod
    def current(cls) -> Home:
        """Return the home that the environment names, by default ``.dispatch-audit`` in the working directory."""
        return cls(Path(os.environ.get(HOME_VARIABLE) or ".dispatch-audit").absolute())

    @property
    def landing(self) -> Path:
        """Pulled log files, each kept once, and the intervals that use them."""
        return self.root / "landing"

    @property
    def warehouse(self) -> Path:
        """Delta tables, one folder per table."""
        return self.root / "warehouse"

    @property
    def data_docs(self) -> Path:
        """Great Expectations' pages."""
        return self.root / "data-docs"

    @property
    def reports(self) -> Path:
        """A page per subscription and interval, for people."""
        return self.root / "reports"

    @property
    def what_if(self) -> Path:
        """Comparisons of rules, one folder per run of ``dispatch_what_if``."""
        return self.root / "what-if"

    @property
    def alerts(self) -> Path:
        """Every alert that was raised, one JSON object per line."""
        return self.root / "alerts" / "alerts.jsonl"
