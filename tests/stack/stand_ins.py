"""Stand-ins for services with images of others: a Postgres of this machine, a mail catcher, a webhook."""

from __future__ import annotations

import json
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller

from dispatch_airflow.processes import end_with_parent

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a port that nothing listens on now, and that nobody gets who asks for any port.

    Those are given to connections and to servers that name none, of which a test of several minutes starts many.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    for _attempt in range(1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, random.randrange(10_000, lowest)))
            return int(probe.getsockname()[1])
    raise OSError(f"none of a thousand ports below {lowest} is free")


@dataclass
class Postgres:
    """A database server of its own in a folder of its own, never as root."""

    port: int
    password: str
    folder: Path = field(init=False)
    server: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Create the cluster and serve it on loopback."""
        user = "postgres" if os.getuid() == 0 else None
        # Not below pytest's folder, which other users must not enter.
        self.folder = Path(tempfile.mkdtemp(prefix="dispatch-audit-postgres-"))
        secret = self.folder / "password"
        secret.write_text(self.password)
        if user is not None:
            owner = pwd.getpwnam(user)
            for path in (self.folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        data = self.folder / "data"
        first = ["--pgdata", str(data), "--username", "airflow", "--auth", "scram-sha-256"]
        self._run("initdb", *first, "--pwfile", str(secret), "--no-sync", "--encoding", "UTF8", user=user)
        listen = ["-h", HOST, "-p", str(self.port), "-k", str(self.folder), "-c", "fsync=off"]
        with (self.folder / "server.log").open("wb") as log:
            self.server = subprocess.Popen(
                [program("postgres"), "-D", str(data), *listen],
                cwd=self.folder,
                user=user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one prctl call, nothing that could take a lock
            )

    def create_database(self) -> None:
        """Create the database ``airflow``, as the image does for ``POSTGRES_DB``."""
        self._run("createdb", "airflow", user=None)

    def end(self) -> None:
        """Shut down fast, without waiting for running queries."""
        if self.server is not None:
            self.server.send_signal(2)
            try:
                self.server.wait(20)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def dump(self) -> str:
        """Return the database as SQL."""
        return self._run("pg_dump", "airflow", user=None)

    def environment(self) -> dict[str, str]:
        """Return the variables by which libpq finds the server."""
        return {"PGHOST": HOST, "PGPORT": str(self.port), "PGUSER": "airflow", "PGPASSWORD": self.password}

    def _run(self, name: str, *arguments: str, user: str | None) -> str:
        done = subprocess.run(
            [program(name), *arguments],
            cwd=self.folder,
            user=user,
            env=os.environ | self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"
        return done.stdout


def program(name: str) -> str:
    """Return the path of a program of Postgres; on Debian those of the server are not on PATH."""
    found = shutil.which(name)
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    assert found or places, f"there is no {name}; on Debian or Ubuntu: apt-get install postgresql"
    return found or str(places[0])


class MailCatcher:
    """An SMTP server that keeps the mails it receives."""

    def __init__(self, port: int) -> None:
        self.mails: list[EmailMessage] = []
        self._controller = Controller(self, hostname=HOST, port=port)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        """Keep a mail."""
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        return "250 kept"

    def start(self) -> None:
        """Listen."""
        self._controller.start()

    def end(self) -> None:
        """Stop listening."""
        self._controller.stop(no_assert=True)


class Webhook:
    """An HTTP endpoint that keeps the JSON posted to it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.posts: list[tuple[dict[str, str], dict[str, Any]]] = []
        self._server = ThreadingHTTPServer((HOST, port), _handler(self.posts.append))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()

    def end(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def _handler(
    keep: Callable[[tuple[dict[str, str], dict[str, Any]]], None],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            keep((dict(self.headers), json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    return Handler
