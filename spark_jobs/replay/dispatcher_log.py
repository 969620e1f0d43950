"""Read one dispatcher's whole log from the tables' files, for logs that cannot be replayed batch by batch.

Knows files and Arrow, not Spark.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dispatch_core.errors import LogError
from dispatch_core.recording import schema
from dispatch_core.recording.log import DispatcherLog, dispatcher_logs
from spark_jobs.warehouse.contracts import conform


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
    first, again = table.take(pa.array(second - 1)), table.take(pa.array(second))
    contents = [name for name in table.column_names if name not in ("source_file", "source_line")]
    if not first.select(contents).equals(again.select(contents)):
        for row in range(len(second)):
            if first.slice(row, 1).select(contents).equals(again.slice(row, 1).select(contents)):
                continue
            lines = [
                f"{part['source_file'][row]}, line {part['source_line'][row]}" for part in (first, again)
            ]
            where = shown.format(*(first[name][row] for name in place))
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
