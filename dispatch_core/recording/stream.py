"""One dispatcher's log out of Parquet files, piece by piece, for a fold whose memory must not grow with the log.

The files hold many dispatchers, each as one run of rows sorted by position (messages) or ``seq`` (events); a row group
whose statistics leave out the dispatcher is not read. A *piece* is a run of events with all entries up to the last one that
they name. Rows are handed on as they stand: whether they are in order is for whoever folds them to see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dispatch_core.recording.schema import EVENTS, KINDS, MESSAGES

#: Events of one piece, about.
PIECE_ROWS: Final = 262_144

_BATCH_ROWS: Final = 131_072
_ALWAYS: Final = frozenset({"broker", "incarnation", "seq", "t_us", "kind", "header_json"})
_USER_LEVEL: Final = _ALWAYS | {
    name for kind in KINDS.values() if kind.level != "T" for name in (*kind.required, *kind.optional)
}
#: Columns that a log of level E can fill; a trace has more.
USER_LEVEL_EVENTS: Final = pa.schema([field for field in EVENTS if field.name in _USER_LEVEL])
#: Kinds that only a dispatcher trace holds.
TRACE_KINDS: Final = pa.array([kind.name for kind in KINDS.values() if kind.level == "T"])


@dataclass(frozen=True, slots=True)
class Piece:
    """The next events (``USER_LEVEL_EVENTS``), and the next entries (``MESSAGES``), up to the last that they name."""

    messages: pa.Table
    events: pa.Table


def pieces(
    event_files: Sequence[str], message_files: Sequence[str], dispatcher: Mapping[str, str]
) -> Iterator[Piece]:
    """The log of ``dispatcher`` (cluster, topic, subscription), in the order of the files; then the entries nobody names.

    Raises ``OSError`` and pyarrow's errors for files that cannot be read.
    """
    topic = {name: dispatcher[name] for name in ("cluster", "topic")}
    messages = _Messages(_rows(message_files, MESSAGES, topic))
    waiting: list[pa.Table] = []
    count = 0
    for events in _rows(event_files, USER_LEVEL_EVENTS, dispatcher):
        waiting.append(events)
        count += events.num_rows
        if count >= PIECE_ROWS:
            together = pa.concat_tables(waiting)
            yield Piece(messages.up_to(_highest(together)), together)
            waiting, count = [], 0
    last = pa.concat_tables([USER_LEVEL_EVENTS.empty_table(), *waiting])
    yield Piece(messages.up_to(_highest(last)), last)
    for rest in messages.rest():
        yield Piece(rest, USER_LEVEL_EVENTS.empty_table())


def is_traced(events: pa.Table) -> bool:
    """Whether there is a line among ``events`` that only a dispatcher trace holds."""
    return bool(pc.any(pc.is_in(events["kind"], value_set=TRACE_KINDS)).as_py())


class _Messages:
    """Entries of a topic, taken as far as they are needed."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._reached = (-1, -1)  # ledger and entry of the last one handed out

    def up_to(self, position: tuple[int, int]) -> pa.Table:
        """The next entries, up to ``position`` and as far beyond as a batch goes."""
        taken = [MESSAGES.empty_table()]
        while self._reached < position:
            table = next(self._tables, None)
            if table is None:
                break
            taken.append(table)
            if table.num_rows:
                self._reached = (table["ledger_id"][-1].as_py(), table["entry_id"][-1].as_py())
        return pa.concat_tables(taken)

    def rest(self) -> Iterator[pa.Table]:
        """All that are left."""
        return self._tables


def _highest(events: pa.Table) -> tuple[int, int]:
    """The highest position that the events name; (-1, -1) if they name none."""
    flat = pc.list_flatten(events["positions"])
    if not len(flat):
        return -1, -1
    ledgers = np.asarray(pc.struct_field(flat, "ledger_id"))
    top = int(ledgers.max())
    return top, int(np.asarray(pc.struct_field(flat, "entry_id"))[ledgers == top].max())


def _rows(paths: Sequence[str], wanted: pa.Schema, dispatcher: Mapping[str, str]) -> Iterator[pa.Table]:
    """Rows of one dispatcher in the columns of ``wanted``; columns that a file lacks are null."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            there = set(file.schema_arrow.names)
            columns = [name for name in wanted.names if name in there]
            columns += [name for name in dispatcher if name not in columns]
            for group in range(file.num_row_groups):
                holds, only = _holds(file.metadata.row_group(group), dispatcher)
                if not holds:
                    continue
                for batch in file.iter_batches(
                    _BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False
                ):
                    table = pa.Table.from_batches([batch])
                    if not only:
                        table = table.filter(_is(table, dispatcher))
                    if table.num_rows:
                        yield _as(table, wanted)


def _holds(group: pq.RowGroupMetaData, dispatcher: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether a row group may hold rows of the dispatcher, and whether it can hold no others, by its statistics."""
    only = 0
    for at in range(group.num_columns):
        column = group.column(at)
        value = dispatcher.get(column.path_in_schema)
        statistics = column.statistics if value is not None else None
        if value is None or statistics is None or not statistics.has_min_max:
            continue
        if not statistics.min <= value <= statistics.max:
            return False, False
        only += statistics.min == statistics.max and statistics.null_count == 0
    return True, only == len(dispatcher)


def _is(table: pa.Table, dispatcher: Mapping[str, str]) -> pa.ChunkedArray:
    mask = pc.equal(table[next(iter(dispatcher))], next(iter(dispatcher.values())))
    for name, value in dispatcher.items():
        mask = pc.and_(mask, pc.equal(table[name], value))
    return mask


def _as(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The table in exactly the columns and types of ``wanted``."""
    arrays = []
    for field in wanted:
        if field.name in table.column_names:
            column = table[field.name]
            arrays.append(column if column.type == field.type else column.cast(field.type))
        else:
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
    return pa.Table.from_arrays(arrays, schema=wanted)
