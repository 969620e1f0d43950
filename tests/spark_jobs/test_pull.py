"""Pull: what lands, under which names, and that an earlier landing survives whatever goes wrong."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_jobs.intervals import IntervalError, interval, parse_moment
from spark_jobs.pull import PullError, landed_files, landing_folder, pull

DAY = interval("2026-11-21")
SAMPLE = Path(__file__).parents[1] / "data" / "recordings"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "my logs" / "run-1"
    folder.mkdir(parents=True)
    (folder / "messages.jsonl").write_bytes(b'{"a":1}\n')
    (folder / "trace-0001.jsonl").write_bytes(b'{"b":1}\n{"b":2}\n')
    (folder / "notes.txt").write_bytes(b"not a log")
    return folder.parent


def landed(landing: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in landed_files(landing, DAY)}


def test_lands_log_files_under_the_sources_name(source: Path, tmp_path: Path) -> None:
    summary = pull(source, tmp_path / "landing", DAY.start)
    assert landed(tmp_path / "landing") == {
        "my logs/run-1/messages.jsonl": b'{"a":1}\n',
        "my logs/run-1/trace-0001.jsonl": b'{"b":1}\n{"b":2}\n',
    }
    assert (summary["files"], summary["bytes"], summary["ignored"]) == (2, 24, 1)


def test_the_sample_lands_byte_for_byte(tmp_path: Path) -> None:
    pull(SAMPLE, tmp_path, DAY.start)
    for name, path in landed_files(tmp_path, DAY):
        assert path.read_bytes() == (SAMPLE.parent / name).read_bytes()


def test_pulling_again_changes_nothing_and_a_changed_source_replaces_all(
    source: Path, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    first = pull(source, landing, DAY.start)
    manifest = (landing_folder(landing, DAY) / "manifest.json").read_bytes()
    again = pull(source, landing, DAY.start)
    assert again["digest"] == first["digest"]
    assert (landing_folder(landing, DAY) / "manifest.json").read_bytes() == manifest

    (source / "run-1" / "messages.jsonl").unlink()
    (source / "run-1" / "events.jsonl").write_bytes(b"{}\n")
    pull(source, landing, DAY.start)
    assert list(landed(landing)) == ["my logs/run-1/events.jsonl", "my logs/run-1/trace-0001.jsonl"]
    assert [child.name for child in landing_folder(landing, DAY).iterdir() if child.is_dir()] != [
        first["digest"]
    ]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "no such file or folder"),
        (lambda source: [file.unlink() for file in (source / "run-1").glob("*.jsonl")], "holds no log file"),
    ],
)
def test_a_missing_or_empty_source_is_named_and_the_earlier_landing_kept(
    source: Path, tmp_path: Path, spoil, message: str
) -> None:
    landing = tmp_path / "landing"
    pull(source, landing, DAY.start)
    before = landed(landing)
    spoil(source)
    with pytest.raises(PullError, match=message) as caught:
        pull(source, landing, DAY.start)
    assert str(source) in str(caught.value)
    assert landed(landing) == before


def test_a_file_that_is_no_log_is_refused_by_name(source: Path, tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"notes\.txt.*no log file name"):
        pull(source / "run-1" / "notes.txt", tmp_path / "landing", DAY.start)


def test_sources_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for release in ("4.0.0", "4.2.4"):
        folder = tmp_path / release / "restart"
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_text(release)
    pull([tmp_path / "4.0.0" / "restart", tmp_path / "4.2.4" / "restart"], tmp_path / "landing", DAY.start)
    assert landed(tmp_path / "landing") == {
        "restart/events.jsonl": b"4.0.0",
        "restart-2/events.jsonl": b"4.2.4",
    }


class _Hostile:
    """An object store's path whose child is named so that it would leave the landing folder."""

    def __init__(self, name: str, children: list[_Hostile] | None = None) -> None:
        self.name, self.children = name, children

    def exists(self) -> bool:
        return True

    def is_dir(self) -> bool:
        return self.children is not None

    def is_file(self) -> bool:
        return self.children is None

    def iterdir(self) -> list[_Hostile]:
        return self.children or []


def test_a_name_that_leads_out_of_the_landing_folder_is_refused(tmp_path: Path) -> None:
    hostile = _Hostile("bucket", [_Hostile("a/../../..", [_Hostile("events.jsonl")])])
    with pytest.raises(PullError, match="would lead out of the landing folder"):
        pull(hostile, tmp_path / "landing", DAY.start)
    assert not (tmp_path / "landing").exists()


def test_a_landing_that_was_never_pulled_or_lost_a_file_says_so(source: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    with pytest.raises(PullError, match="run pull first"):
        landed_files(landing, DAY)
    pull(source, landing, DAY.start)
    landed_files(landing, DAY)[0][1].write_bytes(b"cut")
    with pytest.raises(PullError, match=r"has 3 bytes, the manifest says 8 bytes.*run pull again"):
        landed_files(landing, DAY)
    pull(source, landing, DAY.start)
    assert landed(landing)["my logs/run-1/messages.jsonl"] == b'{"a":1}\n'


def test_leftovers_of_a_pull_that_died_are_swept(source: Path, tmp_path: Path) -> None:
    folder = landing_folder(tmp_path / "landing", DAY)
    (folder / ".incoming-dead").mkdir(parents=True)
    (folder / ".incoming-dead" / "half").write_bytes(b"x")
    (folder / ".manifest.json.dead").write_text(json.dumps({}))
    pull(source, tmp_path / "landing", DAY.start)
    assert not list(folder.glob(".incoming-*"))
    assert not list(folder.glob(".manifest.json.*"))


def test_moments_and_intervals() -> None:
    assert parse_moment("2026-11-21") == datetime(2026, 11, 21, tzinfo=UTC)
    assert parse_moment("2026-11-21T02:00:00+02:00") == datetime(2026, 11, 21, tzinfo=UTC)
    assert (DAY.name, DAY.end_us - DAY.start_us) == ("2026-11-21", 86_400_000_000)
    assert interval("2026-11-21T06:30:00", "2026-11-21T07:30:00").name == "2026-11-21T06-30-00Z"
    with pytest.raises(IntervalError, match="not after its start"):
        interval("2026-11-21", "2026-11-20")
    with pytest.raises(IntervalError, match="'yesterday' is no day"):
        parse_moment("yesterday")
