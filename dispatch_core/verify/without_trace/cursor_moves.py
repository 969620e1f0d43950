"""Moves of the cursor in the replay of a log without a trace.

A move that passes entries (skip, clear backlog, expiry) acknowledges them; whether the broker also forgets their pending
acks depends on its release, so differences are not judged until all of them are acknowledged, asked for again, or lost with
their connection. Passed entries leave the replay set with their hashes. In the broker some of these hashes stay counted
(``replay_set.remove_up_to``), but that only sends later entries through the replay set, which the log does not show.

A seek or a reset disconnects everybody and sets the cursor to a position, and everything behind it is unacknowledged again.
Differences within ``RACE_US`` of a move are not judged: reads and commands were under way.

Source: PersistentSubscription.resetCursor and skipMessages, ManagedCursorImpl.internalResetCursor and asyncSkipEntries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.operations import (
    ACK,
    MOVED_SOMEWHERE,
    PASSED,
    REDELIVER,
    REDELIVER_ALL,
    REMOVED,
)
from dispatch_core.broker.cursor_moves import move_forward, reset
from dispatch_core.broker.replay_set import clear_replay, remove_from_replay
from dispatch_core.broker.state import LAST_SENT, NOT_TRACKED, TRIMMED_TO, State
from dispatch_core.verify.without_trace.races import RACE_US

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


def move(st: State, code: int, upto: int) -> None:
    """Apply a move to the state. ``upto``: ordinal of the last entry up to the new mark-delete position."""
    if code == MOVED_SOMEWHERE:
        return
    if code == PASSED:
        for entry in np.flatnonzero(st.in_replay[: upto + 1]).tolist():
            remove_from_replay(st, entry)
        move_forward(st, upto)
        return
    clear_replay(st)
    reset(st, upto + 1)
    st.sent_above[:] = 0
    if st.s[LAST_SENT] != NOT_TRACKED:
        st.s[LAST_SENT] = upto
    st.s[TRIMMED_TO] = upto


class MovesNotJudged:
    """The operations at which differences from the rules are not judged, because a move touches them."""

    def __init__(self) -> None:
        self._moved_us: int | None = None
        self._lost_track = False  # the cursor was moved to a place that the log does not say
        self._pending: dict[
            int, int
        ] = {}  # passed entry → consumer that had it, as numbered in ``op_consumer``
        self._borders: set[int] = set()  # the positions of moves: delivered or not
        self._noted: list[tuple[int, int, int, dict[int, int]]] = []  # of this batch

    def drop(self, count: int) -> None:
        """Forget the first ``count`` entries, which left the window."""
        if count:
            self._pending = {entry - count: who for entry, who in self._pending.items() if entry >= count}
            self._borders = {entry - count for entry in self._borders if entry >= count}

    def note(self, op: int, code: int, upto: int, t_us: int, pending: dict[int, int]) -> None:
        """Note a move of this batch. ``pending``: the entries it passed that were pending, and on whom."""
        self._noted.append((op, code, t_us, pending))
        if code != MOVED_SOMEWHERE:
            self._borders.add(upto)

    def touched(
        self, code: Array, consumer: Array, start: Ints, ordinals: Array, t_us: Ints
    ) -> npt.NDArray[np.bool_] | None:
        """Mask the elements of ``ordinals`` from ``start[0]`` on that a move touches; ``None`` = none.

        The arguments are those of an ``OperationBatch``. Call it once per batch, behind all moves of the batch.
        """
        noted, self._noted = self._noted, []
        if not noted and self._moved_us is None:
            return None
        touched = np.zeros(len(code), np.bool_)
        for op, kind, moved_us, pending in [(0, -1, self._moved_us, self._pending), *noted]:
            if kind >= 0:
                self._moved_us = moved_us
                self._lost_track = kind == MOVED_SOMEWHERE or (self._lost_track and kind == PASSED)
                if kind not in (PASSED, MOVED_SOMEWHERE):
                    self._pending = {}
                    touched[op:] = False
                self._pending = self._pending | pending
            if self._lost_track:
                touched[op:] = True
            if moved_us is not None:
                touched[op:] |= t_us[op:] < moved_us + RACE_US
            touched[op : self._settle(op, code, consumer, start, ordinals)] = True
        of_entry = np.repeat(touched, np.diff(start))
        return of_entry | np.isin(ordinals[start[0] : start[-1]], list(self._borders))

    def _settle(self, first: int, code: Array, consumer: Array, start: Ints, ordinals: Array) -> int:
        """Return the operation behind which nothing that was passed is pending; forget what the operations settle."""
        left = dict(self._pending)
        for op in range(first, len(code)):
            if not left:
                return op
            if code[op] in (ACK, REDELIVER):
                for entry in ordinals[start[op] : start[op + 1]].tolist():
                    left.pop(entry, None)
            elif code[op] in (REDELIVER_ALL, REMOVED):
                left = {entry: who for entry, who in left.items() if who != consumer[op]}
        if not left:
            return len(code)
        self._pending = left
        return len(code)
