"""The trim that follows a move of the cursor may come some time behind the move (#25581, #25592).

The broker sets mark-delete, then the read position, then it lets go of the pending acks of one consumer after the other. A
consumer's counter of unacknowledged messages falls when all its pending acks are gone.

In ``4.2.4/soak-81807-ch-racing`` (tests/data/races) the backlog is cleared at line 341. The round of line 342 begins between
mark-delete and read position. The trim comes behind the attempt of line 347: its releases, lines 349 to 387, are also those
of what the round has sent.

In ``4.2.4/soak-81836-ch-quiet`` messages expire at line 541. The attempt of lines 553 and 554 comes between the releases of
consumer 1 and those of consumers 2 and 4: no counter has fallen.

In ``4.2.4/soak-82544-ch-quiet`` messages expire at line 127. The releases of lines 129 to 151 are those of the trim. The
consumer asks for redelivery of other entries later, at line 237.

In ``4.2.4/soak-82859-sticky-racing`` a skip moves mark-delete at line 572, over entries of a read in flight. Two of them are
sent at line 575. No hash drains for consumers with ranges of their own, so the trim has no lines. It came behind the send:
line 590 shows that it has taken both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatch_core.verify.trace.earlier_positions import HELD_UP_US
from tests.dispatch_core.verify import tampering as t

RACES: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4"
CLEARED: Final = RACES / "soak-81807-ch-racing"
MOVE, ROUND, RELEASES = 341, 342, range(349, 388)
EXPIRED: Final = RACES / "soak-81836-ch-quiet"
EXPIRY, ATTEMPT_END = 541, 554


def test_a_round_comes_between_mark_delete_and_read_position() -> None:
    tally = t.verified(CLEARED).tally
    found = [(finding.seq, finding.status, finding.racing_seq) for finding in tally.findings]
    assert found == [(ROUND, "uncertain", MOVE)]


def test_a_round_shows_no_other_read_position(tmp_path: Path) -> None:
    trace = t.raw(CLEARED)
    t.line_of(trace, ROUND)["read_position"] = "32:45"
    assert [finding.seq for finding in t.verified(t.copy_with(CLEARED, trace, tmp_path)).tally.findings] == [
        ROUND
    ]
    assert t.verified(t.copy_with(CLEARED, trace, tmp_path)).tally.total("divergent") == 1


def test_the_trim_lets_go_of_what_the_round_sent(tmp_path: Path) -> None:
    trace = t.raw(CLEARED)
    t.line_of(trace, RELEASES[-1])["hash"] += 1
    found = t.divergent(CLEARED, trace, tmp_path)
    assert {finding.decision_class for finding in found} == {"draining"}


def test_counters_fall_behind_the_releases() -> None:
    tally = t.verified(EXPIRED).tally
    found = [(finding.seq, finding.status, finding.racing_seq) for finding in tally.findings]
    assert found == [(ATTEMPT_END, "uncertain", EXPIRY)]


def test_counters_have_no_other_values(tmp_path: Path) -> None:
    """They are those from before the trim, or those behind it."""
    trace = t.raw(EXPIRED)
    t.line_of(trace, ATTEMPT_END)["usable"][0][3] -= 1
    result = t.verified(t.copy_with(EXPIRED, trace, tmp_path))
    assert [(finding.seq, finding.status) for finding in result.tally.findings] == [
        (ATTEMPT_END, "divergent")
    ]


REQUESTED_LATER: Final = RACES / "soak-82544-ch-quiet"
RELEASE, HASH_OF_REQUESTED = 129, 56902


def test_a_later_request_does_not_release_what_the_trim_releases(tmp_path: Path) -> None:
    assert t.verified(REQUESTED_LATER).tally.findings == []
    trace = t.raw(REQUESTED_LATER)
    t.line_of(trace, RELEASE)["hash"] = HASH_OF_REQUESTED
    assert [finding.seq for finding in t.divergent(REQUESTED_LATER, trace, tmp_path)] == [RELEASE]


SKIPPED: Final = RACES / "soak-82859-sticky-racing"
SKIP, PASSED_SENT, COUNTER = 571, 575, 590


def test_a_counter_shows_that_a_trim_has_taken_what_was_sent_behind_the_move() -> None:
    found = [finding for finding in t.verified(SKIPPED).tally.findings if finding.seq > PASSED_SENT]
    assert [(finding.seq, finding.status, finding.racing_seq) for finding in found] == [
        (COUNTER, "uncertain", SKIP)
    ]


def test_without_the_trim_the_counter_stays(tmp_path: Path) -> None:
    trace = t.raw(SKIPPED)
    for line in trace:
        if line.get("kind") == "read_attempt_end" and line["seq"] >= COUNTER:
            line["usable"][0][3] += 2
    found = t.verified(t.copy_with(SKIPPED, trace, tmp_path)).tally.findings
    assert not [finding for finding in found if finding.seq > PASSED_SENT]


@pytest.mark.parametrize("unacked", [3, 5, 7])
def test_the_trim_takes_both_or_none(unacked: int, tmp_path: Path) -> None:
    trace = t.raw(SKIPPED)
    t.line_of(trace, COUNTER)["usable"][0][3] = unacked
    assert COUNTER in {finding.seq for finding in t.divergent(SKIPPED, trace, tmp_path)}


def test_long_after_the_move_its_trim_is_over(tmp_path: Path) -> None:
    trace = t.raw(SKIPPED)
    for line in trace:
        if line.get("seq", 0) > PASSED_SENT:
            line["t_us"] += 2 * HELD_UP_US
    assert COUNTER in {finding.seq for finding in t.divergent(SKIPPED, trace, tmp_path)}
