"""Outcomes that a recorded and a simulated log are compared by: first deliveries and findings."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pyarrow.compute as pc

from dispatch_core.audit.deliveries.whole_log import audit_log
from dispatch_core.recording.log import DispatcherLog


def first_consumers(log: DispatcherLog) -> dict[tuple[int, int], int]:
    """Return the consumer of each entry's first delivery, by ledger and entry id."""
    found: dict[tuple[int, int], int] = {}
    sent = log.events.filter(pc.equal(log.events["kind"], "sent"))
    for consumer, positions in zip(sent["consumer"].to_pylist(), sent["positions"].to_pylist(), strict=True):
        for position in positions:
            found.setdefault((position["ledger_id"], position["entry_id"]), consumer)
    return found


def findings(log: DispatcherLog) -> Counter[tuple[str, str | None]]:
    """Return kind and key of every finding."""
    rows = audit_log(log, interval_start=datetime(2020, 1, 1, tzinfo=UTC)).anomalies
    return Counter(zip(rows["kind"].to_pylist(), rows["key"].to_pylist(), strict=True))
