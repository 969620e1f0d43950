"""Undo the lines that a recorder had queued when it asked the broker for a checkpoint's state.

Such lines come after the checkpoint in the log, but the state already contains them. For example, an entry is pending in the
state and its ``sent`` line comes next: read literally, the log would send the entry twice. So the state is changed back to
what it was at the checkpoint's line, as far as those lines show. Findings that rest on the rest of the state are uncertain
(``audit.deliveries.checkpoint_state``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.checkpoint import Checkpoint, Position

_COLUMNS: Final = ("kind", "consumer", "positions", "ack_type", "ack_sets")


def queued(events: pa.Table, state_t_us: int) -> pa.Table:
    """The lines after the first one that are not later than the state, up to the first gap among them."""
    behind = events.slice(1)
    ends = pc.or_(pc.greater(behind["t_us"], state_t_us), pc.equal(behind["kind"].cast(pa.string()), "gap"))
    first = pc.index(ends, True).as_py()
    return behind if first < 0 else behind.slice(0, first)


def as_of_its_line(checkpoint: Checkpoint, lines: pa.Table) -> Checkpoint:
    """The state before ``lines`` (``queued``), from the state after them.

    An entry that they send is not yet pending on its consumer. An entry that they acknowledge and that is acknowledged in
    the state is not acknowledged yet: unless they send it first, it is pending on the consumer that acknowledges it.
    Acknowledgements of parts of entries, and cumulative ones, are left as they are.

    >>> from dispatch_core.recording.checkpoint import Connected
    >>> state = Checkpoint((Connected(1),), (5, 3), pending={1: ((5, 4), (5, 5))}, state_t_us=9)
    >>> line = {"kind": "sent", "consumer": 1, "positions": [{"ledger_id": 5, "entry_id": 5}]}
    >>> as_of_its_line(state, pa.Table.from_pylist([line])).pending
    {1: ((5, 4),)}
    """
    pending = {number: set(positions) for number, positions in checkpoint.pending.items()}
    holes = set(checkpoint.ack_holes)
    sent: set[Position] = set()
    done: set[Position] = set()
    for line in lines.select([name for name in _COLUMNS if name in lines.column_names]).to_pylist():
        positions = [(position["ledger_id"], position["entry_id"]) for position in line["positions"] or ()]
        if line["kind"] == "sent":
            sent.update(positions)
            pending.get(line["consumer"], set()).difference_update(positions)
        elif line["kind"] == "ack" and _whole(line):
            for position in positions:
                if position in done or not (position in holes or checkpoint.is_below(position)):
                    continue
                if position not in sent:
                    if line["consumer"] not in pending:
                        continue  # its pending entries are not known
                    pending[line["consumer"]].add(position)
                done.add(position)
    return replace(
        checkpoint,
        ack_holes=tuple(sorted(holes - done)),
        not_yet_acked=tuple(sorted(filter(checkpoint.is_below, done))),
        pending={number: tuple(sorted(positions)) for number, positions in pending.items()},
    )


def _whole(line: dict[str, Any]) -> bool:
    return line.get("ack_type") != "Cumulative" and not any(line.get("ack_sets") or ())
