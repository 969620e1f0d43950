"""What one replay task does: read one dispatcher's log from the tables' files, fold it, stage its results.

Runs in Spark's Python workers (and in any process); knows files and Arrow, not Spark. Rows never pass through the
JVM: the task reads the Delta tables' Parquet files itself, filtered to its dispatcher, and writes Parquet; only
(table, path, rows) goes back.

Nothing a dispatcher's log contains can stop another dispatcher: a rule that raises leaves a ``dispatcher_state`` row that
says why, with deliveries and anomalies of the audit alone where that still works. A worker process that *dies* is
counted by a marker file, and after ``MAX_WORKER_DEATHS`` the dispatcher is set aside in the same way.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dispatch_core import CORE_VERSION
from dispatch_core.errors import DispatchAuditError, LogError
from dispatch_core.recording import schema
from dispatch_core.recording.log import DispatcherLog, dispatcher_logs
from dispatch_core.tables import DISPATCHER_STATE, REPLAY_TABLES
from dispatch_core.times import micros
from spark_jobs.intervals import Interval
from spark_jobs.warehouse import PARTITION, conform, file_schema

#: ``replay.replay``'s shape: one log in, the tables of ``REPLAY_TABLES`` out.
Rule = Callable[..., dict[str, pa.Table]]

MAX_WORKER_DEATHS: Final = 2

#: One row per result file of a dispatcher, and one with ``table = ""`` for the dispatcher as a whole.
STAGED: Final = pa.schema(
    [
        pa.field("cluster", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("subscription", pa.string()),
        pa.field("table", pa.string()),
        pa.field("path", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("not_judged_reason", pa.string()),
    ]
)


def replay_partition(
    batches: Iterator[pa.RecordBatch],
    *,
    staging: str,
    interval_start: datetime,
    interval_end: datetime,
    rule: Rule | None = None,
) -> Iterator[pa.RecordBatch]:
    """``mapInArrow`` over dispatchers (``cluster, topic, subscription, event_files, message_files``) → ``STAGED``."""
    span = Interval(interval_start, interval_end)
    for batch in batches:
        for dispatcher in batch.to_pylist():
            staged = replay_dispatcher(dispatcher, Path(staging), span, rule or recorded_rule)
            yield pa.RecordBatch.from_pylist(staged, schema=STAGED)


def recorded_rule(
    log: DispatcherLog,
    *,
    interval_start: datetime,
    interval_end: datetime,
    earlier: Sequence[DispatcherLog] = (),
) -> dict[str, pa.Table]:
    """The rule that the log's own broker followed (imported late: it brings the compiled kernels along)."""
    from dispatch_core import replay

    return replay.replay(log, interval_start=interval_start, interval_end=interval_end, earlier=earlier)


def replay_dispatcher(
    dispatcher: dict[str, Any], staging: Path, span: Interval, rule: Rule
) -> list[dict[str, Any]]:
    """Fold one dispatcher's log and stage its result tables; returns rows of ``STAGED``. Does not raise for a bad log."""
    identity = {name: dispatcher[name] for name in schema.DISPATCHER_KEY}
    digest = hashlib.sha256("\0".join(identity.values()).encode()).hexdigest()[:32]
    markers = staging / "_started"
    markers.mkdir(
        exist_ok=True
    )  # no parents: where the run was killed and swept, its last tasks must not go on
    deaths = len(list(markers.glob(f"{digest}.*")))
    reason: str | None
    if deaths >= MAX_WORKER_DEATHS:
        died = f"the worker process died {deaths} times while it replayed this dispatcher (out of memory?)"
        results, reason = _nothing_but(_state_row(identity, None, span, died)), died
    else:
        marker = markers / f"{digest}.{deaths}"
        marker.touch()
        results, reason = _results(identity, dispatcher, span, rule)
        for one in markers.glob(f"{digest}.*"):
            one.unlink()
    rows: list[dict[str, Any]] = [
        {**identity, "table": "", "path": "", "rows": 0, "not_judged_reason": reason}
    ]
    for name, table in results.items():
        if table.num_rows:
            path = stage_table(staging, name, digest, table)
            rows.append({**identity, "table": name, "path": str(path), "rows": table.num_rows})
    return rows


