"""Replay task: read its dispatchers' logs from the tables' files, fold them, stage their results.

Runs in Spark's Python workers (and in any process); knows files and Arrow, not Spark. Rows never pass through the
JVM: the task reads the Delta tables' Parquet files itself, filtered to one dispatcher after the other, and writes Parquet;
only (table, path, rows) goes back.

A log goes batch by batch through a window, so that memory does not grow with it. A log that a window cannot judge
(``NotStreamableError``) is replayed as a whole, and the task reports these logs with the reason. A replay that fails is
never tried again in another way.

Nothing a dispatcher's log contains can stop another dispatcher: a rule that raises leaves a ``dispatcher_state`` row that
says why, with deliveries and anomalies of the audit alone where that still works. Where a worker process *died*, the
attempts after it mark each dispatcher that they begin, and after ``MAX_WORKER_DEATHS`` marks it is set aside in the same
way.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.entry_waits import EntryWaits
from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.errors import DispatchAuditError, NotStreamableError, SnapshotError, describe
from dispatch_core.recording import schema
from dispatch_core.recording.checkpoint import leading, upto
from dispatch_core.recording.known_until import logs_until
from dispatch_core.recording.load_order import named_extent
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import RECORDED, Overrides
from dispatch_core.recording.stream import BATCH_ROWS
from dispatch_core.replay import result_rows
from dispatch_core.replay.incarnation_ends import judged_until
from dispatch_core.tables import DISPATCHER_STATE, IDENTITY, REPLAY_TABLES
from dispatch_core.times import from_micros, micros
from spark_jobs.intervals import Interval, is_short
from spark_jobs.location import Location
from spark_jobs.replay.dispatcher_log import load_logs
from spark_jobs.replay.snapshot_files import (
    BEFORE_END_US,
    NOTHING_SAVED,
    SnapshotWriter,
    from_beginning,
    opened,
)
from spark_jobs.warehouse.contracts import PARTITION, STAGED_FILE, conform
from spark_jobs.warehouse.staging import Sink
from spark_jobs.worker_memory import FreeMemory, take_little_memory

#: ``replay.replay``'s shape: one log in, the tables of ``REPLAY_TABLES`` out.
Rule = Callable[..., dict[str, pa.Table]]

MAX_WORKER_DEATHS: Final = 2
#: Arrays of many sizes come and go; after so many deliveries, of one log or many, the gaps between them are given back.
_DELIVERIES_BETWEEN: Final = 2 * BATCH_ROWS
#: The limits that hold where no policy is given.
NO_RULES: Final = LimitRules()

#: One row per result file of a task, under the name of its first dispatcher, and one with ``table = ""`` per dispatcher.
STAGED: Final = pa.schema(
    [
        pa.field("cluster", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("subscription", pa.string()),
        *STAGED_FILE,
        pa.field("not_judged_reason", pa.string()),
        pa.field("whole_log_reason", pa.string()),  # why the log was replayed as a whole, in memory
        pa.field("snapshot_refused", pa.string()),  # why the snapshot could not be used
    ]
)


def replay_partition(
    batches: Iterator[pa.RecordBatch],
    *,
    warehouse: str,
    interval_start: datetime,
    interval_end: datetime,
    marks: str | None = None,
    rule: Rule | None = None,
    limits: LimitRules = NO_RULES,
    overrides: Overrides = RECORDED,
) -> Iterator[pa.RecordBatch]:
    """``mapInArrow`` over dispatchers (``cluster, topic, subscription, event_files, message_files``) → ``STAGED``.

    ``marks``: where to mark what is begun, because an earlier attempt died.
    """
    take_little_memory()
    span = Interval(interval_start, interval_end)
    dispatchers = [dispatcher for batch in batches for dispatcher in batch.to_pylist()]
    if dispatchers:
        place, marked = Location.of(warehouse), None if marks is None else Location.of(marks)
        staged = replay_dispatchers(dispatchers, place, span, rule, limits, overrides, marked)
        yield pa.RecordBatch.from_pylist(staged, schema=STAGED)


def replay_dispatchers(
    dispatchers: Sequence[dict[str, Any]],
    warehouse: Location,
    span: Interval,
    rule: Rule | None = None,
    limits: LimitRules = NO_RULES,
    overrides: Overrides = RECORDED,
    marks: Location | None = None,
) -> list[dict[str, Any]]:
    """Replay one dispatcher after the other and stage what they gave, in common files; returns rows of ``STAGED``.

    Does not raise for a bad log. ``rule`` stands for the rules of the recorded release (``replay.replay``'s shape).
    ``overrides``: what holds in place of the logs' headers. ``marks``: as in ``replay_partition``.
    """
    identities = [{name: dispatcher[name] for name in schema.DISPATCHER_KEY} for dispatcher in dispatchers]
    part = _digest(*(value for identity in identities for value in identity.values()))
    rows: list[dict[str, Any]] = []
    memory = FreeMemory(_DELIVERIES_BETWEEN)
    with Sink(warehouse, span, part) as sink, SnapshotWriter(warehouse, part, span) as snapshots:
        for identity, dispatcher in zip(identities, dispatchers, strict=True):
            if dispatcher.get("idle"):
                snapshots.keep(dispatcher)
                continue
            of_topic = limits.limits_for(identity["topic"], identity["subscription"])
            outcome = _replay_one(
                identity, dispatcher, sink, snapshots, memory, marks, span, rule, of_topic, overrides
            )
            sink.keep()
            rows.append({**identity, "table": "", "path": "", "rows": 0, "size_bytes": 0} | asdict(outcome))
        staged = sink.close() + snapshots.close()
    return [*rows, *({**identities[0], **file.as_json()} for file in staged)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one dispatcher, under the names of ``STAGED``; ``None`` = it was judged, batch by batch."""

    not_judged_reason: str | None = None
    whole_log_reason: str | None = None
    snapshot_refused: str | None = None


def _replay_one(
    identity: dict[str, str],
    dispatcher: dict[str, Any],
    sink: Sink,
    snapshots: SnapshotWriter,
    memory: FreeMemory,
    marks: Location | None,
    span: Interval,
    rule: Rule | None,
    limits: Limits,
    overrides: Overrides,
) -> Outcome:
    """Replay one dispatcher into the sink."""
    digest = _digest(*identity.values())
    begun = [] if marks is None else [marks / f"{digest}.{number}" for number in range(MAX_WORKER_DEATHS)]
    deaths = sum(mark.exists() for mark in begun)
    if deaths >= MAX_WORKER_DEATHS:
        died = f"the worker process died {deaths} times while it replayed this dispatcher (out of memory?)"
        for name, table in _nothing_but(_state_row(identity, None, span, died)).items():
            sink.write(name, table)
        return Outcome(died)
    for mark in begun[deaths : deaths + 1]:
        mark.write_bytes(b"")
    refused: str | None = None
    if rule is not None:
        outcome = Outcome(whole_log_reason="another rule takes whole logs")
    elif dispatcher.get("until_us") is not None:
        outcome = Outcome(whole_log_reason="a moment inside the interval was asked for")
    else:
        try:
            outcome = _in_batches(dispatcher, sink, snapshots, memory, span, limits, overrides)
        except SnapshotError as error:
            sink.discard()
            refused = describe(error)
            dispatcher = from_beginning(dispatcher, span)
            outcome = _in_batches(dispatcher, sink, snapshots, memory, span, limits, overrides)
    if outcome != Outcome():
        dispatcher = from_beginning(dispatcher, span)
        chosen = rule or partial(
            recorded_rule,
            limits=limits,
            to_last_line=_to_last_line(dispatcher),
            complete=bool(dispatcher.get("complete")),
            keep_totals=is_short(span),
        )
        results, reason = _results(
            identity, dispatcher, span, chosen, limits, overrides, failed=outcome.not_judged_reason
        )
        outcome = Outcome(reason, outcome.whole_log_reason)
        for name, table in results.items():
            sink.write(name, table)
        # Results that could not be judged are never kept (``kept_results``).
        if reason is None:
            snapshots.keep(dispatcher)
    for mark in begun[: deaths + 1]:
        mark.delete()
    return replace(outcome, snapshot_refused=refused)


def _in_batches(
    dispatcher: dict[str, Any],
    sink: Sink,
    snapshots: SnapshotWriter,
    memory: FreeMemory,
    span: Interval,
    limits: Limits,
    overrides: Overrides,
) -> Outcome:
    """Replay a log batch by batch, from its snapshot on if it has one, and write the snapshot for later intervals.

    Of a log for which that cannot be done, or fails, nothing is left in the sink. Raises ``SnapshotError`` where the replay
    cannot go on from the snapshot.
    """
    # Imported late: they bring the compiled kernels along.
    from dispatch_core.replay.log_files import replay_files
    from dispatch_core.replay.snapshots import StateKeeper

    has_snapshot = dispatcher.get("snapshot_file") is not None
    with tempfile.TemporaryDirectory() if has_snapshot else nullcontext() as folder:
        log, begin = dispatcher, NOTHING_SAVED
        if folder is not None:
            begin = opened(dispatcher["snapshot_file"], dispatcher, Path(folder))
            log = dispatcher | {
                "event_files": [*begin.event_files, *dispatcher["event_files"]],
                "message_files": [*begin.message_files, *dispatcher["message_files"]],
            }
        keeper = None
        if dispatcher.get("snapshot_key") is not None:
            keeper = StateKeeper(span.end_us - BEFORE_END_US)
        try:
            batches = replay_files(
                log,
                interval_start=span.start,
                interval_end=span.end,
                limits=limits,
                overrides=overrides,
                to_last_line=_to_last_line(dispatcher),
                complete=bool(dispatcher.get("complete")),
                open_file=tempfile.TemporaryFile,
                state=begin.state,
                keeper=keeper,
                keep_totals=is_short(span),
            )
            for tables in batches:
                for name, table in tables.items():
                    sink.write(name, table)
                memory.used_for(tables["deliveries"].num_rows if "deliveries" in tables else 0)
            if keeper is not None:
                snapshots.write(log, keeper, begin.kept)
        except NotStreamableError as error:
            if has_snapshot:
                raise SnapshotError(describe(error)) from error
            sink.discard()
            return Outcome(whole_log_reason=describe(error))
        except (OSError, SnapshotError):
            raise  # not the log's fault
        except Exception as error:
            if has_snapshot:
                raise SnapshotError(describe(error)) from error
            sink.discard()
            return Outcome(not_judged_reason=describe(error))
    return Outcome()


def _to_last_line(dispatcher: Mapping[str, Any]) -> bool:
    """Check whether a log is judged as of its last line (``spark_jobs.replay.as_of``)."""
    return bool(dispatcher.get("to_last_line"))


def _until(dispatcher: Mapping[str, Any], span: Interval) -> datetime:
    """Return the time from which on lines are not used: the interval's end, or behind the moment that was asked for."""
    until_us = dispatcher.get("until_us")
    return span.end if until_us is None else from_micros(max(until_us + 1, span.start_us + 1))


def recorded_rule(
    log: DispatcherLog,
    *,
    interval_start: datetime,
    interval_end: datetime,
    earlier: Sequence[DispatcherLog] = (),
    last: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    to_last_line: bool = False,
    complete: bool = False,
    keep_totals: bool = False,
) -> dict[str, pa.Table]:
    """The rule that the log's own broker followed (imported late: it brings the compiled kernels along)."""
    from dispatch_core.replay import replay_log

    return replay_log.replay(
        log,
        interval_start=interval_start,
        interval_end=interval_end,
        earlier=earlier,
        last=last,
        limits=limits,
        to_last_line=to_last_line and last,
        closed=complete and last,
        keep_totals=keep_totals,
    )


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]


