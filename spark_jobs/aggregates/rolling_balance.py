"""Judge the balance of an interval shorter than a day over the 24 hours that end with it.

The replay of a short interval keeps its sums: ``balance`` by consumer, ``key_totals`` by connection and key. They are added
up here, incarnation by incarnation, and judged by the same function as a whole day (``dispatch_core.audit.balance``).
Deliveries are not read again. Keys are counted only for dispatchers with enough messages in the window; most have too few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints
from dispatch_core.audit.balance import balance_rows, load_findings
from dispatch_core.audit.hash_share import FairPart
from dispatch_core.audit.key_totals import TOTALS, joined
from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.sentences.names import Connections
from dispatch_core.tables import BALANCE, KEY_TOTALS, ROLLING_BALANCE
from spark_jobs.warehouse.balance_window import BalanceWindow
from spark_jobs.warehouse.contracts import LOG, PARTITION, conform
from spark_jobs.warehouse.delta_tables import Place, files_until
from spark_jobs.warehouse.file_rows import file_rows

_DISPATCHER: Final = ["cluster", "topic", "subscription"]
_CONSUMER: Final = [*LOG, "consumer_name"]
_SUMS: Final = ("entries", "messages", "size_bytes")
#: A share of the messages of one interval, and the name of that number of messages.
_PARTS: Final = {"hash_share": "by_hashes", "equal_share": "by_number"}
_SHARES: Final = pa.schema([BALANCE.field(name) for name in (*_CONSUMER, *_SUMS, "keys", *_PARTS)])
_TOTALS: Final = pa.schema([field for field in KEY_TOTALS if field.name != PARTITION])
#: Rows of ``key_totals`` that are in memory at a time, as long as one topic does not have more.
_ROWS_AT_ONCE: Final = 2_000_000

_Log = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RollingBalance:
    """Rows of ``ROLLING_BALANCE``, and of ``ANOMALIES`` as dictionaries."""

    rows: pa.Table
    findings: list[dict[str, Any]]


def rolling_balance(warehouse: Place, window: BalanceWindow, limits: LimitRules) -> RollingBalance:
    """Add up and judge the balance of all dispatchers of an interval over its window."""
    files = {name: _files(warehouse, name, window) for name in ("balance", "key_totals", "dispatcher_state")}
    here = _dispatchers(files["dispatcher_state"].get(window.span.start, []))
    sums = _summed(
        [_messages_of_parts(_shares(files["balance"].get(span.start, []), here)) for span in window.intervals]
    )
    keys: dict[_Log, int] = {}
    findings: list[dict[str, Any]] = []
    for topics in _in_chunks(_enough(sums, limits)):
        of_log = _totals(files["key_totals"], window, topics)
        for log, rows in _by_log(sums.filter(pc.is_in(sums["topic"], pa.array(topics)))):
            counted, found = _judged(log, rows, of_log.get(log, []), window, limits)
            keys |= counted
            findings += found
    names = zip(*(sums[name].to_pylist() for name in _CONSUMER), strict=True)
    columns: dict[str, Any] = {name: sums[name] for name in (*_CONSUMER, *_SUMS)}
    columns["keys"] = pa.array([keys.get(name) for name in names], pa.int64())
    columns |= _shares_of(sums)
    same = {
        PARTITION: window.span.start,
        "window_start": window.start,
        "window_end": window.span.end,
        "left_out_s": window.left_out_s,
    }
    columns |= {
        name: pa.repeat(pa.scalar(value, ROLLING_BALANCE.field(name).type), sums.num_rows)
        for name, value in same.items()
    }
    rows = pa.table([columns[name] for name in ROLLING_BALANCE.names], names=ROLLING_BALANCE.names)
    return RollingBalance(conform(rows, ROLLING_BALANCE), findings)


def _files(warehouse: Place, table: str, window: BalanceWindow) -> dict[datetime, list[str]]:
    """List the data files of the intervals of a window, by start."""
    wanted = {span.start for span in window.intervals}
    found: dict[datetime, list[str]] = {}
    for path, start in files_until(warehouse, table, window.span):
        if start in wanted:
            found.setdefault(start, []).append(path)
    return found


def _dispatchers(files: Sequence[str]) -> pa.Table:
    empty = pa.schema([_SHARES.field(name) for name in _DISPATCHER]).empty_table()
    rows = [conform(part, empty.schema) for part in file_rows(files, _DISPATCHER)]
    return pa.concat_tables([empty, *rows]).group_by(_DISPATCHER, use_threads=False).aggregate([])


def _shares(files: Sequence[str], here: pa.Table) -> pa.Table:
    """Read rows of ``balance`` of the dispatchers ``here``."""
    rows = [conform(part, _SHARES) for part in file_rows(files, _SHARES.names)]
    table = pa.concat_tables([_SHARES.empty_table(), *rows])
    return table.join(here, _DISPATCHER, join_type="left semi", use_threads=False)


def _messages_of_parts(shares: pa.Table) -> pa.Table:
    """Add the messages that the shares of one interval stand for."""
    whole = shares.group_by(list(LOG), use_threads=False).aggregate([("messages", "sum")])
    rows = shares.join(whole, list(LOG), use_threads=False)
    for share, part in _PARTS.items():
        rows = rows.append_column(part, pc.multiply(rows[share], pc.cast(rows["messages_sum"], pa.float64())))
    return rows.select([*_CONSUMER, *_SUMS, "keys", *_PARTS.values()])


def _summed(intervals: Sequence[pa.Table]) -> pa.Table:
    """Add up all intervals by consumer name, sorted. ``keys`` are then at least as many as there are different ones."""
    names = [*_SUMS, "keys", *_PARTS.values()]
    summed = (
        pa.concat_tables(intervals)
        .group_by(_CONSUMER, use_threads=False)
        .aggregate([(name, "sum") for name in names])
    )
    return summed.rename_columns([*_CONSUMER, *names]).sort_by([(name, "ascending") for name in _CONSUMER])


def _shares_of(sums: pa.Table) -> dict[str, pa.Array]:
    """Return each consumer's share of the messages and of what its incarnation's messages were shared out by."""
    names = ["messages", *_PARTS.values()]
    whole = sums.group_by(list(LOG), use_threads=False).aggregate([(name, "sum") for name in names])
    order = pa.array(np.arange(sums.num_rows))
    rows = sums.append_column("order", order).join(whole, list(LOG), use_threads=False)
    rows = rows.sort_by("order")
    found = {
        "message_share": pc.divide(rows["messages"].cast(pa.float64()), _at_least_one(rows["messages_sum"]))
    }
    for share, part in _PARTS.items():
        some = pc.greater(rows[f"{part}_sum"], 0.0)
        found[share] = pc.if_else(some, pc.divide(rows[part], rows[f"{part}_sum"]), None)
    return found


def _at_least_one(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.max_element_wise(numbers, 1).cast(pa.float64())


def _enough(sums: pa.Table, limits: LimitRules) -> list[tuple[str, int]]:
    """List the topics with a dispatcher that has enough messages to be judged, each with the rows that it may have."""
    owned = sums.filter(pc.is_valid(sums["by_hashes"]))
    of_dispatcher = owned.group_by(_DISPATCHER, use_threads=False).aggregate([("messages", "sum")])
    topics = {
        row["topic"]
        for row in of_dispatcher.to_pylist()
        if row["messages_sum"] >= limits.limits_for(row["topic"], row["subscription"]).min_messages
    }
    rows = sums.group_by(["topic"], use_threads=False).aggregate([("keys", "sum")])
    return sorted(
        (topic, keys)
        for topic, keys in zip(rows["topic"].to_pylist(), rows["keys_sum"].to_pylist(), strict=True)
        if topic in topics
    )


def _in_chunks(topics: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    chunk: list[str] = []
    rows = 0
    for topic, keys in topics:
        if chunk and rows + keys > _ROWS_AT_ONCE:
            yield chunk
            chunk, rows = [], 0
        chunk.append(topic)
        rows += keys
    if chunk:
        yield chunk


def _totals(
    files: Mapping[datetime, Sequence[str]], window: BalanceWindow, topics: Sequence[str]
) -> dict[_Log, list[pa.Table]]:
    """Read the sums by key of some topics (sorted): for each incarnation those of each interval, oldest first."""
    found: dict[_Log, list[pa.Table]] = {}
    for span in window.intervals:
        parts = file_rows(files.get(span.start, []), _TOTALS.names, topics=topics)
        rows = pa.concat_tables([_TOTALS.empty_table(), *(conform(part, _TOTALS) for part in parts)])
        for log, of_log in _by_log(rows):
            found.setdefault(log, []).append(of_log.select(TOTALS.names))
    return found


def _by_log(rows: pa.Table) -> Iterator[tuple[_Log, pa.Table]]:
    """Divide rows by the incarnation that they are of."""
    logs = (
        rows.group_by(list(LOG), use_threads=False)
        .aggregate([])
        .sort_by([(name, "ascending") for name in LOG])
    )
    for log in logs.select(LOG).to_pylist():
        wanted = [pc.equal(rows[name], value) for name, value in log.items()]
        mask = wanted[0]
        for other in wanted[1:]:
            mask = pc.and_(mask, other)
        yield tuple(log.values()), rows.filter(mask)


def _judged(
    log: _Log, sums: pa.Table, totals: Sequence[pa.Table], window: BalanceWindow, limits: LimitRules
) -> tuple[dict[_Log, int], list[dict[str, Any]]]:
    """Count the keys of each consumer of an incarnation in the window, and find what carries too much.

    Nothing is counted where sums by key are missing, as maintenance removes them after some time.
    """
    rows = joined(totals)
    if int(ints(rows["messages"]).sum()) != int(ints(sums["messages"]).sum()):
        return {}, []
    names = sums["consumer_name"].to_pylist()
    parts = zip(sums["by_hashes"].to_pylist(), sums["by_number"].to_pylist(), strict=True)
    fair = {
        name: FairPart(by_hashes, by_number or 0.0)
        for name, (by_hashes, by_number) in zip(names, parts, strict=True)
        if by_hashes is not None
    }
    identity = {PARTITION: window.span.start, **dict(zip(LOG, log, strict=True))}
    owners = Connections(np.empty(0, np.int64), [None] * len(names), names)
    balance = balance_rows(rows, owners, fair, identity)
    counted = dict(
        zip(
            ((*log, name) for name in balance["consumer_name"].to_pylist()),
            balance["keys"].to_pylist(),
            strict=True,
        )
    )
    of_topic = limits.limits_for(identity["topic"], identity["subscription"])
    deliveries = int(ints(rows["entries"]).sum())
    found = load_findings(rows, balance, fair, of_topic, deliveries)
    return counted, [
        {**identity, **finding._asdict(), "explanation": f"{finding.explanation}; {window.in_words}"}
        for finding in found
    ]
