"""A round sends entries that are pending on their consumer, while that consumer acknowledges them.

``4.0.0/ops-40001-reset-forward-ch`` (tests/data/races): two replay reads have the same entries, as this release forgets a
replay read that is in flight. The round of line 816 sends what consumer 4 has already. It acknowledges these entries between
lines 819 and 837, before the send of line 844, which makes them pending anew. The attempt of line 860 trims two of them.

``4.0.0/soak-81226-ch-quiet``: the ack of 9:148 removes its pending ack at line 1136, between the lines of a second send to
its consumer (1135) and of its return (1138). At line 1173 it removes another one, so the second send came behind the first
removal.

``4.2.4/soak-85127-third-range-racing``: the topic was loaded anew. Connection 1 acknowledges what it was sent before,
of which nothing is pending now: 41:60 right before the round of lines 85 to 97, and 41:61 to 41:63 within it. The round
keeps 41:60 for later, so the ack has not reached the cursor then. No line removes a pending ack of 41:61 or 41:63
before the next ack, so these come before the send of line 95, behind which both stay pending on consumer 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "ops-40001-reset-forward-ch"
)
ROUND, SENT, TRIM, END = 816, 844, (861, 862), 865


def found(trace: t.Trace, where: Path) -> set[int]:
    return {finding.seq for finding in t.divergent(RECORDING, trace, where)}


def test_a_removal_before_the_send_is_of_the_earlier_pending_ack() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    assert not [finding for finding in tally.findings if finding.seq > ROUND]


def test_a_removal_behind_the_send_leaves_nothing_to_trim(tmp_path: Path) -> None:
    """Entries 3:113 to 3:128 are acknowledged behind the send: only 3:112 is pending when the attempt trims."""
    assert TRIM[1] in found(t.moved(t.raw(RECORDING), SENT, ROUND), tmp_path)


@pytest.mark.parametrize("seq", TRIM)
def test_a_release_of_the_trim_is_not_missing(seq: int, tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    trace.remove(t.line_of(trace, seq))
    assert found(trace, tmp_path)


@pytest.mark.parametrize("unacked", [13, 16, 22])
def test_what_is_pending_anew_is_counted(unacked: int, tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, END)["usable"][0][3] = unacked
    assert END in found(trace, tmp_path)


def test_an_entry_that_the_round_sends_first_is_not_acknowledged_before(tmp_path: Path) -> None:
    """3:121 is pending on nobody when its removal is logged."""
    trace = t.raw(RECORDING)
    for seq in (819, 820):
        t.line_of(trace, seq)["positions"] = ["3:121"]
    assert 820 in found(trace, tmp_path)


def test_the_removal_is_in_the_order_of_its_connection(tmp_path: Path) -> None:
    """An ack of the connection whose removal is logged behind a later one of it."""
    assert found(t.moved(t.raw(RECORDING), 820, 824), tmp_path)


WITHIN: Final = RECORDING.with_name("soak-81226-ch-quiet")
WITHIN_SEND, AGAIN, RELEASED_AGAIN, SHOWN = 1136, 1173, 1174, 1182


def test_a_removal_within_a_send_is_of_the_earlier_pending_ack_if_there_is_another_one() -> None:
    tally = t.verified(WITHIN).tally
    assert tally.total("divergent") == 0
    assert not [finding for finding in tally.findings if finding.seq >= WITHIN_SEND]


def test_else_it_is_of_the_later_one(tmp_path: Path) -> None:
    """Without the second removal nothing of 9:148 is pending behind the send: the counter falls once."""
    trace = t.raw(WITHIN)
    for seq in (AGAIN, RELEASED_AGAIN):
        trace.remove(t.line_of(trace, seq))
    t.line_of(trace, SHOWN)["usable"][3][3] += 1
    for number, line in enumerate((line for line in trace if "seq" in line), 1):
        line["seq"] = number
    assert t.divergent(WITHIN, trace, tmp_path) == []


def test_a_removal_behind_a_send_is_of_what_it_sent(tmp_path: Path) -> None:
    trace = t.raw(WITHIN)
    for _ in ("pending_ack_removed", "draining_release"):
        trace = t.moved(trace, WITHIN_SEND, WITHIN_SEND + 2)
    assert AGAIN in {finding.seq for finding in t.divergent(WITHIN, trace, tmp_path)}


ELSEWHERE: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-85127-third-range-racing"
)


def test_acks_of_an_earlier_delivery_come_before_the_send() -> None:
    """Neither the acks within the round, nor that of 41:60 before it, which reaches the cursor within it."""
    tally = t.verified(ELSEWHERE).tally
    assert tally.total("divergent") == 0
    assert {finding.seq for finding in tally.findings} == {85, 97}


@pytest.mark.parametrize("seq", [105, 108, 115])
@pytest.mark.parametrize("difference", [-1, 1])
def test_all_that_is_sent_stays_pending(seq: int, difference: int, tmp_path: Path) -> None:
    trace = t.raw(ELSEWHERE)
    t.line_of(trace, seq)["usable"][0][3] += difference
    assert seq in {finding.seq for finding in t.divergent(ELSEWHERE, trace, tmp_path)}


@pytest.mark.parametrize("in_replay", [1, 3])
def test_an_ack_before_a_round_may_reach_the_cursor_within_it(in_replay: int, tmp_path: Path) -> None:
    """41:60 and 41:62 are kept for later; 41:57 and 41:58 are acknowledged before the round."""
    trace = t.raw(ELSEWHERE)
    assert t.line_of(trace, 97)["in_replay"] == 2
    t.line_of(trace, 97)["in_replay"] = in_replay
    assert t.divergent(ELSEWHERE, trace, tmp_path)


def test_an_ack_whose_pending_ack_goes_comes_behind_the_send(tmp_path: Path) -> None:
    trace = t.raw(ELSEWHERE)
    ack = trace.index(t.line_of(trace, 87))
    removal = trace[ack] | {
        "kind": "pending_ack_removed",
        "consumer": 2,
        "positions": ["41:61"],
        "hash": 18100,
    }
    trace.insert(ack + 1, removal)
    for seq, line in enumerate(trace[2:], 1):
        line["seq"] = seq
    assert 88 in {finding.seq for finding in t.divergent(ELSEWHERE, trace, tmp_path)}
