"""One consumer in a process of its own: ``python -m tests.recorder.client '{"name": "c1", …}'``, see ``ConsumerSettings``.

It receives each message at once, holds it for ``hold_ms``, acknowledges it or sends a negative ack, and writes each step to
its journal. SIGTERM: acknowledge the messages in hand (or not, see ``finish``), close, end. SIGKILL is the crash.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pulsar

from tests.recorder.journal import Journal

#: Acknowledgements are gathered for 100 ms by the client; closing sends them, but a reload in between would lose them.
_NACK_DELAY_MS = 300


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Settings of a consumer.

    ``hold_ms``: time between receipt and acknowledgement; -1 = never acknowledge. ``nack_every``: send a negative ack for
    every n-th message when it comes for the first time; 0 = never. ``most_in_hand``: receive no more while so many are not
    acknowledged. ``finish``: SIGTERM acknowledges the messages in hand. ``cumulative``: acknowledge up to a message instead
    of each message. ``ranges``: hash ranges, which make it a STICKY consumer.
    """

    folder: str
    url: str
    topic: str
    name: str
    type: str = "KeyShared"
    hold_ms: int = 0
    nack_every: int = 0
    most_in_hand: int = 1000
    finish: bool = True
    queue: int = 50
    batch_index_ack: bool = False
    cumulative: bool = False
    ranges: list[list[int]] = field(default_factory=list)

    def words(self) -> str:
        """Return the settings as JSON, for the command line."""
        return json.dumps(asdict(self))


class _Consumer:
    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._journal = Journal(Path(settings.folder), settings.name)
        self._client = pulsar.Client(settings.url, logger=logger(Path(settings.folder), settings.name))
        self._stop = False
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        policy = None
        if settings.ranges:
            policy = pulsar.ConsumerKeySharedPolicy(
                pulsar.KeySharedMode.Sticky, False, [(low, high) for low, high in settings.ranges]
            )
        self._consumer = self._client.subscribe(
            settings.topic,
            "audit",
            consumer_type=getattr(pulsar.ConsumerType, settings.type),
            consumer_name=settings.name,
            receiver_queue_size=settings.queue,
            negative_ack_redelivery_delay_ms=_NACK_DELAY_MS,
            batch_index_ack_enabled=settings.batch_index_ack,
            key_shared_policy=policy,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        self._journal.note("joined", settings.name, type=settings.type)
        self._in_hand: deque[tuple[float, Any]] = deque()
        self._refused: set[tuple[int, int, int]] = set()
        self._taken = 0

    def _ask_to_stop(self, _number: int, _frame: object) -> None:
        self._stop = True

    def run(self) -> None:
        while not self._stop:
            if len(self._in_hand) < self._settings.most_in_hand:
                with suppress(pulsar.Timeout):
                    self._take(self._consumer.receive(timeout_millis=20))
            else:
                time.sleep(0.02)
            self._acknowledge(time.monotonic())
        if self._settings.finish:
            self._acknowledge(float("inf"))
        self._journal.note("left", self._settings.name)
        self._consumer.close()
        self._client.close()

    def _take(self, message: Any) -> None:
        self._say("received", message)
        self._taken += 1
        identity = message.message_id()
        known = (identity.ledger_id(), identity.entry_id(), identity.batch_index())
        if (
            self._settings.nack_every
            and self._taken % self._settings.nack_every == 0
            and known not in self._refused
        ):
            self._refused.add(known)
            self._say("nacked", message)
            self._consumer.negative_acknowledge(message)
        elif self._settings.hold_ms >= 0:
            self._in_hand.append((time.monotonic() + self._settings.hold_ms / 1000, message))

    def _acknowledge(self, now: float) -> None:
        due = []
        while self._in_hand and self._in_hand[0][0] <= now:
            due.append(self._in_hand.popleft()[1])
        for message in due:
            self._say("acked", message)
            if not self._settings.cumulative:
                self._consumer.acknowledge(message)
        if due and self._settings.cumulative:
            self._consumer.acknowledge_cumulative(due[-1])

    def _say(self, what: str, message: Any) -> None:
        self._journal.message(
            what, self._settings.name, message.message_id(), message.partition_key(), int(message.data())
        )


def logger(folder: Path, name: str) -> Any:
    """Return a logger that writes to the file of the client of this name."""
    return pulsar.FileLogger(pulsar.LoggerLevel.Info, str(folder / f"client-{name}.log"))


if __name__ == "__main__":
    _Consumer(ConsumerSettings(**json.loads(sys.argv[1]))).run()
