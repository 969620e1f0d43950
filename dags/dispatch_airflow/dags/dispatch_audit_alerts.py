"""DAG ``dispatch_audit_alerts``: send the alerts that channels could not be sent before."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow.sdk import CronTriggerTimetable, Param, dag

from dispatch_airflow import outbox_delivery
from dispatch_airflow.dags.shared import RETRIES, list_sources, step
from dispatch_airflow.home import Home
from dispatch_airflow.params import switch
from dispatch_airflow.sources import MAP_INDEX_TEMPLATE

DOC: Final = """
### Alerts that wait

| task | what it does |
|---|---|
| `list_sources` | lists the sources whose results the home has |
| `deliver` | sends what channels (mail, webhooks, ...) were not sent yet, of any interval, oldest first; for each source |

A channel that failed is tried again after 1, 5 and 30 minutes, after 2 hours, and then every 6 hours. While nothing
waits, this DAG reads one small table and ends. **`deliver` fails when somebody must act**: a channel is set up wrongly, or
has failed for a day. Nothing is lost by that; it goes on trying.

*Try at once* does not wait for the next attempt, for example after a connection was corrected. *Discard* drops what waits
for a channel that there is no more.
"""

# Empty or unset: every ten minutes. "none": only when triggered; then every audit still sends what waits.
SCHEDULE: Final = os.environ.get("DISPATCH_AUDIT_ALERTS_SCHEDULE") or "*/10 * * * *"

PARAMS: Final = {
    "try_at_once": switch(
        False, "Try at once", "Also channels that failed and are to be tried later", "What to do"
    ),
    "discard": Param(
        None,
        type=["null", "string"],
        pattern=r"^[a-z0-9][a-z0-9_\-]{0,63}$",
        title="Discard",
        description="Name of a channel: what waits for it is dropped, and named in the log",
        examples=["webhook"],
        section="What to do",
    ),
}


@dag(
    dag_id="dispatch_audit_alerts",
    dag_display_name="Dispatch audit: alerts that wait",
    description="Send the alerts that channels could not be sent before",
    doc_md=DOC,
    schedule=None if SCHEDULE == "none" else CronTriggerTimetable(SCHEDULE, timezone="UTC"),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    # Whoever switches the audit on need not know of this DAG.
    is_paused_upon_creation=False,
    params=PARAMS,
    tags=["pulsar", "dispatch", "alerts"],
    # No callback: what it would report is that messages cannot be sent, every ten minutes.
    default_args={"owner": "dispatch-audit", "retry_policy": RETRIES},
)
def dispatch_audit_alerts() -> None:
    """Send what waits."""

    @step(
        retries=0,
        execution_timeout=timedelta(hours=1),
        map_index_template=MAP_INDEX_TEMPLATE,
    )
    def deliver(namespace: str, params: dict[str, Any]) -> dict[str, Any]:
        home = Home.current().within(namespace)
        if params["discard"]:
            outbox_delivery.discard(home, params["discard"])
        return outbox_delivery.deliver_due(home, at_once=params["try_at_once"])

    deliver.expand(namespace=list_sources())
