"""Replay in three steps, for a scheduler that maps tasks: plan groups of dispatchers, fold each group, publish all at once.

What a run plans and folds stands in a folder of its own, by its run id::

    warehouse/_staging/groups-<interval>/<digest of the run id>/plan.json, plan.parquet
    …/group-<k>/staged.json            the group is folded: its files, and who could not be judged

A group may be folded again: it replaces its own files. Publishing takes links to them and can be tried again, too; it
is refused when a group is missing or other rows were ingested since the plan. Folders are removed
when their run ends (``discard``), or by a later plan of the interval once they are old.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.errors import names_disk_errors
from dispatch_core.recording.log_profile import RECORDED, Overrides
from dispatch_core.tables import REPLAY_TABLES
from spark_jobs.intervals import Interval
from spark_jobs.progress import say
from spark_jobs.replay.replay_interval import (
    DISPATCHERS,
    EVENTS_PER_TASK,
    Folded,
    InputsChangedError,
    ReplayError,
    fold,
    publish,
    what_to_replay,
)
from spark_jobs.replay.snapshot_files import TABLE as SNAPSHOTS
from spark_jobs.task_grouping import group_into_tasks
from spark_jobs.warehouse.contracts import StagedFile
from spark_jobs.warehouse.delta_tables import stage_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_GROUPS: Final = 1000
_PLAN_VERSION: Final = 4
_PLANNED: Final = pa.schema([pa.field("group", pa.int32()), *DISPATCHERS])
#: A folder that nobody has touched for so long belongs to a run that was given up.
_OLD_S: Final = 2 * 86_400.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups of dispatchers that a run folds, and the settings of the run."""

    history: str
    limits: LimitRules
    overrides: Overrides
    groups: list[dict[str, int]]


def run_folder(warehouse: Path, span: Interval, run_id: str) -> Path:
    """Folder of a run's plan and folded groups."""
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:32]
    return Path(warehouse) / "_staging" / f"groups-{span.name}" / digest


@names_disk_errors("replay")
def plan(
    spark: SparkSession,
    warehouse: Path,
    span: Interval,
    run_id: str,
    *,
    groups: int,
    limits: LimitRules,
    overrides: Overrides = RECORDED,
) -> dict[str, Any]:
    """Divide the interval's dispatchers into at most ``groups`` groups of about equal size; returns a summary.

    Replaces what the same run planned and folded before. Raises ``ReplayError`` where the interval holds no dispatcher.
    """
    if not 1 <= groups <= MOST_GROUPS:
        raise ReplayError(f"{groups} groups: take 1 to {MOST_GROUPS}; nothing was planned")
    folder = run_folder(warehouse, span, run_id)
    _sweep_old(folder.parent)
    shutil.rmtree(folder, ignore_errors=True)
    history, found = what_to_replay(spark, warehouse, span, limits, overrides)
    divided = _divided([dispatcher["events"] for dispatcher in found], groups)
    sizes = [
        {"group": number, "dispatchers": len(members), "events": sum(found[at]["events"] for at in members)}
        for number, members in enumerate(divided)
    ]
    folder.mkdir(parents=True)
    rows = [{"group": number} | found[at] for number, members in enumerate(divided) for at in members]
    pq.write_table(pa.Table.from_pylist(rows, schema=_PLANNED), folder / "plan.parquet")
    plan_json = {"version": _PLAN_VERSION, "history": history, "limits": limits.json()}
    plan_json |= {"overrides": overrides.json(), "groups": sizes}
    _write(folder / "plan.json", plan_json)
    say(f"plan {span.name}: {len(found)} dispatchers in {len(sizes)} groups")
    return {
        "stage": "plan",
        "interval_start": span.start.isoformat(),
        "groups": sizes,
        "dispatchers": sum(not dispatcher["idle"] for dispatcher in found),
        "events": sum(dispatcher["events"] for dispatcher in found),
        "history_digest": history,
    }


