"""A recording as raw lines, and what a mutator has to know of them. Nothing of the product is used here."""

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

#: What a user can record (format 1.0, level E).
USER_LEVEL = (
    "consumer_added", "consumer_removed", "flow", "sent", "ack", "redeliver", "subscribe_rejected", "active_notified",
)  # fmt: skip
#: Fields of these lines that only a trace has.
TRACE_ONLY = ("hashes", "permits_before", "read_position", "mark_delete")


def lines_of(path: Path) -> list[Line]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


@dataclass(frozen=True)
class Sending:
    """An entry handed to a connection: place ``at`` of the line with index ``line``."""

    line: int
    at: int
    consumer: int
    position: str


@dataclass
class Life:
    """The lines of one recording; a mutator works on a copy."""

    name: str
    header: Line
    messages: list[Line]
    events: list[Line] = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> Self:
        header, *events = lines_of(folder / "trace.jsonl.gz")
        messages = lines_of(folder / "messages.jsonl.gz")
        return cls(f"{folder.parent.name}/{folder.name}", header, messages, events)

    def user_level(self) -> Life:
        """The lines that a user could have recorded, numbered anew."""
        events = [
            {name: value for name, value in line.items() if name not in TRACE_ONLY}
            for line in self.events
            if line["kind"] in USER_LEVEL
        ]
        header = dict(self.header, format="pulsar-consumer-events")
        return Life(self.name, header, self.messages, events).numbered()

    def copied(self) -> Life:
        return Life(self.name, dict(self.header), self.messages, copy.deepcopy(self.events))

    def numbered(self) -> Life:
        """The same with ``seq`` 1, 2, 3 …"""
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
        """The key as it is shown: text or base64."""
        message = self.stored.get(position, {})
        key = message.get("ordering_key_b64") or message.get("key")
        return None if key is None else str(key)

    @cached_property
    def sendings(self) -> list[Sending]:
        return [
            Sending(number, at, line["consumer"], position)
            for number, line in enumerate(self.events)
            if line["kind"] == "sent"
            for at, position in enumerate(line["positions"])
        ]

    @cached_property
    def of_key(self) -> dict[str, list[Sending]]:
        found = defaultdict(list)
        for sending in self.sendings:
            key = self.key(sending.position)
            if key is not None:
                found[key].append(sending)
        return found

    @cached_property
    def acked(self) -> dict[str, int]:
        """Position → index of the line that acknowledges it, of entries that are acknowledged once, as a whole."""
        found: dict[str, list[int]] = defaultdict(list)
        for number, line in enumerate(self.events):
            if line["kind"] == "ack" and line["ack_type"] == "Individual":
                for at, position in enumerate(line["positions"]):
                    if not (line.get("ack_sets") or [[]] * (at + 1))[at]:
                        found[position].append(number)
        return {position: numbers[0] for position, numbers in found.items() if len(numbers) == 1}

    @cached_property
    def asked_again(self) -> set[str]:
        return {p for line in self.events if line["kind"] == "redeliver" for p in line.get("positions") or ()}

    @cached_property
    def times_sent(self) -> Counter[str]:
        return Counter(sending.position for sending in self.sendings)

    def is_plain(self, position: str) -> bool:
        """Sent once, acknowledged once, one message, with a text key."""
        message = self.stored.get(position, {})
        return (
            self.times_sent[position] == 1
            and position in self.acked
            and position not in self.asked_again
            and message.get("num_messages", 1) == 1
            and message.get("key") is not None
            and not message.get("key_b64")
            and message.get("ordering_key_b64") is None
        )

    @cached_property
    def connected(self) -> list[frozenset[int]]:
        """Before each line: who is connected."""
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
        """Index of the last line in which somebody joins, or leaves while others go on to be sent something."""
        last_sent = self.sendings[-1].line
        changes = [
            number
            for number, line in enumerate(self.events)
            if line["kind"] == "consumer_added" or (line["kind"] == "consumer_removed" and number < last_sent)
        ]
        return max(changes)

    def slack(self, consumer: int, since: int) -> int:
        """Fewest permits that a consumer has to spare from a line on."""
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
