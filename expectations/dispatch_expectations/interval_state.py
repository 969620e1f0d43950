"""Read what metrics show of the newest judged interval from the tables: whoever asks, and whenever, gets the same.

So a backfill, or an interval that is judged again, does not put old numbers in the place of new ones.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.times import micros
from dispatch_expectations.alert_ledger import TABLE as ALERTS_SENT
from dispatch_expectations.alert_outbox import Outbox
from dispatch_expectations.metrics import IntervalState
from dispatch_expectations.promise import ALL
from dispatch_expectations.table_rows import aggregate, interval_dataset, read_batches, whole_dataset
from dispatch_expectations.validate import read_verdicts
from spark_jobs.intervals import interval
from spark_jobs.location import Location
from spark_jobs.warehouse.delta_tables import Place, committed_at, rows_of_files
from spark_jobs.warehouse.run_ledger import Ledger


def newest_state(warehouse: Place, outbox: Location | None = None) -> IntervalState | None:
    """Read the state of the latest interval that has verdicts; None if none has.

    ``outbox``: place of the home's outbox; without it, ``alerts_waiting`` is empty.
    """
    judged_at = committed_at(warehouse, "verdicts")
    if not judged_at:
        return None
    start = max(judged_at)
    ledger = Ledger(warehouse)
    span = next(
        (
            interval(summary["interval_start"], summary.get("interval_end"))
            for stage in ("replay", "ingest")
            if (summary := ledger.newest(stage).get(micros(start)))
        ),
        interval(start),
    )
    stages = {
        stage: ledger.newest(stage).get(micros(start), {}) for stage in ("ingest", "replay", "aggregates")
    }
    alerts_sent = _alerts_sent(warehouse, start)
    return IntervalState(
        start=span.start,
        end=span.end,
        judged_at=judged_at[start],
        verdicts={
            verdict.dispatcher: verdict.verdict
            for verdict in read_verdicts(warehouse, start)
            if verdict.promise == ALL
        },
        findings=_findings(warehouse, start),
        messages=sum(rows_of_files(warehouse, "messages", span).values()),
        stage_seconds={
            stage: summary["seconds"] for stage, summary in stages.items() if "seconds" in summary
        },
        alerts_sent=alerts_sent,
        alerts_waiting={} if outbox is None else dict.fromkeys(alerts_sent, 0) | _alerts_waiting(outbox),
    )


def _findings(warehouse: Place, start: datetime) -> dict[tuple[str, bool], int]:
    """Count the interval's anomalies by kind and whether they are certain."""
    keys = ["kind", "uncertain"]
    groups = aggregate(read_batches(interval_dataset(warehouse, "anomalies", start), keys), keys)
    found: Counter[tuple[str, bool]] = Counter()
    for group in groups:
        found[group["kind"], not group["uncertain"]] += group["count"]
    return dict(found)


def _alerts_sent(warehouse: Place, start: datetime) -> dict[str, int]:
    """Count the messages about the interval by channel: the notifications of one message have one time."""
    message = ["channel", "sent_at"]
    of_interval = pc.field("interval_start") == pa.scalar(start, pa.timestamp("us", tz="UTC"))
    rows = aggregate(read_batches(whole_dataset(warehouse, ALERTS_SENT), message, of_interval), message)
    return dict(Counter(row["channel"] for row in rows))


def _alerts_waiting(outbox: Location) -> dict[str, int]:
    """Count what waits in the outbox by channel."""
    return dict(Counter(entry.channel for entry in Outbox(outbox).entries() if not entry.announced))
