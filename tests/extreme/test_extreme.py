"""The cost of extreme inputs grows with their lines, not with the square of them."""

from __future__ import annotations

import contextlib
import cProfile
import io
import pstats
import time
from pathlib import Path

import pytest

from dispatch_core.cli.main import main
from dispatch_core.recording.reader import KEPT_REFUSED, find_recordings, read_recording
from tests.extreme.cases import write

#: Four times the lines may cost eight times as much: a square would cost sixteen times.
_GROWTH = 8


def _audit(path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(["audit", str(path)])


def _calls(path: Path) -> int:
    """Return how many calls of Python an audit makes."""
    with cProfile.Profile() as profile:
        _audit(path)
    total: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("incarnations", 15), ("subs", 15), ("cumulative", 200)])
def test_calls_grow_with_the_lines(tmp_path: Path, name: str, count: int) -> None:
    small, large = write(name, count, tmp_path), write(name, 4 * count, tmp_path)
    _audit(small)  # imports, and loads what is compiled
    assert _calls(large) < _GROWTH * _calls(small)


def _least_s(path: Path) -> float:
    """Return the shortest of three times that an audit takes of a processor: other work on the machine makes some longer."""
    taken_s = []
    for _ in range(3):
        started_s = time.process_time()
        _audit(path)
        taken_s.append(time.process_time() - started_s)
    return min(taken_s)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nackall", "twoholders"])
def test_compiled_loops_grow_with_the_lines(tmp_path: Path, name: str) -> None:
    # Times vary more than calls do. Over 4 times the lines, linear work once took 8.05 times as long on a busy machine;
    # over 16 times the lines, a limit of 64 leaves room for that, and a square would cost 256 times as much.
    small, large = write(name, 5_000, tmp_path), write(name, 80_000, tmp_path)
    _audit(small)
    assert _least_s(large) < 4 * 16 * _least_s(small)


def test_the_first_refused_lines_are_held_and_all_are_counted(tmp_path: Path) -> None:
    (source,) = find_recordings([str(write("garbage", 5_000, tmp_path))])
    recording = read_recording(source)
    # The message log's header is the one line that can be read.
    assert (recording.refused, recording.quarantine.num_rows) == (5_000, KEPT_REFUSED)
    assert recording.quarantine["source_line"].to_pylist() == list(range(1, KEPT_REFUSED + 1))
