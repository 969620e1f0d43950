"""The lines ``mark_delete`` say which of two acknowledgements reached the cursor first.

``4.0.0-preview.1/designed-all-leave-ch`` and others (tests/data/verify) have such pairs.

In ``4.2.4/soak-87099-failover-ring-racing`` (tests/data/races) the cumulative acknowledgement of line 325 is held up. Before
it moves mark-delete, at line 331, another consumer acknowledges 107:0 and 107:1 alone, and mark-delete moves for each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatch_core.verify.trace import mark_delete_lines
from dispatch_core.verify.trace.mark_delete_lines import (
    LATEST_US,
    AcksOnTheirWay,
    Ahead,
    Applied,
    Arrival,
    MovedLine,
    NextCommand,
)
from tests.dispatch_core.verify import tampering as t

DATA: Final = Path(__file__).resolve().parents[2] / "data"
#: Recordings with acknowledgements that overlap, or with reads that move the read position before their line.
OVERLAPPING: Final = [
    DATA / "verify/4.0.0-preview.1/designed-all-leave-ch",
    DATA / "verify/4.2.4/designed-sticky-in-order",
    DATA / "races/4.2.4/soak-0002-range-quiet",
    DATA / "recordings/4.2.4/designed-rolling-restart-classic-ch",
    DATA / "operations/4.2.4/ops-0004-reset-back-ch",
]


def uncertain() -> int:
    return sum(t.verified(folder).tally.counts["position"]["uncertain"] for folder in OVERLAPPING)


def after(acks: list[Arrival], following: list[Ahead], at_us: int = 100) -> int:
    """Return mark-delete after a ``mark_delete`` line; it was in front of the first entry, and all are acknowledged."""
    ways = AcksOnTheirWay()
    for ack in acks:
        ways.arrived(ack)
    applied = Applied(max(ack.entry for ack in acks))
    ways.moved(applied, at_us, lambda: following)
    return ways.mark_delete(applied)


#: Entries 0 and 1 are acknowledged by consumers 1 and 2, the later one first.
BOTH: Final = [Arrival(2, 10, 1, 50), Arrival(1, 11, 0, 60)]


def test_one_line_is_of_the_first_entry_and_the_other_came_before() -> None:
    assert after(BOTH, [NextCommand(2), NextCommand(1)]) == 1


def test_two_lines_are_one_for_each() -> None:
    assert after(BOTH, [MovedLine(120), NextCommand(2)]) == 0


def test_the_second_line_may_be_of_a_later_ack() -> None:
    """Consumer 1 acknowledges entry 2 as well, so that the lines are explained without a late ack of consumer 2."""
    later = [NextCommand(1), Arrival(1, 12, 2, 110), MovedLine(120), NextCommand(1), NextCommand(2)]
    assert after(BOTH, later) == 1


def test_an_ack_with_a_later_line_before_its_next_command_is_late() -> None:
    """Three lines: of entry 0, of entry 1, and of entry 2 that consumer 1 acknowledges behind the first."""
    later = [NextCommand(1), Arrival(1, 12, 2, 110), MovedLine(120), MovedLine(130), NextCommand(2)]
    assert after(BOTH, later) == 0


def test_a_line_long_after_an_ack_is_not_its_own() -> None:
    assert after(BOTH, [MovedLine(101 + LATEST_US), NextCommand(2)]) == 1


def test_an_ack_is_over_with_the_next_command_of_its_connection() -> None:
    ways = AcksOnTheirWay()
    for ack in BOTH:
        ways.arrived(ack)
    applied = Applied(1)
    assert ways.mark_delete(applied) == -1
    ways.over(1, applied)
    assert ways.mark_delete(applied) == 0
    ways.over(2, applied)
    assert ways.mark_delete(applied) == 1


def test_positions_of_overlapping_acks_are_exact() -> None:
    assert uncertain() == 0


def test_without_the_numbers_of_lines_they_are_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each ack reached the cursor with the line of its pending ack, the order of the lines would have to be excused."""
    monkeypatch.setattr(AcksOnTheirWay, "mark_delete", lambda _self, applied: applied.mark_delete)
    assert uncertain() >= 5


