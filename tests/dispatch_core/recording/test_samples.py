"""The reader over the recordings that ship with the project."""

import gzip
import json

import pyarrow as pa
import pytest

from dispatch_core.recording.log import dispatcher_logs
from dispatch_core.recording.parquet import write_parquet
from dispatch_core.recording.reader import Limits, find_recordings, read_recording
from dispatch_core.recording.schema import EVENTS, KINDS
from tests.dispatch_core.recording.reading import RECORDINGS, SAMPLES, read

EXPECTED = json.loads((RECORDINGS / "expected-verdicts.json").read_text())["recordings"]
COUNTS = {  # stored entries, events without the header
    "4.2.4/designed-drain-one-by-one-ch": (80, 522),
    "4.2.4/designed-failover-modulo-p1": (60, 196),
    "4.2.4/designed-negative-acks-ch": (60, 385),
    "4.2.4/designed-rolling-restart-ch": (720, 4526),
    "4.2.4/designed-rolling-restart-classic-ch": (720, 2785),
}


def lines(path):
    with gzip.open(path) as file:
        return [json.loads(line) for line in file]


def position(text):
    ledger, entry = map(int, text.split(":"))
    return {"ledger_id": ledger, "entry_id": entry}


def test_every_sample_has_stated_verdicts_and_counts():
    names = {f"{folder.parent.name}/{folder.name}" for folder in SAMPLES}
    assert names == set(EXPECTED) == set(COUNTS)
    assert {expected["all"] for expected in EXPECTED.values()} == {"PASS", "FAIL"}


@pytest.mark.parametrize("source", find_recordings([RECORDINGS]), ids=lambda source: source.name)
def test_sample_is_read_without_a_reject(source):
    recording = read_recording(source)
    assert recording.quarantine.num_rows == 0
    assert recording.counts.about_file == 1
    assert not recording.counts.unknown_kinds
    (log,) = recording.logs
    assert (len(log.messages), len(log.events)) == COUNTS[source.name]
    assert (log.topic, log.subscription) == (
        EXPECTED[source.name]["topic"],
        EXPECTED[source.name]["subscription"],
    )
    assert (log.recording, log.cluster, log.broker, log.incarnation) == (source.name, "standalone", None, 0)
    assert log.events["seq"].to_pylist() == list(range(1, len(log.events) + 1))
    assert log.header == lines(source.events[0])[0]
    assert log.events["source_file"].unique().to_pylist() == [f"{source.name}/trace.jsonl.gz"]


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
def test_every_field_of_every_line_arrives(folder):
    """Compare each known field of each event with plain ``json``; there are no other fields."""
    events = read(folder / "trace.jsonl.gz", "trace.jsonl.gz").events
    for line, row in zip(lines(folder / "trace.jsonl.gz")[1:], events.slice(1).to_pylist(), strict=True):
        expected = dict.fromkeys(EVENTS.names) | {
            name: value for name, value in line.items() if name in EVENTS.names
        }
        if "positions" in line:
            expected["positions"] = [position(text) for text in line["positions"]]
        for name in ("read_position", "mark_delete"):
            if name in line:
                expected[name] = position(line[name])
        if "key_shared" in line:
            shared = line["key_shared"]
            expected["key_shared_mode"] = shared["mode"]
            expected["key_shared_allow_out_of_order"] = shared["allow_out_of_order"]
            expected["ranges"] = [{"start": start, "end": end} for start, end in shared["ranges"]]
        for name in ("cluster", "topic", "subscription", "incarnation", "source_file", "source_line"):
            expected[name] = row[name]
        assert row == expected
        assert row["source_line"] == line["seq"] + 1
        assert line["kind"] in KINDS


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
def test_every_message_arrives(folder):
    rows = read(folder / "messages.jsonl.gz", "messages.jsonl.gz").messages.to_pylist()
    for number, (line, row) in enumerate(
        zip(lines(folder / "messages.jsonl.gz"), rows, strict=True), start=1
    ):
        assert position(line["position"]) == {name: row[name] for name in ("ledger_id", "entry_id")}
        assert {name: row[name] for name in line if name != "position"} == {
            name: value for name, value in line.items() if name != "position"
        }
        assert row["source_line"] == number


@pytest.mark.slow
@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
@pytest.mark.parametrize("file", ["messages.jsonl.gz", "trace.jsonl.gz"])
def test_block_size_and_line_by_line_change_nothing(folder, file):
    usual = read(folder / file, file)
    assert read(folder / file, file, limits=Limits(block_bytes=3000)).same_as(usual)
    assert read(folder / file, file, line_by_line=True).same_as(usual)


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
@pytest.mark.parametrize("content", ["messages", "trace"])
def test_parquet_and_back(folder, content, tmp_path):
    before = read(folder / f"{content}.jsonl.gz", f"{content}.jsonl.gz")
    table = before.messages if content == "messages" else before.events
    write_parquet(table, tmp_path / f"{content}.parquet")
    after = read(tmp_path / f"{content}.parquet", f"{content}.parquet")
    assert after.counts == before.counts
    again = after.messages if content == "messages" else after.events
    source = ["source_file", "source_line"]
    assert again.drop_columns(source).combine_chunks() == table.drop_columns(source).combine_chunks()


def test_all_samples_at_once_come_apart_again():
    """Shuffled rows of several dispatchers give the same logs as each recording alone."""
    recordings = [read_recording(source) for source in find_recordings([RECORDINGS])]
    messages = pa.concat_tables(recording.logs[0].messages for recording in recordings)
    events = pa.concat_tables(
        read(folder / "trace.jsonl.gz", "trace.jsonl.gz").events for folder in reversed(SAMPLES)
    )
    shuffled = events.take(pa.array([(7919 * i) % len(events) for i in range(len(events))]))
    logs = {log.topic: log for log in dispatcher_logs(messages.slice(500).combine_chunks(), shuffled)}
    assert len(logs) == len(recordings)
    for recording in recordings:
        (alone,) = recording.logs
        together = logs[alone.topic]
        assert together.header == alone.header
        drop = ["source_file"]
        assert (
            together.events.drop_columns(drop).combine_chunks()
            == alone.events.drop_columns(drop).combine_chunks()
        )
