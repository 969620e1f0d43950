"""Files of a landing folder that are not as they were written: each says so by its name, and stops nothing else."""

import json
from dataclasses import asdict, replace

import pytest

from spark_jobs.intervals import IntervalError, interval
from spark_jobs.pull import segment_surveys, segments
from spark_jobs.pull.copying import Journal
from spark_jobs.pull.hours_survey import Survey, survey
from spark_jobs.pull.pull_logs import landed_files, pull
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


@pytest.mark.parametrize("text", [text for text in ODD_FILES if text != '{"version": 1}'])
def test_an_odd_manifest_is_named(tmp_path, text):
    segments.write_interval(tmp_path, LandedInterval(SPAN, "run", ("/s",)))
    (segments.interval_folder(tmp_path, SPAN) / segments.MANIFEST).write_text(text)
    with pytest.raises(LandingError, match=segments.MANIFEST):
        segments.landed_intervals(tmp_path)


@pytest.mark.parametrize(
    "change", [{"role": "boss"}, {"sources": "/s"}, {"sources": [1]}, {"interval_end": 5}]
)
def test_a_manifest_with_an_odd_value_is_named(tmp_path, change):
    segments.write_interval(tmp_path, LandedInterval(SPAN, "run", ("/s",)))
    path = segments.interval_folder(tmp_path, SPAN) / segments.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LandingError, match="not as this code writes it"):
        segments.landed_intervals(tmp_path)


def test_lines_of_a_journal_that_are_no_segments_are_passed_over(tmp_path):
    (tmp_path / "segments").mkdir()
    journal = Journal(tmp_path, ["/s"])
    journal.add(SEGMENT)
    with journal._path.open("ab") as stream:
        for odd in (
            b"[" * 100_000,
            b'{"name": []}',
            b'{"name":"x","sha256":5,"size_bytes":1}',
            b"\xff",
            b"9" * 5000,
        ):
            stream.write(odd + b"\n")
    journal.add(replace(SEGMENT, name="rec/other.jsonl"))
    assert set(journal.read()) == {"rec/events.jsonl", "rec/other.jsonl"}


@pytest.mark.parametrize(
    "text", [*ODD_FILES, '{"version":1,"hours":[],"untimed":Infinity,"carries":0,"complete":0}']
)
def test_an_odd_survey_is_made_anew(tmp_path, text):
    path = segment_surveys.about_path(tmp_path, SEGMENT)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert segment_surveys.known_survey(tmp_path, SEGMENT) is None


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