def _divided(sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Divide dispatchers (by number) into groups: small neighbours together, the largest first."""
    tasks = group_into_tasks(sizes, groups, least=EVENTS_PER_TASK)
    loads = [(0, number) for number in range(min(groups, len(tasks)))]
    divided: list[list[int]] = [[] for _ in loads]
    for task in tasks:
        size, number = min(loads)
        divided[number] += task
        loads[number] = size + sum(sizes[dispatcher] for dispatcher in task), number
    return [sorted(members) for members in divided]


@names_disk_errors("replay")
def fold_group(
    spark: SparkSession, warehouse: Path, span: Interval, run_id: str, group: int
) -> dict[str, Any]:
    """Fold the dispatchers of one planned group and leave their files for ``publish_groups``; returns a summary."""
    began = time.monotonic()
    folder = run_folder(warehouse, span, run_id)
    planned = _read_plan(folder, span)
    if not 0 <= group < len(planned.groups):
        raise ReplayError(f"group {group} of {span.name}: the plan has groups 0 to {len(planned.groups) - 1}")
    rows = pq.read_table(folder / "plan.parquet", filters=[("group", "=", group)], schema=_PLANNED)
    staging = folder / f"group-{group}"
    with _alone(folder / f".group-{group}.lock", f"group {group} of {span.name}"):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        found = rows.drop_columns(["group"]).to_pylist()
        folded = fold(spark, found, staging, span, None, planned.limits, planned.overrides)
        staged = {
            "files": [
                {"table": file.table, "path": file.path.relative_to(staging).as_posix(), "rows": file.rows}
                for files in folded.files.values()
                for file in files
            ],
            "failed": folded.failed,
            "whole_logs": folded.whole_logs,
        }
        _write(staging / "staged.json", staged)
    counts = {name: sum(file.rows for file in files) for name, files in folded.files.items()}
    seconds = time.monotonic() - began
    return {
        "stage": "replay",
        "interval_start": span.start.isoformat(),
        "group": group,
        "dispatchers": len(found),
        "dispatchers_failed": len(folded.failed),
        "rows": counts,
        "deliveries_per_second": round(counts["deliveries"] / max(seconds, 1e-6)),
        "seconds": round(seconds, 3),
    }


@names_disk_errors("replay")
def publish_groups(warehouse: Path, span: Interval, run_id: str) -> dict[str, Any]:
    """Replace the interval's rows in the result tables by what all groups folded; returns the summary of the replay.

    Raises ``InputsChangedError`` where a group is not folded, or rows up to the interval's end have changed since the plan:
    plan and fold again. The tables are then as before. What the run has published already is not published again.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    folder = run_folder(warehouse, span, run_id)
    planned = _read_plan(folder, span)
    done = folder / "published.json"
    if done.exists():
        summary: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        return summary
    with stage_run(warehouse, "replay", span, wait=True) as staging:
        folded = Folded({name: [] for name in (*REPLAY_TABLES, SNAPSHOTS)}, [])
        for number in range(len(planned.groups)):
            home = folder / f"group-{number}"
            try:
                staged = json.loads((home / "staged.json").read_text(encoding="utf-8"))
            except FileNotFoundError:
                raise InputsChangedError(
                    f"group {number} of {len(planned.groups)} of {span.name} is not folded; the tables are as before. "
                    "Run its task again, then publish"
                ) from None
            folded.failed.extend(staged["failed"])
            folded.whole_logs.update(staged["whole_logs"])
            for at, file in enumerate(staged["files"]):
                link = staging / f"{number:04d}-{at:04d}.parquet"
                os.link(home / file["path"], link)
                folded.files[file["table"]].append(StagedFile(file["table"], link, file["rows"]))
        summary = publish(
            warehouse,
            span,
            folded,
            staging,
            history=planned.history,
            dispatchers=sum(group["dispatchers"] for group in planned.groups),
            limits=planned.limits,
            overrides=planned.overrides,
            began=began,
            started_at=started_at,
        )
        _write(done, summary)
    return summary


def discard(warehouse: Path, span: Interval, run_id: str) -> dict[str, Any]:
    """Remove what a run planned and folded for the interval, published or not."""
    shutil.rmtree(run_folder(warehouse, span, run_id), ignore_errors=True)
    return {"stage": "discard", "interval_start": span.start.isoformat()}


def _read_plan(folder: Path, span: Interval) -> Plan:
    try:
        plan_json = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputsChangedError(
            f"{folder}: this run has planned nothing for {span.name}, or it was removed; the tables are as before. "
            "Run the plan's task again"
        ) from None
    if plan_json["version"] != _PLAN_VERSION:
        raise InputsChangedError(
            f"{folder}: planned by another version of this code; the tables are as before. Run the plan's task again"
        )
    limits, overrides = LimitRules.of_json(plan_json["limits"]), Overrides.of_json(plan_json["overrides"])
    return Plan(plan_json["history"], limits, overrides, plan_json["groups"])


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)


@contextmanager
def _alone(path: Path, what: str) -> Iterator[None]:
    """Let one process at a time in; the lock ends with the process."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputsChangedError(
                f"{what} is being folded by another process right now; wait for its end and try again"
            ) from None
        yield


def _sweep_old(home: Path) -> None:
    """Remove folders of runs that were given up long ago."""
    for folder in home.glob("*") if home.exists() else ():
        newest = max((path.stat().st_mtime for path in folder.rglob("*")), default=folder.stat().st_mtime)
        if time.time() - newest > _OLD_S:
            shutil.rmtree(folder, ignore_errors=True)
