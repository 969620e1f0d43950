"""A thread may be held up between the removal of a pending ack and the release of its hash.

In ``4.2.4/soak-81929-ch-racing`` (tests/data/races) the pending ack of line 2263 is the last one that keeps hash 23544
draining. The round of line 2266 still finds the hash blocked, line 2267: the release is line 2272.

In ``4.2.4/soak-82177-ch-racing`` a request for everything takes 72 entries at once, and releases their hashes one after the
other: 24 at the lines 768 to 791, the others from 803 on. In between the read attempt of line 794 finds hashes still
draining, the lines 795 to 801. The request's own line is 861.
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


EVERYTHING: Final = RECORDING.with_name("soak-82177-ch-racing")
FIRST_RELEASES_END, BLOCKED_45721, RELEASE_45721, REQUEST = 791, 796, 827, 861


def test_a_request_for_everything_may_be_held_up_between_two_releases() -> None:
    tally = t.verified(EVERYTHING).tally
    assert [(found.status, found.racing_seq) for found in tally.findings] == [("uncertain", REQUEST)]


def test_a_hash_that_such_a_request_has_released_blocks_nothing(tmp_path: Path) -> None:
    trace = t.raw(EVERYTHING)
    assert t.line_of(trace, BLOCKED_45721)["hash"] == t.line_of(trace, RELEASE_45721)["hash"] == 45721
    trace = t.moved(trace, RELEASE_45721, FIRST_RELEASES_END)
    assert BLOCKED_45721 + 1 in {found.seq for found in t.divergent(EVERYTHING, trace, tmp_path)}


@pytest.mark.parametrize("seq", [FIRST_RELEASES_END, RELEASE_45721])
def test_each_entry_that_such_a_request_has_taken_has_a_release(seq: int, tmp_path: Path) -> None:
    trace = t.raw(EVERYTHING)
    dropped = t.line_of(trace, seq)
    trace.remove(dropped)
    for line in trace:
        if line.get("seq", 0) > seq:
            line["seq"] -= 1
    found = t.divergent(EVERYTHING, trace, tmp_path)
    assert f"release of hash {dropped['hash']}" in "".join(found.expected for found in found)
