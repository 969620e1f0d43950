"""DAG ``dispatch_audit``: audit one interval of recorded dispatch per run.

The tasks call ``steps.py``, ``stages.py`` and ``notify.py`` in ``dags/dispatch_airflow``.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from airflow.sdk import Asset, CronDataIntervalTimetable, Param, PokeReturnValue, TriggerRule, dag, task
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowSkipException

from dispatch_airflow import deadline, failures, notify, stages, steps
from dispatch_airflow.home import HOME_VARIABLE, SETTINGS_VARIABLE, SOURCE_VARIABLE, Home, clear_failure
from dispatch_airflow.pages.links import DATA_DOCS, REPORT, with_links
from dispatch_airflow.params import moment, number, set_number, switch

DOC = """
### Did the broker keep its promises?

Each run takes the recorded dispatch logs of **one interval** (a UTC day or hour), replays them through the broker's own
rules and says **PASS**, **FAIL** or **UNKNOWN** for every subscription, with the findings that prove it.

| task | what it does | where its results are |
|---|---|---|
| `choose_interval` | checks the parameters and the home; in scheduled runs, waits for the interval's last logs | XCom |
| `pull` | copies new log files from the source, any object store | `landing`, asset `dispatch_audit/landed` |
| `ingest` | reads and checks rows; earlier intervals with new logs first | `messages`, `consumer_events`, `quarantine` |
| `plan` | divides the dispatchers into groups of about equal size | XCom |
| `replay` | replays and audits each dispatcher's log, one mapped task per group | staged files |
| `publish_tables` | one commit per table for all groups | `deliveries`, `ownership`, `blocked`, `divergences`, `anomalies` |
| `discard_staging` | removes staged files that were not published, also after failures | |
| `aggregate` | balance over 24 hours, and over all topics | `rolling_balance`, `anomalies`, asset `dispatch_audit/audited` |
| `validate` | Great Expectations judges; **fails when a subscription FAILs**, after publishing | `verdicts`, Data Docs |
| `report` | a page per subscription: verdict, charts, findings; also when `validate` failed | `reports/<interval>` |
| `publish` | logs the verdict of every subscription, also when `validate` failed | asset `dispatch_audit/verdict` |
| `alert` | sends the alerts, and those that channels still wait for, to a file and by every channel | `alerts/<interval>` |
| `find_stale` | lists the intervals whose history has changed since they were audited | XCom |
| `recompute_stale` | replays them again, oldest first; in scheduled runs, in others by parameter | the same tables |
| `judge_stale`, `alert_stale` | judges each of them again, and alerts on changes | the same places |
| `conclude` | fails the run when an interval was judged FAIL, or not judged | |

A run may be repeated at any time, in any order, also as a backfill beside the schedule: it replaces the results of its
interval and nothing else.

