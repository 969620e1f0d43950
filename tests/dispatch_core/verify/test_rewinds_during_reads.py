"""A read that a redelivery request does not cancel moves the read position once more, after the rewind.

A read completes on a thread of the managed ledger, which moves the read position; its line ``read_done`` follows when the
dispatcher takes its entries (OpReadEntry.updateReadPosition). Between the two a rewind and its line may come.

- ``4.2.4/soak-5164-exclusive-quiet`` (tests/data/races): the rewind of line 113 shows the position behind the read of 107.
- ``4.2.4/soak-5137-failover-ring-racing``: two reads are in flight when a consumer leaves at 41; the second has moved it.

- ``4.2.4/soak-82287-first-failover-racing``: the read of line 228 has come to the end of the first ledger when a consumer
  joins at 234. A read for this consumer is issued later, at 242, and ends first.

A read that waits at the end of the topic looks again after a while (managedLedgerNewEntriesCheckDelayInMillis). If the
cursor was rewound since, there are entries to read, but the read goes on from where it was issued. It finds nothing there,
and moves the read position back to the end (ManagedCursorImpl.checkForNewEntries).

Releases before #24898 bound a read by the end of the topic as of its issue: theirs ends with nothing and moves nothing.

- ``4.2.4/failover-batches-40045-modulo-racing``: the read of line 585 is issued at 92:250. The cursor is rewound to 92:140
  at 587, and the read ends with nothing at 590, at 92:250.

- ``4.0.0/soak-81593-exclusive-racing``: the reset of line 221 to 6:19 takes effect behind the ends of two reads that were in
  flight. The rewinds that follow these (lines 223 and 225) go to 6:50, behind mark-delete of before.

- ``4.0.0/ops-61009-seek-earliest-failover``: the reset of line 63 to the first entry takes effect behind the round of the
  read that was in flight (line 65). The next consumer, at 71, finds the read position of the reset.

Acknowledgements of what is being read push the read position on. A read that ends before mark-delete leaves it there
(ManagedCursorImpl.setReadPosition).

- ``4.0.0/failover-batches-61013-modulo-racing``: the read of line 266 ends behind 27:81 at 284, when the entries up to 27:86
  are acknowledged. Its result is dropped, because another consumer is active by then.

- ``4.2.4/soak-84302-third-failover-quiet``: the result of the read that ends at 23 is dropped, because consumer 3 is active
  by then. Line 24 shows the read position before the rewind of line 25.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RACES: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4"
REWOUND, BEHIND_THE_READ = 113, "22:69"
LEAVES: Final = 41
WAITED: Final = 590


@pytest.mark.parametrize(
    ("name", "seq"), [("soak-5164-exclusive-quiet", REWOUND), ("soak-5137-failover-ring-racing", LEAVES)]
)
def test_the_read_in_flight_names_the_race(name: str, seq: int) -> None:
    result = t.verified(RACES / name)
    assert result.tally.total("divergent") == 0
    (found,) = [finding for finding in result.tally.findings if finding.seq == seq]
    assert (found.decision_class, found.status) == ("position", "uncertain")


@pytest.mark.parametrize(
    ("shown", "status"), [("150:0", "uncertain"), ("150:93", "uncertain"), ("150:94", "divergent")]
)
def test_a_read_in_flight_may_end_behind_one_that_is_issued_later(
    shown: str, status: str, tmp_path: Path
) -> None:
    recording = RACES / "soak-82287-first-failover-racing"
    trace = t.raw(recording)
    t.line_of(trace, 234)["read_position"] = shown
    found = t.found_at(recording, trace, tmp_path, 234)
    assert [finding.status for finding in found] == [status]


@pytest.mark.parametrize("shown", ["22:70", "22:90"])
def test_a_rewind_to_another_position_diverges(tmp_path: Path, shown: str) -> None:
    """The read of line 107 ends behind 22:68, so it cannot have moved the read position there."""
    recording = RACES / "soak-5164-exclusive-quiet"
    trace = t.raw(recording)
    (line,) = [line for line in trace[1:] if line["seq"] == REWOUND]
    assert (line["kind"], line["read_position"]) == ("rewind", BEHIND_THE_READ)
    line["read_position"] = shown
    result = t.verified(t.copy_with(recording, trace, tmp_path))
    assert REWOUND in {finding.seq for finding in result.tally.findings if finding.status == "divergent"}


def test_a_read_that_waits_moves_the_read_position_to_where_it_was_issued() -> None:
    result = t.verified(RACES / "failover-batches-40045-modulo-racing")
    assert result.tally.total("divergent") == 0
    assert not {WAITED, 593} & {finding.seq for finding in result.tally.findings}


def test_a_read_that_waits_moved_nothing_before_24898(tmp_path: Path) -> None:
    recording = RACES / "failover-batches-40045-modulo-racing"
    trace = t.raw(recording)
    trace[0]["broker_version"] = "4.0.7"
    result = t.verified(t.copy_with(recording, trace, tmp_path))
    assert WAITED in {finding.seq for finding in result.tally.findings if finding.status == "divergent"}


@pytest.mark.parametrize("shown", ["92:141", "92:249", "92:251"])
def test_a_read_that_waits_moves_it_nowhere_else(tmp_path: Path, shown: str) -> None:
    recording = RACES / "failover-batches-40045-modulo-racing"
    trace = t.raw(recording)
    line = t.line_of(trace, WAITED)
    assert (line["kind"], line["positions"], line["read_position"]) == ("read_done", [], "92:250")
    line["read_position"] = shown
    result = t.verified(t.copy_with(recording, trace, tmp_path))
    assert WAITED in {finding.seq for finding in result.tally.findings if finding.status == "divergent"}


def test_a_read_may_show_its_position_in_front_of_its_next_part() -> None:
    """In ``soak-5261-second-classic-ch-racing`` a read of 128:11, 128:13 and 128:15 goes around acknowledged entries."""
    result = t.verified(RACES / "soak-5261-second-classic-ch-racing")
    assert result.tally.total("divergent") == 0
    (found,) = [finding for finding in result.tally.findings if finding.seq == 144]
    assert (found.decision_class, found.status, found.recorded) == ("position", "uncertain", "behind 128:14")


RESET: Final = RACES.parent / "4.0.0" / "soak-81593-exclusive-racing"
RESET_OP, REWINDS, BEHIND_RESET = 221, (223, 225), 227


def test_a_rewind_before_a_reset_takes_effect_goes_behind_mark_delete_of_before(tmp_path: Path) -> None:
    tally = t.verified(RESET).tally
    assert tally.total("divergent") == 0
    found = {(finding.seq, finding.racing_seq) for finding in tally.findings}
    assert {(seq, RESET_OP) for seq in REWINDS} & found
    for seq, shown in ((REWINDS[0], "6:30"), (REWINDS[1], "6:30"), (BEHIND_RESET, "6:20")):
        trace = t.raw(RESET)
        t.line_of(trace, seq)["read_position"] = shown
        assert seq in {other.seq for other in t.divergent(RESET, trace, tmp_path / str(seq))}


SOUGHT: Final = RACES.parent / "4.0.0" / "ops-61009-seek-earliest-failover"
SEEK, JOINS = 63, 71


def test_a_reset_that_takes_effect_behind_a_read_sets_the_read_position() -> None:
    tally = t.verified(SOUGHT).tally
    assert tally.total("divergent") == 0
    assert (JOINS, "uncertain", SEEK) in {
        (found.seq, found.status, found.racing_seq) for found in tally.findings
    }


@pytest.mark.parametrize(("shown", "agrees"), [("19:0", True), ("19:4", False)])
def test_the_cursor_goes_on_from_where_such_a_reset_has_set_it(
    shown: str, agrees: bool, tmp_path: Path
) -> None:
    trace = t.raw(SOUGHT)
    joined = t.line_of(trace, JOINS)
    state = {"kind": "cursor_state", "after": "seek", "mark_delete": "19:-1", "read_position": shown}
    trace.insert(trace.index(joined) + 1, {"seq": 0, "t_us": joined["t_us"], **state})
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    found = t.verified(t.copy_with(SOUGHT, trace, tmp_path)).tally.findings
    assert (JOINS + 1 not in {finding.seq for finding in found}) == agrees


@pytest.mark.parametrize("shown", ["19:1", "19:5", "19:8", "19:10"])
def test_neither_a_reset_nor_a_read_moves_it_elsewhere(tmp_path: Path, shown: str) -> None:
    trace = t.raw(SOUGHT)
    t.line_of(trace, JOINS)["read_position"] = shown
    assert JOINS in {found.seq for found in t.divergent(SOUGHT, trace, tmp_path)}


PASSED: Final = RACES.parent / "4.0.0" / "failover-batches-61013-modulo-racing"
MOVED, READ_DONE = 278, 284


def test_a_dropped_read_leaves_the_read_position_where_acknowledgements_have_pushed_it() -> None:
    assert t.verified(PASSED).tally.findings == []


@pytest.mark.parametrize("shown", ["27:82", "27:86", "27:88"])
def test_a_dropped_read_does_not_move_the_read_position_elsewhere(tmp_path: Path, shown: str) -> None:
    trace = t.raw(PASSED)
    line = t.line_of(trace, READ_DONE)
    assert (line["positions"][-1], line["read_position"]) == ("27:81", "27:87")
    line["read_position"] = shown
    assert READ_DONE in {finding.seq for finding in t.divergent(PASSED, trace, tmp_path)}


@pytest.mark.parametrize(("shown", "statuses"), [("27:82", []), ("27:87", [("uncertain", 277)])])
def test_acknowledgements_may_not_have_pushed_it_where_no_line_shows_them(
    shown: str, statuses: list[tuple[str, int]], tmp_path: Path
) -> None:
    """Without the line that shows mark-delete at 27:86, the ack of 27:80 (line 277) may not have reached the cursor."""
    trace = t.raw(PASSED)
    t.line_of(trace, READ_DONE)["read_position"] = shown
    for seq in range(MOVED, READ_DONE):
        t.line_of(trace, seq).pop("mark_delete", None)
        t.line_of(trace, seq).pop("read_position", None)
    found = t.found_at(PASSED, trace, tmp_path, READ_DONE)
    assert [(finding.status, finding.racing_seq) for finding in found] == statuses


DROPPED: Final = RACES / "soak-84302-third-failover-quiet"


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        ("33:1", None),
        ("33:3", "uncertain"),
        ("33:0", "divergent"),
        ("33:2", "divergent"),
        ("33:4", "divergent"),
    ],
)
def test_a_line_between_a_dropped_read_and_its_rewind_shows_the_position_behind_the_read(
    shown: str, status: str | None, tmp_path: Path
) -> None:
    trace = t.raw(DROPPED)
    assert t.line_of(trace, 24)["read_position"] == "33:3"
    t.line_of(trace, 24)["read_position"] = shown
    found = t.found_at(DROPPED, trace, tmp_path, 24)
    assert [(f.status, f.racing_seq) for f in found] == (
        [] if status is None else [(status, 23 if status == "uncertain" else None)]
    )


def test_a_line_behind_the_rewind_does_not_show_the_position_before_it(tmp_path: Path) -> None:
    trace = t.moved(t.raw(DROPPED), 24, 25)
    assert t.divergent(DROPPED, trace, tmp_path)
