"""Split the lines of a trace into the fields that the core may read and those that are only compared.

``inputs`` are the fields about what happened around the broker (joins, permits, acks, results of reads, times), ``recorded``
are the broker's own decisions. Drivers hand ``inputs`` to the core and keep ``recorded`` for the comparison; a field in
neither list is dropped. Every line has ``seq``, ``t_us``, ``kind`` and ``consumer``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import codes_with_null, encoded, ints, valid
from dispatch_core.arrays.growing import Growing
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.schema import POSITION

INPUT_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "consumer_added": (
        "name",
        "priority_level",
        "key_shared_mode",
        "key_shared_allow_out_of_order",
        "ranges",
    ),
    "consumer_removing": (),
    "consumer_removed": (),
    "all_disconnecting": (),
    "selector_added": (),  # the time at which it takes effect
    "selector_refused": (),
    "selector_removed": (),
    "flow": ("permits",),
    "flow_counted": (),
    "flow_applied": ("permits",),
    "ack": ("ack_type", "positions", "ack_sets"),
    "redeliver": ("positions",),
    "read_attempt": (),
    "read_attempt_end": (),
    "read_cancelled": ("cancelled",),
    "read_done": ("type", "positions"),
    "round_begin": (),
    "round_end": ("has_more",),
    "send_returned": ("written",),
    "pending_ack_removed": (),  # the time at which an ack or a redelivery that arrived takes its effect
    "mark_delete": (),
    "recently_joined_pruned": (),  # when the hook of a moved mark-delete ran; whom it frees the core says
    "rewind": (),
    "handover_scheduled": (),
    # What an administrator or a client asks for. The mark-delete positions that the broker derives are compared.
    "cursor_op": ("op", "target", "entries"),
    "cursor_state": (),
    "checkpoint": ("checkpoint_json",),  # the cursor that a new dispatcher begins with
    "limit": ("what", "value", "limit_active"),
    "subscription_deleted": (),
    "step": ("note",),  # where it stands for a line of these two kinds, see ``limits_in_force``
}

RECORDED_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "consumer_added": ("read_position", "mark_delete"),
    "consumer_removed": ("read_position", "mark_delete"),
    "selector_added": ("selector",),
    "selector_refused": ("selector",),
    "selector_removed": ("selector",),
    "flow": ("blocked",),
    "flow_counted": ("permits_after", "blocked_after"),
    "read_attempt_end": ("total_permits", "usable", "pending_read", "pending_replay"),
    "usable_seen": ("value",),
    "read_issued": ("max_entries", "read_position"),
    "replay_read_issued": ("positions",),
    "replay_already_deleted": ("positions",),
    "read_done": ("hashes", "read_position"),
    "round_begin": ("type", "positions", "read_position", "mark_delete"),
    "sent": ("positions", "batch_sizes", "permits_before"),
    "send_returned": ("permits_after",),
    "round_end": ("retry", "in_replay", "look_ahead"),
    "draining_add": ("hash",),
    "draining_release": ("hash", "closing", "ref_count_before"),
    "draining_blocked": ("hash",),
    "draining_clear": (),
    "pending_ack_removed": ("positions", "hash"),
    "pending_ack_refused": ("positions",),
    "mark_delete": ("mark_delete",),
    "recently_joined_pruned": ("read_position", "mark_delete"),
    "handover_scheduled": ("pending_read",),
    "rewind": ("read_position", "mark_delete"),
    "active_picked": ("changed", "sorted"),
    "active_notified": ("active",),
    "cursor_op": ("read_position", "mark_delete"),
    "cursor_state": ("read_position", "mark_delete", "individually_deleted"),
}

#: Kind of line → fields that are neither given to the core nor compared, with the reason (docs/verify.md).
NOT_COMPARED: Final[dict[str, dict[str, str]]] = {
    "consumer_added": {
        "consumer_id": "given by the client",
        "address": "given by the client",
    },
    "subscribe_rejected": {
        "name": "given by the client",
        "ranges": "given by the client",
        "error": "text for the client; whether a selector refuses is compared",
    },
    "read_attempt": {"consumer": "for whom the attempt is; the read that it issues is compared"},
    "sent": {"hashes": "those of the same entries are compared at `read_done`"},
    "active_picked": {"partition_index": "given by the topic's name"},
    "cursor_state": {"after": "the driver's name of the operation"},
    "cursor_moved": {
        "by": "the trace has the operation itself (`cursor_op`)",
        "moved_from": "the trace has the positions themselves (`cursor_op`)",
        "moved_to": "the trace has the positions themselves (`cursor_op`)",
        "entries": "the trace has the operation itself (`cursor_op`)",
    },
}

#: Recorded fields that are compared in the class ``state``: each that a line has is a decision.
STATE_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "selector_added": ("selector",),
    "selector_refused": ("selector",),
    "selector_removed": ("selector",),
    "flow": ("blocked",),
    "flow_counted": ("permits_after", "blocked_after"),
    "read_attempt_end": ("total_permits", "usable", "pending_read", "pending_replay"),
    "usable_seen": ("value",),
    "replay_already_deleted": ("positions",),
    "round_begin": ("type", "positions"),
    "sent": ("batch_sizes",),
    "send_returned": ("permits_after",),
    "pending_ack_removed": ("hash",),
    "pending_ack_refused": ("positions",),
}
#: The same in the class ``position``: positions of the cursor.
POSITION_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "consumer_added": ("read_position", "mark_delete"),
    "consumer_removed": ("read_position", "mark_delete"),
    "read_issued": ("read_position",),
    "read_done": ("read_position",),
    "round_begin": ("read_position", "mark_delete"),
    "mark_delete": ("mark_delete",),
    "recently_joined_pruned": ("read_position", "mark_delete"),
    "rewind": ("read_position", "mark_delete"),
    "cursor_op": ("read_position", "mark_delete"),
    "cursor_state": ("read_position", "mark_delete"),
}


@dataclass(slots=True)
class Line:
    """One line of a trace, split. Positions are ordinals of ``Entries``; -1 = a position that was never stored."""

    seq: int
    t_us: int
    kind: str
    consumer: int | None
    inputs: dict[str, Any]
    recorded: dict[str, Any]

    def change_ordinals(self, change: Callable[[int], int]) -> None:
        """Replace the ordinals of the line."""
        for fields in (self.inputs, self.recorded):
            if fields.get("positions") is not None:
                fields["positions"] = [entry if entry < 0 else change(entry) for entry in fields["positions"]]


class ShownConsumer(NamedTuple):
    """Counters of a consumer, as the end of a read attempt shows them."""

    consumer: int
    usable: int
    permits: int
    unacked: int


def shown_consumers(line: Line) -> list[ShownConsumer]:
    """Return the counters of each consumer that the end of a read attempt shows, in list order; empty if it shows none.

    >>> end = Line(7, 0, "read_attempt_end", None, {}, {"usable": [1, 3, 3, 0, 2, 0, -4, 5]})
    >>> [(shown.consumer, shown.unacked) for shown in shown_consumers(end)]
    [(1, 0), (2, 5)]
    """
    values = line.recorded["usable"] or ()
    return [ShownConsumer(*values[at : at + 4]) for at in range(0, len(values) - 3, 4)]


class Entries:
    """Positions of the stored entries, and their ordinals. Entries are added at the end and dropped at the front.

    Example: the entries 3:0, 3:1, 3:4 have the ordinals 0, 1, 2. When the first two are dropped, 3:4 has ordinal 0.
    """

    def __init__(self, messages: pa.Table | None = None) -> None:
        self._ledger = Growing(np.int64)
        self._entry = Growing(np.int64)
        self._number: dict[tuple[int, int], int] = {}  # counted from the first entry of the log
        self._dropped = 0
        #: The last entry that was dropped; ``None`` = none was.
        self.dropped_to: tuple[int, int] | None = None
        if messages is not None:
            self.add(messages)

    def add(self, messages: pa.Table) -> None:
        """Add the next entries; if a position stands twice, its last row counts."""
        first = self._dropped + len(self)
        ledgers, entries = (ints(messages[name]) for name in ("ledger_id", "entry_id"))
        self._ledger.append(ledgers)
        self._entry.append(entries)
        positions = zip(ledgers.tolist(), entries.tolist(), strict=True)
        self._number.update(zip(positions, itertools.count(first)))

    def drop(self, count: int) -> None:
        """Drop the first ``count`` entries; later ordinals are lowered by it."""
        if not count:
            return
        for position in zip(self.ledger_ids[:count].tolist(), self.entry_ids[:count].tolist(), strict=True):
            self._number.pop(position, None)
            self.dropped_to = position
        self._ledger.drop(count)
        self._entry.drop(count)
        self._dropped += count

    @property
    def ledger_ids(self) -> npt.NDArray[np.int64]:
        """Ledger of each entry."""
        return self._ledger.values

    @property
    def entry_ids(self) -> npt.NDArray[np.int64]:
        """Id of each entry in its ledger."""
        return self._entry.values

    def __len__(self) -> int:
        return len(self._ledger)

    def ordinal(self, ledger_id: int, entry_id: int) -> int:
        """Return the ordinal of a stored position, or -1. Raises ``NotStreamableError`` if it may have been dropped."""
        number = self._number.get((ledger_id, entry_id))
        if number is not None:
            return number - self._dropped
        if self.dropped_to is not None and (ledger_id, entry_id) <= self.dropped_to:
            raise self._dropped_before(ledger_id, entry_id)
        return -1

    def ordinals(self, positions: Iterable[tuple[int, int]]) -> list[int]:
        """Return the ordinal of each position, see ``ordinal``."""
        first, number, wanted = self._dropped, self._number, list(positions)
        try:
            return [number[position] - first for position in wanted]
        except KeyError:  # some are not stored
            return [self.ordinal(*position) for position in wanted]

    def _dropped_before(self, ledger_id: int, entry_id: int) -> NotStreamableError:
        return NotStreamableError(
            f"a line names {ledger_id}:{entry_id}, which lies before the window that is kept"
        )

    def first_from(self, ledger_id: int, entry_id: int) -> int:
        """Return the ordinal of the first stored entry at or after a position; the number of entries if there is none.

        Raises ``NotStreamableError`` if it may have been dropped.
        """
        if self.dropped_to is not None and (ledger_id, entry_id) <= self.dropped_to:
            raise self._dropped_before(ledger_id, entry_id)
        before = (self.ledger_ids < ledger_id) | (
            (self.ledger_ids == ledger_id) & (self.entry_ids < entry_id)
        )
        return int(before.sum())

    def last_up_to(self, ledger_id: int, entry_id: int) -> int:
        """Return the ordinal of the last stored entry up to a position; -1 if it was dropped, or there is none.

        A position in front of the last entry that was dropped gives -2, one that was never stored the number of entries:
        nothing that is kept can be meant. Never stored is what stands behind the last entry of its ledger; of a ledger
        without entries nothing is known, unless it would be the last one. Entry -1 is in front of a ledger's first.
        """
        number = self._number.get((ledger_id, entry_id))
        if number is not None:
            return number - self._dropped
        if entry_id < -1 or (self.dropped_to is not None and (ledger_id, entry_id) < self.dropped_to):
            return -2
        ledgers = self.ledger_ids
        first, last = np.searchsorted(ledgers, ledger_id), np.searchsorted(ledgers, ledger_id, "right")
        at = int(first + np.searchsorted(self.entry_ids[first:last], entry_id, "right")) - 1
        if entry_id >= 0 and at == last - 1 and (first < last or last == len(self)):
            return len(self)
        return at

    def start_of_ledger(self, ordinal: int) -> int:
        """Return the ordinal of the first entry of the ledger of a stored entry; negative if it has been dropped."""
        return ordinal - int(self.entry_ids[ordinal])

    def position(self, ordinal: int) -> str:
        """Return the position of an ordinal, ``"L:E"``."""
        if not 0 <= ordinal < len(self):
            return "unknown"
        return f"{self.ledger_ids[ordinal]}:{self.entry_ids[ordinal]}"


#: Columns of the events that ``lines`` needs.
LINE_COLUMNS: Final = (
    *("seq", "t_us", "kind", "consumer"),
    *sorted({name for fields in (*INPUT_FIELDS.values(), *RECORDED_FIELDS.values()) for name in fields}),
)

#: Fields of lines that have none; nobody adds one.
_NO_FIELDS: Final[dict[str, Any]] = {}


def lines(events: pa.Table, entries: Entries) -> list[Line]:
    """Return events in their order, each split into inputs and recorded decisions."""
    found: list[Line] = []
    columns = {name: events[name] for name in LINE_COLUMNS}
    for batch in pa.table(columns).to_batches(max_chunksize=20_000):
        found += _split(batch, entries)
    return found


def _split(batch: pa.RecordBatch, entries: Entries) -> list[Line]:
    """Split the lines of a batch, one kind after the other: a kind has few of the columns."""
    codes, kinds = encoded(pa.chunked_array([batch.column("kind")]))
    fields: list[tuple[dict[str, Any], dict[str, Any]]] = [(_NO_FIELDS, _NO_FIELDS)] * len(codes)
    words = kinds.to_pylist()
    for code, kind in enumerate(words):
        names_of = INPUT_FIELDS.get(kind, ()), RECORDED_FIELDS.get(kind, ())
        rows = np.flatnonzero(codes == code)
        if not any(names_of) or not len(rows):
            continue
        own = batch.select(list({*names_of[0], *names_of[1]})).take(pa.array(rows))
        both = (_fields(own, names, entries) for names in names_of)
        for row, pair in zip(rows.tolist(), zip(*both, strict=True), strict=True):
            fields[row] = pair
    seqs, times, consumers = (_values(batch.column(name)) for name in ("seq", "t_us", "consumer"))
    return [
        Line(seq, t_us, words[code], consumer, *pair)
        for seq, t_us, code, consumer, pair in zip(
            seqs, times, codes.tolist(), consumers, fields, strict=True
        )
    ]


def _fields(own: pa.RecordBatch, names: tuple[str, ...], entries: Entries) -> list[dict[str, Any]]:
    """Return the fields ``names`` of each line."""
    if not names:
        return [_NO_FIELDS] * own.num_rows
    first, *others = (_column(own, name, entries) for name in names)
    fields = [{names[0]: value} for value in first]
    for name, values in zip(names[1:], others, strict=True):
        for of_line, value in zip(fields, values, strict=True):
            of_line[name] = value
    return fields


def _column(own: pa.RecordBatch, name: str, entries: Entries) -> list[Any]:
    """Return the values of a field; ``positions`` as ordinals, ``usable`` as one list for each line."""
    column = own.column(name)
    if column.null_count == len(column):
        return [None] * len(column)
    if name == "positions":
        return _lists(column, lambda flat: entries.ordinals(_pairs(flat)))
    if name == "usable":
        return _joined(column)
    return _values(column)


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column, for the frequent types much faster than ``to_pylist``; positions as pairs."""
    kind = column.type
    values: list[Any]
    if pa.types.is_integer(kind):
        values = ints(column).tolist()
    elif pa.types.is_boolean(kind):
        values = np.asarray(column.fill_null(False)).tolist()
    elif pa.types.is_string(kind) or pa.types.is_dictionary(kind):
        codes, words = codes_with_null(pa.chunked_array([column]))
        return [words[code] for code in codes.tolist()]
    elif kind == POSITION:
        values = _pairs(column)
    elif pa.types.is_list(kind) and pa.types.is_integer(kind.value_type):
        return _lists(column, _values)
    else:
        values = column.to_pylist()
        return values
    if column.null_count:
        values = [value if ok else None for value, ok in zip(values, valid(column).tolist(), strict=True)]
    return values


def _pairs(column: pa.Array) -> list[tuple[int, int]]:
    """Return positions as (ledger, entry)."""
    ledgers, entries = (ints(pc.struct_field(column, name)).tolist() for name in ("ledger_id", "entry_id"))
    return list(zip(ledgers, entries, strict=True))


def _lists(column: pa.Array, values_of: Callable[[pa.Array], list[Any]]) -> list[Any]:
    """Return the lists of a column, whose items ``values_of`` returns one after the other."""
    items = values_of(column.values)
    bounds = itertools.pairwise(column.offsets.to_numpy().tolist())
    return [
        items[first:last] if ok else None
        for (first, last), ok in zip(bounds, valid(column).tolist(), strict=True)
    ]


def _joined(column: pa.Array) -> list[Any]:
    """Return lists of lists of numbers, each joined to one list."""
    rows = column.values
    numbers, ends = ints(rows.values).tolist(), rows.offsets.to_numpy().tolist()
    bounds = itertools.pairwise([ends[at] for at in column.offsets.to_numpy().tolist()])
    return [
        numbers[first:last] if ok else None
        for (first, last), ok in zip(bounds, valid(column).tolist(), strict=True)
    ]
