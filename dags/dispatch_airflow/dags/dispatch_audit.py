"""DAG ``dispatch_audit``, and one more for each of ``DISPATCH_AUDIT_SOURCES``: audit one interval per run.

The tasks call ``steps.py``, ``stages.py`` and ``notify.py`` in ``dags/dispatch_airflow``.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow.sdk import (
    DAG,
    Asset,
    CronDataIntervalTimetable,
    Param,
    PokeReturnValue,
    TaskGroup,
    TriggerRule,
    task,
)
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowSkipException

from dispatch_airflow import deadline, failures, notify, stages, steps
from dispatch_airflow.dags.shared import DEFAULT_ARGS, step
from dispatch_airflow.home import Home
from dispatch_airflow.pages.links import DATA_DOCS, REPORT, with_links
from dispatch_airflow.params import number, set_day, set_number, switch
from dispatch_airflow.schedule import DAILY
from dispatch_airflow.sources import Source, configured

DOC: Final = """
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
| `advise` | simulates what would have prevented order violations, of a few short logs | `reports/<interval>/advice.json` |
| `report` | a page per subscription: verdict, charts, findings; also when `validate` failed | `reports/<interval>` |
| `publish` | logs the verdict of every subscription, also when `validate` failed | asset `dispatch_audit/verdict` |
| `alert` | sends the alerts, and those that channels still wait for, to a file and by every channel | `alerts/<interval>` |
| `find_stale` | lists the intervals whose history has changed since they were audited | XCom |
| `recompute_stale` | replays them again, oldest first; in scheduled runs, in others by parameter | the same tables |
| `judge_stale`, `alert_stale` | judges each of them again, and alerts on changes | the same places |
| `conclude` | fails the run when an interval was judged FAIL, or not judged | |

The interval is the run's **data interval**. *Trigger* audits the last one that has ended; for another one choose *Data
interval: Manual* in the advanced options of the form, and for several days *Backfill*. A run with another *source* keeps its
results apart from those of the schedule.

A run may be repeated at any time, in any order, also as a backfill beside the schedule: it replaces the results of its
interval and nothing else.

