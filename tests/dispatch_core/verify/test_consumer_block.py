"""A send blocks its consumer, or does not: that depends on whether an ack that overlaps it counts before or after.

``4.0.0/random-61024-range-quiet`` (tests/data/races): the limit is 78 messages, and consumer 4 has 28. The round of line
1337 sends it 50. The ack of line 1334, whose line of mark-delete comes behind the round, counts before the send in the plain
order, which leaves 77. The flow of line 1435 shows that the consumer is blocked: the ack came later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "random-61024-range-quiet"
)
ACK, SENT, MOVED, FLOW, COUNTED = 1334, 1338, 1341, 1435, 1436


def test_an_ack_that_counts_later_leaves_the_consumer_blocked() -> None:
    tally = t.verified(RECORDING).tally
    assert [(found.status, found.seq, found.racing_seq) for found in tally.findings] == [
        ("uncertain", FLOW, ACK)
    ]


def test_an_ack_that_counts_first_does_not(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    for seq in (FLOW, FLOW + 2):
        t.line_of(trace, seq)["blocked"] = False
    for seq, permits in ((COUNTED, 25), (COUNTED + 2, 50)):
        t.line_of(trace, seq).update(permits_after=permits, blocked_after=False)
    assert t.verified(t.copy_with(RECORDING, trace, tmp_path)).tally.findings == []


@pytest.mark.parametrize(("permits", "blocked"), [(25, True), (0, False)])
def test_a_blocked_consumer_parks_its_permits(permits: int, blocked: bool, tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, COUNTED).update(permits_after=permits, blocked_after=blocked)
    assert COUNTED in {found.seq for found in t.divergent(RECORDING, trace, tmp_path)}


def test_an_ack_whose_connection_has_gone_on_came_before_the_send(tmp_path: Path) -> None:
    """The next ack of the connection, line 1342, and the line of mark-delete are put in front of the round."""
    trace = t.raw(RECORDING)
    trace = t.moved(trace, MOVED, ACK + 1)
    trace = t.moved(trace, MOVED + 1, ACK + 2)
    assert FLOW in {found.seq for found in t.divergent(RECORDING, trace, tmp_path)}
