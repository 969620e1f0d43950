"""Entries that a subscription was never sent: stored, not sent by any incarnation, and not before its first entry.

What lies before the first position that the subscription ever got may have been read by nobody. Whether a rule held the
entries back is for ``waits`` to say. Only entries that were not sent yet are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import Ints, ints, marked
from dispatch_core.arrays.positions import ascending, distinct, locate
from dispatch_core.recording.log import DispatcherLog

_NONE = np.empty(0, np.int64)


class UnsentEntries:
    """Stored entries without a delivery. Feed it entries and deliveries in the order of the log.

    A position that is stored twice is one entry. Entries come before their deliveries.

    >>> unsent = UnsentEntries()
    >>> unsent.stored(np.array([5, 5, 5, 5]), np.array([0, 1, 2, 3]))
    >>> unsent.sent(np.array([5, 5]), np.array([3, 1]))
    >>> unsent.count()
    1
    """

    def __init__(self) -> None:
        self._ledger, self._entry = _NONE, _NONE  # ascending
        self._first: tuple[int, int] | None = None  # the lowest position that was sent
        self._behind = 0

    def stored(self, ledger: Ints, entry: Ints) -> None:
        """Take stored entries; those that were sent before are not to be among them."""
        if not len(ledger):
            return
        ledger, entry = np.concatenate([self._ledger, ledger]), np.concatenate([self._entry, entry])
        in_order = slice(None) if ascending(ledger, entry) else distinct(ledger, entry)
        self._ledger, self._entry = ledger[in_order], entry[in_order]

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

    def stored_behind(self, ledger: Ints, entry: Ints) -> None:
        """Take entries behind the last line of the log: nothing of them was sent, so they are only counted."""
        if self._first is not None:
            self._behind += len(distinct(ledger, entry))

    def count(self, begin: tuple[int, int] | None = None) -> int:
        """Return the number of entries that were not sent.

        ``begin``: the first position that the subscription was to get; by default the first that it was sent.
        """
        begin = self._first if begin is None else begin
        if begin is None:
            return 0
        ledger, entry = begin
        behind = (self._ledger > ledger) | ((self._ledger == ledger) & (self._entry >= entry))
        return int(np.count_nonzero(behind)) + self._behind


def unsent_of(log: DispatcherLog, earlier: Sequence[DispatcherLog]) -> int:
    """Count the entries of a log's topic that neither it nor an ``earlier`` incarnation has sent."""
    unsent = UnsentEntries()
    unsent.stored(*positions_of(log.messages))
    for incarnation in (*earlier, log):
        unsent.sent(*positions_sent(incarnation.events))
    return unsent.count()


def positions_of(rows: pa.Table) -> tuple[Ints, Ints]:
    """Return ledger and entry of every row of a table."""
    return ints(rows["ledger_id"]), ints(rows["entry_id"])


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
