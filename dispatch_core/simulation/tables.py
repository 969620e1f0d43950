"""Lines of a simulated log as rows of the log format, and published entries likewise.

Columns are made as a whole: for each column and kind of line a table names the number, ``a`` to ``d``, that it takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.recording.schema import EVENTS, HASH_RANGES, MESSAGES, POSITION, POSITIONS
from dispatch_core.simulation import kinds
from dispatch_core.simulation.publishing import PRODUCERS, KeySpace, Published
from dispatch_core.simulation.scenario import CLUSTER, SUBSCRIPTION
from dispatch_core.simulation.world import Lines

#: Entries of a ledger; then the next one begins.
LEDGER_ENTRIES: Final = 50_000

_Mask = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.int64]

#: Column → kind of line → the number of the line that it takes.
_NUMBERS: Final[dict[str, dict[int, str]]] = {
    "permits": {kinds.FLOW: "a", kinds.FLOW_APPLIED: "a"},
    "active": {kinds.ACTIVE_NOTIFIED: "a"},
    "permits_before": {kinds.SENT: "a"},
    "permits_after": {kinds.FLOW_COUNTED: "a", kinds.SEND_RETURNED: "a"},
    "total_permits": {kinds.READ_ATTEMPT_END: "a"},
    "max_entries": {kinds.READ_ISSUED: "a"},
    "in_replay": {kinds.ROUND_END: "b"},
    "hash": dict.fromkeys(
        (kinds.PENDING_ACK_REMOVED, kinds.DRAINING_ADD, kinds.DRAINING_RELEASE, kinds.DRAINING_BLOCKED), "a"
    ),
    "ref_count_before": {kinds.DRAINING_RELEASE: "c"},
    "partition_index": {kinds.ACTIVE_PICKED: "b"},
}
_YES_OR_NO: Final[dict[str, dict[int, str]]] = {
    "blocked": {kinds.FLOW: "b"},
    "blocked_after": {kinds.FLOW_COUNTED: "b"},
    "pending_read": {kinds.READ_ATTEMPT_END: "b", kinds.HANDOVER_SCHEDULED: "a"},
    "pending_replay": {kinds.READ_ATTEMPT_END: "c"},
    "cancelled": {kinds.READ_CANCELLED: "a"},
    "retry": {kinds.ROUND_END: "a"},
    "look_ahead": {kinds.ROUND_END: "c"},
    "has_more": {kinds.ROUND_END: "d"},
    "written": {kinds.SEND_RETURNED: "b"},
    "closing": {kinds.DRAINING_RELEASE: "b"},
    "changed": {kinds.ACTIVE_PICKED: "a"},
}
_CURSOR: Final = {kinds.CONSUMER_ADDED, kinds.CONSUMER_REMOVED, kinds.RECENTLY_JOINED_PRUNED, kinds.REWIND}
_ONE_POSITION: Final[dict[str, dict[int, str]]] = {
    "read_position": {
        **dict.fromkeys(_CURSOR, "a"),
        kinds.READ_ISSUED: "b",
        kinds.READ_DONE: "b",
        kinds.ROUND_BEGIN: "b",
    },
    "mark_delete": {**dict.fromkeys(_CURSOR, "b"), kinds.MARK_DELETE: "a", kinds.ROUND_BEGIN: "c"},
}
_POSITIONS: Final = (
    kinds.SENT,
    kinds.ACK,
    kinds.REDELIVER,
    kinds.REPLAY_READ_ISSUED,
    kinds.REPLAY_ALREADY_DELETED,
    kinds.READ_DONE,
    kinds.ROUND_BEGIN,
    kinds.PENDING_ACK_REMOVED,
    kinds.PENDING_ACK_REFUSED,
)
#: Lines about the dispatcher, not about a consumer.
_NO_CONSUMER: Final = (
    kinds.READ_ISSUED,
    kinds.REPLAY_READ_ISSUED,
    kinds.REPLAY_ALREADY_DELETED,
    kinds.READ_CANCELLED,
    kinds.ROUND_END,
    kinds.MARK_DELETE,
    kinds.REWIND,
    kinds.DRAINING_CLEAR,
    kinds.PENDING_ACK_REFUSED,
    kinds.RECENTLY_JOINED_PRUNED,
    kinds.HANDOVER_SCHEDULED,
    kinds.END,
)
_SELECTORS: Final = (kinds.SELECTOR_ADDED, kinds.SELECTOR_REFUSED, kinds.SELECTOR_REMOVED)
#: Columns of level E; its files have no others.
E_COLUMNS: Final = (
    "cluster", "topic", "subscription", "incarnation", "seq", "t_us", "kind", "consumer", "name", "consumer_id",
    "address", "priority_level", "key_shared_mode", "key_shared_allow_out_of_order", "ranges", "permits", "blocked",
    "positions", "batch_sizes", "ack_type", "active", "header_json",
)  # fmt: skip
#: Columns that no generated line has a value in.
_UNUSED: Final = (
    *("source_file", "source_line", "broker", "ack_sets"),
    *("by", "moved_from", "moved_to", "entries", "what", "limit_active"),
    *("op", "target", "after", "individually_deleted"),
)
T_COLUMNS: Final = tuple(name for name in EVENTS.names if name not in _UNUSED)
MESSAGE_COLUMNS: Final = (
    "cluster", "topic", "ledger_id", "entry_id", "key", "producer", "sequence_id", "publish_time_ms", "num_messages",
    "size_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Client:
    """A connection, as its ``consumer_added`` line describes it."""

    name: str
    consumer_id: int
    ranges: Sequence[tuple[int, int]] = ()
    priority_level: int = 0
    address: str | None = "127.0.0.1"


@dataclass(slots=True)
class Log:
    """The dispatcher that the lines belong to, and the values that lines refer to by number."""

    topic: str
    header: Mapping[str, Any]
    first_ledger: int
    ledger_step: int
    mode: str
    allow_out_of_order: bool
    selector: str
    trace: bool
    shows_hashes: bool  # read results come with the hashes of their entries
    clients: dict[int, Client] = field(default_factory=dict)  # by consumer number
    hashes: list[npt.NDArray[np.int64]] = field(default_factory=list)  # of all entries so far, for a trace
    seq: int = 0
    cluster: str = CLUSTER
    subscription: str = SUBSCRIPTION

    def ledgers(self, numbers: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Return ledger and entry of entry numbers; -1 is before the first entry of the first ledger."""
        ledger, entry = np.divmod(numbers, LEDGER_ENTRIES)
        before = numbers < 0
        ledger[before], entry[before] = 0, -1
        return self.first_ledger + ledger * self.ledger_step, entry

    def batch_sizes(self, numbers: _Numbers) -> _Numbers:
        """Return the numbers of messages of entries."""
        return np.ones(len(numbers), np.int64)

    def hash_of(self, numbers: _Numbers) -> _Numbers:
        """Return the sticky key hashes of entries."""
        if len(self.hashes) > 1:
            self.hashes = [np.concatenate(self.hashes)]
        return self.hashes[0][numbers]


