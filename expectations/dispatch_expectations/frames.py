"""Build the frame that the suites judge: one row of counts per dispatcher of an interval, from the warehouse's tables.

Every number is a count from a table, or a ratio of two; it is not compared with a limit here. A dispatcher has a row if
it is in the interval's log or in the results of the replay, so that a dispatcher that the replay lost is judged too.
Findings that belong to no dispatcher are in a row named ``*``, if there are any.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.assumptions import UNLOGGED
from dispatch_core.audit.catalogue import BY_BEHAVIOUR, BY_LINES, BY_MOVE, DOUBTS
from dispatch_core.audit.deliveries.findings import CURSOR_MAY_HAVE_MOVED, LOG_GAP
from dispatch_core.audit.promises.counts import BALANCE_COLUMNS, STATE_COLUMNS, WAITS, Counts
from dispatch_expectations.balance_window import window_in_reason
from dispatch_expectations.moment import judged_as_of, moment_in_reason
from dispatch_expectations.policy import Policy
from dispatch_expectations.promise import NO_DISPATCHER
from dispatch_expectations.table_rows import (
    aggregate,
    interval_dataset,
    read_batches,
    read_rows,
    require_tables,
    whole_dataset,
)
from spark_jobs.warehouse.delta_tables import Place

if TYPE_CHECKING:
    import pandas as pd

#: (cluster, topic, subscription)
Dispatcher = tuple[str, str, str]

KEY: Final = ["cluster", "topic", "subscription"]
NOBODY: Final[Dispatcher] = (NO_DISPATCHER, NO_DISPATCHER, NO_DISPATCHER)
#: Reasons of findings, and what then may explain decisions that differ from the rules.
_DOUBTED_BY: Final = {LOG_GAP: BY_LINES, CURSOR_MAY_HAVE_MOVED: BY_MOVE, UNLOGGED: BY_BEHAVIOUR}
#: Tables without which nothing can be judged.
REQUIRED_TABLES: Final = ("consumer_events", "dispatcher_state")

#: Columns of ``rolling_balance`` that are judged in place of those of ``balance``, and the window that they are of.
_ROLLING: Final = (*BALANCE_COLUMNS, "window_end", "left_out_s")


@dataclass
class _Row(Counts):
    """Counts of one dispatcher, and what belongs to its place in the warehouse.

    ``files``: of its rows; ``rolling``: rows of ``rolling_balance``, judged in place of those of ``balance``.
    """

    files: set[str] = field(default_factory=set)
    rolling: list[Mapping[str, Any]] = field(default_factory=list)


def dispatcher_frame(warehouse: Place, interval_start: datetime, policy: Policy) -> pd.DataFrame:
    """Build the frame of one interval, sorted by dispatcher; column ``row`` is the index 0 … n-1.

    Raises ``WarehouseError`` if the tables of ingest or replay do not exist.
    """
    import pandas as pd

    require_tables(warehouse, REQUIRED_TABLES)
    rows: defaultdict[Dispatcher, _Row] = defaultdict(_Row)
    _read_log(warehouse, interval_start, rows)
    _read_replay(warehouse, interval_start, rows)
    _count_lines_once(warehouse, interval_start, rows)
    _read_anomalies(warehouse, interval_start, rows)
    _read_doubted(warehouse, interval_start, rows)
    unaccounted = _rows_unaccounted(warehouse, interval_start)
    judged = judged_as_of(warehouse, interval_start)
    _read_quarantine(warehouse, interval_start, rows)
    if not rows:
        rows[NOBODY] = _Row()
    records = [
        {
            "row": number,
            **_record(dispatcher, rows[dispatcher], policy, unaccounted),
            "moment": moment_in_reason(judged, _last_line_us(rows[dispatcher])),
        }
        for number, dispatcher in enumerate(sorted(rows))
    ]
    nothing = all(record["topic"] == NO_DISPATCHER for record in records)
    for record in records:
        record["nothing_recorded"] = int(nothing)
    return pd.DataFrame.from_records(records)


def _dispatcher(row: dict[str, Any]) -> Dispatcher:
    return row["cluster"], row["topic"], row["subscription"]


def _read_log(warehouse: Place, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]) -> None:
    """Read from the log its dispatchers, their files, and the number of entries that were sent."""
    events = interval_dataset(warehouse, "consumer_events", interval_start)
    columns = [*KEY, "incarnation", "source_file", "kind", "positions"]
    keys = [*KEY, "incarnation", "source_file"]
    only_events = ~pc.field("kind").isin(["header", "footer"])
    batches = _with_sent(read_batches(events, columns, only_events), keys)
    for group in aggregate(batches, keys, ["sent"]):
        row = rows[_dispatcher(group)]
        row.in_log = True
        row.incarnation = max(row.incarnation, group["incarnation"])
        row.sent_in_log += group["sent"]
        row.files.add(group["source_file"] or "")
    files_of_topic: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    messages = interval_dataset(warehouse, "messages", interval_start)
    names = ["cluster", "topic", "source_file"]
    for group in aggregate(read_batches(messages, names), names):
        files_of_topic[group["cluster"], group["topic"]].add(group["source_file"] or "")
    for (cluster, topic, _subscription), row in rows.items():
        row.files |= files_of_topic[cluster, topic]


def _with_sent(batches: Iterator[pa.RecordBatch], keys: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        lengths = pc.fill_null(pc.list_value_length(batch.column("positions")), 0)
        sent = pc.if_else(pc.equal(batch.column("kind"), "sent"), lengths, 0).cast(pa.int64())
        yield pa.RecordBatch.from_arrays([*(batch.column(key) for key in keys), sent], [*keys, "sent"])


def _read_replay(warehouse: Place, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]) -> None:
    """Read the tables of the replay and of the aggregates."""
    states = interval_dataset(warehouse, "dispatcher_state", interval_start)
    for state in read_rows(states, [*KEY, "incarnation", *STATE_COLUMNS]):
        row = rows[_dispatcher(state)]
        row.states.append(state)
        row.incarnation = max(row.incarnation, state["incarnation"])
    deliveries = interval_dataset(warehouse, "deliveries", interval_start)
    for group in aggregate(read_batches(deliveries, KEY), KEY):
        rows[_dispatcher(group)].delivered = group["count"]
    balance = interval_dataset(warehouse, "balance", interval_start)
    for group in read_rows(balance, [*KEY, *BALANCE_COLUMNS]):
        rows[_dispatcher(group)].balance.append(group)
    rolling = interval_dataset(warehouse, "rolling_balance", interval_start)
    for group in read_rows(rolling, [*KEY, *_ROLLING]):
        rows[_dispatcher(group)].rolling.append(group)
    waits = interval_dataset(warehouse, "waits", interval_start)
    for group in read_rows(waits, [*KEY, "entries", "never_delivered", *WAITS]):
        rows[_dispatcher(group)].waits.append(group)


def _count_lines_once(
    warehouse: Place, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]
) -> None:
    """Count again what was sent in logs that say more of it than the replay, by their lines: a segment may stand twice."""
    differing = {dispatcher for dispatcher, row in rows.items() if row.sent_in_log > row.delivered}
    if not differing:
        return
    events = interval_dataset(warehouse, "consumer_events", interval_start)
    line = [*KEY, "broker", "incarnation", "seq"]
    topics = sorted({topic for _cluster, topic, _subscription in differing})
    of_topics = pc.field("topic").isin(topics) & (pc.field("kind") == "sent")
    parts = [
        pa.Table.from_batches([batch])
        for batch in _with_sent(read_batches(events, [*line, "kind", "positions"], of_topics), line)
    ]
    if not parts:
        return
    lines = pa.concat_tables(parts).group_by(line, use_threads=False).aggregate([("sent", "max")])
    sums = lines.group_by(KEY, use_threads=False).aggregate([("sent_max", "sum")])
    for group in sums.to_pylist():
        if _dispatcher(group) in differing:
            rows[_dispatcher(group)].sent_in_log = group["sent_max_sum"]


def _read_anomalies(warehouse: Place, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]) -> None:
    anomalies = interval_dataset(warehouse, "anomalies", interval_start)
    keys = [*KEY, "kind", "cause", "reason", "uncertain"]
    for group in aggregate(read_batches(anomalies, keys), keys):
        row = rows[_dispatcher(group)]
        row.add(group["kind"], group["cause"], group["reason"], group["uncertain"], group["count"])
    # A finding lists only its first positions; the number of its unsent entries is a column of its own.
    with_unsent = pc.field("unsent") > 0
    logs = [*KEY, "incarnation"]
    for group in aggregate(read_batches(anomalies, [*logs, "unsent"], with_unsent), logs, ["unsent"]):
        row = rows[_dispatcher(group)]
        if (
            group["incarnation"] == row.incarnation
        ):  # a later incarnation may have sent what an earlier one did not
            row.explained = group["unsent"]


def _read_doubted(warehouse: Place, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]) -> None:
    """Count decisions that differ behind something that may explain them: they prove nothing and are no findings.

    That is a line that is missing or cannot be, a move of the cursor, or behaviour that the log cannot show.
    """
    logs = [*KEY, "incarnation"]
    anomalies = interval_dataset(warehouse, "anomalies", interval_start)
    since: dict[tuple[Any, ...], int] = {}
    because: defaultdict[tuple[Any, ...], set[str]] = defaultdict(set)
    # Of lines that an earlier interval lost, only reasons of findings say so.
    differs = pc.field("uncertain") & (pc.field("kind") == "divergence")
    # A delivery after an acknowledgement that may be of a transaction says nothing of what the rules should have sent.
    explained = pc.field("reason").isin([*_DOUBTED_BY]) & (pc.field("kind") != "duplicate_after_ack")
    moved = pc.field("reason") == CURSOR_MAY_HAVE_MOVED
    doubts = pc.field("kind").isin(DOUBTS) | explained | moved | differs
    for batch in read_batches(anomalies, [*logs, "kind", "reason", "seqs"], doubts):
        for found in batch.to_pylist():
            log = tuple(found[name] for name in logs)
            if found["seqs"]:
                since[log] = min([*found["seqs"], *([since[log]] if log in since else [])])
                reason = LOG_GAP if found["kind"] in DOUBTS else found["reason"]
                because[log].add(_DOUBTED_BY.get(reason, BY_BEHAVIOUR))
    if not since:
        return
    divergences = interval_dataset(warehouse, "divergences", interval_start)
    for batch in read_batches(divergences, [*logs, "seq"], pc.field("status") == "divergent"):
        for decision in batch.to_pylist():
            log = tuple(decision[name] for name in logs)
            if log in since and decision["seq"] >= since[log]:
                row = rows[_dispatcher(decision)]
                row.doubted += 1
                row.doubted_by |= dict.fromkeys(because[log])


def _rows_unaccounted(warehouse: Place, interval_start: datetime) -> int | None:
    """Count rows of the interval's newest ingest that no other count explains; None if there are no counts of an ingest."""
    counts = ["rows_in", "rows_accepted", "rows_quarantined", "rows_other_interval"]
    metadata = whole_dataset(warehouse, "run_metadata")
    start = pa.scalar(interval_start, pa.timestamp("us", tz="UTC"))
    ingest_runs = (pc.field("stage") == "ingest") & (pc.field("interval_start") == start)
    runs = [
        run
        for batch in read_batches(metadata, ["finished_at", *counts], ingest_runs)
        for run in batch.to_pylist()
        if run["rows_in"] is not None
    ]
    if not runs:
        return None
    last = max(runs, key=lambda run: run["finished_at"])
    difference = last["rows_in"] - sum(last[name] or 0 for name in counts[1:])
    kept = interval_dataset(warehouse, "quarantine", interval_start)
    quarantined = sum(batch.num_rows for batch in read_batches(kept, ["source_file"]))
    return abs(difference) + abs((last["rows_quarantined"] or 0) - quarantined)


