"""DAG ``dispatch_audit_watch``: alert what began and ended to hold messages, by statistics that a broker was polled for."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow.sdk import CronDataIntervalTimetable, Param, dag

from dispatch_airflow import watch_steps
from dispatch_airflow.dags.shared import DEFAULT_ARGS, step
from dispatch_airflow.schedule import HOURLY
from dispatch_airflow.sources import SETTINGS_VARIABLE

DOC: Final = """
### What holds messages, without a recorder

| task | what it does |
|---|---|
| `watch` | reads what `dispatch-audit watch-stats --out` has kept, and alerts what began and ended to hold messages |

It needs nothing in the broker: `watch-stats` polls the broker's statistics. Each change is alerted in the hour in which it
happened. What goes on is not alerted again. **`watch` fails when nothing was kept in the interval**, because `watch-stats`
does not run, or writes elsewhere; the channels of alerts are told.
"""

STATISTICS: Final = os.environ.get("DISPATCH_AUDIT_STATISTICS") or ""
# Empty or unset: hourly where the folder is set, else only when triggered. "none": only when triggered.
SCHEDULE: Final = os.environ.get("DISPATCH_AUDIT_WATCH_SCHEDULE") or (HOURLY if STATISTICS else "none")

PARAMS: Final = {
    "statistics": Param(
        STATISTICS or None,
        type=["null", "string"],
        maxLength=2000,
        title="Statistics",
        description="The folder of dispatch-audit watch-stats --out, on the machine of the task",
        examples=["/var/lib/dispatch-audit-statistics"],
        section="Statistics",
    ),
    "settings_file": Param(
        os.environ.get(SETTINGS_VARIABLE) or None,
        type=["null", "string"],
        maxLength=2000,
        title="Settings of the broker",
        description="A file on this machine, as import-broker-conf writes it; empty: settings that matter are not known",
        examples=["/etc/dispatch-audit/audit.conf"],
        section="Statistics",
    ),
}


@dag(
    dag_id="dispatch_audit_watch",
    dag_display_name="Dispatch audit: watch statistics",
    description="Alert what began and ended to hold messages, by polled statistics",
    doc_md=DOC,
    schedule=None if SCHEDULE == "none" else CronDataIntervalTimetable(SCHEDULE, timezone="UTC"),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params=PARAMS,
    tags=["pulsar", "dispatch", "alerts"],
    default_args=DEFAULT_ARGS,
)
def dispatch_audit_watch() -> None:
    """Read, compare, alert."""

    @step(retries=2, retry_delay=timedelta(seconds=30), execution_timeout=timedelta(hours=1))
    def watch(
        params: dict[str, Any], data_interval_start: Any = None, data_interval_end: Any = None
    ) -> dict[str, Any]:
        return watch_steps.watch(params, *watch_steps.span(data_interval_start, data_interval_end))

    watch()
