"""The work of the tasks of ``dispatch_audit``, callable without Airflow.

Each step takes plain values, works under one *home* folder and returns a small summary that fits into XCom. Progress
is logged line by line to ``dispatch_audit.progress``. Heavy packages are imported inside the functions, and Spark runs
in processes of its own (``dags/dispatch_airflow/stages.py``), so that parsing the DAG costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from dispatch_airflow.home import Home, ParameterError, progress
from dispatch_airflow.stages import describe

#: Columns of a verdict that other tasks need. An interval may have ten thousand dispatchers.
_IN_XCOM: Final = ("cluster", "topic", "subscription", "promise", "verdict", "reason")
#: The cluster of logs that name none; it is not shown.
_USUAL_CLUSTER: Final = "standalone"
#: Subscriptions that an asset event names; it is kept in Airflow's database.
_NAMED_AT_MOST: Final = 100


def choose_interval(
    params: Mapping[str, Any], data_interval: tuple[datetime | None, datetime | None]
) -> dict[str, str]:
    """The interval of a run and the source it reads, as text: ``interval_start, interval_end, source``.

    ``overrides`` beside them, as JSON, where the parameter ``settings_file`` names a file: it is read here, once.
    The parameters win; without them it is the run's data interval. Raises ``ParameterError`` where neither names one.
    """
    from spark_jobs.intervals import interval

    start, end = params.get("interval_start"), params.get("interval_end")
    if start is None and end is not None:
        raise ParameterError(
            f"interval_end is {str(end)[:80]!r} but interval_start is empty; nothing was done. "
            "Give both, or neither for the run's own data interval."
        )
    asked = start is not None
    if not asked:
        start, end = data_interval
    if start is None:
        raise ParameterError(
            "this run has no data interval and interval_start is empty; nothing was done. "
            "Trigger it again with interval_start, for example 2026-11-21T00:00:00Z."
        )
    if start == end and not asked:
        raise ParameterError(
            f"the run's data interval is empty ({start} to {end}), as that of a run by hand is, and interval_start is "
            "empty; nothing was done. Trigger it again with interval_start, for example 2026-11-21T00:00:00Z."
        )
    span = interval(start, end)
    source = str(params.get("source") or "").strip()
    if not source:
        raise ParameterError(
            "source is empty; nothing was done. Name the folder or URL that holds the recorded logs."
        )
    progress.info("interval %s to %s, source %s", span.start.isoformat(), span.end.isoformat(), source)
    chosen = {
        "interval_start": span.start.isoformat(),
        "interval_end": span.end.isoformat(),
        "source": source,
    }
    settings_file = str(params.get("settings_file") or "").strip()
    if settings_file:
        from dispatch_core.cli.settings_file import settings_of
        from dispatch_core.recording.log_profile import Overrides

        overrides = Overrides(None, settings_of([Path(settings_file).expanduser()]))
        progress.info("settings in place of the logs' headers: %s", ", ".join(overrides.texts) or "none")
        chosen["overrides"] = overrides.json()
    return chosen


def pull(chosen: Mapping[str, str], home: Home, connection: str | None = None) -> dict[str, Any]:
    """Copy what the landing does not have yet of the source's log files, through Airflow's object storage."""
    from airflow.sdk import ObjectStoragePath

    from spark_jobs.pull.pull_logs import pull as pull_files

    source = chosen["source"]
    location = source if "://" in source else f"file://{Path(source).expanduser().absolute()}"
    summary = pull_files(
        ObjectStoragePath(location, conn_id=connection or None),
        home.landing,
        chosen["interval_start"],
        interval_end=chosen["interval_end"],
        progress=progress.info,
    )
    for what, kept in (
        ("gone", "what was landed of it is kept and used"),
        ("changed", "the new contents are used"),
    ):
        for name in list(summary.get(what) or ())[:_NAMED_AT_MOST]:
            progress.warning("pull: %s has %s in the source; %s", name, what, kept)
    return summary


def landed(chosen: Mapping[str, str], pulled: Mapping[str, Any]) -> dict[str, Any]:
    """Extra information of a pull's asset event."""
    names = ("files", "bytes", "copied_files", "copied_bytes", "files_gone", "files_changed", "digest")
    return {**bounds(chosen), **{name: pulled[name] for name in names}}


