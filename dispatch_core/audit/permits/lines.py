"""Read the lines of a trace that move permits or show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints, rows_at
from dispatch_core.arrays.line_kinds import of_kinds, rows_of_kind
from dispatch_core.recording.checkpoint import Position

#: Lines that the dispatcher writes while it holds its lock, in which it sends, reads its permits and lowers its total.
UNDER_THE_LOCK: Final = (
    *("read_attempt", "read_attempt_end", "round_begin", "round_end", "sent", "send_returned"),
    *("read_issued", "replay_read_issued", "replay_already_deleted", "usable_seen", "draining_blocked"),
)
#: Kinds with fields that the ledger reads → these fields.
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "flow": ("permits",),
    "flow_counted": ("permits_after", "blocked_after"),
    "flow_applied": ("permits",),
    "sent": ("positions", "batch_sizes", "permits_before"),
    "send_returned": ("permits_after",),
    "read_attempt_end": ("total_permits", "usable"),
    "ack": ("positions", "ack_sets", "ack_type"),
    "consumer_added": (),
    "consumer_removed": (),
    "consumer_removing": (),
    "pending_ack_refused": (),
    "cursor_op": ("op",),
    "round_end": (),
}
KINDS: Final = tuple(_FIELDS)
#: Kinds by which a trace is known. Each of its ``sent`` lines shows the permits of a consumer.
OF_A_TRACE: Final = ("flow_counted", "flow_applied", "send_returned", "read_attempt_end")


@dataclass(frozen=True, slots=True)
class PermitLine:
    """A line of ``KINDS``.

    Attributes:
        seq: its number.
        t_us: its time, microseconds; 0 = none.
        kind: its kind.
        consumer: the connection that it names; ``None`` = none.
        locked_seq: the last line before it that the dispatcher wrote under its lock; 0 = there is none.
        hole: lines are missing in front of it.
        fields: the fields of its kind, positions as pairs of ledger and entry.
    """

    seq: int
    t_us: int
    kind: str
    consumer: int | None
    locked_seq: int
    hole: bool
    fields: Sequence[Any]


def read_lines(events: pa.Table, *, last_seq: int, locked_seq: int, whole_acks: bool) -> Iterator[PermitLine]:
    """Yield the lines of a batch that concern permits, in order.

    Args:
        events: the batch.
        last_seq: the line before it; -1 = it is the first.
        locked_seq: the last line before it that the dispatcher wrote under its lock.
        whole_acks: also acknowledgements of whole entries, where the batch has none of a part of an entry. With one of
            these all come.
    """
    seqs = ints(events["seq"])
    locked = np.where(of_kinds(events, *UNDER_THE_LOCK), seqs, 0)
    before = np.maximum.accumulate(np.concatenate([[locked_seq], locked[:-1]]))
    holes = np.diff(seqs, prepend=last_seq if last_seq >= 0 else int(seqs[0]) - 1) > 1
    holes |= of_kinds(events, "gap")
    wanted = of_kinds(events, *KINDS) | holes
    if not whole_acks and events["ack_sets"].null_count == events.num_rows:
        wanted &= ~of_kinds(events, "ack") | holes
    repeated = seqs <= np.maximum.accumulate(np.concatenate([[last_seq], seqs[:-1]]))
    wanted &= ~repeated
    rows = np.flatnonzero(wanted)
    table = rows_at(events, rows)
    kinds = table["kind"].to_pylist()
    fields = _fields_by_row(table, kinds)
    columns = (seqs[rows].tolist(), ints(table["t_us"]).tolist(), kinds, table["consumer"].to_pylist())
    rest = (before[rows].tolist(), holes[rows].tolist(), fields)
    for line in zip(*columns, *rest, strict=True):
        yield PermitLine(*line)


def last_locked(events: pa.Table, before: int) -> int:
    """Return the last line of a batch that the dispatcher wrote under its lock; ``before``: that of the lines before it."""
    rows = rows_of_kind(events, *UNDER_THE_LOCK)
    return int(events["seq"][int(rows[-1])].as_py()) if len(rows) else before


def _fields_by_row(table: pa.Table, kinds: Sequence[str]) -> list[Sequence[Any]]:
    """Return the fields of each line, read kind by kind: a kind has few of the columns."""
    found: list[Sequence[Any]] = [()] * len(kinds)
    by_kind: dict[str, list[int]] = {}
    for row, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(row)
    for kind, rows in by_kind.items():
        names = _FIELDS.get(kind, ())
        if not names:
            continue
        own = table.select(names).take(pa.array(rows))
        values = (_positions(own[name]) if name == "positions" else own[name].to_pylist() for name in names)
        for row, line in zip(rows, zip(*values, strict=True), strict=True):
            found[row] = line
    return found


def _positions(lists: pa.ChunkedArray) -> list[list[Position]]:
    lengths, flat = ints(pc.list_value_length(lists)), pc.list_flatten(lists)
    places = list(
        zip(
            ints(pc.struct_field(flat, "ledger_id")).tolist(),
            ints(pc.struct_field(flat, "entry_id")).tolist(),
            strict=True,
        )
    )
    ends = np.cumsum(lengths).tolist()
    return [places[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
