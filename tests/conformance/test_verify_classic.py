"""All classic recordings beside the repository, but for the large ones: nothing divergent, little open."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.runner import verify
from dispatch_core.verify.tally import Tally

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository")

#: Of all decisions; a round that reads on by itself depends on writes, which no line shows.
MOST_UNCERTAIN = 0.0015


def tallies(pattern: str) -> dict[str, Tally]:
    found = {}
    for folder in sorted(RECORDINGS.glob(pattern)):
        for source in find_recordings([str(folder)]):
            for log in read_recording(source).logs:
                found[log.recording] = verify(log).tally
    return found


@pytest.mark.parametrize("version", ["4.0.0", "4.2.4"])
@pytest.mark.parametrize("kind", ["designed-*classic*", "random-*classic*"])
def test_nothing_diverges(version: str, kind: str) -> None:
    found = tallies(f"{version}/{kind}")
    assert found
    assert {name: tally.first_divergence for name, tally in found.items() if tally.total("divergent")} == {}
    decisions = sum(tally.total("decisions") for tally in found.values())
    uncertain = sum(tally.total("uncertain") for tally in found.values())
    assert uncertain <= MOST_UNCERTAIN * decisions
