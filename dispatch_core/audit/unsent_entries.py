"""Entries that a subscription was never sent: stored, not sent by any incarnation, and not before its first entry.

What lies before the first position that the subscription ever got may have been read by nobody. Whether a rule held the
entries back is for ``waits`` to say. Only entries that were not sent yet are kept.

A verdict is given as of a moment. Entries that were stored just before it, or that wait for less than the limits, are not
finished (``Unfinished``): they are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import Ints, Mask, ints
from dispatch_core.arrays.line_kinds import of_kinds
from dispatch_core.arrays.positions import ascending, distinct, locate
from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState
from dispatch_core.audit.deliveries.delayed_delivery import DelayedDelivery
from dispatch_core.audit.deliveries.earlier_loads import EarlierLoads
from dispatch_core.audit.deliveries.transactions import NO_TRANSACTION, Committed, TransactionIds
from dispatch_core.broker.profiles import is_non_persistent
from dispatch_core.recording.checkpoint import Checkpoint, upto
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.resumed_parts import is_deleted, parts_of

_NO_DELAYS: Final = DelayedDelivery()
_NONE = np.empty(0, np.int64)
_EVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Entries that were not sent by the moment of the verdict, and need not have been.

    Attributes:
        since_us: those that were published later than this, microseconds since the epoch.
        waiting: number of the earlier ones that wait for less than the limits.
        backlog: entries behind those that the log names wait as well.
        due_by_us: entries that are delayed for longer are not owed, microseconds since the epoch.
        beyond: the first position of a long backlog that was not looked at, since those before it wait; ``None`` = all were.
    """

    since_us: int = _EVER
    waiting: int = 0
    backlog: bool = False
    beyond: tuple[int, int] | None = None
    due_by_us: int = _EVER


#: Of a log that is all there is.
NOTHING_UNFINISHED: Final = Unfinished()


