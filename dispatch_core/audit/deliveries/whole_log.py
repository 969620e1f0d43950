"""Audit the whole log of one dispatcher: its deliveries and its anomalies.

``audit_log`` is pure: the same log gives the same two tables, whatever ran before and wherever it runs. It needs the
message log and events of level E only; of a trace it uses ``rewind`` (Failover, Exclusive) and, to tell whether an ack
had been applied before a delivery, ``pending_ack_removed`` and ``mark_delete``. A long log can be audited batch by batch
with ``fold.AuditFold``; this is the case of one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.audit.deliveries.missing_lines import LastLine
from dispatch_core.audit.deliveries.rows import Audit
from dispatch_core.recording.log import DispatcherLog


def audit_log(
    log: DispatcherLog,
    *,
    interval_start: datetime,
    earlier: Sequence[DispatcherLog] = (),
    last_line: LastLine | None = None,
) -> Audit:
    """Audit one incarnation of one dispatcher.

    Args:
        log: the incarnation to judge.
        interval_start: written into every row; must know its time zone.
        earlier: the incarnations of the same dispatcher before ``log``, oldest first. What they sent and this one sends
            again is ``redelivered`` with cause ``topic_reload``; without them it counts as sent for the first time.
        last_line: the line before, of a subscription that is made again.

    Returns:
        Deliveries in the order of the log, anomalies in the order of the events that prove them (then of kind, then of
        position). Deliveries are ``not_judged``: comparing them with the rules is the replay's part.
    """
    fold = AuditFold(log, interval_start=interval_start, earlier=earlier, last_line=last_line, whole=True)
    return fold.feed(all_messages([*earlier, log]), log.events)


def all_messages(logs: Sequence[DispatcherLog]) -> pa.Table:
    """Return the message log of several incarnations, sorted by position; often it is one table."""
    seen: list[pa.Table] = []
    for log in logs:
        if not any(log.messages is table for table in seen):
            seen.append(log.messages)
    if len(seen) == 1:
        return seen[0]
    return pa.concat_tables(seen).sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")])
