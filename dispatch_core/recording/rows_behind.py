"""Read the rows of a log behind the place that a replay was saved at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.batches import no_rows
from dispatch_core.arrays.columns import has
from dispatch_core.recording.log_survey import runs_of_incarnations
from dispatch_core.recording.schema import EVENTS, MESSAGES
from dispatch_core.recording.stream import Cut, from_position
from dispatch_core.recording.table_rows import (
    INCARNATION,
    Columns,
    columns_of_messages,
    entries_of,
    in_columns,
    kept,
    opened,
    rows_of_files,
    without_headers,
)

#: Of the many columns of a line most have no value.
_EVENTS_AS_STORED: Final = Columns(EVENTS, as_stored=True)
#: The columns that tell where a line stands in a log.
_PLACE: Final = pa.schema([EVENTS.field(name) for name in (*INCARNATION, "seq")])


def rows_behind(
    event_files: Sequence[str],
    message_files: Sequence[str],
    dispatcher: Mapping[str, str],
    cut: Cut | None,
    loads: Sequence[tuple[str | None, int]],
    until_us: int,
) -> tuple[pa.Table, pa.Table]:
    """Return the lines and the entries of a log behind a place, in those columns of the log format that have a value.

    Files are read from their ends on, as far as that place. Entries published from ``until_us`` on are left out: they come
    with a later interval.

    Args:
        event_files: hold its lines.
        message_files: hold the entries of its topic.
        dispatcher: ``cluster``, ``topic`` and ``subscription``.
        cut: the place; ``None`` = the beginning, and headers come too.
        loads: broker and number of the incarnations up to the place.
        until_us: end of the interval, microseconds.
    """
    topic = {name: dispatcher[name] for name in ("cluster", "topic")}
    of_events, of_messages = _EVENTS_AS_STORED, columns_of_messages(tuple(MESSAGES.names))
    if cut is None:
        every = _joined(entries_of(message_files, of_messages, topic), MESSAGES)
        return _joined(rows_of_files(event_files, of_events, dispatcher), EVENTS), _published_before(
            every, until_us
        )
    events: list[pa.Table] = []
    for table in _rows_backwards(event_files, of_events, dispatcher):
        lines = without_headers(table)
        behind = kept(lines, lines_behind(lines, cut, loads))
        events.append(behind)
        if behind.num_rows < lines.num_rows:
            break
    entries: list[pa.Table] = []
    for path in reversed(message_files):
        for table in _rows_backwards([path], of_messages, topic):
            behind = kept(table, from_position(table, (cut.reached[0], cut.reached[1] + 1)))
            entries.append(behind)
            if behind.num_rows < table.num_rows:
                break
    found = _published_before(_joined(reversed(entries), MESSAGES), until_us)
    return _joined(reversed(events), EVENTS), found.sort_by(
        [("ledger_id", "ascending"), ("entry_id", "ascending")]
    )


def _published_before(messages: pa.Table, until_us: int) -> pa.Table:
    if not has(messages, "publish_time_ms"):
        return messages
    until_ms = -(-until_us // 1000)
    latest_ms = pc.max(messages["publish_time_ms"]).as_py()
    if latest_ms is None or latest_ms < until_ms:
        return messages
    return messages.filter(pc.fill_null(pc.less(messages["publish_time_ms"], until_ms), True))


def _rows_backwards(
    paths: Sequence[str], wanted: Columns, dispatcher: Mapping[str, str]
) -> Iterator[pa.Table]:
    """The tables of ``rows_of_files``, one for each row group, the last one first."""
    for path in reversed(paths):
        with opened(path) as file:
            for group in reversed(file.groups(dispatcher)):
                if not file.holds_only(group, dispatcher):
                    table = file.shared_rows(group, dispatcher, wanted.of)
                else:
                    parts = [wanted.of(part) for part in file.rows(group, wanted.schema.names)]
                    table = pa.concat_tables(parts)
                if table.num_rows:
                    yield table


def lines_behind(
    events: pa.Table, cut: Cut, loads: Sequence[tuple[str | None, int]]
) -> npt.NDArray[np.bool_]:
    """Mask the lines of a log behind a place; ``loads``: see ``rows_behind``."""
    before = frozenset(loads[: cut.log])
    of_cut = loads[cut.log] if cut.log < len(loads) else None
    behind = np.ones(events.num_rows, np.bool_)
    first = 0
    for run in runs_of_incarnations(in_columns(events, _PLACE)):
        key = run["broker"][0].as_py(), run["incarnation"][0].as_py() or 0
        rows = slice(first, first + run.num_rows)
        if key in before:
            behind[rows] = False
        elif key == of_cut:
            behind[rows] = run["seq"].to_numpy() > cut.last_seq
        first = rows.stop
    return behind


def _joined(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Join tables of rows in the columns that have a value, their texts as they are."""
    parts = [table for table in tables if table.num_rows]
    if not parts:
        return no_rows(schema)
    wanted = pa.schema(field for field in schema if any(_has_values(part, field.name) for part in parts))
    return pa.concat_tables([in_columns(part, wanted) for part in parts])


def _has_values(rows: pa.Table, name: str) -> bool:
    return has(rows, name) and rows[name].null_count < rows.num_rows
