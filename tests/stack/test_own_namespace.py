"""A machine of the stack sees its own folder, what is kept for all, and nothing of the other machines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.stack.own_namespace import command_line, why_not


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    reason = why_not(tmp_path / "probe")
    if reason is not None:
        pytest.skip(f"this user may not make mount namespaces: {reason}")
    for name in ("one", "other"):
        (tmp_path / "machines" / name / "tmp").mkdir(parents=True)
        (tmp_path / "machines" / name / "tmp" / f"of-{name}").write_text(name)
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "settings").write_text("for all")
    return tmp_path / "machines"


def said(words: list[str]) -> list[str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_folder_of_another_does_not_exist(machines: Path) -> None:
    command = ["ls", str(machines), "/tmp", str(machines / "one" / "tmp")]
    assert "of-one" in said(command_line(machines / "one", command))
    assert not {"other", "of-other"} & set(said(command_line(machines / "one", command)))
    both = ["ls", str(machines), str(machines / "other" / "tmp")]
    assert {"one", "other", "of-other"} <= set(said(both)), "everybody else sees both"
    refused = subprocess.run(
        command_line(machines / "one", ["cat", str(machines / "other" / "tmp" / "of-other")]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No such file" in refused.stderr


def test_what_a_machine_writes_is_in_its_folder_and_what_is_kept_is_seen(machines: Path) -> None:
    given = machines.parent / "given"
    script = f"echo written >/tmp/{given.parent.name}; pwd; cat {given}/settings"
    assert said(command_line(machines / "one", ["sh", "-c", script], keep=[given])) == [
        str(machines / "one"),
        "for",
        "all",
    ]
    assert (machines / "one" / "tmp" / given.parent.name).read_text() == "written\n"
    assert not (Path("/tmp") / given.parent.name).exists()


def test_a_machine_that_starts_again_sees_what_is_kept(machines: Path) -> None:
    given = machines.parent / "given"
    command = ["cat", str(given / "settings")]
    for _start in range(2):
        assert said(command_line(machines / "one", command, keep=[given])) == ["for", "all"]


def test_a_machine_on_a_machine_sees_neither_its_host_nor_the_others(machines: Path) -> None:
    driver = machines / "one" / "driver"
    (driver / "tmp").mkdir(parents=True)
    inner = command_line(driver, ["ls", str(machines)], inside="driver")
    outer = command_line(machines / "one", inner)
    assert said(outer) == ["driver"]


def test_a_file_lies_over_another_for_one_machine(machines: Path) -> None:
    given = machines.parent / "given"
    (given / "replaced").write_text("as it was")
    over = [(given / "settings", given / "replaced")]
    command = ["cat", str(given / "replaced")]
    assert said(command_line(machines / "one", command, keep=[given], over=over)) == ["for", "all"]
    assert (given / "replaced").read_text() == "as it was"