def test_if_an_ack_never_came_before_they_are_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each line let one ack through and no more, acks that moved nothing would be held up."""
    right = mark_delete_lines._State.moves

    def one_at_a_time(state: mark_delete_lines._State, applied: Applied) -> list[mark_delete_lines._State]:
        return list(right(state, applied))[-1:]

    monkeypatch.setattr(mark_delete_lines._State, "moves", one_at_a_time)
    assert uncertain() > 0


@pytest.mark.parametrize(("earlier_us", "status"), [(100, None), (1_000, "uncertain"), (None, "divergent")])
def test_a_read_position_moves_a_little_before_the_end_of_its_read(
    earlier_us: int | None, status: str | None, tmp_path: Path
) -> None:
    """A round shortly before the end of a normal read shows the position behind it. Longer before, that is uncertain.

    Without a read in flight (``None``: the round stands in front of its ``read_issued``) it is divergent.
    """
    folder = DATA / "recordings/4.2.4/designed-rolling-restart-ch"
    trace = [dict(line) for line in t.raw(folder)]
    rounds = t.places(trace, "round_begin")
    at, end = next(
        (at, at + 6)
        for at in rounds
        if trace[at]["type"] == "Replay"
        and trace[at + 6]["kind"] == "read_done"
        and trace[at + 6]["type"] == "Normal"
        and trace[at]["read_position"] != trace[at + 6]["read_position"]
    )
    if earlier_us is None:
        at = max(
            other
            for other in rounds
            if trace[other]["read_position"] != trace[at]["read_position"] and other < at
        )
    else:
        for line in trace[at:end]:
            line["t_us"] = max(line["t_us"], trace[end]["t_us"] - earlier_us)
    trace[at]["read_position"] = trace[end]["read_position"]
    tally = t.verified(t.copy_with(folder, trace, tmp_path)).tally
    found = {f.seq: f.status for f in tally.findings if f.decision_class == "position"}
    assert found == ({} if status is None else {trace[at]["seq"]: status})


CUMULATIVE: Final = DATA / "races/4.2.4/failover-batches-60064-ring-quiet"
ACK, MOVED_FIRST = 334, 336


@pytest.mark.parametrize(
    ("shown", "status"), [("9:14", None), ("9:9", "uncertain"), ("9:7", "divergent"), ("9:10", "divergent")]
)
def test_an_ack_may_overtake_a_cumulative_one(shown: str, status: str | None, tmp_path: Path) -> None:
    """That of 9:7, line 334, moves mark-delete to 9:9, as 9:8 and 9:9 are acknowledged; that of line 333 goes to 9:14."""
    trace = t.raw(CUMULATIVE)
    t.line_of(trace, MOVED_FIRST)["mark_delete"] = shown
    found = t.found_at(CUMULATIVE, trace, tmp_path, MOVED_FIRST)
    here = [(finding.status, finding.racing_seq) for finding in found]
    assert here == ([] if status is None else [(status, ACK if status == "uncertain" else None)])


HELD_UP: Final = DATA / "races/4.2.4/soak-87099-failover-ring-racing"


@pytest.mark.parametrize(
    ("seq", "shown", "status"),
    [
        (328, "107:0", "uncertain"),
        (328, "107:1", "divergent"),
        (330, "107:1", "uncertain"),
        (330, "107:2", "divergent"),
        (330, "107:17", "divergent"),
        (331, "107:17", "divergent"),
    ],
)
def test_acks_of_single_entries_may_come_before_a_cumulative_one_that_is_held_up(
    seq: int, shown: str, status: str, tmp_path: Path
) -> None:
    trace = t.raw(HELD_UP)
    t.line_of(trace, seq)["mark_delete"] = shown
    found = t.found_at(HELD_UP, trace, tmp_path, seq)
    assert status in {finding.status for finding in found}


def test_what_would_have_moved_further_than_a_line_shows_is_still_on_its_way() -> None:
    ways, applied = AcksOnTheirWay(), Applied(2)
    for entry in (0, 1, 2):
        ways.arrived(Arrival(1, 10, entry, 50))
    on_their_way = ways.acks()
    ways.moved(applied, 60, list)
    assert ways.mark_delete(applied) == 2
    ways.take_back(on_their_way, mark_delete=0)
    assert ways.mark_delete(applied) == 0
    assert (ways.seq_of(0), ways.seq_of(1)) == (None, 10)
