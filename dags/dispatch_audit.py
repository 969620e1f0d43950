"""The DAG ``dispatch_audit``: one audited interval of recorded dispatch per run.

A table of contents: the tasks call ``steps.py``, ``stages.py`` and ``notify.py`` in ``dags/dispatch_airflow``.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from airflow.sdk import Asset, CronDataIntervalTimetable, Param, TriggerRule, dag, task
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from dispatch_airflow import deadline, notify, stages, steps
from dispatch_airflow.failures import clear_failure
from dispatch_airflow.home import SETTINGS_VARIABLE, SOURCE_VARIABLE, Home
from dispatch_airflow.pages.links import DATA_DOCS, REPORT, with_links
from dispatch_airflow.params import moment, number, set_number, switch

DOC = """
### Did the broker keep its promises?

Each run takes the recorded dispatch logs of **one interval** (a UTC day), replays them through the broker's own rules
and says **PASS**, **FAIL** or **UNKNOWN** for every subscription, with the findings that prove it.

| task | what it does | where its results are |
|---|---|---|
| `choose_interval` | checks the parameters | XCom |
| `pull` | copies new log files from the source, any object store | `landing`, asset `dispatch_audit/landed` |
| `ingest` | reads and checks rows; earlier intervals with new logs first | `messages`, `consumer_events`, `quarantine` |
| `plan` | deals the dispatchers to groups of about equal size | XCom |
| `replay` | folds each dispatcher's log and audits it, one mapped task per group | staged files |
| `publish_tables` | one commit per table for all groups | `deliveries`, `ownership`, `blocked`, `divergences`, `anomalies` |
| `discard_staging` | removes what was staged and not published, whatever happened | |
| `aggregate` | balance and waiting times | `balance`, `waits`, asset `dispatch_audit/audited` |
| `validate` | Great Expectations judges; **red when a subscription FAILs**, after all is kept | `verdicts`, Data Docs |
| `report` | a page per subscription: verdict, pictures, findings; also when `validate` is red | `reports/<interval>` |
| `publish` | reports the verdict of every subscription, also when another one failed | asset `dispatch_audit/verdict` |
| `alert` | sends the alerts: to a file always, by e-mail and webhook where connections exist | `alerts/alerts.jsonl` |
| `find_stale` | names the intervals whose history changed since they were audited | XCom |
| `recompute_stale` | replays them again, oldest first; runs of the schedule always, others if asked | the same tables |
| `judge_stale`, `alert_stale` | judges each of them again, and reports what changed | the same places |
| `conclude` | makes the run red when something was judged FAIL, or not judged | |

A run may be repeated at any time, in any order, also as a backfill while the schedule goes on: it replaces its interval
and nothing else.

