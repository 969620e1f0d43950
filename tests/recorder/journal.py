"""Journals of clients: one JSON line for each step, written at once, so that a kill loses at most the line being written.

Java's ``Witness`` writes the same lines: ``t_ns`` (the machine's monotonic clock, alike in all processes), ``what``,
``consumer`` (a name, null for what concerns the whole subscription) and, of a message, ``position``, ``batch_index``
(-1 = no batch), ``key`` and ``number``.

A client writes an action just before it does it, because other clients may see the effect at once.

======================  ==============================================================================================
``what``                meaning
======================  ==============================================================================================
published               the message is stored under this position
joined, left, killed    the consumer has subscribed; closes; ends without closing, by its process or connection
received                the client passed the message to its application
acked, nacked           the application did so; if the client was killed soon after, it may not have left the machine
reload                  the broker is about to lose its subscriptions: unload, stop, kill
======================  ==============================================================================================
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """A line of a journal. ``position`` to ``number`` are those of a message, else (-1, -1), -1, "" and -1.

    ``key`` is "" for a message without a key.
    """

    t_ns: int
    what: str
    consumer: str
    position: Position = (-1, -1)
    batch_index: int = -1
    key: str = ""
    number: int = -1
    type: str = ""  # subscription type in a ``joined`` line, if not Key_Shared


class Journal:
    """Append lines to ``journal-NAME.jsonl`` of a folder, each by one write to the file."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / f"journal-{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what: str, consumer: str | None = None, **more: Any) -> None:
        """Write a line now."""
        line = {"t_ns": time.monotonic_ns(), "what": what, "consumer": consumer, **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def message(self, what: str, consumer: str | None, message_id: Any, key: str, number: int) -> None:
        """Write a line about a message, with the position from the client's message id."""
        position = f"{message_id.ledger_id()}:{message_id.entry_id()}"
        self.note(
            what,
            consumer,
            position=position,
            batch_index=message_id.batch_index(),
            key=key,
            number=number,
        )


def steps(folder: Path) -> list[Step]:
    """Return the steps of all journals of a folder in the order of time."""
    return sorted(_read(folder), key=lambda step: step.t_ns)


def _read(folder: Path) -> Iterator[Step]:
    for file in sorted(folder.glob("journal-*.jsonl")):
        for line in file.read_bytes().split(b"\n")[:-1]:  # a line without its end was being written at a kill
            row = json.loads(line)
            row["consumer"] = row["consumer"] or ""
            if "position" in row:
                ledger, entry = row["position"].split(":")
                row["position"] = (int(ledger), int(entry))
                row["key"] = row["key"] or ""
            yield Step(**row)
