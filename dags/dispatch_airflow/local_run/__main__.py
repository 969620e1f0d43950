"""Run ``python -m dispatch_airflow.local_run run | up | down``, for ``make run``, ``make up`` and ``make down``."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Final

from dispatch_airflow.local_run import control, outcome
from dispatch_airflow.local_run.client import AirflowClient
from dispatch_airflow.local_run.sample import Source, read_source
from dispatch_airflow.local_run.settings import SAMPLE, USER, LocalRunError, Place, address
from dispatch_airflow.local_run.watch import DAG_ID, Screen, failure, watch_run
from dispatch_core.errors import DispatchAuditError

EXIT_AS_STATED: Final = 0
EXIT_OTHERWISE: Final = 1
EXIT_NOT_JUDGED: Final = 2
#: Tasks that fail when a subscription has the verdict FAIL.
_RED_BY_VERDICT: Final = {"validate", "conclude"}
#: Shown on the page of the sample's run.
_NOTE: Final = (
    "The sample of `make run`. It is red because one of its recordings is meant to FAIL: a rolling restart under the "
    "ordering rule of 3.x, which loses the order of keys (README.md)."
)
_ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal asked this command to end; ``number`` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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
        return EXIT_NOT_JUDGED
    place, screen = Place.current(), Screen()
    try:
        with _signals_as_exceptions(), control.only_one(place):
            if options.command == "run":
                return run(place, screen, options.source.absolute(), options.timeout)
            return up(place, screen) if options.command == "up" else down(place, screen)
    except DispatchAuditError as error:
        screen.settle()
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_NOT_JUDGED
    except Ended as ended:
        screen.settle()
        print(f"ended by {signal.Signals(ended.number).name}", file=sys.stderr, flush=True)
        return 128 + ended.number


def run(place: Place, screen: Screen, folder: Path, timeout_s: float) -> int:
    """Start Airflow, run the DAG for each day of the source, show the verdicts, end everything."""
    state = control.read_state(place)
    if control.is_running(state) and state is not None and state["stays"]:
        raise LocalRunError(
            f"Airflow is up at {address(state['port'])} (make up). End it with `make down`, then `make run` again."
        )
    if state is not None:
        screen.say("an earlier run was killed: ending its processes")
        _must_end(control.end(place))
    source = read_source(folder)
    results: dict[str, dict[str, str]] = {}
    try:
        client, _state = control.start(place, stays=False, say=screen.say, waiting=screen.moving)
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
        _pause(client, screen)
    finally:
        with _signals_ignored():
            screen.say("ending Airflow")
            _must_end(control.end(place))
    screen.say("every process that was started has ended")
    broken = [(run_id, task) for run_id, tasks in results.items() for task in _unexplained(tasks)]
    if broken:
        raise LocalRunError(
            "\n".join(failure(place, run_id, task) for run_id, task in broken)
            + f"\nEarlier results are kept in {place.home.root}; correct the cause and run `make run` again."
        )
    return _conclude(place, screen, source, results.values())


def _unexplained(tasks: dict[str, str]) -> list[str]:
    """List failed tasks that no verdict explains; ``validate`` fails when a promise was broken, which is no error."""
    failed = [name for name, state in tasks.items() if name and state == "failed"]
    judged = tasks.get("publish") == "success"
    return [name for name in failed if not (judged and name in _RED_BY_VERDICT)]


def _pause(client: AirflowClient, screen: Screen) -> None:
    try:
        client.set_paused(DAG_ID, paused=True)  # a later `make up` begins with its schedule off
    except DispatchAuditError as error:
        screen.say(f"the DAG could not be paused for a later make up: {error}")


def _conclude(place: Place, screen: Screen, source: Source, results: Iterable[dict[str, str]]) -> int:
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
        return (
            EXIT_OTHERWISE
            if "FAIL" in overall
            else EXIT_NOT_JUDGED
            if "UNKNOWN" in overall
            else EXIT_AS_STATED
        )
    wrong = outcome.differences(found, source, home, days)
    for line in wrong:
        screen.line(f"  not as stated: {line}")
    as_stated = len(source.stated) - len({line.split(":")[0] for line in wrong})
    screen.line(f"{as_stated} of {len(source.stated)} sample verdicts are as stated beside the sample.")
    return EXIT_OTHERWISE if wrong else EXIT_AS_STATED


def up(place: Place, screen: Screen) -> int:
    """Start Airflow and leave it running."""
    state = control.read_state(place)
    if control.is_running(state) and state is not None and state["stays"] and state["phase"] == "starting":
        _show_login(place, screen, state["port"])
        return EXIT_AS_STATED
    if state is not None:
        screen.say("an earlier run was killed: ending its processes")
        _must_end(control.end(place))
    try:
        _client, state = control.start(place, stays=True, say=screen.say, waiting=screen.moving)
    except BaseException:
        with _signals_ignored():
            _must_end(control.end(place))
        raise
    _show_login(place, screen, state["port"])
    return EXIT_AS_STATED


def _show_login(place: Place, screen: Screen, port: int) -> None:
    screen.line(f"Airflow is up: {address(port)}/dags/{DAG_ID}")
    screen.line(f"  user       {USER}")
    screen.line(f"  password   {control.password(place)}   (kept in {place.passwords})")
    screen.line("  make down ends it.")


def down(place: Place, screen: Screen) -> int:
    """End all processes of this home."""
    if control.read_state(place) is None:
        screen.line(f"nothing is running in {place.home.root}")
        return EXIT_AS_STATED
    _must_end(control.end(place))
    screen.line("Airflow has ended; no process is left.")
    return EXIT_AS_STATED


def _must_end(stubborn: Sequence[object]) -> None:
    if stubborn:
        listed = "\n".join(f"  {process}" for process in stubborn)
        raise LocalRunError(f"these processes could not be ended; end them by hand:\n{listed}")


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into ``Ended``, so that every ``finally`` runs."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise Ended(number)

    earlier = {number: signal.signal(number, end) for number in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore signals, so that a second Ctrl-C does not interrupt the ending of processes."""
    earlier = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
