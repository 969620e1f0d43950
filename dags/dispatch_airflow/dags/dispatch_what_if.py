"""DAG ``dispatch_what_if``: compare a recorded load under other rules. Triggered manually, from its form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from airflow.sdk import Param, dag

from dispatch_airflow import what_if_steps
from dispatch_airflow.dags.shared import DEFAULT_ARGS, step
from dispatch_airflow.home import Home
from dispatch_airflow.pages.links import WHAT_IF, with_links
from dispatch_airflow.params import broker_settings, moment, release, simulations

DOC: Final = """
### What if the broker had other rules?

Takes the clients and the load of an **audited interval** (what producers and consumers did, nothing of what the broker
decided) and simulates dispatch under other releases, policies and settings. The recording is shown beside the predictions.

| task | what it does |
|---|---|
| `check` | checks the parameters; an unknown `broker.conf` setting is refused, with the nearest name |
| `compare` | simulates, and writes the comparison: **the link is on this task and on the run** |

The interval must have been audited by `dispatch_audit` (or ingested by `dispatch-audit pipeline`): the logs are read from
the warehouse, from their beginning up to the interval. Nothing is written to the warehouse.

FAIL means that order violations are predicted, PASS that none are. The column *sure* shows how well the same simulation
reproduces the recording.
"""

#: Rules that the form offers; any other RELEASE-VARIANT is accepted, such as 4.0.0-classic-ch.
RULES: Final = {
    "as recorded": "as recorded (shows how accurate the simulation is)",
    "matrix": "matrix: all rules that the subscription can have",
    "ch": "ch: Key_Shared, consistent hashing",
    "range": "range: Key_Shared, split ranges",
    "classic-ch": "classic-ch: the dispatcher of 3.x, consistent hashing",
    "classic-range": "classic-range: the dispatcher of 3.x, split ranges",
    "modulo": "modulo: Failover by partition number",
    "ring": "ring: Failover by consistent hashing (PIP-392)",
    "3.0.17-ch": "3.0.17-ch: release 3.0.17, consistent hashing",
    "3.0.17-range": "3.0.17-range: release 3.0.17, split ranges",
    "4.2.4-ch": "4.2.4-ch: release 4.2.4, consistent hashing",
    "4.2.4-range": "4.2.4-range: release 4.2.4, split ranges",
    "4.2.4-classic-ch": "4.2.4-classic-ch: release 4.2.4 with the dispatcher of 3.x",
}
VARIANT: Final = "(classic-)?(ch|range)|modulo|ring"

PARAMS: Final = {
    "interval_start": moment(
        "Interval (its start)", "Start of an interval that dispatch_audit has audited", "2026-11-21T00:00:00Z"
    ),
    "namespace": Param(
        None,
        type=["null", "string"],
        maxLength=100,
        title="Source",
        description="Empty: the scheduled one; else its folder in the home, as the log of choose_interval names it",
        examples=["sources/orders", "ad-hoc/incident-7-eu-71e37609"],
        section="Recorded load",
    ),
    "subscriptions": Param(
        "*",
        type="string",
        minLength=1,
        maxLength=500,
        title="Subscriptions",
        description="A name, or a pattern with * and ?",
        examples=["*", "orders-*"],
        section="Recorded load",
    ),
    "topics": Param(
        "*",
        type="string",
        minLength=1,
        maxLength=500,
        title="Topics",
        description="A full name, or a pattern with * and ?",
        examples=["*", "persistent://public/default/orders-*"],
        section="Recorded load",
    ),
    "rules": Param(
        ["as recorded", "matrix"],
        type="array",
        items={
            "type": "string",
            "pattern": rf"^(as recorded|matrix|([0-9][0-9A-Za-z.\-]{{0,40}}-)?({VARIANT}))$",
        },
        minItems=1,
        maxItems=32,
        uniqueItems=True,
        examples=list(RULES),
        values_display=RULES,
        title="Policies to compare",
        description="Names without a release mean the recorded one, or the broker version below",
        section="Other rules",
    ),
    "broker_version": release(
        None, "Broker version", "Empty: the recorded one", "Other rules", ["3.0.17", "4.0.0", "4.2.4"]
    ),
    "settings": broker_settings(
        "Settings",
        "As `broker.conf` has them, one `NAME=VALUE` per line, for example `dispatcherMaxReadBatchSize=16`. "
        "They hold for every policy but *as recorded*.",
        "Other rules",
    ),
    "seeds": simulations("Simulations per policy"),
}


@dag(
    dag_id="dispatch_what_if",
    dag_display_name="Dispatch what-if",
    description="Predict an audited interval's deliveries under other rules and settings, and compare",
    doc_md=DOC,
    schedule=None,
    catchup=False,
    max_active_runs=2,
    params=PARAMS,
    tags=["pulsar", "dispatch", "what-if"],
    default_args=DEFAULT_ARGS,
)
def dispatch_what_if() -> None:
    """Check the form, then compare."""

    @step(retries=0)
    def check(params: dict[str, Any]) -> dict[str, Any]:
        return what_if_steps.check(params)

    @step(retries=1, retry_delay=timedelta(seconds=10))
    def compare(checked: dict[str, Any], run_id: str) -> dict[str, Any]:
        return what_if_steps.compare(checked, Home.of(checked), run_id)

    with_links(compare(check()), WHAT_IF)
