"""Supervise Airflow's processes: ``python -m dispatch_airflow.local_run.services``, started by ``control``.

It has a session of its own, so that a terminal's Ctrl-C does not reach it, and adopts orphans, so that no process that
Airflow starts is lost. It ends all of them on SIGTERM, when one of Airflow's processes ends, and when the command named
by ``--with PID`` ends.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final

from dispatch_airflow.processes import Process, boot_id, end_all, end_with_parent, process, processes

_PR_SET_CHILD_SUBREAPER: Final = 36
_GRACE_S: Final = 2.0
_POLL_S: Final = 0.2
#: Days for which an Airflow that stays keeps runs in its database.
_KEPT_RUNS_DAYS: Final = 90


@dataclass
class Services:
    """Airflow's processes by name."""

    folder: Path
    state_file: Path
    state: dict[str, Any]
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ending: bool = False

    def save(self, **changes: Any) -> None:
        """Replace the state file in one step: a reader sees the earlier state or this one."""
        self.state.update(changes)
        temporary = self.state_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.state, indent=1), encoding="utf-8")
        temporary.replace(self.state_file)

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one Airflow process with its output in a log file of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "airflow", *(arguments or (name,))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.children[name] = child
        return child

    def wait_for(self, name: str) -> bool:
        """Wait for the end of a process; False if it failed, or if all processes are to end before."""
        child = self.children[name]
        while child.poll() is None and not self.ending:
            time.sleep(_POLL_S)
        if child.poll() is None:
            return False
        del self.children[name]
        if child.returncode != 0:
            self.save(phase="failed", error=f"{name} ended with exit code {child.returncode}", failed=name)
        return child.returncode == 0

    def watch(self) -> None:
        """Wait for the signal to end, or until a process ends unexpectedly."""
        while not self.ending:
            for name, child in self.children.items():
                if child.poll() is not None:
                    self.save(
                        phase="failed", error=f"{name} ended with exit code {child.returncode}", failed=name
                    )
                    return
            _reap_adopted(self.children.values())
            time.sleep(_POLL_S)

    def end(self) -> None:
        """End all other processes of this session."""
        me = os.getpid()
        # The API server has nothing to finish, and Python takes seconds to tidy it up.
        if (server := self.children.get("api-server")) is not None:
            server.kill()

        def others() -> list[Process]:
            _reap_adopted(self.children.values())
            for child in self.children.values():
                child.poll()
            return [running for running in processes() if running.session == me and running.pid != me]

        end_all(others, grace_s=_GRACE_S)


def _clean(services: Services) -> bool:
    """Remove old runs from Airflow's database, which only Airflow's own commands can reach; False if that failed."""
    limit = datetime.now(UTC) - timedelta(days=_KEPT_RUNS_DAYS)
    clean = ("db", "clean", "--yes", "--skip-archive", "--clean-before-timestamp", limit.isoformat())
    services.start("cleaning", *clean)
    return services.wait_for("cleaning")


def _reap_adopted(known: Any) -> None:
    """Reap adopted orphans; the ``Popen`` objects reap the children that this process started."""
    own = {child.pid for child in known}
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split():
        if int(pid) not in own:
            try:
                os.waitpid(int(pid), os.WNOHANG)
            except ChildProcessError:
                continue


def main(arguments: list[str] | None = None) -> int:
    """Run Airflow's processes until the end; return 0 if a signal ended them."""
    parser = argparse.ArgumentParser(prog="dispatch_airflow.local_run.services")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--marker", required=True)
    parser.add_argument("--with", dest="command_pid", type=int)
    options = parser.parse_args(arguments)

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    me = process(os.getpid())
    assert me is not None
    state = {
        "pid": me.pid,
        "started": me.started,
        "boot": boot_id(),
        "port": options.port,
        "marker": options.marker,
        "stays": options.command_pid is None,
        "phase": "database",
        "error": None,
    }
    services = Services(options.logs, options.state, state)

    def end(_number: int, _frame: FrameType | None) -> None:
        services.ending = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    if options.command_pid is not None:
        end_with_parent()
        if os.getppid() != options.command_pid:  # it ended before the line above
            return 0
    services.save()
    try:
        if (
            options.command_pid is not None
        ):  # nothing is in the database yet, so the API server may load meanwhile
            services.start("api-server")
        services.start("database", "db", "migrate")
        if services.wait_for("database") and (options.command_pid is not None or _clean(services)):
            services.save(phase="starting")
            if options.command_pid is None:
                services.start("api-server")
            # The API server reads the task logs from the disk; a log server would listen on all addresses.
            services.start("scheduler", "scheduler", "--skip-serve-logs")
            services.start("dag-processor")
            if options.command_pid is None:  # it reports late runs; no task of this project defers
                services.start("triggerer", "triggerer", "--skip-serve-logs")
            services.watch()
    finally:
        services.end()
    if services.ending:
        options.state.unlink(missing_ok=True)
    return 0 if services.ending else 1


if __name__ == "__main__":
    sys.exit(main())
