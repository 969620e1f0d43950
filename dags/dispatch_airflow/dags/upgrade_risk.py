"""DAG ``upgrade_risk``: compare two releases over all subscriptions of a home. Triggered manually, from its form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from airflow.sdk import dag

from dispatch_airflow import upgrade_risk_steps
from dispatch_airflow.dags.dispatch_what_if import PARAMS as WHAT_IF
from dispatch_airflow.dags.shared import DEFAULT_ARGS, step
from dispatch_airflow.home import Home
from dispatch_airflow.pages.links import UPGRADE_RISK, with_links
from dispatch_airflow.params import broker_settings, moment, number, release, simulations

DOC: Final = """
### What would another release change?

Compares **release A** (by default the recorded one) with **release B** over all subscriptions of audited intervals: the
clients and the load are taken from the logs, and dispatch is simulated. The page lists what gets worse first: order
violations introduced with their probability, entries left unsent, stuck keys, longer waits. It says what could not be judged
and why, and last what gets better.

| task | what it does |
|---|---|
| `check` | checks the parameters; an unknown `broker.conf` setting is refused, with the nearest name |
| `compare` | simulates each subscription in a Spark task, writes the page: **the link is on this task and on the run** |
| `conclude` | logs the counts; if something gets worse, sends them to the channels of `alerts.upgrade_risk` in the policy |

The intervals must have been audited by `dispatch_audit` (or ingested by `dispatch-audit pipeline`): the logs are read from
the warehouse, from their beginning to the end of the range. Nothing is written to the warehouse.
"""

#: Releases that the form offers; any other is accepted.
RELEASES: Final = ("5.0.1", "4.2.4", "4.1.3", "4.0.14", "3.0.17")

PARAMS: Final = {
    "interval_start": moment(
        "From (start of the first interval)",
        "Start of an interval that dispatch_audit has audited",
        "2026-11-21T00:00:00Z",
    ),
    "interval_end": moment(
        "To (end of the last interval)",
        "Empty: a day after the start",
        "2026-11-28T00:00:00Z",
        required=False,
    ),
    **{name: WHAT_IF[name] for name in ("namespace", "subscriptions", "topics")},
    "broker_version": release(RELEASES[0], "Release B", "The release to compare with", "Releases", RELEASES),
    "settings": broker_settings(
        "Settings of release B",
        "As `broker.conf` has them, one `NAME=VALUE` per line; others are as recorded.",
        "Releases",
    ),
    "against": release(
        None,
        "Release A",
        "Empty: what was recorded; else simulated as well, with the recorded settings",
        "Releases",
        RELEASES,
    ),
    "seeds": simulations("Simulations of each release"),
    "most_events": number(
        1_000_000,
        "Lines of a log",
        "A subscription with more lines of events is not judged, and the page says so",
        "Simulation",
        least=1,
        most=10**9,
    ),
}


@dag(
    dag_id="upgrade_risk",
    dag_display_name="Upgrade risk",
    description="Compare two releases over all subscriptions of audited intervals, the greatest risk first",
    doc_md=DOC,
    schedule=None,
    catchup=False,
    max_active_runs=2,
    params=PARAMS,
    tags=["pulsar", "dispatch", "what-if"],
    default_args=DEFAULT_ARGS,
)
def upgrade_risk() -> None:
    """Check the form, compare, and say what gets worse."""

    @step(retries=0)
    def check(params: dict[str, Any]) -> dict[str, Any]:
        return upgrade_risk_steps.check(params)

    @step(retries=1, retry_delay=timedelta(seconds=10))
    def compare(checked: dict[str, Any], run_id: str) -> dict[str, Any]:
        return upgrade_risk_steps.compare(checked, Home.of(checked), run_id)

    @step(retries=1, retry_delay=timedelta(seconds=30))
    def conclude(summary: dict[str, Any]) -> dict[str, Any]:
        return upgrade_risk_steps.conclude(summary)

    conclude(with_links(compare(check()), UPGRADE_RISK))
