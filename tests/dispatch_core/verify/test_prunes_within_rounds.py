"""A turn of a round frees recently joined consumers, as acknowledgements move mark-delete within the round.

``4.0.0/large-40002-classic-ch`` (tests/data/races), recorded without lines of read attempts: consumer 9 joins at line 4558
with the read position 11:2001. Consumers 4 and 7 acknowledge all before it between lines 4583 and 4661, within the round of
line 4563. At 4663 the turn of consumer 9 frees it, and sends to it.

In ``4.2.4/soak-82645-classic-range-racing`` the turn of consumer 1 comes first in the round of line 211. Two of its eight
messages are unacknowledged more when that turn begins (line 212) than in front of its send (219): it is sent six. The
acknowledgements in between (213 and 216) move mark-delete, so that the turn of consumer 2 frees it (222).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "large-40002-classic-ch"
JOIN, PRUNE, SENT = 4558, 4663, 4664


def found(trace: t.Trace, where: Path) -> set[int]:
    return {finding.seq for finding in t.divergent(RECORDING, trace, where)}


def test_acks_that_a_prune_within_a_round_shows_come_before_it() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    assert not [finding for finding in tally.findings if finding.seq > JOIN]


def test_a_round_without_a_prune_frees_nobody(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    trace.remove(t.line_of(trace, PRUNE))
    assert found(trace, tmp_path)


@pytest.mark.parametrize("behind", [SENT, 4669])
def test_a_prune_behind_the_send_or_the_round_frees_nobody_before(behind: int, tmp_path: Path) -> None:
    assert found(t.moved(t.raw(RECORDING), PRUNE, behind), tmp_path)


@pytest.mark.parametrize("mark_delete", ["11:1999", "11:1902", "11:2002"])
def test_a_prune_shows_where_mark_delete_is(mark_delete: str, tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, PRUNE)["mark_delete"] = mark_delete
    assert found(trace, tmp_path)


def test_mark_delete_does_not_pass_an_entry_that_is_pending(tmp_path: Path) -> None:
    """Entry 11:1904 is acknowledged behind the round."""
    trace = t.raw(RECORDING)
    for seq in (4583, 4583):
        t.moved(trace, seq, 4669)
    assert found(trace, tmp_path)


def test_a_consumer_that_is_freed_gets_its_entries(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    trace.remove(t.line_of(trace, SENT))
    assert found(trace, tmp_path)


BETWEEN: Final = RECORDING.parents[1] / "4.2.4" / "soak-82645-classic-range-racing"
ROUND, FIRST_ACK, FIRST_SENT, SECOND_PRUNE, SECOND_SENT = 211, 213, 219, 222, 223


def test_acks_between_two_turns_count_for_the_second_alone() -> None:
    assert not t.verified(BETWEEN).tally.findings


def test_the_first_turn_leaves_room_for_what_is_unacknowledged(tmp_path: Path) -> None:
    trace = t.raw(BETWEEN)
    sent = t.line_of(trace, FIRST_SENT)
    sent["positions"].append("282:56")
    sent["batch_sizes"].append(1)
    assert FIRST_SENT in {finding.seq for finding in t.divergent(BETWEEN, trace, tmp_path)}


def test_without_its_prune_the_second_turn_sends_nothing(tmp_path: Path) -> None:
    trace = t.raw(BETWEEN)
    trace.remove(t.line_of(trace, SECOND_PRUNE))
    assert SECOND_SENT in {finding.seq for finding in t.divergent(BETWEEN, trace, tmp_path)}


def test_acks_behind_the_round_do_not_free_a_consumer_within_it(tmp_path: Path) -> None:
    trace = t.raw(BETWEEN)
    for _line in range(6):
        t.moved(trace, FIRST_ACK, SECOND_SENT + 2)
    assert t.divergent(BETWEEN, trace, tmp_path)
