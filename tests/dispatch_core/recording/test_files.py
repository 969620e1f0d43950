"""Files as a whole: those of a recording, damage, encodings, and files that the reader has to give up."""

import gzip
import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from dispatch_core.recording.files import NoRecordingError, file_format, find_recordings
from dispatch_core.recording.parquet import write_parquet
from dispatch_core.recording.reader import Limits, read_file, read_recording
from tests.dispatch_core.recording.reading import HEADER, RECORDINGS, SAMPLES, flow, line_of, message, read

LOG = b"".join(line_of(line) + b"\n" for line in [HEADER, *(flow(seq) for seq in range(1, 5001))])


def test_names_of_the_format():
    assert file_format("a/b/messages-000.jsonl.zst") == ("messages", "zstd")
    assert file_format("events.parquet") == ("events", "parquet")
    assert file_format("trace-2.jsonl") == ("events", "plain")
    assert [file_format(name) for name in ("steps.jsonl", "trace.json", "messages", "mytrace.jsonl.gz")] == [
        None
    ] * 4


def test_finding_recordings(tmp_path):
    names = [source.name for source in find_recordings([RECORDINGS])]
    assert names == sorted(f"{folder.parent.name}/{folder.name}" for folder in SAMPLES)
    sample = SAMPLES[0]
    for path in (
        sample,
        sample / "trace.jsonl.gz",
        str(sample.parent / "*" / "trace*"),
        str(RECORDINGS / "**" / "*.gz"),
    ):
        found = find_recordings([path, path])
        assert sample.resolve() in [source.folder for source in found]
        assert len(found) == len({source.folder for source in found})
    for path, words in (
        (tmp_path / "nowhere", "nowhere: no such file or folder, and nothing matches it as a pattern"),
        (tmp_path, "no recording in it; a recording is a folder with files named messages*.jsonl"),
    ):
        with pytest.raises(NoRecordingError, match="^" + str(path)) as error:
            find_recordings([sample, path])
        assert words in str(error.value)


def test_events_beside_a_trace_are_left_out_and_named(tmp_path):
    for name in ("events.jsonl", "trace.jsonl", "messages.jsonl"):
        (tmp_path / name).write_bytes(b"")
    (source,) = find_recordings([tmp_path])
    assert [file.name for file in source.events] == ["trace.jsonl"]
    assert [file.name for file in source.ignored] == ["events.jsonl"]


def test_what_is_no_log_file_is_an_error_of_the_caller(tmp_path):
    with pytest.raises(ValueError, match=r"notes\.txt: not a name of the log format"):
        read_file(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match="a stream needs a name"):
        read_file(io.BytesIO(b""))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_empty_files(suffix):
    packed = {"": b"", ".gz": gzip.compress(b""), ".zst": zstandard.compress(b"")}[suffix]
    result = read(packed, "events.jsonl" + suffix)
    assert (result.counts.lines, result.quarantine.num_rows) == (0, 0)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("events.jsonl.gz", b"", "empty file: not gzip data"),
        ("events.jsonl.zst", b"", "empty file: not zstd data"),
        ("events.jsonl.gz", LOG, "not gzip data, despite the file's name"),
        ("events.jsonl.zst", LOG, "not zstd data, despite the file's name"),
        ("events.jsonl", LOG.decode().encode("utf-16"), "the text is UTF-16; the log format is UTF-8"),
        ("events.parquet", LOG, "no readable Parquet file"),
        ("events.parquet", b"", "no readable Parquet file"),
    ],
)
def test_a_file_that_is_something_else_is_one_quarantine_row(name, data, reason):
    result = read(data, name)
    ((line, field, said),) = result.refused
    assert (line, field) == (None, None)
    assert reason in said
    assert result.counts.accepted == 0


