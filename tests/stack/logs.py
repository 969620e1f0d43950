"""Recorded logs of several days with one order violation, for the tests that run the real services."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from dispatch_core.cli.main import main
from tests.mutation.mutators import out_of_order
from tests.mutation.recording import Recording

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "recordings" / "4.2.4"
CLEAN = SAMPLES / "designed-rolling-restart-ch"
#: A second dispatcher, which stays clean on every day.
BESIDE = SAMPLES / "designed-drain-one-by-one-ch"
#: A third dispatcher, unknown until its logs come late.
LATE = SAMPLES / "designed-failover-modulo-p1"

#: Recordings of seconds are scaled to days, and every wait with them: no wait is too long.
POLICY = """\
version: 1
rules:
  - name: stretched-recordings
    topics: "*"
    completeness:
      stuck_key_ms: 864000000
      stuck_consumer_ms: 864000000
      stuck_subscription_ms: 864000000
      ack_hole_ms: 864000000
      undelivered: any
"""


@dataclass(frozen=True)
class Injected:
    """Two swapped entries of a key, and the place where the audit must report them."""

    topic: str
    subscription: str
    key: str
    positions: frozenset[str]
    day: date

    @property
    def start(self) -> datetime:
        """Start of the interval that holds both deliveries."""
        return datetime(self.day.year, self.day.month, self.day.day, tzinfo=UTC)


def scaled_logs(folder: Path, first: date, days: int, *, bad: int) -> Injected:
    """Write two recordings below ``folder``, a segment per day; on day ``bad`` (from 0) two entries are swapped."""
    recording = Recording.read(CLEAN).without_trace()
    times = [line["t_us"] for line in recording.events]
    times += [line["publish_time_ms"] * 1000 for line in recording.messages if "publish_time_ms" in line]
    begin, length = min(times), max(times) - min(times) + 1
    for seed in range(1000):
        fault = out_of_order(recording, random.Random(seed))
        assert fault is not None
        changed = [n for n, line in enumerate(recording.events) if line != fault.recording.events[n]]
        if all((recording.events[n]["t_us"] - begin) * days // length == bad for n in changed):
            break
    else:
        raise AssertionError(f"no two entries of a key were sent on day {bad} of {days}")
    positions = {
        position
        for n in changed
        for was, position in zip(
            recording.events[n]["positions"], fault.recording.events[n]["positions"], strict=True
        )
        if was != position
    }
    source = fault.recording.write(folder / "whole" / CLEAN.parent.name / CLEAN.name)
    in_segments([source, BESIDE], folder / "segments", first, days)
    (key,) = {recording.key(position) for position in positions}
    assert key is not None
    return Injected(
        topic=recording.header["topic"],
        subscription=recording.header["subscription"],
        key=key,
        positions=frozenset(positions),
        day=first + timedelta(days=bad),
    )


def in_segments(recordings: Sequence[Path], folder: Path, first: date, days: int) -> Path:
    """Scale recordings to days, a segment per day below ``folder``; return ``folder``."""
    cut = ["--out", str(folder), "--intervals", str(days), "--start", first.isoformat()]
    assert main(["cut", *map(str, recordings), *cut]) == 0
    return folder
