"""A scenario's clients: a producer in this process, consumers in processes of their own, and their journals."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pulsar

from dispatch_airflow.processes import end_with_parent
from tests.checkout import PYTHONPATH
from tests.recorder.broker import ROOT, Broker
from tests.recorder.client import ConsumerSettings, logger
from tests.recorder.journal import Journal, Step, steps
from tests.recorder.truth import Truth, truth

KEYS = 20
#: A client that lost its broker tries again after a minute at most.
PATIENCE_S = 150
_QUIET_S = 2.0


class NothingComesError(AssertionError):
    """A scenario does not go on: the clients see and do nothing any more."""


class Scenario:
    """Clients of subscription ``audit`` on the topic that is named after the broker's folder."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.folder = broker.folder
        self.topic = f"persistent://public/default/{broker.folder.name}"
        self.journal = Journal(broker.folder, "producer")
        self._consumers: dict[str, subprocess.Popen[bytes]] = {}
        self._client = pulsar.Client(broker.url, logger=logger(self.folder, "producer"))
        self._number = 0
        self._unstored = 0
        self._condition = threading.Condition()

    def __enter__(self) -> Scenario:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._consumers.values():
            process.kill()
            process.wait()
        self._client.close()

    # consumers ------------------------------------------------------------------------------------------------------

    def join(self, name: str, **settings: Any) -> None:
        """Start a consumer and wait until it has subscribed."""
        before = self._joins(name)
        consumer = ConsumerSettings(str(self.folder), self.broker.url, self.topic, name, **settings)
        with (self.folder / f"client-{name}.log").open("ab") as log:
            self._consumers[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.recorder.client", consumer.words()],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": PYTHONPATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one prctl call, nothing that could take a lock
            )
        self.until(lambda: self._joins(name) > before, f"{name} to subscribe")

    def leave(self, name: str) -> None:
        """Close a consumer: send SIGTERM and wait for its end."""
        process = self._consumers.pop(name)
        process.terminate()
        assert process.wait(30) == 0, f"{name} ended badly; see {self.folder / f'client-{name}.log'}"

    def kill(self, name: str) -> None:
        """Kill a consumer with SIGKILL, whatever it has not acknowledged."""
        process = self._consumers.pop(name)
        self.journal.note("killed", name)
        process.kill()
        process.wait()

    def restart(self, name: str, **settings: Any) -> None:
        """Close a consumer and start it again under its name, as a step of a rolling restart."""
        self.leave(name)
        self.join(name, **settings)

    def end(self) -> Truth:
        """Close all consumers, one by one; return what the clients saw."""
        for name in list(self._consumers):
            self.leave(name)
        return self.truth()

    # messages -------------------------------------------------------------------------------------------------------

    def producer(self, **more: Any) -> Any:
        """Create a producer of the topic; without batches, unless ``more`` sets them."""
        return self._client.create_producer(self.topic, block_if_queue_full=True, **more)

    def publish(self, producer: Any, count: int, *, every_ms: float = 0) -> None:
        """Publish ``count`` messages, with the keys in turn. Does not wait until they are stored, see ``stored``."""
        for _ in range(count):
            number, key = self._number, f"key-{self._number % KEYS}"
            self._number += 1
            with self._condition:
                self._unstored += 1
            producer.send_async(str(number).encode(), self._when_stored(key, number), partition_key=key)
            if every_ms:
                time.sleep(every_ms / 1000)

    def _when_stored(self, key: str, number: int) -> Callable[[Any, Any], None]:
        def done(result: Any, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                self.journal.message("published", None, message_id, key, number)
            with self._condition:
                self._unstored -= 1
                self._condition.notify_all()

        return done

    def stored(self) -> None:
        """Wait until all published messages are stored."""
        with self._condition:
            assert self._condition.wait_for(lambda: self._unstored == 0, PATIENCE_S), (
                "messages are not stored"
            )

    def drained(self) -> None:
        """Wait until all messages are stored, received and acknowledged, and the journals no longer grow."""
        self.stored()
        self.until(self._all_acknowledged, "all messages to be acknowledged")
        size = -1
        while size != (size := self._size()):
            time.sleep(_QUIET_S)

    def _size(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("journal-*.jsonl"))

    def _all_acknowledged(self) -> bool:
        seen = steps(self.folder)
        published = {(step.position, step.batch_index) for step in seen if step.what == "published"}
        return published <= {(step.position, step.batch_index) for step in seen if step.what == "acked"}

    # what is seen ---------------------------------------------------------------------------------------------------

    def truth(self) -> Truth:
        """Return what the clients saw so far."""
        return truth(steps(self.folder))

    def latest(self) -> str:
        """Return the name of the connected consumer that received a message last; wait until there is one."""
        found: list[str] = []

        def received() -> bool:
            found[:] = [step.consumer for step in self._of_connected() if step.what == "received"][-1:]
            return bool(found)

        self.until(received, "a connected consumer to receive a message")
        return found[0]

    def in_hand(self, count: int) -> None:
        """Wait until connected consumers have received ``count`` messages that they have not answered."""

        def reached() -> bool:
            seen = [step.what for step in self._of_connected()]
            return seen.count("received") - seen.count("acked") - seen.count("nacked") >= count

        self.until(reached, f"{count} messages in hand")

    def _of_connected(self) -> list[Step]:
        """The steps of the consumers that are connected, each since it joined last."""
        found: dict[str, list[Step]] = {name: [] for name in self._consumers}
        for step in steps(self.folder):
            if step.consumer in found:
                if step.what == "joined":
                    found[step.consumer].clear()
                found[step.consumer].append(step)
        return sorted(itertools.chain(*found.values()), key=lambda step: step.t_ns)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition as long as clients see or do something.

        Raises ``NothingComesError`` when the journals have not grown for ``PATIENCE_S``. A slow machine is no reason.
        """
        size, grown = self._size(), time.monotonic()
        while not condition():
            if size != (size := self._size()):
                grown = time.monotonic()
            if time.monotonic() - grown > PATIENCE_S:
                raise NothingComesError(
                    f"{self.folder}: {PATIENCE_S} s without a step of a client, waiting for {what}"
                )
            time.sleep(0.1)

    def _joins(self, name: str) -> int:
        return sum(step.what == "joined" and step.consumer == name for step in steps(self.folder))