def stage_table(staging: Path, name: str, part: str, table: pa.Table) -> Path:
    """Write one result table as a data file of the Delta table; a task that is tried again overwrites its own."""
    folder = staging / name
    folder.mkdir(exist_ok=True)
    path = folder / f"{part}.parquet"
    temporary = folder / f".{part}.tmp"
    pq.write_table(conform(table, file_schema(name)), temporary, compression="zstd")
    temporary.replace(path)
    return path


def load_logs(dispatcher: dict[str, Any]) -> list[DispatcherLog]:
    """The dispatcher's logs, one per incarnation, from the files of all intervals up to the one being replayed."""
    cluster, topic, subscription = (dispatcher[name] for name in schema.DISPATCHER_KEY)
    of_topic = [("cluster", "=", cluster), ("topic", "=", topic)]
    of_dispatcher = [*of_topic, ("subscription", "=", subscription)]
    events = _rows(dispatcher["event_files"], schema.EVENTS, of_dispatcher)
    messages = _rows(dispatcher["message_files"], schema.MESSAGES, of_topic)
    return [_without_doubles(log) for log in dispatcher_logs(messages, _one_header_each(events))]


def _without_doubles(log: DispatcherLog) -> DispatcherLog:
    """The log with each line once: the same line may have come by several files (one topic's messages beside each of
    its subscriptions, a segment landed twice). Raises ``LogError`` where two lines claim one place and differ.
    """
    advice = "two logs of one dispatcher? Audit them apart, or give each its own cluster in its header"
    return replace(
        log,
        events=_once(log.events, ("seq",), "seq {0}", advice),
        messages=_once(log.messages, ("ledger_id", "entry_id"), "position {0}:{1}", advice),
    )


def _once(table: pa.Table, place: tuple[str, ...], shown: str, advice: str) -> pa.Table:
    """A table sorted by ``place`` without rows that repeat the one before them."""
    same = np.ones(max(table.num_rows - 1, 0), dtype=bool)
    for name in place:
        values = table[name].to_numpy()
        same &= values[1:] == values[:-1]
    if not same.any():
        return table
    second = np.flatnonzero(same) + 1
    one, other = table.take(pa.array(second - 1)), table.take(pa.array(second))
    contents = [name for name in table.column_names if name not in ("source_file", "source_line")]
    if not one.select(contents).equals(other.select(contents)):
        for row in range(len(second)):
            if one.slice(row, 1).select(contents).equals(other.slice(row, 1).select(contents)):
                continue
            lines = [f"{part['source_file'][row]}, line {part['source_line'][row]}" for part in (one, other)]
            where = shown.format(*(one[name][row] for name in place))
            raise LogError(f"{where} stands twice and differs: {lines[0]}, and {lines[1]}: {advice}")
    keep = np.ones(table.num_rows, dtype=bool)
    keep[second] = False
    return table.filter(pa.array(keep))


def _rows(paths: list[str], wanted: pa.Schema, filters: list[tuple[str, str, str]]) -> pa.Table:
    parts = [wanted.empty_table()]
    for path in sorted(paths):  # the path begins with the interval: earlier intervals first
        parts.append(conform(pq.read_table(path, filters=filters, partitioning=None), wanted))
    return pa.concat_tables(parts)


def _one_header_each(events: pa.Table) -> pa.Table:
    """Every interval keeps the header of its files; a log has one: the latest of each incarnation stands."""
    is_header = pc.equal(events["kind"], "header")
    headers = events.filter(is_header)
    if headers.num_rows < 2:
        return events
    latest: dict[tuple[Any, Any], int] = {}
    for row, (broker, incarnation) in enumerate(
        zip(headers["broker"].to_pylist(), headers["incarnation"].to_pylist(), strict=True)
    ):
        latest[broker, incarnation] = row
    return pa.concat_tables([headers.take(sorted(latest.values())), events.filter(pc.invert(is_header))])