**If `validate` failed**, promises were broken: read its log or the alert. **If any other task failed**, the run could not
judge; its log says what is wrong, what was kept and what to do next, and the channels of alerts are told.
"""

# Empty or unset: daily. "none": only when triggered.
SCHEDULE: Final = os.environ.get("DISPATCH_AUDIT_SCHEDULE") or DAILY
CRON: Final = SCHEDULE if SCHEDULE != "none" else DAILY
# The schedule begins with this day; runs before it are made by hand or by a backfill.
START_DATE: Final = set_day("DISPATCH_AUDIT_START_DATE", datetime(2024, 1, 1, tzinfo=UTC))
# Replay groups, and other tasks with Spark, that run at the same time over all runs of a DAG: each is a driver of its own.
GROUPS_AT_ONCE: Final = set_number("DISPATCH_AUDIT_GROUPS_AT_ONCE", 2, most=256)
# The pool of tasks with Spark limits them over all DAGs.
SPARK_POOL: Final = os.environ.get("DISPATCH_AUDIT_SPARK_POOL") or "default_pool"
# A task that takes longer is ended, and tried again.
TASK_HOURS: Final = set_number("DISPATCH_AUDIT_TASK_HOURS", 12, most=24 * 7)
# A run that takes longer fails. It includes the wait for the interval's last logs.
RUN_HOURS: Final = set_number("DISPATCH_AUDIT_RUN_HOURS", 48, most=24 * 31)

MOST_GROUPS: Final = 256

# Minutes after an interval's end at which a scheduled run begins: by then the recorder has ended its last segment.
WAIT_MINUTES: Final = set_number("DISPATCH_AUDIT_WAIT_MINUTES", 11, least=0, most=24 * 60)


def params_of(source: Source) -> dict[str, Param]:
    """Make the parameters of the DAG that audits a source."""
    return {
        "source": Param(
            source.url,
            type="string",
            minLength=1,
            maxLength=2000,
            title="Source of the recorded logs",
            description="A folder or a URL that Airflow's object storage opens",
            description_md=(
                "A folder, or a URL such as `s3://bucket/recordings`. All files named `messages*`, `events*` and `trace*` "
                "below it are read (`.jsonl`, `.jsonl.gz`, `.jsonl.zst`, `.parquet`). Results of another source than the "
                "default are kept apart, under `ad-hoc`."
            ),
            examples=["/data/pulsar-recordings", "s3://bucket/recordings"],
            section="Recorded logs",
        ),
        "source_connection": Param(
            source.connection,
            type=["null", "string"],
            pattern=r"^[A-Za-z0-9_.\-]{1,200}$",
            title="Connection of the source",
            description="Airflow connection for an object store; empty for a local folder",
            examples=["aws_default"],
            section="Recorded logs",
        ),
        "follow_links": switch(
            source.follow_links,
            "Follow links in the source",
            "Read what symbolic links in a local folder lead to. Off: they are named in the log and left out",
            "Recorded logs",
        ),
        "settings_file": Param(
            source.settings_file,
            type=["null", "string"],
            maxLength=2000,
            title="Settings of the broker",
            description="A file on this machine, as import-broker-conf writes it; empty: the settings of the logs' headers",
            examples=["/etc/dispatch-audit/audit.conf"],
            section="Recorded logs",
        ),
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


LANDED: Final = Asset(name="dispatch_audit/landed", uri="dispatch-audit://landed", group="dispatch_audit")
AUDITED: Final = Asset(name="dispatch_audit/audited", uri="dispatch-audit://audited", group="dispatch_audit")
VERDICT: Final = Asset(name="dispatch_audit/verdict", uri="dispatch-audit://verdict", group="dispatch_audit")
# The same event with the interval as its partition key: Airflow starts no DAG without partitions on an event that has a key.
VERDICT_OF_INTERVAL: Final = Asset(
    name="dispatch_audit/verdict_of_interval",
    uri="dispatch-audit://verdict-of-interval",
    group="dispatch_audit",
)


def spark_task(**more: Any) -> Any:
    """Make a task that starts a process with Spark; it is retried, as the process may be killed."""
    return step(
        retries=2,
        retry_delay=timedelta(seconds=10),
        max_active_tis_per_dag=GROUPS_AT_ONCE,
        pool=SPARK_POOL,
        **more,
    )


def step_in_any_case(**more: Any) -> Any:
    """Make a task that also runs after failed tasks."""
    return step(trigger_rule=TriggerRule.ALL_DONE, **more)


@task.sensor(mode="reschedule", poke_interval=30, retries=0)
def choose_interval(
    params: dict[str, Any], dag_run: Any, data_interval_start: Any = None, data_interval_end: Any = None
) -> PokeReturnValue:
    """Choose interval, source and namespace; wait for the interval's last logs."""
    home = Home.current()
    chosen = steps.choose_interval(
        params,
        (data_interval_start, data_interval_end),
        home,
        run_type=dag_run.run_type,
        moment=dag_run.run_after,
        schedule=CRON,
        known=configured(),
    )
    steps.check_home(home)
    waits = steps.must_wait(chosen, dag_run.run_type, WAIT_MINUTES)
    return PokeReturnValue(is_done=not waits, xcom_value=chosen)


@step(retries=2, retry_delay=timedelta(seconds=30), outlets=[LANDED])
def pull(chosen: dict[str, str], params: dict[str, Any], outlet_events: Any) -> dict[str, Any]:
    """Copy new log files from the source."""
    connection, follow_links = params["source_connection"], params["follow_links"]
    summary = steps.pull(chosen, Home.of(chosen), connection, follow_links=follow_links)
    outlet_events[LANDED].extra = steps.landed(chosen, summary)
    return summary


@spark_task()
def ingest(chosen: dict[str, str]) -> dict[str, Any]:
    """Read and check rows."""
    return stages.ingest(chosen, Home.of(chosen))


@spark_task()
def plan(chosen: dict[str, str], params: dict[str, Any], run_id: str) -> list[dict[str, Any]]:
    """Divide the dispatchers into groups."""
    return steps.plan_of(stages.plan(chosen, Home.of(chosen), run_id, params["replay_groups"]))


@spark_task(map_index_template="group {{ task.op_kwargs['group']['group'] }}")
def replay(chosen: dict[str, str], group: dict[str, Any], run_id: str) -> dict[str, Any]:
    """Replay and audit the dispatchers of one group."""
    return stages.replay_group(chosen, Home.of(chosen), run_id, group["group"])


