"""Every Key_Shared recording of 4.0.0-preview.1 (last sent position, PIP-282) beside the repository.

Nothing diverges. What is uncertain names its race and stays within these shares of all decisions: 0.05 % where the
driver waited for silence, 0.3 % where it did not; in no class more than 0.5 % and 1.5 %.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.runner import Verification, verify

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings" / "4.0.0-preview.1"

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository")

OTHER_SUBSCRIPTIONS = ("failover", "exclusive")
SCENARIOS = sorted(
    folder.name
    for folder in (RECORDINGS.iterdir() if RECORDINGS.is_dir() else ())
    if not any(word in folder.name for word in OTHER_SUBSCRIPTIONS)
)
QUIET = [name for name in SCENARIOS if not name.endswith("racing")]
RACING = [name for name in SCENARIOS if name.endswith("racing")]


@cache
def verified(scenario: str) -> Verification:
    (source,) = find_recordings([str(RECORDINGS / scenario)])
    (log,) = read_recording(source).logs
    return verify(log)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_divergent_decision(scenario: str) -> None:
    result = verified(scenario)
    assert result.not_judged is None
    assert [f for f in result.tally.findings if f.status == "divergent"] == []
    assert result.tally.total("decisions") > 0
    assert all(f.racing_seq is not None for f in result.tally.findings)


@pytest.mark.parametrize(
    ("scenarios", "share", "share_of_class"),
    [(QUIET, 0.0005, 0.005), (RACING, 0.003, 0.015)],
    ids=["designed and quiet", "racing"],
)
def test_few_are_uncertain(scenarios: list[str], share: float, share_of_class: float) -> None:
    decisions: Counter[str] = Counter()
    uncertain: Counter[str] = Counter()
    for scenario in scenarios:
        for name, counts in verified(scenario).tally.counts.items():
            decisions[name] += counts["decisions"]
            uncertain[name] += counts["uncertain"]
    assert uncertain.total() <= share * decisions.total()
    assert all(uncertain[name] <= share_of_class * decisions[name] for name in decisions)
