"""The order in which a classic round serves its consumers: that of a hash map, which a round after the other shows.

In ``4.0.0/soak-81114-classic-range-quiet`` (tests/data/races) two consumers share a bucket, so whoever's entry comes first
in a round is served last: in the round of line 122 consumer 1 has the first entry and is served behind consumer 2. In that
of line 337 consumer 2 has the first one. So its turn, in which it gets nothing, comes behind the send to consumer 1, whose
write may be complete by then: the round reads on by itself (line 341).

In ``4.0.0/soak-84369-classic-range-racing`` a flow is counted within a round besides, behind the look at the consumer's
permits: the lines of the round have a value of each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "soak-81114-classic-range-quiet"
)
SEND, END = 339, 341


def test_a_consumer_whose_entry_comes_first_is_served_last() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    (found,) = [finding for finding in tally.findings if finding.seq == END]
    assert (found.status, found.racing_seq) == ("uncertain", SEND)


def test_a_round_with_entries_in_the_order_of_earlier_rounds_has_no_excuse(tmp_path: Path) -> None:
    """Had consumer 1 the first entry, as in the round of line 122, then consumer 2 would have been served before it."""
    trace = t.raw(RECORDING)
    for line in trace:
        if line.get("seq") in (336, 337):
            line["positions"].remove("7:90")
            line["positions"].remove("7:91")
            if line.get("hashes"):
                del line["hashes"][:2]
    t.line_of(trace, END)["in_replay"] -= 2
    assert END in {finding.seq for finding in t.divergent(RECORDING, trace, tmp_path)}


# --- a flow within the round, besides -----------------------------------------------------------------------------

RACES: Final = RECORDING.parents[1] / "4.0.0" / "soak-84369-classic-range-racing"
FLOW, SENT, ENDED = 771, 773, 775


def test_a_flow_and_a_write_may_both_come_within_a_round() -> None:
    tally = t.verified(RACES).tally
    assert tally.total("divergent") == 0
    found = {(finding.seq, finding.decision_class, finding.racing_seq) for finding in tally.findings}
    assert {(SENT, "dispatch", FLOW), (ENDED, "round", FLOW)} <= found


@pytest.mark.parametrize(
    ("seq", "changed"),
    [
        (SENT, {"permits_before": 7}),  # neither with the flow nor without it
        (ENDED, {"look_ahead": True}),
        (ENDED, {"in_replay": 30}),
    ],
)
def test_what_neither_explains_is_divergent(seq: int, changed: dict[str, object], tmp_path: Path) -> None:
    trace = t.raw(RACES)
    t.line_of(trace, seq).update(changed)
    assert seq in {finding.seq for finding in t.divergent(RACES, trace, tmp_path)}
