"""Permits that reach the dispatcher show which flows of their connection are counted, and which may still be open.

``4.2.4/random-1000-sticky-quiet`` (tests/data/races): flows of 1 arrive at the lines 1686, 1688 and 1690, the first two
are counted at once, the last at 1701. The line 1691 shows that the permits of the first have reached the dispatcher: it
shows nothing about the last, so that the read at 1694 and the delivery at 1698 see 2 permits.

They show nothing about acknowledgements, unless their consumer was blocked. In ``4.2.4/soak-80354-classic-ch-quiet`` an ack
(line 1710) frees a recently joined consumer when it reaches the cursor. Permits of its connection, of before, reach the
dispatcher first, and the attempts of 1713 and 1716 find nothing to send.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "random-1000-sticky-quiet"
)
LAST_FLOW, FIRST_APPLIED, READ, SENT, COUNTED = 1690, 1691, 1694, 1698, 1701

Trace = list[dict[str, Any]]


def findings_of(trace: Trace, where: Path) -> list[tuple[str, int | None, int]]:
    """Verify a changed copy; return the kind of each finding from the last flow on, its racing line and the line itself."""
    seqs = [line["seq"] for line in trace[1:]]
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    found = t.decided(t.verified(t.copy_with(RECORDING, trace, where)))
    at = dict(enumerate(seqs, 1))
    return [(f.status, f.racing_seq and at[f.racing_seq], at[f.seq]) for f in found if at[f.seq] >= LAST_FLOW]


def test_the_open_flow_explains_what_differs(tmp_path: Path) -> None:
    assert findings_of(t.raw(RECORDING), tmp_path) == [
        ("uncertain", LAST_FLOW, READ),
        ("uncertain", LAST_FLOW, SENT),
    ]


def test_a_flow_whose_counting_is_logged_is_not_open(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    trace.insert(FIRST_APPLIED, trace.pop(COUNTED))
    assert ("divergent", None, READ) in findings_of(trace, tmp_path)


def test_permits_of_all_flows_that_reached_the_dispatcher_show_the_last_to_be_counted(tmp_path: Path) -> None:
    """The three lines of permits stand before the read: the third can only be that of the last flow."""
    trace = t.raw(RECORDING)
    applied = trace[1702:1704]
    del trace[1702:1704]
    assert {line["kind"] for line in applied} == {"flow_applied"}
    trace[FIRST_APPLIED + 1 : FIRST_APPLIED + 1] = applied
    assert ("divergent", None, READ) in findings_of(trace, tmp_path)


# --- acks ------------------------------------------------------------------------------------------------------------

ACKED: Final = RECORDING.with_name("soak-80354-classic-ch-quiet")
ACK, REACHED, OTHERS = 1710, 1712, (1714, 1717)


def test_permits_of_before_leave_an_ack_open() -> None:
    tally = t.verified(ACKED).tally
    assert tally.total("divergent") == 0
    assert [(finding.seq, finding.racing_seq) for finding in tally.findings] == [(at, ACK) for at in OTHERS]


def test_a_later_command_of_the_connection_closes_it(tmp_path: Path) -> None:
    """The last of the connection's flows, all of which were counted, is put behind the ack."""
    trace = t.moved(t.moved(t.raw(ACKED), 1704, REACHED), 1704, REACHED)
    assert {1714, 1717} <= {finding.seq for finding in t.divergent(ACKED, trace, tmp_path)}
