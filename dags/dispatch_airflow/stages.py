"""Start the stages of ``spark_jobs``, each in a process of its own, and read their progress, summary and exit code.

A stage that needs Spark runs as ``python -m spark_jobs.<module>``, with the master in ``DISPATCH_AUDIT_SPARK_MASTER``, or
through ``spark-submit`` if ``DISPATCH_AUDIT_SPARK_CONNECTION`` names an Airflow connection of type Spark. Either way the
process ends with its task, its lines are written to the task's log at once, and a crashed JVM is one failed task.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import spark_jobs
from dispatch_airflow.home import Home, StepError, output, progress
from dispatch_airflow.observability import lineage, metrics
from dispatch_airflow.processes import stream
from dispatch_core.cli.log_lines import JSON, LOG_FORMAT_VARIABLE, OUTPUT, PROGRESS, LogLine, parse_line
from dispatch_core.errors import DispatchAuditError

CONNECTION_VARIABLE: Final = "DISPATCH_AUDIT_SPARK_CONNECTION"
#: Lines of events that a log may have to be simulated for advice; 0: none is.
ADVICE_VARIABLE: Final = "DISPATCH_AUDIT_ADVICE_EVENTS"
#: Exit code of a stage with bad input: another attempt would fail too.
EXIT_BAD_INPUT: Final = 2
#: Exit code of ``replay publish`` when the tables have changed since the plan.
EXIT_PLAN_AGAIN: Final = 75

_SPARK_JOBS: Final = Path(spark_jobs.__file__).resolve().parent
_LAST_LINES: Final = 20
#: Beginning of the line in which a stage says why it ends.
_ERROR_PREFIX: Final = "error:"
#: The JVM's own warnings go to stderr: the last line of stdout is the stage's summary.
_JVM_OUTPUT_TO_STDERR: Final = "-XX:+DisplayVMOutputToStderr -Xlog:disable -Xlog:all=warning:stderr"


class PlanAgainError(StepError):
    """The tables have changed since the replay was planned, or some of its groups are missing."""


def ingest(chosen: Mapping[str, str], home: Home) -> dict[str, Any]:
    """Ingest the rows of the landed segments, after earlier intervals whose segments have changed."""
    summary = _stage("ingest", [*_interval(chosen), *_landing(home), *_warehouse(home)], spark=True)
    lineage.ran("ingest", home)
    return summary


def plan(chosen: Mapping[str, str], home: Home, run_id: str, groups: int) -> dict[str, Any]:
    """Divide the dispatchers of the interval into at most ``groups`` groups of about equal size."""
    arguments = [*_replay(chosen, home, run_id), "--groups", str(groups), *_limits(), *_overrides(chosen)]
    return _stage("replay", ["plan", *arguments], spark=True, name="plan")


def replay_group(chosen: Mapping[str, str], home: Home, run_id: str, group: int) -> dict[str, Any]:
    """Replay and audit the dispatchers of one group; stage the results without publishing them."""
    arguments = ["group", *_replay(chosen, home, run_id), "--group", str(group)]
    return _stage("replay", arguments, spark=True, name=f"replay group {group}")


def publish_tables(chosen: Mapping[str, str], home: Home, run_id: str) -> dict[str, Any]:
    """Commit the staged groups, one commit per table.

    If groups are missing, or the tables they were made from have changed, the whole interval is replayed here, so that the
    published rows are never a mixture.
    """
    try:
        summary = _stage("replay", ["publish", *_replay(chosen, home, run_id)], name="publish")
    except PlanAgainError as error:
        progress.warning("replay: %s", str(error).splitlines()[-1])
        progress.warning("replay: the groups cannot be published; replaying the whole interval in this task")
        arguments = [*_interval(chosen), *_warehouse(home), *_limits(), *_overrides(chosen)]
        summary = _stage("replay", arguments, spark=True)
    lineage.ran("replay", home)
    return summary


def discard(chosen: Mapping[str, str], home: Home, run_id: str) -> dict[str, Any]:
    """Remove the files that the run staged and did not publish."""
    return _stage("replay", ["discard", *_replay(chosen, home, run_id)], name="discard")


def aggregate(chosen: Mapping[str, str], home: Home) -> dict[str, Any]:
    """Compute balance and waiting times."""
    summary = _stage("aggregates", [*_interval(chosen), *_warehouse(home), *_limits()])
    lineage.ran("aggregates", home)
    return summary


def find_stale(home: Home) -> list[dict[str, str]]:
    """List audited intervals whose history has changed, oldest first: ``interval_start``, ``interval_end``."""
    summary = _stage("stale_intervals", ["list", *_landing(home), *_warehouse(home)], name="stale")
    return list(summary["stale"])


def recompute(
    stale: Sequence[Mapping[str, str]], home: Home, chosen: Mapping[str, str]
) -> list[dict[str, str]]:
    """Ingest, replay and aggregate these intervals again, oldest first, with the run's settings; return them."""
    named = [
        text for span in stale for text in ("--interval", f"{span['interval_start']}/{span['interval_end']}")
    ]
    arguments = ["recompute", *_landing(home), *_warehouse(home), *_limits(), *_overrides(chosen), *named]
    summary = _stage("stale_intervals", arguments, spark=True, name="recompute")
    return list(summary["recomputed"])


