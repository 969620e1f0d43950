"""The statistics of replayed recordings are the figures that the brokers wrote into their traces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.dispatch_core.traced_stats import compare

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]

#: Scenarios whose dispatcher has no such figures: one active consumer.
SINGLE_ACTIVE = ("failover", "exclusive")


@pytest.mark.parametrize("release", ["4.0.0-preview.1", "4.0.0", "4.2.4"])
def test_statistics_are_what_the_broker_wrote_down(release: str) -> None:
    """Replay sets and draining hashes to the last one; counters but for an ack or flow that was under way just then."""
    found: Counter[str] = Counter()
    for folder in sorted((RECORDINGS / release).glob("designed-*")):
        if not any(word in folder.name for word in (*SINGLE_ACTIVE, "classic")):
            found += compare(folder)
    assert found["in_replay"] > 500
    assert found["in_replay differs"] == 0
    assert (found["draining"] > 5000) == (release == "4.2.4")
    assert found["draining differs"] == 0
    assert found["counters"] > 5000
    assert found["counters differs"] <= found["counters"] // 100
