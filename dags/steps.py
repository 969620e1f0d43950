"""What the tasks of ``dispatch_audit`` do, callable without Airflow.

Each step takes plain values, works under one *home* folder and returns a small summary that fits into XCom. Progress
is logged line by line to ``dispatch_audit.progress``. Heavy packages are imported inside the functions, and Spark runs
in a process of its own, so that parsing the DAG costs nothing and a crashed JVM is one failed task.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from dags.processes import stream
from dispatch_core.errors import DispatchAuditError

HOME_VARIABLE: Final = "DISPATCH_AUDIT_HOME"
SOURCE_VARIABLE: Final = "DISPATCH_AUDIT_SOURCE"
#: Order of the Spark stages; each is ``python -m spark_jobs.<stage>``.
SPARK_STAGES: Final = ("ingest", "replay", "aggregates")
#: Those that have to know how long is too long.
MAKES_FINDINGS: Final = ("replay", "aggregates")
#: Exit code of a stage that could not judge its input: trying again would change nothing.
EXIT_BAD_INPUT: Final = 2

_LAST_LINES: Final = 20

progress = logging.getLogger("dispatch_audit.progress")
_output = logging.getLogger("dispatch_audit.output")


class StepError(DispatchAuditError):
    """A step that failed for a reason another attempt may cure, such as a Spark process that was killed."""


class ParameterError(DispatchAuditError):
    """A run's parameters that name no interval or no source."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where one installation keeps what it lands, writes and publishes."""

    root: Path

    @classmethod
    def current(cls) -> Home:
        """The home that the environment names, by default ``.dispatch-audit`` in the working directory."""
        return cls(Path(os.environ.get(HOME_VARIABLE) or ".dispatch-audit").absolute())

    @property
    def landing(self) -> Path:
        """Pulled log files, one folder per interval."""
        return self.root / "landing"

    @property
    def warehouse(self) -> Path:
        """Delta tables, one folder per table."""
        return self.root / "warehouse"

    @property
    def data_docs(self) -> Path:
        """Great Expectations' pages."""
        return self.root / "data-docs"

    @property
    def reports(self) -> Path:
        """A page per subscription and interval, for people."""
        return self.root / "reports"

    @property
    def alerts(self) -> Path:
        """Every alert that was raised, one JSON object per line."""
        return self.root / "alerts" / "alerts.jsonl"


def choose_interval(
    params: Mapping[str, Any], data_interval: tuple[datetime | None, datetime | None]
) -> dict[str, str]:
    """The interval of a run and the source it reads, as text: ``interval_start, interval_end, source``.

    The parameters win; without them it is the run's data interval. Raises ``ParameterError`` where neither names one.
    """
    from spark_jobs.intervals import interval

    start, end = params.get("interval_start"), params.get("interval_end")
    if start is None and end is not None:
        raise ParameterError(
            f"interval_end is {end} but interval_start is empty; nothing was done. "
            "Give both, or neither for the run's own data interval."
        )
    if start is None:
        start, end = data_interval
    if start is None:
        raise ParameterError(
            "this run has no data interval and interval_start is empty; nothing was done. "
            "Trigger it again with interval_start, for example 2026-11-21T00:00:00Z."
        )
    span = interval(start, end)
    source = str(params.get("source") or "").strip()
    if not source:
        raise ParameterError(
            "source is empty; nothing was done. Name the folder or URL that holds the recorded logs."
        )
    progress.info("interval %s to %s, source %s", span.start.isoformat(), span.end.isoformat(), source)
    return {"interval_start": span.start.isoformat(), "interval_end": span.end.isoformat(), "source": source}


def pull(chosen: Mapping[str, str], home: Home, connection: str | None = None) -> dict[str, Any]:
    """Copy the source's log files into the interval's landing folder, through Airflow's object storage."""
    from airflow.sdk import ObjectStoragePath

    from spark_jobs.pull import pull as pull_files

    source = chosen["source"]
    location = source if "://" in source else f"file://{Path(source).expanduser().absolute()}"
    return pull_files(
        ObjectStoragePath(location, conn_id=connection or None),
        home.landing,
        chosen["interval_start"],
        interval_end=chosen["interval_end"],
        progress=progress.info,
    )


