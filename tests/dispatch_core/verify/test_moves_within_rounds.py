"""A move of the cursor may come between two turns of a round of the classic dispatcher.

In ``4.0.0/soak-81997-classic-range-racing`` (tests/data/races) the backlog is cleared while the round of line 546 goes on.
Its first turn refuses an entry of consumer 1, which goes to the replay set. Then mark-delete moves (lines 547 and 548), and
the turn of consumer 3 frees it as recently joined (line 549): it is sent entries at line 550. What is refused from then on
is acknowledged, so that it does not go to the replay set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

CLEARED: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "soak-81997-classic-range-racing"
)
ROUND, MOVE, SENT, END = 546, 547, 550, 555
#: Entries in the replay set before the round, and refused in it.
BEFORE, REFUSED = 19, 7


def test_the_move_is_named() -> None:
    found = [
        (finding.seq, finding.status, finding.racing_seq)
        for finding in t.verified(CLEARED).tally.findings
        if finding.seq >= ROUND
    ]
    assert found == [
        (MOVE, "uncertain", ROUND),
        (MOVE, "uncertain", ROUND),
        (SENT, "uncertain", MOVE),
        (END, "uncertain", MOVE),
    ]


@pytest.mark.parametrize(
    ("in_replay", "statuses"),
    [
        (BEFORE - 1, {"divergent"}),
        (BEFORE, {"uncertain"}),
        (BEFORE + REFUSED, {"uncertain"}),
        (BEFORE + REFUSED + 1, {"divergent"}),
    ],
)
def test_what_the_round_refused_is_in_the_replay_set_or_passed(
    in_replay: int, statuses: set[str], tmp_path: Path
) -> None:
    trace = t.raw(CLEARED)
    t.line_of(trace, END)["in_replay"] = in_replay
    found = t.verified(t.copy_with(CLEARED, trace, tmp_path)).tally.findings
    assert {finding.status for finding in found if finding.seq in (SENT, END)} == statuses


def test_without_the_move_no_consumer_is_freed(tmp_path: Path) -> None:
    trace = t.raw(CLEARED)
    for seq in (MOVE, MOVE + 1):
        trace.remove(t.line_of(trace, seq))
    assert SENT in {finding.seq for finding in t.divergent(CLEARED, trace, tmp_path)}


@pytest.mark.parametrize("field", ["read_position", "mark_delete"])
def test_the_line_of_the_move_shows_no_third_position(field: str, tmp_path: Path) -> None:
    trace = t.raw(CLEARED)
    t.line_of(trace, MOVE)[field] = "45:60"
    assert MOVE in {finding.seq for finding in t.divergent(CLEARED, trace, tmp_path)}
