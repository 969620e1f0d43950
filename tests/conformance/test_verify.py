"""Verification of the recordings beside the repository, as far as this core version replays their rule.

``HELD`` are the scenarios of 4.2.4 on which every decision is exact or shown to race. The others of these kinds need
batch-index acks or the general handling of races, and are not judged here; nothing in this file tolerates a difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.runner import verify

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings" / "4.2.4"

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository")

HELD = [
    "designed-all-leave-ch",
    "designed-away-and-back-ch",
    "designed-drain-one-by-one-ch",
    "designed-failover-modulo-p-1",
    "designed-failover-modulo-p0",
    "designed-failover-modulo-p1",
    "designed-failover-modulo-p2",
    "designed-failover-ring-p-1",
    "designed-failover-ring-p0",
    "designed-failover-ring-p1",
    "designed-failover-ring-p2",
    "designed-max-unacked-ch",
    "designed-max-unacked-half-ch",
    "designed-negative-acks-ch",
    "designed-order-at-risk-q12-ch",
    "designed-order-at-risk-q4-ch",
    "designed-redeliver-all-priorities-binary-ch",
    "designed-rolling-restart-ch",
    "designed-same-name-batches-ch",
    "designed-slow-owner-newcomer-ch",
    "designed-subscription-unacked-ch",
]


@pytest.mark.parametrize("scenario", HELD)
def test_no_divergent_decision(scenario: str) -> None:
    (source,) = find_recordings([str(RECORDINGS / scenario)])
    (log,) = read_recording(source).logs
    result = verify(log)
    assert result.not_judged is None
    assert [f for f in result.tally.findings if f.status == "divergent"] == []
    assert result.tally.total("decisions") > 0
    assert result.tally.total("uncertain") <= 1
    assert all(f.racing_seq is not None for f in result.tally.findings)
