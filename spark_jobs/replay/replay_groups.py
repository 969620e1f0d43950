"""Replay in three steps, for a scheduler that maps tasks: plan groups of dispatchers, fold each group, publish all at once.

What a run plans and folds is described in a folder of its own, by its run id::

    warehouse/_staging/groups-<interval>/<digest of the run id>/plan.parquet, plan.json
    …/group-<k>.json            the group is folded: its files, and who could not be judged
    …/published.json            the summary of what was published

The files stand in the tables' folders already; publishing commits them. A group may be folded again: its description is
replaced, and the earlier files are not used. Publishing can be tried again, too; it is refused when a group is missing,
other rows were ingested since the plan, or another run has published the interval since then. What is not used is removed
when the run ends (``discard``); a folder that was left is removed by a later plan of the interval once it is old.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.errors import names_disk_errors
from dispatch_core.recording.log_profile import RECORDED, Overrides
from dispatch_core.recording.stored_files import parquet_rows
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.progress import say
from spark_jobs.replay.replay_interval import (
    DISPATCHERS,
    EVENTS_PER_TASK,
    PUBLISHED,
    Folded,
    InputsChangedError,
    ReplayError,
    fold,
    publish,
    what_to_replay,
)
from spark_jobs.task_grouping import group_into_tasks
from spark_jobs.warehouse.contracts import StagedFile
from spark_jobs.warehouse.delta_tables import Place, Publication, all_files, delete_files
from spark_jobs.warehouse.run_ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_GROUPS: Final = 1000
_PLAN_VERSION: Final = 5
_PLANNED: Final = pa.schema([pa.field("group", pa.int32()), *DISPATCHERS])
#: The files of an interval with so many rows are looked into without Spark.
_SMALL_ROWS: Final = 500_000
#: A folder that nobody has touched for so long belongs to a run that was given up.
_OLD: Final = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups of dispatchers that a run folds, and the settings of the run."""

    history: str
    limits: LimitRules
    overrides: Overrides
    groups: list[dict[str, int]]
    run: Publication


def run_folder(warehouse: Place, span: Interval, run_id: str) -> Location:
    """Folder of a run's plan and folded groups."""
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:32]
    return Location.of(warehouse) / "_staging" / f"groups-{span.name}" / digest


