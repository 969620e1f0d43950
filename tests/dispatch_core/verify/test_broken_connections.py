"""A connection that breaks matters to Key_Shared before its consumer is removed (isConsumerWritable, getAvailablePermits).

In ``4.0.0/soak-30247-sticky-racing`` (tests/data/races) the only consumer is removed at line 226. Its connection is not
writable any more at 224: the read asks for one entry. In ``soak-30111-sticky-racing`` consumer 2 is removed at line 249. Its
connection is not active any more in the round of 246: the consumer has no permits, so the round looks no further ahead. In
``4.2.4/soak-81251-ch-racing``, of a busy machine, the only consumer is removed 283 ms behind the round that sends it
nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatch_core.verify.trace.earlier_positions import HELD_UP_US
from tests.dispatch_core.verify import tampering as t

RACES: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0"
NOT_WRITABLE: Final = RACES / "soak-30247-sticky-racing"
NOT_ACTIVE: Final = RACES / "soak-30111-sticky-racing"
HELD_UP: Final = RACES.parent / "4.2.4" / "soak-81251-ch-racing"
DECISIONS: Final = [
    (NOT_WRITABLE, "read", 224, 226),
    (NOT_ACTIVE, "round", 248, 249),
    (HELD_UP, "round", 15, 16),
]


@pytest.mark.parametrize(("folder", "decision_class", "seq", "removal"), DECISIONS, ids=str)
def test_a_removal_that_comes_soon_explains_the_decision(
    folder: Path, decision_class: str, seq: int, removal: int
) -> None:
    tally = t.verified(folder).tally
    assert tally.total("divergent") == 0
    assert tally.counts[decision_class]["uncertain"] == 1
    assert (seq, removal) in {(finding.seq, finding.racing_seq) for finding in tally.findings}


@pytest.mark.parametrize(("folder", "decision_class", "seq", "removal"), DECISIONS, ids=str)
def test_a_removal_that_comes_later_does_not(
    folder: Path, decision_class: str, seq: int, removal: int, tmp_path: Path
) -> None:
    trace = t.raw(folder)
    for line in trace:
        if line.get("seq", 0) >= removal:
            line["t_us"] += HELD_UP_US
    found = t.verified(t.copy_with(folder, trace, tmp_path)).tally.findings
    assert (decision_class, seq) in {(f.decision_class, f.seq) for f in found if f.status == "divergent"}
