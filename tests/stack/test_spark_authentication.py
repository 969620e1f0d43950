"""The Spark cluster of ``docker-compose.yml`` takes only applications with its secret, and encrypts what they say."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dispatch_airflow.processes import processes
from tests.stack.native import Stack, answers, tail
from tests.stack.stand_ins import HOST, free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: Two partitions, so that both workers may get work; no shuffle, because executors of one host read each other's files.
APPLICATION = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.appName(sys.argv[1]).getOrCreate()
print("sum", spark.sparkContext.parallelize(range(1000), 2).sum())
"""
#: In the first message that a driver sends.
PLAIN = b"org.apache.spark.rpc"
#: Spark gives a master up after three attempts of 20 s.
_GIVES_UP_S = 180


class Relay:
    """A way to the master that keeps what clients send."""

    def __init__(self, port: int) -> None:
        self.sent = bytearray()
        self._port = port
        self._door = socket.create_server((HOST, 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._door.getsockname()[1])

    def end(self) -> None:
        self._door.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _address = self._door.accept()
                server = socket.create_connection((HOST, self._port))
                threading.Thread(target=self._pass_on, args=(client, server, self.sent), daemon=True).start()
                threading.Thread(
                    target=self._pass_on, args=(server, client, bytearray()), daemon=True
                ).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("spark") / "stack", {})
    try:
        stack.start(only=["spark-worker"])
        yield stack
    finally:
        stack.end()


@pytest.fixture
def bare_master(cluster: Stack, tmp_path: Path) -> Iterator[int]:
    """The port of a master that is started as the file says, but without its secret file."""
    port, pages = free_port(), free_port()
    ports = {str(cluster.ports["spark-master", own]): str(new) for own, new in ((7077, port), (8081, pages))}
    given = cluster.running["spark-master"]
    (tmp_path / "bare").mkdir()
    with (tmp_path / "bare" / "said").open("wb") as said:
        master = subprocess.Popen(
            [ports.get(word, word) for word in given.command],
            cwd=tmp_path,
            env=given.environment | {"SPARK_CONF_DIR": str(tmp_path / "bare")},
            stdout=said,
            stderr=said,
        )
    try:
        cluster.until(lambda: answers(port), "the master without a secret", 120)
        yield port
    finally:
        master.terminate()
        master.wait(30)


@pytest.fixture
def relay(cluster: Stack) -> Iterator[Relay]:
    made = Relay(cluster.ports["spark-master", 7077])
    yield made
    made.end()


def submit(port: int, name: str, settings: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start an application with the settings of a file, from a folder of its own; what it says is in ``said`` there."""
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(settings)
    (folder / "application.py").write_text(APPLICATION)
    beside = Path(sys.executable).parent / "spark-submit"
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(
            [str(beside), "--master", f"spark://{HOST}:{port}", str(folder / "application.py"), name],
            cwd=folder,
            env=os.environ
            | {"SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable},
            stdout=said,
            stderr=said,
        )


def test_an_application_with_the_secret_is_run_and_nothing_of_it_can_be_read(
    cluster: Stack, relay: Relay, tmp_path: Path
) -> None:
    settings = cluster.secret("spark-defaults.conf")
    driver = submit(relay.port, "of-a-friend", settings, tmp_path / "driver")
    shown = []
    while driver.poll() is None:
        shown += [child.command for child in processes() if "Backend" in child.command]
        with suppress(subprocess.TimeoutExpired):
            driver.wait(0.2)
    said = (tmp_path / "driver" / "said").read_text()
    assert driver.returncode == 0, said[-4000:]
    assert "sum 499500" in said
    assert "Registered app of-a-friend" in (cluster.logs / "spark-master.log").read_text()
    assert len(relay.sent) > 1000
    assert PLAIN not in relay.sent
    assert shown, "no executor was seen"
    for secret in cluster.secrets.values():
        assert not [command for command in shown if secret in command]


def test_applications_without_the_secret_or_with_another_are_refused(
    cluster: Stack, relay: Relay, bare_master: int, tmp_path: Path
) -> None:
    settings = cluster.secret("spark-defaults.conf")
    (secret,) = (value for name, value in cluster.secrets.items() if name.startswith("spark"))
    drivers = {
        "without-a-secret": submit(relay.port, "without-a-secret", "", tmp_path / "without-a-secret"),
        "with-another-secret": submit(
            cluster.ports["spark-master", 7077],
            "with-another-secret",
            settings.replace(secret, "0" * 64),
            tmp_path / "with-another-secret",
        ),
        "to-a-master-without": submit(
            bare_master, "to-a-master-without", "", tmp_path / "to-a-master-without"
        ),
    }
    for name, driver in drivers.items():
        driver.wait(_GIVES_UP_S)
        said = (tmp_path / name / "said").read_text()
        assert driver.returncode != 0, name
        assert "All masters are unresponsive" in said, (name, said[-4000:])
        assert "sum 499500" not in said, name
    assert PLAIN in relay.sent, "what is not encrypted could be read"
    log = (cluster.logs / "spark-master.log").read_text()
    assert "Registered app with" not in log
    assert "Registered app" not in (tmp_path / "bare" / "said").read_text()
    assert "I have been elected leader" in log
    assert "RestServer" not in log, "it asks for no secret"
    assert not [name for name, running in cluster.running.items() if running.starts > 1], tail(
        cluster.logs / "spark-master.log"
    )
