"""One row per dispatcher of an interval: the counts that the suites judge, from the warehouse's tables.

Every number of the frame is a count read from a table (or a ratio of two); nothing here compares one with a limit.
A dispatcher is there if the interval's log or the replay knows it, so that one which got lost on the way is judged
too. What belongs to no dispatcher has its own row, named ``*``, only when there is something to say.
"""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.catalogue import DOUBTS, ORDER_NOT_PROMISED
from dispatch_core.audit.sentences.names import printable
from dispatch_expectations.balance import GATES
from dispatch_expectations.duplicate_delivery import CAUSES
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

if TYPE_CHECKING:
    import pandas as pd

#: (cluster, topic, subscription)
Dispatcher = tuple[str, str, str]

KEY: Final = ["cluster", "topic", "subscription"]
NOBODY: Final[Dispatcher] = (NO_DISPATCHER, NO_DISPATCHER, NO_DISPATCHER)
#: Subscription types whose consumers get no promise of order and whose rule is not replayed.
UNORDERED: Final = ("Shared",)
#: Tables without which nothing can be judged.
REQUIRED_TABLES: Final = ("consumer_events", "dispatcher_state")

_UNCERTAIN_COUNTED: Final = ("per_key_order", "duplicate_delivery", "completeness")
#: Waiting times that the policy may limit.
WAITS: Final = ("wait_ms_p99", "wait_ms_max", "blocked_message_ms")
_MAX_LABEL: Final = 200


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
    waits: list[dict[str, Any]] = field(default_factory=list)
    explained: int = 0
    doubted: int = 0
    quarantined: int = 0
    first_quarantined: str = ""


def dispatcher_frame(warehouse: Path, interval_start: datetime, policy: Policy) -> pd.DataFrame:
    """The frame of one interval, sorted by dispatcher, index 0 … n-1 also in column ``row``.

    Raises ``WarehouseError`` if the tables of ingest or replay are not there at all.
    """
    import pandas as pd

    require_tables(warehouse, REQUIRED_TABLES)
    rows: defaultdict[Dispatcher, _Row] = defaultdict(_Row)
    _read_log(warehouse, interval_start, rows)
    _read_replay(warehouse, interval_start, rows)
    _read_anomalies(warehouse, interval_start, rows)
    _read_doubted(warehouse, interval_start, rows)
    unaccounted = _rows_unaccounted(warehouse, interval_start)
    _read_quarantine(warehouse, interval_start, rows)
    if not rows:
        rows[NOBODY] = _Row()
    records = [
        {"row": number, **_record(dispatcher, rows[dispatcher], policy, unaccounted)}
        for number, dispatcher in enumerate(sorted(rows))
    ]
    nothing = all(record["topic"] == NO_DISPATCHER for record in records)
    for record in records:
        record["nothing_recorded"] = int(nothing)
    return pd.DataFrame.from_records(records)


def _dispatcher(row: dict[str, Any]) -> Dispatcher:
    return row["cluster"], row["topic"], row["subscription"]


def _read_log(warehouse: Path, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]) -> None:
    """Read which dispatchers have events, from which files, and the number of entries that the log records as sent."""
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


def _read_replay(warehouse: Path, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]) -> None:
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
    waits = interval_dataset(warehouse, "waits", interval_start)
    for group in read_rows(waits, [*KEY, "entries", "never_delivered", *WAITS]):
        rows[_dispatcher(group)].waits.append(group)


def _read_anomalies(warehouse: Path, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]) -> None:
    anomalies = interval_dataset(warehouse, "anomalies", interval_start)
    keys = [*KEY, "kind", "cause", "reason", "uncertain"]
    for group in aggregate(read_batches(anomalies, keys), keys):
        row, kind, count = rows[_dispatcher(group)], group["kind"], group["count"]
        explained = kind == "redelivered" and group["cause"] in CAUSES
        if kind not in PROMISE_OF_KIND and kind not in LOG_KINDS:
            row.kinds["unknown_kinds"] += count
        elif group["reason"] == ORDER_NOT_PROMISED and PROMISE_OF_KIND.get(kind) == "per_key_order":
            row.kinds[ORDER_NOT_PROMISED] += count
        elif explained:
            row.kinds[f"redelivered_{group['cause']}"] += count
        elif group["uncertain"] and kind in PROMISE_OF_KIND and kind not in TOLERATED_KINDS:
            row.uncertain[PROMISE_OF_KIND[kind]] += count
        else:
            row.kinds["redelivered_unexplained" if kind == "redelivered" else kind] += count
    # Evidence lists the first positions only: what a finding tells of is counted apart.
    telling = pc.field("unsent") > 0
    logs = [*KEY, "incarnation"]
    for group in aggregate(read_batches(anomalies, [*logs, "unsent"], telling), logs, ["unsent"]):
        row = rows[_dispatcher(group)]
        if group["incarnation"] == row.incarnation:  # what an earlier one left unsent, the next may have sent
            row.explained = group["unsent"]


