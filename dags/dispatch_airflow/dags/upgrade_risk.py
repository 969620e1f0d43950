"""DAG ``upgrade_risk``: compare two releases over all subscriptions of a home. Triggered manually, from its form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from airflow.sdk import Param, dag

from dispatch_airflow import upgrade_risk_steps
from dispatch_airflow.dags.dispatch_what_if import PARAMS as WHAT_IF
from dispatch_airflow.dags.shared import DEFAULT_ARGS, step
from dispatch_airflow.home import Home
from dispatch_airflow.pages.links import UPGRADE_RISK, with_links
from dispatch_airflow.params import MOMENT, number

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
_RELEASE: Final = r"^v?[0-9]+\.[0-9]+(\.[0-9]+)?([.\-][0-9A-Za-z.\-]+)?$"

PARAMS: Final = {
    "interval_start": Param(
        type="string",
        format="date-time",
        pattern=MOMENT,
        title="From (start of the first interval)",
        description="Start of an interval that dispatch_audit has audited",
        examples=["2026-11-21T00:00:00Z"],
        section="Recorded load",
    ),
    "interval_end": Param(
        None,
        type=["null", "string"],
        format="date-time",
        pattern=MOMENT,
        title="To (end of the last interval)",
        description="Empty: a day after the start",
        examples=["2026-11-28T00:00:00Z"],
        section="Recorded load",
    ),
    **{name: WHAT_IF[name] for name in ("namespace", "subscriptions", "topics")},
    "broker_version": Param(
        RELEASES[0],
        type="string",
        pattern=_RELEASE,
        maxLength=60,
        examples=list(RELEASES),
        title="Release B",
        description="The release to compare with",
        section="Releases",
    ),
    "settings": Param(
        None,
        type=["null", "string"],
        format="multiline",
        maxLength=10_000,
        title="Settings of release B",
        description="As broker.conf has them, one NAME=VALUE per line; others are as recorded",
        section="Releases",
    ),
    "against": Param(
        None,
        type=["null", "string"],
        pattern=_RELEASE,
        maxLength=60,
        examples=list(RELEASES),
        title="Release A",
        description="Empty: what was recorded; else simulated as well, with the recorded settings",
        section="Releases",
    ),
    "seeds": number(
        5,
        "Simulations of each release",
        "They differ in delays that no log shows; more simulations make a prediction more certain",
        "Simulation",
        least=1,
        most=100,
    ),
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
