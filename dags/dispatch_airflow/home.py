"""The folders of one installation, the loggers of tasks and the errors of steps."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dispatch_core.errors import DispatchAuditError

HOME_VARIABLE: Final = "DISPATCH_AUDIT_HOME"
SOURCE_VARIABLE: Final = "DISPATCH_AUDIT_SOURCE"
#: Path of a file of settings that hold in place of those in the logs' headers.
SETTINGS_VARIABLE: Final = "DISPATCH_AUDIT_SETTINGS"

#: What a person wants to see of a task: ``make run`` shows these lines on the terminal.
progress = logging.getLogger("dispatch_audit.progress")
#: All else that a child process says.
output = logging.getLogger("dispatch_audit.output")


class StepError(DispatchAuditError):
    """A step that failed for a reason another attempt may cure, such as a Spark process that was killed."""


class ParameterError(DispatchAuditError):
    """A run's parameters that name no interval, no source or no rules."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder in which one installation keeps what it lands, writes and publishes."""

    root: Path

    @classmethod
    def current(cls) -> Home:
        """The home that the environment names, by default ``.dispatch-audit`` in the working directory."""
        return cls(Path(os.environ.get(HOME_VARIABLE) or ".dispatch-audit").absolute())

    @property
    def landing(self) -> Path:
        """Pulled log files, each kept once, and which intervals they belong to."""
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