def what_if(arguments: Sequence[str], home: Home) -> dict[str, Any]:
    """Predict an interval under other rules; ``arguments`` are those of ``spark_jobs.what_if``."""
    from dispatch_expectations.policy import current_text

    policy = ["--policy-text", current_text()]
    return _stage("what_if", [*_warehouse(home), *policy, *arguments], spark=True, name="what-if")


def upgrade_risk(arguments: Sequence[str], home: Home) -> dict[str, Any]:
    """Compare two releases; ``arguments`` are those of ``spark_jobs.what_if.upgrade_risk``."""
    from dispatch_expectations.policy import current_text

    policy = ["--policy-text", current_text()]
    return _stage(
        "what_if.upgrade_risk", [*_warehouse(home), *policy, *arguments], spark=True, name="upgrade-risk"
    )


def advise(chosen: Mapping[str, str], home: Home) -> dict[str, Any]:
    """Advise on the subscriptions of a judged interval that break the order per key; written beside their reports."""
    from dispatch_expectations.policy import current_text
    from spark_jobs.intervals import interval
    from spark_jobs.reports.report_pages import folder_of

    span = interval(chosen["interval_start"], chosen["interval_end"])
    out = ["--out", str(folder_of(home.reports, span)), "--policy-text", current_text()]
    arguments = [*_interval(chosen), *_warehouse(home), *out, "--most-events", str(_advice_events())]
    return _stage("what_if.advice", arguments, spark=True, name="advice")


def _advice_events() -> int:
    """Read how long a log may be to be simulated for advice; 0: none is."""
    from dispatch_airflow.params import set_number
    from dispatch_core.what_if.advise import MOST_EVENTS

    return set_number(ADVICE_VARIABLE, MOST_EVENTS, most=10**9, least=0)


def hunt(arguments: Sequence[str]) -> dict[str, Any]:
    """Hunt releases and compare them; ``arguments`` are those of ``spark_jobs.hunt``."""
    return _stage("hunt", arguments, spark=True)


def _interval(chosen: Mapping[str, str]) -> list[str]:
    return ["--interval-start", chosen["interval_start"], "--interval-end", chosen["interval_end"]]


def _replay(chosen: Mapping[str, str], home: Home, run_id: str) -> list[str]:
    return [*_interval(chosen), *_warehouse(home), "--run-id", run_id]


def _landing(home: Home) -> list[str]:
    return ["--landing", str(home.landing)]


def _warehouse(home: Home) -> list[str]:
    return ["--warehouse", str(home.warehouse)]


def _limits() -> list[str]:
    """Return the argument with the policy's limits, for the stages that make findings."""
    from dispatch_expectations.policy import current_policy

    return ["--limits", current_policy().limit_rules().json()]


def _overrides(chosen: Mapping[str, str]) -> list[str]:
    """Return the argument with the settings in place of those in the logs' headers, for the stages that replay."""
    return ["--overrides", chosen["overrides"]] if "overrides" in chosen else []


def _stage(
    module: str, arguments: Sequence[str], *, spark: bool = False, name: str | None = None
) -> dict[str, Any]:
    """Run ``spark_jobs.<module>`` to its end; return the summary that it prints last.

    Raises an error with the stage's last lines: ``DispatchAuditError`` if the stage refused its input,
    ``PlanAgainError`` if it needs another plan, else ``StepError``, because another attempt may succeed.
    """
    name = name or module
    last: list[str] = []
    errors: list[str] = []

    def show(line: str) -> None:
        if line.strip():
            # What is no JSON comes from a process that died, or from a native library.
            said = parse_line(line) or LogLine(line, logging.INFO, OUTPUT)
            text = f"{said.message}\n{said.exception}" if said.exception else said.message
            if said.message.startswith(_ERROR_PREFIX):
                errors.append(text)  # becomes the task's error, which is logged once
                return
            (progress if said.logger == PROGRESS else output).log(said.level, "%s", text)
            last.append(said.message)
            del last[:-_LAST_LINES]

    began = time.monotonic()
    connection_id = os.environ.get(CONNECTION_VARIABLE) if spark else None
    command = (
        submit(connection_id, name, [f"spark_jobs.{module}", *arguments])
        if connection_id
        else [sys.executable, "-m", f"spark_jobs.{module}", *arguments]
    )
    # spark-submit writes both outputs of the driver to stdout.
    show_output = show if connection_id else None
    code, printed = stream(command, env=_environment(), on_error_line=show, on_output_line=show_output)
    if code != 0:
        last_lines = "\n".join(errors or last or printed[-_LAST_LINES:] or ["(it printed nothing)"])
        raise _error_of(code)(
            f"spark_jobs.{module} ({name}) ended with exit code {code}; "
            f"tables of earlier intervals and earlier stages are kept. Its last lines:\n{last_lines}"
        )
    summary = _last_json(printed, name)
    seconds = time.monotonic() - began
    metrics.stage_ended(name, seconds)
    progress.info("%s: %s", name, describe(summary | {"seconds": round(seconds, 1)}))
    return summary