def _read_doubted(warehouse: Path, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]) -> None:
    """Decisions that differ behind lines that are missing or cannot be: they prove nothing, and are no findings."""
    logs = [*KEY, "incarnation"]
    anomalies = interval_dataset(warehouse, "anomalies", interval_start)
    since: dict[tuple[Any, ...], int] = {}
    for batch in read_batches(anomalies, [*logs, "seqs"], pc.field("kind").isin(DOUBTS)):
        for found in batch.to_pylist():
            log = tuple(found[name] for name in logs)
            if found["seqs"]:
                since[log] = min([*found["seqs"], *([since[log]] if log in since else [])])
    if not since:
        return
    divergences = interval_dataset(warehouse, "divergences", interval_start)
    for batch in read_batches(divergences, [*logs, "seq"], pc.field("status") == "divergent"):
        for one in batch.to_pylist():
            log = tuple(one[name] for name in logs)
            if log in since and one["seq"] >= since[log]:
                rows[_dispatcher(one)].doubted += 1


def _rows_unaccounted(warehouse: Path, interval_start: datetime) -> int | None:
    """Rows of the newest ingest of the interval that no count explains; None if no ingest left its counts."""
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


def _read_quarantine(warehouse: Path, interval_start: datetime, rows: defaultdict[Dispatcher, _Row]) -> None:
    """Charge quarantined rows to the dispatchers of their file, else of its folder, else to nobody."""
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


def label(dispatcher: Iterable[str]) -> str:
    """A dispatcher's name for Data Docs: no markup, no control characters, bounded.

    Great Expectations puts values into its pages as they are; names come from logs and are hostile input.
    """
    return html.escape(printable(" ".join(dispatcher), _MAX_LABEL), quote=True)


def _record(dispatcher: Dispatcher, row: _Row, policy: Policy, unaccounted: int | None) -> dict[str, Any]:
    cluster, topic, subscription = dispatcher
    rule = policy.rule_for(topic, subscription)
    nobody = dispatcher == NOBODY
    types = sorted({state["subscription_type"] for state in row.states if state["subscription_type"]})
    unordered = bool(types) and all(kind in UNORDERED for kind in types)
    decisions = sum(state["decisions"] for state in row.states)
    reasons = sorted({state["not_judged_reason"] for state in row.states if state["not_judged_reason"]})
    unjudged = [] if unordered else reasons
    uncertain = sum(state["uncertain"] for state in row.states)
    divergent = sum(state["divergent"] for state in row.states)
    doubted = min(row.doubted, divergent)
    undelivered: float | None = None
    if row.waits:
        undelivered = max(0, sum(wait["never_delivered"] for wait in row.waits) - row.explained)
    elif nobody or not (row.sent_in_log or row.delivered):
        undelivered = 0
    record: dict[str, Any] = {
        "dispatcher": label(dispatcher),
        "cluster": cluster,
        "topic": topic,
        "subscription": subscription,
        "incarnation": row.incarnation,
        "subscription_type": ", ".join(types),
        "unordered": unordered,
        "policy": rule.name,
        "replay_missing": int(row.in_log and not row.states),
        # As of the interval's end, over all intervals.
        "never_recorded": int(
            bool(row.states) and all(not one["last_seq"] and one["last_t_us"] is None for one in row.states)
        ),
        "sent_in_log": row.sent_in_log,
        "sent_unaudited": abs(row.sent_in_log - row.delivered),
        "because": f": {'; '.join(reasons)}" if reasons else "",
        "decisions": decisions,
        "divergent": divergent - doubted,
        "doubted": doubted,
        "uncertain_percent": 100.0 * uncertain / decisions if decisions else 0.0,
        "not_judged": len(unjudged),
        # A trace shows the round of every sending, a log of level E shows none.
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
    record |= {f"redelivered_{cause}": row.kinds[f"redelivered_{cause}"] for cause in CAUSES}
    record |= {f"{promise}_uncertain": row.uncertain[promise] for promise in _UNCERTAIN_COUNTED}
    record |= {name: _most(wait[name] for wait in row.waits) for name in WAITS}
    record |= _balance(row.balance)
    gates = [(column, rule.limit(*threshold.split("."))) for column, threshold in GATES]
    record["balance_not_judged"] = any(record[column] < (least or 0) for column, least in gates)
    return record


def _most(values: Iterable[float | None]) -> float | None:
    """The greatest known value: of several incarnations the worst."""
    return max((value for value in values if value is not None), default=None)


def _balance(consumers: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts for the balance gates, and the consumer with most load for its share of the hash space."""
    ratios = [
        (one["message_share"] / one["hash_share"], one["consumer_name"])
        for one in consumers
        if one["hash_share"]
    ]
    ratio, busiest = max(ratios, default=(None, ""))
    return {
        "messages": sum(one["messages"] for one in consumers),
        "keys_per_consumer": sum(one["keys"] for one in consumers) / len(consumers) if consumers else 0.0,
        "max_share_ratio": ratio,
        "busiest_consumer": busiest,
    }
