"""Moves of the cursor: which of them trim what a Shared subscription has pending, when the counters fall, and rewinds.

Recordings of 4.2.4 (tests/data/races):

- ``soak-41782-second-shared-quiet``: the acknowledgements of lines 36 and 47 move mark-delete to 26:3. Line 50: the broker
  stores this position again (ManagedCursorImpl.flush). That tells no dispatcher, so that 26:2 and 26:3 stay in the replay
  set, and are asked for at 57.
- ``soak-41947-shared-racing``: a skip moves mark-delete at line 71. The thread that has stored it trims behind line 81,
  which shows the counter before. At 90 it has fallen.
- ``ops-40048-seek-earliest-classic-ch``: the round of line 360 finds no consumers, so it rewinds, which line 362 says. The
  seek of line 361 shows the read position before that.
- ``soak-84721-classic-ch-racing``: a skip begins to move mark-delete to 4:75 at line 365, and line 378 says that it is
  there. The round of line 376 shows 4:55, where it was before. The attempts in between are the same with the move and
  without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatch_core.verify.trace.earlier_positions import HELD_UP_US
from tests.dispatch_core.verify import tampering as t

RACES: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4"
STORED_AGAIN: Final = RACES / "soak-41782-second-shared-quiet"
TRIMMED_LATE: Final = RACES / "soak-41947-shared-racing"
BEFORE_THE_REWIND: Final = RACES / "ops-40048-seek-earliest-classic-ch"
MOVED_LATE: Final = RACES / "soak-84721-classic-ch-racing"


def test_a_position_that_is_stored_again_trims_nothing(tmp_path: Path) -> None:
    tally = t.verified(STORED_AGAIN).tally
    assert tally.total("exact") == tally.total("decisions") > 100
    trace = t.raw(STORED_AGAIN)
    t.line_of(trace, 57)["positions"] = ["26:4", "26:5"]
    trace.remove(t.line_of(trace, 58))
    assert 57 in {finding.seq for finding in t.divergent(STORED_AGAIN, trace, tmp_path)}


@pytest.mark.parametrize(
    ("behind", "target", "shown", "status"),
    [
        (48, "26:1", "26:1", ["uncertain"]),
        (50, "26:1", "26:1", ["divergent"]),  # half a second later
        (48, "26:2", "26:2", ["divergent"]),  # never in force
        (48, "26:3", "26:1", ["divergent"]),
    ],
)
def test_a_position_that_is_stored_again_may_be_that_of_a_moment_before(
    behind: int, target: str, shown: str, status: list[str], tmp_path: Path
) -> None:
    """A timer's thread reads the position, and is held up before its line; line 48 moves it from 26:1 to 26:3."""
    trace = t.raw(STORED_AGAIN)
    if behind == 48:
        trace = t.moved(trace, 50, behind)
    (line,) = [line for line in trace if line.get("op") == "mark_delete"]
    line |= {"target": target, "mark_delete": shown}
    found = t.found_at(STORED_AGAIN, trace, tmp_path, line["seq"])
    assert [finding.status for finding in found] == status


def test_a_move_trims(tmp_path: Path) -> None:
    """An expiry to 26:4 passes it, so that the read asks for 26:5 alone."""
    trace = t.raw(STORED_AGAIN)
    t.line_of(trace, 50)["target"] = "26:4"
    found = t.divergent(STORED_AGAIN, trace, tmp_path)
    assert "replay read of [26:5] (1)" in {finding.expected for finding in found}


def test_the_race_is_named() -> None:
    tally = t.verified(TRIMMED_LATE).tally
    assert [(f.seq, f.status, f.racing_seq) for f in tally.findings] == [(81, "uncertain", 71)]


@pytest.mark.parametrize(("seq", "unacked"), [(81, 45), (81, 30), (81, 47), (90, 47), (100, 55)])
def test_a_counter_falls_by_all_or_nothing_and_soon(seq: int, unacked: int, tmp_path: Path) -> None:
    """Line 82 is asked for when the skip is answered: the counter has fallen by then."""
    trace = t.raw(TRIMMED_LATE)
    t.line_of(trace, seq)["usable"][0][3] = unacked
    assert seq in {finding.seq for finding in t.divergent(TRIMMED_LATE, trace, tmp_path)}


def test_a_counter_does_not_fall_much_later(tmp_path: Path) -> None:
    trace = t.raw(TRIMMED_LATE)
    for line in trace:
        if line.get("seq", 0) >= 73:
            line["t_us"] += 2 * HELD_UP_US
    assert 81 in {finding.seq for finding in t.divergent(TRIMMED_LATE, trace, tmp_path)}


def test_an_operation_within_a_round_that_rewinds_shows_the_position_before() -> None:
    tally = t.verified(BEFORE_THE_REWIND).tally
    assert tally.total("divergent") == 0
    assert [(f.status, f.racing_seq) for f in tally.findings if f.seq == 361] == [("uncertain", 360)]


@pytest.mark.parametrize("read_position", ["97:42", "97:164", "97:0"])
def test_it_shows_no_other_position(read_position: str, tmp_path: Path) -> None:
    trace = t.raw(BEFORE_THE_REWIND)
    t.line_of(trace, 361)["read_position"] = read_position
    assert 361 in {finding.seq for finding in t.divergent(BEFORE_THE_REWIND, trace, tmp_path)}


@pytest.mark.parametrize("behind", [362, 363])
def test_it_shows_no_position_before_a_rewind_that_is_logged(behind: int, tmp_path: Path) -> None:
    trace = t.moved(t.raw(BEFORE_THE_REWIND), 361, behind)
    assert behind in {finding.seq for finding in t.divergent(BEFORE_THE_REWIND, trace, tmp_path)}


def test_it_shows_no_position_before_a_rewind_without_its_line(tmp_path: Path) -> None:
    trace = t.raw(BEFORE_THE_REWIND)
    trace.remove(t.line_of(trace, 362))
    assert 361 in {finding.seq for finding in t.divergent(BEFORE_THE_REWIND, trace, tmp_path)}


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        ("4:55", ["uncertain"]),
        ("4:75", []),
        ("4:54", ["divergent"]),  # left before the move began
        ("4:60", ["divergent"]),  # never in force
    ],
)
def test_a_move_may_not_have_come_until_a_line_says_so(shown: str, status: list[str], tmp_path: Path) -> None:
    trace = t.raw(MOVED_LATE)
    t.line_of(trace, 376)["mark_delete"] = shown
    found = t.found_at(MOVED_LATE, trace, tmp_path, 376)
    assert [finding.status for finding in found] == status


@pytest.mark.parametrize("line", [378, 385])
def test_behind_a_line_that_shows_a_move_it_has_come(line: int, tmp_path: Path) -> None:
    """Line 378 says that mark-delete has moved, and the statistics of line 385 show it."""
    trace = t.moved(t.raw(MOVED_LATE), line, 375)
    assert t.line_of(trace, 377)["kind"] == "round_begin"
    assert 377 in {finding.seq for finding in t.divergent(MOVED_LATE, trace, tmp_path)}
