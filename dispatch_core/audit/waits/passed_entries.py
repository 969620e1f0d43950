"""Find the entries that a move of the cursor passed: stored, never sent, and settled by a ``cursor_moved`` line.

They are no loss: one finding ``skipped`` for each move counts them by what moved the cursor. A move that passed only entries
which had been sent and were not acknowledged is listed too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.columns import Ints
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.window import LogWindow
from dispatch_core.audit.sentences.lists import counted
from dispatch_core.audit.waits.tracker import MOST_POSITIONS
from dispatch_core.times import clock

#: What moved the cursor, in sentences.
MOVED_BY: Final[Mapping[str, str]] = {
    "seek": "a client's seek moved the cursor",
    "reset_cursor": "an administrator reset the cursor",
    "skip": "an administrator skipped entries",
    "clear_backlog": "an administrator cleared the backlog",
    "expiry": "entries expired",
    "unknown": "the cursor was moved",
}


def passed_unsent(window: LogWindow, scan: Scan) -> npt.NDArray[np.bool_]:
    """Mask the entries of the window that a move passed before they were ever sent."""
    if not window.moved_by:
        return np.zeros(len(scan.times_sent), np.bool_)
    by_move = np.isin(scan.acknowledged_by, np.array([*window.moved_by], np.int32))
    passed: npt.NDArray[np.bool_] = (scan.times_sent == 0) & by_move & window.stored
    return passed


@dataclass(slots=True)
class _Move:
    seq: int
    t_us: int
    by: str
    ledger: Ints  # of the entries that were never sent
    entry: Ints
    pending: int  # number of those that were sent and not acknowledged


class PassedEntries:
    """Collect what each move passed: call ``look`` after each batch, then ``findings``."""

    def __init__(self) -> None:
        self._moves: dict[int, _Move] = {}  # by line
        self._begin: tuple[int, int] | None = None  # the lowest position that was sent

    def look(self, window: LogWindow, scan: Scan) -> None:
        """Take the state after a batch."""
        sent = np.flatnonzero(scan.times_sent)
        if len(sent):
            first = int(window.ledger[sent[0]]), int(window.entry[sent[0]])
            self._begin = first if self._begin is None else min(self._begin, first)
        if not window.moved_by:
            return
        passed = passed_unsent(window, scan)
        ops = scan.acknowledged_by
        low = (int(window.ledger[0]), int(window.entry[0])) if len(window) else (0, 0)
        for op, by in window.moved_by.items():
            seq = int(window.op_seq[op])
            if not window.is_of_last_log(op):
                continue
            members = np.flatnonzero(passed & (ops == op))
            ledger, entry = window.ledger[members].copy(), window.entry[members].copy()
            before = self._moves.get(seq)
            if before is not None:  # what has left the window stays as it was
                gone = (before.ledger < low[0]) | ((before.ledger == low[0]) & (before.entry < low[1]))
                ledger = np.concatenate([before.ledger[gone], ledger])
                entry = np.concatenate([before.entry[gone], entry])
            pending = int(np.count_nonzero((scan.times_sent > 0) & (ops == op)))
            pending = max(pending, 0 if before is None else before.pending)
            self._moves[seq] = _Move(seq, int(window.op_t_us[op]), by, ledger, entry, pending)

    def findings(self) -> list[Finding]:
        """Return one finding for each move that passed entries."""
        return [self._finding(move) for move in self._moves.values() if len(move.ledger) or move.pending]

    def _finding(self, move: _Move) -> Finding:
        count = len(move.ledger)
        positions = [
            f"{ledger}:{entry}"
            for ledger, entry in zip(
                move.ledger[:MOST_POSITIONS].tolist(), move.entry[:MOST_POSITIONS].tolist(), strict=True
            )
        ]
        parts = []
        if count:
            last = f"{move.ledger[-1]}:{move.entry[-1]}"
            which = positions[0] if count == 1 else f"from {positions[0]} to {last}"
            verb = "was" if count == 1 else "were"
            parts.append(f"{counted(count, 'entry', 'entries')} {which} {verb} stored and never sent")
        if move.pending:
            verb = "was" if move.pending == 1 else "were"
            parts.append(f"{counted(move.pending, 'entry', 'entries')} {verb} sent and not acknowledged")
        unsent = count
        if self._begin is not None:  # what lies before the first delivery is not counted as unsent
            ledger, entry = self._begin
            unsent = int(
                np.count_nonzero((move.ledger > ledger) | ((move.ledger == ledger) & (move.entry > entry)))
            )
        moved = MOVED_BY.get(move.by, MOVED_BY["unknown"])
        return Finding.without_key(
            "skipped",
            positions,
            [],
            [move.seq],
            move.t_us,
            f"{moved} at {clock(move.t_us)}: of what it passed, {' and '.join(parts)}",
            cause=move.by,
            unsent=unsent,
        )
