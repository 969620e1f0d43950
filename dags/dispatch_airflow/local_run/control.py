"""Start and end the local Airflow, and clean up after a run that was killed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dispatch_airflow.local_run.client import AirflowClient, ApiError
from dispatch_airflow.local_run.settings import (
    MARKER_VARIABLE,
    USER,
    LocalRunError,
    Place,
    address,
    choose_port,
    environment,
    make_secrets,
    new_marker,
)
from dispatch_airflow.processes import Process, boot_id, end_all, process, processes

START_TIMEOUT_S: Final = 240.0
_END_TIMEOUT_S: Final = 20.0
_LOG_LINES: Final = 15

Say = Callable[[str], None]


@contextmanager
def only_one(place: Place) -> Iterator[None]:
    """Let one command at a time work on a home; the lock ends with the process that has it."""
    place.root.mkdir(parents=True, exist_ok=True)
    with place.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalRunError(
                f"another `make run`, `make up` or `make down` is at work in {place.home.root}. "
                "Wait for its end, or set DISPATCH_AUDIT_HOME to another folder."
            ) from None
        yield


def read_state(place: Place) -> dict[str, Any] | None:
    """Read the state file; None if nothing is running."""
    try:
        state = json.loads(place.state.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def is_running(state: dict[str, Any] | None) -> bool:
    """True if the process in the state file still runs Airflow: same boot, same process (not a reused id)."""
    if state is None or state.get("boot") != boot_id() or state.get("phase") == "failed":
        return False
    holder = process(int(state["pid"]))
    return holder is not None and holder.started == state["started"] and holder.state != "Z"


def left_over(place: Place, state: dict[str, Any] | None) -> list[Process]:
    """List the processes that a local run in this home started and that still run.

    They have the marker in their environment, or its session and a working directory in the home: the environment of a
    process that changed its title cannot be read, and a session number alone may be reused.
    """
    marker = f"{MARKER_VARIABLE}={state['marker']}" if state else None
    session = state["pid"] if state and state.get("boot") == boot_id() else None
    folder = place.airflow.resolve()
    return [
        running
        for running in processes()
        if running.pid != os.getpid()
        and (
            (marker and running.has_environment(marker))
            or (session == running.session and running.works_in(folder))
        )
    ]


def end(place: Place) -> list[Process]:
    """End the processes of the state file. Returns those that could not be ended (normally none)."""
    state = read_state(place)
    if state is None:
        return []
    if is_running(state):
        os.kill(int(state["pid"]), signal.SIGTERM)
        deadline = time.monotonic() + _END_TIMEOUT_S
        while is_running(state) and time.monotonic() < deadline:
            time.sleep(0.1)
    stubborn = end_all(lambda: left_over(place, state), grace_s=2.0)
    if not stubborn:
        place.state.unlink(missing_ok=True)
    return stubborn


def start(place: Place, *, stays: bool, say: Say, waiting: Say) -> tuple[AirflowClient, dict[str, Any]]:
    """Start Airflow and wait until it is healthy and has the DAG.

    ``say`` gets a line for each step, ``waiting`` a line while it waits. ``stays``: Airflow keeps running after this
    command, with the schedule and the database of the run before. Otherwise it starts with an empty database, so that it
    does not continue a killed run, and ends with this command. Raises ``LocalRunError`` with the end of the failed
    service's log.
    """
    if not stays:
        for name in ("airflow.db", "airflow.db-wal", "airflow.db-shm"):
            (place.airflow / name).unlink(missing_ok=True)
        shutil.rmtree(place.airflow / "logs", ignore_errors=True)  # of runs that the database knew
    port = choose_port(usual_first=stays)
    shutil.rmtree(place.services, ignore_errors=True)
    place.services.mkdir(parents=True)
    place.airflow.chmod(0o700)  # it holds the login and Airflow's keys
    make_secrets(place)
    marker = new_marker()
    command = [sys.executable, "-m", "dispatch_airflow.local_run.services", "--state", str(place.state)]
    command += ["--logs", str(place.services), "--port", str(port), "--marker", marker]
    command += [] if stays else ["--with", str(os.getpid())]
    place.state.unlink(missing_ok=True)
    with (place.services / "services.log").open("ab") as log:
        holder = subprocess.Popen(
            command,
            cwd=place.airflow,
            env=environment(place, port, marker, scheduled=stays),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        say(f"Airflow starts at {address(port)} (logs: {place.services})")
        client = _wait_until_healthy(place, holder, port, waiting)
    except BaseException:  # also an interrupt, perhaps before the state file was written
        holder.terminate()
        raise
    state = read_state(place)
    assert state is not None
    return client, state


def _wait_until_healthy(
    place: Place, holder: subprocess.Popen[bytes], port: int, waiting: Say
) -> AirflowClient:
    deadline = time.monotonic() + START_TIMEOUT_S
    client: AirflowClient | None = None
    waiting_for = "its database"
    task_api = False
    while time.monotonic() < deadline:
        waiting(f"waiting for {waiting_for}")
        time.sleep(0.3)
        if holder.poll() is not None:
            raise _start_failed(place, "Airflow ended while it was starting")
        try:
            if not task_api:
                AirflowClient.load_task_api(address(port))
                task_api = True
            state = read_state(place)
            if state is None or state["phase"] == "database":
                continue
            if client is None:
                waiting_for = "the API server"
                client = AirflowClient.login(address(port), USER, password(place))
            waiting_for = "the scheduler and the DAG processor"
            if not client.is_healthy():
                continue
            waiting_for = "the DAG dispatch_audit"
            if client.knows_dag("dispatch_audit"):
                return client
            problems = client.import_errors()
            if problems:
                raise LocalRunError("the DAG cannot be imported:\n" + "\n".join(problems))
        except (ApiError, FileNotFoundError, ValueError):
            continue  # it does not answer yet
    raise _start_failed(place, f"after {START_TIMEOUT_S:.0f} s Airflow is still waiting for {waiting_for}")


def password(place: Place) -> str:
    """Read the generated password of the local Airflow's only user."""
    return str(json.loads(place.passwords.read_text(encoding="utf-8"))[USER])


def _start_failed(place: Place, what: str) -> LocalRunError:
    state = read_state(place) or {}
    name = state.get("failed") or ("services" if not state else "scheduler")
    log = place.services / f"{name}.log"
    reason = f" ({state['error']})" if state.get("error") else ""
    return LocalRunError(
        f"{what}{reason}. Nothing was audited; results of earlier runs are kept.\n"
        f"End of {log}:\n{tail(log, _LOG_LINES)}"
    )


def tail(log: Path, lines: int) -> str:
    """Read the last lines of a log file, indented."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "  (there is none)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (it is empty)"
