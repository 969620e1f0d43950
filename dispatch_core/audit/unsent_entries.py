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
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import Ints, Mask, ints, marked
from dispatch_core.arrays.positions import ascending, distinct, locate
from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState
from dispatch_core.recording.checkpoint import Checkpoint, upto
from dispatch_core.recording.log import DispatcherLog

_NONE = np.empty(0, np.int64)
_EVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Entries that were not sent by the moment of the verdict, and need not have been.

    Attributes:
        since_us: those that were published later than this, microseconds since the epoch.
        waiting: number of the earlier ones that wait for less than the limits.
        backlog: entries behind those that the log names wait as well.
        beyond: the first position of a long backlog that was not looked at, since those before it wait; ``None`` = all were.
    """

    since_us: int = _EVER
    waiting: int = 0
    backlog: bool = False
    beyond: tuple[int, int] | None = None


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
        self._published_us = _NONE
        self._first: tuple[int, int] | None = None  # the lowest position that was sent
        self._behind = 0
        self._begin: Checkpoint | None = None

    def begin(self, checkpoint: Checkpoint) -> None:
        """Take the checkpoint that the first log begins with: what it names as acknowledged or pending was sent before."""
        self._begin = checkpoint

    def stored(self, ledger: Ints, entry: Ints, published_us: Ints) -> None:
        """Take stored entries; those that were sent before are not to be among them."""
        if not len(ledger):
            return
        ledger, entry = np.concatenate([self._ledger, ledger]), np.concatenate([self._entry, entry])
        published_us = np.concatenate([self._published_us, published_us])
        in_order = slice(None) if ascending(ledger, entry) else distinct(ledger, entry)
        self._ledger, self._entry = ledger[in_order], entry[in_order]
        self._published_us = published_us[in_order]

    def sent(self, ledger: Ints, entry: Ints) -> None:
        """Take deliveries, repeated ones too."""
        if not len(ledger):
            return
        lowest = int(ledger.min())
        first = lowest, int(entry[ledger == lowest].min())
        self._first = first if self._first is None else min(self._first, first)
        at = locate(self._ledger, self._entry, ledger, entry)
        left = np.ones(len(self._ledger), np.bool_)
        left[at[at >= 0]] = False
        self._ledger, self._entry = self._ledger[left], self._entry[left]
        self._published_us = self._published_us[left]

    def stored_behind(self, ledger: Ints, entry: Ints, published_us: Ints, until_us: int) -> None:
        """Take entries behind the last line of the log: nothing of them was sent, so they are only counted.

        Those that were published after ``until_us`` are not.
        """
        if self._first is not None:
            early = published_us <= until_us
            self._behind += len(distinct(ledger[early], entry[early]))

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
        behind &= self._published_us <= unfinished.since_us
        behind &= ~self._sent_before()
        if unfinished.beyond is not None:
            ledger, entry = unfinished.beyond
            behind &= (self._ledger < ledger) | ((self._ledger == ledger) & (self._entry < entry))
        unsent = int(np.count_nonzero(behind)) + (0 if unfinished.backlog else self._behind)
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
    """Count the entries that neither a log nor an ``earlier`` incarnation has sent, without ``unfinished`` ones."""
    unsent = UnsentEntries()
    begin = CheckpointState.of((*earlier, log)[0].events)
    if begin is not None:
        unsent.begin(begin.checkpoint)
    unsent.stored(*positions_of(log.messages), published_us(log.messages))
    for incarnation in (*earlier, log):
        unsent.sent(*positions_sent(incarnation.events))
    return unsent.count(unfinished=unfinished)


def positions_of(rows: pa.Table) -> tuple[Ints, Ints]:
    """Return ledger and entry of every row of a table."""
    return ints(rows["ledger_id"]), ints(rows["entry_id"])


def published_us(messages: pa.Table) -> Ints:
    """Return when each entry was published, microseconds since the epoch; 0 where that is not known."""
    return ints(messages["publish_time_ms"]) * 1000


def positions_sent(events: pa.Table) -> tuple[Ints, Ints]:
    """Return ledger and entry of every position that the ``sent`` lines of a log name."""
    sent = events["positions"].filter(pa.array(marked(events["kind"], "sent")))
    flat = pc.list_flatten(sent)
    return ints(pc.struct_field(flat, "ledger_id")), ints(pc.struct_field(flat, "entry_id"))


def unexplained(unsent: int, anomalies: pa.Table, incarnation: int) -> int:
    """Return how many of the ``unsent`` entries no finding about the last incarnation explains.

    What an earlier incarnation left unsent, the next may have sent.
    """
    findings = anomalies.select(["incarnation", "unsent"])  # a filter copies all columns
    explained = findings.filter(pc.equal(findings["incarnation"], incarnation))["unsent"]
    return max(0, unsent - int(pc.sum(explained).as_py() or 0))
