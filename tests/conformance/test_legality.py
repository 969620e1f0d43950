"""The recordings of real brokers have no impossible lines, and their headers are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.recording.log_profile import profile_of, rebuilt_at
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.inputs import Entries
from dispatch_core.verify.trace.legality import IllegalLines
from tests.sample import some

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]


@pytest.mark.parametrize("release", ["4.0.0-preview.1", "4.0.0", "4.2.4"])
def test_every_line_can_have_happened_and_every_header_gives_a_profile(release: str) -> None:
    sources = find_recordings([str(RECORDINGS / release)])
    assert len(sources) > 80
    for source in some(sources, 6):
        recording = read_recording(source)
        assert recording.quarantine.num_rows == 0, source.name
        for log in recording.logs:
            profile = profile_of(log)
            assert (profile.broker_version, profile.warnings) == (release, ()), source.name
            assert rebuilt_at(log, profile) is None, source.name
            lines = IllegalLines(log, Entries(log.messages))
            found = [*lines.take(log.events), *lines.finish()]
            assert [str(finding.error) for finding in found] == [], source.name
