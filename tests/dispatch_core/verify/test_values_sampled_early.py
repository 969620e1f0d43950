"""A line shows a value of a moment at which another thread had begun, but not ended, a step that the core makes at once.

``4.2.4/soak-1087-classic-ch-racing`` (tests/data/races): consumer 1 asks for its 31 pending entries at line 428. The read
attempt that ends at line 427 shows its counter of unacknowledged messages as lowered already: the consumer lowers it before
the dispatcher gets the request.

``4.2.4/soak-1030-sticky-quiet``: a normal read, whose end is line 6349, takes the entries 78, 80 and 81 of the ledger in
parts. Line 6341 shows the read position behind the first part, line 6342 behind the last.

``4.0.0/random-22001-failover-modulo-racing``: connection 5 acknowledges up to an entry at line 291. The thread reads the
positions then, and writes them in line 301, behind the rewind of line 293.

``4.0.0/ops-24106-reset-back-failover``: line 88 is the answer of the web service to a request for the positions after the
reset of line 71. It shows those of before the read that line 83 ends.

``4.0.0/random-22134-range-quiet``: the ack of line 5459 unblocks consumer 1 (line 5462) before it lowers the counter of
unacknowledged messages, as this release does. The read attempt of lines 5463 to 5466 comes in between.

``4.0.0/random-22151-classic-ch-racing``: the dispatcher reads mark-delete, then writes line 1463; the ack of line 1458 moves
it in between.

``4.2.4/ops-50017-reset-back-classic-ch``: the reset of line 531 to 35:10 takes effect behind the end of the read that was in
flight, line 532, which moves the read position to 35:62.

``4.2.4/soak-5111-ch-racing``: the connection of consumer 2 breaks before line 79, so it has no usable permits. It is removed
at line 84.

``4.0.0/soak-80453-ch-racing``: the usable permits of line 715 are of the beginning of a read attempt. Consumer 1
acknowledges 12 messages from line 722 on, within the attempt. Line 756, of its end, shows that these are acknowledged.

``4.0.0/soak-80620-classic-ch-quiet``: the ack of line 603 removes its pending ack at line 604, and unblocks consumer 6. The
thread of its connection comes so far behind the read attempt of lines 606 to 608, which finds the consumer blocked; line 610
shows that it is not any more.

``4.2.4/soak-81240-failover-quiet``: the dispatcher reads the read position, then mark-delete, and writes both in line 296.
The ack of line 294 moves both in between.

``4.0.0/soak-83486-sticky-quiet``: line 1304 shows the permits of consumer 2 after the flow of line 1295. The thread of its
connection reads them before the send of line 1296 is charged, and writes the line within the next round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatch_core.verify.tally import SHOWN_CLASSES
from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.shared_trace import SharedTrace, normal_read, places, verified

RACES: Final = Path(__file__).resolve().parents[2] / "data" / "races"
REQUESTED = RACES / "4.2.4" / "soak-1087-classic-ch-racing"
READ_IN_PARTS = RACES / "4.2.4" / "soak-1030-sticky-quiet"
REWOUND = RACES / "4.0.0" / "random-22001-failover-modulo-racing"
ANSWERED = RACES / "4.0.0" / "ops-24106-reset-back-failover"
UNBLOCKED = RACES / "4.0.0" / "random-22134-range-quiet"
RESET = RACES / "4.2.4" / "ops-50017-reset-back-classic-ch"
BROKEN = RACES / "4.2.4" / "soak-5111-ch-racing"
ACKED = RACES / "4.0.0" / "soak-80453-ch-racing"
UNBLOCKS_LATER = RACES / "4.0.0" / "soak-80620-classic-ch-quiet"
BETWEEN = RACES / "4.2.4" / "soak-81240-failover-quiet"
COUNTED = RACES / "4.0.0" / "soak-83486-sticky-quiet"
READ: Final = ("read",)
PRUNED = RACES / "4.0.0" / "random-22151-classic-ch-racing"


def findings_of(
    recording: Path, trace: t.Trace, where: Path, classes: tuple[str, ...] = SHOWN_CLASSES
) -> list[tuple[str, int | None, int]]:
    """Verify a changed copy; return status, racing line and line of each difference in some classes."""
    found = t.verified(t.copy_with(recording, trace, where)).tally.findings
    return [(f.status, f.racing_seq, f.seq) for f in found if f.decision_class in classes]


def test_a_request_lowers_the_counter_before_its_line(tmp_path: Path) -> None:
    assert findings_of(REQUESTED, t.raw(REQUESTED), tmp_path) == [("uncertain", 428, 427)]


def test_a_request_lowers_it_by_all_that_it_asks_for(tmp_path: Path) -> None:
    trace = t.raw(REQUESTED)
    assert t.line_of(trace, 427)["usable"] == [[1, 36, 36, 0], [2, 138, 138, 49]]
    t.line_of(trace, 427)["usable"] = [[1, 36, 36, 1], [2, 138, 138, 49]]
    assert ("divergent", None, 427) in findings_of(REQUESTED, trace, tmp_path)


def test_a_request_lowers_it_after_the_command_before(tmp_path: Path) -> None:
    """Between the value and the request the connection grants permits: so the request came later."""
    trace = t.raw(REQUESTED)
    at = trace.index(t.line_of(trace, 427))
    later = [line for line in trace[at + 1 :] if "seq" in line]
    for line in later:
        line["seq"] += 2
    flow, counted = t.line_of(trace, 422) | {"permits": 0}, t.line_of(trace, 423) | {"permits_after": 36}
    trace[at + 1 : at + 1] = [flow | {"seq": 428}, counted | {"seq": 429}]
    assert ("divergent", None, 427) in findings_of(REQUESTED, trace, tmp_path)


@pytest.mark.parametrize(
    ("shown", "status"), [(3, None), (0, "uncertain"), (4, "divergent"), (-1, "divergent")]
)
def test_a_request_lowers_it_by_all_its_removals_when_the_first_one_has_a_line(
    shown: int, status: str | None, tmp_path: Path
) -> None:
    """A request for everything sets the counter to 0, then removes its three entries one by one."""
    trace = SharedTrace()
    trace.add("rewind", read_position=True, mark_delete=True)
    trace.join(1, 3)
    trace.attempt([[1, 3, 3, 0]], normal_read(3), normal=True, replay=False)
    trace.done("Normal", 0, 1, 2)
    trace.round_begins("Normal", 0, 1, 2)
    trace.send(1, 3, 0, 1, 2)
    trace.round_ends(0)
    trace.add("pending_ack_removed", 1, positions=places(0), hash=0)
    trace.attempt([[1, 0, 0, shown]], normal=False, replay=False)
    at = trace.lines[-1]["seq"]
    for entry in (1, 2):
        trace.add("pending_ack_removed", 1, positions=places(entry), hash=0)
    trace.add("redeliver", 1)
    found = [(f.seq, f.status) for f in verified(trace.lines, tmp_path).tally.findings]
    assert found == ([] if status is None else [(at, status)])


def test_a_read_moves_the_read_position_part_by_part(tmp_path: Path) -> None:
    found = findings_of(READ_IN_PARTS, t.raw(READ_IN_PARTS), tmp_path)
    assert found == [("uncertain", 6349, 6341), ("uncertain", 6349, 6342)]


def test_a_read_position_behind_the_end_of_the_read_is_wrong(tmp_path: Path) -> None:
    trace = t.raw(READ_IN_PARTS)
    assert t.line_of(trace, 6341)["read_position"] == "152:79"
    t.line_of(trace, 6341)["read_position"] = "152:83"
    assert ("divergent", None, 6341) in findings_of(READ_IN_PARTS, trace, tmp_path)


def test_an_acknowledgement_shows_the_read_position_before_a_rewind(tmp_path: Path) -> None:
    trace = t.raw(REWOUND)
    assert t.line_of(trace, 301)["read_position"] == "3:91"
    assert ("uncertain", 292, 301) in findings_of(REWOUND, trace, tmp_path)


def test_an_acknowledgement_shows_no_other_read_position(tmp_path: Path) -> None:
    trace = t.raw(REWOUND)
    t.line_of(trace, 301)["read_position"] = "3:99"
    assert ("divergent", None, 301) in findings_of(REWOUND, trace, tmp_path)


def test_an_acknowledgement_behind_the_rewind_shows_the_position_behind_it(tmp_path: Path) -> None:
    """The acknowledgement's line stands behind the rewind: so its thread read the position later."""
    trace = t.raw(REWOUND)
    acknowledged = t.line_of(trace, 291)
    trace.remove(acknowledged)
    trace.insert(trace.index(t.line_of(trace, 300)) + 1, acknowledged)
    for number, line in enumerate((line for line in trace if "seq" in line), 1):
        line["seq"] = number
    at = next(line["seq"] for line in trace if line.get("kind") == "cursor_op" and line["target"] == "3:46")
    assert ("divergent", None, at) in findings_of(REWOUND, trace, tmp_path)


