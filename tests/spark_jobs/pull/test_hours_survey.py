"""Survey: the hours of a file's rows, as the reader of the log format finds them, whatever form the file has."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dispatch_core.recording.reader import find_recordings, read_file
from dispatch_core.recording.rewrite import convert_recording
from spark_jobs.pull.hours_survey import HOUR_US, Survey, survey

SAMPLE = Path(__file__).parents[2] / "data" / "recordings" / "4.2.4"
HOUR = 498_680
HEADER = (
    b'{"format":"pulsar-dispatch-trace","format_version":1,"broker_version":"4.2.4","topic":"t","subscription":"s",'
    b'"subscription_type":"Key_Shared","partition_index":-1,"config":{}}\n'
)


def line(seq: int, hour: int = HOUR) -> bytes:
    return b'{"seq":%d,"t_us":%d,"kind":"step","note":"x"}\n' % (seq, hour * HOUR_US + seq)


def hours(found: Survey) -> dict[int, int]:
    return {hour: rows for hour, rows, _mark in found.hours}


@pytest.mark.parametrize("form", ["jsonl.gz", "jsonl", "jsonl.zst", "parquet"])
def test_a_survey_names_the_hours_that_the_reader_finds(tmp_path: Path, form: str) -> None:
    for recording in find_recordings([SAMPLE]):
        convert_recording(recording, tmp_path / recording.name, form)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 10
    for path in files:
        read: Counter[int] = Counter()
        for batch in read_file(path):
            field, unit_us = ("publish_time_ms", 1000) if batch.table == "messages" else ("t_us", 1)
            times = batch.rows[field].drop_null().to_pylist()
            read.update(time * unit_us // HOUR_US for time in times)
        assert hours(survey(path, "m")) == read


def test_rows_without_a_time_and_times_written_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    header = b'{"format":"pulsar-consumer-events","topic":"t","subscription":"s"}\n'
    others = [
        b'{"seq":2, "t_us" : %d , "kind":"step"}\n' % (HOUR * HOUR_US),
        b'{"seq":3,"t\\u005fus":%d,"kind":"step"}\n' % ((HOUR + 1) * HOUR_US),
        b'{"seq":4,"kind":"step","t_us":%d.0}\n' % ((HOUR + 2) * HOUR_US),
        b'{"seq":5,"kind":"step","note":"\\"t_us\\":7,","t_us":%d}\n' % ((HOUR + 3) * HOUR_US),
        b'{"seq":6,"t_us":"yesterday"}\n',
        b"no JSON at all\n",
        b"\n",
    ]
    path.write_bytes(header + b"".join(others))
    found = survey(path, "m")
    assert hours(found) == {HOUR: 1, HOUR + 1: 1, HOUR + 2: 1, HOUR + 3: 1}
    assert (found.untimed, found.complete) == (3, True)


@pytest.mark.parametrize(
    ("name", "data", "carries", "counts_for_something"),
    [
        ("events.jsonl", b"", False, False),
        ("events.jsonl", b"nothing but this\n", False, True),
        ("events.jsonl.gz", b"no gzip data", False, True),
        ("messages.parquet", b"no Parquet data", False, True),
        ("trace.jsonl", HEADER, True, True),
    ],
)
def test_files_without_any_time(
    tmp_path: Path, name: str, data: bytes, carries: bool, counts_for_something: bool
) -> None:
    (tmp_path / name).write_bytes(data)
    found = survey(tmp_path / name, "m")
    assert (found.hours, found.carries) == ((), carries)
    assert (found.carries or found.untimed > 0 or not found.complete) == counts_for_something


def test_a_file_that_has_grown_keeps_the_marks_of_hours_that_stand_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(1) + line(2, HOUR + 1))
    first = survey(path, "first")
    path.write_bytes(path.read_bytes() + line(3, HOUR + 1) + line(4, HOUR + 2))
    second = survey(path, "second", earlier=first)
    assert second.hours == ((HOUR, 1, "first"), (HOUR + 1, 2, "second"), (HOUR + 2, 1, "second"))
    assert Survey.of_json(json.loads(json.dumps(second.as_json()))) == second


def test_the_first_minute_of_each_hour_of_messages_has_a_mark_of_its_own(tmp_path: Path) -> None:
    def message(entry: int, second: int) -> bytes:
        row = {"topic": "t", "position": f"3:{entry}", "publish_time_ms": (HOUR * 3600 + second) * 1000}
        return json.dumps(row).encode() + b"\n"

    path = tmp_path / "messages.jsonl"
    path.write_bytes(message(0, 59) + message(1, 60))
    first = survey(path, "first")
    assert (first.hours, first.first_minutes) == (((HOUR, 2, "first"),), ((HOUR, 1, "first"),))
    path.write_bytes(path.read_bytes() + message(2, 70) + message(3, 3600))
    second = survey(path, "second", earlier=first)
    assert second.hours == ((HOUR, 3, "second"), (HOUR + 1, 1, "second"))
    assert second.first_minutes == ((HOUR, 1, "first"), (HOUR + 1, 1, "second"))
    assert Survey.of_json(json.loads(json.dumps(second.as_json()))) == second


def test_the_marks_of_a_file_that_was_cut_in_a_line_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = line(1) + line(2, HOUR + 1)
    path.write_bytes(whole[:-10])  # the time of the last line shows already
    first = survey(path, "first")
    path.write_bytes(whole)
    assert not first.complete
    assert {mark for _hour, _rows, mark in survey(path, "second", earlier=first).hours} == {"second"}


def test_damage_ends_a_survey_and_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    packed = gzip.compress(b"".join(line(seq) for seq in range(1, 20_000)))
    path.write_bytes(packed[: len(packed) // 2])
    found = survey(path, "m")
    assert not found.complete
    assert 1_000 < hours(found)[HOUR] < 19_999


def test_parquet_without_a_column_of_times_is_left_to_the_reader(tmp_path: Path) -> None:
    pq.write_table(pa.table({"seq": [1], "kind": ["step"]}), tmp_path / "events.parquet")
    assert survey(tmp_path / "events.parquet", "m").hours == ()
