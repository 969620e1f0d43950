"""Rows behind the last line of a log that could not be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dispatch_core.recording.known_until import log_until
from dispatch_core.recording.lost_rows import Refused
from dispatch_core.recording.reader import Recording, find_recordings, read_recording
from tests.dispatch_core.audit.small_logs import T0_US, ack, added, message, numbered, sent

HEADER = {
    "format": "pulsar-consumer-events",
    "format_version": "1.0",
    "broker_version": "4.2.4",
    "subscription": "s",
    "subscription_type": "Key_Shared",
    "partition_index": -1,
    "config": {},
}
EVENTS = numbered([added(1), sent(1, 0, 1, 2), ack(1, 0, 2)])
BAD = b'{"seq": 4, "kind": "ack'


def _text(header: dict[str, Any], lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in (header, *lines))


def recorded(folder: Path, **files: bytes) -> Recording:
    """Write event files of a recording, by name without suffix, and read it."""
    folder.mkdir()
    topics = {"format": "pulsar-message-log", "format_version": "1.0"}
    stored = [message(entry, f"k{entry}") | {"topic": topic} for topic in "tu" for entry in range(3)]
    (folder / "messages.jsonl").write_bytes(_text(topics, stored))
    for name, content in files.items():
        suffix = ".jsonl.gz" if content[:2] == b"\x1f\x8b" else ".jsonl"
        (folder / f"{name}{suffix}").write_bytes(content)
    (source,) = find_recordings([str(folder)])
    return read_recording(source)


def lost(recording: Recording) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for log in recording.logs:
        found.setdefault(log.topic, []).append(log.end_lost)
    return found


def of(topic: str, lines: list[dict[str, Any]] = EVENTS, **fields: Any) -> bytes:
    return _text(HEADER | {"topic": topic} | fields, lines)


def cut(content: bytes) -> bytes:
    return gzip.compress(content)[:-12]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"events-a": of("t")}, [False]),
        ({"events-a": of("t") + BAD}, [True]),
        ({"events-a": cut(of("t") + of("t")[-20:])}, [True]),
        # behind the refused line comes another of this log, so that a hole in seq shows what is lost
        ({"events-a": of("t", EVENTS[:2]) + BAD + b"\n" + json.dumps(EVENTS[2]).encode()}, [False]),
        ({"events-a": of("t", EVENTS[:2]) + BAD, "events-b": of("t", EVENTS[2:])}, [False]),
        ({"events-a": of("t", EVENTS[:2]), "events-b": of("t", EVENTS[2:]) + BAD}, [True]),
        # a file of which nothing can be read may hold lines of any log
        ({"events-a": of("t"), "events-b": b"\x1f\x8b\x00"}, [True]),
    ],
)
def test_rows_behind_the_last_line_are_found(
    tmp_path: Path, files: dict[str, bytes], expected: list[bool]
) -> None:
    assert lost(recorded(tmp_path / "r", **files)) == {"t": expected}


def test_a_damaged_file_concerns_the_logs_that_end_in_it(tmp_path: Path) -> None:
    both = recorded(tmp_path / "r", **{"events-a": of("t") + BAD, "events-b": of("u")})
    assert lost(both) == {"t": [True], "u": [False]}


def test_a_refused_line_behind_the_next_load_is_not_of_the_load_before(tmp_path: Path) -> None:
    second = [event | {"t_us": event["t_us"] + 60_000_000} for event in EVENTS]
    behind = of("t", incarnation=1) + of("t", second, incarnation=2) + BAD
    between = of("t", incarnation=1) + BAD + b"\n" + of("t", second, incarnation=2)
    assert lost(recorded(tmp_path / "behind", **{"events-a": behind})) == {"t": [False, True]}
    assert lost(recorded(tmp_path / "between", **{"events-a": between})) == {"t": [True, False]}


def test_a_message_file_loses_no_events(tmp_path: Path) -> None:
    quarantine = pa.table({"source_file": ["r/messages.jsonl"], "source_line": pa.array([None], pa.int64())})
    assert not Refused.of(quarantine, [])


def test_a_log_is_known_up_to_a_moment_before_later_lines(tmp_path: Path) -> None:
    (log,) = recorded(tmp_path / "r", **{"events-a": of("t") + BAD}).logs
    last_us = T0_US + 3_000_000
    assert log_until(log, last_us).end_lost
    assert not log_until(log, last_us - 1).end_lost
