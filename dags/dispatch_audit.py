"""The DAG ``dispatch_audit``: one audited interval of recorded dispatch per run.

Read it as a table of contents; what each task does stands in ``dags/steps.py`` and ``dags/notify.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, CronDataIntervalTimetable, Param, TriggerRule, dag, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from dags import notify, steps
from dispatch_core.errors import DispatchAuditError

DOC = """
### Did the broker keep its promises?

Each run takes the recorded dispatch logs of **one interval** (a UTC day), replays them through the broker's own rules
and says **PASS**, **FAIL** or **UNKNOWN** for every subscription, with the findings that prove it.

| task | what it does | where its results are |
|---|---|---|
| `choose_interval` | checks the parameters | XCom |
| `pull` | copies the log files from the source, any object store that Airflow knows | `landing/<interval>` |
| `ingest` | reads, checks, quarantines bad rows | `messages`, `consumer_events`, `quarantine` |
| `replay` | folds each dispatcher's log and audits it | `deliveries`, `ownership`, `blocked`, `divergences`, `anomalies` |
| `aggregate` | balance and waiting times | `balance`, `waits` |
| `validate` | Great Expectations judges; **red when a subscription FAILs**, after all is kept | `verdicts`, Data Docs |
| `report` | a page per subscription: verdict, pictures, findings; also when `validate` is red | `reports/<interval>` |
| `publish` | tells the verdict of every subscription, also when another one failed | asset `dispatch_audit/verdict` |
| `alert` | tells it: in a file always, by e-mail and webhook where connections exist | `alerts/alerts.jsonl` |
| `conclude` | makes the run red when `validate` is | |

A run may be repeated at any time: it replaces its interval and nothing else.

**A red `validate`** is the audit doing its work: read its log or the alert. **Any other red task** is a run that could
not judge; its log says what was wrong, what was kept and what to do next.
"""

SOURCE = os.environ.get(steps.SOURCE_VARIABLE) or str(steps.Home.current().root / "incoming")
# Empty or unset: daily. "none": only when triggered.
SCHEDULE = os.environ.get("DISPATCH_AUDIT_SCHEDULE") or "0 0 * * *"

# The form shows a calendar for "date-time"; what comes by REST or command line is held to this.
MOMENT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?$"

PARAMS = {
    "source": Param(
        SOURCE,
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
        section="Recorded logs",
    ),
    "interval_start": Param(
        None,
        type=["null", "string"],
        format="date-time",
        pattern=MOMENT,
        title="Start of the interval",
        description="Empty: the run's own data interval",
        section="Interval",
    ),
    "interval_end": Param(
        None,
        type=["null", "string"],
        format="date-time",
        pattern=MOMENT,
        title="End of the interval (exclusive)",
        description="Empty: one day after the start",
        section="Interval",
    ),
    "fail_on_findings": Param(
        True,
        type="boolean",
        title="Red when a subscription FAILs",
        description="Off: the verdict is kept and alerted all the same, but the run stays green",
        section="Verdict",
    ),
}

VERDICT = Asset(name="dispatch_audit/verdict", uri="dispatch-audit://verdict")


@contextmanager
def clear_failure() -> Iterator[None]:
    """Fail without another attempt where the input is wrong; another attempt only where it may help."""
    try:
        yield
    except steps.StepError as error:
        raise AirflowException(str(error)) from error
    except DispatchAuditError as error:
        raise AirflowFailException(str(error)) from error


@dag(
    dag_id="dispatch_audit",
    dag_display_name="Dispatch audit",
    description="Replays one interval of recorded Pulsar dispatch and says whether its promises held",
    doc_md=DOC,
    schedule=None if SCHEDULE == "none" else CronDataIntervalTimetable(SCHEDULE, timezone="UTC"),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params=PARAMS,
    tags=["pulsar", "dispatch", "audit"],
    default_args={"owner": "dispatch-audit"},
)
def dispatch_audit() -> None:
    """Pull, ingest, replay, aggregate, validate; then publish and alert."""

    @task(retries=0)
    def choose_interval(
        params: dict[str, Any], data_interval_start: Any = None, data_interval_end: Any = None
    ) -> Any:
        with clear_failure():
            return steps.choose_interval(params, (data_interval_start, data_interval_end))

    @task(retries=2, retry_delay=timedelta(seconds=30))
    def pull(chosen: dict[str, str], params: dict[str, Any]) -> dict[str, Any]:
        with clear_failure():
            return steps.pull(chosen, steps.Home.current(), params["source_connection"])

    @task(retries=1, retry_delay=timedelta(seconds=10))
    def spark_stage(stage: str, chosen: dict[str, str]) -> dict[str, Any]:
        with clear_failure():
            return steps.run_spark_stage(stage, chosen, steps.Home.current())

    @task(retries=0)
    def validate(chosen: dict[str, str], params: dict[str, Any], ti: Any) -> None:
        with clear_failure():
            verdicts = steps.validate(chosen, steps.Home.current())
        ti.xcom_push(
            key="verdicts", value=verdicts
        )  # before the task can turn red: XCom keeps no failed return value
        reasons = steps.broken(verdicts)
        if reasons and params["fail_on_findings"]:
            raise AirflowFailException(
                "\n".join(["the audit found broken promises; all results are kept", *reasons])
            )

    @task(trigger_rule=TriggerRule.ALL_DONE, retries=0, outlets=[VERDICT])
    def publish(chosen: dict[str, str], ti: Any, outlet_events: Any) -> dict[str, str]:
        verdicts = judged(ti)
        published = steps.publish(verdicts)
        outlet_events[VERDICT].extra = {"interval_start": chosen["interval_start"], "verdicts": published}
        return published

    @task(trigger_rule=TriggerRule.ALL_DONE, retries=1, retry_delay=timedelta(seconds=10))
    def report(chosen: dict[str, str], ti: Any) -> dict[str, Any]:
        judged(ti)
        with clear_failure():
            return steps.report(chosen, steps.Home.current())

    @task(trigger_rule=TriggerRule.ALL_DONE, retries=2, retry_delay=timedelta(seconds=30))
    def alert(chosen: dict[str, str], ti: Any) -> dict[str, Any]:
        judged(ti)
        with clear_failure():
            return notify.alert(chosen, steps.Home.current())

    @task(retries=0)
    def conclude() -> None:
        """Runs only where ``validate`` is green: as a last task its state is the run's."""

    def judged(ti: Any) -> list[dict[str, Any]]:
        verdicts = ti.xcom_pull(task_ids="validate", key="verdicts")
        if verdicts is None:
            raise AirflowSkipException("nothing was judged in this run; see the first red task")
        return verdicts  # type: ignore[no-any-return]

    chosen = choose_interval()
    pulled = pull(chosen)
    ingested, replayed, aggregated = (
        spark_stage.override(task_id=task_id)(stage, chosen)
        for task_id, stage in (("ingest", "ingest"), ("replay", "replay"), ("aggregate", "aggregates"))
    )
    validated = validate(chosen)
    published, reported, alerted = publish(chosen), report(chosen), alert(chosen)
    pulled >> ingested >> replayed >> aggregated >> validated >> [published, reported]
    # The alert points to the report, and is sent without it where there is none.
    [validated, reported] >> alerted
    [validated, published, reported] >> conclude()


dispatch_audit()
