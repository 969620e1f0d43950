"""Steps of the DAG ``dispatch_audit_maintenance``, callable without Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch_airflow.home import Home, progress

#: Parameter of the DAG → field of ``Retention``.
_KEPT = {
    "keep_logs_days": "logs",
    "keep_results_days": "results",
    "keep_snapshots_days": "snapshots",
    "keep_pages_days": "pages",
    "keep_what_if_days": "what_if",
    "keep_versions_days": "unreachable",
}


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


def compact(home: Home, *, dry_run: bool) -> dict[str, Any]:
    """Join small files and write checkpoints, so that tables open quickly."""
    from spark_jobs.maintenance.maintain import compact as compact_tables

    return compact_tables(home.place, dry_run=dry_run, report=progress.info)
