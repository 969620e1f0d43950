"""A thread may be held up between the removal of a pending ack and the release of its hash.

In ``4.2.4/soak-81929-ch-racing`` (tests/data/races) the pending ack of line 2263 is the last one that keeps hash 23544
draining. The round of line 2266 still finds the hash blocked, line 2267: the release is line 2272.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-81929-ch-racing"
REMOVAL, BLOCKED, RELEASE = 2263, 2267, 2272


def test_the_hash_drains_until_it_is_released() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    assert not [finding for finding in tally.findings if REMOVAL <= finding.seq <= RELEASE]


@pytest.mark.parametrize("behind", [REMOVAL, BLOCKED - 2])
def test_a_hash_that_is_released_blocks_nothing(tmp_path: Path, behind: int) -> None:
    """The release right behind the removal, or in front of the round."""
    trace = t.moved(t.raw(RECORDING), RELEASE, behind)
    found = t.divergent(RECORDING, trace, tmp_path)
    assert {finding.decision_class for finding in found} >= {"draining", "dispatch"}


def test_a_release_that_ends_no_draining_explains_nothing(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, RELEASE)["ref_count_before"] = 2
    assert t.divergent(RECORDING, trace, tmp_path)


def test_a_connection_that_has_gone_on_has_released_the_hash(tmp_path: Path) -> None:
    """The next acknowledgement of the connection, line 2273, moved in front of the round."""
    trace = t.moved(t.raw(RECORDING), RELEASE + 1, REMOVAL)
    assert t.divergent(RECORDING, trace, tmp_path)