@spark_task()
def publish_tables(chosen: dict[str, str], run_id: str) -> dict[str, Any]:
    """Commit the results of all groups, one commit per table."""
    return stages.publish_tables(chosen, Home.of(chosen), run_id)


@step(retries=2, retry_delay=timedelta(seconds=10))
def discard_staging(chosen: dict[str, str], run_id: str) -> dict[str, Any]:
    """Remove staged files that were not published."""
    return stages.discard(chosen, Home.of(chosen), run_id)


@spark_task(outlets=[AUDITED])
def aggregate(chosen: dict[str, str], replayed: dict[str, Any], outlet_events: Any) -> dict[str, Any]:
    """Compute what crosses dispatchers and intervals."""
    summary = stages.aggregate(chosen, Home.of(chosen))
    outlet_events[AUDITED].extra = steps.audited(chosen, replayed)
    return summary


@step(retries=0)
def validate(chosen: dict[str, str], params: dict[str, Any], ti: Any) -> None:
    """Judge with Great Expectations; fail when a subscription FAILs."""
    notify.announce(chosen, Home.of(chosen))
    verdicts = steps.validate(chosen, Home.of(chosen))
    # Pushed before the task may fail, because XCom has no return value of a failed task.
    ti.xcom_push(key="counts", value=steps.counts(verdicts))
    red_if_broken(verdicts, params)


@step_in_any_case(retries=0, outlets=[VERDICT, VERDICT_OF_INTERVAL])
def publish(chosen: dict[str, str], ti: Any, outlet_events: Any) -> dict[str, Any]:
    """Log the verdicts, and announce them to other DAGs."""
    skip_unless_judged(ti)
    extra = steps.verdict(chosen, steps.publish(steps.verdicts(chosen, Home.of(chosen))))
    announce(chosen, extra, outlet_events)
    return extra


@step_in_any_case(retries=0, pool=SPARK_POOL)
def advise(chosen: dict[str, str], ti: Any) -> dict[str, Any]:
    """Simulate what would have prevented order violations."""
    skip_unless_judged(ti)
    return stages.advise(chosen, Home.of(chosen))


@step_in_any_case(retries=1, retry_delay=timedelta(seconds=10))
def report(chosen: dict[str, str], ti: Any) -> dict[str, Any]:
    """Write a page per subscription."""
    skip_unless_judged(ti)
    return steps.report(chosen, Home.of(chosen))


@step_in_any_case(retries=2, retry_delay=timedelta(seconds=30))
def alert(chosen: dict[str, str], ti: Any) -> dict[str, Any]:
    """Send the alerts."""
    skip_unless_judged(ti)
    return notify.alert(chosen, Home.of(chosen))


@step(retries=1, retry_delay=timedelta(seconds=10))
def find_stale(chosen: dict[str, str], params: dict[str, Any], dag_run: Any) -> list[dict[str, str]]:
    """List the intervals whose history has changed since they were audited."""
    if not steps.stale_wanted(dag_run.run_type, params):
        raise AirflowSkipException("this run was not asked to recompute stale intervals")
    return stages.find_stale(Home.of(chosen))


@spark_task()
def recompute_stale(stale: list[dict[str, str]], chosen: dict[str, str]) -> list[dict[str, str]]:
    """Replay these intervals again."""
    if not stale:
        raise AirflowSkipException("no interval is stale")
    recomputed = stages.recompute(stale, Home.of(chosen), chosen)
    return [{**span, "namespace": chosen["namespace"]} for span in recomputed]


@step(
    retries=1,
    retry_delay=timedelta(seconds=10),
    outlets=[AUDITED, VERDICT, VERDICT_OF_INTERVAL],
    pool=SPARK_POOL,
    map_index_template="{{ task.op_kwargs['stale']['interval_start'] }}",
)
def judge_stale(stale: dict[str, str], params: dict[str, Any], outlet_events: Any) -> None:
    """Judge a recomputed interval again, and write its pages."""
    notify.announce(stale, Home.of(stale))
    verdicts = steps.validate(stale, Home.of(stale))
    stages.advise(stale, Home.of(stale))
    steps.report(stale, Home.of(stale))
    outlet_events[AUDITED].extra = steps.bounds(stale)
    announce(stale, steps.verdict(stale, steps.publish(verdicts)), outlet_events)
    red_if_broken(verdicts, params)


