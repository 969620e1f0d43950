"""Child processes that never outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dispatch_airflow.processes import end_all, process, processes, stream

ROOT = Path(__file__).resolve().parents[2]


def _wait_until(true, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    found = process(pid)
    return found is not None and found.state != "Z"


def test_stream_passes_on_each_line_and_the_exit_code():
    script = "import sys; print('out'); print('err 1', file=sys.stderr); print('err 2', file=sys.stderr); sys.exit(3)"
    seen: list[str] = []
    code, output = stream([sys.executable, "-c", script], env=os.environ, on_error_line=seen.append)
    assert (code, output, seen) == (3, ["out"], ["err 1", "err 2"])


def test_stream_ends_the_child_when_its_caller_is_interrupted():
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    script = "import os, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        stream([sys.executable, "-c", script], env=os.environ, on_error_line=interrupt)
    assert not _runs(pids[0])


def test_a_child_ends_when_its_parent_is_killed():
    child = "import os, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(600)"
    parent = (
        "import os, sys\nfrom dispatch_airflow.processes import stream\n"
        f"stream([sys.executable, '-c', {child!r}], env=os.environ, on_error_line=lambda l: print(l, flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as killed:
        grandchild = int(killed.stdout.readline())
        assert _runs(grandchild)
        killed.kill()
    _wait_until(lambda: not _runs(grandchild))


def test_end_all_also_ends_what_ignores_sigterm():
    script = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        child.stdout.readline()
        left = end_all(lambda: [running for running in processes() if running.pid == child.pid], grace_s=0.5)
        assert left == []
    assert child.returncode == -signal.SIGKILL


def test_a_process_is_known_by_environment_folder_and_session(tmp_path):
    odd_name = tmp_path / "a) R 1 (b"  # the command stands in brackets in /proc and may hold brackets itself
    odd_name.symlink_to("/bin/sleep")
    env = {**os.environ, "DISPATCH_AUDIT_TEST": "x y"}
    with subprocess.Popen([str(odd_name), "600"], cwd=tmp_path, env=env, start_new_session=True) as child:
        try:
            # Until it is what it was started as, its environment is this process's own.
            _wait_until(lambda: process(child.pid).works_in(tmp_path))
            _wait_until(lambda: process(child.pid).has_environment("DISPATCH_AUDIT_TEST=x y"))
            found = process(child.pid)
            assert found.session == child.pid
            assert found.parent == os.getpid()
            assert not found.has_environment("DISPATCH_AUDIT_TEST=x")
        finally:
            child.kill()
    assert process(child.pid) is None
