"""Replay one interval: fold every dispatcher's log, each in one Spark task, and publish the results of the interval.

The files' footers tell which dispatchers there are and which files hold them (``spark_jobs.replay.dispatcher_files``). A
large dispatcher has a task of its own, small ones share one (``spark_jobs.task_grouping``); the largest tasks start first,
and Spark runs, retries and scales them. A task (``spark_jobs.replay.replay_task``) reads those files itself and stages its
results; the driver then publishes each result table by one Delta commit. The fold starts at the beginning of the log: every
interval up to the one being replayed is read.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.errors import DispatchAuditError, names_disk_errors
from dispatch_core.recording import schema
from dispatch_core.recording.log_profile import RECORDED, Overrides
from dispatch_core.recording.table_rows import INCARNATION
from dispatch_core.tables import REPLAY_TABLES
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.progress import say, tasks_done
from spark_jobs.replay import as_of
from spark_jobs.replay.as_of import AsOf
from spark_jobs.replay.dispatcher_files import dispatchers
from spark_jobs.replay.earlier_snapshots import earlier_snapshots, settings_digest, snapshot_key
from spark_jobs.replay.kept_results import NOTHING_KEPT, KeptResults, kept_results, made_by
from spark_jobs.replay.lost_ends import ENDS_LOST, with_lost_ends
from spark_jobs.replay.replay_task import NO_RULES, STAGED, Rule, replay_partition
from spark_jobs.replay.snapshot_files import TABLE as SNAPSHOTS
from spark_jobs.replay.snapshot_files import WITHOUT
from spark_jobs.task_grouping import group_into_tasks
from spark_jobs.warehouse import spark_tables
from spark_jobs.warehouse.contracts import StagedFile
from spark_jobs.warehouse.delta_tables import Place, Publication, compact, publishing, record_run
from spark_jobs.warehouse.run_ledger import Ledger

#: The tables that this stage publishes.
PUBLISHED = (*REPLAY_TABLES, SNAPSHOTS)
#: A task replays at least so many events of small dispatchers.
EVENTS_PER_TASK = 200_000

#: One row per dispatcher: its identity, the data files that hold its events and its topic's messages, the moment as of
#: which it is judged, and the incarnations of which rows behind the last line could not be read.
DISPATCHERS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in schema.DISPATCHER_KEY),
        pa.field("events", pa.int64()),
        pa.field("event_files", pa.list_(pa.string())),
        pa.field("message_files", pa.list_(pa.string())),
        *as_of.COLUMNS,
        ENDS_LOST,
        pa.field("snapshot_file", pa.string()),
        pa.field("snapshot_end_us", pa.int64()),
        pa.field("idle", pa.bool_()),
        pa.field("warehouse", pa.string()),
        pa.field("snapshot_key", pa.string()),
    ]
)


class ReplayError(DispatchAuditError):
    """Nothing to replay, or a job that Spark itself gave up."""


class InputsChangedError(ReplayError):
    """The tables no longer hold the rows that were folded; another attempt may succeed."""

    another_attempt_may_do = True


@dataclass(frozen=True, slots=True)
class Folded:
    """Result of the tasks: files by table, in a stable order, and the dispatchers that could not be judged."""

    files: dict[str, list[StagedFile]]
    failed: list[dict[str, Any]]
    #: Logs that were replayed as a whole, in memory, by the reason.
    whole_logs: Counter[str] = field(default_factory=Counter)


@names_disk_errors("replay")
def replay(
    spark: SparkSession,
    warehouse: Place,
    span: Interval,
    *,
    rule: Rule | None = None,
    limits: LimitRules = NO_RULES,
    overrides: Overrides = RECORDED,
    asked: AsOf = as_of.DEFAULT,
) -> dict[str, Any]:
    """Replay every dispatcher of the interval and replace its rows in the result tables; returns a summary.

    ``rule`` replaces the recorded release's rule (default ``replay_log.replay``); it must be importable by the
    workers. ``limits``: how long is too long, for which topics. ``overrides``: what holds in place of the logs' headers.
    ``asked``: as of when to judge. Raises ``ReplayError`` where the interval holds no dispatcher, ``InputsChangedError``
    where other rows up to its end were ingested meanwhile, ``PublishedMeanwhileError`` where another run replayed it.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    with publishing(warehouse, span, PUBLISHED) as run:
        found = what_to_replay(spark, warehouse, span, limits, overrides, asked)
        kept, again = NOTHING_KEPT, found.dispatchers
        if rule is None and asked == as_of.DEFAULT and found.settings is not None:
            kept, again = kept_results(spark, run, found.ledger, found.settings, found.dispatchers)
        if kept.dispatchers:
            say(
                f"replay {span.name}: of {kept.dispatchers} dispatchers no row has changed, their results stay"
            )
        folded = fold(spark, again, run, rule, limits, overrides)
        return publish(
            run,
            folded,
            kept,
            history=found.history,
            dispatchers=sum(not dispatcher["idle"] for dispatcher in found.dispatchers),
            limits=limits,
            overrides=overrides,
            asked=asked,
            may_stay=rule is None,
            began=began,
            started_at=started_at,
            folded_s=time.monotonic() - began,
        )


