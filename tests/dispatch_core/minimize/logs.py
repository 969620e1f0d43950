"""Logs for the tests of ``minimize``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dispatch_core.recording.files import find_recordings
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import read_recording

DATA: Final = Path(__file__).parents[2] / "data" / "minimize"
#: A hash that moved away, back and away again is counted twice as draining (#24736).
AWAY_AND_BACK: Final = DATA / "4.0.0" / "designed-away-and-back-range"
#: The read-position rule lets a key be at two consumers at once.
AT_RISK: Final = DATA / "4.0.0" / "designed-order-at-risk-q12-classic-ch"
#: A consumer with a limit of one unacknowledged message is not unblocked (#22657).
LIMIT_OF_1: Final = DATA / "4.0.0" / "limit-of-1"


def log_of(folder: Path) -> DispatcherLog:
    """Read the only log of a recording."""
    (source,) = find_recordings([str(folder)])
    (log,) = read_recording(source).logs
    return log