def test_an_answer_shows_the_read_position_before_a_read(tmp_path: Path) -> None:
    assert ("uncertain", 83, 88) in findings_of(ANSWERED, t.raw(ANSWERED), tmp_path)


def test_an_answer_shows_no_position_of_before_the_operation(tmp_path: Path) -> None:
    trace = t.raw(ANSWERED)
    before = t.line_of(trace, 71)["read_position"]
    assert before == "13:150"
    t.line_of(trace, 88)["read_position"] = before
    assert ("divergent", None, 88) in findings_of(ANSWERED, trace, tmp_path)


def test_an_answer_shows_no_position_of_long_before(tmp_path: Path) -> None:
    trace = t.raw(ANSWERED)
    for line in trace[trace.index(t.line_of(trace, 88)) :]:
        line["t_us"] += 1_000_000
    assert ("divergent", None, 88) in findings_of(ANSWERED, trace, tmp_path)


def test_a_reset_takes_effect_behind_a_read_in_flight(tmp_path: Path) -> None:
    trace = t.raw(RESET)
    assert t.line_of(trace, 533)["read_position"] == "35:10"
    assert ("uncertain", 531, 533) in findings_of(RESET, trace, tmp_path)


@pytest.mark.parametrize("position", ["35:9", "35:11", "35:35", "35:63"])
def test_a_reset_sets_no_other_read_position(position: str, tmp_path: Path) -> None:
    trace = t.raw(RESET)
    t.line_of(trace, 533)["read_position"] = position
    assert ("divergent", None, 533) in findings_of(RESET, trace, tmp_path)


