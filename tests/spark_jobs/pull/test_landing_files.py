"""Files of a landing folder that are not as they were written: each says so by its name, and stops nothing else."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from spark_jobs.intervals import Interval, IntervalError, interval
from spark_jobs.pull import segments
from spark_jobs.pull.hours_survey import Survey, survey
from spark_jobs.pull.pull_logs import landed_files, pull
from spark_jobs.pull.segment_surveys import _surveys_in, known_surveys, surveyed
from spark_jobs.pull.segments import LandedInterval, LandingError, Segment

SEGMENT = Segment("rec/events.jsonl", "a" * 64, 5, "mark", grown_from="b" * 64)
SPAN = interval("2026-11-21")
ODD_FILES = ["[]", "1", '"x"', "null", "{", "[" * 100_000, '{"version": 1}', '{"version": 2}', "9" * 5000]


def test_a_segment_is_what_was_written_of_it():
    assert Segment.of_json(json.loads(json.dumps(asdict(SEGMENT)))) == SEGMENT
    assert Segment.of_json({"name": "events.jsonl", "sha256": "0", "size_bytes": 0}).mark is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": 5}, "name of a segment cannot be '5'"),
        ({"size_bytes": True}, "size_bytes of a segment cannot be 'True'"),
        ({"size_bytes": None}, "size_bytes of a segment cannot be 'None'"),
        ({"sha256": "../../elsewhere"}, "sha256 of a segment is no digest"),
        ({"grown_from": "x/y"}, "sha256 of a segment is no digest"),
        ({"name": "rec/.."}, "'rec/..' is no name of a segment"),
        ({"name": "a\0b"}, "is no name of a segment"),
        ({"more": 1}, "a segment has no 'more'"),
    ],
)
def test_what_is_no_segment_is_named(change, says):
    with pytest.raises(ValueError, match="segment") as raised:
        Segment.of_json(asdict(SEGMENT) | change)
    assert says in str(raised.value)


@pytest.mark.parametrize("text", ODD_FILES)
def test_an_odd_catalogue_is_named(tmp_path, text):
    (tmp_path / segments.CATALOGUE).write_text(text)
    with pytest.raises(LandingError, match=segments.CATALOGUE):
        segments.read_catalogue(tmp_path)


def earlier_home(landing: Path, **change: object) -> Path:
    """A landing as an earlier version wrote it; the manifest with changed values."""
    stored = landing / "segments" / SEGMENT.sha256 / "events.jsonl"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"line\n")
    catalogue = {"version": 1, "pulled": [{"sources": ["/s"], "files": [asdict(SEGMENT)]}]}
    (landing / segments.CATALOGUE).write_text(json.dumps(catalogue))
    manifest = {
        "version": 2,
        "interval_start": SPAN.start.isoformat(),
        "interval_end": SPAN.end.isoformat(),
        "role": "run",
        "sources": ["/s"],
    }
    path = landing / SPAN.name / segments.MANIFEST
    path.parent.mkdir()
    path.write_text(json.dumps(manifest | change))
    return path


def test_a_landing_of_an_earlier_version_is_read_and_taken_over_by_the_first_change(tmp_path):
    earlier_home(tmp_path)
    assert segments.landed_intervals(tmp_path) == [LandedInterval(SPAN, "run", ("/s",))]
    ((name, place),) = landed_files(tmp_path, SPAN)
    assert (name, place.read_bytes()) == (SEGMENT.name, b"line\n")
    following = interval("2026-11-22")
    segments.write_interval(tmp_path, LandedInterval(following, "run", ("/s",)))
    segments.update_catalogue(tmp_path, lambda catalogue: catalogue)
    (tmp_path / segments.CATALOGUE).unlink()
    (tmp_path / SPAN.name / segments.MANIFEST).unlink()
    assert [landed.span for landed in segments.landed_intervals(tmp_path)] == [SPAN, following]
    assert landed_files(tmp_path, SPAN) == landed_files(tmp_path, following)


@pytest.mark.parametrize("text", [text for text in ODD_FILES if text != '{"version": 1}'])
def test_an_odd_manifest_is_named(tmp_path, text):
    earlier_home(tmp_path).write_text(text)
    with pytest.raises(LandingError, match=segments.MANIFEST):
        segments.landed_intervals(tmp_path)


@pytest.mark.parametrize(
    "change", [{"role": "boss"}, {"sources": "/s"}, {"sources": [1]}, {"interval_end": 5}]
)
def test_a_manifest_with_an_odd_value_is_named(tmp_path, change):
    earlier_home(tmp_path, **change)
    with pytest.raises(LandingError, match="not as this code writes it"):
        segments.landed_intervals(tmp_path)


def test_segments_and_intervals_that_several_processes_add_are_all_there(tmp_path):
    spans = [interval(f"2026-11-{day}") for day in range(10, 18)]

    def add(span: Interval) -> None:
        segments.write_interval(tmp_path, LandedInterval(span, "run", (span.name,)))
        files = {SEGMENT.name: SEGMENT}
        segments.update_catalogue(tmp_path, lambda catalogue: {**catalogue, (span.name,): files})

    with ThreadPoolExecutor(len(spans)) as pool:
        list(pool.map(add, spans))
    assert [landed.span for landed in segments.landed_intervals(tmp_path)] == spans
    assert set(segments.read_catalogue(tmp_path)) == {(span.name,) for span in spans}


def test_a_survey_is_made_once_and_one_of_another_version_again(tmp_path, monkeypatch):
    place = segments.stored_at(tmp_path, "0a", "rec/events.jsonl")
    place.write_bytes(b'{"seq":1,"t_us":1,"kind":"end"}\n')
    segment = replace(SEGMENT, size_bytes=32, token="0a", grown_from=None)
    ((_segment, made),) = surveyed(None, tmp_path, [segment])
    assert known_surveys(tmp_path) == {(segment.sha256, "events.jsonl"): made}
    place.write_bytes(b"other")
    assert surveyed(None, tmp_path, [segment]) == [(segment, made)]
    monkeypatch.setattr("spark_jobs.pull.hours_survey.SURVEY_VERSION", 99)
    _surveys_in.cache_clear()
    assert surveyed(None, tmp_path, [segment]) != [(segment, made)]
    _surveys_in.cache_clear()


def test_a_time_that_no_calendar_has_is_none(tmp_path):
    """Its row is quarantined; the survey of its file used to name a day that nobody could write."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"seq":1,"t_us":999999999999999999,"kind":"end"}\n{"seq":2,"t_us":1,"kind":"end"}\n')
    found = survey(path, "m")
    assert isinstance(found, Survey)
    assert [(hour, rows) for hour, rows, _mark in found.hours] == [(0, 1)]
    assert found.untimed == 1


def test_a_long_text_that_is_no_time_is_shortened():
    with pytest.raises(IntervalError) as raised:
        interval("x" * 5000)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("text", ["9999-12-31", "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-01:00"])
def test_a_day_at_the_end_of_time_is_no_interval(text):
    with pytest.raises(IntervalError):
        interval(text)


def test_a_file_whose_name_is_no_text_is_landed_under_one(tmp_path):
    source = tmp_path / "logs"
    source.mkdir()
    try:
        (source / "events-\udcff.jsonl").write_bytes(b"x\n")
    except OSError:
        pytest.skip("this file system takes only names that are text")
    pull([source], tmp_path / "landing", "2026-11-21")
    ((name, path),) = landed_files(tmp_path / "landing", SPAN)
    assert name == "logs/events-%FF.jsonl"
    assert path.read_bytes() == b"x\n"