def _results(
    identity: dict[str, str],
    dispatcher: dict[str, Any],
    span: Interval,
    rule: Rule,
    limits: Limits,
    overrides: Overrides,
    failed: str | None = None,
) -> tuple[dict[str, pa.Table], str | None]:
    """Replay whole logs; returns the dispatcher's result tables and, where a rule failed, why.

    ``failed``: why the rule has failed already; then the log is audited without it.
    """
    try:
        logs = [overrides.of(log) for log in load_logs(dispatcher)]
        if dispatcher.get("until_us") is not None:
            logs = logs_until(logs, dispatcher["until_us"])
    except OSError:
        raise  # the disk's fault, not the log's: Spark tries again, and a run that cannot read fails
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this dispatcher's alone, and it is reported
        reason = f"its log could not be put together: {describe(error)}"
        return _nothing_but(_state_row(identity, None, span, reason)), reason
    parts: dict[str, list[pa.Table]] = {name: [] for name in REPLAY_TABLES}
    reasons = []
    for number, log in enumerate(logs):
        earlier, last = logs[:number], number == len(logs) - 1
        if failed is not None:
            reasons.append(failed)
            for name, table in _audit_alone(identity, log, span, failed, limits, earlier, last=last).items():
                parts[name].append(table)
            continue
        try:
            later = logs[number + 1 :]
            begins_us = [other.start_t_us for other in later if other.start_t_us is not None]
            end = judged_until(pc.max(log.events["t_us"]).as_py(), begins_us, _until(dispatcher, span))
            log = _with_what_it_had(log, later)  # noqa: PLW2901 - the same log, of its own entries
            results = rule(log, interval_start=span.start, interval_end=end, earlier=earlier, last=last)
            tables = _checked(results, span)
        except Exception as error:  # noqa: BLE001 - as above
            reasons.append(describe(error))
            tables = _audit_alone(identity, log, span, reasons[-1], limits, earlier, last=last)
        for name, table in tables.items():
            parts[name].append(table)
    if not logs:
        reasons.append("no event of it is in the tables")
        for name, table in _nothing_but(_state_row(identity, None, span, reasons[-1])).items():
            parts[name].append(table)
    merged = {
        name: pa.concat_tables([REPLAY_TABLES[name].empty_table(), *tables]) for name, tables in parts.items()
    }
    return merged, "; ".join(reasons) or None


