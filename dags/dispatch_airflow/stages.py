"""Start the stages of ``spark_jobs``, each in a process of its own, and read their progress, summary and exit code.

A stage that needs Spark runs as ``python -m spark_jobs.<module>``, with the master in ``DISPATCH_AUDIT_SPARK_MASTER``, or
through ``spark-submit`` if ``DISPATCH_AUDIT_SPARK_CONNECTION`` names an Airflow connection of type Spark. Either way the
process ends with its task, its lines are written to the task's log at once, and a crashed JVM is one failed task.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import spark_jobs
from dispatch_airflow.home import Home, StepError, output, progress
from dispatch_airflow.processes import stream
from dispatch_core.errors import DispatchAuditError

CONNECTION_VARIABLE: Final = "DISPATCH_AUDIT_SPARK_CONNECTION"
#: Exit code of a stage with bad input: another attempt would fail too.
EXIT_BAD_INPUT: Final = 2
#: Exit code of ``replay publish`` when the tables have changed since the plan.
EXIT_PLAN_AGAIN: Final = 75

_SPARK_JOBS: Final = Path(spark_jobs.__file__).resolve().parent
_LAST_LINES: Final = 20
#: First words of the stages' own lines of progress; all other lines come from Spark and the JVM.
_PROGRESS_WORDS: Final = frozenset(
    (
        "ingest", "history", "survey", "stale", "recompute", "plan", "replay", "publish", "discard", "aggregates", "what-if",
    )
)  # fmt: skip


class PlanAgainError(StepError):
    """The tables have changed since the replay was planned, or some of its groups are missing."""


def ingest(chosen: Mapping[str, str], home: Home) -> dict[str, Any]:
    """Ingest the rows of the landed segments, after earlier intervals whose segments have changed."""
    return _stage("ingest", [*_interval(chosen), *_landing(home), *_warehouse(home)], spark=True)


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
        return _stage("replay", ["publish", *_replay(chosen, home, run_id)], name="publish")
    except PlanAgainError as error:
        progress.warning("replay: %s", str(error).splitlines()[-1])
        progress.warning("replay: the groups cannot be published; replaying the whole interval in this task")
        arguments = [*_interval(chosen), *_warehouse(home), *_limits(), *_overrides(chosen)]
        return _stage("replay", arguments, spark=True)


def discard(chosen: Mapping[str, str], home: Home, run_id: str) -> dict[str, Any]:
    """Remove the files that the run staged and did not publish."""
    return _stage("replay", ["discard", *_replay(chosen, home, run_id)], name="discard")


def aggregate(chosen: Mapping[str, str], home: Home) -> dict[str, Any]:
    """Compute balance and waiting times."""
    return _stage("aggregates", [*_interval(chosen), *_warehouse(home), *_limits()])


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
    return _stage("what_if", [*_warehouse(home), *arguments], spark=True, name="what-if")


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

    def show(line: str) -> None:
        if line.strip():
            is_progress = line.split(maxsplit=1)[0].rstrip(":") in _PROGRESS_WORDS
            (progress if is_progress else output).info("%s", line)
            last.append(line)
            del last[:-_LAST_LINES]

    began = time.monotonic()
    command = [*(_launcher(name) if spark else [sys.executable, "-m"]), f"spark_jobs.{module}", *arguments]
    # spark-submit writes both outputs of the driver to stdout.
    show_output = show if spark and os.environ.get(CONNECTION_VARIABLE) else None
    code, printed = stream(command, env=_environment(), on_error_line=show, on_output_line=show_output)
    if code != 0:
        last_lines = "\n".join(last or printed[-_LAST_LINES:] or ["(it printed nothing)"])
        raise _error_of(code)(
            f"spark_jobs.{module} ({name}) ended with exit code {code}; "
            f"tables of earlier intervals and earlier stages are kept. Its last lines:\n{last_lines}"
        )
    summary = _last_json(printed, name)
    progress.info("%s: %s", name, describe(summary | {"seconds": round(time.monotonic() - began, 1)}))
    return summary


def _error_of(code: int) -> type[DispatchAuditError]:
    return {EXIT_BAD_INPUT: DispatchAuditError, EXIT_PLAN_AGAIN: PlanAgainError}.get(code, StepError)


def _launcher(name: str) -> list[str]:
    """Return the command that starts a module with Spark, without the module's name."""
    connection_id = os.environ.get(CONNECTION_VARIABLE)
    return submit(connection_id, name) if connection_id else [sys.executable, "-m"]


def submit(connection_id: str, name: str) -> list[str]:
    """Return the command ``spark-submit`` with the master of an Airflow connection; the driver runs on this machine.

    Raises ``DispatchAuditError`` if the connection does not exist or has another deploy mode than ``client``.
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
    mode = connection.extra_dejson.get("deploy-mode") or "client"
    if mode != "client":
        raise DispatchAuditError(
            f"connection {connection_id}: deploy-mode is {mode!r}, but only 'client' lets a task see its stage's progress "
            "and summary; nothing was started. Correct the connection's extra field"
        )
    host = connection.host or "local[*]"
    master = f"{host}:{connection.port}" if connection.port else host
    command = [
        str(Path(sys.executable).parent / "spark-submit"),
        "--master",
        master,
        "--deploy-mode",
        "client",
    ]
    quiet = f"-Dlog4j2.configurationFile={(_SPARK_JOBS / 'log4j2.properties').as_uri()}"
    command += ["--name", f"dispatch audit: {name}", "--driver-java-options", f"-Duser.timezone=UTC {quiet}"]
    command += ["--driver-memory", os.environ.get("DISPATCH_AUDIT_DRIVER_MEMORY") or "2g"]
    jars = delta_jars()
    return [*command, *(["--jars", ",".join(jars)] if jars else []), str(_SPARK_JOBS / "run_stage.py")]


def _environment() -> dict[str, str]:
    # The stages import this checkout's packages whether or not they are installed, and send no alerts.
    paths = [str(_SPARK_JOBS.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **{name: value for name, value in os.environ.items() if name not in _of_channels()},
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }


def _of_channels() -> set[str]:
    """Return the variables with the connections of the alerts' channels, which are secrets."""
    from dispatch_expectations.alert_routes import DEFAULT_CHANNELS
    from dispatch_expectations.policy import PolicyError, current_alert_rules

    try:
        channels = (*DEFAULT_CHANNELS, *current_alert_rules().channels)
    except PolicyError as error:
        raise StepError(str(error)) from error
    return {f"AIRFLOW_CONN_{channel.connection.upper()}" for channel in channels}


def _last_json(printed: Sequence[str], name: str) -> dict[str, Any]:
    for line in reversed(printed):
        if line.strip():
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
