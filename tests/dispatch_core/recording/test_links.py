"""Links in a source: named and left out, or followed if asked for; a bad one stops nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatch_core.recording import links
from dispatch_core.recording.files import NoRecordingError, file_format, find_recordings
from dispatch_core.recording.links import SourceWalk


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source with one file that is no link, and links of all kinds."""
    outside = tmp_path / "outside"
    (outside / "day").mkdir(parents=True)
    (outside / "day" / "events-2.jsonl").write_bytes(b"outside\n")
    (outside / "events-3.jsonl").write_bytes(b"a file outside\n")
    (outside / "locked.jsonl").write_bytes(b"")
    folder = tmp_path / "source"
    (folder / "run" / ".data").mkdir(parents=True)
    (folder / "run" / "events-1.jsonl").write_bytes(b"inside\n")
    (folder / "run" / "notes.txt").write_bytes(b"")
    run = folder / "run"
    os.mkfifo(outside / "pipe")
    for name, target in {
        "events-gone.jsonl": outside / "nothing",
        "events-loop.jsonl": run / "events-loop.jsonl",
        "events-locked.jsonl": outside / "locked.jsonl",
        "events-pipe.jsonl": outside / "pipe",
        "events-same.jsonl": run / "events-1.jsonl",
        "events-3.jsonl": outside / "events-3.jsonl",
        "days": outside,
        "up": folder,
        "nowhere": outside / "no folder",
        "readme": run / "notes.txt",
    }.items():
        (run / name).symlink_to(target)
    return folder


LINKS = sorted(
    [
        "days",
        "events-3",
        "events-gone",
        "events-locked",
        "events-loop",
        "events-pipe",
        "events-same",
        "nowhere",
        "up",
    ]
)


def lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one file be unreadable, for the superuser too."""
    usual = os.open

    def refuse(path, *args, **kwargs):
        if str(path).endswith("locked.jsonl"):
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path, *args, **kwargs)

    monkeypatch.setattr(links.os, "open", refuse)


def test_links_are_left_out_and_each_is_named_once(source: Path) -> None:
    said: list[str] = []
    (found,) = find_recordings([source, source / "run"], say=said.append)
    assert [file.name for file in found.events] == ["events-1.jsonl"]
    assert sorted(Path(line.partition(":")[0]).name.removesuffix(".jsonl") for line in said) == LINKS
    reasons = {Path(line.partition(":")[0]).name: line.partition(": ")[2] for line in said}
    assert (
        reasons["events-3.jsonl"]
        == reasons["days"]
        == ("a link, not followed; --follow-links (in the DAG: follow_links) reads what it leads to")
    )
    assert reasons["nowhere"] == "a link that leads nowhere (No such file or directory)"
    assert reasons["events-loop.jsonl"] == "a link that leads nowhere (Too many levels of symbolic links)"


def test_followed_links_are_read_and_bad_ones_are_named(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock(monkeypatch)
    walk = SourceWalk(file_format, follow_links=True)
    names = sorted("/".join(parts) for parts, path in walk.files(source) if file_format(path.name))
    assert names == [
        "run/days/day/events-2.jsonl",
        "run/days/events-3.jsonl",
        "run/events-1.jsonl",
    ]
    reasons = {Path(line.partition(":")[0]).name: line.partition(": ")[2] for line in walk.messages()}
    assert reasons == {
        "nowhere": "a link that leads nowhere (No such file or directory)",
        "events-gone.jsonl": "a link that leads nowhere (No such file or directory)",
        "events-loop.jsonl": "a link that leads nowhere (Too many levels of symbolic links)",
        "events-locked.jsonl": "a link to what cannot be read (Permission denied)",
        "events-pipe.jsonl": "a link to what is no file and no folder",
        "events-same.jsonl": "a link to what is read already",
        "events-3.jsonl": "a link to what is read already",
        "up": "a link to what is read already",
    }


def test_a_folder_of_a_followed_link_that_cannot_be_read_stops_nothing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Path.iterdir

    def refuse(self: Path):
        if self.name == "day":
            raise PermissionError(13, "Permission denied", str(self))
        return usual(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    walk = SourceWalk(file_format, follow_links=True)
    names = {"/".join(parts) for parts, _path in walk.files(source)}
    assert "run/events-1.jsonl" in names
    assert "run/events-locked.jsonl" in names
    assert f"{source}/run/days: a link to a folder that cannot be read (Permission denied)" in walk.messages()


def test_links_to_hidden_folders_beside_them_are_read(tmp_path: Path) -> None:
    """As volumes of Kubernetes are laid out."""
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "events-1.jsonl").write_bytes(b"")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "events-1.jsonl").symlink_to("..data/events-1.jsonl")
    walk = SourceWalk(file_format, follow_links=True, hidden=False)
    assert [parts for parts, _path in walk.files(tmp_path)] == [("events-1.jsonl",)]
    assert walk.messages() == []


def test_a_named_link_is_followed_and_one_that_a_pattern_finds_is_not(source: Path) -> None:
    said: list[str] = []
    (found,) = find_recordings([source / "run" / "days" / "day"], say=said.append)
    assert [file.name for file in found.events] == ["events-2.jsonl"]
    assert said == []
    with pytest.raises(NoRecordingError, match="links were left out, see above"):
        find_recordings([source / "run" / "da*" / "*" / "events*"], say=said.append)
    assert [line.partition(": ")[0] for line in said] == [str(source / "run" / "days")]
    (found,) = find_recordings([source / "run" / "da*" / "*" / "events*"], follow_links=True)
    assert [file.name for file in found.events] == ["events-2.jsonl"]
    (found,) = find_recordings([source / "run" / "events-3.jsonl"])
    assert [file.name for file in found.events] == ["events-1.jsonl", "events-3.jsonl"]


def test_many_links_are_counted(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"")
    for number in range(links.NAMED_AT_MOST + 5):
        (tmp_path / f"events-{number:02}.jsonl").symlink_to("nowhere")
    said: list[str] = []
    find_recordings([tmp_path], say=said.append)
    assert len(said) == links.NAMED_AT_MOST + 1
    assert said[-1] == "... and 5 more links that were left out"