def _with_what_it_had(log: DispatcherLog, later: Sequence[DispatcherLog]) -> DispatcherLog:
    """The log without the entries that were stored when the next incarnation had begun, as that one's checkpoint tells.

    Producers stamp what they send; what they could not send while the broker was away is stored after it came back, and
    waited for nobody of before. Where the log names such an entry itself, all are left.
    """
    first = leading(later[0].events) if later else None
    if first is None or first.read_position is None:
        return log
    ledger, entry = first.read_position
    ledgers, entries = (log.messages[name].to_numpy() for name in ("ledger_id", "entry_id"))
    messages = log.messages.slice(0, upto(ledgers, entries, (ledger, entry - 1)))
    _lowest, highest = named_extent(log.events)
    return log if highest >= first.read_position else replace(log, messages=messages)


def _audit_alone(
    identity: dict[str, str],
    log: DispatcherLog,
    span: Interval,
    reason: str,
    limits: Limits,
    earlier: Sequence[DispatcherLog],
    *,
    last: bool,
) -> dict[str, pa.Table]:
    """Audit a log without the rule: deliveries, anomalies, balance and waits, as the log alone shows them."""
    try:
        from dispatch_core.audit.deliveries.whole_log import audit_log
        from dispatch_core.audit.unsent_entries import unsent_of
        from dispatch_core.replay.interval_totals import with_totals

        audit = audit_log(log, interval_start=span.start)
        found = {
            "deliveries": _of_interval(audit.deliveries, span),
            "anomalies": _of_interval(audit.anomalies, span),
        }
        found = _nothing_but(_state_row(identity, log, span, reason)) | found
        never_delivered = unsent_of(log, earlier) if last else 0
        return with_totals(
            log, found, span.start, limits, never_delivered=never_delivered, keep_totals=is_short(span)
        )
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
    """Return the tables of a dispatcher of which nothing is known but its state."""
    (row,) = state.select([field.name for field in IDENTITY]).to_pylist()
    waits = EntryWaits().row(row, REPLAY_TABLES["blocked"].empty_table(), never_delivered=0)
    empty = {name: contract.empty_table() for name, contract in REPLAY_TABLES.items()}
    return empty | {"dispatcher_state": state, "waits": waits}


def _state_row(identity: dict[str, str], log: DispatcherLog | None, span: Interval, reason: str) -> pa.Table:
    """Make the state row of a dispatcher whose rule could not be replayed: what the log holds, nothing judged."""
    shared: dict[str, Any] = {"interval_start": span.start, **identity, "incarnation": 0}
    last_seq, last_t_us, counts = 0, None, dict[str, int]()
    if log is not None:
        shared["incarnation"] = log.incarnation
        sent = log.events.filter(pc.equal(log.events["kind"], "sent"))
        last_seq, last_t_us = pc.max(log.events["seq"]).as_py() or 0, pc.max(log.events["t_us"]).as_py()
        counts = {
            "events": log.events.num_rows,
            "entries_stored": log.messages.num_rows,
            "entries_sent": pc.sum(pc.list_value_length(sent["positions"])).as_py() or 0,
        }
    row = result_rows.state(
        log, None, last_seq=last_seq, last_t_us=last_t_us, not_judged_reason=reason, counts=counts
    )
    for name in ("subscription_type", "broker_version"):
        row[name] = None if row[name] is None else str(row[name])
    return result_rows.rows(DISPATCHER_STATE, shared, [row])
