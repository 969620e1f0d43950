"""Read one dispatcher's whole log from the tables' files, for logs that cannot be replayed batch by batch.

Knows files and Arrow, not Spark.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.errors import LogError
from dispatch_core.recording import schema
from dispatch_core.recording.log import DispatcherLog, dispatcher_logs
from dispatch_core.recording.stored_files import parquet_rows
from spark_jobs.warehouse.contracts import conform


def load_logs(dispatcher: dict[str, Any]) -> list[DispatcherLog]:
    """The dispatcher's logs, one per incarnation, from the files of all intervals up to the one being replayed."""
    cluster, topic, subscription = (dispatcher[name] for name in schema.DISPATCHER_KEY)
    of_topic = [("cluster", "=", cluster), ("topic", "=", topic)]
    of_dispatcher = [*of_topic, ("subscription", "=", subscription)]
    events = _rows(dispatcher["event_files"], schema.EVENTS, of_dispatcher)
    messages = _rows(dispatcher["message_files"], schema.MESSAGES, of_topic)
    logs = dispatcher_logs(messages, _one_header_each(events))
    ends = {(load["broker"], load["incarnation"]) for load in dispatcher.get("ends_lost") or ()}
    if ends:
        logs = [replace(log, end_lost=(log.broker, log.incarnation) in ends) for log in logs]
    if dispatcher.get("messages_cut"):
        logs = [replace(log, messages_cut=True) for log in logs]
    for log in logs:
        _check_places(log.events, ("seq",), "seq {0}")
        _check_places(log.messages, ("ledger_id", "entry_id"), "position {0}:{1}")
    return logs


def _check_places(table: pa.Table, place: tuple[str, ...], shown: str) -> None:
    """Raise ``LogError`` where two lines claim one place and differ; ``dispatcher_logs`` has dropped those that are equal.

    ``table`` is sorted by ``place``.
    """
    same = np.ones(max(table.num_rows - 1, 0), dtype=bool)
    for name in place:
        values = table[name].to_numpy()
        same &= values[1:] == values[:-1]
    if not same.any():
        return
    row = int(np.argmax(same))
    first, again = table.slice(row, 2).select([*place, "source_file", "source_line"]).to_pylist()
    lines = [f"{part['source_file']}, line {part['source_line']}" for part in (first, again)]
    where = shown.format(*(first[name] for name in place))
    raise LogError(
        f"{where} stands twice and differs: {lines[0]}, and {lines[1]}: two logs of one dispatcher? Audit them apart, or "
        "give each its own cluster in its header"
    )


def _rows(paths: list[str], wanted: pa.Schema, filters: list[tuple[str, str, str]]) -> pa.Table:
    parts = [wanted.empty_table()]
    for path in sorted(paths):  # the path begins with the interval: earlier intervals first
        parts.append(conform(parquet_rows(path, filters=filters), wanted))
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
