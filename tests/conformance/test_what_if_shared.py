"""Under the recorded rules the simulation of Shared subscriptions repeats recordings of real brokers."""

from __future__ import annotations

import pytest

from dispatch_core.recording.log_profile import profile_of
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.what_if.compare import case_of, outcome
from tests.conformance.what_if_identity import ROOT
from tests.sample import some

RECORDINGS = sorted((ROOT.parent / "shared" / "operations").glob("*/shared-*"))

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS, reason="no recordings beside the repository"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "least"), [("quiet", 0.98), ("racing", 0.93)])
def test_of_all_positions_few_go_to_another_consumer(kind: str, least: float) -> None:
    entries, same = 0, 0.0
    for folder in some([folder for folder in RECORDINGS if folder.name.endswith(kind)], 8):
        (source,) = find_recordings([str(folder)])
        for log in read_recording(source).logs:
            case = case_of(log)
            found = outcome(case, profile_of(log), seed=0)
            entries += case.recorded.entries
            same += case.recorded.entries * (found.same_first_consumer or 0.0)
    assert entries > 500
    assert same >= least * entries
