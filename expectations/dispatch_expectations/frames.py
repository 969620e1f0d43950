"""Build the frame that the suites judge: one row of counts per dispatcher of an interval, from the warehouse's tables.

Every number is a count from a table, or a ratio of two; it is not compared with a limit here. A dispatcher has a row if
it is in the interval's log or in the results of the replay, so that a dispatcher that the replay lost is judged too.
Findings that belong to no dispatcher are in a row named ``*``, if there are any.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.assumptions import UNLOGGED
from dispatch_core.audit.catalogue import (
    BY_BEHAVIOUR,
    BY_LINES,
    BY_MOVE,
    DOUBTS,
    HANDOVER,
    ORDER_NOT_PROMISED,
)
from dispatch_core.audit.deliveries.findings import CURSOR_MAY_HAVE_MOVED, LOG_GAP
from dispatch_expectations.balance import GATES, window_in_reason
from dispatch_expectations.duplicate_delivery import CAUSES
from dispatch_expectations.moment import judged_as_of, moment_in_reason
from dispatch_expectations.policy import Policy
from dispatch_expectations.promise import NO_DISPATCHER
from dispatch_expectations.suites import LOG_KINDS, PROMISE_OF_KIND, TOLERATED_KINDS
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
#: Subscription types whose consumers get no promise of order and whose rule is not replayed.
UNORDERED: Final = ("Shared",)
#: Reasons of findings, and what then may explain decisions that differ from the rules.
_DOUBTED_BY: Final = {LOG_GAP: BY_LINES, CURSOR_MAY_HAVE_MOVED: BY_MOVE, UNLOGGED: BY_BEHAVIOUR}
#: Tables without which nothing can be judged.
REQUIRED_TABLES: Final = ("consumer_events", "dispatcher_state")

#: Columns of findings that a change of the active consumer explains, by promise.
HANDED_OVER: Final = {promise: f"{promise}_{HANDOVER}" for promise in ("per_key_order", "duplicate_delivery")}
_CERTAINTY: Final = ("certain", "uncertain")
_UNCERTAIN_COUNTED: Final = ("per_key_order", "duplicate_delivery", "completeness")
#: Waiting times that the policy may limit.
WAITS: Final = ("wait_ms_p99", "wait_ms_max", "blocked_message_ms")
#: Columns of ``rolling_balance`` that are judged in place of those of ``balance``, and the window that they are of.
_ROLLING: Final = (
    *("consumer_name", "messages", "keys", "message_share", "hash_share"),
    *("window_end", "left_out_s"),
)


@dataclass
class _Row:
    """Counts of one dispatcher while they are collected."""

    incarnation: int = 0
    in_log: bool = False
    sent_in_log: int = 0
    delivered: int = 0
    files: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    uncertain: Counter[str] = field(default_factory=Counter)
    states: list[dict[str, Any]] = field(default_factory=list)
    balance: list[dict[str, Any]] = field(default_factory=list)
    rolling: list[dict[str, Any]] = field(default_factory=list)
    waits: list[dict[str, Any]] = field(default_factory=list)
    explained: int = 0
    doubted: int = 0
    doubted_by: set[str] = field(default_factory=set)
    quarantined: int = 0
    first_quarantined: str = ""


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
    state_columns = [*KEY, "incarnation", "subscription_type", "not_judged_reason"]
    state_columns += ["rounds", "decisions", "uncertain", "divergent", "last_seq", "last_t_us"]
    states = interval_dataset(warehouse, "dispatcher_state", interval_start)
    for state in read_rows(states, state_columns):
        row = rows[_dispatcher(state)]
        row.states.append(state)
        row.incarnation = max(row.incarnation, state["incarnation"])
    deliveries = interval_dataset(warehouse, "deliveries", interval_start)
    for group in aggregate(read_batches(deliveries, KEY), KEY):
        rows[_dispatcher(group)].delivered = group["count"]
    balance = interval_dataset(warehouse, "balance", interval_start)
    for group in read_rows(
        balance, [*KEY, "consumer_name", "messages", "keys", "message_share", "hash_share"]
    ):
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
        row, kind, count = rows[_dispatcher(group)], group["kind"], group["count"]
        explained = kind == "redelivered" and group["cause"] in CAUSES
        if kind not in PROMISE_OF_KIND and kind not in LOG_KINDS:
            row.kinds["unknown_kinds"] += count
        elif group["reason"] == ORDER_NOT_PROMISED and PROMISE_OF_KIND.get(kind) == "per_key_order":
            row.kinds[ORDER_NOT_PROMISED] += count
        elif group["reason"] == HANDOVER and PROMISE_OF_KIND.get(kind) in HANDED_OVER:
            row.kinds[HANDED_OVER[PROMISE_OF_KIND[kind]]] += count
        elif explained:
            row.kinds[f"redelivered_{group['cause']}"] += count
        elif group["uncertain"] and kind in PROMISE_OF_KIND and kind not in TOLERATED_KINDS:
            row.uncertain[PROMISE_OF_KIND[kind]] += count
        else:
            if kind in LOG_KINDS:
                row.kinds[f"{kind}_{'uncertain' if group['uncertain'] else 'certain'}"] += count
            row.kinds["redelivered_unexplained" if kind == "redelivered" else kind] += count
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
                row.doubted_by |= because[log]


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
    nobody = dispatcher == NOBODY
    types = sorted({state["subscription_type"] for state in row.states if state["subscription_type"]})
    unordered = bool(types) and all(kind in UNORDERED for kind in types)
    decisions = sum(state["decisions"] for state in row.states)
    reasons = sorted({state["not_judged_reason"] for state in row.states if state["not_judged_reason"]})
    # Of Shared only a trace has decisions; else nothing is wrong if none was compared.
    unjudged = [] if unordered and not decisions else reasons
    uncertain = sum(state["uncertain"] for state in row.states)
    divergent = sum(state["divergent"] for state in row.states)
    doubted = min(row.doubted, divergent)
    undelivered: float | None = None
    if row.waits:
        undelivered = max(0, sum(wait["never_delivered"] for wait in row.waits) - row.explained)
    elif nobody or not (row.sent_in_log or row.delivered):
        undelivered = 0
    record: dict[str, Any] = {
        "cluster": cluster,
        "topic": topic,
        "subscription": subscription,
        "incarnation": row.incarnation,
        "subscription_type": ", ".join(types),
        "unordered": unordered,
        "policy": rule.name,
        "replay_missing": int(row.in_log and not row.states),
        # As of the interval's end, over all intervals. A log that could not be put together has no line in its state.
        "never_recorded": int(
            bool(row.states)
            and not row.in_log
            and all(not state["last_seq"] and state["last_t_us"] is None for state in row.states)
        ),
        "sent_in_log": row.sent_in_log,
        "sent_unaudited": abs(row.sent_in_log - row.delivered),
        "because": f": {'; '.join(reasons)}" if reasons else "",
        "decisions": decisions,
        "divergent": divergent - doubted,
        "doubted": doubted,
        "doubted_by": " or ".join(because for because in _DOUBTED_BY.values() if because in row.doubted_by),
        "uncertain_percent": 100.0 * uncertain / decisions if decisions else 0.0,
        "not_judged": len(unjudged),
        # Only a trace has the rounds of the deliveries.
        "reads_unseen": bool(decisions and row.sent_in_log)
        and not any(state["rounds"] for state in row.states),
        "not_judged_reason": "; ".join(unjudged),
        "undecided_sends": 0 if decisions or unjudged or unordered else row.sent_in_log,
        "undelivered": undelivered,
        "quarantined": row.quarantined,
        "first_quarantined": row.first_quarantined,
        "rows_unaccounted": unaccounted,
        "balance_missing": int(row.delivered > 0 and not row.balance),
    }
    record |= {
        kind: row.kinds[kind] for kind in (*PROMISE_OF_KIND, *LOG_KINDS, ORDER_NOT_PROMISED, "unknown_kinds")
    }
    record |= {f"{kind}_{how}": row.kinds[f"{kind}_{how}"] for kind in LOG_KINDS for how in _CERTAINTY}
    record |= {column: row.kinds[column] for column in HANDED_OVER.values()}
    record |= {f"redelivered_{cause}": row.kinds[f"redelivered_{cause}"] for cause in CAUSES}
    record |= {f"{promise}_uncertain": row.uncertain[promise] for promise in _UNCERTAIN_COUNTED}
    record |= {name: _most(wait[name] for wait in row.waits) for name in WAITS}
    record |= _balance(row.rolling or row.balance)
    record["balance_window"] = window_in_reason(row.rolling)
    gates = [(column, rule.limit(*threshold.split("."))) for column, threshold in GATES]
    record["balance_not_judged"] = any(
        record[column] is None or record[column] < (least or 0) for column, least in gates
    )
    return record


def _last_line_us(row: _Row) -> int | None:
    """Return the time of a dispatcher's last line."""
    times = [state["last_t_us"] for state in row.states if state["last_t_us"] is not None]
    return max(times, default=None)


def _most(values: Iterable[float | None]) -> float | None:
    """Return the greatest known value, which is that of the worst incarnation."""
    return max((value for value in values if value is not None), default=None)


def _balance(consumers: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute the counts for the balance gates, and the consumer with the greatest load for its share of the hash space."""
    ratios = [
        (consumer["message_share"] / consumer["hash_share"], consumer["consumer_name"])
        for consumer in consumers
        if consumer["hash_share"]
    ]
    ratio, busiest = max(ratios, default=(None, ""))
    return {
        "messages": sum(consumer["messages"] for consumer in consumers),
        # The keys of a window with too few messages are not counted.
        "keys_per_consumer": None
        if any(consumer["keys"] is None for consumer in consumers)
        else sum(consumer["keys"] for consumer in consumers) / max(len(consumers), 1),
        "max_share_ratio": ratio,
        "busiest_consumer": busiest,
    }
