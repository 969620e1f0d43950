"""Hold Airflow's processes: ``python -m dispatch_airflow.local_run.services PORT [PID]``, started by ``control``.

It has a session of its own, so that a terminal's Ctrl-C does not reach it. It ends all processes of the session on SIGTERM,
when one of Airflow's processes ends, and when the command with the process id ``PID`` ends. Without ``PID``, Airflow stays.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Final

from dispatch_airflow.local_run.settings import MARKER_VARIABLE, Place
from dispatch_airflow.processes import Process, end_all, end_with_parent, processes

_GRACE_S: Final = 2.0
_POLL_S: Final = 0.2
_LOG_LINES: Final = 15
#: Days for which an Airflow that stays keeps runs in its database.
_KEPT_RUNS_DAYS: Final = 90


class Services:
    """Airflow's processes by name."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.ending = False

    def start(self, name: str, *arguments: str) -> None:
        """Start one Airflow process with its output in a log file of its own."""
        with (self._logs / f"{name}.log").open("ab") as log:
            self._children[name] = subprocess.Popen(
                [sys.executable, "-m", "airflow", *(arguments or (name,))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self, command: str | None = None) -> bool:
        """Wait until ``command`` has ended well; False if another process has ended, or all are to end."""
        while not self.ending:
            for name, child in self._children.items():
                if child.poll() is None:
                    continue
                if name == command and child.returncode == 0:
                    del self._children[name]
                    return True
                log = self._logs / f"{name}.log"
                print(f"{name} ended with exit code {child.returncode}. End of {log}:")
                print("\n".join(log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:]), flush=True)
                return False
            time.sleep(_POLL_S)
        return False

    def end(self) -> None:
        """End all other processes of this session."""
        me = os.getpid()
        # The API server has nothing to finish, and Python takes seconds to tidy it up.
        if (server := self._children.get("api-server")) is not None:
            server.kill()

        def others() -> list[Process]:
            for child in self._children.values():
                child.poll()
            return [running for running in processes() if running.session == me and running.pid != me]

        end_all(others, grace_s=_GRACE_S)


def _run_once(services: Services) -> None:
    """Run Airflow for one DAG run. The API server loads while the database is made, for nothing is in it yet."""
    services.start("api-server")
    services.start("database", "db", "migrate")
    if services.wait("database"):
        _start_workers(services)
        services.wait()


def _stay(services: Services) -> None:
    """Run Airflow with its schedule, after removing old runs from its database, which only its own commands can reach."""
    services.start("database", "db", "migrate")
    if not services.wait("database"):
        return
    limit = (datetime.now(UTC) - timedelta(days=_KEPT_RUNS_DAYS)).isoformat()
    services.start("cleaning", "db", "clean", "--yes", "--skip-archive", "--clean-before-timestamp", limit)
    if services.wait("cleaning"):
        services.start("api-server")
        _start_workers(services)
        services.start("triggerer", "triggerer", "--skip-serve-logs")  # reports late runs
        services.wait()


def _start_workers(services: Services) -> None:
    # The API server reads the task logs from the disk; a log server would listen on all addresses.
    services.start("scheduler", "scheduler", "--skip-serve-logs")
    services.start("dag-processor")


def main(arguments: list[str]) -> int:
    """Run Airflow's processes until the end; return 0 if a signal ended them."""
    port, *command = map(int, arguments)
    place = Place.current()
    services = Services(place.services)

    def end(_number: int, _frame: FrameType | None) -> None:
        services.ending = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    if command:
        end_with_parent()
        if os.getppid() != command[0]:  # it ended before the line above
            return 0
    state = {"pid": os.getpid(), "port": port, "marker": os.environ[MARKER_VARIABLE], "stays": not command}
    place.state.write_text(json.dumps(state), encoding="utf-8")
    try:
        (_run_once if command else _stay)(services)
    finally:
        services.end()
    return 0 if services.ending else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
