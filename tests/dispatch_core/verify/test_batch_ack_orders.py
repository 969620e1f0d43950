"""Acks of one batch that overlap a cumulative one reach the cursor in an order that the lines leave open.

In ``4.0.0/soak-80191-failover-racing`` (tests/data/races) consumer 1 acknowledges the first message of batch 13:0
cumulatively (line 146), and consumer 3 the others one by one (lines 152 and 154). In the order of the lines nothing is left.
Mark-delete (line 159) shows that something is: the cumulative one came last and has replaced the others.

In ``4.0.0/soak-81159-failover-ring-racing`` one message of batch 29:0 is acknowledged (line 52). The cumulative ack of the
whole batch (line 82) moves mark-delete, but the cursor keeps what it knows of the batch: the sends of lines 90 and 94, whose
reads were issued before, are charged one message less.

In ``4.0.0/soak-82096-failover-quiet`` the rest of batch 1:26 is acknowledged at lines 485 and 486, between the read result
of line 484 and its round, 487. The send is charged for all but the three indexes that were acknowledged before the result.

In ``4.2.4/soak-82707-failover-racing`` an index of batch 73:14 is acknowledged at line 94, and its connection goes on at
line 106. The send of line 104 is charged for the index. The redelivery request of line 95 came before the acknowledgement:
the executor of the dispatcher writes its line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatch_core.verify.trace.batch_ack_orders import BatchAck, BatchAckOrders
from dispatch_core.verify.trace.earlier_positions import HELD_UP_US
from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "soak-80191-failover-racing"
)
CUMULATIVE, MOVED, WHOLE_BATCH, MOVED_OVER_IT = 146, 159, 165, 166
ENTRY: Final = 4
KEPT: Final = RECORDING.with_name("soak-81159-failover-ring-racing")
IN_PART, PASSES, RETURNED, RETURNED_AGAIN = 52, 82, 91, 95


def test_mark_delete_says_that_the_cumulative_ack_came_last() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    assert [finding.seq for finding in tally.findings if finding.racing_seq == CUMULATIVE] == [MOVED]


def test_the_batch_stays_unacknowledged_until_it_is_acknowledged(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, WHOLE_BATCH)["positions"] = ["13:9"]
    assert MOVED_OVER_IT in {finding.seq for finding in t.divergent(RECORDING, trace, tmp_path)}


def test_an_ack_is_not_late_behind_the_next_command_of_its_connection(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    for seq in range(148, 152):  # consumer 3's, before it acknowledges messages of the batch
        t.line_of(trace, seq)["consumer"] = 1
    assert MOVED in {finding.seq for finding in t.divergent(RECORDING, trace, tmp_path)}


def of_batch(t_us: int = 110) -> BatchAckOrders:
    orders = BatchAckOrders()
    orders.arrived(BatchAck(10, 1, t_us=100, words=[0b110], cumulative=True), ENTRY, left=0b111)
    orders.arrived(BatchAck(11, 2, t_us=t_us, words=[0b001], cumulative=False), ENTRY, left=0b110)
    orders.over(2)
    return orders


def test_both_orders_are_open() -> None:
    assert of_batch().settle(ENTRY, 200, acknowledged=False) == (10, 0b110)  # it has replaced the other
    assert of_batch().settle(ENTRY, 200, acknowledged=True) == (10, 0)


def test_an_ack_that_overlaps_no_other_has_one_outcome() -> None:
    orders = BatchAckOrders()
    orders.arrived(BatchAck(10, 1, t_us=100, words=[0b110], cumulative=True), ENTRY, left=0b111)
    assert orders.settle(ENTRY, 200, acknowledged=False) is None


def test_time_settles_the_order() -> None:
    late = of_batch(t_us=101 + HELD_UP_US)
    assert late.settle(ENTRY, 102 + HELD_UP_US, acknowledged=False) is None


def test_an_entry_that_mark_delete_has_passed_is_settled() -> None:
    orders = of_batch()
    orders.forget_up_to(ENTRY)
    assert orders.settle(ENTRY, 200, acknowledged=False) is None


def test_dropping_entries_lowers_the_others() -> None:
    orders = of_batch()
    orders.drop(3)
    assert orders.settle(ENTRY - 3, 200, acknowledged=False) is not None
    orders.drop(2)
    assert orders.settle(ENTRY - 5, 200, acknowledged=False) is None


def test_a_send_behind_a_cumulative_ack_may_be_charged_less() -> None:
    tally = t.verified(KEPT).tally
    assert tally.total("divergent") == 0
    found = [finding.seq for finding in tally.findings if finding.racing_seq == PASSES]
    assert found == [RETURNED, RETURNED_AGAIN]


@pytest.mark.parametrize(("seq", "permits"), [(RETURNED, -79), (RETURNED, -82), (RETURNED_AGAIN, -205)])
def test_it_is_not_charged_anything_else(seq: int, permits: int, tmp_path: Path) -> None:
    trace = t.raw(KEPT)
    t.line_of(trace, seq)["permits_after"] = permits
    assert seq in {finding.seq for finding in t.divergent(KEPT, trace, tmp_path)}


def test_without_an_ack_of_an_index_it_is_not_charged_less(tmp_path: Path) -> None:
    trace = t.raw(KEPT)
    t.line_of(trace, IN_PART)["ack_sets"] = [[0b111]]
    assert RETURNED in {finding.seq for finding in t.divergent(KEPT, trace, tmp_path)}


def test_indexes_are_kept_of_the_last_entry_that_an_ack_passes(tmp_path: Path) -> None:
    """An ack of a part of the next batch passes this one, too; one of a later batch has it forgotten."""
    for words, position, kept in (([0b110], "29:1", True), (None, "29:1", False)):
        trace = t.raw(KEPT)
        ack = t.line_of(trace, PASSES)
        ack["positions"], ack["ack_sets"] = [position], None if words is None else [words]
        at = {finding.seq for finding in t.divergent(KEPT, trace, tmp_path / position / str(kept))}
        assert (RETURNED in at) != kept


def test_acks_on_their_way_may_come_before_or_after_a_send() -> None:
    orders = BatchAckOrders()
    orders.arrived(BatchAck(10, 1, t_us=100, words=[0b110], cumulative=False), ENTRY, left=0b111)
    orders.arrived(BatchAck(11, 2, t_us=110, words=[], cumulative=False), ENTRY, left=0b110)
    assert orders.left_in_send(ENTRY) == {0b111: 11, 0b110: 11}
    orders.over(1)
    assert orders.left_in_send(ENTRY) == {0b110: 11}
    orders.over(2)
    assert orders.left_in_send(ENTRY) == {}


BEHIND_READ: Final = RECORDING.with_name("soak-82096-failover-quiet")
RESULT, FIRST_ACK, BEGUN, CHARGED = 484, 485, 487, 490


def test_an_ack_behind_the_read_result_may_not_count() -> None:
    tally = t.verified(BEHIND_READ).tally
    assert tally.total("divergent") == 0
    found = [finding for finding in tally.findings if finding.seq == CHARGED]
    assert [(finding.status, finding.racing_seq) for finding in found] == [("uncertain", FIRST_ACK)]


@pytest.mark.parametrize(
    ("permits", "possible"), [(-26, True), (-25, False), (-24, True), (-22, True), (-21, False), (-19, False)]
)
def test_indexes_count_as_of_one_of_the_acks(permits: int, possible: bool, tmp_path: Path) -> None:
    """Three indexes before the first ack, four behind it, none behind the last one: the batch is acknowledged.

    The last ack before the result may be held up: then there are two.
    """
    trace = t.raw(BEHIND_READ)
    t.line_of(trace, CHARGED)["permits_after"] = permits
    found = {finding.seq for finding in t.divergent(BEHIND_READ, trace, tmp_path)}
    assert (CHARGED not in found) == possible


def test_acks_in_front_of_the_read_result_count(tmp_path: Path) -> None:
    """The result right in front of the round."""
    trace = t.moved(t.raw(BEHIND_READ), RESULT, BEGUN - 1)
    assert CHARGED in {finding.seq for finding in t.divergent(BEHIND_READ, trace, tmp_path)}


HELD_UP: Final = RECORDING.parents[1] / "4.2.4" / "soak-82707-failover-racing"
HELD_UP_ACK, HELD_UP_RETURNED, GOES_ON = 94, 105, 106


def test_an_ack_that_is_held_up_may_not_lower_the_charge() -> None:
    found = [
        (finding.seq, finding.status, finding.racing_seq) for finding in t.verified(HELD_UP).tally.findings
    ]
    assert found == [(HELD_UP_RETURNED, "uncertain", HELD_UP_ACK)]


def test_an_ack_in_its_place_lowers_the_charge(tmp_path: Path) -> None:
    trace = t.raw(HELD_UP)
    for line in trace:
        if line.get("seq", 0) >= HELD_UP_RETURNED:
            for name in ("permits_before", "permits_after", "max_entries"):
                if name in line:
                    line[name] += 1
    assert t.verified(t.copy_with(HELD_UP, trace, tmp_path)).tally.findings == []


@pytest.mark.parametrize("permits", [7, 10])
def test_an_ack_that_is_held_up_explains_no_other_charge(permits: int, tmp_path: Path) -> None:
    trace = t.raw(HELD_UP)
    t.line_of(trace, HELD_UP_RETURNED)["permits_after"] = permits
    assert HELD_UP_RETURNED in {finding.seq for finding in t.divergent(HELD_UP, trace, tmp_path)}


def test_it_is_not_held_up_when_its_connection_has_gone_on(tmp_path: Path) -> None:
    trace = t.moved(t.raw(HELD_UP), GOES_ON, HELD_UP_ACK + 1)
    assert t.divergent(HELD_UP, trace, tmp_path)
