"""Steps of the DAG ``dispatch_hunt``, callable without Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch_airflow import stages
from dispatch_airflow.home import Home, progress
from dispatch_airflow.what_if_steps import folder_of
from dispatch_core.errors import DispatchAuditError


class NewFindError(DispatchAuditError):
    """A schedule breaks a promise of a release, and the zoo does not have it."""


def check(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the parameters to arguments of ``spark_jobs.hunt``, and to JSON values for XCom.

    Raises ``DispatchAuditError`` that begins with the name of the wrong parameter, before anything is played.
    """
    from dispatch_core.hunt.campaign import campaign
    from spark_jobs.what_if.request import assignments_of

    assignments = assignments_of(params.get("settings"))
    asked = campaign(
        list(params.get("releases") or ()),
        subscription_type=str(params.get("subscription_type") or ""),
        allow_out_of_order=bool(params.get("allow_out_of_order")),
        assignments=assignments,
        promises=list(params.get("promises") or ()),
        also=list(params.get("also") or ()),
        pass_over=list(params.get("pass_over") or ()),
        states=bool(params.get("states")),
        schedules=int(params.get("schedules") or 0),
        first_seed=int(params.get("first_seed") or 0),
        seeds=int(params.get("seeds") or 0),
        watched=int(params.get("watched") or 0),
    )
    arguments = ["--subscription-type", asked.subscription_type]
    arguments += ["--allow-out-of-order"] * asked.allow_out_of_order + ["--states"] * asked.aim.states
    for name in ("schedules", "first_seed", "seeds", "watched"):
        arguments += [f"--{name.replace('_', '-')}", str(getattr(asked, name))]
    arguments += ["--tasks", str(int(params.get("tasks") or 1))]
    # Written as `--name=value`, because a value may begin with a dash.
    arguments += [f"--release={release}" for release in asked.releases]
    arguments += [f"--promise={promise}" for promise in asked.aim.promises]
    arguments += [f"--also={group}" for group in asked.aim.also]
    arguments += [f"--pass-over={cause}" for cause in asked.aim.pass_over]
    arguments += [f"--set={assignment}" for assignment in assignments]
    progress.info("hunt: %s schedules of each of %s", f"{asked.schedules:,}", ", ".join(asked.releases))
    return {"namespace": "", "asked": asked.as_json(), "arguments": arguments}


def hunt(checked: Mapping[str, Any], home: Home, run_id: str) -> dict[str, Any]:
    """Play, and write the comparison of the releases; return its summary with ``folder`` and ``index`` (its page).

    The folder is that of the run: another attempt goes on from the chunks that are in it.
    """
    folder = folder_of(run_id)
    summary = stages.hunt([*checked["arguments"], "--out", str(home.hunts / folder)])
    progress.info("hunt: the comparison is %s", summary["index"])
    return {**summary, "folder": folder}


def conclude(summary: Mapping[str, Any], *, fail_on_new: bool) -> dict[str, Any]:
    """Report what is new. Raises ``NewFindError`` if something is and ``fail_on_new`` is set."""
    new = list(summary["new"])
    if not new:
        progress.info("hunt: nothing new; the zoo has %s of %s finds", summary["known"], summary["finds"])
    elif fail_on_new:
        raise NewFindError(
            f"{len(new)} broken promises that the zoo does not have: {'; '.join(new)}. Everything is kept: the schedules "
            f"and the comparison are in {summary['index']}. docs/hunt.md says how to confirm one and put it into the zoo"
        )
    for text in new:
        progress.warning("hunt: new: %s", text)
    return {"new": new, "known": summary["known"], "index": summary["index"]}