def message_table(log: Log, published: Published, keys: KeySpace) -> pa.Table:
    """Make rows of ``MESSAGES``."""
    count = len(published)
    numbers = np.arange(published.first, published.first + count, dtype=np.int64)
    ledger, entry = log.ledgers(numbers)
    columns = {
        "cluster": _constant(CLUSTER, count),
        "topic": _constant(log.topic, count),
        "ledger_id": pa.array(ledger),
        "entry_id": pa.array(entry),
        "key": _keys(published, keys),
        "producer": pa.DictionaryArray.from_arrays(
            pa.array((numbers % PRODUCERS).astype(np.int32)), [f"producer-{p}" for p in range(PRODUCERS)]
        ),
        "sequence_id": pa.array(numbers // PRODUCERS),
        "publish_time_ms": pa.array(published.publish_us // 1000),
        "num_messages": pa.array(np.ones(count, np.int32)),
        "size_bytes": pa.array(published.size_bytes),
    }
    return pa.table(columns, schema=schema_of("messages", trace=log.trace))


def _keys(published: Published, keys: KeySpace) -> pa.DictionaryArray:
    """Encode the keys' names; for few entries the dictionary has only their keys."""
    if len(published) > len(keys.names) // 2:
        return pa.DictionaryArray.from_arrays(pa.array(published.key), keys.names)
    used, at = np.unique(published.key, return_inverse=True)
    return pa.DictionaryArray.from_arrays(pa.array(at.astype(np.int32)), keys.names.take(pa.array(used)))


def header_table(log: Log) -> pa.Table:
    """Make a row of ``EVENTS`` of the header."""
    row: dict[str, Any] = {
        "cluster": CLUSTER,
        "topic": log.topic,
        "subscription": SUBSCRIPTION,
        "incarnation": 0,
        "seq": 0,
        "kind": "header",
        "header_json": json.dumps(log.header, separators=(",", ":")),
    }
    schema = schema_of("events", trace=log.trace)
    return pa.table(
        [pa.array([row.get(field.name)], EVENTS.field(field.name).type).cast(field.type) for field in schema],
        schema=schema,
    )


def event_table(log: Log, lines: Lines) -> pa.Table:
    """Make rows of ``EVENTS``, numbered on from the log's last; for level E without the lines of a trace."""
    columns = _Columns(log, lines)
    return columns.table()


class _Columns:
    """The columns of one batch of lines."""

    def __init__(self, log: Log, lines: Lines) -> None:
        count = int(lines.n[0])
        self._log = log
        self._count = count
        self._kind = lines.kind[:count].copy()
        self._lines = lines
        starts = lines.start[: count + 1].copy()
        starts[count] = lines.n[1]
        self._offsets = starts
        self._items = lines.item[: int(lines.n[1])].copy()

    def table(self) -> pa.Table:
        log, count, kind = self._log, self._count, self._kind
        columns: dict[str, Any] = {
            "cluster": _constant(log.cluster, count),
            "topic": _constant(log.topic, count),
            "subscription": _constant(log.subscription, count),
            "incarnation": pa.array(np.zeros(count, np.int64)),
            "seq": pa.array(np.arange(log.seq + 1, log.seq + 1 + count)),
            "t_us": pa.array(self._lines.t_us[:count].copy()),
            "kind": pa.DictionaryArray.from_arrays(pa.array(kind.astype(np.int32)), list(kinds.NAMES)),
            "consumer": self._consumer(),
            "ack_type": pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(count, np.int32), mask=kind != kinds.ACK), ["Individual"]
            ),
            **self._positions(),
            **self._added(),
        }
        log.seq += count
        wanted = T_COLUMNS if log.trace else E_COLUMNS
        for name, sources in _NUMBERS.items():
            if name in wanted:
                values, known = self._from(sources)
                if name == "permits":
                    known &= values >= 0
                columns[name] = pa.array(values, mask=~known)
        for name, sources in _YES_OR_NO.items():
            if name in wanted:
                values, known = self._from(sources)
                columns[name] = pa.array(values != 0, mask=~known)
        if log.trace:
            columns |= self._of_trace()
        schema = schema_of("events", trace=log.trace)
        return pa.table(
            [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in schema], schema=schema
        )

    def _is(self, *wanted: int) -> _Mask:
        table = np.zeros(len(kinds.NAMES), bool)
        table[list(wanted)] = True
        mask: _Mask = table[self._kind]
        return mask

    def _from(self, sources: Mapping[int, str]) -> tuple[_Numbers, _Mask]:
        """Return a column of numbers, and the mask of rows that have one."""
        values = np.zeros(self._count, np.int64)
        known = np.zeros(self._count, bool)
        for letter in sorted(set(sources.values())):
            rows = self._is(*(kind for kind, source in sources.items() if source == letter))
            if rows.any():
                values[rows] = getattr(self._lines, letter)[: self._count][rows]
                known |= rows
        return values, known

    def _consumer(self) -> pa.Array:
        consumers = self._lines.consumer[: self._count].astype(np.int64)
        missing = self._is(*_NO_CONSUMER) | (consumers == 0)
        return pa.array(consumers, mask=missing)

    def _lists(self, rows: _Mask, values: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return the items of some rows as lists; the others have none."""
        offsets = pa.array(self._offsets.astype(np.int32))
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=pa.array(~rows))

    def _positions(self) -> dict[str, Any]:
        ledger, entry = self._log.ledgers(self._items)
        values = pa.StructArray.from_arrays([pa.array(ledger), pa.array(entry)], fields=list(POSITION))
        sizes = pa.array(self._log.batch_sizes(self._items))
        of_all = self._is(kinds.REDELIVER)
        of_all &= self._lines.a[: self._count] == kinds.ALL
        return {
            "positions": self._lists(self._is(*_POSITIONS) & ~of_all, values, POSITIONS),
            "batch_sizes": self._lists(self._is(kinds.SENT), sizes, pa.list_(pa.int64())),
        }

    def _added(self) -> dict[str, Any]:
        """Return the fields of ``consumer_added`` lines about their consumers. There are few such lines."""
        rows = np.flatnonzero(self._kind == kinds.CONSUMER_ADDED)
        clients = [self._log.clients[number] for number in self._lines.consumer[rows].tolist()]
        given: dict[str, list[Any]] = {
            "name": [client.name for client in clients],
            "consumer_id": [client.consumer_id for client in clients],
            "address": [client.address for client in clients],
            "priority_level": [client.priority_level for client in clients],
            "key_shared_mode": [self._log.mode] * len(clients),
            "key_shared_allow_out_of_order": [self._log.allow_out_of_order] * len(clients),
            "ranges": [[{"start": a, "end": b} for a, b in client.ranges] for client in clients],
        }
        return {name: self._sparse(name, rows, values) for name, values in given.items()}

    def _sparse(self, name: str, rows: npt.NDArray[np.intp], values: Sequence[Any]) -> pa.Array:
        """Make a column that has a value in few rows."""
        kind = HASH_RANGES if name == "ranges" else EVENTS.field(name).type
        if not len(rows):
            return pa.nulls(self._count, kind)
        index = np.zeros(self._count, np.int64)
        index[rows] = np.arange(len(rows))
        known = np.zeros(self._count, bool)
        known[rows] = True
        return pa.array(values, kind).take(pa.array(index, mask=~known))

    def _of_trace(self) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for name, sources in _ONE_POSITION.items():
            numbers, known = self._from(sources)
            ledger, entry = self._log.ledgers(numbers)
            columns[name] = pa.StructArray.from_arrays(
                [pa.array(ledger), pa.array(entry)], fields=list(POSITION), mask=pa.array(~known)
            )
        replay, typed = self._from({kinds.READ_DONE: "a", kinds.ROUND_BEGIN: "a"})
        columns["type"] = pa.DictionaryArray.from_arrays(
            pa.array(replay.astype(np.int32), mask=~typed), ["Normal", "Replay"]
        )
        rows = np.flatnonzero(self._is(*_SELECTORS))
        columns["selector"] = self._sparse("selector", rows, [self._log.selector] * len(rows))
        if self._log.shows_hashes:
            read = self._is(kinds.READ_DONE)
            hashes = np.zeros(len(self._items), np.int64)
            of_read = np.repeat(read, np.diff(self._offsets))
            hashes[of_read] = self._log.hash_of(self._items[of_read])
            columns["hashes"] = self._lists(read, pa.array(hashes), pa.list_(pa.int64()))
        columns["sorted"] = self._lists(
            self._is(kinds.ACTIVE_PICKED), pa.array(self._items), pa.list_(pa.int64())
        )
        return columns


def _constant(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), [text])


#: Texts with few distinct values: written as a dictionary, read as plain texts.
_FEW_VALUES: Final = ("cluster", "topic", "subscription", "kind", "ack_type", "producer", "type")


def schema_of(content: str, *, trace: bool) -> pa.Schema:
    """Return the columns of a file of ``messages`` or ``events``, in order."""
    known, names = MESSAGES, MESSAGE_COLUMNS
    if content == "events":
        known, names = EVENTS, T_COLUMNS if trace else E_COLUMNS
    few = {name: pa.dictionary(pa.int32(), pa.string()) for name in _FEW_VALUES}
    few["key"] = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([known.field(name).with_type(few.get(name, known.field(name).type)) for name in names])
