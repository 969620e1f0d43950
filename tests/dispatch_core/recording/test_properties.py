"""For any bytes of a file: every line is counted, and the cut into blocks changes no result."""

import gzip
import json

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.recording.parse import RAW_EVENTS, RAW_MESSAGES, BlockParser, separated, without_spared
from dispatch_core.recording.reader import Limits
from dispatch_core.recording.rows import SPARED
from tests.dispatch_core.recording.reading import HEADER, SAMPLES, TOPIC, flow, line_of, message, read, sent
from tests.dispatch_core.recording.test_rejects import BAD_EVENTS, BAD_MESSAGES

REAL = [
    line
    for folder in SAMPLES
    for line in gzip.decompress((folder / "trace.jsonl.gz").read_bytes()).splitlines()[:60]
]
GENERAL = {"format": "pulsar-consumer-events", "format_version": "1.0", "cluster": "c", "broker": "b1"}
LINES = [
    *REAL,
    line_of(HEADER),
    line_of(GENERAL),
    line_of(HEADER | {"topic": "other", "incarnation": 4}),
    line_of(HEADER | {"format_version": 2}),
    *(line_of(line) for line, _, _ in BAD_EVENTS),
    line_of(flow(1, topic=TOPIC, subscription="x")),
    line_of(flow(2, topic="other")),
    line_of(sent(3, cluster="c", topic="third", subscription="s", broker="b2", incarnation=3)),
    line_of({"seq": 4, "t_us": 4, "kind": "gap", "from": 4, "to": 9}),
    line_of({"kind": "gap", "t_us": 4, "from": 10, "to": 10, "lost": 1}),
    line_of({"seq": 5, "t_us": 4, "kind": "checkpoint", "consumers": [1], "mark_delete": "3:1"}),
    line_of({"kind": "footer", "lines": 3, "crc32": "00000000"}),
    line_of({"kind": "footer"}),
    line_of({"seq": 5, "t_us": 5, "kind": "cursor_moved", "by": "skip", "from": "3:0", "to": "3:4"}),
    line_of({"seq": 6, "t_us": 6, "kind": "limit", "what": "dispatch_rate", "active": True}),
    b"",
    b"  ",
    b"{}",
    b'{"seq":1,"t_us":1,',
    b'"kind":"end"}',
    b'{"seq": 7, "t_us": 7, "kind": "end", "x": NaN}',
    b'{"seq": 7, "t_us": 7, "kind": "end", "x": "\\udc00"}',
    b'{"seq": 7, "t_us": 7, "kind": "end", "x": 1, "x": 2}',
]
MESSAGE_LINES = [
    *(line_of(message(entry)) for entry in range(4)),
    line_of(message(5, key=None, num_messages=None)),
    line_of(message(6, key="AAE=", key_b64=True)),
    line_of(message(6, key="a\x00é", topic=None)),
    line_of({"format": "pulsar-message-log", "format_version": 1, "topic": TOPIC}),
    line_of({"kind": "footer", "lines": 2}),
    *(line_of(line) for line, _, _ in BAD_MESSAGES),
    b"",
    b'{"x":1}{"y":2}',
]


def mutated(lines):
    """Draw a line, unchanged or with some adjacent bytes replaced."""

    def change(line, at, cut, put):
        at = min(at, len(line))
        return line[:at] + put + line[at + cut :]

    edits = st.builds(
        change, st.sampled_from(lines), st.integers(0, 300), st.integers(0, 6), st.binary(max_size=4)
    )
    return st.one_of(st.sampled_from(lines), st.sampled_from(lines), edits)


def files(lines):
    """Draw a file of such lines, with either line end, with or without byte order mark and last line end."""

    def join(parts, end, mark, last):
        return (b"\xef\xbb\xbf" if mark else b"") + end.join(parts) + (end if last else b"")

    ends = st.sampled_from([b"\n", b"\n", b"\r\n"])
    return st.builds(join, st.lists(mutated(lines), max_size=30), ends, st.booleans(), st.booleans())


@given(files(LINES), st.integers(1, 2000), st.sampled_from([100, 700, 1 << 20]))
def test_blocks_never_change_what_events_are_read(data, block_bytes, line_bytes):
    usual = read(data, limits=Limits(line_bytes=line_bytes))
    assert read(data, limits=Limits(line_bytes=line_bytes, block_bytes=block_bytes)).same_as(usual)
    assert read(data, limits=Limits(line_bytes=line_bytes), line_by_line=True).same_as(usual)


@given(files(MESSAGE_LINES), st.integers(1, 2000))
def test_blocks_never_change_what_messages_are_read(data, block_bytes):
    usual = read(data, "messages.jsonl")
    assert read(data, "messages.jsonl", limits=Limits(block_bytes=block_bytes)).same_as(usual)
    assert read(data, "messages.jsonl", line_by_line=True).same_as(usual)


@given(files(LINES))
def test_compression_changes_nothing(data):
    usual = read(data)
    for name, packed in (("gz", gzip.compress(data)), ("zst", zstandard.compress(data))):
        result = read(packed, f"events.jsonl.{name}")
        assert result.counts == usual.counts
        assert result.events.drop_columns(["source_file"]) == usual.events.drop_columns(["source_file"])


@given(files(LINES), st.data())
def test_a_cut_file_keeps_every_whole_line_before_the_cut(data, draw):
    packed = gzip.compress(data, mtime=0)
    cut = packed[: draw.draw(st.integers(0, len(packed) - 1))]
    result = read(cut, "events.jsonl.gz")
    assert result.counts.file_problems == 1 or result.refused[-1][1] in ("format", "format_version")
    kept, whole = (rows(events)[: len(result.events)] for events in (result.events, read(data).events))
    # All but the last: the cut may have made a good line of a bad one by ending it early.
    assert kept[:-1] == whole[: len(kept)][:-1]


def rows(events):
    """Return the events as objects, without headers and file names."""
    return [row | {"source_file": None} for row in events.to_pylist() if row["kind"] != "header"]


@given(mutated([*LINES, *MESSAGE_LINES]), st.sampled_from([RAW_EVENTS, RAW_MESSAGES]))
def test_python_explains_only_what_the_bulk_parser_refuses(line, schema):
    """Otherwise a bad line could change the result of other lines in its block."""
    line = line.strip(b" \t\r\n")
    if b"\n" in line or not line:
        return
    spared = SPARED if schema is RAW_MESSAGES else frozenset()
    _, left_out, why = without_spared(separated(line), schema, spared)
    if why is not None or left_out:
        assert not len(BlockParser(schema).parse(line).rows)


@given(mutated(LINES))
def test_an_accepted_line_says_what_plain_json_says(line):
    if b"\n" in line or b'"format"' in line:
        return
    events = read([HEADER, line]).events
    if len(events) == 2:
        row, said = events.slice(1).to_pylist()[0], json.loads(line)
        for name in (
            "t_us",
            "kind",
            "consumer",
            "permits",
            "name",
            "batch_sizes",
            "blocked",
            "hash",
            "hashes",
            "usable",
        ):
            assert row[name] == said.get(name)
        positions = said.get("positions")
        assert row["positions"] == (
            None
            if positions is None
            else [
                dict(zip(("ledger_id", "entry_id"), map(int, text.split(":")), strict=True))
                for text in positions
            ]
        )
