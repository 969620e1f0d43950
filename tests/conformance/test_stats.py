"""The statistics of replayed recordings are the figures that the brokers wrote into their traces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.moment_statistics import statistics_at
from tests.dispatch_core.logs_without_trace import stripped
from tests.dispatch_core.replay.moments import busy_moments, differences, quiet_moments, verified
from tests.dispatch_core.replay.traced_stats import compare
from tests.sample import some

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]

#: Scenarios whose dispatcher has no such figures: one active consumer.
SINGLE_ACTIVE = ("failover", "exclusive")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("release", "classic", "per_mille"),
    [
        ("4.0.0-preview.1", False, 10),
        ("4.0.0", False, 5),
        ("4.2.4", False, 5),
        (
            "4.0.0",
            True,
            40,
        ),  # as many acks under way over far fewer attempts
        ("4.2.4", True, 40),
    ],
)
def test_statistics_are_what_the_broker_wrote_down(release: str, classic: bool, per_mille: int) -> None:
    """Replay sets and draining hashes agree exactly; counters may differ by an ack or flow that was under way."""
    found: Counter[str] = Counter()
    for folder in sorted((RECORDINGS / release).glob("designed-*")):
        if ("classic" in folder.name) == classic and not any(word in folder.name for word in SINGLE_ACTIVE):
            found += compare(folder)
    assert found["in_replay"] > 400
    assert found["in_replay differs"] == found["draining differs"] == found["joined differs"] == 0
    assert (found["draining"] > 5000) == (release == "4.2.4" and not classic)
    assert (found["joined"] > 50) == classic
    assert found["counters"] > 500
    assert found["counters differs"] * 1000 <= found["counters"] * per_mille


def test_without_a_trace_known_values_are_those_of_the_trace() -> None:
    """Values that level E calls known, or at least so much, at moments of recordings of every rule."""
    compared, wrong = Counter[str](), []
    for folder in some(sorted(RECORDINGS.glob("*/[dr]*")), 30):
        log = read_recording(find_recordings([str(folder)])[0]).logs[0]
        without = stripped(log)
        for t_us in [*quiet_moments(log, 3), *busy_moments(log, 3)]:
            if t_us >= (without.start_t_us or 0):
                found = differences(statistics_at([without], t_us), verified(log, t_us), compared)
                wrong += [f"{folder.name} at {t_us}: {text}" for text in found]
    assert wrong == []
    assert compared["availablePermits"] > 50
    assert compared["unackedMessages"] > 50
    assert compared["drainingHashesCount"] > 5
