"""Keep what channels have not been told yet, and when a channel that failed is tried again.

An entry of the outbox is one interval, or one message without findings, that a channel waits for. What an interval's
messages are is computed when they are sent, from its verdicts and ``alerts_sent``, so that they say what holds by then. An
entry is put before the first attempt and taken out after everything of it was sent: nothing is lost when a process dies.

An interval is *announced* before it is judged. Until the run's own task sends its alerts, or that task is overdue, it waits
for no channel yet.

A channel that fails has an *outage*. It is tried again after ``STEPS``; and sooner for a new entry, but not within
``COOL_DOWN`` of a failure. Example: it fails at 00:00, and again at 00:01, 00:06, 00:36, 02:36, 08:36 and every 6 hours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa

from spark_jobs.location import Location
from spark_jobs.warehouse.records import Records

#: Times from a failure to the next attempt; the last one repeats.
STEPS: Final = (
    timedelta(minutes=1),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=6),
)
#: Least time from a failure to an attempt that a new entry asks for.
COOL_DOWN: Final = timedelta(minutes=1)
#: An outage that lasts longer is reported to the other channels, and fails the task that sees it.
LOUD_AFTER: Final = timedelta(hours=24)
#: So long after it was announced, an interval is sent by any run, because its own has not done it.
OVERDUE_AFTER: Final = timedelta(hours=1)

INTERVAL: Final = "interval"
NOTICE: Final = "notice"
#: Channel of an interval that is announced.
_ANNOUNCED: Final = ""
_TIME: Final = pa.timestamp("us", tz="UTC")
_ENTRIES: Final = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("channel", "kind", "key", "interval_end", "run")),
        *(pa.field(name, pa.string()) for name in ("subject", "body")),
        pa.field("since", _TIME),
    ]
)
_OUTAGES: Final = pa.schema(
    [
        pa.field("channel", pa.string()),
        pa.field("since", _TIME),
        pa.field("attempts", pa.int64()),
        pa.field("failed_at", _TIME),
        pa.field("reason", pa.string()),
        pa.field("reported", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One interval or notice that a channel waits for.

    ``key``: start of the interval, or the notice's idempotency key. ``run``: link to the run. ``since``: time at which it
    was put.
    """

    channel: str
    kind: str
    key: str
    since: datetime
    interval_end: str | None = None
    run: str | None = None
    subject: str = ""
    body: str = ""

    @property
    def announced(self) -> bool:
        """True for an interval that does not wait for channels yet."""
        return self.channel == _ANNOUNCED

    @property
    def order(self) -> tuple[bool, str, datetime]:
        """Sort key: notices first, then the oldest interval."""
        return self.kind == INTERVAL, self.key if self.kind == INTERVAL else "", self.since

    @property
    def identity(self) -> tuple[str, str, str]:
        """Channel, kind and key: an outbox has it once."""
        return self.channel, self.kind, self.key


@dataclass(frozen=True, slots=True)
class Outage:
    """A channel that fails: since when, how many attempts, the last one and its reason; if others were told."""

    channel: str
    since: datetime
    attempts: int
    failed_at: datetime
    reason: str
    reported: bool = False

    @property
    def retry_at(self) -> datetime:
        """Time of the next attempt."""
        return self.failed_at + STEPS[min(self.attempts, len(STEPS)) - 1]

    def allows(self, now: datetime, put: Iterable[datetime]) -> bool:
        """True if the channel may be tried. ``put``: times at which its entries were put; a new one is tried sooner."""
        fresh = any(since > self.failed_at for since in put)
        return now >= self.retry_at or (fresh and now >= self.failed_at + COOL_DOWN)

    def is_loud(self, now: datetime) -> bool:
        """True if it lasts so long that somebody must look."""
        return now - self.since >= LOUD_AFTER

    def again(self, now: datetime, reason: str) -> Outage:
        """Return the outage after one more failure."""
        return replace(self, attempts=self.attempts + 1, failed_at=now, reason=reason)


def failure(known: Outage | None, channel: str, now: datetime, reason: str) -> Outage:
    """Return a channel's outage after a failure."""
    return Outage(channel, now, 1, now, reason) if known is None else known.again(now, reason)


def announced(interval_start: str, interval_end: str, run: str | None, now: datetime) -> Entry:
    """Make the entry of an interval that is about to be judged."""
    return Entry(_ANNOUNCED, INTERVAL, interval_start, now, interval_end, run)


class Outbox:
    """The entries and outages of one home, as two small tables that are changed without a lock."""

    def __init__(self, place: Location) -> None:
        """``place``: a folder or prefix; it need not exist."""
        self._entries = Records(place / "entries", _ENTRIES)
        self._outages = Records(place / "outages", _OUTAGES)

    def entries(self) -> list[Entry]:
        """Read all entries in the order in which they are sent."""
        return _in_order(Entry(**row) for row in self._entries.read().to_pylist())

    def put(self, entries: Iterable[Entry]) -> list[Entry]:
        """Add the entries that are not there yet; return all. One that is there keeps its time, and gets the newer run."""
        added = {entry.identity: entry for entry in entries}

        def change(known: dict[tuple[str, str, str], Entry]) -> None:
            for identity, entry in added.items():
                since = known[identity].since if identity in known else entry.since
                known[identity] = replace(entry, since=since)

        return self._change(change)

    def fan_out(self, entry: Entry, channels: Collection[str], now: datetime) -> list[Entry]:
        """Let the channels wait for an announced interval, in one commit; return all entries."""

        def change(known: dict[tuple[str, str, str], Entry]) -> None:
            known.pop(entry.identity, None)
            for channel in channels:
                of_channel = replace(entry, channel=channel, since=now)
                known.setdefault(of_channel.identity, of_channel)

        return self._change(change)

    def remove(self, entries: Iterable[Entry]) -> None:
        """Take out entries of which everything was sent."""
        gone = {entry.identity for entry in entries}
        if gone:
            self._change(lambda known: [known.pop(identity, None) for identity in gone])

    def outages(self) -> dict[str, Outage]:
        """Read the outages by channel."""
        return {row["channel"]: Outage(**row) for row in self._outages.read().to_pylist()}

    def note(self, channel: str, outage: Outage | None) -> None:
        """Write a channel's outage, or that it has none any more."""

        def change(rows: pa.Table) -> pa.Table | None:
            others = [row for row in rows.to_pylist() if row["channel"] != channel]
            if outage is None and len(others) == rows.num_rows:
                return None
            changed = others if outage is None else [*others, asdict(outage)]
            return pa.Table.from_pylist(changed, schema=_OUTAGES)

        if outage is not None or self._outages.exists():
            self._outages.update(change)

    def _change(self, change: Callable[[dict[tuple[str, str, str], Entry]], object]) -> list[Entry]:
        """Change the entries; return all of them as they are then, in the order in which they are sent."""
        after: dict[tuple[str, str, str], Entry] = {}

        def changed(rows: pa.Table) -> pa.Table | None:
            nonlocal after
            before = {entry.identity: entry for entry in (Entry(**row) for row in rows.to_pylist())}
            after = dict(before)
            change(after)
            if after == before:
                return None
            return pa.Table.from_pylist([asdict(entry) for entry in after.values()], schema=_ENTRIES)

        self._entries.update(changed)
        return _in_order(after.values())


def _in_order(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.order)