def _read_quarantine(warehouse: Place, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]) -> None:
    """Count quarantined rows for the dispatchers of their file, else for those of its folder, else for ``NOBODY``."""
    by_file: defaultdict[str, set[Dispatcher]] = defaultdict(set)
    by_folder: defaultdict[str, set[Dispatcher]] = defaultdict(set)
    for dispatcher, row in rows.items():
        for file in row.files:
            by_file[file].add(dispatcher)
            by_folder[_folder(file)].add(dispatcher)
    quarantine = interval_dataset(warehouse, "quarantine", interval_start)
    if quarantine is None:
        return
    firsts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for batch in read_batches(quarantine, ["source_file", "source_line", "field", "reason"]):
        for item in batch.to_pylist():
            counts[item["source_file"]] += 1
            firsts.setdefault(item["source_file"], _where(item))
    for file, count in sorted(counts.items()):
        for dispatcher in sorted(by_file[file] or by_folder[_folder(file)] or {NOBODY}):
            row = rows[dispatcher]
            row.quarantined += count
            row.first_quarantined = row.first_quarantined or f"; first: {firsts[file]}"


def _folder(file: str) -> str:
    return file.rpartition("/")[0]


def _where(item: dict[str, Any]) -> str:
    line = f":{item['source_line']}" if item["source_line"] is not None else ""
    name = f"{item['field']}: " if item["field"] else ""
    return f"{item['source_file']}{line}: {name}{item['reason']}"


def _record(dispatcher: Dispatcher, row: _Row, policy: Policy, unaccounted: int | None) -> dict[str, Any]:
    cluster, topic, subscription = dispatcher
    rule = policy.rule_for(topic, subscription)
    row.doubted_by = {because: None for because in _DOUBTED_BY.values() if because in row.doubted_by}
    return {
        "cluster": cluster,
        "topic": topic,
        "subscription": subscription,
        "policy": rule.name,
        **row.row(rule, rolling=row.rolling, unaccounted=unaccounted, nobody=dispatcher == NOBODY),
        "balance_window": window_in_reason(row.rolling),
    }


def _last_line_us(row: _Row) -> int | None:
    """Return the time of a dispatcher's last line."""
    times = [state["last_t_us"] for state in row.states if state["last_t_us"] is not None]
    return max(times, default=None)
