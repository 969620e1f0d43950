"""Read a log as a schedule: what producers and clients did, in order, and what the broker sent them.

An entry is published at its publish time, but not later than the first line that names it or a later entry. The steps of
connections have names that are unique among the connected consumers: the consumer's own, with its number where two share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from dispatch_core.broker.hashing import NONE_KEY, dispatch_key, entry_key
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, subscription_type

What = Literal["publish", "join", "permits", "receive", "ack", "nack", "leave"]

#: Lines that say what the broker told clients, or what the log says of itself: nobody does anything then.
_NOTHING_DONE: Final = ("active_notified", "gap", "checkpoint", "footer", "step", "end")


class NoScheduleError(DispatchAuditError):
    """The log has a line that no client step stands for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry, numbered from 0.

    ``position``: as the log has it. ``key``: of its messages, ``None`` = none. ``hashed``: the bytes that the broker hashes.
    """

    number: int
    position: str
    key: bytes | None
    hashed: bytes
    messages: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    ``consumer``: unique name. ``name``: that of its client. ``entries``: numbers. ``parts``: for an ``ack`` of some
    messages of a batch the indexes acknowledged, one tuple for each of ``entries``, empty = the whole entry. A ``nack``
    without entries asks for all that the consumer holds. ``ranges``: of a sticky consumer.
    """

    what: What
    t_us: int
    consumer: str = ""
    name: str = ""
    entries: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    cumulative: bool = False
    permits: int = 0
    priority_level: int = 0
    out_of_order: bool = False
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of one subscription, and the entries of its topic."""

    broker_version: str
    settings: dict[str, Any]
    subscription_type: str
    entries: tuple[Entry, ...]
    steps: tuple[Step, ...]


def schedule_of(log: DispatcherLog) -> Schedule:
    """Read a log. Raises ``NoScheduleError`` for a line that no step stands for, such as a move of the cursor."""
    by_producer = profile_of(log).fallback_key
    entries = tuple(_entry(number, row, by_producer) for number, row in enumerate(log.messages.to_pylist()))
    return Schedule(
        broker_version=str(log.header.get("broker_version") or ""),
        settings=dict(log.header.get("config") or {}),
        subscription_type=subscription_type(log),
        entries=entries,
        steps=tuple(_steps(log, {entry.position: entry for entry in entries})),
    )


def text_of(value: Any) -> str:
    """Return the value of a setting as ``broker.conf`` has it.

    >>> text_of(True), text_of(100)
    ('true', '100')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def _entry(number: int, row: dict[str, Any], by_producer: bool) -> Entry:
    position = f"{row['ledger_id']}:{row['entry_id']}"
    given = row["key"], row["key_b64"], row["ordering_key_b64"]
    if row["key_h31"] is not None and given[0] is given[2] is None:
        raise NoScheduleError(
            f"{position} has a hash instead of its key; ask for --disguise, which makes a key with that hash of it"
        )
    hashed = dispatch_key(*given, row["producer"], row["sequence_id"], fallback=by_producer)
    key = entry_key(*given)
    return Entry(number, position, key, NONE_KEY if hashed is None else hashed, max(row["num_messages"], 1))


def _steps(log: DispatcherLog, entries: dict[str, Entry]) -> Iterator[Step]:
    published_us = [(time or 0) * 1000 for time in log.messages["publish_time_ms"].to_pylist()]
    names = _names(log)
    published = 0
    for row in log.events.to_pylist():
        t_us = row["t_us"] or 0
        named = [entries.get(f"{p['ledger_id']}:{p['entry_id']}") for p in row["positions"] or ()]
        numbers = tuple(entry.number for entry in named if entry is not None)
        due = max(numbers, default=-1) + 1
        while due < len(published_us) and published_us[due] <= t_us:
            due += 1
        if due > published:
            yield Step("publish", t_us, entries=tuple(range(published, due)))
            published = due
        step = _step(row, t_us, names, named, numbers)
        if step is not None:
            yield step
    if published < len(published_us):
        yield Step("publish", published_us[-1], entries=tuple(range(published, len(published_us))))


def _step(
    row: dict[str, Any], t_us: int, names: dict[int, str], named: list[Entry | None], numbers: tuple[int, ...]
) -> Step | None:
    kind, consumer = row["kind"], names.get(row["consumer"], "")
    if kind == "consumer_added":
        return Step(
            "join",
            t_us,
            consumer,
            name=row["name"] or "",
            priority_level=row["priority_level"] or 0,
            out_of_order=bool(row["key_shared_allow_out_of_order"]),
            ranges=tuple((part["start"], part["end"]) for part in row["ranges"] or ()),
        )
    if kind == "consumer_removed":
        return Step("leave", t_us, consumer)
    if kind == "flow":
        return Step("permits", t_us, consumer, permits=row["permits"])
    if kind == "sent":
        return Step("receive", t_us, consumer, entries=numbers)
    if kind == "redeliver":
        return Step("nack", t_us, consumer, entries=numbers)
    if kind == "ack":
        sets = row["ack_sets"] or [[]] * len(named)
        parts = [
            _acknowledged(entry, words) for entry, words in zip(named, sets, strict=True) if entry is not None
        ]
        cumulative = row["ack_type"] == "Cumulative"
        return Step("ack", t_us, consumer, entries=numbers, parts=tuple(parts), cumulative=cumulative)
    if kind in _NOTHING_DONE:
        return None
    raise NoScheduleError(
        f"line {row['seq']} is a {kind}: only joins, leaves, permits, acknowledgements and redelivery requests are client "
        "steps here, so there is no script of this log"
    )


def _acknowledged(entry: Entry, words: list[int] | None) -> tuple[int, ...]:
    """Return the indexes of a batch that an ``ack_set`` acknowledges: its bits are those that are not; none = the whole."""
    if not words:
        return ()
    bits = sum((word & ((1 << 64) - 1)) << (64 * at) for at, word in enumerate(words))
    return tuple(index for index in range(entry.messages) if not bits >> index & 1)


def _names(log: DispatcherLog) -> dict[int, str]:
    """Return a unique name for each connection whose name is connected twice; the others are called by their own."""
    named: dict[int, str] = {}
    connected: Counter[str] = Counter()
    shared: set[str] = set()
    for row in log.events.select(["kind", "consumer", "name"]).to_pylist():
        if row["kind"] == "consumer_added":
            name = row["name"] or f"consumer {row['consumer']}"
            named[row["consumer"]] = name
            connected[name] += 1
            if connected[name] > 1:
                shared.add(name)
        elif row["kind"] == "consumer_removed" and row["consumer"] in named:
            connected[named[row["consumer"]]] -= 1
    return {number: f"{name} ({number})" if name in shared else name for number, name in named.items()}
