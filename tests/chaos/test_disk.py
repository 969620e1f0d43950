"""A full or read-only disk gives one clear error line and keeps earlier results; with room the run succeeds."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.scene import Scene, pages_of, rows_of, start
from tests.chaos.stages import STAGES

#: KiB left for the stage: none, enough for a file or two, enough for a part of its files.
_FREE_KIB = (0, 64, 256)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk; mounting needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def run(scene: Scene, stage: str, home: Path) -> tuple[int, list[str]]:
    process = start(stage, home, scene.source)
    said = process.communicate(timeout=300)[1].decode(errors="replace")
    return process.returncode, [line for line in said.splitlines() if line.strip()]


def assert_earlier_results_stand(scene: Scene, stage: str, home: Path) -> None:
    now, before, after = rows_of(home), rows_of(scene.before(stage)), rows_of(scene.after(stage))
    assert [name for name in now if now[name] not in (before[name], after[name])] == []
    old, new = pages_of(scene.before(stage)), pages_of(scene.after(stage))
    assert [name for name, text in pages_of(home).items() if text not in (old.get(name), new.get(name))] == []


def assert_one_clear_line(lines: list[str], about: str) -> None:
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, lines[-3:]
    assert about in errors[0]
    assert not any(line.startswith("Traceback") for line in lines), lines[-20:]


@pytest.mark.parametrize("free_kib", _FREE_KIB)
@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_is_named_and_what_was_there_stands(
    scene: Scene, disk: Path, stage: str, free_kib: int
) -> None:
    home = disk / "home"
    shutil.copytree(scene.before(stage), home)
    usage = shutil.disk_usage(disk)
    remount(disk, f"size={usage.used + free_kib * 1024}")
    code, lines = run(scene, stage, home)
    if code:
        assert code in (2, 75), lines[-3:]
        assert_one_clear_line(lines, "No space left")
    assert_earlier_results_stand(scene, stage, home)
    remount(disk, "size=256m")
    assert run(scene, stage, home)[0] == 0
    assert rows_of(home) == rows_of(scene.after(stage))
    assert pages_of(home) == pages_of(scene.after(stage))


@pytest.mark.parametrize("stage", STAGES)
def test_a_read_only_disk_is_named(scene: Scene, disk: Path, stage: str) -> None:
    home = disk / "home"
    shutil.copytree(scene.before(stage), home)
    remount(disk, "ro")
    code, lines = run(scene, stage, home)
    assert code == 2, lines[-3:]
    assert_one_clear_line(lines, "Read-only file system")
    remount(disk, "rw")
    assert rows_of(home) == rows_of(scene.before(stage))
    assert run(scene, stage, home)[0] == 0
    assert rows_of(home) == rows_of(scene.after(stage))
