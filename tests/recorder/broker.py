"""A broker with the recorder in a process of its own: stopped, killed and started again on its data.

``make test-recorder`` brings the broker and the NAR by Maven; ``RealBroker`` of the recorder's tests is the program.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from dispatch_airflow.processes import end_with_parent

ROOT = Path(__file__).parents[2]
TARGET = Path(os.environ.get("DISPATCH_AUDIT_RECORDER_TARGET", ROOT / "recorder" / "target"))
_HOST = "127.0.0.1"
_START_S = 300
#: What an embedded broker needs to see of the JDK, as in recorder/pom.xml.
_OPENS = (
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.nio",
    "java.base/sun.net",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


class Broker:
    """A broker whose files are all below ``folder``: ``recording`` (the segments), the stores, a log of each start."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> None:
        """Prepare it; ``settings`` have ``broker.conf`` names, ``options`` are of its JVM."""
        self.folder = folder
        self._options = options
        self.recording = folder / "recording"
        self._settings = dict(settings or {})
        self._ports = [_free_port() for _ in range(3)]
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Service URL for clients; the same after each start."""
        return f"pulsar://{_HOST}:{self._ports[0]}"

    def admin(self, method: str, path: str, body: object = None) -> int:
        """Call the admin API, ``path`` below ``/admin/v2``; return the status code."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{_HOST}:{self._ports[1]}/admin/v2/{path}",
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return int(response.status)
        except urllib.error.HTTPError as refused:
            return refused.code

    def start(self) -> None:
        """Start and wait until clients are served."""
        self._starts += 1
        log = self.folder / f"broker-{self._starts}.log"
        classpath = f"{TARGET / 'test-classes'}:{(TARGET / 'broker.classpath').read_text().strip()}"
        opens = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS]
        memory = ["-Xmx1g", "-XX:MaxDirectMemorySize=1g", f"-Drecorder.nar.directory={TARGET}"]
        ports = [str(port) for port in self._ports]
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    "java",
                    *memory,
                    *opens,
                    *self._options,
                    "dispatchaudit.recorder.RealBroker",
                    str(self.folder),
                    *ports,
                    *settings,
                ],
                cwd=self.folder,  # it looks around where it stands
                env=os.environ | {"CLASSPATH": classpath},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(end_with_parent, signal.SIGKILL),  # noqa: PLW1509 - one prctl call, no lock
            )
        until = time.monotonic() + _START_S
        while b"\nready\n" not in log.read_bytes():
            assert self._process.poll() is None, f"the broker ended; see {log}"
            assert time.monotonic() < until, f"the broker does not serve; see {log}"
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop the broker as an operator does: send SIGTERM and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker with SIGKILL: it flushes nothing and notifies no client."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(90)
            self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
