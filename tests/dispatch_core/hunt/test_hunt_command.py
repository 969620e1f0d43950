"""``dispatch-audit hunt``: what it prints, and the files of a find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from dispatch_core.hunt.choices import ALSO
from dispatch_core.hunt.schedule import GROUPS

#: The first hunt of an installation compiles for more than a minute.
pytestmark = pytest.mark.slow

RANGE = "subscriptionKeySharedUseConsistentHashing=false"


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the command with ``--json``; return its exit code and its objects."""
    code = main(["hunt", *arguments, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_a_find_has_a_log_scripts_and_a_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "hunt"
    code, (find, *others, totals) = rows_of(
        capsys, *("--broker-version", "4.0.0", "--set", RANGE, "--promise", "stuck"),
        *("--schedules", "100000", "--seed", "3", "--out", str(out)),
    )  # fmt: skip
    assert code == 1
    assert totals["found"] == 1 + len(others)
    assert totals["schedules"] >= 100_000
    stuck = next(row for row in (find, *others) if row["cause"] == "draining_hash")
    assert "never comes" in stuck["outcome"]
    assert "c1 joins" in " ".join(stuck["steps"])
    assert set(stuck["files"]) == {"log", "StuckKeyTest.java", "walk.py", "report.md", "schedule.toml"}
    assert "#24736" in Path(stuck["files"]["report.md"]).read_text(encoding="utf-8")
    assert main(["audit", stuck["files"]["log"]]) == 1
    assert "a fault of 4.0.0 to 4.0.6 and 4.1.0" in capsys.readouterr().out


def test_nothing_found(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--broker-version", "4.2.4", "--set", RANGE, "--promise", "order", "--schedules", "20000"]
    code, rows = rows_of(capsys, *arguments)
    assert (code, [row["found"] for row in rows]) == (0, [0])
    assert main(["hunt", *arguments]) == 0
    assert "no promise was broken" in capsys.readouterr().out


def test_known_causes_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    code, (*finds, totals) = rows_of(
        capsys, *("--broker-version", "3.0.17", "--set", RANGE, "--promise", "stuck", "--schedules", "40000"),
        *("--seed", "3", "--pass-over", "normal_read_waits", "--pass-over", "rewind_waits"),
    )  # fmt: skip
    assert totals["passed_over"]["normal_read_waits"] > 10
    assert not {find["cause"] for find in finds} & {"normal_read_waits", "rewind_waits"}
    assert code == int(bool(finds))


def test_a_hunt_goes_on_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two sets of keys at once, or one after the other."""
    arguments = ["--broker-version", "4.0.0", "--set", RANGE, "--promise", "stuck", "--states", "--seed", "3"]
    _, at_once = rows_of(capsys, *arguments, "--schedules", "200000", "--resume", str(tmp_path / "at-once"))
    file = str(tmp_path / "parts")
    rows_of(capsys, *arguments, "--schedules", "1", "--resume", file)
    _, part = rows_of(capsys, *arguments, "--schedules", "1", "--resume", file)
    while part[-1]["sets_of_keys"] < at_once[-1]["sets_of_keys"]:
        _, part = rows_of(capsys, *arguments, "--schedules", "1", "--resume", file)
    for rows in (at_once, part):
        del rows[-1]["seconds"]
    assert part == at_once
    assert at_once[-1]["states"] > 1000
    assert at_once[-1]["sets_of_keys"] > 1
    assert main(["hunt", *arguments, "--also", "races", "--resume", file]) == 2
    assert "of a hunt with other arguments" in capsys.readouterr().err
    Path(file).write_text("{}", encoding="utf-8")
    assert main(["hunt", *arguments, "--resume", file]) == 2
    assert "is no hunt to resume" in capsys.readouterr().err


@pytest.mark.slow
def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["hunt", "--broker-version", "4.0.0", "--set", RANGE, "--schedules", "20000", "--seed", "3"])
        == 1
    )
    text = capsys.readouterr().out
    assert "4.0.0 sticky key, draining hashes, auto-split hash range: " in text
    assert "    1. " in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--broker-version", "4.2.4", "--schedules", "0"], "'0' is no number of schedules above 0"),
        (["--broker-version", "nine"], "nine"),
        ([], "--broker-version"),
        (["--broker-version", "4.2.4", "--pass-over", "rain"], "--pass-over rain: not one of"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["hunt", *arguments])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err


def test_an_occupied_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept").write_text("x")
    assert main(["hunt", "--broker-version", "4.2.4", "--out", str(tmp_path), "--schedules", "1"]) == 2
    assert "is occupied" in capsys.readouterr().err


def test_a_file_to_play_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, binary = tmp_path / "none.toml", tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path in (missing, binary):
        assert main(["hunt", "--broker-version", "4.2.4", "--play", str(path)]) == 2
        assert f"--play {path}: cannot be read" in capsys.readouterr().err


def test_every_group_of_steps_can_be_asked_for() -> None:
    assert sorted(GROUPS) == list(ALSO)
