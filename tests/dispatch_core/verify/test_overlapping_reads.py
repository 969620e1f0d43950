"""Reads of a Failover dispatcher that overlap, a read that waits, and what a read shows of the read position on its way.

Recordings of 4.0.0 (tests/data/races), where the end of any read lets the dispatcher read again:

- ``soak-5324-failover-quiet``: the read of line 74 waits for entries, and those of 81, 99, 109 and 129 end before it. That
  of 87 fails, because one read waits already: line 88 shows that none is pending. Line 135 is the end of the first.
- ``soak-5317-failover-racing``: the reads of 117 and 122 end at 124 and 128, and the first one moved the position last.
- ``soak-30121-failover-ring-racing``: the read of 30 ends at 56, after the active consumer has changed. It has moved the
  position before: line 48, of another read, shows that. The rewind of 49 is behind it.
- ``soak-5401-failover-racing``: a reset disconnects consumer 5. It stays active, and gets entries after its removal.
- ``soak-5373-second-failover-ring-racing``: consumer 2 is removed at 48, and the read before asks for one entry.
- ``soak-5393-second-range-racing``: a read for one entry goes over two acknowledged ones first.
- ``soak-5659-first-failover-racing``: a read for a consumer that has left returns nothing at 51, and the cursor rewinds.
- ``soak-5711-first-failover-ring-racing``: a skip is logged at 231, a rewind at 232, and mark-delete moves at 235.
- ``soak-5435-failover-racing``: a read returns entries that were acknowledged after it was issued, in part before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pytest

from dispatch_core.audit.deliveries import log_checks
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.trace.runner import Verification
from tests.dispatch_core.verify import tampering as t

RACES: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0"
WAITS, ENDS_BEFORE, SHOWS_NONE, WAITED = 74, 82, 88, 135

Trace = list[dict[str, Any]]


def changed(name: str, where: Path, seq: int, **fields: object) -> Verification:
    """Verify a copy of a recording of which one line has other values."""
    trace = t.raw(RACES / name)
    (line,) = [line for line in trace[1:] if line.get("seq") == seq]
    line.update(fields)
    return t.verified(t.copy_with(RACES / name, trace, where))


def divergent(result: Verification) -> set[int]:
    """The seqs of the divergent decisions."""
    return {finding.seq for finding in result.tally.findings if finding.status == "divergent"}


@pytest.mark.parametrize(
    ("name", "uncertain"),
    [
        ("soak-5324-failover-quiet", set()),
        ("soak-5317-failover-racing", {128, 129, 136, 143}),
        ("soak-30121-failover-ring-racing", {25, 26, 30, 35, 44, 48, 56}),
        ("soak-5373-second-failover-ring-racing", {43}),
        ("soak-5393-second-range-racing", {28, 44, 53, 54, 69}),
        ("soak-5435-failover-racing", {515, 516}),
        ("soak-5659-first-failover-racing", set()),
        ("soak-5711-first-failover-ring-racing", {231, 232, 234}),
        ("soak-81116-exclusive-quiet", {528, 529, 537}),
        ("soak-81632-failover-ring-quiet", set()),
    ],
)
def test_the_recordings_are_clean(name: str, uncertain: set[int]) -> None:
    result = t.verified(RACES / name)
    assert result.tally.total("divergent") == 0
    found = [finding for finding in result.tally.findings if finding.status == "uncertain"]
    assert {finding.seq for finding in found} == uncertain


def test_a_result_before_that_of_the_waiting_read_has_the_size_of_its_own(tmp_path: Path) -> None:
    """The read of line 81 asked for 20 entries; the waiting one could not have begun in front of 1:27."""
    trace = t.raw(RACES / "soak-5324-failover-quiet")
    (line,) = [line for line in trace[1:] if line.get("seq") == ENDS_BEFORE - 1]
    line["max_entries"] = 5
    result = t.verified(t.copy_with(RACES / "soak-5324-failover-quiet", trace, tmp_path))
    assert divergent(result)


def test_a_read_that_waits_is_for_the_consumer_that_was_active_then(tmp_path: Path) -> None:
    result = changed("soak-5324-failover-quiet", tmp_path, WAITED, consumer=3)
    assert divergent(result)


@pytest.mark.parametrize("seq", [118, 191])
def test_no_read_is_pending_only_where_one_may_have_failed(tmp_path: Path, seq: int) -> None:
    """With one read in flight the change of the active consumer has to see it."""
    result = changed("soak-5324-failover-quiet", tmp_path, seq, pending_read=True)
    assert seq in divergent(result)


def test_a_position_that_no_overlapping_read_ends_at_diverges(tmp_path: Path) -> None:
    result = changed("soak-5317-failover-racing", tmp_path, 128, read_position="4:23")
    assert 128 in divergent(result)


@pytest.mark.parametrize(("size", "diverges"), [(1, False), (2, True)])
def test_a_broken_connection_explains_a_read_of_one(tmp_path: Path, size: int, diverges: bool) -> None:
    result = changed("soak-5373-second-failover-ring-racing", tmp_path, 43, max_entries=size)
    assert (43 in divergent(result)) == diverges


def test_a_consumer_that_stays_has_no_broken_connection(tmp_path: Path) -> None:
    """Its removal comes late: nothing explains that the read is so small."""
    name = "soak-5373-second-failover-ring-racing"
    trace = t.raw(RACES / name)
    for line in trace[1:]:
        if line.get("seq", 0) >= 48:
            line["t_us"] += 1_000_000
    assert 43 in divergent(t.verified(t.copy_with(RACES / name, trace, tmp_path)))


@pytest.mark.parametrize(
    ("shown", "diverges"), [("131:5", False), ("131:7", False), ("131:9", True), ("131:4", True)]
)
def test_a_read_in_flight_shows_any_position_between_its_ends(
    tmp_path: Path, shown: str, diverges: bool
) -> None:
    """The read begins in front of 131:5 and ends behind 131:7."""
    result = changed("soak-5393-second-range-racing", tmp_path, 28, read_position=shown)
    assert (28 in divergent(result)) == diverges


@pytest.mark.parametrize(
    ("shown", "diverges"), [("16:149", False), ("16:160", False), ("16:213", False), ("16:217", True)]
)
def test_a_read_that_goes_on_behind_another_one_ends_parts_anywhere(
    tmp_path: Path, shown: str, diverges: bool
) -> None:
    """It begins in front of 16:148, between 16:151 and 16:187 all is acknowledged, and it ends behind 16:212."""
    result = changed("soak-81116-exclusive-quiet", tmp_path, 537, read_position=shown)
    assert (537 in divergent(result)) == diverges


def test_a_removed_consumer_gets_entries_until_another_is_chosen(tmp_path: Path) -> None:
    name = "soak-5401-failover-racing"
    trace = t.raw(RACES / name)
    assert t.verified(RACES / name).log_findings == []
    (at,) = [at for at, line in enumerate(trace) if line.get("seq") == 222]
    picked = {**trace[at], "kind": "active_picked", "consumer": 1, "changed": False, "sorted": [1, 8]}
    for field in ("positions", "batch_sizes", "permits_before"):
        picked.pop(field)
    trace.insert(at, picked)
    for seq, line in enumerate(trace[2:], 1):
        line["seq"] = seq
    result = t.verified(t.copy_with(RACES / name, trace, tmp_path))
    assert any("had been removed before" in str(found.error) for found in result.log_findings)


def test_an_entry_acknowledged_before_the_read_is_not_read(tmp_path: Path) -> None:
    """The acknowledgement of 119:20 is put in front of another one of its connection, and of the read that returns it."""
    name = "soak-5435-failover-racing"
    trace = t.raw(RACES / name)
    (ack,) = [line for line in trace[1:] if line.get("seq") == 432]
    (next_ack,) = [at for at, line in enumerate(trace) if line.get("seq") == 411]
    trace.remove(ack)
    trace.insert(next_ack, ack | {"t_us": trace[next_ack]["t_us"]})
    for seq, line in enumerate(trace[2:], 1):
        line["seq"] = seq
    reads = [line for line in trace[next_ack:] if line["kind"] == "read_done"]
    (done,) = [line["seq"] for line in reads if "119:20" in line["positions"]]
    assert done in divergent(t.verified(t.copy_with(RACES / name, trace, tmp_path)))


@pytest.mark.parametrize("shown", ["212:0", "212:46", "212:48"])
def test_a_read_that_returns_nothing_does_not_move_the_position(tmp_path: Path, shown: str) -> None:
    result = changed("soak-5659-first-failover-racing", tmp_path, 51, read_position=shown)
    assert 51 in divergent(result)


@pytest.mark.parametrize(("seq", "field", "shown"), [
    (231, "read_position", "245:40"),
    (232, "mark_delete", "245:5"),
    (232, "read_position", "245:5"),
    (234, "read_position", "245:5"),
    (235, "mark_delete", "245:18"),
])  # fmt: skip
def test_a_move_under_way_shows_its_beginning_or_its_end(
    tmp_path: Path, seq: int, field: str, shown: str
) -> None:
    result = changed("soak-5711-first-failover-ring-racing", tmp_path, seq, **{field: shown})
    assert seq in divergent(result)


@pytest.mark.parametrize(("seq", "position"), [(48, "205:60"), (56, "205:101")])
def test_a_dropped_read_shows_no_position_that_no_read_reached(
    seq: int, position: str, tmp_path: Path
) -> None:
    result = changed("soak-30121-failover-ring-racing", tmp_path, seq, read_position=position)
    assert seq in divergent(result)


DISOWNED: Final = RACES.parent / "4.2.4" / "soak-80519-failover-ring-racing"


def test_a_disowned_read_that_takes_long_may_end_before_a_later_one() -> None:
    """A request disowns the read of line 223; that of 235 has the same entries. The former ends first, line 236."""
    tally = t.verified(DISOWNED).tally
    assert tally.total("divergent") == 0
    assert tally.total("uncertain") == 1


def test_either_of_two_alike_reads_may_end_first(tmp_path: Path) -> None:
    trace = t.moved(t.raw(DISOWNED), 237, 240)
    assert not divergent(t.verified(t.copy_with(DISOWNED, trace, tmp_path)))


def test_one_of_two_alike_reads_is_dispatched(tmp_path: Path) -> None:
    trace = t.raw(DISOWNED)
    for seq in (238, 239, 240):
        trace.remove(t.line_of(trace, seq))
    assert divergent(t.verified(t.copy_with(DISOWNED, trace, tmp_path)))


#: Recording → the size of a read that has all it asked for, and the end of one that asked for more and ends behind it.
FEWEST: Final = {
    "soak-86039-second-exclusive-racing": (228, 299),
    "soak-86047-first-failover-racing": (84, 92),
}


@pytest.mark.parametrize("name", FEWEST)
def test_a_result_is_of_the_read_that_asked_for_so_few(name: str, tmp_path: Path) -> None:
    """Two reads begin at the same position. The result of the later one is also a beginning of that of the earlier one."""
    assert not divergent(t.verified(RACES / name))
    issued, last = FEWEST[name]
    size = t.line_of(t.raw(RACES / name), issued)["max_entries"]
    late = t.line_of(t.raw(RACES / name), last)["positions"]
    assert len(late) > size
    # The earlier one has no more than it asked for.
    assert last in divergent(changed(name, tmp_path, last, positions=late * 4))


#: The read of line 120 is in flight at 122, and ends at 144. That of 131 ends before it, at 138.
PASSED: Final = "soak-86043-second-failover-ring-racing"
SHOWN, PASSES = 122, 131


def test_a_read_in_flight_moves_the_position_that_a_later_one_starts_from() -> None:
    result = t.verified(RACES / PASSED)
    assert not divergent(result)
    assert {SHOWN, PASSES} <= {finding.seq for finding in result.tally.findings}


@pytest.mark.parametrize("seq", [SHOWN, PASSES])
def test_it_moves_it_within_its_own_entries(seq: int, tmp_path: Path) -> None:
    """It ends behind 52:6."""
    assert seq in divergent(changed(PASSED, tmp_path, seq, read_position="52:10"))


NOTHING, LATE = 174, 190


def test_nothing_is_the_result_of_the_read_that_started_last(tmp_path: Path) -> None:
    """Two reads are in flight at line 174, from 1:53 and from the end at 1:223; line 190 ends the first one."""
    name = "soak-81632-failover-ring-quiet"
    assert t.line_of(t.raw(RACES / name), NOTHING)["positions"] == []
    trace = t.raw(RACES / name)
    late = t.line_of(trace, LATE)["positions"]
    assert (late[0], len(late)) == ("1:53", 100)
    result = changed(name, tmp_path, LATE, positions=[*late, "1:153"])
    assert LATE in divergent(result)


REMOVED: Final = RACES.parent / "4.2.4" / "soak-82453-failover-racing"
NOTICE, SENT = 167, 172


@pytest.mark.parametrize(("active", "unknown"), [(4, []), (1, [SENT])])
def test_a_consumer_that_a_reset_removed_gets_entries_while_it_is_active(
    active: int, unknown: list[int]
) -> None:
    """In ``4.2.4/soak-82453-failover-racing`` the notice of line 167 says that removed consumer 4 is still active."""
    log = read_recording(find_recordings([REMOVED])[0]).logs[0]
    assert t.verified(REMOVED).tally.total("divergent") == 0
    notice = pc.equal(log.events["seq"], NOTICE)
    shown = pc.if_else(notice, active, log.events["active"])
    events = log.events.set_column(log.events.schema.get_field_index("active"), "active", shown)
    assert [finding.seqs[0] for finding in log_checks.unknown_consumers(events, log)] == unknown
