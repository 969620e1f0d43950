"""State of the audit's rules over the batches of a log: arrays that grow with the log and are cut with its window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.growing import Growing
from dispatch_core.arrays.positions import locate
from dispatch_core.audit.deliveries import kernel, trim
from dispatch_core.audit.deliveries import layout as at
from dispatch_core.audit.deliveries.operations import ACK, REDELIVER, SENT, Operations
from dispatch_core.audit.deliveries.window import LogWindow

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Scanned:
    """Result of a pass over further operations.

    Attributes:
        first: number of the first new delivery.
        number: delivery number of each new delivery, 1 = first delivery of its entry.
        ended: end of the delivery before it of the same entry (``layout``), -1 = there was none.
        found: findings, rows ``(delivery, kind, other delivery, other operation, hand-over)``.
    """

    first: int
    number: Int32s
    ended: npt.NDArray[np.int8]
    found: Int32s


class Scan:
    """Deliveries, entries, keys and connections as of the last operation taken."""

    def __init__(
        self,
        *,
        single_active: bool,
        ordered: bool,
        moves_logged: bool = False,
        moves_exact: bool = False,
        deletions_logged: bool = False,
    ) -> None:
        """Begin before the first operation.

        ``moves_logged``: the recorder writes every move of the cursor; ``moves_exact``: the last entry that a move passes is
        known, which is not so for every recorder; ``deletions_logged``: it writes every deletion of the subscription.
        """
        self._single_active = single_active
        self._ordered = ordered
        self._scalars = np.zeros(at.SCALARS, dtype=np.int64)
        self._scalars[list(at.NONE_AT_FIRST)] = -1
        self._scalars[at.MOVES_LOGGED] = at.EXACT if moves_exact else moves_logged
        self._scalars[at.DELETIONS_LOGGED] = deletions_logged
        self._deliveries = Growing(np.int32, at.DELIVERY_COLUMNS)
        self._entries = Growing(np.int32, at.ENTRY_COLUMNS)
        self._keys = Growing(np.int32, at.KEY_COLUMNS)
        self._pairs = Growing(np.int32, at.PAIR_COLUMNS)
        self._requests = Growing(np.int32, at.REQUEST_COLUMNS)
        self._first_at = Growing(np.int32)
        self._connected = Growing(np.bool_)
        #: The shortest time from publishing to delivery, of all deliveries by now, microseconds; ``None`` = none is known.
        #: Delayed entries say nothing. The clock of a producer is behind the broker's by at most so much; a negative time
        #: shows that it is ahead.
        self.least_lag_us: int | None = None
        #: Some entry that has left the window was sent.
        self.dropped_sent = False

    @property
    def deliveries(self) -> Int32s:
        """One row per delivery of the window: ordinal, connection, operation, earlier delivery, … (``layout``)."""
        return self._deliveries.values

    @property
    def times_sent(self) -> Int32s:
        """Number of deliveries of each entry of the window."""
        return self._entries.values[:, at.TIMES_SENT]

    @property
    def acknowledged_by(self) -> Int32s:
        """Operation that acknowledged each entry of the window, -1 = none."""
        return self._entries.values[:, at.ACK_OPERATION]

    @property
    def acked_before_reload(self) -> npt.NDArray[np.bool_]:
        """Entries that an earlier incarnation got the acknowledgement of, and that this one has not sent."""
        return self._entries.values[:, at.ACKED_BEFORE_RELOAD] != 0

    @property
    def acknowledged(self) -> npt.NDArray[np.bool_]:
        """Entries of the window that are acknowledged."""
        found: npt.NDArray[np.bool_] = (self.acknowledged_by >= 0) | self.acked_before_reload
        return found

    def note_individual_acks(self, window: LogWindow) -> npt.NDArray[np.int64]:
        """Mark the entries that were acknowledged individually before the log that begins; returns all marked ordinals."""
        entries = self._entries.values
        acked = np.flatnonzero(entries[:, at.ACK_OPERATION] >= 0)
        individual = acked[window.op_code[entries[acked, at.ACK_OPERATION]] == ACK]
        entries[individual, at.ACKED_BEFORE_RELOAD] = 2
        return np.flatnonzero(entries[:, at.ACKED_BEFORE_RELOAD] == 2)

    def acks_stay(self, window: LogWindow, operations: Operations, before: npt.NDArray[np.int64]) -> bool:
        """Check whether all entries that were acknowledged individually are so still.

        They are not where the cursor moved backwards, where an acknowledgement was lost and the entry was sent again, and
        where a cumulative acknowledgement took the place of the individual one.

        Args:
            window: of the log.
            operations: those of the last log, all in one feed.
            before: the entries that were acknowledged before it (``note_individual_acks``).
        """
        entries = self._entries.values
        acked = operations.ordinals[np.repeat(operations.code == ACK, np.diff(operations.start))]
        acked = np.concatenate([acked, before])
        by = entries[acked, at.ACK_OPERATION]
        individual = (by >= 0) & (window.op_code[by] == ACK)
        return bool(np.all(individual | (entries[acked, at.ACKED_BEFORE_RELOAD] == 2)))

    @property
    def last_delivery(self) -> Int32s:
        """Last delivery of each entry of the window, -1 = none."""
        return self._entries.values[:, at.LAST_DELIVERY]

    @property
    def room(self) -> int:
        """Number of rows in memory, used or not."""
        return sum(
            column.room
            for column in (self._deliveries, self._entries, self._keys, self._pairs, self._requests)
        )

    def take(self, window: LogWindow, first_op: int, operations: Operations) -> Scanned:
        """Apply further operations of ``window``, the first of which has the number ``first_op``."""
        lengths = np.diff(operations.start)
        sends = int(lengths[operations.code == SENT].sum())
        asked = int(lengths[operations.code == REDELIVER].sum())
        self._entries.more(len(window) - len(self._entries))[...] = at.NEW_ENTRY
        self._keys.more(len(window.keys) - len(self._keys))[...] = at.NEW_KEY
        checkpoint_state = window.checkpoint_state
        if (
            checkpoint_state is not None
            and checkpoint_state.checkpoint.inferred
            and not self._scalars[at.MOVES_LOGGED]
        ):
            # Before its last operation the cursor may have been moved without a line that says so.
            self._scalars[at.LAST_EMPTY] = max(self._scalars[at.LAST_EMPTY], window.first_op_of_last_log - 1)
        new_consumers = len(window.consumers) - len(self._first_at)
        self._first_at.more(new_consumers)[...] = -1
        self._connected.more(new_consumers)[...] = False
        first = len(self._deliveries)
        self._deliveries.more(sends)[...] = -1
        # room for the worst case; what is never written costs no memory
        self._pairs.more(sends)
        self._requests.more(asked)
        number = np.zeros(sends, dtype=np.int32)
        ended = np.full(sends, -1, dtype=np.int8)
        found = np.empty((kernel.MOST_FINDINGS_PER_DELIVERY * sends, kernel.FINDING_COLUMNS), dtype=np.int32)
        count = kernel.take(
            first_op,
            window.op_code,
            window.op_t_us,
            operations.code,
            operations.consumer,
            operations.value,
            operations.start,
            operations.ordinals,
            window.entry_key,
            _delayed_until(window),
            self._single_active,
            self._ordered,
            window.first_op_of_last_log if window.checkpoint_state is not None else 0,
            self._scalars,
            self._deliveries.values,
            self._entries.values,
            self._keys.values,
            self._first_at.values,
            self._connected.values,
            self._pairs.values,
            self._requests.values,
            number,
            ended,
            found,
        )
        self._pairs.cut(int(self._scalars[at.PAIRS]))
        self._requests.cut(int(self._scalars[at.REQUESTS]))
        self._note_lag(window, first)
        return Scanned(first, number, ended, found[:count].copy())

    def settled(self, past: int = 0) -> int:
        """Count the entries at the front of the window that are acked and pending on nobody (``trim.settled``)."""
        return trim.settled(self._entries.values, past)

    def drop(self, window: LogWindow, entries: int, *, keys_at_once: bool) -> None:
        """Drop the first ``entries`` entries of the window, here and in ``window``."""
        s, deliveries, requests = self._scalars, self._deliveries.values, self._requests.values
        rows, keys = self._entries.values, self._keys.values
        self.dropped_sent = self.dropped_sent or bool(self.times_sent[:entries].any())
        used = np.zeros(len(window.op_seq), dtype=np.bool_)
        trim.operations_of(entries, s, deliveries, rows, requests, used)
        new_op = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
        trim.cut_requests(entries, s, rows, requests, new_op)
        trim.cut_pairs(entries, s, keys, self._pairs.values)
        trim.cut_deliveries(entries, s, deliveries, rows, keys, self._first_at.values, new_op)
        trim.cut_scalars(entries, s, new_op)
        self._deliveries.cut(int(s[at.DELIVERIES]))
        self._pairs.cut(int(s[at.PAIRS]))
        self._requests.cut(int(s[at.REQUESTS]))
        self._entries.cut(len(rows) - entries)
        window.drop(entries, used)
        new_key = window.forget_keys(at_once=keys_at_once)
        if new_key is not None:
            self._keys.keep(new_key >= 0)

    def _note_lag(self, window: LogWindow, first: int) -> None:
        """Note the shortest time from publishing to delivery of the deliveries from ``first`` on."""
        published, known = window.publish_time_ms
        entries = self.deliveries[first:, at.ENTRY]
        counts = known[entries] & (window.due_us[entries] == 0)
        if not counts.any():
            return
        sent_us = window.op_t_us[self.deliveries[first:, at.OPERATION]]
        lag_us = int((sent_us - 1000 * published[entries])[counts].min())
        self.least_lag_us = lag_us if self.least_lag_us is None else min(self.least_lag_us, lag_us)


def _delayed_until(window: LogWindow) -> Int32s:
    """Return by entry the first operation behind its delay, 0 = it has none; empty if no entry of the window has one."""
    if not window.any_delayed:
        return np.empty(0, np.int32)
    times_us = np.maximum.accumulate(window.op_t_us)
    due_us = window.due_us
    behind = np.searchsorted(times_us, due_us, side="right")
    return np.where(due_us > 0, behind, 0).astype(np.int32)


def warm_up() -> None:
    """Call every compiled function of the audit once, over nothing."""
    window = LogWindow("Key_Shared", streaming=True)
    scan = Scan(single_active=False, ordered=True)
    nothing = np.empty(0, dtype=np.int64)
    operations = Operations(
        code=np.empty(0, dtype=np.int8),
        consumer=np.empty(0, dtype=np.int32),
        seq=nothing,
        t_us=nothing,
        value=nothing,
        start=np.zeros(1, dtype=np.int64),
        ordinals=locate(nothing, nothing, nothing, nothing),
    )
    scan.take(window, 0, operations)
    scan.drop(window, scan.settled(), keys_at_once=True)