def _results(
    identity: dict[str, str], dispatcher: dict[str, Any], span: Interval, rule: Rule
) -> tuple[dict[str, pa.Table], str | None]:
    """The dispatcher's result tables and, where a rule failed, why."""
    try:
        logs = load_logs(dispatcher)
    except OSError:
        raise  # the disk's fault, not the log's: Spark tries again, and a run that cannot read fails
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this dispatcher's alone, and it is reported
        reason = f"its log could not be put together: {describe(error)}"
        return _nothing_but(_state_row(identity, None, span, reason)), reason
    parts: dict[str, list[pa.Table]] = {name: [] for name in REPLAY_TABLES}
    reasons = []
    for number, log in enumerate(logs):
        try:
            results = rule(log, interval_start=span.start, interval_end=span.end, earlier=logs[:number])
            tables = _checked(results, span)
        except Exception as error:  # noqa: BLE001 - as above
            reasons.append(describe(error))
            tables = _audit_alone(identity, log, span, reasons[-1])
        for name, table in tables.items():
            parts[name].append(table)
    if not logs:
        reasons.append("no event of it is in the tables")
        parts["dispatcher_state"].append(_state_row(identity, None, span, reasons[-1]))
    merged = {
        name: pa.concat_tables([REPLAY_TABLES[name].empty_table(), *tables]) for name, tables in parts.items()
    }
    return merged, "; ".join(reasons) or None


def _audit_alone(
    identity: dict[str, str], log: DispatcherLog, span: Interval, reason: str
) -> dict[str, pa.Table]:
    """Deliveries and anomalies without the rule: what the log alone shows is kept."""
    try:
        from dispatch_core.audit import audit_log

        audit = audit_log(log, interval_start=span.start)
        found = {
            "deliveries": _of_interval(audit.deliveries, span),
            "anomalies": _of_interval(audit.anomalies, span),
        }
        return _nothing_but(_state_row(identity, log, span, reason)) | found
    except Exception as error:  # noqa: BLE001 - as above
        both = f"{reason}; and the audit failed: {describe(error)}"
        return _nothing_but(_state_row(identity, log, span, both))


def _of_interval(table: pa.Table, span: Interval) -> pa.Table:
    inside = pc.and_(pc.greater_equal(table["t_us"], span.start_us), pc.less(table["t_us"], span.end_us))
    return table.filter(pc.fill_null(inside, True))


def _checked(results: dict[str, pa.Table], span: Interval) -> dict[str, pa.Table]:
    """The rule's results as the contracts want them; a rule that returns other tables or intervals is refused."""
    if set(results) != set(REPLAY_TABLES):
        raise DispatchAuditError(
            f"the rule returned {sorted(results)}, the contract is {sorted(REPLAY_TABLES)}"
        )
    conformed = {name: conform(results[name], contract) for name, contract in REPLAY_TABLES.items()}
    for name, table in conformed.items():
        starts = set(pc.unique(table[PARTITION].cast(pa.int64())).to_pylist())
        if starts - {micros(span.start)}:
            raise DispatchAuditError(
                f"the rule returned rows of table {name} that belong to another interval"
            )
    return conformed


def _nothing_but(state: pa.Table) -> dict[str, pa.Table]:
    return {name: contract.empty_table() for name, contract in REPLAY_TABLES.items()} | {
        "dispatcher_state": state
    }


def _state_row(identity: dict[str, str], log: DispatcherLog | None, span: Interval, reason: str) -> pa.Table:
    """The state row of a dispatcher whose rule could not be replayed: what the log holds, nothing judged."""
    row: dict[str, Any] = {one.name: 0 if pa.types.is_integer(one.type) else None for one in DISPATCHER_STATE}
    row |= identity | {"interval_start": span.start, "core_version": CORE_VERSION, "settings_digest": ""}
    row |= {"not_judged_reason": reason, "last_t_us": None}
    if log is not None:
        sent = log.events.filter(pc.equal(log.events["kind"], "sent"))
        row |= {
            "incarnation": log.incarnation,
            "subscription_type": log.header.get("subscription_type"),
            "broker_version": log.header.get("broker_version"),
            "last_seq": pc.max(log.events["seq"]).as_py() or 0,
            "last_t_us": pc.max(log.events["t_us"]).as_py(),
            "events": log.events.num_rows,
            "entries_stored": log.messages.num_rows,
            "entries_sent": pc.sum(pc.list_value_length(sent["positions"])).as_py() or 0,
        }
        for name in ("subscription_type", "broker_version"):
            row[name] = None if row[name] is None else str(row[name])
    return pa.Table.from_pylist([row], schema=DISPATCHER_STATE)


def describe(error: BaseException) -> str:
    """One line for the state row: our own errors say enough; of any other, also where it happened."""
    text = " ".join(str(error).split())[:500]
    if isinstance(error, DispatchAuditError):
        return text
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" in {Path(frame.filename).stem}.{frame.name}, line {frame.lineno}" if frame else ""
    return f"internal error {type(error).__name__}: {text}{where}"
