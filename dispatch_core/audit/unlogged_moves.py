"""Doubt what follows from a move of the cursor that the log may have no line of.

A finding with the reason ``cursor_may_have_moved`` is a trace of such a move, and so are entries that were left out, however
short they wait (``waits.possible_moves``). Behind it the replay of the rules goes on from a state that may be wrong: it
waits for entries that the cursor passed, or takes as acknowledged what comes again. So differences from the rules and stalls
behind it are uncertain too. What is lost, doubled or out of order has its own proof.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import Mask, marked, replaced
from dispatch_core.audit.catalogue import NO_READ
from dispatch_core.audit.deliveries.findings import CURSOR_MAY_HAVE_MOVED, unlogged_move

_KINDS: Final = ("divergence", "stuck_key", "stuck_consumer", "stuck_subscription")
#: Where a move may lie that left these, ``waits.possible_moves`` says more exactly.
_LEFT_OUT: Final = ("never_delivered", "ack_hole")
_MOVED_BEFORE: Final = "the cursor may have been moved before"


class UnloggedMoves:
    """The first trace of a move in a log: call ``applied`` for its anomalies, batch by batch.

    ``first_seq``: the first line behind it, as far as known.
    """

    def __init__(self, first_seq: int | None = None) -> None:
        self.first_seq = first_seq

    def note(self, seq: int | None) -> None:
        """Note the first line behind a possible move; ``None`` = there is none."""
        if seq is not None:
            self.first_seq = seq if self.first_seq is None else min(seq, self.first_seq)

    def applied(self, anomalies: pa.Table) -> pa.Table:
        """Make the findings uncertain that follow from a move: rows of ``tables.ANOMALIES``."""
        if not anomalies.num_rows:
            return anomalies
        # Lines are looked at of few rows only: as objects of Python those of all take many times their memory.
        traces = marked(anomalies["reason"], CURSOR_MAY_HAVE_MOVED) & ~marked(anomalies["kind"], *_LEFT_OUT)
        for lines in _lines_of(anomalies, traces):
            self.note(min(lines))
        if self.first_seq is None:
            return anomalies
        may_follow = marked(anomalies["kind"], *_KINDS) & ~np.asarray(anomalies["uncertain"], dtype=np.bool_)
        # Of these stalls, too, ``waits.possible_moves`` says more exactly where a move may lie.
        may_follow &= ~marked(anomalies["reason"], NO_READ)
        behind = [lines[-1] >= self.first_seq for lines in _lines_of(anomalies, may_follow)]
        rows = np.flatnonzero(may_follow)[behind].tolist()
        if not rows:
            return anomalies
        reasons, uncertain, texts = (
            anomalies[name].to_pylist() for name in ("reason", "uncertain", "explanation")
        )
        for row in rows:
            uncertain[row], reasons[row] = True, CURSOR_MAY_HAVE_MOVED
            texts[row] = unlogged_move(texts[row], _MOVED_BEFORE)
        return replaced(anomalies, {"uncertain": uncertain, "reason": reasons, "explanation": texts})


def _lines_of(anomalies: pa.Table, rows: Mask) -> list[list[int]]:
    """Return the lines that prove the marked findings."""
    if not rows.any():
        return []
    lines: list[list[int]] = anomalies["seqs"].take(pa.array(np.flatnonzero(rows))).to_pylist()
    return lines
