"""``record-messages`` with a stand-in for Pulsar's client: its output, which never has secrets."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dispatch_core.cli.main import main
from dispatch_core.importers.topic_messages.client import full_name, partition_of
from tests.dispatch_core.importers.fake_topic import FakeId, FakeMessage, FakeReader, NoMessageError
from tests.json_lines import valid_lines

SECRET = "eyJ-secret-token"
TOPIC = "persistent://public/default/orders"
URL = "pulsar://broker.example:6650"


class PulsarError(Exception):
    """Stand-in for ``pulsar.PulsarException``."""


class FakePulsar:
    """Stand-in for the module ``pulsar``. ``topics``: partitions by topic, messages by partition."""

    def __init__(self) -> None:
        self.partitions: dict[str, list[str]] = {}
        self.messages: dict[str, list[FakeMessage]] = {}
        self.started: list[tuple[str, Any]] = []
        self.clients: list[dict[str, Any]] = []
        self.closed = 0
        self.sought: list[int] = []
        self.fails: Exception | None = None

    Timeout = NoMessageError
    PulsarException = PulsarError
    ConsumerCryptoFailureAction = SimpleNamespace(CONSUME="consume")

    class MessageId:
        earliest = "earliest"
        latest = "latest"

        def __new__(cls, *parts: int) -> Any:
            return parts

    @staticmethod
    def AuthenticationToken(token: Any) -> tuple[str, Any]:  # noqa: N802 - the client's name
        return "token", token

    @staticmethod
    def AuthenticationOauth2(text: str) -> tuple[str, str]:  # noqa: N802
        return "oauth2", text

    @staticmethod
    def AuthenticationTLS(cert: str, key: str) -> tuple[str, str, str]:  # noqa: N802
        return "tls", cert, key

    def Client(self, url: str, **how: Any) -> FakePulsar:  # noqa: N802
        self.clients.append({"url": url} | how)
        return self

    def get_topic_partitions(self, topic: str) -> list[str]:
        if self.fails is not None:
            raise self.fails
        return self.partitions.get(topic, [topic])

    def create_reader(self, topic: str, start: Any, **how: Any) -> FakeReader:
        assert how["crypto_failure_action"] == "consume"
        self.started.append((topic, start))
        reader = FakeReader(list(self.messages.get(topic, [])))
        reader.seek = self.sought.append  # type: ignore[attr-defined]
        return reader

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def pulsar(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePulsar]:
    fake = FakePulsar()
    fake.messages[TOPIC] = [FakeMessage(FakeId(5, number)) for number in range(4)]
    monkeypatch.setitem(sys.modules, "pulsar", fake)  # type: ignore[arg-type]
    yield fake
    assert fake.closed == len(fake.clients)


def record(out: Path, *options: str, topic: str = "orders") -> int:
    return main(["record-messages", "--service-url", URL, "--topic", topic, "--out", str(out), *options])


def objects(text: str) -> list[dict[str, Any]]:
    return valid_lines("record-messages", text)


def test_a_topic_is_recorded_and_a_further_run_goes_on_behind(
    pulsar: FakePulsar, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(tmp_path) == 0
    said = capsys.readouterr()
    assert f"{TOPIC}: 4 entries (4 messages) in 1 files of {tmp_path}; caught up at 5:3" in said.out
    assert said.err == ""
    pulsar.messages[TOPIC].append(FakeMessage(FakeId(6, 0)))
    assert record(tmp_path, "--json", "--from", "latest") == 0
    (row,) = objects(capsys.readouterr().out)
    assert (row["topic"], row["entries"], row["last"], row["ended"]) == (TOPIC, 1, "6:0", "caught up")
    assert pulsar.started == [(TOPIC, "earliest"), (TOPIC, (-1, 5, 3, -1))]
    assert main(["convert", str(tmp_path), "--out", str(tmp_path / "copy"), "--format", "jsonl"]) == 0
    assert "5 lines" in capsys.readouterr().out


def test_every_partition_is_recorded(
    pulsar: FakePulsar, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{TOPIC}-partition-{number}" for number in (0, 10, 2)]
    pulsar.partitions[TOPIC] = names
    pulsar.messages |= {name: [FakeMessage(FakeId(7, 0))] for name in names}
    assert record(tmp_path, "--json") == 0
    assert [row["topic"] for row in objects(capsys.readouterr().out)] == [names[0], names[2], names[1]]
    assert record(tmp_path) == 0
    assert pulsar.started[-1] == (names[1], (10, 7, 0, -1))


@pytest.mark.parametrize(
    ("where", "start", "sought"),
    [("latest", "latest", []), ("2026-11-21T00:00:01", "earliest", [1795219201000])],
)
def test_where_to_begin(
    where: str, start: str, sought: list[int], pulsar: FakePulsar, tmp_path: Path
) -> None:
    assert record(tmp_path, "--from", where) == 0
    assert pulsar.started == [(TOPIC, start)]
    assert pulsar.sought == sought


def test_until_ends_before_the_first_entry_of_that_time(
    pulsar: FakePulsar, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pulsar.messages[TOPIC].append(FakeMessage(FakeId(5, 4), publish_ms=1795219201000))
    assert record(tmp_path, "--until", "2026-11-21T00:00:01", "--json") == 0
    (row,) = objects(capsys.readouterr().out)
    assert (row["last"], row["ended"]) == ("5:3", "reached until")


def test_a_signal_ends_following_and_the_segments_are_whole(
    pulsar: FakePulsar, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        "dispatch_core.importers.topic_messages.reader.read_all.__kwdefaults__",
        {**_defaults(), "pause": lambda _seconds: os.kill(os.getpid(), signal.SIGTERM)},
    )
    assert record(tmp_path, "--follow", "--json") == 0
    (row,) = objects(capsys.readouterr().out)
    assert (row["entries"], row["ended"]) == (4, "stopped")
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(tmp_path.glob("*.partial"))


def _defaults() -> dict[str, Any]:
    from dispatch_core.importers.topic_messages import reader

    return dict(reader.read_all.__kwdefaults__ or {})


@pytest.mark.parametrize(
    ("options", "form"),
    [([], b'"key":"k"'), (["--keys", "key_h31"], b'"key_h31":'), (["--base64-keys"], b'"key":"k"')],
)
def test_the_form_of_keys(
    options: list[str], form: bytes, pulsar: FakePulsar, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(tmp_path, "--format", "jsonl", *options) == 0
    (path,) = tmp_path.glob("*.jsonl")
    assert form in path.read_bytes()
    assert ("written as text: check --base64-keys" in capsys.readouterr().err) == ("--base64-keys" in options)


def test_tokens_and_passwords_reach_the_client_and_nothing_else(
    pulsar: FakePulsar, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n")
    out = tmp_path / "out"
    assert record(out, "--token-file", str(token)) == 0
    way, give = pulsar.clients[0]["authentication"]
    assert (way, give()) == ("token", SECRET)
    pulsar.fails = PulsarError("Pulsar error: AuthorizationError")
    assert record(out, "--token-file", str(token)) == 2
    said = capfd.readouterr()
    assert f"{URL}: Pulsar error: AuthorizationError; the messages read so far were kept" in said.err
    assert SECRET not in said.out + said.err
    assert not [path for path in out.rglob("*") if SECRET.encode() in path.read_bytes()]


def test_tls_and_oauth2_reach_the_client(pulsar: FakePulsar, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text('{"client": "x"}')
    given = str(file)
    out = tmp_path / "out"
    assert record(out, "--tls-cert-file", given, "--tls-key-file", given, "--tls-trust-file", given) == 0
    assert record(out, "--oauth2-file", given, "--tls-any-hostname", "--tls-allow-insecure") == 0
    strict, lax = pulsar.clients
    assert strict["authentication"] == ("tls", given, given)
    assert (strict["tls_trust_certs_file_path"], strict["tls_validate_hostname"]) == (given, True)
    assert not strict["tls_allow_insecure_connection"]
    assert lax["authentication"] == ("oauth2", '{"client": "x"}')
    assert (lax["tls_validate_hostname"], lax["tls_allow_insecure_connection"]) == (False, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--from", "yesterday"], "--from yesterday: give earliest, latest, or a time"),
        (["--follow", "--until", "2026-11-21"], "contradict each other"),
        (["--segment-mib", "0"], "give a number from 1 to 4096"),
        (["--token-file", "no-such-file"], "no-such-file: cannot be read: No such file"),
        (["--token-file", os.devnull], "it is empty"),
        (["--tls-cert-file", __file__], "belong together"),
        (["--token-file", __file__, "--oauth2-file", __file__], "give one of"),
        (["--service-url", "http://x:8080"], "give it as pulsar://HOST:6650"),
        (["--service-url", f"pulsar://me:{SECRET}@x:6650"], "names a user or password"),
        (["--topic", "non-persistent://a/b/c"], "are stored nowhere"),
        (["--topic", "a/b"], "'a/b' is no topic"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_connected_or_written(
    options: list[str], says: str, pulsar: FakePulsar, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert record(out, *options) == 2
    said = capsys.readouterr().err
    assert says in said
    assert SECRET not in said
    assert not pulsar.clients
    assert not out.exists()


def test_an_empty_topic_is_reported(
    pulsar: FakePulsar, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(tmp_path, topic="empty") == 2
    assert "no entry in any of the topics" in capsys.readouterr().err


def test_two_runs_do_not_write_into_one_folder(
    pulsar: FakePulsar, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / ".record-messages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert record(tmp_path) == 2
    assert "another record-messages writes into it" in capsys.readouterr().err
    assert record(tmp_path) == 0


def test_without_the_client_it_is_said_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pulsar", None)
    assert record(tmp_path / "out") == 2
    assert 'pip install "pulsar-dispatch-audit[record]"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_names_of_topics() -> None:
    assert full_name("a/b/c") == "persistent://a/b/c"
    assert [partition_of(name) for name in ("t", "t-partition-12", "t-partition-x")] == [-1, 12, -1]
