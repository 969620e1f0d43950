"""Recorded logs of several days with one order violation put in, for the tests that run the real services."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from dispatch_core.cli.main import main
from tests.mutation.lives import Life
from tests.mutation.mutators import out_of_order

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "recordings" / "4.2.4"
CLEAN = SAMPLES / "designed-rolling-restart-ch"
#: A second dispatcher, which stays clean on every day.
BESIDE = SAMPLES / "designed-drain-one-by-one-ch"
#: A third one, of which nothing is known until its logs come late.
LATE = SAMPLES / "designed-failover-modulo-p1"

#: A recording of seconds is stretched over days, and every wait with it: nothing is too long here.
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
    """Two entries of a key that have changed places, and where that is told."""

    topic: str
    subscription: str
    key: str
    positions: frozenset[str]
    day: date

    @property
    def start(self) -> datetime:
        """Start of the interval that holds both sendings."""
        return datetime(self.day.year, self.day.month, self.day.day, tzinfo=UTC)


def stretched_logs(folder: Path, first: date, days: int, *, bad: int) -> Injected:
    """Write two recordings below ``folder``, a segment a day; on day ``bad`` (from 0) a key goes backwards."""
    life = Life.read(CLEAN).user_level()
    times = [line["t_us"] for line in life.events]
    times += [line["publish_time_ms"] * 1000 for line in life.messages if "publish_time_ms" in line]
    begin, length = min(times), max(times) - min(times) + 1
    for seed in range(1000):
        fault = out_of_order(life, random.Random(seed))
        assert fault is not None
        changed = [n for n, line in enumerate(life.events) if line != fault.life.events[n]]
        if all((life.events[n]["t_us"] - begin) * days // length == bad for n in changed):
            break
    else:
        raise AssertionError(f"no two entries of a key were sent on day {bad} of {days}")
    positions = {
        position
        for n in changed
        for was, position in zip(life.events[n]["positions"], fault.life.events[n]["positions"], strict=True)
        if was != position
    }
    source = fault.life.write(folder / "whole" / CLEAN.parent.name / CLEAN.name)
    in_segments([source, BESIDE], folder / "segments", first, days)
    (key,) = {life.key(position) for position in positions}
    assert key is not None
    return Injected(
        topic=life.header["topic"],
        subscription=life.header["subscription"],
        key=key,
        positions=frozenset(positions),
        day=first + timedelta(days=bad),
    )


def in_segments(recordings: Sequence[Path], folder: Path, first: date, days: int) -> Path:
    """Stretch recordings over days, a segment a day below ``folder``, which is returned."""
    cut = ["--out", str(folder), "--intervals", str(days), "--start", first.isoformat()]
    assert main(["cut", *map(str, recordings), *cut]) == 0
    return folder
