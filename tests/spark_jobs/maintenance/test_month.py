"""A month of runs with weekly maintenance: what is not kept for ever does not grow."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from dispatch_airflow import maintenance_steps
from dispatch_expectations.data_docs import staged_site
from spark_jobs.intervals import Interval, interval
from spark_jobs.location import Location
from spark_jobs.maintenance import maintain
from spark_jobs.maintenance.retention import Retention
from spark_jobs.reports.report_pages import write_reports
from spark_jobs.warehouse import delta_tables
from spark_jobs.warehouse.records import turn
from tests.spark_jobs.maintenance.test_maintain import fill, worked

KEEP = Retention(results=5, snapshots=5, pages=5, what_if=5, alerts=5, unreachable=5)
DAYS = 28
#: Hourly runs, of which every twelfth is made: what is kept is a number of days, and all of them write the same.
HOURS_APART = 12
#: Tables that are kept for ever: one row or more of each interval.
FOR_EVER = ("warehouse/verdicts", "warehouse/run_metadata")
#: The month lies so far back that commits of the tables' logs are old, too (30 days).
BEGAN = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS + 40)


class Clock(datetime):
    """The time of the simulated month."""

    at = BEGAN

    @classmethod
    def now(cls, tz=None):
        return cls.at


def run(home: Path, span: Interval) -> None:
    """Write what a run of an hour writes, through the functions of its stages."""
    for name in ("deliveries", "snapshots", "verdicts"):
        fill(home, name, span, 1)
    worked(home, span)
    with staged_site(home / "data-docs", span.start) as site:
        (site.folder / "index.html").write_text("judged")
    write_reports(home / "warehouse", span, home / "reports")
    with turn(Location.of(home / "turns"), "alerts", wait_s=60):
        (home / "alerts" / span.name).mkdir(parents=True)
        (home / "alerts" / span.name / "0123.json").write_text("{}")
    for folder in (
        f"dag_id=dispatch_audit/run_id={span.name}/task_id=pull",
        f"dag_processor/{span.start:%Y-%m-%d}",
    ):
        (home / "logs" / folder).mkdir(parents=True, exist_ok=True)
        (home / "logs" / folder / "attempt=1.log").write_text("a line\n")


def files_of(home: Path) -> Iterator[Path]:
    return (path for path in home.rglob("*") if path.is_file())


def counted(home: Path) -> dict[str, int]:
    """Count the files of pages, alerts and logs, and of each table those of its newest version and of its log.

    Files of earlier versions are left out: Delta's VACUUM goes by the machine's clock
    (``test_files_of_earlier_versions_and_dead_writers_go_and_every_row_stays``).
    """
    found = Counter(path.relative_to(home).parts[0] for path in files_of(home))
    for log in home.rglob("_delta_log"):
        name = log.parent.relative_to(home).as_posix()
        found[f"log of {name}"] = len(list(log.iterdir()))
        if name not in FOR_EVER:
            found[name] = len(DeltaTable(str(log.parent)).file_uris())
    del found["warehouse"], found["turns"]
    return found


@pytest.mark.slow
def test_a_month_of_hours_leaves_what_retention_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_tables, "datetime", Clock)
    after_maintenance = []
    for hour in range(0, DAYS * 24, HOURS_APART):
        Clock.at = BEGAN + timedelta(hours=hour + 1)
        run(tmp_path, interval(BEGAN + timedelta(hours=hour), Clock.at))
        if (hour + HOURS_APART) % (7 * 24) == 0:
            dry = maintain.retain(tmp_path, KEEP, dry_run=True, now=Clock.at, report=str)
            wet = maintain.retain(tmp_path, KEEP, now=Clock.at, report=str)
            assert {kind: wet["removed"][kind] for kind in dry["removed"]} == dry["removed"]
            maintain.compact(tmp_path, report=str)
            maintenance_steps.remove_task_logs(tmp_path / "logs", 5, dry_run=False, now=Clock.at)
            after_maintenance.append(counted(tmp_path))
        for path in files_of(tmp_path):  # what was written now was written then
            if path.stat().st_mtime > Clock.at.timestamp():
                os.utime(path, (Clock.at.timestamp(),) * 2)
    runs_kept = 5 * 24 // HOURS_APART
    _first, _second, third, fourth = after_maintenance
    for found in (third, fourth):
        assert found["alerts"] == runs_kept
        assert found["data-docs"] == runs_kept + 1, "pages, and their list"
        assert found["reports"] == 2 * runs_kept + 1, "pages and indexes, and one script"
        assert found["logs"] == runs_kept + 5, "of tasks, and of parsing by day"
        assert found["warehouse/deliveries"] == found["warehouse/snapshots"] == runs_kept
    assert set(third) == set(fourth)
    for part in third:
        assert abs(fourth[part] - third[part]) <= 12, part  # the commits between two checkpoints
