"""The table ``alerts_sent``: the notifications of each channel, so that each is sent once.

One row per notification. It lies in the warehouse but is no result of the logs: it depends on when intervals were judged
and which channels were there, and is outside any comparison of tables. Rows are only ever added, those of one message in
one commit, after the message was sent: whoever dies in between sends that message once more, under the same keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from dispatch_expectations import warehouse as wh
from dispatch_expectations.alert_state import History, Notification, histories
from dispatch_expectations.frames import KEY, Dispatcher

TABLE: Final = "alerts_sent"
_MOMENT: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("channel", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("subscription", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("identity", pa.string(), nullable=False),
        pa.field("interval_start", _MOMENT, nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("evidence", pa.string(), nullable=False),
        pa.field("idempotency_key", pa.string(), nullable=False),
        pa.field("sent_at", _MOMENT, nullable=False),
    ]
)
#: Each message adds a small file; from this many on they are joined.
_MAX_FILES: Final = 200
_COLUMNS: Final = ("identity", "kind", "subject", "interval_start", "number", "state", "severity", "evidence")


def read_histories(
    warehouse: Path, channel: str, topics: Collection[str]
) -> Mapping[Dispatcher, Mapping[str, History]]:
    """Read a channel's notifications about the dispatchers of some topics: per dispatcher, histories by identity."""
    if not wh.has_table(warehouse, TABLE):
        return {}
    wanted = (ds.field("channel") == channel) & ds.field("topic").isin(sorted(topics))
    sent: defaultdict[Dispatcher, list[Notification]] = defaultdict(list)
    for batch in wh.read_batches(wh.whole_dataset(warehouse, TABLE), [*KEY, *_COLUMNS], wanted):
        for row in batch.to_pylist():
            sent[row["cluster"], row["topic"], row["subscription"]].append(
                Notification(**{name: row[name] for name in _COLUMNS})
            )
    return {dispatcher: histories(rows) for dispatcher, rows in sent.items()}


def keep(
    warehouse: Path,
    channel: str,
    dispatcher: Dispatcher,
    notifications: Iterable[tuple[Notification, str]],
) -> None:
    """Add the notifications that a message held, each with its idempotency key, in one commit."""
    now = datetime.now(UTC)
    rows = [
        {name: getattr(notification, name) for name in _COLUMNS}
        | {"channel": channel, **dict(zip(KEY, dispatcher, strict=True))}
        | {"idempotency_key": key, "sent_at": now}
        for notification, key in notifications
    ]
    if not rows:
        return
    path = warehouse / TABLE
    write_deltalake(str(path), pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")
    table = DeltaTable(str(path))
    if len(table.file_uris()) > _MAX_FILES:
        try:
            table.optimize.compact()
            table.vacuum(dry_run=False)
        except CommitFailedError:
            return  # somebody else joined them at the same moment; the rows are kept either way
