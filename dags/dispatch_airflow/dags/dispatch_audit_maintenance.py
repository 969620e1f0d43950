"""DAG ``dispatch_audit_maintenance``: verify landed files, remove what is old, compact tables."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from airflow.sdk import CronTriggerTimetable, Param, TriggerRule, dag, task_group
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowSkipException

from dispatch_airflow import maintenance_steps
from dispatch_airflow.dags.shared import DEFAULT_ARGS, list_sources, step
from dispatch_airflow.home import Home
from dispatch_airflow.params import switch
from dispatch_airflow.sources import MAP_INDEX_TEMPLATE

DOC: Final = """
### Maintenance

| task | what it does |
|---|---|
| `check` | checks the parameters |
| `list_sources` | lists the sources whose results the home has; the tasks below run for each |
| `verify` | compares every landed log file with its sha256; **fails** if files differ, names them, and nothing is removed |
| `retain` | removes files older than the days below that can be made again or that no reader can reach |
| `remove_task_logs` | removes Airflow's old task logs from the machine that runs it |
| `compact` | joins small files and writes checkpoints, so that tables open quickly |

**Always kept**: the findings (`verdicts`, `anomalies`, `divergences`, `balance`, `waits`). Files of alerts are kept unless
*Files of alerts* has a number of days. The logs (landed files,
`messages`, `consumer_events`, `quarantine`) are kept unless *Logs* has a number of days. To get removed results of an
interval again, run the interval again, as long as its logs are kept. Runs may be at work meanwhile: what they write is
younger than what is removed.

*Dry run* reports what would be removed, and removes nothing.

Tasks cannot reach Airflow's database. The command `airflow db clean` removes old runs from it (docs/operate.md).
"""

# Empty or unset: weekly. "none": only when triggered.
SCHEDULE: Final = os.environ.get("DISPATCH_AUDIT_MAINTENANCE_SCHEDULE") or "0 3 * * 0"


def days(value: int | None, title: str, description: str) -> Param:
    """Make a parameter with a number of days; empty means for ever."""
    return Param(
        value,
        type=["null", "integer"],
        minimum=2,
        maximum=36_500,
        title=title,
        description=f"{description}. Empty: for ever",
        section="Days to keep",
    )


PARAMS: Final = {
    "dry_run": switch(False, "Dry run", "Report what would be removed, and remove nothing", "What to do"),
    "verify_checksums": switch(
        True, "Verify checksums", "Read every landed file; nothing is removed if one differs", "What to do"
    ),
    "keep_logs_days": days(
        None,
        "Logs",
        "Landed files and rows of messages and consumer_events of an interval, counted from its end. "
        "The state of each dispatcher is kept; intervals of before are not computed again",
    ),
    "keep_results_days": days(
        None,
        "Results per message",
        "Rows of deliveries, ownership, blocked and key_totals of an interval, counted from its last run",
    ),
    "keep_snapshots_days": days(
        30, "Snapshots", "Of an interval, counted from its last run; later intervals go on from them"
    ),
    "keep_pages_days": days(
        365, "Reports and Data Docs", "Pages of an interval, counted from their last write"
    ),
    "keep_what_if_days": days(90, "What-if comparisons", "Counted from their last write"),
    "keep_hunts_days": days(
        365, "Hunts", "Comparisons of releases and what they were made of, counted from their last write"
    ),
    "keep_alerts_days": days(None, "Files of alerts", "Of an interval, counted from their last write"),
    "keep_task_logs_days": days(
        90, "Task logs", "Airflow's logs of tasks and DAG files on the machine that runs this task"
    ),
    "keep_versions_days": days(
        30,
        "Unreachable files",
        "Earlier versions of tables, files of runs that died, landed files that were replaced",
    ),
}


@dag(
    dag_id="dispatch_audit_maintenance",
    dag_display_name="Dispatch audit: maintenance",
    description="Verify landed logs, remove old results that can be made again, compact tables",
    doc_md=DOC,
    schedule=None if SCHEDULE == "none" else CronTriggerTimetable(SCHEDULE, timezone="UTC"),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params=PARAMS,
    tags=["pulsar", "dispatch", "maintenance"],
    default_args=DEFAULT_ARGS,
)
def dispatch_audit_maintenance() -> None:
    """Check, verify, remove, compact."""

    @step(retries=0)
    def check(params: dict[str, Any]) -> dict[str, int | None]:
        return maintenance_steps.kept_days(params)

    @step(retries=0, map_index_template=MAP_INDEX_TEMPLATE)
    def verify(namespace: str, params: dict[str, Any]) -> dict[str, Any]:
        if not params["verify_checksums"]:
            raise AirflowSkipException("the parameter verify_checksums is off")
        return maintenance_steps.verify(Home.current().within(namespace))

    @step(
        retries=1,
        retry_delay=timedelta(seconds=30),
        trigger_rule=TriggerRule.NONE_FAILED,
        map_index_template=MAP_INDEX_TEMPLATE,
    )
    def retain(namespace: str, kept: dict[str, int | None], params: dict[str, Any]) -> dict[str, Any]:
        return maintenance_steps.retain(kept, Home.current().within(namespace), dry_run=params["dry_run"])

    @step(retries=1, retry_delay=timedelta(seconds=30), map_index_template=MAP_INDEX_TEMPLATE)
    def compact(namespace: str, params: dict[str, Any]) -> dict[str, Any]:
        return maintenance_steps.compact(Home.current().within(namespace), dry_run=params["dry_run"])

    @task_group(prefix_group_id=False)
    def maintain(namespace: str, kept: dict[str, int | None]) -> None:
        """Maintain the folders of one source."""
        # By name: map_index_template reads it from op_kwargs.
        verify(namespace=namespace) >> retain(namespace=namespace, kept=kept) >> compact(namespace=namespace)

    @step(retries=1, retry_delay=timedelta(seconds=30))
    def remove_task_logs(params: dict[str, Any]) -> dict[str, Any]:
        return maintenance_steps.remove_task_logs(
            Path(conf.get("logging", "base_log_folder")),
            params[maintenance_steps.TASK_LOGS],
            dry_run=params["dry_run"],
        )

    kept = check()
    maintain.partial(kept=kept).expand(namespace=list_sources())
    kept >> remove_task_logs()
