"""Doubt what follows from a move of the cursor that the log may have no line of.

A finding with the reason ``cursor_may_have_moved`` is a trace of such a move, and so are entries that were left out, however
short they wait (``waits.possible_moves``). Behind it the replay of the rules goes on from a state that may be wrong: it
waits for entries that the cursor passed, or takes as acknowledged what comes again. So differences from the rules and stalls
behind it are uncertain too. What is lost, doubled or out of order has its own proof.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from dispatch_core.arrays.columns import replaced
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
        kinds, reasons, seqs, uncertain = (
            anomalies[name].to_pylist() for name in ("kind", "reason", "seqs", "uncertain")
        )
        for kind, reason, lines in zip(kinds, reasons, seqs, strict=True):
            if reason == CURSOR_MAY_HAVE_MOVED and kind not in _LEFT_OUT:
                self.note(min(lines))
        if self.first_seq is None:
            return anomalies
        rows = [
            row
            for row, kind in enumerate(kinds)
            if kind in _KINDS and not uncertain[row] and seqs[row][-1] >= self.first_seq
        ]
        if not rows:
            return anomalies
        texts = anomalies["explanation"].to_pylist()
        for row in rows:
            uncertain[row], reasons[row] = True, CURSOR_MAY_HAVE_MOVED
            texts[row] = unlogged_move(texts[row], _MOVED_BEFORE)
        return replaced(anomalies, {"uncertain": uncertain, "reason": reasons, "explanation": texts})