@pytest.mark.parametrize(
    ("name", "packed"),
    [("events.jsonl.gz", gzip.compress(LOG)), ("events.jsonl.zst", zstandard.compress(LOG))],
)
def test_a_truncated_file_keeps_what_came_before(name, packed):
    result = read(packed[: len(packed) * 3 // 4], name)
    assert result.refused[-1] == (
        None,
        None,
        f"the {'gzip' if name.endswith('gz') else 'zstd'} data ends too early (truncated file): "
        "lines before the cut were kept",
    )
    assert len(result.refused) <= 2  # and the line that was cut
    assert result.counts.accepted == len(result.events) - 1
    assert result.events["seq"].to_pylist() == list(range(len(result.events)))
    assert name.endswith("zst") or result.counts.accepted > 3000  # zstd decodes whole blocks of 128 KiB only


def test_a_damaged_gzip_keeps_what_came_before():
    packed = bytearray(gzip.compress(LOG))
    packed[-6] ^= 1  # the checksum at the end: every line is there, but may be wrong
    result = read(bytes(packed), "events.jsonl.gz")
    assert result.counts.accepted == 5000
    assert "damaged gzip data" in result.refused[0][2]
    packed[len(packed) // 2] ^= 255
    result = read(bytes(packed), "events.jsonl.gz")
    assert 0 < result.counts.accepted < 5000
    assert "damaged gzip data" in result.refused[-1][2]


def test_several_members_and_padding_are_one_gzip_file():
    packed = gzip.compress(LOG) + gzip.compress(line_of(flow(5001)) + b"\n") + b"\0" * 700
    result = read(packed, "events.jsonl.gz")
    assert (result.counts.accepted, result.quarantine.num_rows) == (5001, 0)
    result = read(packed + b"rubbish", "events.jsonl.gz")
    assert result.counts.accepted == 5001
    assert result.refused == [(None, None, "bytes after the end of the gzip data")]
    packed = zstandard.compress(LOG) + zstandard.compress(line_of(flow(5001)) + b"\n")
    assert read(packed, "events.jsonl.zst").counts.accepted == 5001
    assert read(packed + b"rubbish", "events.jsonl.zst").refused == [
        (None, None, "bytes after the end of the zstd data")
    ]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_decompression_bomb_stops_at_the_limit(suffix):
    bomb = LOG + b"\n" * 200_000_000
    packed = {"": LOG, ".gz": gzip.compress(bomb, 1), ".zst": zstandard.compress(bomb)}[suffix]
    result = read(packed, "events.jsonl" + suffix, limits=Limits(file_bytes=100_000))
    assert "more than 100000 bytes after decompression: the rest was not read" in result.refused[-1][2]
    assert 0 < result.counts.accepted < 5000


def test_an_unreadable_file_is_one_quarantine_row_and_the_others_are_read(tmp_path):
    (tmp_path / "messages.jsonl").write_bytes(line_of(message(0)) + b"\n")
    (tmp_path / "trace-0.jsonl").write_bytes(LOG)
    (tmp_path / "trace-1.jsonl.gz").write_bytes(gzip.compress(LOG)[:100])
    (source,) = find_recordings([tmp_path])
    (tmp_path / "trace-0.jsonl").unlink()  # gone between listing and reading
    recording = read_recording(source)
    assert recording.counts.file_problems == 2
    (first, *_) = recording.quarantine.to_pylist()
    assert first["source_file"] == f"{source.name}/trace-0.jsonl"
    assert first["reason"] == "cannot be read: No such file or directory"
    assert recording.counts.accepted >= 1


def test_line_ends_and_byte_order_mark():
    usual = read(LOG)
    assert read(LOG.replace(b"\n", b"\r\n")).same_as(usual)
    assert read(b"\xef\xbb\xbf" + LOG).same_as(usual)
    assert read(LOG.rstrip(b"\n")).same_as(usual)
    blank = read(LOG.replace(b"\n", b"\n \n", 1))
    assert (blank.counts.blank, blank.counts.lines, blank.quarantine.num_rows) == (1, 5001, 0)
    assert blank.events["source_line"].to_pylist()[:3] == [1, 3, 4]


class TestParquet:
    """Faults that only Parquet files can have."""

    @pytest.fixture
    def events(self):
        return read(LOG[: 100 * 90]).events.slice(0, 50)

    def write(self, table, tmp_path: Path):
        path = tmp_path / "events.parquet"
        pq.write_table(table, path)
        return path

    def test_a_missing_column(self, events, tmp_path):
        path = self.write(events.drop_columns(["seq"]), tmp_path)
        ((_, _, reason),) = read(path, "events.parquet").refused
        assert reason.startswith(
            "column seq is missing; a Parquet log of events needs at least topic, subscription"
        )

    def test_a_column_of_another_type(self, events, tmp_path):
        at = events.schema.get_field_index("positions")
        path = self.write(events.set_column(at, "positions", events["kind"]), tmp_path)
        ((_, _, reason),) = read(path, "events.parquet").refused
        assert reason.startswith("column positions is string, expected list<")

    def test_values_that_break_a_rule(self, events, tmp_path):
        rows = events.to_pylist()
        rows[3] |= {"permits": 0}
        rows[4] |= {"kind": "sent", "positions": [{"ledger_id": 3, "entry_id": -2}], "batch_sizes": [1]}
        rows[5] |= {"topic": ""}
        rows[6] |= {"seq": -7}
        path = self.write(events.from_pylist(rows, schema=events.schema), tmp_path)
        result = read(path, "events.parquet")
        assert result.refused == [
            (4, "permits", "0 is below 1"),
            (5, "positions", "a position needs ledger and entry, each at least -1"),
            (6, "topic", "empty"),
            (7, "seq", "-7 is below 1"),
        ]
        assert b'"permits": 0' in result.quarantine["raw"][0].as_py()
        assert result.counts.accepted == 45

    def test_bytes_that_are_no_text(self, events, tmp_path):
        at = events.schema.get_field_index("name")
        names = events["kind"].cast("binary").to_pylist()
        names[2] = b"\xff"
        import pyarrow as pa

        broken = pa.Array.from_buffers(pa.string(), len(names), pa.array(names, pa.binary()).buffers())
        path = self.write(events.set_column(at, "name", broken), tmp_path)
        assert read(path, "events.parquet").refused == [(3, "name", "not UTF-8")]

    def test_a_damaged_page_keeps_the_rows_before(self, tmp_path):
        table = read(LOG).events
        path = tmp_path / "events.parquet"
        pq.write_table(table, path, row_group_size=500, compression="zstd", use_dictionary=False)
        data = bytearray(path.read_bytes())
        middle = pq.ParquetFile(path).metadata.row_group(5)
        column = next(i for i in range(middle.num_columns) if middle.column(i).path_in_schema == "seq")
        start = middle.column(column).data_page_offset
        data[start + 40 : start + 400] = bytes(360)
        path.write_bytes(data)
        result = read(path, "events.parquet")
        assert "damaged Parquet data after row" in result.refused[-1][2]

    def test_written_files_hold_no_source_columns(self, events, tmp_path):
        write_parquet(events, tmp_path / "events.parquet")
        names = pq.read_schema(tmp_path / "events.parquet").names
        assert "seq" in names
        assert not [name for name in names if name.startswith("source_")]