**If `validate` failed**, promises were broken: read its log or the alert. **If any other task failed**, the run could not
judge; its log says what is wrong, what was kept and what to do next, and the channels of alerts are told.
"""

DAILY = "0 0 * * *"
# Empty or unset: daily. "none": only when triggered.
SCHEDULE = os.environ.get("DISPATCH_AUDIT_SCHEDULE") or DAILY
# Replay groups, and other tasks with Spark, that run at the same time over all runs: each is a Spark driver of its own.
GROUPS_AT_ONCE = set_number("DISPATCH_AUDIT_GROUPS_AT_ONCE", 2, most=256)

MOST_GROUPS = 256

# Minutes after an interval's end at which a scheduled run begins: by then the recorder has ended its last segment.
WAIT_MINUTES = set_number("DISPATCH_AUDIT_WAIT_MINUTES", 11, least=0, most=24 * 60)

#: As text: credentials are looked up when a task runs.
HOME = Home(os.environ.get(HOME_VARIABLE) or ".dispatch-audit").root

PARAMS = {
    "source": Param(
        os.environ.get(SOURCE_VARIABLE) or f"{HOME}/incoming",
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
    "follow_links": switch(
        False,
        "Follow links in the source",
        "Read what symbolic links in a local folder lead to. Off: they are named in the log and left out",
        "Recorded logs",
    ),
    "settings_file": Param(
        os.environ.get(SETTINGS_VARIABLE) or None,
        type=["null", "string"],
        maxLength=2000,
        title="Settings of the broker",
        description="A file on this machine, as import-broker-conf writes it; empty: the settings of the logs' headers",
        examples=["/etc/dispatch-audit/audit.conf"],
        section="Recorded logs",
    ),
    "interval_start": moment("Start of the interval", "Empty: the run's own data interval", "Interval"),
    "interval_end": moment("End of the interval (exclusive)", "Empty: one day after the start", "Interval"),
    "replay_groups": number(
        set_number("DISPATCH_AUDIT_REPLAY_GROUPS", 2, most=MOST_GROUPS),
        "Number of replay groups",
        "Mapped tasks that share the dispatchers; more groups need more machines",
        "Replay",
        least=1,
        most=MOST_GROUPS,
    ),
    "recompute_stale": switch(
        False,
        "Recompute stale intervals, too",
        "Intervals that were audited before logs of an earlier time arrived. Scheduled runs always recompute them",
        "Replay",
    ),
    "fail_on_findings": switch(
        True,
        "Fail the run when a subscription FAILs",
        "Off: verdicts and alerts are the same, but the run succeeds",
        "Verdict",
    ),
}

LANDED = Asset(name="dispatch_audit/landed", uri="dispatch-audit://landed", group="dispatch_audit")
AUDITED = Asset(name="dispatch_audit/audited", uri="dispatch-audit://audited", group="dispatch_audit")
VERDICT = Asset(name="dispatch_audit/verdict", uri="dispatch-audit://verdict", group="dispatch_audit")

MISSED = DeadlineAlert(
    reference=DeadlineReference.DAGRUN_LOGICAL_DATE,
    interval=deadline.time_allowed(SCHEDULE if SCHEDULE != "none" else DAILY),
    callback=AsyncCallback("dispatch_airflow.deadline.verdict_is_late"),
    name="verdict in time",
)


#: A summary is one XCom, not one per key.
step = partial(task, multiple_outputs=False)


def spark_task(**more: Any) -> Any:
    """Make a task that starts a process with Spark; it is retried, as the process may be killed."""
    return step(retries=2, retry_delay=timedelta(seconds=10), max_active_tis_per_dag=GROUPS_AT_ONCE, **more)


def step_in_any_case(**more: Any) -> Any:
    """Make a task that also runs after failed tasks."""
    return step(trigger_rule=TriggerRule.ALL_DONE, **more)


@dag(
    dag_id="dispatch_audit",
    dag_display_name="Dispatch audit",
    description="Replay one interval of recorded Pulsar dispatch and judge if the broker kept its promises",
    doc_md=DOC,
    schedule=None if SCHEDULE == "none" else CronDataIntervalTimetable(SCHEDULE, timezone="UTC"),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    # For scheduled and manual runs together; a backfill has a limit of its own, so the schedule continues beside it.
    max_active_runs=1,
    deadline=None if SCHEDULE == "none" else MISSED,
    params=PARAMS,
    tags=["pulsar", "dispatch", "audit"],
    default_args={"owner": "dispatch-audit", "on_failure_callback": failures.report_failure},
)
def dispatch_audit() -> None:
    """Pull, ingest, replay, aggregate, validate and report; then recompute the intervals that late logs made stale."""

    @task.sensor(mode="reschedule", poke_interval=30, retries=0)
    def choose_interval(
        params: dict[str, Any], dag_run: Any, data_interval_start: Any = None, data_interval_end: Any = None
    ) -> PokeReturnValue:
        with clear_failure():
            home = Home.current()
            steps.check_home(home)
            chosen = steps.choose_interval(params, (data_interval_start, data_interval_end), home)
            waits = steps.must_wait(chosen, dag_run.run_type, WAIT_MINUTES)
            return PokeReturnValue(is_done=not waits, xcom_value=chosen)

    @step(retries=2, retry_delay=timedelta(seconds=30), outlets=[LANDED])
    def pull(chosen: dict[str, str], params: dict[str, Any], outlet_events: Any) -> dict[str, Any]:
        with clear_failure():
            summary = steps.pull(
                chosen, Home.current(), params["source_connection"], follow_links=params["follow_links"]
            )
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
            notify.announce(chosen, Home.current())
            verdicts = steps.validate(chosen, Home.current())
        # Pushed before the task may fail, because XCom has no return value of a failed task.
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
            notify.announce(stale, Home.current())
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
        """Run only if all was judged and nothing failed: the state of this last task is the run's."""

    def judged(ti: Any) -> list[dict[str, Any]]:
        verdicts = ti.xcom_pull(task_ids="validate", key="verdicts")
        if verdicts is None:
            raise AirflowSkipException("nothing was judged in this run; see the first failed task")
        return verdicts  # type: ignore[no-any-return]

    def red_if_broken(verdicts: list[dict[str, Any]], params: dict[str, Any]) -> None:
        reasons = steps.broken(verdicts)
        if reasons and params["fail_on_findings"]:
            raise failures.BrokenPromisesError(
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
    # The alert links to the report, if there is one.
    [validated, reported] >> alerted

    stale = find_stale()
    aggregated >> stale
    recomputed = recompute_stale(stale, chosen)
    rejudged = judge_stale.expand(stale=recomputed)
    rejudged >> alert_stale.expand(stale=recomputed)
    [validated, published, reported, rejudged] >> conclude()


dispatch_audit()
