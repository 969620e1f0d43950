"""docs/log-format.md agrees with the code: its tables, examples and quoted messages."""

import json
import re
from pathlib import Path

from dispatch_core.recording.describe import in_step
from dispatch_core.recording.parse import RAW_MESSAGES
from dispatch_core.recording.schema import KINDS
from tests.dispatch_core.recording.reading import HEADER, read

DOCUMENT = Path(__file__).parents[3] / "docs" / "log-format.md"
TEXT = DOCUMENT.read_text("utf-8")


def blocks(language):
    return [
        block.splitlines()
        for block in re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    ]


def test_the_tables_are_in_step_with_the_schema():
    assert in_step(TEXT) == TEXT, "run: python -m dispatch_core.recording.describe docs/log-format.md"


def test_every_field_of_a_message_is_described():
    (table,) = re.findall(r"<!-- generated: messages -->(.*?)<!-- end -->", TEXT, re.DOTALL)
    described = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    marks = {"kind", "format"}  # these two are in headers and events only
    assert described == set(RAW_MESSAGES.names) - marks


def test_the_examples_are_read_without_a_reject_and_show_every_kind():
    *headers, messages, events = blocks("json")
    assert [len(read(list(map(str.encode, header))).events) for header in headers] == [1, 1]
    result = read([line.encode() for line in messages], "messages.jsonl")
    assert (result.counts.accepted, result.refused) == (7, [])
    result = read(("\n".join(events) + "\n").encode(), "trace.jsonl")  # the footer's checksum is true, too
    assert result.refused == []
    assert not result.counts.unknown_kinds
    shown = set(result.events["kind"].to_pylist()) | {json.loads(events[-1])["kind"]}
    assert shown == set(KINDS)


def test_the_quoted_messages_are_what_is_said():
    (lines,) = blocks("text")
    for line, message in zip(lines[::2], lines[1::2], strict=True):
        ((number, field, reason),) = read([HEADER, line.encode()]).refused
        assert number == 2
        assert message.strip() == (f"{field}: {reason}" if field else reason)
