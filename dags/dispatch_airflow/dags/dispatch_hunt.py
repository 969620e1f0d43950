"""DAG ``dispatch_hunt``: search client schedules that break a promise of a release. Triggered manually, from its form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from airflow.sdk import Param, dag

from dispatch_airflow import hunt_steps
from dispatch_airflow.dags.shared import DEFAULT_ARGS, step
from dispatch_airflow.home import Home
from dispatch_airflow.pages.links import HUNT, with_links
from dispatch_airflow.params import number, switch
from dispatch_core.hunt.choices import ALSO, KEY_SHARED, PROMISES, SUBSCRIPTION_TYPES

DOC: Final = """
### Which client schedules break a release?

Plays random schedules of clients on the rules of **several releases**, shrinks those that break a promise, and compares the
releases. No logs are read.

| task | what it does |
|---|---|
| `check` | checks the parameters; the message begins with the name of the wrong one |
| `hunt` | plays the schedules in Spark tasks, and writes the comparison: **the link is on this task and on the run** |
| `conclude` | red if a find is new: no file of the zoo breaks the same promise by the same cause |

The same parameters give the same result, whatever the number of tasks. A run that was killed goes on from what it has
played: clear `hunt`. Not found is no proof.
"""

#: Releases that the form offers; any other is accepted.
RELEASES: Final = ("3.0.17", "4.0.0", "4.0.14", "4.1.3", "4.2.4", "4.2.5", "5.0.1")

PARAMS: Final = {
    "releases": Param(
        ["4.2.4", "5.0.1"],
        type="array",
        items={"type": "string", "pattern": r"^v?[0-9]+\.[0-9]+(\.[0-9]+)?([.\-][0-9A-Za-z.\-]+)?$"},
        minItems=1,
        maxItems=16,
        uniqueItems=True,
        examples=list(RELEASES),
        title="Releases",
        description="To hunt and to compare",
        section="Rules",
    ),
    "subscription_type": Param(
        KEY_SHARED,
        type="string",
        enum=list(SUBSCRIPTION_TYPES),
        title="Subscription type",
        description="Key_Shared is hunted by compiled code, the others some hundred times slower",
        section="Rules",
    ),
    "allow_out_of_order": switch(
        False, "allowOutOfOrderDelivery", "Consumers of Key_Shared ask for it", "Rules"
    ),
    "settings": Param(
        None,
        type=["null", "string"],
        format="multiline",
        maxLength=10_000,
        title="Settings",
        description="As broker.conf has them, one NAME=VALUE per line",
        description_md=(
            "As `broker.conf` has them, one `NAME=VALUE` per line, for example "
            "`subscriptionKeySharedUseConsistentHashing=false` (the selector) or `maxUnackedMessagesPerConsumer=2`."
        ),
        section="Rules",
    ),
    "promises": Param(
        list(PROMISES),
        type="array",
        items={"type": "string", "enum": list(PROMISES)},
        minItems=1,
        uniqueItems=True,
        examples=list(PROMISES),
        title="Promises",
        description="Schedules that break others are passed over",
        section="What to look for",
    ),
    "also": Param(
        [],
        type="array",
        items={"type": "string", "enum": list(ALSO)},
        uniqueItems=True,
        examples=list(ALSO),
        title="Further steps",
        description="Each makes the others rarer; some are of certain types of subscriptions only",
        section="What to look for",
    ),
    "pass_over": Param(
        [],
        type="array",
        items={"type": "string", "minLength": 1, "maxLength": 60},
        uniqueItems=True,
        examples=["rewind_waits", "read_again", "normal_read_waits", "draining_hash"],
        title="Causes to pass over",
        description="Known causes that are often met hide others: they are counted, and not kept",
        section="What to look for",
    ),
    "schedules": number(
        2_000_000,
        "Schedules of each release",
        "Divided among the seeds; a processor plays some hundred thousand of Key_Shared a second, some thousand of others",
        "How much",
        least=1,
        most=10**10,
    ),
    "seeds": number(
        10,
        "Seeds",
        "Each has three keys of its own; a Spark task plays at least one",
        "How much",
        least=1,
        most=1_000,
    ),
    "first_seed": number(
        0, "First seed", "Another one plays other schedules", "How much", least=0, most=2**31
    ),
    "tasks": number(
        4, "Spark tasks", "At most; the result does not depend on it", "How much", least=1, most=1_000
    ),
    "watched": number(
        2_000,
        "Schedules watched",
        "Of each release, played once more with the rules interpreted: which rules and branches they go through; 0: none",
        "How much",
        least=0,
        most=100_000,
    ),
    "states": switch(
        False,
        "Count states",
        "That schedules lead to, of Key_Shared; it takes most of the time then",
        "How much",
    ),
    "fail_on_new": switch(
        True,
        "Fail on a new find",
        "Off: the run stays green, and the log of conclude names the finds",
        "Outcome",
    ),
}


@dag(
    dag_id="dispatch_hunt",
    dag_display_name="Dispatch hunt",
    description="Search client schedules that break a promise of a release, and compare releases",
    doc_md=DOC,
    schedule=None,
    catchup=False,
    max_active_runs=2,
    params=PARAMS,
    tags=["pulsar", "dispatch", "hunt"],
    default_args=DEFAULT_ARGS,
)
def dispatch_hunt() -> None:
    """Check the form, hunt, and say what is new."""

    @step(retries=0)
    def check(params: dict[str, Any]) -> dict[str, Any]:
        return hunt_steps.check(params)

    @step(retries=2, retry_delay=timedelta(seconds=10))
    def hunt(checked: dict[str, Any], run_id: str) -> dict[str, Any]:
        return hunt_steps.hunt(checked, Home.of(checked), run_id)

    @step(retries=0)
    def conclude(summary: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        return hunt_steps.conclude(summary, fail_on_new=params["fail_on_new"])

    conclude(with_links(hunt(check()), HUNT))
