"""A redelivery request unblocks its consumer before the permits that were parked meanwhile count.

``4.2.4/soak-0002-range-quiet`` (tests/data/races): consumer 1 is blocked on unacknowledged messages and has one permit. Two
flows of 1, at the lines 1261 and 1263, are parked. Its redelivery request at line 1275 asks for five entries. The read
attempt that follows sees one permit, and asks for one further entry; at its end there are three.

In ``4.2.4/soak-11892-third-classic-shared-quiet`` an acknowledgement unblocks a consumer with 50 parked permits. The attempt
of line 683 shows its permits and its counter as of before.

In ``4.2.4/soak-82305-classic-shared-racing`` a blocked consumer with -1 permits grants 5 twice within a round, at the lines
203 and 206. Both flows are parked, so that neither line shows more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-0002-range-quiet"
REQUEST, READ, READ_DONE = 1275, 1278, 1279


def findings_of(trace: t.Trace, where: Path) -> list[tuple[str, int | None, int]]:
    """Verify a changed copy; return status, racing line and line of each difference in what is read."""
    found = t.decided(t.verified(t.copy_with(RECORDING, trace, where)))
    return [(f.status, f.racing_seq, f.seq) for f in found if f.decision_class == "read"]


def test_a_read_may_come_before_the_parked_permits_count(tmp_path: Path) -> None:
    assert findings_of(t.raw(RECORDING), tmp_path) == [("uncertain", REQUEST, READ)]


def test_no_order_explains_another_entry(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    for line in trace:
        if line.get("seq") in (READ, READ_DONE):
            assert line["positions"][-1] == "4:93"
            line["positions"][-1] = "4:94"
    assert ("divergent", None, READ) in findings_of(trace, tmp_path)


ACKED: Final = RECORDING.with_name("soak-11892-third-classic-shared-quiet")
SHOWN: Final = 685


@pytest.mark.parametrize(
    ("values", "diverges"),
    [([0, 0, 23], False), ([50, 50, 22], False), ([0, 0, 24], True), ([25, 25, 22], True)],
)
def test_an_acknowledgement_frees_parked_permits_a_little_later(
    values: list[int], diverges: bool, tmp_path: Path
) -> None:
    """The removal of line 682 unblocks consumer 3: the attempt shows its counters from before or after that."""
    trace = t.raw(ACKED)
    (line,) = [line for line in trace if line.get("seq") == SHOWN]
    assert line["usable"][0] == [3, 0, 0, 23]
    line["usable"][0][1:] = values
    found = t.verified(t.copy_with(ACKED, trace, tmp_path)).tally.findings
    assert (SHOWN in {finding.seq for finding in found if finding.status == "divergent"}) == diverges


WITHIN_A_ROUND: Final = RECORDING.with_name("soak-82305-classic-shared-racing")
COUNTED: Final = 205


@pytest.mark.parametrize(("shown", "statuses"), [(-1, set()), (-6, {"divergent"}), (4, {"divergent"})])
def test_flows_within_a_round_are_parked(shown: int, statuses: set[str], tmp_path: Path) -> None:
    trace = t.raw(WITHIN_A_ROUND)
    t.line_of(trace, COUNTED)["permits_after"] = shown
    found = t.found_at(WITHIN_A_ROUND, trace, tmp_path, COUNTED)
    assert {finding.status for finding in found} == statuses
