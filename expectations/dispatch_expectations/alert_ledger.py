"""Read and append to the table ``alerts_sent``: the notifications of each channel, so that each is sent once.

One row per notification. The rows depend on when intervals were judged and which channels existed, not on the logs alone.
The rows of one message are appended in one commit after it was sent. A process that is killed in between sends the message
again, with the same idempotency keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import pyarrow.dataset as ds

from dispatch_expectations.alert_state import NEW, History, Notification, histories
from dispatch_expectations.frames import KEY, Dispatcher
from dispatch_expectations.table_rows import read_batches, whole_dataset
from spark_jobs.warehouse.delta_tables import Place, all_files, append_rows, join_files

TABLE: Final = "alerts_sent"
#: Kind of a message without findings, about runs and channels; it has no dispatcher.
OPERATIONS: Final = "operations"
_NO_DISPATCHER: Final = ("", "", "")
#: Each message adds a small file; more than this many are joined.
_MAX_FILES: Final = 200
_COLUMNS: Final = ("identity", "kind", "subject", "interval_start", "number", "state", "severity", "evidence")


def read_histories(
    warehouse: Place, channel: str, topics: Collection[str]
) -> Mapping[Dispatcher, Mapping[str, History]]:
    """Read a channel's notifications about the dispatchers of some topics: per dispatcher, histories by identity."""
    wanted = (ds.field("channel") == channel) & ds.field("topic").isin(sorted(topics))
    sent: defaultdict[Dispatcher, list[Notification]] = defaultdict(list)
    for batch in read_batches(whole_dataset(warehouse, TABLE), [*KEY, *_COLUMNS], wanted):
        for row in batch.to_pylist():
            sent[row["cluster"], row["topic"], row["subscription"]].append(
                Notification(**{name: row[name] for name in _COLUMNS})
            )
    return {dispatcher: histories(rows) for dispatcher, rows in sent.items()}


def reported_dispatchers(warehouse: Place, kinds: Collection[str]) -> set[Dispatcher]:
    """Read the dispatchers that some channel was told a finding of these kinds of."""
    wanted = ds.field("kind").isin(sorted(kinds))
    batches = read_batches(whole_dataset(warehouse, TABLE), list(KEY), wanted)
    return {tuple(row[name] for name in KEY) for batch in batches for row in batch.to_pylist()}  # type: ignore[misc]


def open_dispatchers(warehouse: Place) -> set[Dispatcher]:
    """Return the dispatchers of which some channel has reported a finding and not yet that it is clear."""
    by_channel: defaultdict[tuple[str, Dispatcher], list[Notification]] = defaultdict(list)
    wanted = ds.field("kind") != OPERATIONS
    for batch in read_batches(whole_dataset(warehouse, TABLE), ["channel", *KEY, *_COLUMNS], wanted):
        for row in batch.to_pylist():
            who = row["cluster"], row["topic"], row["subscription"]
            by_channel[row["channel"], who].append(Notification(**{name: row[name] for name in _COLUMNS}))
    return {
        who
        for (_channel, who), rows in by_channel.items()
        if any(history.last_open is not None for history in histories(rows).values())
    }


def record_sent(
    warehouse: Place, channel: str, notifications: Iterable[tuple[Dispatcher, Notification, str]]
) -> None:
    """Append the notifications of one message, each with its dispatcher and idempotency key, in one commit."""
    now = datetime.now(UTC)
    rows = [
        {name: getattr(notification, name) for name in _COLUMNS}
        | {"channel": channel, **dict(zip(KEY, dispatcher, strict=True))}
        | {"idempotency_key": key, "sent_at": now}
        for dispatcher, notification, key in notifications
    ]
    if not rows:
        return
    append_rows(warehouse, TABLE, rows)
    if len(all_files(warehouse, TABLE)) > _MAX_FILES:
        join_files(warehouse, TABLE)


def record_notice(warehouse: Place, channel: str, key: str, subject: str) -> None:
    """Append that a channel was sent a message without findings. ``key``: its idempotency key."""
    notification = Notification(
        identity=key,
        kind=OPERATIONS,
        subject=subject,
        interval_start=datetime.now(UTC),
        number=1,
        state=NEW,
        severity="major",
        evidence="",
    )
    record_sent(warehouse, channel, [(_NO_DISPATCHER, notification, key)])


def notices_sent(warehouse: Place, channel: str, keys: Collection[str]) -> set[str]:
    """Return those of the idempotency keys whose message without findings a channel was sent."""
    wanted = (
        (ds.field("channel") == channel)
        & (ds.field("kind") == OPERATIONS)
        & ds.field("idempotency_key").isin(sorted(keys))
    )
    batches = read_batches(whole_dataset(warehouse, TABLE), ["idempotency_key"], wanted if keys else None)
    return {key for batch in batches for key in batch.column("idempotency_key").to_pylist()} & set(keys)
