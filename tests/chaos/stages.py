"""The stages of the pipeline by name, each on the folders of a home, as the product's entry points call them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from spark_jobs.intervals import interval

#: The interval of a trial, which is the day of the sample's events. ``CHAOS_INTERVAL``: another, as START/END.
SPAN: Final = interval(*(os.environ.get("CHAOS_INTERVAL") or "2026-11-21").split("/"))


def _pull(home: Path, source: Path) -> None:
    from spark_jobs.pull.pull_logs import pull

    pull(source, home / "landing", SPAN.start, interval_end=SPAN.end)


def _ingest(home: Path, _source: Path) -> None:
    from spark_jobs.ingest.with_history import ingest_with_history

    with _spark() as spark:
        ingest_with_history(spark, home / "landing", home / "warehouse", SPAN)


def _replay(home: Path, _source: Path) -> None:
    from spark_jobs.replay.replay_interval import replay

    with _spark() as spark:
        replay(spark, home / "warehouse", SPAN)


def _aggregates(home: Path, _source: Path) -> None:
    from spark_jobs.aggregates.aggregate_interval import aggregate

    aggregate(home / "warehouse", SPAN)


def _validate(home: Path, _source: Path) -> None:
    from dispatch_expectations.policy import current_policy
    from dispatch_expectations.validate import validate_interval

    validate_interval(home / "warehouse", SPAN.start, home / "data-docs", current_policy())


def _reports(home: Path, _source: Path) -> None:
    from spark_jobs.reports.report_pages import write_reports

    write_reports(home / "warehouse", SPAN, home / "reports")


def _maintenance(home: Path, _source: Path) -> None:
    """Run maintenance again and again, for a minute or until it is killed."""
    from spark_jobs.maintenance.maintain import compact, retain, verify
    from spark_jobs.maintenance.retention import LEAST_DAYS, Retention

    until = time.monotonic() + 60
    while time.monotonic() < until:
        verify(home / "landing", report=_silent)
        retain(home, Retention(unreachable=LEAST_DAYS), report=_silent)
        compact(home / "warehouse", report=_silent)


def _silent(_line: str) -> None:
    """Drop a line."""


def _all(home: Path, source: Path) -> None:
    with _spark():
        for name, stage in STAGES.items():
            print(f"stage {name}", file=sys.stderr)
            stage(home, source)


def _spark() -> Any:
    from spark_jobs.session import running_session

    return running_session(0)


#: In the order of a run.
STAGES: Final[dict[str, Callable[[Path, Path], None]]] = {
    "pull": _pull,
    "ingest": _ingest,
    "replay": _replay,
    "aggregates": _aggregates,
    "validate": _validate,
    "reports": _reports,
}
#: Further commands of a trial.
BESIDE: Final[dict[str, Callable[[Path, Path], None]]] = {"all": _all, "maintenance": _maintenance}