def run_spark_stage(stage: str, chosen: Mapping[str, str], home: Home) -> dict[str, Any]:
    """Run one Spark stage for the interval in a process of its own; its progress goes to the log as it comes.

    Returns the summary that the stage prints last. Raises ``DispatchAuditError`` with the stage's last lines: a plain
    one where the stage refused its input, a ``StepError`` where another attempt may help.
    """
    if stage not in SPARK_STAGES:
        raise ValueError(f"no Spark stage {stage!r}; there are {', '.join(SPARK_STAGES)}")
    command = [sys.executable, "-m", f"spark_jobs.{stage}", "--interval-start", chosen["interval_start"]]
    command += ["--interval-end", chosen["interval_end"]]
    command += ["--landing", str(home.landing), "--warehouse", str(home.warehouse)]
    if stage in MAKES_FINDINGS:
        from expectations.policy import current_policy

        command += ["--limits", current_policy().limit_rules().json()]
    last: list[str] = []

    def show(line: str) -> None:
        if line.strip():
            # What the stage says itself is progress; what Spark and the JVM say stands in the log only.
            (progress if line.startswith((f"{stage} ", f"{stage}:")) else _output).info("%s", line)
            last.append(line)
            del last[:-_LAST_LINES]

    began = time.monotonic()
    code, output = stream(command, env=_stage_environment(), on_error_line=show)
    if code != 0:
        story = "\n".join(last or output[-_LAST_LINES:] or ["(it printed nothing)"])
        error = DispatchAuditError if code == EXIT_BAD_INPUT else StepError
        raise error(
            f"spark_jobs.{stage} ended with exit code {code} for the interval {chosen['interval_start']}; "
            f"tables of earlier intervals and earlier stages are kept. Its last lines:\n{story}"
        )
    summary = _last_json(output, stage)
    progress.info("%s", describe(summary | {"seconds": round(time.monotonic() - began, 1)}))
    return summary


def _stage_environment() -> dict[str, str]:
    # The stages import this checkout's packages whether or not they are installed.
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }


def _last_json(output: Sequence[str], stage: str) -> dict[str, Any]:
    for line in reversed(output):
        if line.strip():
            try:
                summary = json.loads(line)
            except ValueError:
                break
            if isinstance(summary, dict):
                return summary
            break
    raise StepError(
        f"spark_jobs.{stage} ended well but its last line of output is no JSON summary: {output[-1:]!r}; "
        "its tables are written, run the task again"
    )


def describe(summary: Mapping[str, Any]) -> str:
    """A summary on one line, ``name=value`` for every plain value, for a person who reads a log."""
    plain = {
        k: v
        for k, v in summary.items()
        if isinstance(v, (int, float, str)) and k not in ("stage", "interval_start")
    }
    return " ".join(
        f"{name}={value:,}" if isinstance(value, int) else f"{name}={value}" for name, value in plain.items()
    )


def validate(chosen: Mapping[str, str], home: Home) -> list[dict[str, Any]]:
    """Judge the interval with Great Expectations, write Data Docs and the ``verdicts`` table.

    Returns one dictionary per dispatcher and promise, with the columns of the ``verdicts`` table that fit into XCom.
    """
    from expectations.validate import validate_interval
    from spark_jobs.intervals import parse_moment

    verdicts = validate_interval(home.warehouse, parse_moment(chosen["interval_start"]), home.data_docs)
    rows = [dataclasses.asdict(verdict) for verdict in verdicts]
    return [json.loads(json.dumps(row, default=str)) for row in rows]


def report(chosen: Mapping[str, str], home: Home) -> dict[str, Any]:
    """Write the pages of the interval, one per subscription, and their index."""
    from spark_jobs.intervals import interval
    from spark_jobs.reports import write_reports

    span = interval(chosen["interval_start"], chosen["interval_end"])
    summary = write_reports(home.warehouse, span, home.reports)
    progress.info("%s", describe(summary))
    return summary


def overall(verdicts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that hold a dispatcher's overall verdict."""
    return [row for row in verdicts if row["promise"] == "all"]


def broken(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per dispatcher whose overall verdict is FAIL: who, and why."""
    return [
        f"{row['topic']} / {row['subscription']}: FAIL - {row['reason']}"
        for row in overall(verdicts)
        if row["verdict"] == "FAIL"
    ]


def publish(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Tell the verdict of every dispatcher, whatever became of the others; returns them by ``topic / subscription``."""
    published = {}
    for row in overall(verdicts):
        name = f"{row['topic']} / {row['subscription']}"
        published[name] = str(row["verdict"])
        progress.info("%-7s %s: %s", row["verdict"], name, row["reason"])
    return published
