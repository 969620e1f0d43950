"""Kinds and fields of log format 1.1, in every form of a log."""

import io
import json
from pathlib import Path

import pytest

from dispatch_core.recording.files import find_recordings
from dispatch_core.recording.parquet import write_parquet
from dispatch_core.recording.parse import separated
from dispatch_core.recording.reader import read_recording
from dispatch_core.recording.rewrite import convert_recording, strip_recording
from tests.dispatch_core.recording.reading import HEADER, flow, message, read

RECORDS = {"format_version": "1.1", "records": ["cursor_moved", "limit", "keys"]}
LATEST = "9223372036854775807:9223372036854775807"
LINES = [
    {"seq": 1, "t_us": 1, "kind": "cursor_moved", "by": "seek", "from": "3:4", "to": "-1:-1"},
    {"seq": 2, "t_us": 2, "kind": "cursor_moved", "by": "unknown"},
    {"seq": 3, "t_us": 3, "kind": "cursor_moved", "by": "reset_cursor", "to": LATEST, "entries": 7},
    {"seq": 4, "t_us": 4, "kind": "gap", "from": 4, "to": 5, "lost": 2},
    {"seq": 6, "t_us": 6, "kind": "limit", "what": "dispatch_rate", "value": 15, "active": True},
    {"seq": 7, "t_us": 7, "kind": "limit", "what": "dispatch_rate", "active": False},
    {"seq": 8, "t_us": 8, "kind": "active_notified", "consumer": 1, "active": 1},
    {"seq": 9, "t_us": 9, "kind": "subscription_deleted"},
    flow(10),
]


def test_fields_with_the_name_of_another_field_have_columns_of_their_own():
    result = read([HEADER | RECORDS, *LINES])
    assert result.refused == []
    rows = result.events.slice(1).to_pylist()
    assert [row["moved_from"] for row in rows] == [{"ledger_id": 3, "entry_id": 4}, *[None] * 8]
    assert [row["moved_to"] and row["moved_to"]["entry_id"] for row in rows] == [
        -1, None, (1 << 63) - 1, *[None] * 6,
    ]  # fmt: skip
    assert [row["gap_to_seq"] for row in rows if row["kind"] == "gap"] == [5]
    assert [row["limit_active"] for row in rows if row["kind"] == "limit"] == [True, False]
    assert [row["active"] for row in rows] == [*[None] * 6, 1, None, None]
    assert read([HEADER | RECORDS, *LINES], line_by_line=True).same_as(result)


@pytest.mark.parametrize(
    ("rest", "wanted"),
    [
        (b',"deep":' + b"[" * 20_000 + b"]" * 20_000, b'"limit.active"'),
        (b',"what":"twice"', b'"limit.active"'),
    ],
)
def test_they_have_them_in_lines_that_no_dictionary_can_hold(rest: bytes, wanted: bytes):
    line = (
        b'{"topic":"t","subscription":"s","seq":1,"t_us":40,"kind":"limit","what":"w","active" : true'
        + rest
        + b"}"
    )
    parsed = separated(line)
    assert wanted in parsed
    assert b'"active"' not in parsed
    assert parsed.replace(wanted, b'"active"') == line


def test_the_columns_of_parquet_give_the_same_rows():
    result = read([HEADER | RECORDS, *LINES])
    buffer = io.BytesIO()
    write_parquet(result.events, buffer)
    assert (
        read(buffer.getvalue(), "events.parquet")
        .events.drop_columns(["source_file", "source_line"])
        .equals(result.events.drop_columns(["source_file", "source_line"]))
    )


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_converted_log_keeps_its_lines(tmp_path: Path, form):
    source = written(tmp_path / "log")
    convert_recording(find_recordings([source])[0], tmp_path / "copy", form)
    convert_recording(find_recordings([tmp_path / "copy"])[0], tmp_path / "back", "jsonl")
    lines = [json.loads(line) for line in (tmp_path / "back" / "events.jsonl").read_text().splitlines()]
    assert [{name: line[name] for name in of} for line, of in zip(lines[1:-1], LINES, strict=True)] == LINES
    assert lines[0]["records"] == RECORDS["records"]


@pytest.mark.parametrize("minimal", [False, True])
def test_a_stripped_log_promises_only_lines_that_it_has(tmp_path: Path, minimal):
    source = find_recordings([written(tmp_path / "log")])[0]
    strip_recording(source, read_recording(source).logs, tmp_path / "out", minimal=minimal)
    log = read_recording(find_recordings([tmp_path / "out"])[0]).logs[0]
    kinds = log.events["kind"].to_pylist()
    assert ("cursor_moved" in kinds, "records" in log.header) == (not minimal, not minimal)


def test_keys_in_a_header_of_messages_are_no_keys_of_an_entry():
    header = {"format": "pulsar-message-log", "format_version": "1.1", "keys": "key"}
    result = read([header, message(0), message(1, keys=2, deliver_at_ms=7, txn="(1,2)")], "messages.jsonl")
    assert (result.refused, result.counts.about_file) == ([], 1)
    fields = result.messages.select(["keys", "deliver_at_ms", "txn"]).to_pylist()
    assert fields[1] == {"keys": 2, "deliver_at_ms": 7, "txn": "(1,2)"}
    assert set(fields[0].values()) == {None}


@pytest.mark.parametrize("name", ["records", "missing"])
@pytest.mark.parametrize("names", ["cursor_moved", [1], {}])
def test_a_header_whose_records_are_no_names_is_refused(name, names):
    ((_, field, reason), *_) = read([HEADER | {name: names}, *LINES]).refused
    assert (field, reason) == (name, "expected a list of names of kinds and fields")


def written(folder: Path) -> Path:
    folder.mkdir()
    lines = [HEADER | RECORDS, *LINES]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    topic = {"topic": HEADER["topic"]}
    (folder / "messages.jsonl").write_text(json.dumps(topic | message(0, keys=2)) + "\n")
    return folder
