"""A pull that is killed at any point of its own: the next one gives what an undisturbed one gives. Without Spark, so quick.

The other stages, and the rest of what can go wrong: ``make chaos`` (``tests/chaos``).
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dispatch_core.recording.files import file_format
from spark_jobs.pull.pull_logs import landed_files, pull
from tests.chaos.scene import start
from tests.chaos.stages import SPAN
from tests.spark_jobs.conftest import SAMPLE


def landed_contents(landing: Path) -> dict[str, bytes]:
    """The landed files of the interval, byte for byte."""
    return {name: path.read_bytes() for name, path in landed_files(landing, SPAN)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("point", [1, 6, 13, 21, 36, 40, 45])
def test_a_pull_killed_at_a_point_is_taken_up(tmp_path: Path, point: int) -> None:
    pull(SAMPLE, tmp_path / "undisturbed", SPAN.start)
    home = tmp_path / "home"
    home.mkdir()
    mark = tmp_path / "mark"
    killed = start(
        "pull",
        home,
        SAMPLE,
        {
            "CHAOS_ROLE": "driver",
            "CHAOS_BELOW": str(home),
            "CHAOS_MARK": str(mark),
            "CHAOS_KILL_AT": str(point),
        },
    )
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert mark.exists()
    again = start("pull", home, SAMPLE)
    assert again.communicate(timeout=60)[1] == b""
    assert again.returncode == 0
    assert landed_contents(home / "landing") == landed_contents(tmp_path / "undisturbed")
    assert all(file_format(name) for name in landed_contents(home / "landing"))
