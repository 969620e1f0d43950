"""Log what a Pulsar consumer receives, acknowledges and asks for again: a client log (docs/client-log.md).

One file, of the standard library alone: copy it beside your application.

    consumer = LoggedConsumer(client.subscribe("orders", "audit", ConsumerType.KeyShared), "client-logs",
                              subscription_type="Key_Shared")
    message = consumer.receive()
    consumer.acknowledge(message)

The application is never blocked and never fails because of the log. Lines are kept in a queue of limited length, and a
thread writes them. If the queue is full, lines are lost, and the numbers in the log show it. If the disk fails, logging
ends.
"""

from __future__ import annotations

import atexit
import base64
import json
import logging
import os
import queue
import re
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

_LOGGER = logging.getLogger("dispatch_client_log")
_VERSION = "0.1.0"
_FLUSH_S = 1.0
#: Longest time that closing waits for the thread that writes.
_CLOSE_S = 5.0


class ClientLog:
    """The log of one consumer.

    Args:
        folder: gets the file ``client-<consumer>-<time>-<id>.jsonl``.
        topic, subscription, consumer: of the consumer.
        subscription_type: ``Exclusive``, ``Failover``, ``Shared`` or ``Key_Shared``; without it no order can be judged.
        cluster: the name that reports show.
        base64_keys: producers set keys as bytes, which this client shows in base64.
        queued_lines: lines that wait to be written; what comes when so many wait is lost.
        most_bytes: size of the file, about; what comes then is lost.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        topic: str,
        subscription: str,
        consumer: str,
        subscription_type: str | None = None,
        cluster: str | None = None,
        base64_keys: bool = False,
        queued_lines: int = 100_000,
        most_bytes: int = 1 << 30,
    ) -> None:
        self._topic = topic
        #: Topics of ledgers: of partitions, and of a consumer of several topics. A ledger is of one topic.
        self._topics: dict[int, str] = {}
        self._header = {
            "format": "pulsar-client-log",
            "format_version": "1.1",
            "topic": topic,
            "subscription": subscription,
            "subscription_type": subscription_type,
            "cluster": cluster,
            "consumer": consumer,
            "library": f"dispatch_client_log.py {_VERSION}",
            "records": ["client_nacked"],
        }
        name = re.sub(r"[^A-Za-z0-9._-]", "_", consumer)[:80]
        began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self.path = Path(folder) / f"client-{name}-{began}-{uuid.uuid4().hex[:8]}.jsonl"
        self._base64_keys = base64_keys
        self._most_bytes = most_bytes
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue(queued_lines)
        self._lock = threading.Lock()
        self._seq = 0
        self._ended = False  # something failed
        self._closed = False
        self._thread = threading.Thread(target=self._write, name="dispatch-client-log", daemon=True)
        self._thread.start()
        # Behind threading's own exit, where daemon threads still run.
        atexit.register(self._finish)

    def received(self, message: Any) -> None:
        """Log a message that the application got."""
        try:
            position, topic = message.message_id(), message.topic_name()
            line = self._about("client_received", position, topic)
            if topic != self._topic:
                self._topics[position.ledger_id()] = topic
            key = message.partition_key()
            if key:
                line |= {"key": key, "key_b64": True} if self._base64_keys else {"key": key}
            ordering_key = getattr(message, "ordering_key", str)()
            if ordering_key:
                raw = ordering_key.encode() if isinstance(ordering_key, str) else bytes(ordering_key)
                line["ordering_key_b64"] = base64.b64encode(raw).decode()
            count = message.redelivery_count()
            if count:
                line["redelivery_count"] = count
            self._put(line)
        except Exception as error:  # noqa: BLE001 - the application must not fail
            self._end(error)

    def acked(self, message: Any, *, cumulative: bool = False) -> None:
        """Log that a message, or a message id, is about to be acknowledged."""
        values = {"ack_type": "Cumulative"} if cumulative else {}
        self._of("client_acked", message, values)

    def nacked(self, message: Any = None) -> None:
        """Log that the redelivery of a message, or of all that are unacknowledged, is asked for."""
        if message is None:
            self._put({"kind": "client_nacked"})
        else:
            self._of("client_nacked", message, {})

    def close(self) -> None:
        """Log that the consumer is closed, and wait for some seconds until all is written."""
        self._put({"kind": "footer"})
        self._finish()

    def _of(self, kind: str, message: Any, values: dict[str, Any]) -> None:
        try:
            if hasattr(message, "message_id"):
                position, topic = message.message_id(), message.topic_name()
            else:  # an id does not tell its topic
                position, topic = message, self._topics.get(message.ledger_id())
            self._put(self._about(kind, position, topic) | values)
        except Exception as error:  # noqa: BLE001 - the application must not fail
            self._end(error)

    def _about(self, kind: str, position: Any, topic: str | None) -> dict[str, Any]:
        line = {"kind": kind, "position": f"{position.ledger_id()}:{position.entry_id()}"}
        if position.batch_index() >= 0:
            line["batch_index"] = position.batch_index()
        if topic and topic != self._topic:
            line["topic"] = topic
        return line

    def _put(self, line: dict[str, Any]) -> None:
        if self._ended or self._closed:
            return
        # One lock for number, time and place: a hole in the numbers then shows a line that was lost, and nothing else.
        with self._lock:
            self._seq += 1
            line = {"seq": self._seq, "t_us": time.time_ns() // 1000, **line}
            with suppress(queue.Full):  # the hole in the numbers shows it
                self._lines.put_nowait(line)

    def _finish(self) -> None:
        """Let the thread write what waits, and end."""
        atexit.unregister(self._finish)
        self._closed = True
        if self._thread.is_alive() and not self._ended:
            try:
                self._lines.put(None, timeout=_CLOSE_S)
            except queue.Full:
                return
        self._thread.join(_CLOSE_S)

    def _write(self) -> None:
        try:
            self._header["host"] = socket.gethostname()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("x", encoding="utf-8", errors="replace") as file:
                self._write_lines(file)
        except Exception as error:  # noqa: BLE001 - the application must not fail
            self._end(error)

    def _write_lines(self, file: TextIO) -> None:
        header = {name: value for name, value in self._header.items() if value is not None}
        written = file.write(f"{_json(header)}\n")
        flushed_s = time.monotonic()
        while True:
            if self._lines.empty() or time.monotonic() - flushed_s > _FLUSH_S:
                file.flush()
                flushed_s = time.monotonic()
            line = self._lines.get()
            if line is None:
                return
            if written > self._most_bytes:
                self._end(f"the file has {written} bytes")
                return
            written += file.write(f"{_json(line)}\n")

    def _end(self, why: object) -> None:
        """Log nothing more."""
        if not self._ended:
            self._ended = True
            _LOGGER.warning("the client log %s ends here: %s", self.path, why)


class LoggedConsumer:
    """A consumer of the package ``pulsar-client`` that logs; everything else is the consumer's own.

    ``options``: of ``ClientLog``. The messages of a message listener do not pass here: use a ``ClientLog`` in the listener.
    """

    def __init__(self, consumer: Any, folder: str | Path, **options: Any) -> None:
        self._consumer = consumer
        name = getattr(consumer, "consumer_name", lambda: "")() or f"pid-{os.getpid()}"
        options.setdefault("consumer", name)
        self.log = ClientLog(
            folder, topic=consumer.topic(), subscription=consumer.subscription_name(), **options
        )

    def receive(self, *arguments: Any, **values: Any) -> Any:
        """Receive a message, as the consumer does."""
        message = self._consumer.receive(*arguments, **values)
        self.log.received(message)
        return message

    def batch_receive(self) -> Any:
        """Receive several messages, as the consumer does."""
        messages = self._consumer.batch_receive()
        for message in messages:
            self.log.received(message)
        return messages

    def acknowledge(self, message: Any) -> Any:
        """Acknowledge a message or a message id."""
        self.log.acked(message)
        return self._consumer.acknowledge(message)

    def acknowledge_cumulative(self, message: Any) -> Any:
        """Acknowledge all messages up to one."""
        self.log.acked(message, cumulative=True)
        return self._consumer.acknowledge_cumulative(message)

    def negative_acknowledge(self, message: Any) -> Any:
        """Ask for the redelivery of a message."""
        self.log.nacked(message)
        return self._consumer.negative_acknowledge(message)

    def redeliver_unacknowledged_messages(self) -> Any:
        """Ask for the redelivery of all unacknowledged messages."""
        self.log.nacked()
        return self._consumer.redeliver_unacknowledged_messages()

    def close(self) -> Any:
        """Close the consumer and its log."""
        try:
            return self._consumer.close()
        finally:
            self.log.close()

    def __getattr__(self, name: str) -> Any:
        """Everything else of the consumer."""
        return getattr(self._consumer, name)


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))
