"""Show the progress of a DAG run on the terminal: task by task, with the lines that the tasks log."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from dispatch_airflow.local_run.client import AirflowClient
from dispatch_airflow.local_run.control import is_running, read_state, tail
from dispatch_airflow.local_run.settings import LocalRunError, Place

DAG_ID: Final = "dispatch_audit"
PROGRESS_LOGGER: Final = "dispatch_audit.progress"
ORDER: Final = (
    "choose_interval", "pull", "ingest", "plan", "replay", "publish_tables", "discard_staging", "aggregate", "validate",
    "report", "publish", "alert", "find_stale", "recompute_stale", "judge_stale", "alert_stale", "conclude",
)  # fmt: skip
#: Tasks that these runs skip; they are not shown.
_LEFT_OUT: Final = {"find_stale", "recompute_stale", "judge_stale", "alert_stale"}
ENDED: Final = {"success", "failed", "skipped", "upstream_failed", "removed"}
_POLL_S: Final = 1.0
_LINES_AT_ONCE: Final = 6
_COLOUR: Final = re.compile(r"(\033\[\d{1,2}m)")
_COLOURS: Final = {
    "success": "32",
    "failed": "31",
    "running": "36",
    "PASS": "32",
    "FAIL": "31",
    "UNKNOWN": "33",
}


@dataclass
class Screen:
    """Print lines with the seconds since the start; on a terminal also colours, and a last line that is rewritten."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    began: float = field(default_factory=time.monotonic)
    fancy: bool = field(init=False)
    _moving: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.fancy = self.out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        self.line(f"[{time.monotonic() - self.began:6.1f} s] {text}")

    def line(self, text: str = "") -> None:
        """Print a line as it is."""
        self.settle()
        self._write(printable(text, colours=self.fancy) + "\n")

    def coloured(self, text: str, key: str | None = None) -> str:
        """Colour ``text`` by a state or verdict, on a terminal."""
        code = _COLOURS.get(key or text)
        return f"\033[{code}m{text}\033[0m" if self.fancy and code else text

    def moving(self, text: str) -> None:
        """Show ``text`` on the last line until the next line is printed; do nothing on a pipe."""
        if self.fancy:
            self._moving = True
            self._write(f"\r\033[2K{printable(text)[:100]}")

    def settle(self) -> None:
        """Remove the moving line."""
        if self._moving:
            self._moving = False
            self._write("\r\033[2K")

    def _write(self, text: str) -> None:
        if self._closed:
            return
        try:
            self.out.write(text)
            self.out.flush()
        except BrokenPipeError:  # the reader closed the pipe; Airflow must still be ended
            self._closed = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.out.fileno())


def printable(text: str, *, colours: bool = False) -> str:
    """Replace control characters by ``?``; with ``colours``, keep those that set a colour."""
    return "".join(
        part
        if colours and _COLOUR.fullmatch(part)
        else "".join(c if c.isprintable() or c == "\n" else "?" for c in part)
        for part in _COLOUR.split(text)
    )


@dataclass
class _LogReader:
    """Read new progress lines of one task's log files, attempt by attempt."""

    folder: Path
    offsets: dict[Path, int] = field(default_factory=dict)

    def new_lines(self) -> Iterator[str]:
        for log in sorted(self.folder.glob("attempt=*.log")):
            with log.open("rb") as stream:
                stream.seek(self.offsets.get(log, 0))
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self.offsets[log] = self.offsets.get(log, 0) + len(whole)
            for line in whole.splitlines():
                entry = _entry(line)
                if entry.get("logger") == PROGRESS_LOGGER:
                    yield str(entry.get("event", ""))


