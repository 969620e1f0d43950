"""A native S3-compatible server on loopback, versitygw, as ``docker-compose.yml`` has it."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dispatch_airflow.processes import end_with_parent
from tests.stack.stand_ins import HOST, free_port

_START_S = 30.0


def program() -> str:
    """Return the path of versitygw. Raises ``FileNotFoundError`` that says how to get it."""
    built = Path(os.environ.get("GOPATH") or Path.home() / "go") / "bin" / "versitygw"
    found = shutil.which("versitygw") or (str(built) if built.is_file() else None)
    if found is None:
        raise FileNotFoundError(
            "versitygw is neither on PATH nor in the bin folder of Go: "
            "go install github.com/versity/versitygw/cmd/versitygw@latest"
        )
    return found


@dataclass
class ObjectStore:
    """The server; each folder below ``folder`` is a bucket."""

    folder: Path
    port: int = field(default_factory=free_port)
    key: str = field(default_factory=lambda: secrets.token_hex(8))
    secret: str = field(default_factory=lambda: secrets.token_hex(20))
    server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://{HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which clients find it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    def start(self, *buckets: str) -> None:
        """Make the buckets and serve them."""
        for bucket in buckets:
            (self.folder / bucket).mkdir(parents=True)
        self.server = subprocess.Popen(
            [
                program(),
                "--port",
                f"{HOST}:{self.port}",
                "--health",
                "/health",
                "--quiet",
                "posix",
                str(self.folder),
            ],
            env=os.environ | {"ROOT_ACCESS_KEY": self.key, "ROOT_SECRET_KEY": self.secret},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - one prctl call, nothing that could take a lock
        )
        give_up = time.monotonic() + _START_S
        while not self._answers():
            assert time.monotonic() < give_up, "versitygw does not answer"
            assert self.server.poll() is None, f"versitygw ended with {self.server.returncode}"
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def end(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.kill()
            self.server.wait(10)


_BUSY: Final = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Overloaded:
    """A door in front of a store that can answer 503, or let requests wait.

    While ``closed`` is set every request is refused, also on a connection from before. While ``slow_s`` is not 0, what a
    client sends waits so long, and every third new connection is refused. Else everything is let through.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._door = socket.create_server((HOST, 0), backlog=256)
        self.closed = threading.Event()
        self.slow_s = 0.0
        self.refused = 0
        self.slowed = 0
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://{HOST}:{self._door.getsockname()[1]}"

    def overload(self, refuse_s: float, slow_s: float, each_s: float) -> threading.Thread:
        """Refuse all requests for a time, then let them wait ``each_s`` for another one; return the thread that does it."""

        def work() -> None:
            self.closed.set()
            time.sleep(refuse_s)
            self.slow_s = each_s
            self.closed.clear()
            time.sleep(slow_s)
            self.slow_s = 0.0

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def end(self) -> None:
        """Accept no more connections."""
        self._door.close()

    def _serve(self) -> None:
        for number in itertools.count():
            try:
                client, _address = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client, number), daemon=True).start()

    def _answer(self, client: socket.socket, number: int) -> None:
        with suppress(OSError), client:
            if self.closed.is_set() or (self.slow_s and number % 3 == 0):
                client.recv(1 << 16)
                self._refuse(client)
                return
            with socket.create_connection((HOST, self._port)) as server:
                back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                back.start()
                try:
                    self._let_through(client, server)
                finally:
                    server.shutdown(socket.SHUT_RDWR)
                    back.join()

    def _let_through(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(1 << 16):
            if self.closed.is_set():
                self._refuse(client)
                return
            if self.slow_s:
                self.slowed += 1
                time.sleep(self.slow_s)
            server.sendall(data)

    def _refuse(self, client: socket.socket) -> None:
        self.refused += 1
        head = b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Type: application/xml\r\n"
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(_BUSY) + _BUSY)
        client.shutdown(socket.SHUT_WR)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on until either end is closed."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