def test_a_consumer_whose_connection_breaks_has_no_usable_permits(tmp_path: Path) -> None:
    found = findings_of(BROKEN, t.raw(BROKEN), tmp_path)
    assert found == [("uncertain", 84, 79), ("uncertain", 84, 82)]


def test_usable_permits_are_all_there_or_none(tmp_path: Path) -> None:
    trace = t.raw(BROKEN)
    assert t.line_of(trace, 82)["value"] == 0
    t.line_of(trace, 82)["value"] = 1
    assert ("divergent", None, 82) in findings_of(BROKEN, trace, tmp_path)


def test_a_connection_that_breaks_later_has_usable_permits(tmp_path: Path) -> None:
    trace = t.raw(BROKEN)
    for line in trace[trace.index(t.line_of(trace, 84)) :]:
        line["t_us"] += 1_000_000
    assert findings_of(BROKEN, trace, tmp_path) == [("divergent", None, 79), ("divergent", None, 82)]


def test_an_ack_that_unblocks_lowers_the_counter_later(tmp_path: Path) -> None:
    assert findings_of(UNBLOCKED, t.raw(UNBLOCKED), tmp_path, READ) == [("uncertain", 5459, 5465)]


def test_it_lowers_the_counter_by_its_own_messages_only(tmp_path: Path) -> None:
    trace = t.raw(UNBLOCKED)
    for line in trace:
        if line.get("seq") == 5465:
            line["positions"].pop()
    assert ("divergent", None, 5465) in findings_of(UNBLOCKED, trace, tmp_path, READ)


def test_a_prune_shows_mark_delete_before_an_ack(tmp_path: Path) -> None:
    found = findings_of(PRUNED, t.raw(PRUNED), tmp_path)
    assert ("uncertain", 1459, 1463) in found


def test_a_prune_shows_no_mark_delete_of_before_its_section(tmp_path: Path) -> None:
    trace = t.raw(PRUNED)
    t.line_of(trace, 1463)["mark_delete"] = "101:98"
    assert ("divergent", None, 1463) in findings_of(PRUNED, trace, tmp_path)


@pytest.mark.parametrize(("connection", "status"), [(3, "uncertain"), (2, "divergent")])
def test_a_thread_writes_its_mark_delete_line_behind_that_of_another(
    connection: int, status: str, tmp_path: Path
) -> None:
    """The ack of line 1443 moves mark-delete, and its line stands behind that of the next ack, of connection 2.

    A thread may be held up there, but not that of connection 2, which has gone on.
    """
    trace = t.raw(PRUNED)
    late = t.line_of(trace, 1445)
    assert late == late | {"kind": "mark_delete", "mark_delete": "101:100"}
    t.line_of(trace, 1443)["consumer"] = connection
    trace.remove(late)
    trace.insert(trace.index(t.line_of(trace, 1448)) + 1, late)
    for number, line in enumerate((line for line in trace if "seq" in line), 1):
        line["seq"] = number
    found = findings_of(PRUNED, trace, tmp_path)
    assert [status for status, _racing, seq in found if seq == 1448] == [status]