def audited(chosen: Mapping[str, str], replayed: Mapping[str, Any]) -> dict[str, Any]:
    """Extra information of the asset event of an interval's tables."""
    names = ("dispatchers", "dispatchers_failed", "rows", "history_digest")
    return {**bounds(chosen), **{name: replayed[name] for name in names if name in replayed}}


def bounds(chosen: Mapping[str, str]) -> dict[str, str]:
    """The interval alone."""
    return {name: chosen[name] for name in ("interval_start", "interval_end")}


def plan_of(planned: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Log the groups of a plan and return them."""
    groups = list(planned["groups"])
    for one in groups:
        progress.info(
            "plan: group %d has %s dispatchers, %s events",
            one["group"],
            format(one["dispatchers"], ","),
            format(one["events"], ","),
        )
    return groups


def validate(chosen: Mapping[str, str], home: Home) -> list[dict[str, Any]]:
    """Judge the interval with Great Expectations, write Data Docs and the ``verdicts`` table.

    Returns the overall verdict of each dispatcher, one dictionary with the columns ``_IN_XCOM``; the rest is in the table.
    """
    from dispatch_expectations.validate import validate_interval
    from spark_jobs.intervals import parse_moment

    verdicts = validate_interval(home.warehouse, parse_moment(chosen["interval_start"]), home.data_docs)
    return [
        {name: getattr(verdict, name) for name in _IN_XCOM}
        for verdict in verdicts
        if verdict.promise == "all"
    ]


def report(chosen: Mapping[str, str], home: Home) -> dict[str, Any]:
    """Write the pages of the interval, one per subscription, and their index."""
    from spark_jobs.intervals import interval
    from spark_jobs.reports.report_pages import write_reports

    span = interval(chosen["interval_start"], chosen["interval_end"])
    summary = write_reports(home.warehouse, span, home.reports)
    progress.info("report: %s", describe(summary))
    return summary


def overall(verdicts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that hold a dispatcher's overall verdict."""
    return [row for row in verdicts if row["promise"] == "all"]


def broken(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per dispatcher whose overall verdict is FAIL: who, and why."""
    return [
        f"{name_of(row)}: FAIL - {row['reason']}" for row in overall(verdicts) if row["verdict"] == "FAIL"
    ]


def name_of(row: Mapping[str, Any]) -> str:
    """``topic / subscription`` of a dispatcher, with its cluster where that has a name."""
    cluster = row["cluster"]
    return f"{row['topic']} / {row['subscription']}" + ("" if cluster == _USUAL_CLUSTER else f" in {cluster}")


def publish(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Tell the verdict of every dispatcher, whatever became of the others; returns them by name (``name_of``)."""
    published = {}
    for row in overall(verdicts):
        name = name_of(row)
        published[name] = str(row["verdict"])
        progress.info("%-7s %s: %s", row["verdict"], name, row["reason"])
    return published


def verdict(chosen: Mapping[str, str], published: Mapping[str, str]) -> dict[str, Any]:
    """Extra information of the asset event of verdicts: the count of each, and the first 100 that are not PASS."""
    counts = Counter(published.values())
    return {
        **bounds(chosen),
        "counts": {name: counts[name] for name in ("PASS", "FAIL", "UNKNOWN")},
        **{
            name: sorted(one for one, verdict in published.items() if verdict == name)[:_NAMED_AT_MOST]
            for name in ("FAIL", "UNKNOWN")
        },
    }


def stale_wanted(run_type: str, params: Mapping[str, Any]) -> bool:
    """True if a run recomputes stale intervals: a scheduled run always, others where the parameter asks for it."""
    return run_type == "scheduled" or bool(params.get("recompute_stale"))
