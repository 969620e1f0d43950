"""A recording as raw lines, with what a mutator needs to know of them. Uses no code of the product."""

from __future__ import annotations

import copy
import gzip
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

Line = dict[str, Any]

#: Kinds of lines in a log without a trace (format 1.0, level E).
LEVEL_E = (
    "consumer_added", "consumer_removed", "flow", "sent", "ack", "redeliver", "subscribe_rejected", "active_notified",
)  # fmt: skip
#: Fields of these lines that only a trace has.
TRACE_ONLY = ("hashes", "permits_before", "read_position", "mark_delete")


def lines_of(path: Path) -> list[Line]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


@dataclass(frozen=True)
class Delivery:
    """A delivery of an entry to a connection: place ``at`` of the line with index ``line``."""

    line: int
    at: int
    consumer: int
    position: str


@dataclass
class Recording:
    """The lines of a recording; a mutator works on a copy."""

    name: str
    header: Line
    messages: list[Line]
    events: list[Line] = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> Self:
        header, *events = lines_of(folder / "trace.jsonl.gz")
        messages = lines_of(folder / "messages.jsonl.gz")
        return cls(f"{folder.parent.name}/{folder.name}", header, messages, events)

    def without_trace(self) -> Recording:
        """Return the log without a trace of the same events, numbered anew."""
        events = [
            {name: value for name, value in line.items() if name not in TRACE_ONLY}
            for line in self.events
            if line["kind"] in LEVEL_E
        ]
        header = dict(self.header, format="pulsar-consumer-events")
        return Recording(self.name, header, self.messages, events).numbered()

    def copied(self) -> Recording:
        return Recording(self.name, dict(self.header), self.messages, copy.deepcopy(self.events))

    def numbered(self) -> Recording:
        """Number the lines anew: ``seq`` 1, 2, 3 …"""
        for seq, line in enumerate(self.events, start=1):
            line["seq"] = seq
        return self

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        name = "trace" if self.header["format"] == "pulsar-dispatch-trace" else "events"
        for file, lines in (("messages", self.messages), (name, [self.header, *self.events])):
            with gzip.open(folder / f"{file}.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as out:
                out.writelines(json.dumps(line) + "\n" for line in lines)
        return folder

    # what happened --------------------------------------------------------------------------------------------------

    @cached_property
    def stored(self) -> dict[str, Line]:
        return {line["position"]: line for line in self.messages if "position" in line}

    def key(self, position: str) -> str | None:
        """Return the key as reports show it: text or base64."""
        message = self.stored.get(position, {})
        key = message.get("ordering_key_b64") or message.get("key")
        return None if key is None else str(key)

    @cached_property
    def deliveries(self) -> list[Delivery]:
        return [
            Delivery(number, at, line["consumer"], position)
            for number, line in enumerate(self.events)
            if line["kind"] == "sent"
            for at, position in enumerate(line["positions"])
        ]

    @cached_property
    def deliveries_of_key(self) -> dict[str, list[Delivery]]:
        found = defaultdict(list)
        for delivery in self.deliveries:
            key = self.key(delivery.position)
            if key is not None:
                found[key].append(delivery)
        return found

    @cached_property
    def acked(self) -> dict[str, int]:
        """Index of the line that acknowledges each position, for entries acknowledged once and as a whole."""
        found: dict[str, list[int]] = defaultdict(list)
        for number, line in enumerate(self.events):
            if line["kind"] == "ack" and line["ack_type"] == "Individual":
                for at, position in enumerate(line["positions"]):
                    if not (line.get("ack_sets") or [[]] * (at + 1))[at]:
                        found[position].append(number)
        return {position: numbers[0] for position, numbers in found.items() if len(numbers) == 1}

    @cached_property
    def redelivery_requested(self) -> set[str]:
        return {p for line in self.events if line["kind"] == "redeliver" for p in line.get("positions") or ()}

    @cached_property
    def times_sent(self) -> Counter[str]:
        return Counter(delivery.position for delivery in self.deliveries)

    def is_plain(self, position: str) -> bool:
        """Return True for an entry of one message with a text key that was sent once and acknowledged once."""
        message = self.stored.get(position, {})
        return (
            self.times_sent[position] == 1
            and position in self.acked
            and position not in self.redelivery_requested
            and message.get("num_messages", 1) == 1
            and message.get("key") is not None
            and not message.get("key_b64")
            and message.get("ordering_key_b64") is None
        )

    @cached_property
    def connected(self) -> list[frozenset[int]]:
        """Consumers connected before each line."""
        now: frozenset[int] = frozenset()
        found = []
        for line in self.events:
            found.append(now)
            if line["kind"] == "consumer_added":
                now |= {line["consumer"]}
            elif line["kind"] == "consumer_removed":
                now -= {line["consumer"]}
        return found

    @cached_property
    def last_change(self) -> int:
        """Index of the last line in which a consumer joins, or leaves before the last delivery."""
        last_sent = self.deliveries[-1].line
        changes = [
            number
            for number, line in enumerate(self.events)
            if line["kind"] == "consumer_added" or (line["kind"] == "consumer_removed" and number < last_sent)
        ]
        return max(changes)

    def slack(self, consumer: int, since: int) -> int:
        """Return the fewest permits that a consumer has left from the line with index ``since`` on."""
        permits, least = 0, 10**9
        for number, line in enumerate(self.events):
            if line.get("consumer") != consumer:
                continue
            if line["kind"] == "flow":
                permits += line["permits"]
            elif line["kind"] == "sent":
                permits -= sum(line.get("batch_sizes") or [1] * len(line["positions"]))
            if number >= since:
                least = min(least, permits)
        return least if least < 10**9 else permits
