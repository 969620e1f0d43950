"""Acks that take effect after the entries of a replay read were chosen, and before the cursor looks at them.

In ``4.0.0/soak-80006-range-quiet`` (tests/data/races) three entries were sent by two replay reads, of which the dispatcher
has forgotten one (#23384). While line 1671 asks to read them again, their consumer acknowledges them, so the cursor finds
all three acknowledged: line 1681.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "soak-80006-range-quiet"
REQUEST, FIRST_ACK, LAST_ACK, DELETED = 1671, 1665, 1677, 1681


def test_the_acks_name_the_race() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    found = [finding for finding in tally.findings if finding.seq in (REQUEST, DELETED)]
    assert [(finding.status, finding.racing_seq) for finding in found] == [("uncertain", FIRST_ACK)] * 2


@pytest.mark.parametrize("change", ["acknowledged later", "fewer deleted", "not asked for"])
def test_nothing_else_is_explained(tmp_path: Path, change: str) -> None:
    trace = t.raw(RECORDING)
    if change == "acknowledged later":
        last = t.line_of(trace, LAST_ACK)
        trace = t.moved(trace, last["seq"], DELETED)
    elif change == "fewer deleted":
        t.line_of(trace, DELETED)["positions"] = ["26:85"]
    else:
        t.line_of(trace, REQUEST)["positions"] = ["26:82", "26:85", "26:90"]
    assert t.divergent(RECORDING, trace, tmp_path)
