"""The DAG ``dispatch_audit_maintenance``: checksums of what was landed, retention, tables that open quickly."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from airflow.sdk import CronTriggerTimetable, Param, TriggerRule, dag, task
from airflow.sdk.exceptions import AirflowSkipException

from dispatch_airflow import maintenance_steps
from dispatch_airflow.failures import clear_failure
from dispatch_airflow.home import Home
from dispatch_airflow.params import switch

DOC: Final = """
### Upkeep

| task | what it does |
|---|---|
| `check` | checks the form |
| `verify` | compares every landed log file with its sha256; **red** names the files that differ, and nothing is removed |
| `retain` | removes what is older than the days below, and can be made again or reached by nobody |
| `compact` | joins small files, writes checkpoints, so that tables open quickly |

**Always kept**: the logs (landed files, `messages`, `consumer_events`, `quarantine`), for a dispatcher's state is made from
the beginning of its log; and what was found (`verdicts`, `anomalies`, `divergences`, `balance`, `waits`, alerts). What was
removed of an interval is there again when the interval is run again. An interval that a run is at work on is left alone.

*Dry run* says what would be removed, and removes nothing.
"""

# Empty or unset: weekly. "none": only when triggered.
SCHEDULE: Final = os.environ.get("DISPATCH_AUDIT_MAINTENANCE_SCHEDULE") or "0 3 * * 0"


def days(value: int | None, title: str, description: str) -> Param:
    """A number of days, or nothing: for ever."""
    return Param(
        value,
        type=["null", "integer"],
        minimum=2,
        maximum=36_500,
        title=title,
        description=f"{description}. Empty: for ever",
        section="Keep for so many days",
    )


PARAMS: Final = {
    "dry_run": switch(False, "Dry run", "Say what would be removed, and remove nothing", "What to do"),
    "verify_checksums": switch(
        True, "Verify checksums", "Read every landed file; nothing is removed if one differs", "What to do"
    ),
    "keep_results_days": days(
        None,
        "Results per message",
        "Rows of deliveries, ownership and blocked of an interval, from the last time it was worked on",
    ),
    "keep_pages_days": days(
        365, "Reports and Data Docs", "Pages of an interval, from when they were last written"
    ),
    "keep_what_if_days": days(90, "Comparisons of what-if", "From when they were written"),
    "keep_versions_days": days(
        30,
        "Unreachable files",
        "Earlier versions of tables, files of runs that died, landed files that were replaced",
    ),
}


#: A summary is one XCom, whatever its keys are called.
step = partial(task, multiple_outputs=False)


@dag(
    dag_id="dispatch_audit_maintenance",
    dag_display_name="Dispatch audit: maintenance",
    description="Verifies landed logs, removes what is old and can be made again, keeps tables quick",
    doc_md=DOC,
    schedule=None if SCHEDULE == "none" else CronTriggerTimetable(SCHEDULE, timezone="UTC"),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params=PARAMS,
    tags=["pulsar", "dispatch", "maintenance"],
    default_args={"owner": "dispatch-audit"},
)
def dispatch_audit_maintenance() -> None:
    """Check, verify, remove, compact."""

    @step(retries=0)
    def check(params: dict[str, Any]) -> dict[str, int | None]:
        with clear_failure():
            return maintenance_steps.kept_days(params)

    @step(retries=0)
    def verify(params: dict[str, Any]) -> dict[str, Any]:
        if not params["verify_checksums"]:
            raise AirflowSkipException("checksums were not asked for")
        with clear_failure():
            return maintenance_steps.verify(Home.current())

    @step(retries=1, retry_delay=timedelta(seconds=30), trigger_rule=TriggerRule.NONE_FAILED)
    def retain(kept: dict[str, int | None], params: dict[str, Any]) -> dict[str, Any]:
        with clear_failure():
            return maintenance_steps.retain(kept, Home.current(), dry_run=params["dry_run"])

    @step(retries=1, retry_delay=timedelta(seconds=30))
    def compact(params: dict[str, Any]) -> dict[str, Any]:
        with clear_failure():
            return maintenance_steps.compact(Home.current(), dry_run=params["dry_run"])

    kept = check()
    kept >> verify() >> retain(kept) >> compact()


dispatch_audit_maintenance()
