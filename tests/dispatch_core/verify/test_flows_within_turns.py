"""A flow may take effect between the choice of a consumer and the send of the same turn of a Shared subscription.

A turn has as many entries as the consumer had permits when it was chosen; ``sent`` shows its permits right before the send.
In a made trace consumer 1 is chosen with two permits. Its flow of five comes then, so that the send begins with seven, and
the third entry is sent in another turn.

In ``4.0.0/soak-reload-0204-third-classic-shared-racing`` (tests/data/races) a flow is counted after the first turn of a
round. Its line ``flow_counted`` is written within the second turn, and shows the permits before that is charged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.shared_trace import SharedTrace, normal_read, verified

TWO_TURNS: Final = (
    Path(__file__).resolve().parents[2]
    / "data"
    / "races"
    / "4.0.0"
    / "soak-reload-0204-third-classic-shared-racing"
)
FLOW, COUNTED = 102, 105


def flow_within_a_turn(*, before_send: bool = True, chosen: int = 2) -> list[dict[str, Any]]:
    """Make a trace in which consumer 1 gets ``chosen`` entries at first; its flow comes before that send, or after."""
    trace = SharedTrace()
    trace.add("rewind", read_position=True, mark_delete=True)
    trace.join(1, 2)
    trace.attempt([[1, 2, 2, 0]], normal_read(2), normal=True, replay=False)
    trace.done("Normal", 0, 1, 2)
    trace.round_begins("Normal", 0, 1, 2)
    if before_send:
        trace.add("flow", 1, permits=5, blocked=False)
    trace.send(1, 7, *range(chosen))
    if not before_send:
        trace.add("flow", 1, permits=5, blocked=False)
    trace.send(1, 7 - chosen, *range(chosen, 3))
    trace.round_ends(0)
    trace.add("flow_counted", 1, permits_after=4, blocked_after=False)
    return trace.lines


def test_the_flow_is_named(tmp_path: Path) -> None:
    trace = flow_within_a_turn()
    (flow,) = [line["seq"] for line in trace[2:] if line.get("permits") == 5]
    result = verified(trace, tmp_path)
    assert result.tally.total("divergent") == 0
    found = t.decided(result)
    assert {(finding.status, finding.racing_seq) for finding in found} == {("uncertain", flow)}


@pytest.mark.parametrize("change", [{"before_send": False}, {"chosen": 1}])
def test_another_turn_is_not_explained(change: dict[str, Any], tmp_path: Path) -> None:
    """Permits that had not arrived before the send, or a turn of fewer entries than there were permits in any order."""
    first = t.first_wrong(verified(flow_within_a_turn(**change), tmp_path))
    assert first is not None


@pytest.mark.parametrize(("shown", "diverges"), [(7, False), (5, False), (6, True), (12, True)])
def test_a_counted_flow_shows_the_permits_before_or_after_a_charge(
    shown: int, diverges: bool, tmp_path: Path
) -> None:
    trace = t.raw(TWO_TURNS)
    (line,) = [line for line in trace if line.get("seq") == COUNTED]
    line["permits_after"] = shown
    found = t.verified(t.copy_with(TWO_TURNS, trace, tmp_path)).tally.findings
    assert (COUNTED in {finding.seq for finding in found if finding.status == "divergent"}) == diverges
