"""Removal of Airflow's own logs by the DAG of maintenance."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dispatch_airflow import maintenance_steps

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of an old run, of an old one that was cleared yesterday, of a new one, of parsing, and other files."""
    ages = {
        "dag_id=a/run_id=old/task_id=x/attempt=1.log": 100,
        "dag_id=a/run_id=old/task_id=y/map_index=0/attempt=1.log": 95,
        "dag_id=a/run_id=again/task_id=x/attempt=1.log": 100,
        "dag_id=a/run_id=again/task_id=x/attempt=2.log": 1,
        "dag_id=b/run_id=new/task_id=x/attempt=1.log": 1,
        "dag_processor/2026-08-01/dags-folder/a.py.log": 100,
        "dag_processor/2026-11-22/dags-folder/a.py.log": 0,
        "dag_processor/notes.txt": 900,
        "of somebody else/run_id=1/attempt=1.log": 900,
    }
    for name, days in ages.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("12345")
        written = (NOW - timedelta(days=days)).timestamp()
        os.utime(path, (written, written))
    (tmp_path / "dag_processor" / "latest").symlink_to("2026-11-22")
    (tmp_path / "dag_id=a" / "run_id=link").symlink_to(tmp_path / "of somebody else")
    return tmp_path


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_logs_of_runs_and_of_parsing_go_when_nothing_was_written_for_long(logs: Path) -> None:
    before = files(logs)
    dry = maintenance_steps.remove_task_logs(logs, 90, dry_run=True, now=NOW)
    assert (dry, files(logs)) == ({"folders": 2, "bytes": 15}, before)
    assert maintenance_steps.remove_task_logs(logs, 90, dry_run=False, now=NOW) == dry
    gone = {name for name in before if "run_id=old" in name or "2026-08-01" in name}
    assert files(logs) == before - gone
    assert (logs / "dag_id=a" / "run_id=link").is_symlink()
    assert maintenance_steps.remove_task_logs(logs, 90, dry_run=False, now=NOW)["folders"] == 0


def test_without_a_number_of_days_all_logs_are_kept(logs: Path) -> None:
    before = files(logs)
    assert maintenance_steps.remove_task_logs(logs, None, dry_run=False, now=NOW) == {
        "folders": 0,
        "bytes": 0,
    }
    assert files(logs) == before
