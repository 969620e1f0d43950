"""One dispatcher's log, split from tables that may hold many.

A *dispatcher* is ``(cluster, topic, subscription)``. Each load of its topic on a broker is an *incarnation*: after an unload
or broker restart the dispatcher's memory is gone and ``seq`` begins at 1 again, so each incarnation is a log of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.identity import DEFAULT_CLUSTER
from dispatch_core.recording.load_order import Load, in_order, named_extent
from dispatch_core.recording.repeats import Repeat, without_repeats
from dispatch_core.recording.schema import EVENTS, MESSAGES

_INCARNATION: Final = ("cluster", "topic", "subscription", "broker", "incarnation")


@dataclass(frozen=True)
class DispatcherLog:
    """The log of one incarnation of one dispatcher.

    ``recording`` is ``<parent>/<folder>`` of where it came from, or empty. ``header`` is the log's header,
    ``{}`` if it has none. ``messages`` (schema ``MESSAGES``) are all entries of the topic, sorted by
    position; ``events`` (schema ``EVENTS``) are this incarnation's, sorted by ``seq``, without the header
    row. Equal rows count once, the first one read; ``repeats`` says which were left out (those of messages in the first
    incarnation's log). Other rows that share a position or a ``seq`` are all kept, in the order in which they were read;
    the audit reports them. ``end_lost``: rows behind the last line could not be read (``lost_rows``).
    """

    recording: str
    cluster: str
    topic: str
    subscription: str
    broker: str | None
    incarnation: int
    header: dict[str, Any] = field(repr=False)
    messages: pa.Table = field(repr=False)
    events: pa.Table = field(repr=False)
    repeats: tuple[Repeat, ...] = field(default=(), repr=False)
    end_lost: bool = False

    @property
    def start_t_us(self) -> int | None:
        """Time of the first event, microseconds since the epoch; None if there is no event."""
        times = self.events["t_us"]
        return None if len(times) == times.null_count else int(pc.min(times).as_py())


def dispatcher_logs(messages: pa.Table, events: pa.Table, recording: str = "") -> list[DispatcherLog]:
    """Split rows of many dispatchers into one log per dispatcher and incarnation.

    ``messages`` and ``events`` may be in any order and may carry further columns, which are dropped. A
    topic's messages go to the logs of all its subscriptions. Logs are ordered by dispatcher, then by start
    time (then by broker and incarnation number); loads on different brokers by their positions
    (``load_order``). An incarnation of which only the header is known is a log
    without events.
    """
    messages = _conform(messages, MESSAGES)
    events = _conform(events, EVENTS)
    messages_of = _by_topic(messages)
    logs = []
    for group in _groups(events, _INCARNATION):
        cluster, topic, subscription, broker, incarnation = (group[name][0].as_py() for name in _INCARNATION)
        is_header = pc.equal(group["kind"], "header")
        headers = group.filter(is_header)
        lines = _sorted(group.filter(pc.invert(is_header)) if len(headers) else group, ("seq",))
        lines, repeats = without_repeats(lines, "events")
        stored, _ = messages_of.get((cluster, topic), (messages.slice(0, 0), ()))
        logs.append(
            DispatcherLog(
                recording=recording,
                cluster=cluster,
                topic=topic,
                subscription=subscription,
                broker=broker,
                incarnation=incarnation,
                header=_header(headers),
                messages=stored,
                events=lines,
                repeats=repeats,
            )
        )
    logs.sort(
        key=lambda log: (
            (log.cluster, log.topic, log.subscription),
            (log.start_t_us is None, log.start_t_us or 0),
            (log.broker or "", log.incarnation),
        )
    )
    of_dispatcher = groupby(logs, key=lambda log: (log.cluster, log.topic, log.subscription))
    found = []
    for _, group in of_dispatcher:
        first, *others = _loads_in_order(list(group))
        _, repeats = messages_of.get((first.cluster, first.topic), (None, ()))
        found += [replace(first, repeats=(*repeats, *first.repeats)) if repeats else first, *others]
    return found


def _loads_in_order(logs: list[DispatcherLog]) -> list[DispatcherLog]:
    """Sort the logs of one dispatcher, which are given by start time, by their positions where brokers differ."""
    if len({log.broker for log in logs}) < 2:
        return logs
    return [logs[at] for at in in_order([Load(log.broker, *named_extent(log.events)) for log in logs])]


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.names == schema.names:
        return table
    return table.select(schema.names)


def _header(headers: pa.Table) -> dict[str, Any]:
    """The header of a log: the first one, if several files of the log bring one each."""
    for text in headers["header_json"].to_pylist():
        if text:
            header: dict[str, Any] = json.loads(text)
            return header
    return {}


def _by_topic(messages: pa.Table) -> dict[tuple[str, str], tuple[pa.Table, tuple[Repeat, ...]]]:
    return {
        (group["cluster"][0].as_py(), group["topic"][0].as_py()): without_repeats(
            _sorted(group, ("ledger_id", "entry_id")), "messages"
        )
        for group in _groups(messages, ("cluster", "topic"))
    }


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Small integers for a column's values; null is a value of its own."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes: npt.NDArray[np.int64] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _groups(table: pa.Table, names: Sequence[str]) -> list[pa.Table]:
    """The table's rows by equal values of the columns ``names``; rows keep their order within a group."""
    if not len(table):
        return []
    code = np.zeros(len(table), dtype=np.int64)
    for name in names:
        part = _codes(table[name])
        if part.max() > 0:
            # Renumber after each column, so that the product of two counts is all that must fit.
            _, code = np.unique(code * (int(part.max()) + 1) + part, return_inverse=True)
    groups = int(code.max()) + 1
    if groups == 1:
        return [table]
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=groups))
    rows = table.take(pa.array(order))
    return [
        rows.slice(start, end - start)
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
    ]


def _sorted(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The table sorted by integer columns without nulls; equal rows keep their order. Sorted tables are not copied."""
    columns = [table[name].to_numpy() for name in names]
    order = np.lexsort(columns[::-1])
    if np.array_equal(order, np.arange(len(table))):
        return table
    return table.take(pa.array(order))


def mismatches(messages: pa.Table, logs: Iterable[DispatcherLog]) -> list[str]:
    """Warnings about topics whose events have no entry although entries of that topic exist in another cluster.

    Each names the files, the header field at fault, and what to do.

    Args:
        messages: all entries that were read (schema ``MESSAGES``).
        logs: the dispatchers' logs made of them.
    """
    found: dict[tuple[str, str], str] = {}
    for log in logs:
        topic = (log.cluster, log.topic)
        if topic in found or log.messages.num_rows or not log.events.num_rows:
            continue
        others = messages.filter(pc.equal(messages["topic"], log.topic))
        for cluster in pc.unique(others["cluster"]).to_pylist():
            of_cluster = others.filter(pc.equal(others["cluster"], cluster))
            stored, happened = _files(of_cluster), _files(log.events)
            found[topic] = (
                f"{log.topic}: {stored} is of cluster {_named(cluster)}, {happened} of cluster {_named(log.cluster)}, so "
                f"none of the {of_cluster.num_rows} entries was taken for this log and no key is known; write the same "
                '"cluster" into the headers of both'
            )
    return list(found.values())


def _named(cluster: str) -> str:
    return f"{cluster} (as it is without one in the header)" if cluster == DEFAULT_CLUSTER else cluster


def _files(rows: pa.Table) -> str:
    """The first file that rows come from, and the number of the others."""
    names = [name for name in pc.unique(rows["source_file"]).to_pylist() if name] or ["a file"]
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
