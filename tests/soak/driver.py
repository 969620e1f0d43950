"""Drive brokers that play scripts: processes of ``SoakDriver`` with the trace agent, one script after the other."""

from __future__ import annotations

import json
import re
import subprocess
from functools import partial
from pathlib import Path
from signal import SIGKILL
from threading import Timer
from typing import Any, Final

from dispatch_airflow.processes import end_with_parent
from tests.soak.script import Script

ROOT: Final = Path(__file__).parents[2]
#: Memory for a standalone broker with its bookie.
_MEMORY: Final = ("-Xmx1500m", "-XX:MaxDirectMemorySize=1g")

#: A broker that takes longer, on however slow a machine, hangs.
_START_S: Final = 600
_PLAY_S: Final = 900


class DriverError(Exception):
    """The broker could not be started, or has ended."""


class Driver:
    """A broker of a release that plays scripts. Its data and its log are below ``folder``."""

    def __init__(self, target: Path, release: str, folder: Path) -> None:
        """Start it, and wait until it serves; ``target`` is what ``.ci/soak`` has built."""
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "broker.log"
        pom = (ROOT / "recorder" / "pom.xml").read_text(encoding="utf-8")
        opens = re.search(r"<broker\.opens>(.*?)</broker\.opens>", pom, re.DOTALL)
        assert opens is not None
        classpath = (
            f"{target / 'test-classes'}:{(target / f'broker-{release}.classpath').read_text().strip()}"
        )
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "java",
                    *_MEMORY,
                    *opens[1].split(),
                    f"-javaagent:{target / 'dispatch-audit-trace.jar'}",
                    "-cp",
                    classpath,
                    "dispatchaudit.soak.SoakDriver",
                    str(folder / "broker"),
                ],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=partial(end_with_parent, SIGKILL),  # noqa: PLW1509 - one prctl call, no lock
            )
        _, _, missing = f"{self._answer('ready', _START_S)} ".split(" ")[:3]
        #: Kinds of lines that this build of the broker does not give.
        self.missing = [kind for kind in missing.split(",") if kind]

    def play(self, script: Script, folder: Path) -> dict[str, Any]:
        """Play a script, record into ``folder/recording``, and return the recorder's counts.

        Raises:
            DriverError: the broker or the script failed.
        """
        folder.mkdir(parents=True)
        (folder / "script.json").write_text(json.dumps(script.as_json()) + "\n", encoding="utf-8")
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder.resolve()}\n")
        self._process.stdin.flush()
        counts: dict[str, Any] = json.loads(self._answer("done", _PLAY_S).removeprefix("done "))
        return counts

    def _answer(self, expected: str, within_s: float) -> str:
        assert self._process.stdout is not None
        too_long = Timer(within_s, self.kill)
        too_long.start()
        line = self._process.stdout.readline().rstrip("\n")
        too_long.cancel()
        if not line.startswith(f"{expected} "):
            raise DriverError(f"{line or 'the broker has ended'}; its log: {self.log}")
        return line

    @property
    def runs(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the broker at once; what it plays fails."""
        self._process.kill()

    def close(self) -> None:
        """End the broker."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
