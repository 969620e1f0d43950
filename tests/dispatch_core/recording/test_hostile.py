"""Files that once broke the reader, each as small as possible; ``tests/fuzz`` searches for more."""

import gzip
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dispatch_core.recording import parquet
from dispatch_core.recording.files import Limits, blocks, find_recordings
from dispatch_core.recording.parquet_footer import FooterError, row_groups
from dispatch_core.recording.reader import read_recording
from dispatch_core.recording.schema import EVENTS
from tests.dispatch_core.recording.reading import HEADER, SAMPLES, flow, line_of, message, read, sent

ROOT = Path(__file__).parents[3]
END = {"topic": "t", "subscription": "s", "seq": 1, "t_us": 1, "kind": "end"}
HEADER_JSON = '{"format":"pulsar-consumer-events","format_version":1}'


@pytest.mark.parametrize("odd", [b"9" * 5000, b"[" * 100_000 + b"]" * 100_000])
def test_a_footer_that_python_cannot_hold_is_quarantined(odd):
    result = read([HEADER, flow(1), b'{"kind":"footer","odd":' + odd + b"}", flow(2)])
    assert [(line, field) for line, field, _ in result.refused] == [(3, None)]
    assert result.refused[0][2].startswith("a footer that is no valid JSON: ")
    assert result.counts.accepted == 2


@pytest.mark.parametrize("line", [b"{}", b'{"x":1}', b'{"kind":null}'])
@pytest.mark.parametrize("before", [b"x", b"{}", b""])
def test_a_line_without_a_known_field_is_not_lost_beside_a_bad_one(line, before):
    result = read([HEADER, before, line, flow(1)])
    assert (3, "kind", "missing") in result.refused
    assert result.counts.lines == (4 if before else 3)


def test_a_position_of_too_many_digits_has_one_fate_whatever_stands_beside_it():
    long = sent(1, positions=["0" * 19 + "3:0", "3:1"])
    alone, beside_bad = read([HEADER, long]), read([HEADER, long, sent(2, positions=["x", "y"])])
    assert [field for _, field, _ in alone.refused] == ["positions"]
    assert alone.refused == beside_bad.refused[:1]
    usual = read([HEADER, sent(1, positions=["0003:0", "3:" + "0" * 18 + "1"])])
    assert usual.events["positions"][1].as_py()[1] == {"ledger_id": 3, "entry_id": 1}


def test_lines_of_very_deep_json_do_not_end_the_process():
    code = (
        "import gzip, io; from dispatch_core.recording.reader import read_file\n"
        "deep = b'{\"seq\":1,\"a\":' + b'[' * 50_000 + b']' * 50_000 + b'}\\n'\n"
        "reading = read_file(io.BytesIO(gzip.compress(deep * 9)), name='events.jsonl.gz')\n"
        "list(reading); print(reading.counts.quarantined)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "9\n"), done.stderr[-500:]


def test_a_block_has_a_bounded_number_of_lines():
    """A kept line takes some hundred bytes of memory, however short it is."""
    found = list(blocks(io.BytesIO(b"x\n" * 300_000), "plain", Limits()))
    assert max(block.data.count(b"\n") for block in found) <= 1 << 16
    assert b"".join(block.data for block in found) == b"x\n" * 300_000
    firsts = [block.first_line for block in found]
    assert firsts == [1 + sum(block.data.count(b"\n") for block in found[:at]) for at in range(len(found))]


def test_a_long_line_in_small_reads_takes_time_that_grows_with_it_only():
    class Slowly(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 16))

    line = b"x" * (4 << 20)
    began = time.monotonic()
    found = list(blocks(Slowly(b"a\n" + line + b"\nb\n"), "plain", Limits()))
    assert time.monotonic() - began < 30
    assert b"".join(block.data for block in found) == b"a\n" + line + b"\nb\n"


def test_a_name_that_is_no_text_is_shown_and_stops_nobody(tmp_path):
    folder = tmp_path / "rec"
    folder.mkdir()
    (folder / "events-1.jsonl").write_bytes(line_of(HEADER) + b"\n" + line_of(flow(1)) + b"\n")
    odd = folder / "events-\udcff.jsonl"
    try:
        odd.write_bytes(b"x\n")
    except OSError:
        pytest.skip("this file system takes only names that are text")
    (source,) = find_recordings([folder])
    result = read_recording(source)
    assert result.counts.accepted == 1
    assert result.quarantine["source_file"].to_pylist() == [f"{source.name}/events-%FF.jsonl"]


# ---- Parquet ----


def packed(table: pa.Table, **options) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream.getvalue()


def events(*rows: dict) -> pa.Table:
    return pa.Table.from_pylist(list(rows), pa.schema([field.with_nullable(True) for field in EVENTS]))


def header(text: str | None) -> dict:
    return END | {"seq": 0, "t_us": None, "kind": "header", "header_json": text}


@pytest.mark.parametrize("text", ['{"format":[1]}', '{"format":{}}', HEADER_JSON.replace(":1}", ":2}")])
def test_nothing_is_read_behind_a_parquet_header_that_forbids_it(text):
    result = read(packed(events(END, header(text), END | {"seq": 2})), "events.parquet")
    assert [(line, field) for line, field, _ in result.refused] in ([(2, "format")], [(2, "format_version")])
    assert result.refused[0][2].endswith("the rest of the file was not read")
    assert result.events["seq"].to_pylist() == [1]
    assert result.counts.lines == 2


