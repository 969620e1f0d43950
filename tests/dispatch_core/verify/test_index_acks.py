"""Acknowledgements of indexes of one batch by two connections, at one moment, count the same messages twice.

In ``soak-24695-classic-shared-racing`` (tests/data/races) consumer 2 had asked for batch 387:17 again, and consumer 4 has it
now. Lines 608 and 609: both acknowledge the same message. The counter of consumer 4 falls twice for it, as line 642 shows.
Its pending ack has one message less, too (#25592). So the request of line 1709 lowers the counter by one less, to 0.

In ``4.0.0/soak-82459-ch-racing`` the ack of line 1027 has one of the two messages of 14:61, which the round of line 1023
sends again at 1033. The send is charged for three of four messages, as the lines from 1048 on show.

The positions of one command have their effect in order. In ``4.0.0/soak-86852-range-quiet`` line 1451 acknowledges
65:88, then one message of 65:86. Consumer 1 has 29 messages when the first one looks whether that unblocks it, which
takes 28; the second one does not look (Consumer.individualAckNormal, removePendingAcks). So it stays blocked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

TWICE: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-24695-classic-shared-racing"
)


def test_the_race_is_named() -> None:
    tally = t.verified(TWICE).tally
    assert tally.total("divergent") == 0
    assert (642, 609) in {(finding.seq, finding.racing_seq) for finding in tally.findings}
    assert max(finding.seq for finding in tally.findings) < 1500  # exact before and after the request


@pytest.mark.parametrize("unacked", [2, 3, 6])
def test_no_other_message_counts_twice(unacked: int, tmp_path: Path) -> None:
    trace = t.raw(TWICE)
    t.line_of(trace, 642)["usable"][1][3] = unacked
    assert 642 in {finding.seq for finding in t.divergent(TWICE, trace, tmp_path)}


@pytest.mark.parametrize(("column", "value"), [(1, 1), (2, -7)])
def test_the_rest_of_the_row_is_compared(column: int, value: int, tmp_path: Path) -> None:
    """Usable permits and permits of the consumer whose counter is explained."""
    trace = t.raw(TWICE)
    t.line_of(trace, 642)["usable"][1][column] = value
    assert 642 in {finding.seq for finding in t.divergent(TWICE, trace, tmp_path)}


def test_what_counted_once_does_not_count_again_later(tmp_path: Path) -> None:
    """Line 642 shows that it counts once, behind further commands of both connections."""
    trace = t.raw(TWICE)
    t.line_of(trace, 642)["usable"][1][3] = 5
    found = {finding.seq for finding in t.divergent(TWICE, trace, tmp_path)}
    assert 642 not in found
    assert 645 in found


def test_an_ack_that_has_reached_the_cursor_does_not_count_twice(tmp_path: Path) -> None:
    """Line 609 behind 616: the next command of consumer 2 shows that its ack of line 608 is done."""
    found = t.divergent(TWICE, t.moved(t.raw(TWICE), 609, 616), tmp_path)
    assert "usable [2, 1, 1, 6, 4, -8, -8, 5]" in {finding.expected for finding in found}


@pytest.mark.parametrize(("release", "left"), [("4.2.1", -1), ("4.2.2", 0)])
def test_since_25592_the_pending_ack_lacks_it_too(release: str, left: int, tmp_path: Path) -> None:
    trace = t.raw(TWICE)
    for header in (line for line in trace if "format" in line):
        header["broker_version"] = release
    t.line_of(trace, 1713)["usable"][1][3] = left
    assert 1713 not in {finding.seq for finding in t.divergent(TWICE, trace, tmp_path)}
    t.line_of(trace, 1713)["usable"][1][3] = -1 - left
    assert 1713 in {finding.seq for finding in t.divergent(TWICE, trace, tmp_path)}


LATER: Final = TWICE.parent / "soak-81993-ch-racing"
INDEX_ACK, SEND, LATER_ACK = 229, 244, 233


def test_a_round_may_come_before_an_ack_of_indexes_counts() -> None:
    """The limit is 60, and the consumer is sent 40 entries: 20 messages are unacknowledged, 19 after line 229."""
    tally = t.verified(LATER).tally
    assert tally.total("divergent") == 0
    found = [finding for finding in tally.findings if finding.seq == SEND]
    assert [(finding.status, finding.racing_seq) for finding in found] == [("uncertain", INDEX_ACK)]


def test_an_ack_of_indexes_counts_before_its_connection_goes_on(tmp_path: Path) -> None:
    trace = t.moved(t.raw(LATER), LATER_ACK, INDEX_ACK)
    assert SEND in {finding.seq for finding in t.divergent(LATER, trace, tmp_path)}


def test_one_message_is_not_two(tmp_path: Path) -> None:
    """One entry less than the counter allows without the ack."""
    trace = t.raw(LATER)
    del t.line_of(trace, SEND)["positions"][-1], t.line_of(trace, SEND)["batch_sizes"][-1]
    assert SEND in {finding.seq for finding in t.divergent(LATER, trace, tmp_path)}


CHARGED_LESS: Final = TWICE.parents[1] / "4.0.0" / "soak-82459-ch-racing"
WITHIN_ROUND, ROUND, RETURNED = 1027, 1023, 1048


def test_an_ack_within_a_round_may_lower_the_charge() -> None:
    tally = t.verified(CHARGED_LESS).tally
    assert [(found.seq, found.status, found.racing_seq) for found in tally.findings] == [
        (RETURNED, "uncertain", WITHIN_ROUND)
    ]


def test_or_may_come_behind_the_charge(tmp_path: Path) -> None:
    trace = t.raw(CHARGED_LESS)
    for line in trace:
        if line.get("seq", 0) >= RETURNED:
            if "permits_after" in line:
                line["permits_after"] -= 1
            if "total_permits" in line:
                line["total_permits"] -= 1
                line["usable"][0][2] -= 1
    assert t.verified(t.copy_with(CHARGED_LESS, trace, tmp_path)).tally.findings == []


@pytest.mark.parametrize("permits", [1, 2, -2])
def test_no_more_messages_are_left_out(permits: int, tmp_path: Path) -> None:
    trace = t.raw(CHARGED_LESS)
    t.line_of(trace, RETURNED)["permits_after"] = permits
    assert RETURNED in {found.seq for found in t.divergent(CHARGED_LESS, trace, tmp_path)}


def test_an_ack_before_the_round_is_left_out_for_certain(tmp_path: Path) -> None:
    trace = t.moved(t.raw(CHARGED_LESS), WITHIN_ROUND, ROUND - 2)
    assert not [
        found
        for found in t.verified(t.copy_with(CHARGED_LESS, trace, tmp_path)).tally.findings
        if found.seq > RETURNED - 2
    ]


#: Consumer 3 is blocked, and has room for two entries until the message that it acknowledges at 387 counts. The replay read
#: of line 390 asks for two.
BLOCKED: Final = TWICE.parents[1] / "4.0.0" / "soak-85937-ch-racing"
COUNTS_LATE, REPLAY = 387, 390


def test_a_decision_about_a_blocked_consumer_may_come_before_an_ack_of_indexes_counts() -> None:
    tally = t.verified(BLOCKED).tally
    assert tally.total("divergent") == 0
    reads = [finding for finding in tally.findings if finding.decision_class == "read"]
    assert [(finding.seq, finding.racing_seq) for finding in reads] == [(REPLAY, COUNTS_LATE)]


def test_acks_of_a_connection_count_before_its_next_line(tmp_path: Path) -> None:
    """Room for one entry would need the ack of line 386 to count late, too."""
    trace = t.raw(BLOCKED)
    t.line_of(trace, REPLAY)["positions"].pop()
    assert REPLAY in {finding.seq for finding in t.divergent(BLOCKED, trace, tmp_path)}


IN_ORDER: Final = TWICE.parents[1] / "4.0.0" / "soak-86852-range-quiet"
ACK, ATTEMPT_END = 1451, 1475


def test_an_ack_of_indexes_counts_behind_the_acks_in_front_of_it_in_its_command() -> None:
    tally = t.verified(IN_ORDER).tally
    assert tally.total("divergent") == 0
    assert not any(ACK <= finding.seq <= ATTEMPT_END for finding in tally.findings)


def test_in_front_of_another_ack_of_its_command_it_lowers_the_counter_that_unblocks(tmp_path: Path) -> None:
    trace = t.raw(IN_ORDER)
    ack = t.line_of(trace, ACK)
    for name in ("positions", "ack_sets"):
        ack[name].reverse()
    found = t.divergent(IN_ORDER, trace, tmp_path)
    assert ATTEMPT_END - 1 in {finding.seq for finding in found}


@pytest.mark.parametrize(
    ("unacked", "status"), [(26, "divergent"), (28, "uncertain"), (29, "uncertain"), (30, "divergent")]
)
def test_until_its_connection_goes_on_either_may_not_have_counted(
    unacked: int, status: str, tmp_path: Path
) -> None:
    """The line shows 27 messages."""
    trace = t.raw(IN_ORDER)
    t.line_of(trace, ATTEMPT_END)["usable"][0][3] = unacked
    found = t.found_at(IN_ORDER, trace, tmp_path, ATTEMPT_END)
    assert {finding.status for finding in found} == {status}
