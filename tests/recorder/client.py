"""One consumer in a process of its own: ``python -m tests.recorder.client '{"name": "c1", …}'``, see ``Terms``.

It takes each message at once, holds it as long as its terms say, acknowledges or refuses it, and writes all of that down.
SIGTERM: acknowledge what is in hand (or not, see ``finish``), close, end. SIGKILL is the crash.
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
class Terms:
    """What a consumer is told.

    ``hold_ms``: between receipt and acknowledgement; -1 = never acknowledge. ``nack_every``: every so many-th message is
    refused when it comes for the first time; 0 = none. ``most_in_hand``: with so many it takes no more. ``finish``: whether
    SIGTERM acknowledges what is in hand. ``cumulative``: acknowledge up to a message instead of each. ``ranges``: makes a
    STICKY consumer.
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
        """For the command line."""
        return json.dumps(asdict(self))


class _Consumer:
    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._journal = Journal(Path(terms.folder), terms.name)
        self._client = pulsar.Client(terms.url, logger=logger(Path(terms.folder), terms.name))
        self._stop = False
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        policy = None
        if terms.ranges:
            policy = pulsar.ConsumerKeySharedPolicy(
                pulsar.KeySharedMode.Sticky, False, [(low, high) for low, high in terms.ranges]
            )
        self._consumer = self._client.subscribe(
            terms.topic,
            "audit",
            consumer_type=getattr(pulsar.ConsumerType, terms.type),
            consumer_name=terms.name,
            receiver_queue_size=terms.queue,
            negative_ack_redelivery_delay_ms=_NACK_DELAY_MS,
            batch_index_ack_enabled=terms.batch_index_ack,
            key_shared_policy=policy,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        self._journal.note("joined", terms.name, type=terms.type)
        self._in_hand: deque[tuple[float, Any]] = deque()
        self._refused: set[tuple[int, int, int]] = set()
        self._taken = 0

    def _ask_to_stop(self, _number: int, _frame: object) -> None:
        self._stop = True

    def run(self) -> None:
        while not self._stop:
            if len(self._in_hand) < self._terms.most_in_hand:
                with suppress(pulsar.Timeout):
                    self._take(self._consumer.receive(timeout_millis=20))
            else:
                time.sleep(0.02)
            self._acknowledge(time.monotonic())
        if self._terms.finish:
            self._acknowledge(float("inf"))
        self._journal.note("left", self._terms.name)
        self._consumer.close()
        self._client.close()

    def _take(self, message: Any) -> None:
        self._say("received", message)
        self._taken += 1
        identity = message.message_id()
        known = (identity.ledger_id(), identity.entry_id(), identity.batch_index())
        if (
            self._terms.nack_every
            and self._taken % self._terms.nack_every == 0
            and known not in self._refused
        ):
            self._refused.add(known)
            self._say("nacked", message)
            self._consumer.negative_acknowledge(message)
        elif self._terms.hold_ms >= 0:
            self._in_hand.append((time.monotonic() + self._terms.hold_ms / 1000, message))

    def _acknowledge(self, now: float) -> None:
        due = []
        while self._in_hand and self._in_hand[0][0] <= now:
            due.append(self._in_hand.popleft()[1])
        for message in due:
            self._say("acked", message)
            if not self._terms.cumulative:
                self._consumer.acknowledge(message)
        if due and self._terms.cumulative:
            self._consumer.acknowledge_cumulative(due[-1])

    def _say(self, what: str, message: Any) -> None:
        self._journal.message(
            what, self._terms.name, message.message_id(), message.partition_key(), int(message.data())
        )


def logger(folder: Path, name: str) -> Any:
    """Where a client of this name says what it has to say."""
    return pulsar.FileLogger(pulsar.LoggerLevel.Info, str(folder / f"client-{name}.log"))


if __name__ == "__main__":
    _Consumer(Terms(**json.loads(sys.argv[1]))).run()