@names_disk_errors("replay")
def plan(
    spark: SparkSession,
    warehouse: Place,
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
    _discard(folder)
    run = Publication.begin(warehouse, span, PUBLISHED)
    to_replay = what_to_replay(spark, warehouse, span, limits, overrides)
    history, found = to_replay.history, to_replay.dispatchers
    divided = _divided([dispatcher["events"] for dispatcher in found], groups)
    sizes = [
        {"group": number, "dispatchers": len(members), "events": sum(found[at]["events"] for at in members)}
        for number, members in enumerate(divided)
    ]
    rows = [{"group": number} | found[at] for number, members in enumerate(divided) for at in members]
    with (folder / "plan.parquet").create() as stream:
        pq.write_table(pa.Table.from_pylist(rows, schema=_PLANNED), stream)
    plan_json = {"version": _PLAN_VERSION, "history": history, "limits": limits.json()}
    plan_json |= {"overrides": overrides.json(), "groups": sizes, "run": run.as_json()}
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


def is_small_plan(warehouse: Place, span: Interval) -> bool:
    """Check whether the files of an interval are few enough to be looked into without Spark."""
    ingested = Ledger(warehouse).newest("ingest").get(span.start_us, {})
    return int(ingested.get("rows_accepted", _SMALL_ROWS + 1)) <= _SMALL_ROWS


def may_fold_here(warehouse: Place, span: Interval, run_id: str, group: int) -> bool:
    """Check whether a planned group is so small that it is folded without Spark, and note that it is.

    If the process that does so dies, the next attempt finds the note and uses Spark: its tasks are tried again, and set a
    dispatcher aside that ends their processes.
    """
    folder = run_folder(warehouse, span, run_id)
    events = {
        described["group"]: described["events"] for described in _read_plan(folder, warehouse, span).groups
    }
    begun = folder / f"begun-{group}-here"
    if events.get(group, EVENTS_PER_TASK + 1) > EVENTS_PER_TASK or begun.exists():
        return False
    begun.write_bytes(b"")
    return True


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
    spark: SparkSession, warehouse: Place, span: Interval, run_id: str, group: int
) -> dict[str, Any]:
    """Fold the dispatchers of one planned group and leave their files for ``publish_groups``; returns a summary."""
    began = time.monotonic()
    folder = run_folder(warehouse, span, run_id)
    planned = _read_plan(folder, warehouse, span)
    if not 0 <= group < len(planned.groups):
        raise ReplayError(f"group {group} of {span.name}: the plan has groups 0 to {len(planned.groups) - 1}")
    rows = parquet_rows((folder / "plan.parquet").url, filters=[("group", "=", group)], schema=_PLANNED)
    found = rows.drop_columns(["group"]).to_pylist()
    described = folder / f"group-{group}.json"
    earlier = _staged_files(described)
    marks = folder / f"begun-{group}"
    folded = fold(spark, found, planned.run, None, planned.limits, planned.overrides, marks)
    staged = {
        "files": [file.as_json() for files in folded.files.values() for file in files],
        "failed": folded.failed,
        "whole_logs": folded.whole_logs,
    }
    _write(described, staged)
    planned.run.staged(earlier)
    planned.run.clean(keep=[file for files in folded.files.values() for file in files])
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
def publish_groups(warehouse: Place, span: Interval, run_id: str) -> dict[str, Any]:
    """Replace the interval's rows in the result tables by what all groups folded; returns the summary of the replay.

    Raises ``InputsChangedError`` where a group is not folded, or rows up to the interval's end have changed since the plan:
    plan and fold again. The tables are then as before. What the run has published already is not published again.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    folder = run_folder(warehouse, span, run_id)
    planned = _read_plan(folder, warehouse, span)
    done = folder / "published.json"
    if done.exists():
        summary: dict[str, Any] = json.loads(done.read_text())
        return summary
    folded = Folded({name: [] for name in PUBLISHED}, [])
    for number in range(len(planned.groups)):
        try:
            staged = json.loads((folder / f"group-{number}.json").read_text())
        except FileNotFoundError:
            raise InputsChangedError(
                f"group {number} of {len(planned.groups)} of {span.name} is not folded; the tables are as before. "
                "Run its task again, then publish"
            ) from None
        folded.failed.extend(staged["failed"])
        folded.whole_logs.update(staged["whole_logs"])
        for file in map(StagedFile.of_json, staged["files"]):
            folded.files[file.table].append(file)
    for files in folded.files.values():
        files.sort(key=lambda file: file.path)
        planned.run.staged(files)
    summary = publish(
        planned.run,
        folded,
        history=planned.history,
        dispatchers=sum(group["dispatchers"] for group in planned.groups),
        limits=planned.limits,
        overrides=planned.overrides,
        began=began,
        started_at=started_at,
    )
    _write(done, summary)
    planned.run.clean()
    return summary


def discard(warehouse: Place, span: Interval, run_id: str) -> dict[str, Any]:
    """Remove what a run planned for the interval, and the files that it folded and did not publish."""
    _discard(run_folder(warehouse, span, run_id))
    return {"stage": "discard", "interval_start": span.start.isoformat()}


def _discard(folder: Location) -> None:
    described = [child.location for child in folder.children()]
    if described and not (folder / "published.json").exists():
        groups = [place for place in described if place.name.startswith("group-")]
        live = _live_of(folder, groups)
        delete_files(
            file.path for place in groups for file in _staged_files(place) if file.path.url not in live
        )
    folder.delete_folder()


def _live_of(folder: Location, groups: Sequence[Location]) -> set[str]:
    """Return the data files that commits name, of the tables that these groups have files for."""
    warehouse = folder.parent.parent.parent
    names = {file.table for place in groups for file in _staged_files(place)}
    return {path for name in names for path in all_files(warehouse, name)}


def _staged_files(described: Location) -> list[StagedFile]:
    """Return the files of a group that was folded; none if it was not."""
    try:
        return [StagedFile.of_json(file) for file in json.loads(described.read_text())["files"]]
    except FileNotFoundError:
        return []


def _read_plan(folder: Location, warehouse: Place, span: Interval) -> Plan:
    try:
        plan_json = json.loads((folder / "plan.json").read_text())
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
    run = Publication.of_json(warehouse, span, plan_json["run"])
    return Plan(plan_json["history"], limits, overrides, plan_json["groups"], run)


def _write(path: Location, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def _sweep_old(home: Location) -> None:
    """Remove folders of runs that were given up long ago."""
    limit = datetime.now(UTC) - _OLD
    for folder in home.folders():
        written = [file.written for file in folder.files()]
        if all(at < limit for at in written):
            _discard(folder)
