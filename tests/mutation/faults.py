"""A fault in a recording: what must be found, what may be found, and how lines are changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.mutation.recording import Delivery, Line, Recording


def ordinal(position: str) -> tuple[int, ...]:
    return tuple(int(part) for part in position.split(":"))


@dataclass(frozen=True)
class May:
    """A finding that may follow from the fault. ``None`` = any key, any position."""

    kind: str
    key: str | None = None
    positions: frozenset[str] | None = None
    uncertain: bool = False  # only as an uncertain one

    def covers(self, finding: dict[str, Any]) -> bool:
        return (
            finding["kind"] == self.kind
            and (self.key is None or finding["key"] == self.key)
            and (self.positions is None or set(finding["positions"][:1]) <= self.positions)
            and (not self.uncertain or finding["uncertain"])
        )


@dataclass(frozen=True)
class Mutation:
    """A recording with a fault. ``position``: the finding must name it; ``None`` = the kind names none.

    ``reason``: the finding must have it; ``None`` = any. ``also``: the kind of a finding of all that waits, which may name
    the position instead; ``None`` = there is none.
    """

    recording: Recording
    kind: str
    key: str | None
    position: str | None
    consumer: int | None
    may: tuple[May, ...]
    reason: str | None = None
    also: str | None = None

    def is_found_by(self, finding: dict[str, Any]) -> bool:
        if self.also is not None and finding["kind"] == self.also and self.position in finding["positions"]:
            return True
        return (
            finding["kind"] == self.kind
            and (self.key is None or finding["key"] == self.key)
            and (self.position is None or self.position in finding["positions"])
            and (self.consumer is None or self.consumer in finding["consumers"])
            and (self.reason is None or finding.get("reason") == self.reason)
        )

    def explains(self, finding: dict[str, Any]) -> bool:
        return any(may.covers(finding) for may in self.may) or self._contradicts_state(finding)

    def _contradicts_state(self, finding: dict[str, Any]) -> bool:
        """Check for a divergence of state: other lines of a trace still show the state without the fault.

        One about no entry, or a position of the cursor on the other side of the fault's entry. Or permits that no longer
        are what flows and deliveries make them.
        """
        if self.recording.header["format"] != "pulsar-dispatch-trace":
            return False
        if finding["kind"] in ("permit_leak", "permit_drift"):
            return True
        if finding["kind"] != "divergence":
            return False
        if not finding["positions"]:
            return True
        low, high = (find(map(ordinal, finding["positions"])) for find in (min, max))
        at = None if self.position is None else ordinal(self.position)
        return finding["reason"] == "position" and at is not None and low <= at <= high


Mutator = Callable[[Recording, random.Random], Mutation | None]


def mutation(
    recording: Recording, kind: str, at: Delivery | None, *may: May, consumer: int | None = None
) -> Mutation:
    key = recording.key(at.position) if at is not None else None
    position = at.position if at is not None else None
    return Mutation(recording.numbered(), kind, key, position, consumer, may)


# lines --------------------------------------------------------------------------------------------------------------


def sent_to(like: Line, consumer: int, position: str, t_us: int | None = None) -> Line:
    """A ``sent`` line of one entry."""
    same = {name: value for name, value in like.items() if name not in ("permits_before", "hashes")}
    return {
        **same,
        "consumer": consumer,
        "positions": [position],
        "batch_sizes": [1],
        "t_us": like["t_us"] if t_us is None else t_us,
    }


def flow_of(like: Line, consumer: int, rng: random.Random) -> list[Line]:
    """Half of the time: a flow of one permit, for the message that the connection gets in addition."""
    line = {"seq": 0, "t_us": like["t_us"], "kind": "flow", "consumer": consumer, "permits": 1}
    return [line] if rng.random() < 0.5 else []


def ack_of(consumer: int, position: str, t_us: int) -> Line:
    return {
        "seq": 0, "t_us": t_us, "kind": "ack", "consumer": consumer, "ack_type": "Individual", "positions": [position],
    }  # fmt: skip


def only_without(line: Line, position: str) -> Line | None:
    """Return the line without a position; ``None`` if it has no other."""
    return without(line, lambda other: other == position)


def without(line: Line, gone: Callable[[str], bool]) -> Line | None:
    """Return the line without some positions; ``None`` if it has no other."""
    kept = [at for at, position in enumerate(line["positions"]) if not gone(position)]
    if not kept:
        return None
    lists = ("positions", "batch_sizes", "ack_sets")
    return line | {name: [line[name][at] for at in kept] for name in lists if line.get(name)}


def drop(recording: Recording, kinds: tuple[str, ...], gone: Callable[[Line, str], bool]) -> None:
    """Take positions out of lines of some kinds, and remove the lines that then have none."""
    events: list[Line] = []
    for line in recording.events:
        if line["kind"] in kinds and line.get("positions"):
            left = without(line, lambda position, line=line: gone(line, position))  # type: ignore[misc]
            if left is not None:
                events.append(left)
        else:
            events.append(line)
    recording.events = events


def ack_at(recording: Recording, position: str, consumer: int) -> None:
    """Let another connection acknowledge an entry."""
    events: list[Line] = []
    for line in recording.events:
        events.append(line)
        if line["kind"] == "ack" and position in line["positions"]:
            left = only_without(line, position)
            events.pop()
            events += [ack for ack in (left, ack_of(consumer, position, line["t_us"])) if ack is not None]
    recording.events = events


def send_elsewhere(recording: Recording, delivery: Delivery, consumer: int, rng: random.Random) -> None:
    """Send an entry to another connection instead, in a line of its own behind the rest of its line."""
    line = recording.events[delivery.line]
    ack_at(recording, delivery.position, consumer)
    left = only_without(line, delivery.position)
    number = next(at for at, other in enumerate(recording.events) if other is line)
    recording.events[number : number + 1] = [
        *([left] if left else []),
        *flow_of(line, consumer, rng),
        sent_to(line, consumer, delivery.position),
    ]


def insert_at_time(recording: Recording, line: Line, after: int) -> None:
    """Insert a line by its time, behind the line with index ``after``."""
    number = after + 1
    while number < len(recording.events) and recording.events[number]["t_us"] <= line["t_us"]:
        number += 1
    recording.events.insert(number, line)


#: Lines between which no time may be inserted: a consumer without permits, for example, rightly gets nothing.
WORK = ("sent", "ack", "consumer_added", "redeliver", "flow")


def leaving(recording: Recording) -> int:
    """Index of the first line of the tail, in which all consumers leave and none is sent or requests anything."""
    number = len(recording.events)
    while number and recording.events[number - 1]["kind"] not in WORK:
        number -= 1
    return number


def shuffled(items: Iterable[Delivery], rng: random.Random) -> list[Delivery]:
    found = list(items)
    rng.shuffle(found)
    return found


def others(
    recording: Recording, delivery: Delivery, rng: random.Random, since: int | None = None
) -> list[int]:
    """Shuffle the connections that could have got the entry instead.

    They are connected from the delivery to its ack, with at least five permits to spare.
    """
    until = recording.acked.get(delivery.position, len(recording.events) - 1)
    present = recording.connected[delivery.line] & recording.connected[until]
    since = delivery.line if since is None else since
    found = [
        consumer
        for consumer in sorted(present - {delivery.consumer})
        if recording.slack(consumer, since) >= 5
    ]
    rng.shuffle(found)
    return found
