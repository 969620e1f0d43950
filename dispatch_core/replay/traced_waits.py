"""Track what waits while a trace is verified: sampled between lines, where the dispatcher is between two of its steps.

A trace shows what was read, so nothing is inferred; ``DispatcherFold`` asks the same of a log without one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.columns import ints
from dispatch_core.arrays.growing import Growing
from dispatch_core.arrays.positions import locate
from dispatch_core.audit.deliveries.delayed_delivery import DelayedDelivery
from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.audit.deliveries.subscription_start import first_of
from dispatch_core.audit.deliveries.transactions import TransactionIds
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.waits.held_by_limits import HeldByLimits
from dispatch_core.audit.waits.tracker import Key, LastSent, SampledWait, tracker_for
from dispatch_core.broker.gates import first_gate_single_active
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.state import READ_POSITION
from dispatch_core.recording.checkpoint import Position
from dispatch_core.replay.traced_reads import TracedReads
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.key_shared import KeySharedVerifier
from dispatch_core.verify.trace.verification import Verifier

#: Lines behind which something is half done: a consumer is in one list and not in the other; entries were read and not
#: yet dispatched.
_HALF_DONE: Final = frozenset({"consumer_added", "consumer_removing", "selector_removed", "read_done"})
_CHANGES: Final = frozenset({"consumer_added", "consumer_removing", "consumer_removed"})
#: A trace is looked at this much more often than a log without one: comparing its decisions takes much longer than that.
_FINER: Final = 20


class TracedWaits:
    """Track what waits: for each batch call ``go_on``, for each line of it ``before`` and ``after``, then ``finish``."""

    def __init__(
        self,
        facts: TraceFacts,
        limits: Limits,
        *,
        start_us: int,
        tick_us: int | None,
        delays: DelayedDelivery,
    ) -> None:
        """``facts``: of the whole log; ``delays``: of the subscription; see ``replay.replay`` for the rest."""
        self._tracker = tracker_for(
            limits, inferred=False, start_us=start_us, tick_us=tick_us, closely=_FINER
        )
        self._lowest_sent = facts.lowest_sent
        self._stored_us = Growing(np.int64)
        self._delays = delays
        self._due_us = Growing(np.int64)
        self._transaction = Growing(np.int32)
        self._transactions = TransactionIds()
        self._first = 0  # what lies before was not for the subscription
        self._first_is_settled = False
        self._driver: Verifier | None = None
        self._line: Line | None = None  # the last one
        self._reads = TracedReads()
        self._entries = Entries()  # of the batch

    def held_by(self, held_by: HeldByLimits) -> None:
        """Set the limits in force."""
        self._tracker.held_by = held_by

    def go_on(self, dropped: int, entries: Entries, messages: pa.Table, audited: AuditFold) -> None:
        """Take the next batch.

        Args:
            dropped: number of entries that were dropped at the front of ``entries``.
            entries: the entries in memory, those of this batch too.
            messages: the entries of this batch.
            audited: the audit of the same log, which has taken the batch.
        """
        self._stored_us.drop(dropped)
        self._stored_us.append(ints(messages["publish_time_ms"]) * 1000)
        self._entries = entries
        rows = _Rows(entries, audited)
        self._due_us.drop(dropped)
        self._due_us.append(self._delays.due_us(messages))
        self._transaction.drop(dropped)
        self._transaction.append(self._transactions.encode(messages))
        transaction = self._transaction.values if len(self._transactions) else None
        self._tracker.go_on(dropped, rows, self._stored_us.values, self._due_us.values, transaction)
        self._first = max(self._first - dropped, 0)
        if not self._first_is_settled:
            # Clocks are compared by what was sent; from then on later deliveries change nothing.
            self._first = rows.first(self._lowest_sent)
            self._first_is_settled = len(audited.scan.deliveries) > 0

    def before(self, line: Line, driver: Verifier) -> None:
        """Look at what waits before a line is taken, if it is time."""
        self._driver = driver
        if self._line is None:
            self._tracker.begin(line.seq, line.t_us)
        if driver.stopped is not None or (self._line is not None and self._line.kind in _HALF_DONE):
            return
        last = line.kind in ("consumer_removing", "consumer_removed") and _only_one(driver)
        if self._tracker.due(line.t_us) or last or (line.kind in _CHANGES and self._tracker.stale(line.t_us)):
            self._look(driver, line.seq, line.t_us, last=last)

    def after(self, line: Line, driver: Verifier) -> None:
        """Note a delivery, and count what draining held back at the line."""
        self._line = line
        self._reads.take(line)
        if line.kind == "sent" and line.consumer is not None:
            self._tracker.sent({line.consumer: self._last_sent(line)})
        if isinstance(driver, KeySharedVerifier) and driver.refused_now:
            self._look(driver, line.seq, line.t_us)
            for _, hash_value in driver.refused_now:
                self._tracker.refused(driver.core, hash_value)

    def _look(self, driver: Verifier, seq: int, t_us: int, *, last: bool = False) -> None:
        core = driver.core
        again_below = 0
        if isinstance(core, SingleActiveDispatcher) and core.delay_running:
            again_below = int(core.state.s[READ_POSITION])
        reason = _reason_of_all(driver)
        self._tracker.sample(
            core,
            seq,
            t_us,
            reason=reason,
            last=last,
            first=self._first,
            again_below=again_below,
            changed_us=None if self._line is None else self._line.t_us,
            reads=self._reads.pending(core),
        )

    def _last_sent(self, line: Line) -> LastSent:
        """Return a line that sends entries."""
        highest = max(line.recorded["positions"] or [-1])
        if not 0 <= highest < len(self._entries):
            return LastSent(line.t_us, line.seq, -1, -1)
        ids = self._entries.ledger_ids, self._entries.entry_ids
        return LastSent(line.t_us, line.seq, int(ids[0][highest]), int(ids[1][highest]))

    @property
    def beyond(self) -> tuple[int, int] | None:
        """Position of the first entry that the last sample did not look at; ``None`` = it looked at all.

        Where the verification has stopped, no sample says anything about what waits at the end.
        """
        if self._line is None or (self._driver is not None and self._driver.stopped is not None):
            return None
        return self._tracker.beyond

    def finish(self, seq: int, as_of_us: int) -> list[SampledWait]:
        """Return what waited, with what still does at ``as_of_us``, behind the log's last line ``seq``.

        Where the verification has stopped, what waited then is left out: it is not known how long.
        """
        if self._line is None or self._driver is None:
            return []
        if self._driver.stopped is not None:
            return self._tracker.take()
        self._look(self._driver, seq, as_of_us)
        return self._tracker.take() + self._tracker.finish(self._driver.core)


def _reason_of_all(driver: Verifier) -> int | None:
    """Return the gate that holds everything of a Failover or Exclusive subscription; None for the other types."""
    core = driver.core
    if not isinstance(core, SingleActiveDispatcher):
        return None
    permits = 0 if core.active is None else core.permits[core.active]
    return first_gate_single_active(core.active is not None, core.delay_running, permits)


def _only_one(driver: Verifier) -> bool:
    core = driver.core
    return len(core.members if isinstance(core, SingleActiveDispatcher) else core.connected()) == 1


class _Rows:
    """The rows of a message log as a ``Window`` of waits (``audit.waits.tracker``); the audit numbers entries otherwise."""

    def __init__(self, entries: Entries, audited: AuditFold) -> None:
        self.ledger_ids, self.entry_ids = entries.ledger_ids, entries.entry_ids
        self._window = audited.window
        self._scan = audited.scan
        # -1 = the audit has dropped the entry: it is settled.
        self._ordinals = locate(self._window.ledger, self._window.entry, self.ledger_ids, self.entry_ids)

    def first(self, lowest_sent: Position | None) -> int:
        """Return the first entry that was for the subscription: 0 where nothing was sent, behind all where none was."""
        first = first_of(self._window, self._scan, lowest_sent)
        return 0 if first is None else int(np.searchsorted(self._ordinals, first))

    def position(self, ordinal: int) -> str:
        """``"L:E"``."""
        return f"{self.ledger_ids[ordinal]}:{self.entry_ids[ordinal]}"

    def key(self, ordinal: int) -> Key | None:
        """See ``Window``."""
        key = self._key(ordinal)
        return None if key < 0 else (self._window.keys.text(key), bool(self._window.keys.base64[key]))

    def producer(self, ordinal: int) -> int:
        """See ``Window``."""
        at = int(self._ordinals[ordinal])
        return int(self._window.producer[at]) if at >= 0 else -1

    def key_ids(self) -> npt.NDArray[np.int32]:
        """See ``Window``."""
        if not len(self._window):
            return np.full(len(self._ordinals), -1, np.int32)
        ids: npt.NDArray[np.int32] = np.where(
            self._ordinals >= 0, self._window.entry_key[self._ordinals], np.int32(-1)
        )
        return ids

    def _key(self, ordinal: int) -> int:
        at = int(self._ordinals[ordinal])
        return int(self._window.entry_key[at]) if at >= 0 else -1

    def times_sent(self) -> npt.NDArray[np.int32]:
        """See ``Window``."""
        if not len(self._scan.times_sent):
            return np.ones(len(self._ordinals), np.int32)
        times: npt.NDArray[np.int32] = np.where(self._ordinals >= 0, self._scan.times_sent[self._ordinals], 1)
        return times
