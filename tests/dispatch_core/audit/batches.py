"""Audits of a log in several batches, for comparison with the audit of the whole log."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.deliveries.fold import EVENT_COLUMNS, MESSAGE_COLUMNS, RARE_KINDS, AuditFold
from dispatch_core.audit.deliveries.rows import Audit
from dispatch_core.recording.log import DispatcherLog
from tests.dispatch_core.audit.small_logs import MIDNIGHT


def head_of(log: DispatcherLog, *, foresight: bool = True) -> DispatcherLog:
    """The log before its first batch, with or without its rare lines."""
    rare = log.events.filter(pc.is_in(log.events["kind"], value_set=pa.array(RARE_KINDS)))
    return replace(log, messages=log.messages.slice(0, 0), events=rare if foresight else rare.slice(0, 0))


def reached(log: DispatcherLog) -> list[int]:
    """For each event the number of rows of the message log that hold every position named up to it."""
    row_of = {(m["ledger_id"], m["entry_id"]): row for row, m in enumerate(log.messages.to_pylist(), start=1)}
    named = zip(log.events["positions"].to_pylist(), log.events["moved_to"].to_pylist(), strict=True)
    needed = [
        max(
            (
                row_of.get((p["ledger_id"], p["entry_id"]), 0)
                for p in [*(positions or []), *([] if moved is None else [moved])]
            ),
            default=0,
        )
        for positions, moved in named
    ]
    return list(itertools.accumulate(needed, max))


def in_batches(
    log: DispatcherLog,
    cuts: Sequence[int],
    *,
    foresight: bool = True,
    all_messages: bool = False,
    **options: Any,
) -> list[Audit]:
    """Audit the events between ``cuts``. Entries come as late as they can, or all with the first batch."""
    fold = AuditFold(head_of(log, foresight=foresight), interval_start=MIDNIGHT, **options)
    needed = reached(log)
    audits, stored, last = [], 0, 0
    for cut in [*sorted(set(cuts) - {0}), log.events.num_rows]:
        upto = max([*needed[last:cut], stored])
        if all_messages or cut == log.events.num_rows:
            upto = log.messages.num_rows
        audits.append(
            fold.feed(
                log.messages.select(MESSAGE_COLUMNS).slice(stored, upto - stored),
                log.events.select(EVENT_COLUMNS).slice(last, cut - last),
            )
        )
        stored, last = upto, cut
    return audits


def same(batches: Sequence[Audit], whole: Audit) -> None:
    """Assert that the tables of all batches are those of the whole log."""
    for name in ("deliveries", "anomalies"):
        joined = pa.concat_tables([getattr(batch, name) for batch in batches])
        assert joined.to_pylist() == getattr(whole, name).to_pylist()
