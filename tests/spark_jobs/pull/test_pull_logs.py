"""Pull: what lands, under which names, and that an earlier landing survives whatever goes wrong."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_jobs.intervals import IntervalError, interval, parse_moment
from spark_jobs.location import Location
from spark_jobs.pull.copying import CopyError, Journal
from spark_jobs.pull.pull_logs import PullError, landed_files, pull
from spark_jobs.pull.segments import (
    LandingError,
    Segment,
    copied_segments,
    landed_intervals,
    read_catalogue,
    write_interval,
)

DAY = interval("2026-11-21")
SAMPLE = Path(__file__).parents[2] / "data" / "recordings"


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


def contents(landing: Path) -> dict[Path, bytes]:
    """All files of the landing, tables too."""
    return {path: path.read_bytes() for path in landing.rglob("*") if path.is_file()}


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


def old(source: Path) -> None:
    """Make the files look as if nobody had touched them for a while."""
    for path in source.rglob("*"):
        os.utime(path, ns=(10**18, 10**18))


def test_pulling_again_copies_nothing_and_changes_nothing(source: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    old(source)
    first = pull(source, landing, DAY.start)
    before = contents(landing)
    again = pull(source, landing, DAY.start)
    assert (first["copied_files"], again["copied_files"]) == (2, 0)
    assert again["digest"] == first["digest"]
    assert contents(landing) == before


def test_intervals_share_what_they_were_landed_from(source: Path, tmp_path: Path) -> None:
    old(source)
    pull(source, tmp_path / "landing", DAY.start)
    following = interval("2026-11-22")
    summary = pull(source, tmp_path / "landing", following.start)
    assert summary["copied_files"] == 0
    assert landed_files(tmp_path / "landing", following) == landed_files(tmp_path / "landing", DAY)
    stored = [path for path in (tmp_path / "landing" / "segments").rglob("*") if path.is_file()]
    assert len(stored) == 2


def test_the_same_contents_of_another_source_are_kept_once(source: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    pull(source, landing, DAY.start)
    shutil.copytree(source, tmp_path / "copied logs")
    pull(tmp_path / "copied logs", landing, "2026-11-22")
    tokens = [{file.token for file in files.values()} for files in read_catalogue(landing).values()]
    assert len(tokens) == 2
    assert tokens[0] == tokens[1]
    assert len([path for path in (landing / "segments").rglob("*") if path.is_file()]) == 2


def test_what_went_is_kept_and_what_changed_is_replaced_both_by_name(source: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    pull(source, landing, DAY.start)
    (source / "run-1" / "messages.jsonl").unlink()
    (source / "run-1" / "trace-0001.jsonl").write_bytes(b'{"c":3}\n')
    (source / "run-1" / "events.jsonl").write_bytes(b"{}\n")
    summary = pull(source, landing, DAY.start)
    assert summary["gone"] == ["my logs/run-1/messages.jsonl"]
    assert summary["changed"] == ["my logs/run-1/trace-0001.jsonl"]
    expected = {
        "my logs/run-1/events.jsonl": b"{}\n",
        "my logs/run-1/messages.jsonl": b'{"a":1}\n',
        "my logs/run-1/trace-0001.jsonl": b'{"c":3}\n',
    }
    assert landed(landing) == expected
    assert pull(source, landing, DAY.start)["gone"] == ["my logs/run-1/messages.jsonl"]
    pull(source, landing, DAY.start, keep_gone=False)
    del expected["my logs/run-1/messages.jsonl"]
    assert landed(landing) == expected


def test_a_log_that_was_compressed_or_moved_is_not_taken_twice(source: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    pull(source, landing, DAY.start)
    packed = gzip.compress((source / "run-1" / "messages.jsonl").read_bytes())
    (source / "run-1" / "messages.jsonl").unlink()
    (source / "run-1" / "messages.jsonl.gz").write_bytes(packed)
    (source / "run-2").mkdir()
    (source / "run-1" / "trace-0001.jsonl").rename(source / "run-2" / "trace-0001.jsonl")
    summary = pull(source, landing, DAY.start)
    assert summary["gone"] == []
    assert set(landed(landing)) == {"my logs/run-1/messages.jsonl.gz", "my logs/run-2/trace-0001.jsonl"}


class _Watched:
    """A local file that changes while it is read: ``meanwhile`` runs after the first read."""

    def __init__(self, path: Path, meanwhile: Callable[[], None]) -> None:
        self._path, self._meanwhile = path, meanwhile
        self.name = path.name

    def __str__(self) -> str:
        return str(self._path)

    def exists(self) -> bool:
        return True

    def is_dir(self) -> bool:
        return False

    def is_file(self) -> bool:
        return True

    def stat(self) -> os.stat_result:
        return self._path.stat()

    def open(self, mode: str) -> _Watched:
        self._stream = self._path.open(mode)
        return self

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if data:
            self._meanwhile()
        return data

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stream.close()


def test_what_is_appended_while_it_is_copied_comes_with_the_next_pull(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"a":1}\n')

    def append() -> None:
        with path.open("ab") as stream:
            stream.write(b'{"b":2}\n')

    pull(_Watched(path, append), tmp_path / "landing", DAY.start)
    assert landed(tmp_path / "landing") == {"events.jsonl": b'{"a":1}\n'}
    whole = path.read_bytes()
    summary = pull(_Watched(path, lambda: None), tmp_path / "landing", DAY.start)
    assert landed(tmp_path / "landing") == {"events.jsonl": whole}
    assert (summary["copied_files"], summary["gone"]) == (1, [])


def test_a_file_that_is_rewritten_whenever_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"a":1}\n')
    numbers = iter(range(2, 10))

    def rewrite() -> None:
        path.write_bytes(b'{"a":%d}\n' % next(numbers))

    with pytest.raises(CopyError, match=r"events\.jsonl.*rewritten while it was copied, 3 times"):
        pull(_Watched(path, rewrite), tmp_path / "landing", DAY.start)


def test_an_interval_that_overlaps_another_run_is_refused_and_history_gives_way(
    source: Path, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    pull(source, landing, DAY.start)
    before = contents(landing)
    with pytest.raises(PullError, match=r"overlaps 2026-11-21T00:00:00\+00:00 to 2026-11-22.*count twice"):
        pull(source, landing, "2026-11-21T06:00:00", interval_end="2026-11-21T07:00:00")
    assert contents(landing) == before

    with pytest.raises(PullError, match="overlaps"):
        pull(source, landing, DAY.start, interval_end="2026-11-21T01:00:00")
    assert contents(landing) == before, "the other hours of the day would belong to no interval"
    pull(source, landing, DAY.start, interval_end="2026-11-22T06:00:00")
    (landed,) = landed_intervals(landing)
    assert landed.span.end == datetime(2026, 11, 22, 6, tzinfo=UTC), "a later end has all the rows"

    write_interval(landing, replace(landed, role="history"))
    pull(source, landing, "2026-11-21T06:00:00", interval_end="2026-11-21T07:00:00")
    assert [(other.span.name, other.role) for other in landed_intervals(landing)] == [
        ("2026-11-21", "retired"),
        ("2026-11-21T06-00-00Z", "run"),
    ]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "no such file or folder"),
        (lambda source: [file.unlink() for file in (source / "run-1").glob("*.jsonl")], "has no log file"),
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
    old(source)
    pull(source, landing, DAY.start)
    landed_files(landing, DAY)[0][1].write_bytes(b"cut")
    with pytest.raises(LandingError, match=r"has 3 bytes, the catalogue says 8 bytes.*run pull again"):
        landed_files(landing, DAY)
    pull(source, landing, DAY.start)
    assert landed(landing)["my logs/run-1/messages.jsonl"] == b'{"a":1}\n'


def test_moments_and_intervals() -> None:
    assert parse_moment("2026-11-21") == datetime(2026, 11, 21, tzinfo=UTC)
    assert parse_moment("2026-11-21T02:00:00+02:00") == datetime(2026, 11, 21, tzinfo=UTC)
    assert (DAY.name, DAY.end_us - DAY.start_us) == ("2026-11-21", 86_400_000_000)
    assert interval("2026-11-21T06:30:00", "2026-11-21T07:30:00").name == "2026-11-21T06-30-00Z"
    with pytest.raises(IntervalError, match="not after its start"):
        interval("2026-11-21", "2026-11-20")
    with pytest.raises(IntervalError, match="'yesterday' is neither a day"):
        parse_moment("yesterday")


def test_a_pull_that_failed_is_taken_up_where_it_ended(source: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    for at in range(20):
        (source / f"events-{at:04}.jsonl").write_bytes(b'{"n":%d}\n' % at)
    old(source)
    bad = tmp_path / "trace-bad.jsonl"
    numbers = iter(range(2, 10))

    def rewrite() -> None:
        bad.write_bytes(b'{"a":%d}\n' % next(numbers))

    rewrite()
    with pytest.raises(CopyError, match=r"trace-bad\.jsonl: was rewritten"):
        pull([source, _Watched(bad, rewrite)], landing, DAY.start)
    with pytest.raises(PullError, match="run pull first"):
        landed_files(landing, DAY)
    sources = str(source), str(bad)
    had = len(copied_segments(landing, sources))
    assert read_catalogue(landing) == {}
    summary = pull([source, _Watched(bad, lambda: None)], landing, DAY.start)
    assert 0 < had <= 22
    assert summary["files"] == 23
    assert summary["copied_files"] == 23 - had
    assert landed(landing)["my logs/events-0007.jsonl"] == b'{"n":7}\n'
    assert copied_segments(landing, sources) == {}


def test_what_a_pull_that_failed_had_copied_and_then_was_lost_is_copied_again(
    source: Path, tmp_path: Path
) -> None:
    landing, names = tmp_path / "landing", ("s",)
    journal = Journal(Location.of(landing), names)
    journal.add(Segment("a.jsonl", "0" * 64, 5, "mark"))
    journal.note()
    segment = Journal(Location.of(landing), names).read()["a.jsonl"]
    assert (segment.size_bytes, segment.path(landing).exists()) == (5, False)
    assert Journal(Location.of(landing), ("t",)).read() == {}


def test_files_are_copied_several_at_a_time(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=20)
    paths = [tmp_path / "messages.jsonl", tmp_path / "events.jsonl"]
    for path in paths:
        path.write_bytes(b'{"a":1}\n')
        os.utime(path, ns=(10**18, 10**18))
    # Each is read on only when the other has been begun.
    summary = pull([_Watched(path, both.wait) for path in paths], tmp_path / "landing", DAY.start)
    assert summary["copied_files"] == 2


def test_a_missing_number_of_a_recorders_segments_is_reported(tmp_path: Path) -> None:
    source, landing, said = tmp_path / "logs", tmp_path / "landing", list[str]()
    source.mkdir()
    numbers = {"a": (4, 5, 8, 1, 2), "b": (1, 2, 3), "c": (7, 3)}
    for broker, present in numbers.items():
        for hour, number in enumerate(present):
            name = f"events-{broker}-20261122T{hour:02}0000.000Z-{number}.jsonl"
            (source / name).write_text(f'{{"name":"{name}"}}\n')
    (source / "messages-20261122-000009.jsonl").write_bytes(b"{}\n")  # another way of naming
    (source / "events-a-20261122T060000.000Z-3.jsonl.open").write_bytes(b"{}\n")
    summary = pull(source, landing, DAY.start, progress=said.append)
    expected = [
        "2 segments between logs/events-a-20261122T010000.000Z-5.jsonl and logs/events-a-20261122T020000.000Z-8.jsonl",
        "2 segments between logs/events-c-20261122T000000.000Z-7.jsonl and logs/events-c-20261122T010000.000Z-3.jsonl",
    ]
    assert summary["segments_missing"] == expected
    assert [line.removeprefix("pull: missing: ") for line in said if "missing" in line] == expected
    assert summary["ignored"] == 1
    # What was landed once and is gone from the source now is not missing.
    (source / "events-b-20261122T010000.000Z-2.jsonl").unlink()
    assert pull(source, landing, DAY.start)["segments_missing"] == expected


@pytest.mark.parametrize("remote", [False, True], ids=["path", "object storage"])
def test_links_are_pulled_only_if_asked_for_and_a_bad_one_stops_nothing(
    source: Path, tmp_path: Path, *, remote: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "messages-2.jsonl").write_bytes(b"outside\n")
    (source / "more").symlink_to(outside)
    (source / "up").symlink_to(source)
    (source / "events-gone.jsonl").symlink_to(outside / "nothing")
    (source / "events-loop.jsonl").symlink_to("events-loop.jsonl")
    path = source
    if remote:
        path = pytest.importorskip("airflow.sdk").ObjectStoragePath(f"file://{source}")
    said: list[str] = []
    landing = tmp_path / "landing"
    summary = pull(path, landing, DAY.start, progress=said.append)
    assert set(landed(landing)) == {"my logs/run-1/messages.jsonl", "my logs/run-1/trace-0001.jsonl"}
    named = [line for line in said if ": a link" in line]
    assert len(named) == len(summary["links_left_out"]) == 4
    assert f"pull: {source}/more: a link, not followed" in "\n".join(named)
    summary = pull(path, landing, DAY.start, follow_links=True)
    assert landed(landing)["my logs/more/messages-2.jsonl"] == b"outside\n"
    assert [line.partition(": ")[0] for line in summary["links_left_out"]] == [
        f"{source}/events-gone.jsonl",
        f"{source}/events-loop.jsonl",
        f"{source}/up",
    ]


def test_a_source_of_links_alone_says_why_nothing_was_found(source: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "run").symlink_to(source)
    with pytest.raises(PullError, match="links left out, see above"):
        pull(tmp_path / "links", tmp_path / "landing", DAY.start)
