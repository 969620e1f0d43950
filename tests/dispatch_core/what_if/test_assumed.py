"""Predictions name what their simulation leaves out of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.what_if.assumed import cursor_moves
from dispatch_core.what_if.compare import rows_of
from dispatch_core.what_if.rules import RECORDED

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.mark.parametrize(
    ("recording", "moves"),
    [
        ("operations/4.0.0/ops-0000-skip-ch", True),
        ("operations/4.2.4/legal-0000-delayed-ch", False),  # the reset that opens its cursor
        ("operations/4.2.4/legal-0011-rate-failover", False),
        ("recordings/4.2.4/designed-rolling-restart-ch", False),
        ("recordings/4.2.4/designed-failover-modulo-p1", False),
    ],
)
def test_a_log_whose_cursor_is_moved_is_like_no_recording_that_was_measured(
    recording: str, moves: bool
) -> None:
    (source,) = find_recordings([DATA / recording])
    (log,) = read_recording(source).logs
    assert (cursor_moves(log) > 0) == moves
    (row,) = rows_of(log, [RECORDED], seeds=[0])
    assert ("moves of the cursor" in (row.not_measured or "")) == moves