class UnsentEntries:
    """Stored entries without a delivery. Feed it entries and deliveries in the order of the log.

    A position that is stored twice is one entry. Entries come before their deliveries.

    >>> unsent = UnsentEntries()
    >>> unsent.stored(np.array([5, 5, 5, 5]), np.array([0, 1, 2, 3]), np.array([10, 20, 30, 40]))
    >>> unsent.sent(np.array([5, 5]), np.array([0, 1]))
    >>> unsent.count(), unsent.count(unfinished=Unfinished(since_us=30))
    (2, 1)
    """

    def __init__(self) -> None:
        self._ledger, self._entry = _NONE, _NONE  # ascending
        self._owed_us, self._due_us = _NONE, _NONE
        self._transaction = _NONE
        self._transactions = TransactionIds()
        self._committed = Committed()
        self._held_behind = False  # an open transaction holds what is stored behind the last line
        self._highest: tuple[int, int] = (-1, -1)  # position that was sent
        self._first: tuple[int, int] | None = None  # the lowest position that was sent
        self._behind = 0
        self._begin: Checkpoint | None = None

    def begin(self, checkpoint: Checkpoint) -> None:
        """Take the checkpoint that the first log begins with: what it names as acknowledged or pending was sent before."""
        self._begin = checkpoint

    def made_again(self) -> UnsentEntries:
        """Return the same entries for a subscription that is made again under the name of a deleted one."""
        again = UnsentEntries()
        for name in (
            "_ledger",
            "_entry",
            "_owed_us",
            "_due_us",
            "_transaction",
            "_transactions",
            "_committed",
        ):
            setattr(again, name, getattr(self, name))
        return again

    def add(self, messages: pa.Table, delays: DelayedDelivery = _NO_DELAYS) -> None:
        """Take rows of the message log."""
        self.stored(
            *positions_of(messages),
            published_us(messages),
            delays.due_us(messages),
            self._transactions.encode(messages),
        )

    def stored(
        self,
        ledger: Ints,
        entry: Ints,
        published_us: Ints,
        due_us: Ints | None = None,
        transaction: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Take stored entries; those that were sent before are not to be among them.

        ``due_us``: until when each is delayed, 0 = it is not; ``transaction``: its number (``TransactionIds``). ``None`` =
        none is, or has one.
        """
        if not len(ledger):
            return
        due_us = np.zeros_like(ledger) if due_us is None else due_us
        of_none = np.full(len(ledger), NO_TRANSACTION)
        numbers = of_none if transaction is None else transaction.astype(np.int64)
        columns = {
            "_ledger": ledger,
            "_entry": entry,
            "_owed_us": np.maximum(published_us, due_us),
            "_due_us": due_us,
            "_transaction": numbers,
        }
        columns = {name: np.concatenate([getattr(self, name), values]) for name, values in columns.items()}
        ledger, entry = columns["_ledger"], columns["_entry"]
        in_order = slice(None) if ascending(ledger, entry) else distinct(ledger, entry)
        for name, values in columns.items():
            setattr(self, name, values[in_order])

    @property
    def highest_sent(self) -> tuple[int, int]:
        """The highest position that was sent, (-1, -1) if none was."""
        return self._highest

    def sent(self, ledger: Ints, entry: Ints) -> None:
        """Take deliveries, repeated ones too."""
        if not len(ledger):
            return
        highest = int(ledger.max())
        self._highest = max(self._highest, (highest, int(entry[ledger == highest].max())))
        first = lowest(ledger, entry)
        self._first = first if self._first is None else min(self._first, first)
        at = locate(self._ledger, self._entry, ledger, entry)
        left = np.ones(len(self._ledger), np.bool_)
        left[at[at >= 0]] = False
        self._committed.note(self._transaction[~left])
        for name in ("_ledger", "_entry", "_owed_us", "_due_us", "_transaction"):
            setattr(self, name, getattr(self, name)[left])

    def stored_behind(self, ledger: Ints, entry: Ints, published_us: Ints, until_us: int) -> None:
        """Take entries behind the last line of the log: nothing of them was sent, so they are only counted.

        Those that were published after ``until_us`` are not.
        """
        if self._first is not None:
            early = published_us <= until_us
            self._behind += len(distinct(ledger[early], entry[early]))

    def add_behind(
        self, messages: pa.Table, until_us: int, due_by_us: int, delays: DelayedDelivery = _NO_DELAYS
    ) -> None:
        """Take rows of the message log behind the last line of the log (``stored_behind``).

        Those that are delayed beyond ``due_by_us`` are not counted, nor what an open transaction may hold.
        """
        if self._held_behind:
            return
        ledger, entry = positions_of(messages)
        due_us = delays.due_us(messages)
        not_owed = self._committed.not_owed(self._transactions.encode(messages), 0)
        self._held_behind = bool(not_owed.any())
        owed = ~not_owed & (due_us <= due_by_us)
        owed_us = np.maximum(published_us(messages), due_us)
        self.stored_behind(ledger[owed], entry[owed], owed_us[owed], until_us)

    def count(
        self, begin: tuple[int, int] | None = None, *, unfinished: Unfinished = NOTHING_UNFINISHED
    ) -> int:
        """Return the number of entries that were not sent and are not ``unfinished``.

        ``begin``: the first position that the subscription was to get; by default the first that it was sent.
        """
        begin = self._first if begin is None else begin
        if begin is None:
            return 0
        ledger, entry = begin
        behind = (self._ledger > ledger) | ((self._ledger == ledger) & (self._entry >= entry))
        behind &= (self._owed_us <= unfinished.since_us) & (self._due_us <= unfinished.due_by_us)
        behind &= ~self._sent_before()
        next_unread = np.count_nonzero(
            (self._ledger < self._highest[0])
            | ((self._ledger == self._highest[0]) & (self._entry <= self._highest[1]))
        )
        not_owed = self._committed.not_owed(self._transaction, int(next_unread))
        behind &= ~not_owed
        if unfinished.beyond is not None:
            ledger, entry = unfinished.beyond
            behind &= (self._ledger < ledger) | ((self._ledger == ledger) & (self._entry < entry))
        held_behind = unfinished.backlog or bool(not_owed[next_unread:].any())
        unsent = int(np.count_nonzero(behind)) + (0 if held_behind else self._behind)
        return max(0, unsent - unfinished.waiting)

    def _sent_before(self) -> Mask:
        """Mask the entries that the checkpoint names as acknowledged or pending."""
        before = np.zeros(len(self._ledger), np.bool_)
        if self._begin is None:
            return before
        if self._begin.mark_delete is not None:
            before[: upto(self._ledger, self._entry, self._begin.mark_delete)] = True
        for positions, sent in ((self._begin.not_yet_acked, False), (self._begin.named, True)):
            named = np.array(positions, np.int64).reshape(-1, 2)
            at = locate(self._ledger, self._entry, named[:, 0], named[:, 1])
            before[at[at >= 0]] = sent
        return before


def unsent_of(
    log: DispatcherLog, earlier: Sequence[DispatcherLog], unfinished: Unfinished = NOTHING_UNFINISHED
) -> int:
    """Count the entries that neither a log nor an ``earlier`` incarnation has sent, without ``unfinished`` ones.

    What lies before the first entry that a subscription was sent after it was made again does not count; of a deleted one
    and of a non-persistent topic nothing is owed.
    """
    if is_deleted(log.events) or is_non_persistent(log.topic):
        return 0
    unsent = UnsentEntries()
    logs = [*(earlier.every if isinstance(earlier, EarlierLoads) else earlier), log]
    begin = CheckpointState.of(logs[0].events)
    if begin is not None:
        unsent.begin(begin.checkpoint)
    unsent.add(log.messages, DelayedDelivery.of(log))
    for incarnation in logs:
        for part in parts_of(incarnation):
            unsent.sent(*positions_sent(part.events))
            if is_deleted(part.events):
                unsent = unsent.made_again()
    return unsent.count(unfinished=unfinished)


def lowest(ledger: Ints, entry: Ints) -> tuple[int, int]:
    """Return the lowest of some positions, of which there is at least one.

    >>> lowest(np.array([6, 5, 5]), np.array([0, 9, 7]))
    (5, 7)
    """
    first = int(ledger.min())
    return first, int(entry[ledger == first].min())


def positions_of(rows: pa.Table) -> tuple[Ints, Ints]:
    """Return ledger and entry of every row of a table."""
    return ints(rows["ledger_id"]), ints(rows["entry_id"])


def published_us(messages: pa.Table) -> Ints:
    """Return when each entry was published, microseconds since the epoch; 0 where that is not known."""
    return ints(messages["publish_time_ms"]) * 1000


def positions_sent(events: pa.Table) -> tuple[Ints, Ints]:
    """Return ledger and entry of every position that the ``sent`` lines of a log name."""
    sent = events["positions"].filter(pa.array(of_kinds(events, "sent")))
    flat = pc.list_flatten(sent)
    return ints(pc.struct_field(flat, "ledger_id")), ints(pc.struct_field(flat, "entry_id"))


def explained(anomalies: pa.Table, incarnation: int) -> int:
    """Return of how many entries a finding about an incarnation says why they were not sent.

    What an earlier incarnation left unsent, the next may have sent.
    """
    if not anomalies.num_rows:
        return 0
    findings = anomalies.select(["incarnation", "unsent"])  # a filter copies all columns
    of_incarnation = findings.filter(pc.equal(findings["incarnation"], incarnation))["unsent"]
    return int(pc.sum(of_incarnation).as_py() or 0)