@step(
    trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS,
    retries=2,
    retry_delay=timedelta(seconds=30),
    max_active_tis_per_dagrun=1,  # oldest first
    map_index_template="{{ task.op_kwargs['stale']['interval_start'] }}",
)
def alert_stale(stale: dict[str, str]) -> dict[str, Any]:
    """Send the alerts of a recomputed interval."""
    return notify.alert(stale, Home.of(stale))


@step(retries=0, trigger_rule=TriggerRule.NONE_FAILED)
def conclude() -> None:
    """Run only if all was judged and nothing failed: the state of this last task is the run's."""


def announce(chosen: dict[str, str], extra: dict[str, Any], outlet_events: Any) -> None:
    """Attach the counts of verdicts to both asset events of an interval."""
    for verdict in (VERDICT, VERDICT_OF_INTERVAL):
        outlet_events[verdict].extra = extra
    outlet_events[VERDICT_OF_INTERVAL].add_partitions(steps.partition_key(chosen))


def skip_unless_judged(ti: Any) -> None:
    """Skip the task if ``validate`` has judged nothing."""
    if ti.xcom_pull(task_ids="validate", key="counts") is None:
        raise AirflowSkipException("nothing was judged in this run; see the first failed task")


def red_if_broken(verdicts: list[dict[str, Any]], params: dict[str, Any]) -> None:
    """Fail the task, without another attempt, if a subscription FAILs and the run is to be red then."""
    reasons = steps.broken(verdicts)
    if reasons and params["fail_on_findings"]:
        raise failures.BrokenPromisesError(
            "\n".join(["the audit found broken promises; all results are kept", *reasons])
        )


def audit_dag(source: Source) -> DAG:
    """Make the DAG that audits a source."""
    with DAG(
        dag_id=source.dag_id,
        dag_display_name=f"Dispatch audit{f' of {source.name}' if source.name else ''}",
        description="Replay one interval of recorded Pulsar dispatch and judge if the broker kept its promises",
        doc_md=DOC,
        schedule=None if SCHEDULE == "none" else CronDataIntervalTimetable(SCHEDULE, timezone="UTC"),
        start_date=START_DATE,
        catchup=False,
        # For scheduled and manual runs together; a backfill has a limit of its own, so the schedule continues beside it.
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=RUN_HOURS),
        deadline=None
        if SCHEDULE == "none"
        else DeadlineAlert(
            reference=DeadlineReference.DAGRUN_LOGICAL_DATE,
            interval=deadline.time_allowed(SCHEDULE),
            callback=AsyncCallback("dispatch_airflow.deadline.verdict_is_late"),
            name="verdict in time",
        ),
        params=params_of(source),
        tags=["pulsar", "dispatch", "audit"],
        default_args=DEFAULT_ARGS | {"execution_timeout": timedelta(hours=TASK_HOURS)},
    ) as made:
        chosen = choose_interval()
        pulled = pull(chosen)
        with TaskGroup("replay_all", prefix_group_id=False, tooltip="Replay the dispatchers, in groups"):
            planned = plan(chosen)
            replayed = publish_tables(chosen)
            replay.partial(chosen=chosen).expand(group=planned) >> replayed
            replayed >> discard_staging(chosen).as_teardown(setups=planned)
        aggregated = aggregate(chosen, replayed)
        pulled >> ingest(chosen) >> planned
        with TaskGroup("judge", prefix_group_id=False, tooltip="Verdicts, pages and alerts"):
            validated = with_links(validate(chosen), DATA_DOCS)
            published = publish(chosen)
            advised = advise(chosen)
            reported = with_links(report(chosen), REPORT)
            alerted = with_links(alert(chosen), REPORT, DATA_DOCS)
            validated >> [published, advised, reported]
            # Reports and alerts show the advice, if there is one.
            advised >> reported
            # The alert links to the report, if there is one.
            [validated, reported] >> alerted
        with TaskGroup("late_logs", prefix_group_id=False, tooltip="Intervals whose history has changed"):
            stale = find_stale(chosen)
            recomputed = recompute_stale(stale, chosen)
            rejudged = judge_stale.expand(stale=recomputed)
            rejudged >> alert_stale.expand(stale=recomputed)
        aggregated >> [validated, stale]
        [validated, published, advised, reported, rejudged] >> conclude()
    return made


def dispatch_audit() -> list[DAG]:
    """Make the DAG of every source that the environment names."""
    return [audit_dag(source) for source in configured()]
