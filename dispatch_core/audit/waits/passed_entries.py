"""Find the entries that a move of the cursor passed: stored, never sent, and settled by a ``cursor_moved`` line.

They are no loss: one finding ``skipped`` for each move counts them by what moved the cursor. A move that passed only entries
which had been sent and were not acknowledged is listed too.

An entry that had been overtaken by then was lost before the move. Example: 5:12 is stored and never sent, 5:13 and what
follows is sent, and an administrator clears the backlog. Such an entry is not counted here, but ``never_delivered``
(``Overtaken``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.columns import Ints, Mask
from dispatch_core.arrays.positions import locate
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.deliveries.layout import ENTRY, OPERATION
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.window import LogWindow
from dispatch_core.audit.sentences.lists import counted
from dispatch_core.audit.waits.tracker import GRACE_US, MOST_POSITIONS
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


#: No entry behind was sent.
NEVER_US: Final = np.iinfo(np.int64).max


class Overtaken(Enum):
    """The entries behind an entry of which one was sent before it, where it must have been passed over."""

    NEVER = "never"  # a rule may have held it: what was sent shows nothing
    BY_ANY = "any"
    BY_ITS_KEY = "key"  # rules may hold single keys


def passed_unsent(
    window: LogWindow, scan: Scan, overtaken: Overtaken = Overtaken.NEVER
) -> npt.NDArray[np.bool_]:
    """Mask the entries of the window that a move passed before they were ever sent, but for those passed over before."""
    if not window.moved_by:
        return np.zeros(len(scan.times_sent), np.bool_)
    by_move = np.isin(scan.acknowledged_by, np.array([*window.moved_by], np.int32))
    passed: npt.NDArray[np.bool_] = (scan.times_sent == 0) & by_move & window.stored
    if overtaken is not Overtaken.NEVER and passed.any():
        passed &= ~_overtaken_before(window, scan, passed, by_key=overtaken is Overtaken.BY_ITS_KEY)
    return passed


def _overtaken_before(
    window: LogWindow, scan: Scan, passed: npt.NDArray[np.bool_], *, by_key: bool
) -> npt.NDArray[np.bool_]:
    """Mask those of the ``passed`` entries that had been overtaken for longer than ``GRACE_US`` when they were passed.

    What was sent before the move before does not count: that may have moved the cursor back.
    """
    published, known = window.publish_time_ms
    owed_us = np.maximum(np.where(known, 1000 * published, 0), window.due_us)
    found = np.zeros_like(passed)
    moves = sorted(window.moved_by)
    for before, move in zip([0, *moves], moves, strict=False):
        members = np.flatnonzero(passed & (scan.acknowledged_by == move))
        latest_us = int(window.op_t_us[move]) - GRACE_US
        sent_us = first_sent_behind(window, scan, before)[members]
        members = members[np.maximum(sent_us, owed_us[members]) < latest_us]
        if by_key and len(members):
            sent_us = _first_of_key_behind(window, scan, members, before)
            members = members[np.maximum(sent_us, owed_us[members]) < latest_us]
        found[members] = True
    return found


def _first_of_key_behind(
    window: LogWindow, scan: Scan, entries: npt.NDArray[np.intp], from_op: int
) -> npt.NDArray[np.int64]:
    """Return for each of ``entries`` when one of its key behind it was sent first, microseconds; ``NEVER_US`` = none was."""
    deliveries = scan.deliveries[scan.deliveries[:, OPERATION] >= from_op]
    keys = window.entry_key[deliveries[:, ENTRY]].astype(np.int64)
    deliveries, keys = deliveries[keys >= 0], keys[keys >= 0]
    size = len(window)
    places = keys * size + deliveries[:, ENTRY]
    order = np.argsort(places, kind="stable")
    places, keys = places[order], keys[order]
    times, ranks = np.unique(window.op_t_us[deliveries[order, OPERATION]], return_inverse=True)
    # From the last place of a key to its first: keys with higher numbers have higher ranks, and lower no rank.
    least = np.minimum.accumulate((keys * len(times) + ranks)[::-1])[::-1]
    of_entries = window.entry_key[entries].astype(np.int64)
    at = np.searchsorted(places, of_entries * size + entries, side="right")
    within = (of_entries >= 0) & (at < len(places))
    within[within] = keys[at[within]] == of_entries[within]
    sent_us = np.full(len(entries), NEVER_US, np.int64)
    sent_us[within] = times[least[at[within]] - of_entries[within] * len(times)]
    return sent_us


def passed_us(window: LogWindow, scan: Scan, position: str, from_us: int) -> int:
    """Return when an entry behind a position was sent first from a moment on, microseconds; ``NEVER_US`` = none was.

    Deliveries within ``GRACE_US`` do not count: they may have been under way.
    """
    ledger, _, entry = position.rpartition(":")
    ordinal = int(locate(window.ledger, window.entry, np.array([int(ledger)]), np.array([int(entry)]))[0])
    if ordinal < 0:
        return NEVER_US
    deliveries = scan.deliveries
    sent_us = window.op_t_us[deliveries[deliveries[:, ENTRY] > ordinal, OPERATION]]
    return int(sent_us.min(initial=NEVER_US, where=sent_us >= from_us + GRACE_US))


def first_sent_behind(window: LogWindow, scan: Scan, from_op: int = 0) -> npt.NDArray[np.int64]:
    """Return for each entry when the first entry behind it was sent, microseconds; ``NEVER_US`` = none was.

    ``from_op``: deliveries before this operation do not count.
    """
    first_us = np.full(len(window) + 1, NEVER_US, np.int64)
    deliveries = scan.deliveries
    deliveries = deliveries[deliveries[:, OPERATION] >= from_op]
    np.minimum.at(first_us, deliveries[:, ENTRY], window.op_t_us[deliveries[:, OPERATION]])
    behind: npt.NDArray[np.int64] = np.minimum.accumulate(first_us[::-1])[::-1]
    return behind[1:]


@dataclass(slots=True)
class _Places:
    """Positions of entries, ascending."""

    ledger: Ints
    entry: Ints

    def __len__(self) -> int:
        return len(self.ledger)

    def behind_those_gone(self, before: _Places, low: tuple[int, int]) -> _Places:
        """Return these, behind those of ``before`` that have left a window which begins at ``low``."""
        gone = (before.ledger < low[0]) | ((before.ledger == low[0]) & (before.entry < low[1]))
        return _Places(
            np.concatenate([before.ledger[gone], self.ledger]),
            np.concatenate([before.entry[gone], self.entry]),
        )


def _places_of(window: LogWindow, mask: Mask) -> _Places:
    """Return the positions of the masked entries of a window."""
    members = np.flatnonzero(mask)
    return _Places(window.ledger[members].copy(), window.entry[members].copy())


@dataclass(slots=True)
class _Move:
    seq: int
    t_us: int
    by: str
    unsent: _Places  # entries that were never sent
    pending: _Places  # those that were sent and not acknowledged


class PassedEntries:
    """Collect what each move passed: call ``look`` after each batch, then ``findings``.

    ``overtaken``: see ``passed_unsent``.
    """

    def __init__(self) -> None:
        self.overtaken = Overtaken.NEVER
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
        passed = passed_unsent(window, scan, self.overtaken)
        ops = scan.acknowledged_by
        low = (int(window.ledger[0]), int(window.entry[0])) if len(window) else (0, 0)
        for op, by in window.moved_by.items():
            seq = int(window.op_seq[op])
            if not window.is_of_last_log(op):
                continue
            unsent = _places_of(window, passed & (ops == op))
            pending = _places_of(window, (scan.times_sent > 0) & (ops == op))
            before = self._moves.get(seq)
            if before is not None:
                unsent = unsent.behind_those_gone(before.unsent, low)
                pending = pending.behind_those_gone(before.pending, low)
            self._moves[seq] = _Move(seq, int(window.op_t_us[op]), by, unsent, pending)

    def findings(self) -> list[Finding]:
        """Return one finding for each move that passed entries."""
        return [self._finding(move) for move in self._moves.values() if len(move.unsent) or len(move.pending)]

    def _finding(self, move: _Move) -> Finding:
        count = len(move.unsent)
        positions = [
            f"{ledger}:{entry}"
            for ledger, entry in zip(
                move.unsent.ledger[:MOST_POSITIONS].tolist(),
                move.unsent.entry[:MOST_POSITIONS].tolist(),
                strict=True,
            )
        ]
        parts = []
        if count:
            last = f"{move.unsent.ledger[-1]}:{move.unsent.entry[-1]}"
            which = positions[0] if count == 1 else f"from {positions[0]} to {last}"
            verb = "was" if count == 1 else "were"
            parts.append(f"{counted(count, 'entry', 'entries')} {which} {verb} stored and never sent")
        pending = len(move.pending)
        if pending:
            verb = "was" if pending == 1 else "were"
            parts.append(f"{counted(pending, 'entry', 'entries')} {verb} sent and not acknowledged")
        unsent = count
        if self._begin is not None:  # what lies before the first delivery is not counted as unsent
            ledger, entry = self._begin
            in_ledger = (move.unsent.ledger == ledger) & (move.unsent.entry > entry)
            unsent = int(np.count_nonzero((move.unsent.ledger > ledger) | in_ledger))
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
