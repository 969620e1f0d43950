"""Start and end the local Airflow, and clean up after a run that was killed."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dispatch_airflow.local_run.client import AirflowClient, ApiError
from dispatch_airflow.local_run.settings import (
    DAG_ID,
    MARKER_VARIABLE,
    USER,
    LocalRunError,
    Place,
    address,
    choose_port,
    environment,
    make_secrets,
)
from dispatch_airflow.processes import Process, end_all, process, processes

_START_TIMEOUT_S: Final = 240.0
_END_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.3
_LOG_LINES: Final = 16
_NOTHING_DONE: Final = "Nothing was audited; results of earlier runs are kept."

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
                f"another `make run`, `make up` or `make down` is at work in {place.root}. "
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
    """True if the process in the state file holds Airflow's processes; its marker tells it from one that got its id."""
    if state is None:
        return False
    holder = process(state["pid"])
    return holder is not None and holder.has_environment(f"{MARKER_VARIABLE}={state['marker']}")


def left_over(place: Place, state: dict[str, Any]) -> list[Process]:
    """List the processes that a local run in this home started and that still run.

    They have the marker in their environment, or its session and a working directory in the home: the environment of a
    process that changed its title cannot be read, and a session number alone may be reused.
    """
    marker, folder = f"{MARKER_VARIABLE}={state['marker']}", place.airflow.resolve()
    return [
        running
        for running in processes()
        if running.pid != os.getpid()
        and (
            running.has_environment(marker) or (running.session == state["pid"] and running.works_in(folder))
        )
    ]


def end(place: Place) -> None:
    """End the processes of the state file. Raises ``LocalRunError`` if one cannot be ended."""
    state = read_state(place)
    if state is None:
        return
    if is_running(state):
        os.kill(state["pid"], signal.SIGTERM)
        deadline = time.monotonic() + _END_TIMEOUT_S
        while is_running(state) and time.monotonic() < deadline:
            time.sleep(0.1)
    stubborn = end_all(lambda: left_over(place, state), grace_s=2.0)
    if stubborn:
        listed = "\n".join(f"  {running}" for running in stubborn)
        raise LocalRunError(f"these processes could not be ended; end them by hand:\n{listed}")
    place.state.unlink(missing_ok=True)


def start(place: Place, *, stays: bool, say: Say, waiting: Say) -> tuple[AirflowClient, int]:
    """Start Airflow, wait until it is healthy and has the DAG; return a client and the port.

    ``say`` gets a line for each step, ``waiting`` a line while it waits. ``stays``: Airflow keeps running after this
    command, with the schedule and the database of the run before. Otherwise it starts with an empty database, so that it
    does not continue a killed run, and ends with this command. Raises ``LocalRunError`` with the end of the failed
    service's log.
    """
    if not stays:
        for database in place.airflow.glob("airflow.db*"):
            database.unlink()
        shutil.rmtree(place.airflow / "logs", ignore_errors=True)  # of runs that the database knew
    port = choose_port(usual_first=stays)
    shutil.rmtree(place.services, ignore_errors=True)
    place.services.mkdir(parents=True)
    place.airflow.chmod(0o700)  # it holds the login and Airflow's keys
    make_secrets(place)
    place.state.unlink(missing_ok=True)
    with (place.services / "services.log").open("ab") as log:
        holder = subprocess.Popen(
            [sys.executable, "-m", "dispatch_airflow.local_run.services", str(port)]
            + ([] if stays else [str(os.getpid())]),
            cwd=place.airflow,
            env=environment(place, port, secrets.token_hex(16), scheduled=stays),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        say(f"Airflow starts at {address(port)} (logs: {place.services})")
        return wait_until_healthy(place, port, lambda: holder.poll() is None, waiting), port
    except BaseException:  # also an interrupt, perhaps before the state file was written
        holder.terminate()
        raise


def wait_until_healthy(place: Place, port: int, runs: Callable[[], bool], waiting: Say) -> AirflowClient:
    """Wait until Airflow is healthy and has the DAG. Raises ``LocalRunError`` if it does not run any more."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    client: AirflowClient | None = None
    waiting_for = "the API server"
    while time.monotonic() < deadline:
        waiting(f"waiting for {waiting_for}")
        time.sleep(_POLL_S)
        if not runs():
            raise ended(place, "Airflow ended while it was starting", _NOTHING_DONE)
        try:
            if client is None:
                AirflowClient(address(port)).load_task_api()
                client = AirflowClient.login(address(port), USER, password(place))
                waiting_for = "the scheduler and the DAG processor"
            if not client.is_healthy():
                continue
            waiting_for = f"the DAG {DAG_ID}"
            if client.knows_dag(DAG_ID):
                return client
            if problems := client.import_errors():
                raise LocalRunError("the DAG cannot be imported:\n" + "\n".join(problems))
        except (ApiError, FileNotFoundError, ValueError):
            continue  # it does not answer yet
    late = f"after {_START_TIMEOUT_S:.0f} s Airflow is still waiting for {waiting_for}"
    raise ended(place, late, _NOTHING_DONE)


def password(place: Place) -> str:
    """Read the generated password of the local Airflow's only user."""
    return str(json.loads(place.passwords.read_text(encoding="utf-8"))[USER])


def ended(place: Place, what: str, left: str) -> LocalRunError:
    """Make the error that says that Airflow does not run and what is ``left``, with the end of a log that says why."""
    logs = [place.services / f"{name}.log" for name in ("services", "scheduler")]
    log = next((log for log in logs if log.exists() and log.stat().st_size), logs[0])
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else "(there is none)"
    end_of_log = "".join(f"\n  {line}" for line in text.splitlines()[-_LOG_LINES:])
    return LocalRunError(f"{what}. {left}\nEnd of {log}:{end_of_log}")