@dataclass(frozen=True, slots=True)
class ToReplay:
    """The dispatchers of an interval, and what their replay rests on.

    Attributes:
        history: digest of the rows up to the interval's end, and as of when it is judged.
        dispatchers: rows of ``DISPATCHERS``, with what is kept of them (``snapshot_files``).
        ledger: what the tables held when they were found.
        settings: digest of the limits and settings; ``None`` = no snapshot is used or written.
    """

    history: str
    dispatchers: list[dict[str, Any]]
    ledger: Ledger
    settings: str | None


def what_to_replay(
    spark: SparkSession,
    warehouse: Place,
    span: Interval,
    limits: LimitRules,
    overrides: Overrides,
    asked: AsOf = as_of.DEFAULT,
) -> ToReplay:
    """Find the dispatchers of the interval.

    Raises ``ReplayError`` where there are none, and ``LogsRemovedError`` where its logs are not kept any more.
    """
    ledger = Ledger(warehouse)  # before any file is looked at
    ledger.check_kept(span)
    history = ledger.history_of(span)
    moment = asked.columns(
        goes_on=ledger.goes_on(span), messages_go_on=ledger.messages_go_on(span), end_us=span.end_us
    )
    lost = with_lost_ends(warehouse, span)
    earlier, key, settings = None, None, None
    if not os.environ.get(WITHOUT):
        settings = settings_digest(limits, overrides)
        earlier = earlier_snapshots(warehouse, ledger, span, settings)
        key = snapshot_key(ledger, span, settings)
    found = [
        dispatcher
        | moment
        | {"warehouse": str(warehouse), "snapshot_key": key}
        | {
            ENDS_LOST.name: [
                dict(zip(INCARNATION, load, strict=True))
                for load in lost.get(tuple(dispatcher[name] for name in schema.DISPATCHER_KEY), ())
            ]
        }
        for dispatcher in dispatchers(spark, warehouse, span, earlier)
    ]
    here = [dispatcher for dispatcher in found if not dispatcher["idle"]]
    if not here:
        raise ReplayError(
            f"{warehouse}: no dispatcher has a line in {span.name}; the tables are as before. "
            "Ingest the interval first, or check that the logs hold that day"
        )
    say(
        f"replay {span.name}: {len(here)} dispatchers, {sum(dispatcher['events'] for dispatcher in here)} events"
        + ("" if earlier is None else f", {sum(d['snapshot_file'] is not None for d in here)} from snapshots")
    )
    return ToReplay(history, found, ledger, settings)


def fold(
    spark: SparkSession,
    found: list[dict[str, Any]],
    run: Publication,
    rule: Rule | None,
    limits: LimitRules,
    overrides: Overrides,
    marks: Location | None = None,
) -> Folded:
    """Fold the logs of dispatchers and stage what their folds say about the interval.

    ``marks``: where tasks mark what they begin after one of them died (by default ``run.state``).
    """
    if not found:
        return Folded({name: [] for name in PUBLISHED}, [])
    span = run.span
    staged = _staged(spark, found, run, rule, limits, overrides, run.state if marks is None else marks)
    files: dict[str, list[StagedFile]] = {name: [] for name in PUBLISHED}
    failed = []
    refused = Counter[str]()
    whole_logs = Counter[str]()
    for row in staged.to_pylist():
        if row["table"]:
            files[row["table"]].append(StagedFile.of_json(row))
            continue
        if row["snapshot_refused"]:
            refused[row["snapshot_refused"]] += 1
        if row["whole_log_reason"]:
            whole_logs[_without_names(row)] += 1
        if row["not_judged_reason"]:
            failed.append({name: row[name] for name in (*schema.DISPATCHER_KEY, "not_judged_reason")})
    for dispatcher in failed:
        name = f"{dispatcher['topic']} / {dispatcher['subscription']}"
        say(f"replay {span.name}: {name}: not judged: {dispatcher['not_judged_reason']}; the others go on")
    for reason, count in refused.most_common(5):
        say(
            f"replay {span.name}: {count} snapshots could not be used; replayed from the beginning instead: {reason}"
        )
    for parts in files.values():
        run.staged(parts)
    kept = files.pop(SNAPSHOTS)
    return Folded(
        {name: compact(sorted(parts, key=lambda file: file.path), run) for name, parts in files.items()}
        | {SNAPSHOTS: sorted(kept, key=lambda file: file.path)},
        failed,
        whole_logs,
    )


