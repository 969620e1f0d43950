"""Steps of the DAG ``dispatch_audit``, callable without Airflow.

Each step takes plain values, works in one *home* (a folder or URL) and returns a small summary that fits into XCom.
Progress is logged to ``dispatch_audit.progress``. Heavy packages are imported inside the functions, and Spark runs in
processes of its own (``dags/dispatch_airflow/stages.py``), so that parsing the DAG is fast.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch_airflow.home import Home, ParameterError, progress
from dispatch_airflow.observability import lineage, metrics
from dispatch_airflow.schedule import DAILY, last_interval
from dispatch_airflow.sources import Source, namespace_of
from dispatch_airflow.stages import describe
from dispatch_core.extras import require_spark

if TYPE_CHECKING:
    from dispatch_expectations.verdict import Verdict

#: Columns of an overall verdict.
_OVERALL: Final = ("cluster", "topic", "subscription", "verdict", "reason")
#: The cluster of logs that name none; it is left out of names.
_USUAL_CLUSTER: Final = "standalone"
#: Maximum number of names in an asset event and in an error, which are kept in Airflow's database.
_NAMED_AT_MOST: Final = 100


def choose_interval(
    params: Mapping[str, Any],
    data_interval: tuple[datetime | None, datetime | None],
    home: Home,
    *,
    run_type: str = "manual",
    moment: datetime | None = None,
    schedule: str = DAILY,
    known: Iterable[Source] = (),
) -> dict[str, str]:
    """Choose the interval, the source and the namespace of a run: ``interval_start, interval_end, source, namespace``.

    The interval is the run's data interval. If the schedule was changed, a scheduled run and a backfill leave out what
    the earlier schedule has audited of it (``pull_logs.rest_of``). A run without a data interval, as Airflow makes one
    without a logical date or without a schedule, takes the last interval of ``schedule`` that had ended at ``moment``. If
    the parameter ``settings_file`` names a file, its settings are added as ``overrides`` (JSON).

    Args:
        params: the run's parameters.
        data_interval: of the run, as Airflow gives it.
        home: the home without a namespace.
        run_type: Airflow's type of the run.
        moment: when the run was triggered; by default now.
        schedule: cron expression.
        known: sources with a namespace of their own.

    Raises:
        ParameterError: there is no source.
    """
    from spark_jobs.intervals import interval

    source = str(params.get("source") or "").strip()
    if not source:
        raise ParameterError(
            "source is empty; nothing was done. Give the folder or URL of the recorded logs."
        )
    settings_file = str(params.get("settings_file") or "").strip()
    namespace = namespace_of(source, settings_file, known)
    start, end = data_interval
    if start is None or start == end:
        start, end = last_interval(schedule, start or moment or datetime.now(UTC))
    span = interval(start, end)
    if run_type != "manual":
        from spark_jobs.pull.pull_logs import rest_of

        span = rest_of(home.within(namespace).landing, span)
    progress.info("interval %s to %s, source %s", span.start.isoformat(), span.end.isoformat(), source)
    if namespace:
        progress.info("results are in %s, apart from those of other sources", home.within(namespace).place)
    chosen = {
        "interval_start": span.start.isoformat(),
        "interval_end": span.end.isoformat(),
        "source": source,
        "namespace": namespace,
    }
    if settings_file:
        from dispatch_core.cli.settings_file import settings_of
        from dispatch_core.recording.log_profile import Overrides

        overrides = Overrides(None, settings_of([Path(settings_file).expanduser()]))
        progress.info("settings in place of the logs' headers: %s", ", ".join(overrides.texts) or "none")
        chosen["overrides"] = overrides.json()
    return chosen


def must_wait(chosen: Mapping[str, str], run_type: str, minutes: int, now: datetime | None = None) -> bool:
    """True while a scheduled run waits for the last logs of its interval: ``minutes`` after the interval's end."""
    if run_type != "scheduled":
        return False
    begins = datetime.fromisoformat(chosen["interval_end"]) + timedelta(minutes=minutes)
    return (now or datetime.now(UTC)) < begins


def check_home(home: Home) -> None:
    """Raise an error, in one line, if the home cannot be reached or written to, or the extra ``spark`` is missing.

    Only processes that run tasks need that extra; the web server and the DAG processor do without.
    """
    require_spark()
    home.place.check()


def pull(
    chosen: Mapping[str, str], home: Home, connection: str | None = None, *, follow_links: bool = False
) -> dict[str, Any]:
    """Copy new log files of the source into the landing, through Airflow's object storage."""
    from airflow.sdk import ObjectStoragePath

    from spark_jobs.pull.pull_logs import pull as pull_files

    source = chosen["source"]
    location = source if "://" in source else f"file://{Path(source).expanduser().absolute()}"
    with metrics.timed("pull"):
        summary = pull_files(
            ObjectStoragePath(location, conn_id=connection or None),
            home.landing,
            chosen["interval_start"],
            interval_end=chosen["interval_end"],
            progress=progress.info,
            follow_links=follow_links,
        )
    lineage.pulled(location, home)
    for what, kept in (
        ("gone", "what was landed of it is kept and used"),
        ("changed", "the new contents are used"),
    ):
        for name in list(summary.get(what) or ())[:_NAMED_AT_MOST]:
            progress.warning("pull: %s has %s in the source; %s", name, what, kept)
    return summary