@pytest.mark.parametrize(
    "column", ["topic", "subscription", "broker", "cluster", "kind", "header_json", "note"]
)
def test_a_parquet_text_that_is_no_utf8_is_one_rows_fault(column):
    table = events(header(HEADER_JSON), END | {"cluster": "c", "broker": "b", "note": "n"}, END | {"seq": 2})
    place = table.column_names.index(column)
    row = 0 if column == "header_json" else 1
    values = table[column].cast(pa.binary()).to_pylist()
    values[row] = b"\xff"
    table = table.set_column(place, column, pa.array(values, pa.binary()).view(pa.string()))
    result = read(packed(table), "events.parquet")
    assert result.refused == [(row + 1, column, "not UTF-8")]
    assert 2 in result.events["seq"].to_pylist()


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("ms"), pa.timestamp("ns"), pa.string(), pa.bool_(), pa.float64(), pa.decimal128(20, 0)],
)
def test_a_parquet_column_that_means_something_else_is_not_read_as_if_it_did(kind):
    """Milliseconds would be taken for microseconds, and every time of the log would be wrong without a message."""
    times = pa.array([True]) if kind == pa.bool_() else pa.array([1]).cast(kind)
    result = read(packed(events(END).drop_columns("t_us").append_column("t_us", times)), "events.parquet")
    assert result.counts.file_problems == 1
    assert result.refused[0][2] == f"column t_us is {kind}, expected int64: not read"


def test_a_parquet_time_in_the_columns_own_unit_is_read():
    times = pa.array([7], pa.int64()).cast(pa.timestamp("us"))
    result = read(packed(events(END).drop_columns("t_us").append_column("t_us", times)), "events.parquet")
    assert result.events["t_us"].to_pylist() == [7]


def test_a_dictionary_that_unfolds_to_gigabytes_is_read_in_parts(monkeypatch):
    monkeypatch.setattr(parquet, "_TEXT_BYTES_AT_ONCE", 100_000)
    seen = []
    rows = parquet._rows
    monkeypatch.setattr(
        parquet,
        "_rows",
        lambda reading, batch, first: (seen.append(len(batch)), rows(reading, batch, first))[1],
    )
    keys = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), ["k" * 30_000])
    table = pa.table(
        {"topic": ["t"] * 100, "ledger_id": [1] * 100, "entry_id": list(range(100)), "key": keys}
    )
    result = read(packed(table, store_schema=False), "messages.parquet")
    assert max(seen) <= 3
    assert result.messages["entry_id"].to_pylist() == list(range(100))
    assert result.messages["source_line"].to_pylist() == list(range(1, 101))


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_parquet_text_over_the_limit_is_quarantined(dictionary):
    table = events(END | {"note": "x" * 300}, END | {"seq": 2, "note": "y"})
    result = read(packed(table, use_dictionary=dictionary), "events.parquet", limits=Limits(line_bytes=299))
    assert result.refused == [(1, "note", "text of 300 bytes, longer than the limit of 299")]
    assert result.events["seq"].to_pylist() == [2]


def test_the_footer_says_what_pyarrow_says():
    lines = gzip.decompress((SAMPLES[0] / "trace.jsonl.gz").read_bytes())
    for table in (read(lines).events, pa.Table.from_pylist([message(1), message(2)]), EVENTS.empty_table()):
        data = packed(table, row_group_size=50)
        theirs = pq.ParquetFile(io.BytesIO(data)).metadata
        ours = row_groups(io.BytesIO(data))
        assert [group.rows for group in ours] == [
            theirs.row_group(at).num_rows for at in range(theirs.num_row_groups)
        ]
        for at, group in enumerate(ours):
            known = theirs.row_group(at)
            chunks = [known.column(number) for number in range(known.num_columns)]
            assert group.size_bytes == known.total_byte_size
            assert group.values == max(chunk.num_values for chunk in chunks)
            assert group.empty == {
                chunk.path_in_schema
                for chunk in chunks
                if "." not in chunk.path_in_schema
                and chunk.statistics is not None
                and chunk.statistics.null_count == chunk.num_values
            }


@pytest.mark.slow
def test_a_footer_changed_anywhere_gives_an_answer_or_says_why_not():
    data = packed(events(END, END | {"seq": 2}))
    size = int.from_bytes(data[-8:-4], "little")
    answers = set()
    for at in range(len(data) - size - 8, len(data), 101):
        for byte in (0, 0x15, 0x7F, 0xFF):
            answers.add(_answer(data[:at] + bytes([byte]) + data[at + 1 :]))
    assert len(answers) > 2


def _answer(data: bytes) -> str:
    try:
        return str(len(row_groups(io.BytesIO(data))))
    except FooterError as error:
        return str(error)


def test_quarantine_shows_a_parquet_row_as_json():
    result = read(packed(events(END | {"t_us": -1})), "events.parquet")
    (row,) = result.quarantine.to_pylist()
    assert json.loads(row["raw"]) == END | {"t_us": -1}


def test_a_read_of_no_known_type_is_quarantined():
    """The rules count reads by type: an unknown type broke the audit of the whole recording."""
    line = {"seq": 1, "t_us": 1, "kind": "read_done", "type": "normal", "positions": ["3:0"]}
    result = read([HEADER, line, line | {"seq": 2, "type": "Replay"}], "trace.jsonl")
    assert result.refused == [(2, "type", "'normal' is none of Normal, Replay")]
    assert result.events["type"].to_pylist() == [None, "Replay"]
