"""Locations: the same operations on a folder and, in ``tests/stack/test_object_store.py``, on an object store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatch_core.errors import DiskError, names_disk_errors, store_trouble
from dispatch_core.recording.stored_files import StoreError
from spark_jobs.location import HomeError, Location

#: As tables and logs have them: each library encodes such names in its own way.
ODD = "interval_start=2026-11-21 00%3A00%3A00/part #1 ü.parquet"


@pytest.fixture
def place(tmp_path: Path) -> Location:
    return Location.of(tmp_path / "place")


def test_an_object_is_written_as_a_whole_read_listed_and_removed(place: Location) -> None:
    there = place / ODD
    assert (there.exists(), there.size_bytes()) == (False, None)
    there.write_bytes(b"first")
    there.write_bytes(b"second")
    (place / "a" / "b.txt").write_text("text")
    assert (there.read_bytes(), there.size_bytes(), there.exists()) == (b"second", 6, True)
    with there.open() as file:
        file.seek(3)
        assert file.read() == b"ond"
    with there.stream() as stream:
        assert stream.read(3) == b"sec"
    assert [(found.location, found.size_bytes) for found in place.files()] == [
        (place / "a" / "b.txt", 4),
        (there, 6),
    ]
    assert place.folders() == [place / "a", there.parent]
    assert place.children() == []
    assert [found.location.name for found in (place / "a").children()] == ["b.txt"]
    there.delete()
    there.delete()
    assert not there.exists()
    with pytest.raises(FileNotFoundError):
        there.read_bytes()


def test_a_folder_exists_while_something_is_in_it(place: Location) -> None:
    folder = place / "folder"
    assert (folder.folders(), folder.children(), list(folder.files())) == ([], [], [])
    for name in ("a", "b/c"):
        (folder / name).write_text(name)
    assert folder.exists()
    folder.delete_folder()
    folder.delete_folder()
    assert (folder.exists(), list(place.files())) == (False, [])


def test_a_stream_makes_a_new_object(place: Location, tmp_path: Path) -> None:
    with (place / "x" / "made").create() as stream:
        stream.write(b"some")
        stream.write(b"thing")
        assert stream.tell() == 9
    assert (place / "x" / "made").read_bytes() == b"something"
    local = tmp_path / "local"
    local.write_bytes(b"of this machine")
    (place / "x" / "put").put(local)
    assert (place / "x" / "put").read_text() == "of this machine"


def test_a_home_that_can_be_used_is_left_as_it_was(place: Location) -> None:
    (place / "kept").write_text("kept")
    place.check()
    assert [found.location for found in place.files()] == [place / "kept"]


def test_names_are_parts_of_a_path_or_url() -> None:
    for root in ("/srv/audit", "s3://bucket/audit"):
        location = Location.of(f"{root}/")
        assert str(location / "reports" / "x") == f"{root}/reports/x"
        assert (location.name, location.parent.name) == ("audit", root.rpartition("/")[0].rpartition("/")[2])
        assert (location / "a" / "b").below(location) == "a/b"
        with pytest.raises(ValueError, match="is not below"):
            location.below(location / "a")
    assert Location.of("x").url == str(Path.cwd() / "x")
    assert Location.of("s3://b/x").local is None
    with pytest.raises(StoreError, match=r"ftp://b/x: no store of this kind"):
        Location.of("ftp://b/x")


def test_an_unfinished_object_has_another_name(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "kept").write_text("kept")

    def fails(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        (place / "kept").write_text("new")
    assert [(found.location.name, found.size_bytes) for found in place.files()] == [("kept", 4)]


@pytest.mark.skipif(
    os.getuid() == 0 and not Path("/proc").is_dir(), reason="no folder that root cannot write to"
)
def test_a_folder_that_cannot_be_written_to_is_refused_in_one_line() -> None:
    with pytest.raises(HomeError, match=r"^home /proc/audit: .*nothing was done") as refused:
        Location.of("/proc/audit").check()
    assert "\n" not in str(refused.value)


def test_a_path_that_a_library_would_misread_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match=r"misread a path that contains \[ \]"):
        Location.of(tmp_path / "logs [old]").check()
    assert not (tmp_path / "logs [old]").exists()


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("AWS Error NO_SUCH_BUCKET during PutObject operation", "the bucket does not exist"),
        ("AWS Error ACCESS_DENIED during HeadObject operation", "refuses access"),
        ("AWS Error INVALID_ACCESS_KEY_ID during PutObject", "does not know these credentials"),
        ("AWS Error NETWORK_CONNECTION: curlCode: 7, Could not connect", "cannot be reached"),
        ("Generic S3 error: error sending request for url (http://x/)", "cannot be reached"),
        ("AWS Error SLOW_DOWN during PutObject", "overloaded"),
    ],
)
def test_what_a_store_lacks_is_named_by_every_stage(text: str, lacks: str) -> None:
    trouble = store_trouble(OSError(text))
    assert trouble is not None
    assert lacks in trouble[0]
    assert store_trouble(ValueError(text)) is None

    @names_disk_errors("replay")
    def stage(_warehouse: Location) -> None:
        raise OSError(text)

    with pytest.raises(DiskError, match=rf"^replay: s3://b/w: .*{lacks}"):
        stage(Location.of("s3://b/w"))
