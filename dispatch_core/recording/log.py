"""One dispatcher's log, split from tables that may hold many.

A *dispatcher* is ``(cluster, topic, subscription)``. Each load of its topic on a broker is an *incarnation*: after an unload
or broker restart the dispatcher's memory is gone and ``seq`` begins at 1 again, so each incarnation is a log of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.identity import DEFAULT_CLUSTER
from dispatch_core.recording.load_order import Load, in_order, named_extent
from dispatch_core.recording.repeats import Repeat, without_repeats
from dispatch_core.recording.schema import EVENTS, MESSAGES

#: Rows of a chunk; a table of smaller ones is made one.
_FEW_ROWS: Final = 1_000
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
    ``messages_cut``: messages that were published behind the interval's end were not read, but for those shortly behind it.
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
    messages_cut: bool = False

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
    return list(DispatcherLogs(messages, events, recording))


class DispatcherLogs(Sequence[DispatcherLog]):
    """The logs that ``dispatcher_logs`` returns, each made when it is asked for.

    A table takes some 100 kB of its own, however few rows it has; a recording may hold some 10,000 logs.
    """

    def __init__(self, messages: pa.Table, events: pa.Table, recording: str = "") -> None:
        """Sort the rows of all logs; arguments as of ``dispatcher_logs``."""
        self._recording = recording
        messages, events = _conform(messages, MESSAGES), _conform(events, EVENTS)
        self._none: tuple[pa.Table, tuple[Repeat, ...]] = messages.slice(0, 0), ()
        self._messages_of = _by_topic(messages)
        self._rows = events
        self._places: list[_Place] = []
        #: Indices of the first log of each dispatcher.
        self._firsts: set[int] = set()
        if not len(events):
            return
        code = _codes_of_groups(events, _INCARNATION)
        first = np.unique(code, return_index=True)[1]
        identities = events.select(_INCARNATION).take(pa.array(first)).to_pylist()
        is_header = pc.equal(events["kind"], "header")
        headers = is_header.to_numpy()
        texts: dict[int, str] = {}
        if headers.any():
            for group, text in zip(
                code[headers].tolist(), events["header_json"].filter(is_header).to_pylist(), strict=True
            ):
                if text:  # the first one counts, if several files of the log bring one each
                    texts.setdefault(group, text)
            self._rows, code = events.filter(pc.invert(is_header)), code[~headers]
        order = np.lexsort((self._rows["seq"].to_numpy(), code))
        if not np.array_equal(order, np.arange(len(order))):
            self._rows = self._rows.take(pa.array(order))
        if self._rows["seq"].num_chunks * _FEW_ROWS > self._rows.num_rows:
            # Every slice goes through all chunks in front of it.
            self._rows = self._rows.combine_chunks()
        ends = np.cumsum(np.bincount(code, minlength=len(first)))
        self._places = [
            _Place(**identity, header=texts.get(group), start=start, end=end)
            for group, (identity, start, end) in enumerate(
                zip(identities, [0, *ends[:-1].tolist()], ends.tolist(), strict=True)
            )
        ]
        self._sort()

    def _sort(self) -> None:
        """Sort the logs by dispatcher, then by time, or by positions where brokers differ."""
        unknown = np.iinfo(np.int64).max
        t_us = np.append(self._rows["t_us"].fill_null(unknown).to_numpy(), unknown)
        begins_us = {place: int(t_us[place.start : place.end].min(initial=unknown)) for place in self._places}
        self._places.sort(
            key=lambda place: (place.dispatcher, begins_us[place], place.broker or "", place.incarnation)
        )
        sorted_places: list[_Place] = []
        for _, group in groupby(self._places, key=lambda place: place.dispatcher):
            loads = list(group)
            self._firsts.add(len(sorted_places))
            if len({place.broker for place in loads}) > 1:
                extents = [
                    Load(place.broker, *named_extent(self._rows.slice(place.start, place.end - place.start)))
                    for place in loads
                ]
                loads = [loads[at] for at in in_order(extents)]
            sorted_places += loads
        self._places = sorted_places

    @property
    def dispatchers(self) -> list[tuple[str, str, str]]:
        """Cluster, topic and subscription of each log."""
        return [place.dispatcher for place in self._places]

    def without_messages(self) -> Iterator[DispatcherLog]:
        """Yield the logs of topics of which no entry was read."""
        for at, place in enumerate(self._places):
            if (place.cluster, place.topic) not in self._messages_of:
                yield self._log(at)

    def _log(self, at: int) -> DispatcherLog:
        place = self._places[at]
        messages, repeated_messages = self._messages_of.get((place.cluster, place.topic), self._none)
        events, repeats = without_repeats(self._rows.slice(place.start, place.end - place.start), "events")
        return DispatcherLog(
            recording=self._recording,
            cluster=place.cluster,
            topic=place.topic,
            subscription=place.subscription,
            broker=place.broker,
            incarnation=place.incarnation,
            header=json.loads(place.header) if place.header else {},
            messages=messages,
            events=events,
            repeats=(*repeated_messages, *repeats) if at in self._firsts else repeats,
        )

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> DispatcherLog: ...

    @overload
    def __getitem__(self, at: slice) -> list[DispatcherLog]: ...

    def __getitem__(self, at: int | slice) -> DispatcherLog | list[DispatcherLog]:
        if isinstance(at, slice):
            return [self._log(number) for number in range(len(self._places))[at]]
        return self._log(range(len(self._places))[at])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Identity of a log, the text of its header, and the place of its rows among those of all logs."""

    cluster: str
    topic: str
    subscription: str
    broker: str | None
    incarnation: int
    header: str | None
    start: int
    end: int

    @property
    def dispatcher(self) -> tuple[str, str, str]:
        return self.cluster, self.topic, self.subscription


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.names == schema.names:
        return table
    return table.select(schema.names)


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


def _codes_of_groups(table: pa.Table, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the number of the group of each row, from 0: rows with equal values in the columns ``names``."""
    code = np.zeros(len(table), dtype=np.int64)
    for name in names:
        part = _codes(table[name])
        if part.max() > 0:
            # Renumber after each column, so that the product of two counts is all that must fit.
            _, code = np.unique(code * (int(part.max()) + 1) + part, return_inverse=True)
    return code


def _groups(table: pa.Table, names: Sequence[str]) -> list[pa.Table]:
    """The table's rows by equal values of the columns ``names``; rows keep their order within a group."""
    if not len(table):
        return []
    code = _codes_of_groups(table, names)
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


def dispatchers_of(logs: Sequence[DispatcherLog]) -> list[tuple[str, str, str]]:
    """Return cluster, topic and subscription of each log, and make none for that."""
    if isinstance(logs, DispatcherLogs):
        return logs.dispatchers
    return [(log.cluster, log.topic, log.subscription) for log in logs]


def mismatches(messages: pa.Table, logs: Iterable[DispatcherLog]) -> list[str]:
    """Warnings about topics whose events have no entry although entries of that topic exist in another cluster.

    Each names the files, the header field at fault, and what to do.

    Args:
        messages: all entries that were read (schema ``MESSAGES``).
        logs: the dispatchers' logs made of them.
    """
    found: dict[tuple[str, str], str] = {}
    for log in logs.without_messages() if isinstance(logs, DispatcherLogs) else logs:
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
