"""Runs at the same time on one home wait for each other or are refused; their results do not mix."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatch_core.recording.files import find_recordings
from dispatch_core.recording.reader import read_recording
from spark_jobs.intervals import parse_moment
from spark_jobs.location import Location
from spark_jobs.stale_intervals import all_stale
from tests.chaos.scene import Scene, copy, pages_of, rows_of, start, strays

_SECONDS = 600


def together(home: Path, source: Path, asked: Sequence[tuple[str, dict[str, str]]]) -> list[tuple[int, str]]:
    """Run stages at the same time; return their exit codes and error output."""
    running = [start(stage, home, source, environment) for stage, environment in asked]
    said = [process.communicate(timeout=_SECONDS)[1].decode(errors="replace") for process in running]
    return [(process.returncode, text) for process, text in zip(running, said, strict=True)]


def assert_done_or_refused(ended: Sequence[tuple[int, str]]) -> None:
    for code, said in ended:
        assert code in (0, 2), said[-2000:]
        if code:
            assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1, said[-2000:]
    assert any(code == 0 for code, _said in ended), ended


def test_two_whole_runs_of_one_interval(scene: Scene, tmp_path: Path) -> None:
    home = copy(scene.before("pull"), tmp_path / "home")
    ended = together(home, scene.source, [("all", {}), ("all", {})])
    assert_done_or_refused(ended)
    assert rows_of(home) == rows_of(scene.before("end"))
    assert pages_of(home) == pages_of(scene.before("end"))
    assert strays(home) == []


@pytest.mark.parametrize("stage", ["pull", "ingest", "replay", "aggregates", "validate", "reports"])
def test_two_runs_of_one_stage(scene: Scene, tmp_path: Path, stage: str) -> None:
    home = copy(scene.before(stage), tmp_path / "home")
    assert_done_or_refused(together(home, scene.source, [(stage, {}), (stage, {})]))
    assert rows_of(home) == rows_of(scene.after(stage))
    assert pages_of(home) == pages_of(scene.after(stage))


def test_a_backfill_of_one_interval_beside_the_schedule_of_another(scene: Scene, tmp_path: Path) -> None:
    """Run both halves of the sample at the same time; then run again, in order, those that were refused or are stale."""
    middle = middle_of(scene.source)
    halves = [
        {"CHAOS_INTERVAL": f"2026-11-21T00:00:00Z/{middle}"},
        {"CHAOS_INTERVAL": f"{middle}/2026-11-22T00:00:00Z"},
    ]
    alone, both = tmp_path / "alone", tmp_path / "both"
    for home in (alone, both):
        home.mkdir()
    for half in halves:
        ((code, said),) = together(alone, scene.source, [("all", half)])
        assert code == 0, said[-2000:]
    ended = together(both, scene.source, [("all", half) for half in halves])
    assert_done_or_refused(ended)
    for half, (code, _said) in zip(halves, ended, strict=True):
        if code:
            ((again, said),) = together(both, scene.source, [("all", half)])
            assert again == 0, said[-2000:]
    for home in (alone, both):
        run_stale(home, scene.source, halves)
    assert rows_of(both) == rows_of(alone)
    assert strays(both) == []


def run_stale(home: Path, source: Path, halves: Sequence[dict[str, str]]) -> None:
    """Run the halves again that are stale, as the next scheduled runs do.

    The first half is when the second one shows that its logs go on; the second one, if it summed up the balance of 24 hours
    before the first one had its own.
    """
    for _attempt in range(len(halves)):
        stale = {
            span.start for span in all_stale(Location.of(home / "landing"), Location.of(home / "warehouse"))
        }
        for half in halves:
            if parse_moment(half["CHAOS_INTERVAL"].partition("/")[0]) in stale:
                ((code, said),) = together(home, source, [("all", half)])
                assert code == 0, said[-2000:]
    assert all_stale(Location.of(home / "landing"), Location.of(home / "warehouse")) == []


def test_maintenance_beside_a_run(scene: Scene, tmp_path: Path) -> None:
    home = copy(scene.before("pull"), tmp_path / "home")
    upkeep = start("maintenance", home, scene.source)
    ((code, said),) = together(home, scene.source, [("all", {})])
    upkeep.kill() if upkeep.poll() is None else None
    stderr = upkeep.communicate()[1].decode(errors="replace")
    assert upkeep.returncode in (0, -9), stderr[-2000:]
    assert code == 0, said[-2000:]
    assert rows_of(home) == rows_of(scene.before("end"))
    assert pages_of(home) == pages_of(scene.before("end"))


def middle_of(source: Path) -> str:
    """Return a whole second with about half of the events before it, in the command line's format."""
    times = []
    for recording in find_recordings([source]):
        for log in read_recording(recording).logs:
            times += [t_us for t_us in log.events["t_us"].to_pylist() if t_us is not None]
    times.sort()
    return datetime.fromtimestamp(times[len(times) // 2] // 1_000_000, UTC).isoformat().replace("+00:00", "Z")
