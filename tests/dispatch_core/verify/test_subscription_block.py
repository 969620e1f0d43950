"""The block of a subscription on unacked messages: an ack clears it before a send, or would not behind it.

In ``4.2.4/soak-81027-ch-racing`` (tests/data/races) 36 messages are unacknowledged when a round begins at line 1153, and
below 36 the block ends. The ack of line 1154 overlaps the send of line 1157. The attempt of line 1160 reads, so the block
has ended.

In ``4.0.0/soak-82049-third-classic-shared-racing`` the limit is 74. The sends of a round reach it unless the ack of
line 501 comes first. It has not reached the counter for sure when the attempt of line 518 reads, so there is no block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatch_core.verify.trace.subscription_block import Unacked
from tests.dispatch_core.verify import tampering as t

RECORDING: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-81027-ch-racing"
ACK, RETURN, READ = 1154, 1158, 1163


def test_an_ack_that_overlaps_a_send_may_have_ended_the_block() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    (found,) = [finding for finding in tally.findings if finding.seq == READ]
    assert (found.status, found.racing_seq) == ("uncertain", ACK)
    assert found.reason is not None
    assert "before or after a send" in found.reason


def test_an_ack_behind_the_send_has_not(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    for _ in ("ack", "pending_ack_removed", "draining_release"):
        trace = t.moved(trace, ACK, RETURN)
    assert READ in {finding.seq for finding in t.divergent(RECORDING, trace, tmp_path)}


def test_a_limit_that_is_farther_away_does_not_end(tmp_path: Path) -> None:
    """Of 70 messages the block would end below 35, which no order reaches."""
    trace = t.raw(RECORDING)
    trace[0]["config"]["maxUnackedMessagesPerSubscription"] = 70
    assert READ in {finding.seq for finding in t.divergent(RECORDING, trace, tmp_path)}


@pytest.mark.parametrize(
    ("messages", "blocked", "sent", "acked", "unblocked_after", "blocked_after"),
    [
        (9, False, 1, 0, False, True),  # reaches the limit
        (9, False, 1, 1, True, True),  # or not, if an ack comes first
        (9, False, 0, 1, True, False),
        (5, True, 1, 0, False, True),
        (5, True, 1, 1, True, True),
        (5, True, 9, 1, False, True),  # cleared, and set again
        (5, True, 0, 1, True, False),  # cleared in any order
    ],
)
def test_both_orders(
    messages: int, blocked: bool, sent: int, acked: int, unblocked_after: bool, blocked_after: bool
) -> None:
    unacked = Unacked(limit=10, messages=messages, blocked=blocked)
    assert unacked.may_be_unblocked(sent, acked) == unblocked_after
    assert unacked.may_be_blocked(sent, acked) == blocked_after


def test_without_a_limit_no_block_is_kept() -> None:
    assert not Unacked(limit=0, messages=5, blocked=False).keeps_block()


REACHED: Final = RECORDING.parents[1] / "4.0.0" / "soak-82049-third-classic-shared-racing"
EARLY_ACK, LAST_SEND, READ_BELOW = 501, 516, 519


def test_sends_may_not_reach_the_limit() -> None:
    tally = t.verified(REACHED).tally
    found = [(finding.seq, finding.status, finding.racing_seq) for finding in tally.findings]
    assert found == [(READ_BELOW, "uncertain", EARLY_ACK)]


def test_sends_reach_the_limit_before_a_later_ack(tmp_path: Path) -> None:
    trace = t.raw(REACHED)
    for seq in (EARLY_ACK, EARLY_ACK + 2):  # the ack, then the removal of its pending ack
        trace = t.moved(trace, seq, LAST_SEND)
    assert READ_BELOW in {finding.seq for finding in t.divergent(REACHED, trace, tmp_path)}
