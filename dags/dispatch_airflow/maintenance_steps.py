"""Steps of the DAG ``dispatch_audit_maintenance``, callable without Airflow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from dispatch_airflow.home import Home, progress

#: Parameter of the DAG → field of ``Retention``.
_KEPT = {
    "keep_logs_days": "logs",
    "keep_results_days": "results",
    "keep_snapshots_days": "snapshots",
    "keep_pages_days": "pages",
    "keep_what_if_days": "what_if",
    "keep_hunts_days": "hunts",
    "keep_alerts_days": "alerts",
    "keep_versions_days": "unreachable",
}


#: Number of days for which Airflow's logs are kept.
TASK_LOGS: Final = "keep_task_logs_days"
#: Below Airflow's folder of logs: folders of tasks, by DAG and run, and of parsing DAG files, by day.
_LOGS: Final = ("dag_id=*/run_id=*", "dag_processor/[0-9]*")


def kept_days(params: Mapping[str, Any]) -> dict[str, int | None]:
    """Read from the parameters how many days files are kept. Raises ``DispatchAuditError`` for too few."""
    from spark_jobs.maintenance.retention import Retention

    days = {name: params.get(param) for param, name in _KEPT.items()}
    Retention(**days)
    periods = ", ".join(
        f"{name} {'for ever' if count is None else f'{count} days'}" for name, count in days.items()
    )
    progress.info("keep %s%s", periods, "; dry run, nothing is removed" if params.get("dry_run") else "")
    return days


def verify(home: Home) -> dict[str, Any]:
    """Compare every landed file with its checksum."""
    from spark_jobs.maintenance.maintain import verify as verify_landed
    from spark_jobs.warehouse.run_ledger import Ledger

    return verify_landed(home.landing, progress.info, logs_from=Ledger(home.warehouse).logs_from())


def retain(days: Mapping[str, int | None], home: Home, *, dry_run: bool) -> dict[str, Any]:
    """Remove what is not kept, and update the list of Data Docs."""
    from dispatch_expectations.data_docs import write_list
    from spark_jobs.maintenance.maintain import retain as remove
    from spark_jobs.maintenance.retention import Retention

    summary = remove(home.place, Retention(**days), dry_run=dry_run, report=progress.info)
    if home.data_docs.exists() and not dry_run:
        write_list(home.data_docs)
    progress.info("retain: %s, %.1f MB", summary["removed"] or "nothing to remove", summary["bytes"] / 1e6)
    return summary


def remove_task_logs(
    logs: Path, days: int | None, *, dry_run: bool, now: datetime | None = None
) -> dict[str, Any]:
    """Remove Airflow's logs of runs and of parsing in which nothing was written for ``days`` days; None: keep all.

    ``logs``: Airflow's ``[logging] base_log_folder`` on this machine. Other files in it, and links, are left alone.
    """
    folders, size_bytes = 0, 0
    if days is None:
        return {"folders": folders, "bytes": size_bytes}
    limit = ((now or datetime.now(UTC)) - timedelta(days=days)).timestamp()
    for folder in _log_folders(logs):
        files = [path.lstat() for path in folder.rglob("*") if not path.is_dir()]
        if any(file.st_mtime > limit for file in files):
            continue
        folders += 1
        size_bytes += sum(file.st_size for file in files)
        progress.info("retain: %s task logs %s", "would remove" if dry_run else "removed", folder.name)
        if not dry_run:
            shutil.rmtree(folder)
    progress.info("retain: %d folders of task logs, %.1f MB", folders, size_bytes / 1e6)
    return {"folders": folders, "bytes": size_bytes}


def _log_folders(logs: Path) -> Iterator[Path]:
    for pattern in _LOGS:
        yield from (path for path in sorted(logs.glob(pattern)) if path.is_dir() and not path.is_symlink())


def compact(home: Home, *, dry_run: bool) -> dict[str, Any]:
    """Join small files and write checkpoints, so that tables open quickly."""
    from spark_jobs.maintenance.maintain import compact as compact_tables

    return compact_tables(home.place, dry_run=dry_run, report=progress.info)
