"""Start child processes that never outlive their parent, and find and end processes by ``/proc``. Linux only.

``psutil`` has neither the end with the parent nor sessions, and its start times move with the clock; these are read here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
_PROC: Final = Path("/proc")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

Lines = Callable[[str], None]


def end_with_parent(signal_number: int = signal.SIGTERM) -> None:
    """Let the kernel send ``signal_number`` to this process when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)


def stream(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    on_error_line: Lines,
    on_output_line: Lines | None = None,
    kill_after_s: float = 10.0,
) -> tuple[int, list[str]]:
    """Run ``command`` to its end; return its exit code and the lines of its stdout.

    Passes each line of stderr to ``on_error_line`` as it comes, and each line of stdout to ``on_output_line`` (in
    another thread). If an exception ends this call early, the child gets SIGTERM, and SIGKILL after ``kill_after_s``. If
    this process dies, the kernel ends the child.
    """
    with subprocess.Popen(
        list(command),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        preexec_fn=end_with_parent,  # noqa: PLW1509 - one prctl call, nothing that could take a lock
    ) as child:
        output: list[str] = []
        reader = threading.Thread(target=_read_into, args=(child.stdout, output, on_output_line), daemon=True)
        reader.start()
        try:
            assert child.stderr is not None
            for line in child.stderr:
                on_error_line(line.rstrip("\n"))
            code = child.wait()
            reader.join()
            return code, output
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(kill_after_s)
                except subprocess.TimeoutExpired:
                    child.kill()


def _read_into(pipe: IO[str] | None, lines: list[str], on_line: Lines | None) -> None:
    for line in pipe or ():
        lines.append(line.rstrip("\n"))
        if on_line is not None:
            on_line(lines[-1])


@dataclass(frozen=True, slots=True)
class Process:
    """A process as ``/proc`` shows it; ``started`` (clock ticks since boot) detects that an id was reused."""

    pid: int
    parent: int
    session: int
    started: int
    state: str

    @property
    def command(self) -> str:
        """Command line on one line; empty if the process has ended."""
        try:
            return (
                (_PROC / str(self.pid) / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
                .strip()
            )
        except OSError:
            return ""

    def has_environment(self, assignment: str) -> bool:
        """True if ``NAME=value`` was in the environment when the process was started."""
        try:
            return assignment.encode() in (_PROC / str(self.pid) / "environ").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile, or another user's
            return False

    def works_in(self, folder: Path) -> bool:
        """True if the working directory is ``folder`` or below it."""
        try:
            where = (_PROC / str(self.pid) / "cwd").readlink()
        except OSError:
            return False
        return where.is_relative_to(folder)


def processes() -> list[Process]:
    """List all processes of this user that are running, without zombies."""
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        running = process(int(entry.name))
        if running is not None and running.state != "Z":
            found.append(running)
    return found


def process(pid: int) -> Process | None:
    """Return the process with this id if it exists and belongs to this user."""
    try:
        if (_PROC / str(pid)).stat().st_uid != os.getuid():
            return None
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command is in brackets and may contain brackets: the other fields start after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0])


def end_all(pick: Callable[[], Iterable[Process]], *, grace_s: float) -> list[Process]:
    """End the processes that ``pick`` returns until it returns none: first with SIGTERM, after ``grace_s`` with SIGKILL.

    Returns the processes that could not be ended (normally none).
    """
    deadline = time.monotonic() + grace_s
    signalled: set[tuple[int, int]] = set()
    while time.monotonic() < deadline:
        left = list(pick())
        if not left:
            return []
        for running in left:
            if (running.pid, running.started) not in signalled:
                signalled.add((running.pid, running.started))
                _send(running.pid, signal.SIGTERM)
        time.sleep(0.1)
    for _ in range(50):
        left = list(pick())
        if not left:
            return []
        for running in left:
            _send(running.pid, signal.SIGKILL)
        time.sleep(0.1)
    return list(pick())


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself
