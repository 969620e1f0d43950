"""Doubt behind a move of the cursor that the log may have no line of."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pyarrow as pa

from dispatch_core.audit.deliveries.findings import CURSOR_MAY_HAVE_MOVED
from dispatch_core.audit.unlogged_moves import UnloggedMoves
from dispatch_core.tables import ANOMALIES


def _anomalies(*found: tuple[str, str | None, int]) -> pa.Table:
    """Findings, each of a kind, with a reason and the line that proves it."""
    rows: list[dict[str, Any]] = [
        {"kind": kind, "reason": reason, "seqs": [seq], "uncertain": False, "explanation": "it differs"}
        for kind, reason, seq in found
    ]
    # Built as lists: most columns of the table must have a value, and none of them is read here.
    structs = pa.array(rows, pa.struct([pa.field(field.name, field.type) for field in ANOMALIES]))
    return pa.Table.from_arrays(structs.flatten(), names=ANOMALIES.names)


def test_what_follows_from_the_move_is_uncertain() -> None:
    table = _anomalies(
        ("divergence", "dispatch", 5),
        ("redelivered", CURSOR_MAY_HAVE_MOVED, 7),
        ("divergence", "dispatch", 9),
        ("out_of_order", None, 11),
    )
    moves = UnloggedMoves()
    judged = moves.applied(table)
    assert moves.first_seq == 7
    assert judged["uncertain"].to_pylist() == [False, False, True, False]
    assert judged["reason"].to_pylist()[2] == CURSOR_MAY_HAVE_MOVED
    assert judged["explanation"].to_pylist()[2] != "it differs"


def test_what_was_left_out_is_no_first_line_of_a_move() -> None:
    table = _anomalies(("never_delivered", CURSOR_MAY_HAVE_MOVED, 3), ("divergence", "dispatch", 9))
    assert UnloggedMoves().applied(table)["uncertain"].to_pylist() == [False, False]
    assert UnloggedMoves(9).applied(table)["uncertain"].to_pylist() == [False, True]


def test_the_lines_of_other_findings_are_not_made_objects_of_python() -> None:
    """Of a log with one hot key, all of which was requested again, those of all findings took 30 MB."""
    table = _anomalies(*[("redelivered", None, seq) for seq in range(50_000)])
    tracemalloc.start()
    UnloggedMoves().applied(table)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
