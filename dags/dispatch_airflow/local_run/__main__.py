"""Run ``python -m dispatch_airflow.local_run run | up | down``, for ``make run``, ``make up`` and ``make down``."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final

from dispatch_airflow.local_run import control, outcome
from dispatch_airflow.local_run.client import ApiError
from dispatch_airflow.local_run.sample import Source, read_source
from dispatch_airflow.local_run.settings import DAG_ID, SAMPLE, USER, LocalRunError, Place, address
from dispatch_airflow.local_run.watch import Screen, failure, watch_run
from dispatch_core.errors import DispatchAuditError

_EXIT_CODES: Final = {"FAIL": 1, "UNKNOWN": 2, "PASS": 0}
#: Tasks that fail when a subscription has the verdict FAIL.
_RED_BY_VERDICT: Final = {"validate", "conclude"}
#: Shown on the page of the sample's run.
_NOTE: Final = (
    "The sample of `make run`. It is red because one of its recordings is meant to FAIL: a rolling restart under the "
    "ordering rule of 3.x, which loses the order of keys (README.md)."
)


class Ended(BaseException):
    """A signal asked this command to end; its number is the argument."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if it succeeded or all verdicts are as expected, 1 if not or for a FAIL, 2 if not judged."""
    parser = argparse.ArgumentParser(prog="python -m dispatch_airflow.local_run", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("run", "up", "down"), default="run")
    parser.add_argument(
        "--source", type=Path, default=SAMPLE, help="folder of recordings (default: the sample)"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800.0, help="maximum duration of a DAG run in seconds"
    )
    options = parser.parse_args(arguments)
    if not sys.platform.startswith("linux"):
        print("error: the local Airflow needs Linux (/proc, prctl)", file=sys.stderr)
        return 2
    place, screen = Place.current(), Screen()
    try:
        with _on_signals(_end_command), control.only_one(place):
            if options.command == "run":
                return run(place, screen, options.source.absolute(), options.timeout)
            return up(place, screen) if options.command == "up" else down(place, screen)
    except DispatchAuditError as error:
        screen.settle()
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    except Ended as ended:
        screen.settle()
        [number] = ended.args
        print(f"ended by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        return int(128 + number)


def run(place: Place, screen: Screen, folder: Path, timeout_s: float) -> int:
    """Start Airflow, run the DAG for each day of the source, show the verdicts, end everything."""
    state = _running(place, screen)
    if state is not None:
        raise LocalRunError(
            f"Airflow is up at {address(state['port'])} (make up). End it with `make down`, then `make run` again."
        )
    source = read_source(folder)
    results: dict[str, dict[str, str]] = {}
    try:
        client, _port = control.start(place, stays=False, say=screen.say, waiting=screen.moving)
        screen.say("Airflow is healthy")
        client.set_paused(DAG_ID, paused=False)
        for day in source.days:
            run_id = f"sample__{day:%Y-%m-%d}__{time.time_ns() // 1_000_000}"
            what = f"{source.recordings} recordings in {source.folder}"
            screen.say(f"{DAG_ID} triggered for {day:%Y-%m-%d} UTC: {what}")
            note = _NOTE if source.stated else ""
            span = (day, day + timedelta(days=1))
            client.trigger(DAG_ID, run_id, {"source": str(source.folder)}, span, note)
            results[run_id] = watch_run(client, place, run_id, screen, timeout_s)
        with suppress(ApiError):
            client.set_paused(DAG_ID, paused=True)  # a later `make up` begins with its schedule off
    finally:
        screen.say("ending Airflow")
        _end(place)
    screen.say("every process that was started has ended")
    broken = [(run_id, task) for run_id, tasks in results.items() for task in _unexplained(tasks)]
    if broken:
        raise LocalRunError(
            "\n".join(failure(place, run_id, task) for run_id, task in broken)
            + f"\nEarlier results are kept in {place.root}; correct the cause and run `make run` again."
        )
    return _conclude(place, screen, source, results.values())


def _unexplained(tasks: Mapping[str, str]) -> list[str]:
    """List failed tasks that no verdict explains; ``validate`` fails when a promise was broken, which is no error."""
    explained = _RED_BY_VERDICT if tasks.get("publish") == "success" else set()
    return [name for name, state in tasks.items() if name and state == "failed" and name not in explained]


def _conclude(place: Place, screen: Screen, source: Source, results: Iterable[Mapping[str, str]]) -> int:
    home, days = place.results(source.folder), source.days
    screen.line()
    if any(tasks.get("validate") == "failed" for tasks in results):
        screen.line("validate failed in Airflow because promises were broken; the audit itself worked.")
        screen.line()
    screen.line(f"Verdicts for {', '.join(f'{day:%Y-%m-%d}' for day in days)} (UTC)")
    found = outcome.show(home, days, screen)
    screen.line()
    outcome.show_places(home, days, found, screen)
    screen.line("  Airflow    make up shows the runs in its UI")
    screen.line()
    if not found:
        raise LocalRunError(f"no verdict was published in {home.warehouse}; see the task logs above")
    if not source.stated:
        overall = {verdicts["all"] for verdicts in found.values()}
        return next(code for verdict, code in _EXIT_CODES.items() if verdict in overall)
    wrong = outcome.differences(found, source, home, days)
    for line in wrong:
        screen.line(f"  not as stated: {line}")
    as_stated = len(source.stated) - len({line.split(":")[0] for line in wrong})
    screen.line(f"{as_stated} of {len(source.stated)} sample verdicts are as stated beside the sample.")
    return 1 if wrong else 0


def up(place: Place, screen: Screen) -> int:
    """Start Airflow and leave it running."""
    state = _running(place, screen)
    if state is not None:
        port = state["port"]
        control.wait_until_healthy(
            place, port, lambda: control.is_running(control.read_state(place)), screen.moving
        )
    else:
        try:
            _client, port = control.start(place, stays=True, say=screen.say, waiting=screen.moving)
        except BaseException:
            _end(place)
            raise
    screen.line(f"Airflow is up: {address(port)}/dags/{DAG_ID}")
    screen.line(f"  user       {USER}")
    screen.line(f"  password   {control.password(place)}   (kept in {place.passwords})")
    screen.line("  make down ends it.")
    return 0


def down(place: Place, screen: Screen) -> int:
    """End all processes of this home."""
    if control.read_state(place) is None:
        screen.line(f"nothing is running in {place.root}")
        return 0
    _end(place)
    screen.line("Airflow has ended; no process is left.")
    return 0


def _running(place: Place, screen: Screen) -> dict[str, Any] | None:
    """Return the state of an Airflow that stays, if it runs; end what a killed run has left."""
    state = control.read_state(place)
    if state is None or (state["stays"] and control.is_running(state)):
        return state
    screen.say("an earlier run was killed: ending its processes")
    _end(place)
    return None


def _end(place: Place) -> None:
    """End all processes; a second Ctrl-C does not interrupt it."""
    with _on_signals(signal.SIG_IGN):
        control.end(place)


def _end_command(number: int, _frame: FrameType | None) -> None:
    raise Ended(number)


@contextmanager
def _on_signals(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGHUP by ``handler``."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    earlier = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)


if __name__ == "__main__":
    sys.exit(main())