def test_acks_within_an_attempt_change_no_value_of_before(tmp_path: Path) -> None:
    assert [seq for _status, _racing, seq in findings_of(ACKED, t.raw(ACKED), tmp_path)] == [756]


@pytest.mark.parametrize("usable", [31, 34, 45])
def test_a_value_of_before_has_the_acks_of_before(usable: int, tmp_path: Path) -> None:
    trace = t.raw(ACKED)
    assert t.line_of(trace, 715)["value"] == 33
    t.line_of(trace, 715)["value"] = usable
    assert ("divergent", None, 715) in findings_of(ACKED, trace, tmp_path)


def test_an_ack_that_has_let_go_unblocks_later(tmp_path: Path) -> None:
    trace = t.raw(UNBLOCKS_LATER)
    assert findings_of(UNBLOCKS_LATER, trace, tmp_path, READ) == [("uncertain", 603, 607)]
    assert ("uncertain", 604, 608) in findings_of(UNBLOCKS_LATER, trace, tmp_path)


def test_it_has_unblocked_where_its_permits_have_reached_the_dispatcher(tmp_path: Path) -> None:
    trace = t.moved(t.raw(UNBLOCKS_LATER), 610, 605)
    assert ("divergent", None, 608) in findings_of(UNBLOCKS_LATER, trace, tmp_path, READ)


def test_it_has_unblocked_before_the_next_command_of_its_connection(tmp_path: Path) -> None:
    trace = t.raw(UNBLOCKS_LATER)
    ack = t.line_of(trace, 603)
    trace.insert(trace.index(t.line_of(trace, 605)) + 1, ack | {"positions": ["1:9"], "ack_sets": [[14]]})
    for number, line in enumerate((line for line in trace if "seq" in line), 1):
        line["seq"] = number
    assert ("divergent", None, 608) in findings_of(UNBLOCKS_LATER, trace, tmp_path, READ)


def test_an_ack_comes_between_the_two_positions_of_a_line(tmp_path: Path) -> None:
    trace = t.raw(BETWEEN)
    assert (t.line_of(trace, 296)["read_position"], t.line_of(trace, 296)["mark_delete"]) == ("1:44", "1:44")
    assert ("uncertain", 294, 296) in findings_of(BETWEEN, trace, tmp_path)


@pytest.mark.parametrize(("read_position", "mark_delete"), [("1:43", "1:44"), ("1:45", "1:42")])
def test_no_other_positions_stand_together(read_position: str, mark_delete: str, tmp_path: Path) -> None:
    """Nothing moves the cursor from 1:42 on within the line, and mark-delete is read last."""
    trace = t.raw(BETWEEN)
    t.line_of(trace, 296).update(read_position=read_position, mark_delete=mark_delete)
    assert ("divergent", None, 296) in findings_of(BETWEEN, trace, tmp_path)


@pytest.mark.parametrize(
    ("shown", "status"), [(1, None), (2, "uncertain"), (3, "divergent"), (0, "divergent")]
)
def test_a_counted_flow_shows_the_permits_before_a_send_of_the_round_before(
    shown: int, status: str | None, tmp_path: Path
) -> None:
    """Before the send of line 1296 or behind it; the send of line 1305 comes behind the line."""
    trace = t.raw(COUNTED)
    assert t.line_of(trace, 1304)["permits_after"] == 2
    t.line_of(trace, 1304)["permits_after"] = shown
    found = [found for found in findings_of(COUNTED, trace, tmp_path) if found[2] == 1304]
    assert found == ([] if status is None else [(status, 1296 if status == "uncertain" else None, 1304)])


def test_a_counted_flow_shows_no_permits_before_a_send_that_had_returned(tmp_path: Path) -> None:
    """The flow's line is moved behind the return of the send: the permits of before are not those after the flow."""
    trace = t.raw(COUNTED)
    assert t.divergent(COUNTED, t.moved(trace, 1295, 1302), tmp_path)
