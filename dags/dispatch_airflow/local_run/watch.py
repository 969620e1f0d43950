"""Show the progress of a DAG run on the terminal: task by task, with the lines that the tasks log."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from dispatch_airflow.local_run.client import AirflowClient
from dispatch_airflow.local_run.control import ended, is_running, read_state
from dispatch_airflow.local_run.settings import DAG_ID, LocalRunError, Place
from dispatch_core.audit.sentences.names import printable
from dispatch_core.cli.log_lines import PROGRESS

_ENDED: Final = {"success", "failed", "skipped", "upstream_failed", "removed"}
#: States of tasks that are shown when a task gets into them.
_SHOWN: Final = {"success", "failed", "upstream_failed", "removed", "up_for_retry"}
_POLL_S: Final = 1.0
_LINES_AT_ONCE: Final = 6
_COLOURS: Final = {"success": 32, "failed": 31, "running": 36, "PASS": 32, "FAIL": 31, "UNKNOWN": 33}
_COLOURED: Final = re.compile(rf"\b({'|'.join(_COLOURS)})\b")


class Screen:
    """Print lines with the seconds since the start; on a terminal also colours, and a last line that is rewritten."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._began = time.monotonic()
        self._fancy = self._out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._moving = False
        self._closed = False

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        self.line(f"[{time.monotonic() - self._began:6.1f} s] {text}")

    def line(self, text: str = "") -> None:
        """Print a line; on a terminal, states of tasks and verdicts have colours."""
        self.settle()
        text = printable(text)
        if self._fancy:
            text = _COLOURED.sub(lambda word: f"\033[{_COLOURS[word[0]]}m{word[0]}\033[0m", text)
        self._write(f"{text}\n")

    def moving(self, text: str) -> None:
        """Show ``text`` on the last line until the next line is printed; do nothing on a pipe."""
        if self._fancy:
            self._moving = True
            self._write(f"\r\033[2K{time.monotonic() - self._began:8.1f} s  {printable(text)[:80]}")

    def settle(self) -> None:
        """Remove the moving line."""
        if self._moving:
            self._moving = False
            self._write("\r\033[2K")

    def _write(self, text: str) -> None:
        if self._closed:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:  # the reader closed the pipe; Airflow must still be ended
            self._closed = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())


def watch_run(
    client: AirflowClient, place: Place, run_id: str, screen: Screen, timeout_s: float
) -> dict[str, str]:
    """Show a run until it ends; return the final state of each task, and that of the run under ``""``."""
    progress = _Progress(place, run_id, screen)
    deadline = time.monotonic() + timeout_s
    while True:
        states = progress.show(client.task_instances(DAG_ID, run_id))
        if set(states.values()) <= _ENDED:
            state = client.run_state(DAG_ID, run_id)
            if state in {"success", "failed"}:
                screen.settle()
                return {"": state, **states}
        at_work = ", ".join(name for name, state in states.items() if state == "running")
        screen.moving(f"{at_work or 'the scheduler'} at work")
        if not is_running(read_state(place)):
            kept = "The tables are as the last finished task left them; run make run again."
            raise ended(place, "Airflow ended during the run", kept)
        if time.monotonic() > deadline:
            raise LocalRunError(
                f"the run {run_id} is not done after {timeout_s:.0f} s (at work: {at_work or 'nothing'}). "
                f"What was written is kept; the task logs are in {place.task_logs(run_id)}."
            )
        time.sleep(_POLL_S)


class _Progress:
    """The part of a run that was shown: the state of each task, and how much of its logs."""

    def __init__(self, place: Place, run_id: str, screen: Screen) -> None:
        self._place, self._run_id, self._screen = place, run_id, screen
        self._shown: dict[str, str] = {}
        self._offsets: dict[Path, int] = {}

    def show(self, instances: list[dict[str, Any]]) -> dict[str, str]:
        """Show what is new of the tasks, in the order in which they began; return the state of each."""
        began = sorted(instances, key=lambda instance: instance.get("start_date") or "9")
        states = {_name(instance): str(instance["state"] or "waiting") for instance in began}
        for instance, (name, state) in zip(began, states.items(), strict=True):
            before = self._shown.get(name)
            if before in _ENDED:
                continue
            if state == "running" and before != state:
                self._screen.say(f"{name:<15} {state}")
            lines = list(self._new_lines(name))
            if len(lines) > _LINES_AT_ONCE:
                lines = [*lines[:2], f"... {len(lines) - 4} lines more, see the log", *lines[-2:]]
            for line in lines:
                self._screen.say(f"{name:<15} | {line}")
            if before != state and state in _SHOWN:
                duration = instance.get("duration")
                took = f" in {duration:.1f} s" if duration and state in {"success", "failed"} else ""
                self._screen.say(f"{name:<15} {state}{took}")
        self._shown = states
        return states

    def _new_lines(self, name: str) -> Iterator[str]:
        """Read the new progress lines of a task's log files, attempt by attempt."""
        for log in _logs(self._place, self._run_id, name):
            with log.open("rb") as stream:
                stream.seek(self._offsets.get(log, 0))
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[log] = self._offsets.get(log, 0) + len(whole)
            yield from (
                str(entry.get("event", "")) for entry in _entries(whole) if entry.get("logger") == PROGRESS
            )


def _name(instance: dict[str, Any]) -> str:
    """Name a task instance: ``replay``, or ``replay[0]`` for an instance of a mapped task."""
    index = instance.get("map_index", -1)
    return f"{instance['task_id']}[{index}]" if index >= 0 else str(instance["task_id"])


def _logs(place: Place, run_id: str, name: str) -> list[Path]:
    """List the log files of a task instance, attempt by attempt."""
    task_id, mapped, index = name.partition("[")
    folder = place.task_logs(run_id) / f"task_id={task_id}"
    return sorted((folder / f"map_index={index[:-1]}" if mapped else folder).glob("attempt=*.log"))


def _entries(data: bytes) -> Iterator[dict[str, Any]]:
    """Read the JSON objects of a log; lines of another form are left out."""
    for line in data.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def failure(place: Place, run_id: str, name: str) -> str:
    """Describe a failed task: its name, the end of its log in readable form, and the log's path."""
    logs = _logs(place, run_id, name)
    if not logs:
        return f"task {name} failed and left no log in {place.task_logs(run_id)}"
    reasons: list[str] = []
    for entry in _entries(logs[-1].read_bytes()):
        detail = entry.get("error_detail")
        if isinstance(detail, list) and detail and isinstance(detail[0], dict):
            reasons = [f"{detail[0].get('exc_type')}: {detail[0].get('exc_value')}"]
        elif entry.get("level") in {"error", "critical"}:
            reasons.append(str(entry.get("event", "")))
    text = "\n".join(f"  {line}" for reason in reasons[-3:] for line in reason.splitlines())
    return f"task {name} failed:\n{text}\nThe whole log: {logs[-1]}"