def _entry(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def watch_run(
    client: AirflowClient, place: Place, run_id: str, screen: Screen, timeout_s: float
) -> dict[str, str]:
    """Show a run until it ends; return the final state of each task, and that of the run under ``""``."""
    seen: dict[str, str] = {}
    logs: dict[str, _LogReader] = {}
    deadline = time.monotonic() + timeout_s
    while True:
        instances = {_name(instance): instance for instance in client.task_instances(DAG_ID, run_id)}
        # A mapped task is listed under its own name until its number of instances is known.
        for name in seen.keys() - instances.keys() - {""}:
            del seen[name]
        for name in sorted(instances, key=_order):
            _show_task(name, instances[name], place, run_id, screen, seen, logs)
        if all(instance["state"] in ENDED for instance in instances.values()):
            state = client.run_state(DAG_ID, run_id)
            if state in {"success", "failed"}:
                screen.settle()
                return {"": state, **seen}
        running = [t for t, s in seen.items() if s == "running"]
        screen.moving(
            f"{time.monotonic() - screen.began:8.1f} s  {', '.join(running) or 'the scheduler'} at work"
        )
        if not is_running(read_state(place)):
            raise LocalRunError(_airflow_ended(place))
        if time.monotonic() > deadline:
            raise LocalRunError(
                f"the run {run_id} is not done after {timeout_s:.0f} s (at work: {', '.join(running) or 'nothing'}). "
                f"What was written is kept; the task logs are in {place.task_logs(run_id)}."
            )
        time.sleep(_POLL_S)


def _name(instance: dict[str, Any]) -> str:
    """Name a task instance: ``replay``, or ``replay[0]`` for an instance of a mapped task."""
    index = instance.get("map_index", -1)
    return f"{instance['task_id']}[{index}]" if index >= 0 else str(instance["task_id"])


def _order(name: str) -> tuple[int, str]:
    task_id = name.partition("[")[0]
    return (ORDER.index(task_id) if task_id in ORDER else len(ORDER), name)


def _log_folder(place: Place, run_id: str, name: str) -> Path:
    task_id, mapped, index = name.partition("[")
    folder = place.task_logs(run_id) / f"task_id={task_id}"
    return folder / f"map_index={index.removesuffix(']')}" if mapped else folder


def _show_task(
    name: str,
    instance: dict[str, Any],
    place: Place,
    run_id: str,
    screen: Screen,
    seen: dict[str, str],
    logs: dict[str, _LogReader],
) -> None:
    state = instance["state"] or "waiting"
    if seen.get(name) in ENDED:
        return
    changed = seen.get(name) != state
    seen[name] = state
    if changed and state == "running":
        screen.say(f"{name:<15} {screen.coloured(state)}")
    reader = logs.setdefault(name, _LogReader(_log_folder(place, run_id, name)))
    lines = list(reader.new_lines())
    if len(lines) > _LINES_AT_ONCE:
        lines = [*lines[:2], f"... {len(lines) - 4} lines more, see the log", *lines[-2:]]
    for line in lines:
        screen.say(f"{name:<15} | {line}")
    if state == "skipped" and name in _LEFT_OUT:
        return
    if changed and (state in ENDED or state == "up_for_retry"):
        duration = instance.get("duration")
        took = f" in {float(duration):.1f} s" if duration and state in {"success", "failed"} else ""
        screen.say(f"{name:<15} {screen.coloured(state)}{took}")


def _airflow_ended(place: Place) -> str:
    state = read_state(place) or {}
    log = place.services / f"{state.get('failed', 'services')}.log"
    return (
        f"Airflow ended during the run ({state.get('error', 'for an unknown reason')}). "
        f"The tables are as the last finished task left them; run make run again.\nEnd of {log}:\n{tail(log, 15)}"
    )


def failure(place: Place, run_id: str, task_id: str) -> str:
    """Describe a failed task: its name, the end of its log in readable form, and the log's path."""
    files = sorted(_log_folder(place, run_id, task_id).glob("attempt=*.log"))
    if not files:
        return f"task {task_id} failed and left no log in {place.task_logs(run_id)}"
    reasons: list[str] = []
    for raw in files[-1].read_bytes().splitlines():
        entry = _entry(raw)
        detail = entry.get("error_detail")
        if isinstance(detail, list) and detail and isinstance(detail[0], dict):
            reasons = [f"{detail[0].get('exc_type')}: {detail[0].get('exc_value')}"]
        elif entry.get("level") in {"error", "critical"}:
            reasons.append(str(entry.get("event", "")))
    text = "\n".join(f"  {line}" for reason in reasons[-3:] for line in reason.splitlines())
    return f"task {task_id} failed:\n{text}\nThe whole log: {files[-1]}"