def _without_names(row: dict[str, Any]) -> str:
    """Return why a log was replayed as a whole, without the dispatcher's name in front."""
    reason: str = row["whole_log_reason"]
    return reason.removeprefix(f"{row['topic']} / {row['subscription']}: ")


def publish(
    run: Publication,
    folded: Folded,
    kept: KeptResults = NOTHING_KEPT,
    *,
    history: str,
    dispatchers: int,
    limits: LimitRules,
    overrides: Overrides,
    asked: AsOf = as_of.DEFAULT,
    may_stay: bool = True,
    began: float,
    started_at: datetime,
    folded_s: float | None = None,
) -> dict[str, Any]:
    """Replace the interval's rows of the result tables, one commit each, and record the run; returns its summary.

    ``kept``: what stays of an earlier replay; ``may_stay``: these results may, too (``kept_results``). ``history`` is what
    was folded, ``asked`` as of when; ``folded_s`` is how long that took, where one process did it. Raises
    ``InputsChangedError`` where the tables hold something else by now, and ``PublishedMeanwhileError`` where another run has
    published the interval since ``run`` began.
    """
    warehouse, span = run.warehouse, run.span
    ledger = Ledger(warehouse)
    if ledger.history_of(span) != history:
        raise InputsChangedError(
            f"{warehouse}: rows up to the end of {span.name} were ingested while it was replayed; the tables are as before. "
            "Replay it again"
        )
    run.check()
    rows = {}
    for name in PUBLISHED:
        staged = sorted(folded.files.get(name, []) + kept.rewritten.get(name, []), key=lambda file: file.path)
        if name != SNAPSHOTS:
            staged = compact(staged, run)
        stays = kept.files.get(name, [])
        if staged or stays or name != SNAPSHOTS:
            rows[name] = run.replace(name, staged, stays) + kept.rows.get(name, 0)
    snapshots = rows.pop(SNAPSHOTS, None)
    summary: dict[str, Any] = {
        "stage": "replay",
        "interval_start": span.start.isoformat(),
        "interval_end": span.end.isoformat(),
        "dispatchers": dispatchers,
        "dispatchers_kept": kept.dispatchers,
        "dispatchers_failed": len(folded.failed),
        "failed": folded.failed[:20],
        "replayed_as_a_whole": {
            "logs": folded.whole_logs.total(),
            "reasons": dict(folded.whole_logs.most_common(20)),
        },
        "limits": limits.digest,
        "overrides": overrides.texts,
        "history_digest": history + asked.mark,
        "as_of": asked.judged(goes_on=ledger.goes_on(span)),
        "rows": rows,
        "snapshots": snapshots,
        "publication": run.number,
        **(made_by(settings_digest(limits, overrides)) if may_stay else {}),
        "seconds": round(time.monotonic() - began, 3),
    }
    if folded_s is not None:
        summary["deliveries_per_second"] = round(rows["deliveries"] / max(folded_s, 1e-6))
    record_run(warehouse, "replay", span, started_at, summary)
    return summary


def _staged(
    spark: SparkSession,
    found: list[dict[str, Any]],
    run: Publication,
    rule: Rule | None,
    limits: LimitRules,
    overrides: Overrides,
    marks: Location,
) -> pa.Table:
    """Run the tasks, largest first; the rows of ``STAGED`` come back, in a stable order."""
    span = run.span
    # A plain function, pickled by name: the workers import the module and find the compiled kernels cached.
    task = partial(
        replay_partition,
        warehouse=run.warehouse.url,
        interval_start=span.start,
        interval_end=span.end,
        rule=rule,
        limits=limits,
        overrides=overrides,
    )

    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # An attempt after the first follows one that died, or failed: it marks what it begins.
        context = TaskContext.get()
        again = context is not None and context.attemptNumber() > 0
        return task(batches, marks=marks.url if again else None)

    sizes = [dispatcher["events"] for dispatcher in found]
    planned = group_into_tasks(sizes, spark.sparkContext.defaultParallelism, least=EVENTS_PER_TASK)
    dealt = spark.sparkContext.parallelize(
        [[found[number] for number in numbers] for numbers in planned], len(planned)
    )
    frame = spark.createDataFrame(dealt.flatMap(list), spark_tables.spark_schema(DISPATCHERS))
    with tasks_done(spark, f"replay {span.name}: tasks done", len(planned)):
        result: pa.Table = frame.mapInArrow(tasks, spark_tables.spark_schema(STAGED)).toArrow()
    return result.sort_by([(name, "ascending") for name in (*schema.DISPATCHER_KEY, "table")])
