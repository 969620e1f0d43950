"""Steps of the DAG ``dispatch_what_if``, callable without Airflow."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from dispatch_airflow import stages
from dispatch_airflow.home import Home, ParameterError, progress
from dispatch_airflow.sources import is_namespace


def check(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the parameters to arguments of ``spark_jobs.what_if``, and to JSON values for XCom.

    Raises ``DispatchAuditError`` naming the wrong value and the nearest valid one, before anything is read.
    """
    from spark_jobs.intervals import interval
    from spark_jobs.what_if.request import assignments_of, request

    start = params.get("interval_start")
    if not start:
        raise ParameterError(
            "interval_start is empty; nothing was simulated. Give the start of an audited interval, "
            "for example 2026-11-21T00:00:00Z."
        )
    span = interval(start)
    assignments = assignments_of(params.get("settings"))
    wanted = request(
        list(params.get("rules") or ()),
        broker_version=params.get("broker_version"),
        assignments=assignments,
        topics=str(params.get("topics") or ""),
        subscriptions=str(params.get("subscriptions") or ""),
        seeds=int(params.get("seeds") or 0),
    )
    asked = wanted.as_json()
    arguments = ["--interval-start", span.start.isoformat(), "--seeds", str(wanted.seeds)]
    # Written as `--name=value`, because a value may begin with a dash.
    arguments += [f"--topics={wanted.topics}", f"--subscriptions={wanted.subscriptions}"]
    arguments += [f"--rules={name}" for name in (params.get("rules") or ())]
    arguments += [f"--set={assignment}" for assignment in assignments]
    arguments += [f"--broker-version={wanted.broker_version}"] if wanted.broker_version else []
    progress.info("what-if: %s, rules %s", span.start.isoformat(), ", ".join(asked["rules"]))
    return {
        "interval_start": span.start.isoformat(),
        "namespace": namespace_given(params),
        "asked": asked,
        "arguments": arguments,
    }


def namespace_given(params: Mapping[str, Any]) -> str:
    """Return the folder of a source in the home that a form names. Raises ``ParameterError`` for a text that is none."""
    namespace = str(params.get("namespace") or "").strip().strip("/")
    if namespace and not is_namespace(namespace):
        raise ParameterError(
            f"namespace is {namespace[:80]!r}; nothing was simulated. Give the folder of a source in the home, such as "
            "sources/orders, or nothing for the scheduled source."
        )
    return namespace


def compare(checked: Mapping[str, Any], home: Home, run_id: str) -> dict[str, Any]:
    """Simulate and write the comparison; return its summary with ``folder`` (its name) and ``index`` (its page)."""
    folder = folder_of(run_id)
    summary = stages.what_if([*checked["arguments"], "--out", str(home.what_if / folder)], home)
    progress.info("what-if: the comparison is %s", summary["index"])
    return {**summary, "folder": folder}


def folder_of(run_id: str) -> str:
    """Name the folder of a run's comparison: a digest, because a run id may contain any characters."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:20]
