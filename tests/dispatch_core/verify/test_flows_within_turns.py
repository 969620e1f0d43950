"""A flow may take effect between the choice of a consumer and the send of the same turn of a Shared subscription.

A turn has as many entries as the consumer had permits when it was chosen; ``sent`` shows its permits right before the send.
In a made trace consumer 1 is chosen with two permits. Its flow of five comes then, so that the send begins with seven, and
the third entry is sent in another turn.

In ``4.0.0/soak-reload-0204-third-classic-shared-racing`` (tests/data/races) a flow is counted after the first turn of a
round. Its line ``flow_counted`` is written within the second turn, and shows the permits before that is charged.

In ``4.0.0/shared-40009-classic-racing`` the connection of consumer 2 grants 5 permits at line 299, before the first send of
a round, and 5 more at 304. The first flow counts behind the choice of consumer 1, which line 300 shows, and so it is
consumer 2's turn at 302.
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
TWO_FLOWS: Final = TWO_TURNS.parent / "shared-40009-classic-racing"


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


def test_the_first_of_two_flows_counts_behind_the_choice_of_a_consumer(tmp_path: Path) -> None:
    result = t.verified(TWO_FLOWS)
    assert result.tally.total("divergent") == 0
    assert (300, 299) in {(finding.seq, finding.racing_seq) for finding in result.tally.findings}


@pytest.mark.parametrize(("flow", "behind"), [(299, 303), (304, 301)])
def test_a_flow_counts_neither_before_its_line_nor_behind_the_send_that_shows_it(
    flow: int, behind: int, tmp_path: Path
) -> None:
    """The first flow comes behind the send to its consumer; the second before that send, which shows 5 permits."""
    trace = t.moved(t.raw(TWO_FLOWS), flow, behind)
    assert t.divergent(TWO_FLOWS, trace, tmp_path)