**A red `validate`** is the audit doing its work: read its log or the alert. **Any other red task** is a run that could
not judge; its log says what was wrong, what was kept and what to do next.
"""

# Empty or unset: daily. "none": only when triggered.
SCHEDULE = os.environ.get("DISPATCH_AUDIT_SCHEDULE") or "0 0 * * *"
# Replay groups at work at once, of all runs together, and so of the other tasks: each is a Spark driver of its own.
GROUPS_AT_ONCE = set_number("DISPATCH_AUDIT_GROUPS_AT_ONCE", 2, most=256)

MOST_GROUPS = 256

PARAMS = {
    "source": Param(
        os.environ.get(SOURCE_VARIABLE) or str(Home.current().root / "incoming"),
        type="string",
        minLength=1,
        maxLength=2000,
        title="Source of the recorded logs",
        description="A folder or a URL that Airflow's object storage opens",
        description_md=(
            "A folder, or a URL such as `s3://bucket/recordings`. All files named `messages*`, `events*` and `trace*` "
            "below it are read (`.jsonl`, `.jsonl.gz`, `.jsonl.zst`, `.parquet`)."
        ),
        examples=["/data/pulsar-recordings", "s3://bucket/recordings"],
        section="Recorded logs",
    ),
    "source_connection": Param(
        None,
        type=["null", "string"],
        pattern=r"^[A-Za-z0-9_.\-]{1,200}$",
        title="Connection of the source",
        description="Airflow connection for an object store; empty for a local folder",
        examples=["aws_default"],
        section="Recorded logs",
    ),
    "settings_file": Param(
        os.environ.get(SETTINGS_VARIABLE) or None,
        type=["null", "string"],
        maxLength=2000,
        title="Settings of the broker",
        description="A file on this machine, as import-broker-conf writes it; empty: what the logs' headers say",
        examples=["/etc/dispatch-audit/audit.conf"],
        section="Recorded logs",
    ),
    "interval_start": moment("Start of the interval", "Empty: the run's own data interval", "Interval"),
    "interval_end": moment("End of the interval (exclusive)", "Empty: one day after the start", "Interval"),
    "replay_groups": number(
        set_number("DISPATCH_AUDIT_REPLAY_GROUPS", 2, most=MOST_GROUPS),
        "Replay in so many groups",
        "Mapped tasks that share the dispatchers; more of them need more machines, not more time",
        "Replay",
        least=1,
        most=MOST_GROUPS,
    ),
    "recompute_stale": switch(
        False,
        "Recompute stale intervals, too",
        "Intervals that were audited before logs of an earlier time arrived. Runs of the schedule always do",
        "Replay",
    ),
    "fail_on_findings": switch(
        True,
        "Red when a subscription FAILs",
        "Off: the verdict is kept and alerted all the same, but the run stays green",
        "Verdict",
    ),
}

LANDED = Asset(name="dispatch_audit/landed", uri="dispatch-audit://landed", group="dispatch_audit")
AUDITED = Asset(name="dispatch_audit/audited", uri="dispatch-audit://audited", group="dispatch_audit")
VERDICT = Asset(name="dispatch_audit/verdict", uri="dispatch-audit://verdict", group="dispatch_audit")

MISSED = DeadlineAlert(
    reference=DeadlineReference.DAGRUN_LOGICAL_DATE,
    interval=deadline.time_allowed(),
    callback=AsyncCallback("dispatch_airflow.deadline.verdict_is_late"),
    name="verdict in time",
)


#: A summary is one XCom, whatever its keys are called.
step = partial(task, multiple_outputs=False)


def spark_task(**more: Any) -> Any:
    """A task that starts a process with Spark: one that was killed is tried again."""
    return step(retries=2, retry_delay=timedelta(seconds=10), max_active_tis_per_dag=GROUPS_AT_ONCE, **more)


def step_in_any_case(**more: Any) -> Any:
    """A task that runs whatever became of the ones before it."""
    return step(trigger_rule=TriggerRule.ALL_DONE, **more)


@dag(
    dag_id="dispatch_audit",
    dag_display_name="Dispatch audit",
    description="Replays one interval of recorded Pulsar dispatch and says whether its promises held",
    doc_md=DOC,
    schedule=None if SCHEDULE == "none" else CronDataIntervalTimetable(SCHEDULE, timezone="UTC"),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    # Of the schedule and by hand together; a backfill has its own number, so the schedule goes on beside it.
    max_active_runs=1,
    deadline=None if SCHEDULE == "none" else MISSED,
    params=PARAMS,
    tags=["pulsar", "dispatch", "audit"],
    default_args={"owner": "dispatch-audit"},
)
def dispatch_audit() -> None:
    """Pull, ingest, replay, aggregate, validate and report; then recompute the intervals that late logs made stale."""

    @step(retries=0)
    def choose_interval(
        params: dict[str, Any], data_interval_start: Any = None, data_interval_end: Any = None
    ) -> Any:
        with clear_failure():
            return steps.choose_interval(params, (data_interval_start, data_interval_end))

    @step(retries=2, retry_delay=timedelta(seconds=30), outlets=[LANDED])
    def pull(chosen: dict[str, str], params: dict[str, Any], outlet_events: Any) -> dict[str, Any]:
        with clear_failure():
            summary = steps.pull(chosen, Home.current(), params["source_connection"])
        outlet_events[LANDED].extra = steps.landed(chosen, summary)
        return summary

    @spark_task()
    def ingest(chosen: dict[str, str]) -> dict[str, Any]:
        with clear_failure():
            return stages.ingest(chosen, Home.current())

    @spark_task()
    def plan(chosen: dict[str, str], params: dict[str, Any], run_id: str) -> list[dict[str, Any]]:
        with clear_failure():
            planned = stages.plan(chosen, Home.current(), run_id, params["replay_groups"])
            return steps.plan_of(planned)

    @spark_task(map_index_template="group {{ task.op_kwargs['group']['group'] }}")
    def replay(chosen: dict[str, str], group: dict[str, Any], run_id: str) -> dict[str, Any]:
        with clear_failure():
            return stages.replay_group(chosen, Home.current(), run_id, group["group"])

    @spark_task()
    def publish_tables(chosen: dict[str, str], run_id: str) -> dict[str, Any]:
        with clear_failure():
            return stages.publish_tables(chosen, Home.current(), run_id)

    @step(retries=2, retry_delay=timedelta(seconds=10))
    def discard_staging(chosen: dict[str, str], run_id: str) -> dict[str, Any]:
        with clear_failure():
            return stages.discard(chosen, Home.current(), run_id)

    @spark_task(outlets=[AUDITED])
    def aggregate(chosen: dict[str, str], replayed: dict[str, Any], outlet_events: Any) -> dict[str, Any]:
        with clear_failure():
            summary = stages.aggregate(chosen, Home.current())
        outlet_events[AUDITED].extra = steps.audited(chosen, replayed)
        return summary

    @step(retries=0)
    def validate(chosen: dict[str, str], params: dict[str, Any], ti: Any) -> None:
        with clear_failure():
            verdicts = steps.validate(chosen, Home.current())
        # Before the task can turn red: XCom keeps no return value of a failed one.
        ti.xcom_push(key="verdicts", value=verdicts)
        red_if_broken(verdicts, params)

    @step_in_any_case(retries=0, outlets=[VERDICT])
    def publish(chosen: dict[str, str], ti: Any, outlet_events: Any) -> dict[str, Any]:
        extra = steps.verdict(chosen, steps.publish(judged(ti)))
        outlet_events[VERDICT].extra = extra
        return extra

    @step_in_any_case(retries=1, retry_delay=timedelta(seconds=10))
    def report(chosen: dict[str, str], ti: Any) -> dict[str, Any]:
        judged(ti)
        with clear_failure():
            return steps.report(chosen, Home.current())

    @step_in_any_case(retries=2, retry_delay=timedelta(seconds=30))
    def alert(chosen: dict[str, str], ti: Any) -> dict[str, Any]:
        judged(ti)
        with clear_failure():
            return notify.alert(chosen, Home.current())

    @step(retries=1, retry_delay=timedelta(seconds=10))
    def find_stale(params: dict[str, Any], dag_run: Any) -> list[dict[str, str]]:
        if not steps.stale_wanted(dag_run.run_type, params):
            raise AirflowSkipException("this run was not asked to recompute stale intervals")
        with clear_failure():
            return stages.find_stale(Home.current())

    @spark_task()
    def recompute_stale(stale: list[dict[str, str]], chosen: dict[str, str]) -> list[dict[str, str]]:
        if not stale:
            raise AirflowSkipException("no interval is stale")
        with clear_failure():
            return stages.recompute(stale, Home.current(), chosen)

    @step(
        retries=1,
        retry_delay=timedelta(seconds=10),
        outlets=[AUDITED, VERDICT],
        map_index_template="{{ task.op_kwargs['stale']['interval_start'] }}",
    )
    def judge_stale(stale: dict[str, str], params: dict[str, Any], outlet_events: Any) -> None:
        with clear_failure():
            verdicts = steps.validate(stale, Home.current())
            steps.report(stale, Home.current())
        outlet_events[AUDITED].extra = steps.bounds(stale)
        outlet_events[VERDICT].extra = steps.verdict(stale, steps.publish(verdicts))
        red_if_broken(verdicts, params)

    @step(
        trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS,
        retries=2,
        retry_delay=timedelta(seconds=30),
        max_active_tis_per_dagrun=1,  # oldest first
        map_index_template="{{ task.op_kwargs['stale']['interval_start'] }}",
    )
    def alert_stale(stale: dict[str, str]) -> dict[str, Any]:
        with clear_failure():
            return notify.alert(stale, Home.current())

    @step(retries=0, trigger_rule=TriggerRule.NONE_FAILED)
    def conclude() -> None:
        """Runs only where all was judged and nothing is red: as a last task its state is the run's."""

    def judged(ti: Any) -> list[dict[str, Any]]:
        verdicts = ti.xcom_pull(task_ids="validate", key="verdicts")
        if verdicts is None:
            raise AirflowSkipException("nothing was judged in this run; see the first red task")
        return verdicts  # type: ignore[no-any-return]

    def red_if_broken(verdicts: list[dict[str, Any]], params: dict[str, Any]) -> None:
        reasons = steps.broken(verdicts)
        if reasons and params["fail_on_findings"]:
            raise AirflowFailException(
                "\n".join(["the audit found broken promises; all results are kept", *reasons])
            )

    chosen = choose_interval()
    planned = plan(chosen)
    replayed = publish_tables(chosen)
    pull(chosen) >> ingest(chosen) >> planned
    replay.partial(chosen=chosen).expand(group=planned) >> replayed
    replayed >> discard_staging(chosen).as_teardown(setups=planned)
    aggregated = aggregate(chosen, replayed)
    validated = with_links(validate(chosen), DATA_DOCS)
    published = publish(chosen)
    reported = with_links(report(chosen), REPORT)
    alerted = with_links(alert(chosen), REPORT, DATA_DOCS)
    aggregated >> validated >> [published, reported]
    # The alert points to the report, and is sent without it where there is none.
    [validated, reported] >> alerted

    stale = find_stale()
    aggregated >> stale
    recomputed = recompute_stale(stale, chosen)
    rejudged = judge_stale.expand(stale=recomputed)
    rejudged >> alert_stale.expand(stale=recomputed)
    [validated, published, reported, rejudged] >> conclude()


dispatch_audit()
