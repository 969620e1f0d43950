"""Mark-delete that moves after an attempt has trimmed up to it, in releases whose attempts trim (until #25581).

In ``4.0.0/soak-80119-ch-racing`` (tests/data/races) entries 10:48 and 10:49 are acknowledged, and sent again by a read that
was in flight. The attempt of line 1284 trims the first one alone, line 1285: the cursor moves to 10:49 later, line 1287. So
the next attempt trims the second one, line 1293.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "soak-80119-ch-racing"
BEFORE, ATTEMPT_END, MOVE, TRIM = 1283, 1286, 1287, 1293


def test_the_move_names_the_race() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    found = [finding for finding in tally.findings if finding.seq == ATTEMPT_END]
    assert [(finding.status, finding.racing_seq) for finding in found] == [("uncertain", MOVE)]


@pytest.mark.parametrize("change", ["moved before", "not trimmed later", "trimmed by another consumer"])
def test_nothing_else_is_explained(tmp_path: Path, change: str) -> None:
    trace = t.raw(RECORDING)
    if change == "moved before":
        trace = t.moved(trace, MOVE, BEFORE)
    elif change == "not trimmed later":
        trace.remove(t.line_of(trace, TRIM))
        for seq, line in enumerate(trace[trace.index(t.line_of(trace, 1)) :], 1):
            line["seq"] = seq
    else:
        t.line_of(trace, TRIM)["consumer"] = 2
    assert t.divergent(RECORDING, trace, tmp_path)
