"""Find the subscriptions with open alerts that were deleted: no later interval has them, so none would clear the alerts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Final

import pyarrow.dataset as ds

from dispatch_core.audit.promises.promise import PASS
from dispatch_core.recording.stored_files import parquet_dataset
from dispatch_expectations.alert_ledger import open_dispatchers
from dispatch_expectations.frames import KEY, NOBODY, Dispatcher
from dispatch_expectations.promise import ALL
from dispatch_expectations.table_rows import interval_dataset, read_batches
from dispatch_expectations.verdict import Verdict
from spark_jobs.intervals import interval
from spark_jobs.warehouse.delta_tables import Place, files_until

#: Lines that end a subscription, and that begin one.
_DELETED: Final = "subscription_deleted"
_BEGIN: Final = ("consumer_added", "checkpoint")
#: So many intervals are looked at, from the newest back.
_MOST_INTERVALS: Final = 400


def deleted_subscriptions(
    warehouse: Place, interval_start: datetime, judged: Collection[Dispatcher]
) -> list[Verdict]:
    """Return a PASS for each subscription that has open alerts, is not ``judged`` in the interval, and was deleted before.

    The reason says when. A subscription of which the newest judged interval does not end with its deletion is left out.
    """
    wanted = {
        who
        for who in open_dispatchers(warehouse)
        if who not in judged and who != NOBODY and who[1][-1:] != "*"
    }
    found = []
    for start, present in _last_judged(warehouse, interval_start, wanted) if wanted else ():
        for dispatcher, deleted_us in _deleted_in(warehouse, start, present).items():
            at = datetime.fromtimestamp(deleted_us / 1_000_000, UTC)
            cluster, topic, subscription = dispatcher
            reason = f"the subscription was deleted at {at:%Y-%m-%d %H:%M:%S} UTC"
            found.append(Verdict(interval_start, cluster, topic, subscription, 0, ALL, PASS, 0, 0, reason))
    return sorted(found, key=lambda verdict: verdict.dispatcher)


def _last_judged(
    warehouse: Place, before: datetime, wanted: set[Dispatcher]
) -> Iterator[tuple[datetime, set[Dispatcher]]]:
    """Yield intervals from the newest back, each with those dispatchers whose newest verdict is in it."""
    left = set(wanted)
    by_start: dict[datetime, list[str]] = {}
    for file, start in files_until(warehouse, "verdicts", interval(before)):
        by_start.setdefault(start, []).append(file)
    for start in sorted(by_start, reverse=True)[:_MOST_INTERVALS]:
        rows = ds.field("topic").isin(sorted({topic for _cluster, topic, _subscription in left}))
        batches = read_batches(parquet_dataset(by_start[start]), KEY, rows & (ds.field("promise") == ALL))
        here = {tuple(row[name] for name in KEY) for batch in batches for row in batch.to_pylist()}
        present = {dispatcher for dispatcher in left if dispatcher in here}
        if present:
            yield start, present
        left -= present
        if not left:
            return


def _deleted_in(warehouse: Place, start: datetime, dispatchers: set[Dispatcher]) -> dict[Dispatcher, int]:
    """Return the times (µs) at which those of the dispatchers were deleted that an interval's log ends without."""
    rows = ds.field("kind").isin([_DELETED, *_BEGIN]) & ds.field("topic").isin(
        sorted({topic for _cluster, topic, _subscription in dispatchers})
    )
    last: dict[Dispatcher, tuple[int, int, str, int]] = {}
    events = interval_dataset(warehouse, "consumer_events", start)
    for batch in read_batches(events, [*KEY, "incarnation", "seq", "kind", "t_us"], rows):
        for row in batch.to_pylist():
            who = row["cluster"], row["topic"], row["subscription"]
            line = row["incarnation"] or 0, row["seq"] or 0, row["kind"], row["t_us"] or 0
            if who in dispatchers and line[:2] >= last.get(who, line)[:2]:
                last[who] = line
    return {who: t_us for who, (_incarnation, _seq, kind, t_us) in last.items() if kind == _DELETED}
