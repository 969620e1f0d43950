"""Lines of several loads, joined for the audit of the last one."""

import pyarrow as pa

from dispatch_core.audit.deliveries.operations import Lines
from dispatch_core.recording.schema import EVENTS

_IDENTITY = {"cluster": "c", "topic": "t", "subscription": "s", "incarnation": 1}
_SENT = {"kind": "sent", "consumer": 1, "positions": [{"ledger_id": 5, "entry_id": 0}]}
_MOVED = {"kind": "cursor_moved", "by": "skip", "moved_to": {"ledger_id": 5, "entry_id": 7}}


def lines_of(*rows: dict) -> Lines:
    """The operations of a load with these lines."""
    numbered = [_IDENTITY | row | {"seq": seq, "t_us": seq} for seq, row in enumerate(rows, start=1)]
    return Lines.of(pa.Table.from_pylist(numbered, schema=EVENTS), flows=False)


def test_moves_of_the_cursor_keep_their_operation() -> None:
    first, second = lines_of(_SENT, _MOVED), lines_of(_MOVED, _SENT)
    assert (first.moved_to, second.moved_to) == ({1: (5, 7)}, {0: (5, 7)})
    joined = Lines.joined([first, Lines.reload(), second])
    assert joined.moved_to == {1: (5, 7), 3: (5, 7)}
    assert joined.by == {1: "skip", 3: "skip"}
    assert len(joined.code) == 5
