"""A fault in a life: what must be found, what may be found, and how lines are changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.mutation.lives import Life, Line, Sending


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
    """A life with a fault. ``position``: one that the finding must name first; ``None`` = the kind names none."""

    life: Life
    kind: str
    key: str | None
    position: str | None
    consumer: int | None
    may: tuple[May, ...]

    def is_found_by(self, finding: dict[str, Any]) -> bool:
        return (
            finding["kind"] == self.kind
            and (self.key is None or finding["key"] == self.key)
            and (self.position is None or self.position in finding["positions"])
            and (self.consumer is None or self.consumer in finding["consumers"])
        )

    def explains(self, finding: dict[str, Any]) -> bool:
        return any(may.covers(finding) for may in self.may)


Mutator = Callable[[Life, random.Random], Mutation | None]


def mutation(life: Life, kind: str, at: Sending | None, *may: May, consumer: int | None = None) -> Mutation:
    key = life.key(at.position) if at is not None else None
    position = at.position if at is not None else None
    return Mutation(life.numbered(), kind, key, position, consumer, may)


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
    """Half of the time the connection asks for one more message, the one that is sent to it beyond the others."""
    line = {"seq": 0, "t_us": like["t_us"], "kind": "flow", "consumer": consumer, "permits": 1}
    return [line] if rng.random() < 0.5 else []


def ack_of(consumer: int, position: str, t_us: int) -> Line:
    return {
        "seq": 0, "t_us": t_us, "kind": "ack", "consumer": consumer, "ack_type": "Individual", "positions": [position],
    }  # fmt: skip


def only_without(line: Line, position: str) -> Line | None:
    """The line without one position."""
    return without(line, lambda other: other == position)


def without(line: Line, gone: Callable[[str], bool]) -> Line | None:
    """The line without some positions; ``None`` if it has no other."""
    kept = [at for at, position in enumerate(line["positions"]) if not gone(position)]
    if not kept:
        return None
    lists = ("positions", "batch_sizes", "ack_sets")
    return line | {name: [line[name][at] for at in kept] for name in lists if line.get(name)}


def drop(life: Life, kinds: tuple[str, ...], gone: Callable[[Line, str], bool]) -> None:
    """Take positions out of lines of some kinds, and lines that then have none."""
    events: list[Line] = []
    for line in life.events:
        if line["kind"] in kinds and line.get("positions"):
            left = without(line, lambda position, line=line: gone(line, position))  # type: ignore[misc]
            if left is not None:
                events.append(left)
        else:
            events.append(line)
    life.events = events


def ack_at(life: Life, position: str, consumer: int) -> None:
    """The ack of an entry comes from another connection."""
    events: list[Line] = []
    for line in life.events:
        events.append(line)
        if line["kind"] == "ack" and position in line["positions"]:
            left = only_without(line, position)
            events.pop()
            events += [one for one in (left, ack_of(consumer, position, line["t_us"])) if one is not None]
    life.events = events


def insert_at_time(life: Life, line: Line, after: int) -> None:
    """Put a line where its time belongs, behind the line with index ``after``."""
    number = after + 1
    while number < len(life.events) and life.events[number]["t_us"] <= line["t_us"]:
        number += 1
    life.events.insert(number, line)


#: Lines without which time may pass: whoever has not asked for messages yet rightly gets none meanwhile.
WORK = ("sent", "ack", "consumer_added", "redeliver", "flow")


def leaving(life: Life) -> int:
    """Index of the first line of the tail, in which everybody leaves, and nobody is sent or asks for anything."""
    number = len(life.events)
    while number and life.events[number - 1]["kind"] not in WORK:
        number -= 1
    return number


def shuffled(items: Iterable[Sending], rng: random.Random) -> list[Sending]:
    found = list(items)
    rng.shuffle(found)
    return found


def others(life: Life, sending: Sending, rng: random.Random, since: int | None = None) -> list[int]:
    """Connections that could have got it instead: there from before until long after, with permits to spare."""
    until = life.acked.get(sending.position, len(life.events) - 1)
    present = life.connected[sending.line] & life.connected[until]
    since = sending.line if since is None else since
    found = [one for one in sorted(present - {sending.consumer}) if life.slack(one, since) >= 5]
    rng.shuffle(found)
    return found
