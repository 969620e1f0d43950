"""Steps of the DAG ``upgrade_risk``, callable without Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch_airflow import notify, stages
from dispatch_airflow.home import Home, progress
from dispatch_airflow.what_if_steps import folder_of, namespace_given


def check(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the parameters to arguments of ``spark_jobs.what_if.upgrade_risk``, and to JSON values for XCom.

    Raises ``DispatchAuditError`` naming the wrong value, before anything is read.
    """
    from spark_jobs.intervals import interval
    from spark_jobs.what_if.request import assignments_of
    from spark_jobs.what_if.upgrade_risk import risk_request

    span = interval(str(params.get("interval_start") or ""), str(params.get("interval_end") or "") or None)
    assignments = assignments_of(params.get("settings"))
    wanted = risk_request(
        str(params.get("broker_version") or ""),
        assignments=assignments,
        against=params.get("against"),
        topics=str(params.get("topics") or ""),
        subscriptions=str(params.get("subscriptions") or ""),
        seeds=int(params.get("seeds") or 0),
        most_events=int(params.get("most_events") or 0),
    )
    arguments = ["--interval-start", span.start.isoformat(), "--interval-end", span.end.isoformat()]
    arguments += ["--seeds", str(wanted.seeds), "--most-events", str(wanted.most_events)]
    # Written as `--name=value`, because a value may begin with a dash.
    arguments += [f"--topics={wanted.topics}", f"--subscriptions={wanted.subscriptions}"]
    arguments += [f"--set={assignment}" for assignment in assignments]
    arguments.append(f"--broker-version={wanted.upgrade.release}")
    arguments += [f"--against={wanted.upgrade.against}"] if wanted.upgrade.against else []
    before, after = wanted.upgrade.names
    progress.info("upgrade risk: %s to %s, %s against %s", span.start, span.end, after, before)
    return {
        "interval_start": span.start.isoformat(),
        "interval_end": span.end.isoformat(),
        "namespace": namespace_given(params),
        "asked": wanted.as_json(),
        "arguments": arguments,
    }


def compare(checked: Mapping[str, Any], home: Home, run_id: str) -> dict[str, Any]:
    """Simulate and write the comparison; return its summary with ``folder`` (its name) and ``index`` (its page)."""
    folder = folder_of(run_id)
    summary = stages.upgrade_risk([*checked["arguments"], "--out", str(home.what_if / folder)], home)
    progress.info("upgrade risk: the comparison is %s", summary["index"])
    return {**summary, "folder": folder}


def conclude(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Log the counts; send them to the channels that the policy names for this, if anything gets worse."""
    progress.info("upgrade risk: %s", summary["said"])
    channels: tuple[str, ...] = ()
    if summary["worse"]:
        from dispatch_airflow.pages.links import base_url, page_link
        from spark_jobs.location import Location

        page = page_link(Home.current(), Location.of(summary["index"]), base_url())
        channels = notify.send_notice(
            f"[dispatch-audit] upgrade risk: {summary['worse']:,} subscriptions get worse",
            f"{summary['said']}\n{summary['interval_start']} to {summary['interval_end']}\nPage: {page}",
            f"upgrade-risk:{summary['folder']}",
            to=lambda rules: rules.upgrade_risk,
        )
    return {"worse": summary["worse"], "not_judged": summary["not_judged"], "channels": list(channels)}
