"""The client log of Python: what a consumer sees is logged, and the application notices nothing of it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.recording.client_files import ClientSession, find_client_logs, read_client_logs
from dispatch_core.recording.client_log import merged
from recorder.client.dispatch_client_log import ClientLog, LoggedConsumer

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "persistent://public/default/orders"


@dataclass(frozen=True)
class Id:
    """A message id, as the package ``pulsar-client`` gives it."""

    entry: int
    batch: int = -1
    ledger: int = 3

    def ledger_id(self) -> int:
        return self.ledger

    def entry_id(self) -> int:
        return self.entry

    def batch_index(self) -> int:
        return self.batch

    def topic_name(self, topic: str) -> None:
        """Set the topic: no method tells it."""
        raise AssertionError(topic)


@dataclass(frozen=True)
class Message:
    """A message, likewise."""

    id: Id
    key: str = "k"
    ordering: str = ""
    count: int = 0
    topic: str = TOPIC

    def message_id(self) -> Id:
        return self.id

    def topic_name(self) -> str:
        return self.topic

    def partition_key(self) -> str:
        return self.key

    def ordering_key(self) -> str:
        return self.ordering

    def redelivery_count(self) -> int:
        return self.count


@dataclass
class Consumer:
    """A consumer that returns messages and notes its calls."""

    messages: list[Message] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def topic(self) -> str:
        return TOPIC

    def subscription_name(self) -> str:
        return "audit"

    def consumer_name(self) -> str:
        return "w/1"

    def receive(self, timeout_millis: int | None = None) -> Message:
        self.calls.append(("receive", timeout_millis))
        return self.messages.pop(0)

    def batch_receive(self) -> list[Message]:
        taken, self.messages = self.messages, []
        return taken

    def acknowledge(self, message: Any) -> None:
        self.calls.append(("acknowledge", message))

    def acknowledge_cumulative(self, message: Any) -> None:
        self.calls.append(("acknowledge_cumulative", message))

    def negative_acknowledge(self, message: Any) -> None:
        self.calls.append(("negative_acknowledge", message))

    def redeliver_unacknowledged_messages(self) -> None:
        self.calls.append(("redeliver_unacknowledged_messages", None))

    def seek(self, to: Any) -> None:
        self.calls.append(("seek", to))

    def close(self) -> None:
        self.calls.append(("close", None))


def read(folder: Path) -> ClientSession:
    logs = read_client_logs(find_client_logs([folder]))
    assert logs.quarantine.num_rows == 0
    [session] = logs.sessions
    return session


def test_what_the_consumer_sees_is_logged(tmp_path: Path) -> None:
    first, second = Message(Id(1)), Message(Id(2, batch=0), key="", ordering="ü", count=3)
    third = Message(Id(3, ledger=4), topic=f"{TOPIC}-partition-1")
    consumer = Consumer([first, second, third])
    logged = LoggedConsumer(consumer, tmp_path, subscription_type="Key_Shared", cluster="eu-1")
    assert logged.receive(timeout_millis=5) is first
    assert logged.batch_receive() == [second, third]
    logged.acknowledge(first)
    logged.acknowledge(second.id)
    logged.acknowledge_cumulative(third.id)
    logged.negative_acknowledge(third)
    logged.redeliver_unacknowledged_messages()
    logged.seek("earliest")
    logged.close()
    assert consumer.calls == [
        ("receive", 5),
        ("acknowledge", first),
        ("acknowledge", second.id),
        ("acknowledge_cumulative", third.id),
        ("negative_acknowledge", third),
        ("redeliver_unacknowledged_messages", None),
        ("seek", "earliest"),
        ("close", None),
    ]
    session = read(tmp_path)
    assert session.disconnects_known is False
    named = ("topic", "subscription", "subscription_type", "cluster", "consumer")
    assert [session.header[name] for name in named] == [TOPIC, "audit", "Key_Shared", "eu-1", "w/1"]
    assert [line.kind for line in session.lines] == [
        *["client_received"] * 3,
        *["client_acked"] * 3,
        *["client_nacked"] * 2,
        "footer",
    ]
    assert [line.seq for line in session.lines] == [*range(1, 10)]
    assert [line.entry_id for line in session.lines] == [1, 2, 3, 1, 2, 3, 3, None, None]
    of_first, of_second, of_third = session.lines[:3]
    assert (of_first.key, of_second.key, of_second.ordering_key_b64) == (
        "k",
        None,
        "w7w=",
    )
    assert (of_second.batch_index, of_second.redelivery_count) == (0, 3)
    assert of_third.topic == f"{TOPIC}-partition-1"
    assert (session.lines[5].ack_type, session.lines[5].topic) == ("Cumulative", f"{TOPIC}-partition-1")


def test_the_log_is_merged_and_ends_with_the_consumer(tmp_path: Path) -> None:
    logged = LoggedConsumer(Consumer([Message(Id(1))]), tmp_path)
    logged.acknowledge(logged.receive())
    logged.close()
    [clients] = merged([read(tmp_path)], "")
    kinds = clients.log.events["kind"].to_pylist()
    assert kinds == ["consumer_added", "sent", "ack", "consumer_removed"]


def test_a_full_queue_loses_lines_and_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()
    write_lines = ClientLog._write_lines

    def later(log: ClientLog, file: Any) -> None:
        may_write.wait(10)
        write_lines(log, file)

    monkeypatch.setattr(ClientLog, "_write_lines", later)
    log = ClientLog(tmp_path, topic=TOPIC, subscription="audit", consumer="w1", queued_lines=3)
    for entry in range(7):
        log.received(Message(Id(entry)))
    may_write.set()
    while not log._lines.empty():
        pass
    log.received(Message(Id(7)))
    log.close()
    lines = read(tmp_path).lines
    assert [(line.entry_id, line.lost) for line in lines] == [(0, 0), (1, 0), (2, 0), (7, 4), (None, 0)]


def test_a_log_of_limited_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog(tmp_path, topic=TOPIC, subscription="audit", consumer="w1", most_bytes=2000)
    for entry in range(500):
        log.received(Message(Id(entry)))
    log.close()
    assert 2000 < log.path.stat().st_size < 2500
    assert "ends here: the file has" in caplog.text


def test_a_disk_that_fails_ends_the_log_and_not_the_application(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    logged = LoggedConsumer(Consumer([Message(Id(n)) for n in range(3)]), tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        for entry in range(3):
            assert logged.receive().id == Id(entry)
        logged.close()
    assert caplog.text.count("ends here") == 1


def test_an_unusual_message_ends_the_log_and_not_the_application(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logged = LoggedConsumer(Consumer(["no message"]), tmp_path)  # type: ignore[list-item]
    assert logged.receive() == "no message"
    logged.acknowledge("no message")
    logged.close()
    assert caplog.text.count("ends here") == 1


def test_keys_of_bytes(tmp_path: Path) -> None:
    log = ClientLog(tmp_path, topic=TOPIC, subscription="audit", consumer="w1", base64_keys=True)
    log.received(Message(Id(1), key="a2V5"))
    log.close()
    [line, _] = read(tmp_path).lines
    assert (line.key, line.key_b64) == ("a2V5", True)


def test_a_process_that_ends_without_closing_writes_what_waits(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from recorder.client.dispatch_client_log import ClientLog\n"
        f"log = ClientLog(sys.argv[1], topic={TOPIC!r}, subscription='audit', consumer='w1')\n"
        "for _ in range(50): log.nacked()\n"
        "assert 'pulsar' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True, timeout=60)
    assert [line.kind for line in read(tmp_path).lines] == ["client_nacked"] * 50
