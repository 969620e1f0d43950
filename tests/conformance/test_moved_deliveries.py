"""One delivery of a real log of level E, moved to another connected consumer, is found at its place.

Its acknowledgement stays where it was. What is not found lies beside a join or a leave after which the other consumer may
have owned the key, or been active: no line of such a log tells.
"""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.replay_log import replay
from tests.mutation.faults import only_without, without
from tests.mutation.recording import Delivery, Recording
from tests.sample import WHOLE

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"
START, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
TRIES = 500 if WHOLE else 40
#: Larger recordings take minutes to read line by line.
LARGEST_BYTES = 400_000

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]


def by_rule() -> dict[tuple[str, str], list[Path]]:
    """Return recordings by release and rule; those without order, or of one consumer, break nothing by a move."""
    found = defaultdict(list)
    for path in sorted(RECORDINGS.glob("*/*/trace.jsonl.gz")):
        folder = path.parent
        if path.stat().st_size > LARGEST_BYTES or "out-of-order" in folder.name or "exclusive" in folder.name:
            continue
        words = ("failover", "classic", "ch", "range", "sticky", "racing")
        rule = "-".join(word for word in words if word in folder.name.split("-"))
        found[folder.parent.name, rule].append(folder)
    return found


def moved(recording: Recording, rng: random.Random) -> Delivery | None:
    """Move one delivery, in place; returns it as it is then. ``None``: there was never a second consumer."""
    choices = [
        (number, sorted(connected - {line["consumer"]}))
        for number, (line, connected) in enumerate(zip(recording.events, recording.connected, strict=True))
        if line["kind"] == "sent" and connected - {line["consumer"]}
    ]
    if not choices:
        return None
    number, others = rng.choice(choices)
    line, to = recording.events[number], rng.choice(others)
    position = rng.choice(line["positions"])
    alone = without(line, lambda other: other != position)
    assert alone is not None
    alone["consumer"] = to
    left = only_without(line, position)
    recording.events[number : number + 1] = [*([left] if left else []), alone]
    recording.numbered()
    return Delivery(alone["seq"], 0, to, position)


def is_found(recording: Recording, delivery: Delivery, folder: Path) -> bool:
    """Check for a divergent judgement at the line, or a certain finding that names the entry."""
    log = read_recording(find_recordings([recording.write(folder)])[0]).logs[0]
    tables = replay(log, interval_start=START, interval_end=END)
    judged = [row["judgement"] for row in tables["deliveries"].to_pylist() if row["seq"] == delivery.line]
    named = [
        row
        for row in tables["anomalies"].to_pylist()
        if not row["uncertain"] and delivery.position in row["positions"]
    ]
    return "divergent" in judged or bool(named)


def test_a_moved_delivery_is_found(tmp_path: Path) -> None:
    rng = random.Random(3)
    recordings = by_rule()
    rules, missed, tried = sorted(recordings), [], 0
    while tried < TRIES:
        folder = rng.choice(recordings[rules[tried % len(rules)]])
        recording = Recording.read(folder).without_trace().copied()
        delivery = moved(recording, rng)
        if delivery is None:
            recordings[rules[tried % len(rules)]].remove(folder)
            continue
        tried += 1
        if not is_found(recording, delivery, tmp_path / str(tried)):
            missed.append(f"{recording.name} seq {delivery.line}: {delivery.position} to {delivery.consumer}")
    # Of a few tries one may be among those that no line tells.
    assert len(missed) <= max(0.02 * TRIES, 1), "\n".join(missed)
