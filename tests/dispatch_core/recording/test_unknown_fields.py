"""Warnings about fields of message lines that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from tests.dispatch_core.audit.small_logs import added, message, numbered, write


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("num_messages", 0, "each entry counts as one message, so permits"),
        ("size_bytes", "large", "the entries count, without it"),
    ],
)
def test_a_warning_says_how_the_entry_counts(field: str, value: object, says: str, tmp_path: Path) -> None:
    stored = [message(0, "k"), message(1, "k", **{field: value})]
    (source,) = find_recordings([str(write(tmp_path / "a", stored, numbered([added(1)])))])
    recording = read_recording(source)
    assert recording.quarantine.num_rows == 0, json.dumps(recording.quarantine.to_pylist(), default=str)
    (warning,) = recording.mismatches
    assert warning.startswith(f"{field} cannot be read in 1 message line")
    assert says in warning
