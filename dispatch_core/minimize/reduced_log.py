"""Leave entries and lines out of a log, so that what is left is a log again.

A line that names entries keeps those that are left, with what it says of each (``batch_sizes``, ``ack_sets``, ``hashes``);
if none is left, the line is left out. A cumulative acknowledgement of an entry that is left out is one of the last entry
before it that is left. The permits of a delivery that is left out are left out of the last ``flow`` line before it, so
that the consumer has as many as before behind it. ``seq`` is numbered anew from 1, because a hole in it would be a
finding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import with_column
from dispatch_core.arrays.positions import locate
from dispatch_core.recording.log import DispatcherLog

Rows = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

#: Columns that say something of each position of their line.
_OF_EACH_POSITION: Final = ("batch_sizes", "ack_sets", "hashes")
_NOWHERE: Final = -1
_FLOW: Final = 1
_SENT: Final = 2
_ROLES: Final = {"flow": _FLOW, "sent": _SENT}


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a log that name entries, flat: one element for each position.

    ``line``: row of the event. ``entry``: row of the message, -1 = the message log does not hold it.
    """

    line: Ints
    entry: Ints


class ReducibleLog:
    """A log of which rows can be left out."""

    def __init__(self, log: DispatcherLog) -> None:
        events, messages = log.events.combine_chunks(), log.messages.combine_chunks()
        self.log = replace(log, events=events, messages=messages, repeats=())
        self.lines = events.num_rows
        self.entries = messages.num_rows
        self._lists = {name: _flat(events[name]) for name in ("positions", *_OF_EACH_POSITION)}
        line, values = self._lists["positions"]
        fields = (
            np.asarray(pc.struct_field(values, name), np.int64) if len(values) else np.empty(0, np.int64)
            for name in ("ledger_id", "entry_id")
        )
        ledgers, numbers = (np.asarray(messages[name], np.int64) for name in ("ledger_id", "entry_id"))
        self.named = Lines(line, locate(ledgers, numbers, *fields).astype(np.int64))
        counts = np.bincount(line, minlength=self.lines)
        self._names_entries = counts > 0
        #: Messages of each position: those of its entry.
        self._sizes = np.append(np.asarray(messages["num_messages"], np.int64).clip(1), 1)[self.named.entry]
        self._starts = np.cumsum(counts) - counts
        self._counts = counts
        kinds = events["kind"].to_pylist()
        self._role = np.array([_ROLES.get(kind, 0) for kind in kinds], np.int64)
        self._granted = np.asarray(events["permits"].fill_null(0), np.int64)
        self._no_permits: Rows = ~np.asarray(pc.is_valid(events["permits"]), bool)
        self._consumer = np.asarray(events["consumer"].fill_null(-1), np.int64)
        cumulative = pc.equal(events["ack_type"], "Cumulative").fill_null(False)
        self._cumulative: Rows = np.asarray(cumulative, bool)

    def keep(self, lines: Rows, entries: Rows) -> tuple[DispatcherLog, Ints]:
        """Return the log of some of the lines and entries, and the row here of each of its lines."""
        if lines.all() and entries.all():
            return self._numbered(self.log.events, np.arange(self.lines), self.log.messages)
        position_stays = np.concatenate([entries, [True]])[self.named.entry]
        moved = self._moved_acks(entries)
        position_stays |= moved != _NOWHERE
        left = np.bincount(self.named.line[position_stays], minlength=self.lines)
        stays = lines & ((left > 0) | ~self._names_entries)
        permits = self._permits(lines, position_stays)
        stays &= (self._role != _FLOW) | (permits > 0)
        rows = np.flatnonzero(stays)
        events = self.log.events.take(pa.array(rows))
        events = with_column(events, "permits", pa.array(permits[rows], mask=self._no_permits[rows]))
        if not position_stays.all():
            for name in self._lists:
                events = with_column(events, name, self._list_of(name, position_stays, moved, rows))
        return self._numbered(events, rows, self.log.messages.filter(pa.array(entries)))

    def keeps_first_deliveries(self, lines: Rows, entries: Rows) -> bool:
        """True if no entry of which a delivery is left loses its first one: it would be sent out of its turn."""
        sent = (self._role[self.named.line] == _SENT) & (self.named.entry != _NOWHERE)
        line, entry = self.named.line[sent], self.named.entry[sent]
        entry_of_first, at = np.unique(entry, return_index=True)
        sent_again = np.zeros(self.entries, bool)
        sent_again[entry[lines[line]]] = True
        return not (entries & sent_again)[entry_of_first[~lines[line[at]]]].any()

    def _numbered(self, events: pa.Table, rows: Ints, messages: pa.Table) -> tuple[DispatcherLog, Ints]:
        events = with_column(events, "seq", pa.array(np.arange(1, len(rows) + 1), pa.int64()))
        return replace(self.log, events=events, messages=messages), rows

    def _permits(self, lines: Rows, position_stays: Rows) -> Ints:
        """Return the permits of each ``flow`` line without those of deliveries that are left out."""
        permits = self._granted.copy()
        left_out = np.bincount(
            self.named.line[~position_stays], weights=self._sizes[~position_stays], minlength=self.lines
        )
        flows: dict[int, list[int]] = {}
        for row in np.flatnonzero((self._role == _FLOW) | ((self._role == _SENT) & (left_out > 0))).tolist():
            of_consumer = flows.setdefault(int(self._consumer[row]), [])
            if self._role[row] == _FLOW:
                if lines[row]:
                    of_consumer.append(row)
                continue
            taken = int(left_out[row])
            while taken and of_consumer:
                part = min(taken, int(permits[of_consumer[-1]]))
                permits[of_consumer[-1]] -= part
                taken -= part
                if permits[of_consumer[-1]] == 0:
                    of_consumer.pop()
        return permits

    def _moved_acks(self, entries: Rows) -> Ints:
        """Return for each position the entry that a cumulative acknowledgement of it becomes one of; -1 = none."""
        moved = np.full(len(self.named.line), _NOWHERE)
        at = np.flatnonzero(self._cumulative[self.named.line] & (self.named.entry != _NOWHERE))
        at = at[~entries[self.named.entry[at]]]
        if len(at):
            last = np.maximum.accumulate(np.where(entries, np.arange(self.entries), _NOWHERE))
            moved[at] = last[self.named.entry[at]]
        return moved

    def _list_of(self, name: str, position_stays: Rows, moved: Ints, rows: Ints) -> pa.Array:
        """Return a column of lists for some lines, each without what it says of positions that are left out."""
        line, values = self._lists[name]
        column = self.log.events[name]
        counts = np.bincount(line, minlength=self.lines)
        if name == "positions":
            stays = position_stays
            values = self._with_moved(values, moved)
        else:
            within = np.arange(len(line)) - (np.cumsum(counts) - counts)[line]
            aligned = (counts == self._counts)[line]
            stays = np.ones(len(line), bool)
            stays[aligned] = position_stays[(self._starts[line] + within)[aligned]]
            if name == "ack_sets":
                values = self._without_moved_parts(values, line, within, moved)
        chosen = np.zeros(self.lines, bool)
        chosen[rows] = True
        stays = stays & chosen[line]
        lengths = np.bincount(line[stays], minlength=self.lines)[rows]
        nulls = ~np.asarray(pc.is_valid(column), bool)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()),
            values.filter(pa.array(stays)),
            type=column.type,
            mask=pa.array(nulls),
        )

    def _with_moved(self, values: pa.Array, moved: Ints) -> pa.Array:
        at = np.flatnonzero(moved != _NOWHERE)
        if not len(at):
            return values
        parts = []
        for name in ("ledger_id", "entry_id"):
            part = np.array(pc.struct_field(values, name), np.int64)
            part[at] = np.asarray(self.log.messages[name], np.int64)[moved[at]]
            parts.append(pa.array(part, pa.int64()))
        return pa.StructArray.from_arrays(parts, fields=list(values.type))

    def _without_moved_parts(self, values: pa.Array, line: Ints, within: Ints, moved: Ints) -> pa.Array:
        """Acknowledge the whole entry that an acknowledgement of a part of another entry becomes one of."""
        of_part = {
            (int(row), int(at)): number for number, (row, at) in enumerate(zip(line, within, strict=True))
        }
        at = np.flatnonzero(moved != _NOWHERE)
        parts = [
            of_part.get((int(self.named.line[i]), int(i - self._starts[self.named.line[i]]))) for i in at
        ]
        if not any(part is not None for part in parts):
            return values
        whole = values.to_pylist()
        for part in parts:
            if part is not None:
                whole[part] = []
        return pa.array(whole, values.type)


def _flat(column: pa.ChunkedArray) -> tuple[Ints, pa.Array]:
    """Return the line of each element of a column of lists, and the elements."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    lengths = np.asarray(pc.list_value_length(array).fill_null(0), np.int64)
    return np.repeat(np.arange(len(array)), lengths), array.flatten()