def landed(chosen: Mapping[str, str], pulled: Mapping[str, Any]) -> dict[str, Any]:
    """Make the extra information of a pull's asset event."""
    names = ("files", "bytes", "copied_files", "copied_bytes", "files_gone", "files_changed", "digest")
    return {**bounds(chosen), **{name: pulled[name] for name in names}}


def audited(chosen: Mapping[str, str], replayed: Mapping[str, Any]) -> dict[str, Any]:
    """Make the extra information of the asset event of an interval's tables."""
    names = ("dispatchers", "dispatchers_failed", "rows", "history_digest")
    return {**bounds(chosen), **{name: replayed[name] for name in names if name in replayed}}


def bounds(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the bounds of the interval, and the namespace of its source if it has one."""
    named = {"namespace": chosen["namespace"]} if chosen["namespace"] else {}
    return {name: chosen[name] for name in ("interval_start", "interval_end")} | named


def partition_key(chosen: Mapping[str, str]) -> str:
    """Return the name of the interval, below its namespace if it has one."""
    from spark_jobs.intervals import interval

    name = interval(chosen["interval_start"], chosen["interval_end"]).name
    return f"{chosen['namespace']}/{name}" if chosen["namespace"] else name


def plan_of(planned: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Log the groups of a plan and return them."""
    groups = list(planned["groups"])
    for group in groups:
        progress.info(
            "plan: group %d has %s dispatchers, %s events",
            group["group"],
            format(group["dispatchers"], ","),
            format(group["events"], ","),
        )
    return groups


def validate(chosen: Mapping[str, str], home: Home) -> list[dict[str, Any]]:
    """Judge the interval with Great Expectations, write Data Docs and the ``verdicts`` table.

    Returns the overall verdict of each dispatcher, with the columns ``_OVERALL``; the table has all verdicts.
    """
    # At info, Great Expectations writes a line for each function that it leaves out of its documentation.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    from dispatch_expectations.validate import validate_interval
    from spark_jobs.intervals import parse_moment

    with metrics.timed("validate"):
        verdicts = validate_interval(home.warehouse, parse_moment(chosen["interval_start"]), home.data_docs)
    lineage.validated(verdicts, home)
    metrics.judged(chosen, home)
    return _overall(verdicts)


def verdicts(chosen: Mapping[str, str], home: Home) -> list[dict[str, Any]]:
    """Read the overall verdicts of the interval, as ``validate`` returned them."""
    from dispatch_expectations.validate import read_verdicts
    from spark_jobs.intervals import parse_moment

    return _overall(read_verdicts(home.warehouse, parse_moment(chosen["interval_start"])))


def counts(overall: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count overall verdicts: an interval may have ten thousand, so they are not passed from task to task."""
    found = Counter(row["verdict"] for row in overall)
    return {name: found[name] for name in ("PASS", "FAIL", "UNKNOWN")}


def _overall(found: Iterable[Verdict]) -> list[dict[str, Any]]:
    return [
        {name: getattr(verdict, name) for name in _OVERALL} for verdict in found if verdict.promise == "all"
    ]


def report(chosen: Mapping[str, str], home: Home) -> dict[str, Any]:
    """Write the pages of the interval, one per subscription, and their index."""
    from spark_jobs.intervals import interval
    from spark_jobs.reports.report_pages import write_reports

    span = interval(chosen["interval_start"], chosen["interval_end"])
    with metrics.timed("report"):
        summary = write_reports(home.warehouse, span, home.reports)
    progress.info("report: %s", describe(summary))
    return summary


def broken(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write one line with the reason for each dispatcher whose overall verdict is FAIL, at most 100."""
    lines = [f"{name_of(row)}: FAIL - {row['reason']}" for row in verdicts if row["verdict"] == "FAIL"]
    left_out = len(lines) - _NAMED_AT_MOST
    return lines if left_out <= 0 else [*lines[:_NAMED_AT_MOST], f"... and {left_out:,} more"]


def name_of(row: Mapping[str, Any]) -> str:
    """Name a dispatcher: ``topic / subscription``, and its cluster if it is not the default one."""
    cluster = row["cluster"]
    return f"{row['topic']} / {row['subscription']}" + ("" if cluster == _USUAL_CLUSTER else f" in {cluster}")


def publish(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Log the verdict of every dispatcher; return the verdicts by name (``name_of``)."""
    published = {}
    for row in verdicts:
        name = name_of(row)
        published[name] = str(row["verdict"])
        progress.info("%-7s %s: %s", row["verdict"], name, row["reason"])
    return published


def verdict(chosen: Mapping[str, str], published: Mapping[str, str]) -> dict[str, Any]:
    """Make the extra information of the asset event of verdicts: counts, and the first 100 names that are not PASS."""
    return {
        **bounds(chosen),
        "counts": counts([{"verdict": verdict} for verdict in published.values()]),
        **{
            wanted: sorted(name for name, verdict in published.items() if verdict == wanted)[:_NAMED_AT_MOST]
            for wanted in ("FAIL", "UNKNOWN")
        },
    }


def stale_wanted(run_type: str, params: Mapping[str, Any]) -> bool:
    """True if a run recomputes stale intervals: always for a scheduled run, else if the parameter says so."""
    return run_type == "scheduled" or bool(params.get("recompute_stale"))