def _error_of(code: int) -> type[DispatchAuditError]:
    return {EXIT_BAD_INPUT: DispatchAuditError, EXIT_PLAN_AGAIN: PlanAgainError}.get(code, StepError)


def submit(connection_id: str, name: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that submits a stage to the master of an Airflow connection; the driver runs on this machine.

    The provider's hook makes it, so that all fields of the connection count. ``arguments``: the module and its arguments.
    Raises ``DispatchAuditError`` if the connection does not exist, names no master or has another mode than ``client``.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    from spark_jobs.session import delta_jars

    try:
        connection = BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        raise DispatchAuditError(
            f"{CONNECTION_VARIABLE} names the connection {connection_id!r}, which Airflow does not have; nothing was "
            "started. Create it (type Spark), or unset the variable to run Spark on this machine"
        ) from None
    if not connection.host:
        raise DispatchAuditError(
            f"connection {connection_id} names no master; nothing was started. Give it as the host, such as "
            "spark://master with the port 7077, or local[*]"
        )
    mode = connection.extra_dejson.get("deploy-mode") or "client"
    if mode != "client":
        raise DispatchAuditError(
            f"connection {connection_id}: deploy-mode is {mode!r}, but only 'client' lets a task see its stage's progress "
            "and summary; nothing was started. Correct the connection's extra field"
        )
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    except ImportError as error:
        raise DispatchAuditError(
            f"{CONNECTION_VARIABLE} names a connection, but the provider that submits to it cannot be imported ({error}); "
            "nothing was started. Install pulsar-dispatch-audit[spark-submit] where Airflow's tasks run"
        ) from None
    quiet = f"-Dlog4j2.configurationFile={(_SPARK_JOBS / 'log4j2.properties').as_uri()}"
    hook = SparkSubmitHook(
        conn_id=connection_id,
        deploy_mode=mode,
        name=f"dispatch audit: {name}",
        conf={"spark.driver.extraJavaOptions": f"-Duser.timezone=UTC {_JVM_OUTPUT_TO_STDERR} {quiet}"},
        driver_memory=os.environ.get("DISPATCH_AUDIT_DRIVER_MEMORY") or "2g",
        jars=",".join(delta_jars()) or None,
        application_args=list(arguments),
    )
    # Run by ``stream`` and not by the hook, which reads the driver's lines for its own purposes and leaves the driver
    # behind when the task is killed.
    binary, *rest = hook._build_spark_submit_command(str(_SPARK_JOBS / "run_stage.py"))
    beside = Path(sys.executable).parent / binary
    return [str(beside) if beside.is_file() else binary, *rest]


def _environment() -> dict[str, str]:
    # The stages import this checkout's packages whether or not they are installed, and send no alerts.
    paths = [str(_SPARK_JOBS.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **{name: value for name, value in os.environ.items() if name not in _of_channels()},
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
        LOG_FORMAT_VARIABLE: JSON,  # so that the task's log gets the level of each line
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }


def _of_channels() -> set[str]:
    """Return the variables with the connections of the alerts' channels, which are secrets."""
    from dispatch_core.audit.policy.reader import PolicyError
    from dispatch_expectations.alert_routes import DEFAULT_CHANNELS
    from dispatch_expectations.policy import current_alert_rules

    try:
        channels = (*DEFAULT_CHANNELS, *current_alert_rules().channels)
    except PolicyError as error:
        raise StepError(str(error)) from error
    return {f"AIRFLOW_CONN_{channel.connection.upper()}" for channel in channels}


def _last_json(printed: Sequence[str], name: str) -> dict[str, Any]:
    for line in reversed(printed):
        if line.strip() and parse_line(line) is None:
            try:
                summary = json.loads(line)
            except ValueError:
                break
            if isinstance(summary, dict):
                return summary
            break
    raise StepError(
        f"{name} succeeded, but its last line of output is not a JSON summary: {printed[-1:]!r}; "
        "its tables are written, run the task again"
    )


def describe(summary: Mapping[str, Any]) -> str:
    """Write a summary on one line for a log, ``name=value`` for every plain value."""
    plain = {
        k: v
        for k, v in summary.items()
        if isinstance(v, (int, float, str)) and not isinstance(v, bool)
        if k not in ("stage", "interval_start", "interval_end", "limits") and not k.endswith("digest")
    }
    return " ".join(
        f"{name}={value:,}" if isinstance(value, int) else f"{name}={value}" for name, value in plain.items()
    )
