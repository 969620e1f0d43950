"""Sums over an interval that no single line proves: the tables ``balance`` and ``waits``, and findings of uneven load.

A replay feeds the deliveries of the interval batch by batch. The sums belong to one incarnation of a dispatcher. Entries
that were never sent are counted over all incarnations (``UnsentEntries``): what one leaves unsent, the next may send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import IO

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.batches import no_rows
from dispatch_core.arrays.columns import Ints, ints
from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.balance import balance_rows, load_findings
from dispatch_core.audit.deliveries.rows import Rows
from dispatch_core.audit.deliveries.window import SINGLE_ACTIVE
from dispatch_core.audit.entry_waits import EntryWaits
from dispatch_core.audit.hash_share import MessagesByOwnership, fair_parts, messages_of
from dispatch_core.audit.key_totals import KeyTotals, Pairs
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.sentences.names import connections_in
from dispatch_core.audit.unlogged_moves import UnloggedMoves
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.replay import result_rows
from dispatch_core.tables import KEY_TOTALS


class IntervalTotals:
    """Sums of one incarnation over one interval. ``add`` the deliveries in order, then ``finish``."""

    def __init__(
        self,
        log: DispatcherLog,
        interval_start: datetime,
        limits: Limits,
        open_file: Callable[[], IO[bytes]] | None = None,
        *,
        keep_totals: bool = False,
    ) -> None:
        """Begin without deliveries.

        Args:
            log: whose deliveries they are; only its identity and header are read.
            interval_start: start of the interval, UTC.
            limits: how much is too much.
            open_file: see ``EntryWaits``.
            keep_totals: balance is judged over more intervals than this one. Its sums are kept in the table
                ``key_totals``, and nothing is found here.
        """
        self._keep_totals = keep_totals
        self._identity = result_rows.identity_of(log, interval_start)
        self._rows = Rows(log, interval_start)
        self._limits = limits
        self._owns_hashes = subscription_type(log) not in (*SINGLE_ACTIVE, "Shared")
        self._deliveries = 0
        self._keys = KeyTotals()
        self._waits = EntryWaits(open_file)
        self._messages = MessagesByOwnership()

    def add(self, deliveries: pa.Table, changes: Ints, pairs: Pairs | None = None) -> None:
        """Add the next deliveries of the interval.

        Args:
            deliveries: rows of ``tables.DELIVERIES``.
            changes: lines that changed ownership by now, ascending.
            pairs: of these deliveries, where they are known; they are found else.
        """
        self._deliveries += deliveries.num_rows
        self._keys.add(deliveries, pairs)
        self._waits.add(deliveries)
        if self._owns_hashes:
            self._messages.add(ints(deliveries["seq"]), messages_of(deliveries), changes)

    def finish(self, ownership: pa.Table, blocked: pa.Table, never_delivered: int) -> dict[str, pa.Table]:
        """Return ``balance``, ``waits``, the ``anomalies`` of uneven load, and ``key_totals``.

        Args:
            ownership: the incarnation's rows of ``ownership`` for the interval.
            blocked: its rows of ``blocked``.
            never_delivered: entries that no incarnation has sent by the end of the interval; 0 for all but the last one.
        """
        totals = self._keys.table()
        owners = connections_in(ownership)
        fair = fair_parts(ownership, owners, *self._messages.columns()) if self._owns_hashes else None
        balance = balance_rows(totals, owners, fair, self._identity)
        uneven = (
            []
            if self._keep_totals
            else load_findings(totals, balance, fair or {}, self._limits, self._deliveries)
        )
        return {
            "balance": balance,
            "waits": self._waits.row(self._identity, blocked, never_delivered),
            "anomalies": self._rows.anomalies(uneven),
            "key_totals": self._key_totals(totals) if self._keep_totals else no_rows(KEY_TOTALS),
        }

    def _key_totals(self, totals: pa.Table) -> pa.Table:
        identity = {
            name: pa.repeat(pa.scalar(value, KEY_TOTALS.field(name).type), totals.num_rows)
            for name, value in self._identity.items()
        }
        columns = identity | {name: totals[name] for name in totals.column_names}
        return pa.table([columns[name] for name in KEY_TOTALS.names], schema=KEY_TOTALS)


def with_totals(
    log: DispatcherLog,
    found: Mapping[str, pa.Table],
    interval_start: datetime,
    limits: Limits,
    *,
    never_delivered: int,
    moves: UnloggedMoves | None = None,
    pairs: Pairs | None = None,
    keep_totals: bool = False,
) -> dict[str, pa.Table]:
    """Add ``balance``, ``waits``, findings of uneven load and ``key_totals`` to the other tables of a replay of a whole log.

    Findings that behaviour may explain which is not ruled out (``Assumptions``), or ``moves``, become uncertain. ``pairs``:
    those of the deliveries, where they are known. ``keep_totals``: see ``IntervalTotals``.
    """
    totals = IntervalTotals(log, interval_start, limits, keep_totals=keep_totals)
    totals.add(found["deliveries"], changes_in(found["ownership"]), pairs)
    summed = totals.finish(found["ownership"], found["blocked"], never_delivered)
    anomalies = Assumptions.of(log, limits.assume_absent).applied(found["anomalies"])
    anomalies = (UnloggedMoves() if moves is None else moves).applied(anomalies)
    return {**found, **summed, "anomalies": pa.concat_tables([anomalies, summed["anomalies"]])}


def changes_in(ownership: pa.Table) -> Ints:
    """Return the lines at which ownership changed, ascending."""
    ended = ints(ownership["until_seq"].drop_null())
    return np.unique(np.concatenate([ints(ownership["from_seq"]), ended]))
