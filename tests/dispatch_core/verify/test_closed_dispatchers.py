"""A dispatcher of several consumers that is closed reads nothing any more (getFirstAvailableConsumerPermits, IS_CLOSED).

In ``4.2.4/soak-5149-first-classic-ch-racing`` (tests/data/races) the topic is unloaded. The dispatcher is closed, then its
consumers are disconnected one after the other. The entries of the first one go to the replay set, and the second one has
permits; but the read attempts of the removal read nothing. The recorder of that time wrote no line of the closing.

In ``4.2.4/soak-7013-second-classic-shared-racing`` a read is in flight when the subscription is deleted. Its consumer has a
permit, but the round that dispatches the result sends nothing: the dispatcher was closed at line 65.

In ``soak-8563-second-classic-shared-racing`` the only consumer is removed at line 46. Its connection acknowledges what it
held from 47 on. In ``soak-9775-second-classic-shared-racing`` the cursor is closed when it does so. In
``soak-14749-second-classic-shared-racing`` it is open, and messages of a batch are acknowledged one by one before.

In ``soak-15089-shared-racing`` a dispatch rate holds reads back, and the only consumer leaves. Another one joins later, so
the dispatcher was not closed.

In ``soak-81661-second-sticky-racing`` a read of ten entries goes around acknowledged ones when the topic is unloaded (line
26). It ends with four (line 35). The same is so in Failover and Exclusive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.verify.trace.limits_in_force import REASON_OF_RATE
from dispatch_core.verify.trace.multiple_consumers import CLOSES_WITHIN_US
from dispatch_core.verify.trace.runner import Verification
from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.single_active_trace import Trace as SingleActiveTrace

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-5149-first-classic-ch-racing"
)
SHARED: Final = RECORDING.with_name("soak-7013-second-classic-shared-racing")
CLOSED, ROUND_END = 65, 69
LATE: Final = RECORDING.with_name("soak-8563-second-classic-shared-racing")
TOO_LATE: Final = RECORDING.with_name("soak-9775-second-classic-shared-racing")
IN_PARTS: Final = RECORDING.with_name("soak-14749-second-classic-shared-racing")
RATED: Final = RECORDING.with_name("soak-15089-shared-racing")

Trace = list[dict[str, Any]]


def result_of(trace: Trace, where: Path) -> Verification:
    """Verify a changed copy of the recording."""
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    return t.verified(t.copy_with(RECORDING, trace, where))


def first_removal(trace: Trace) -> int:
    """The index of the line ``consumer_removing`` of the first consumer that the closed dispatcher disconnects."""
    return t.places(trace, "consumer_removing")[-2]


def closing(trace: Trace) -> dict[str, Any]:
    """The line that a recorder writes when the dispatcher is closed."""
    before = trace[first_removal(trace)]
    own = {name: before[name] for name in ("topic", "subscription", "incarnation", "t_us")}
    return own | {"kind": "all_disconnecting"}


def test_attempts_of_a_closed_dispatcher_read_nothing() -> None:
    assert t.verified(RECORDING).tally.total("divergent") == 0


def test_a_line_shows_that_it_is_closed(tmp_path: Path) -> None:
    """With the line, it does not matter when the other consumers leave."""
    trace = t.raw(RECORDING)
    trace.insert(first_removal(trace), closing(trace))
    for line in trace[t.places(trace, "consumer_removing")[-1] :]:
        line["t_us"] += 2 * CLOSES_WITHIN_US
    assert result_of(trace, tmp_path).tally.total("divergent") == 0


def test_a_consumer_that_leaves_alone_is_no_closing(tmp_path: Path) -> None:
    """The other consumer leaves much later: the entries should have been read for it."""
    trace = t.raw(RECORDING)
    for line in trace[t.places(trace, "consumer_removing")[-1] :]:
        line["t_us"] += 2 * CLOSES_WITHIN_US
    result = result_of(trace, tmp_path)
    (first, *_) = [finding for finding in result.tally.findings if finding.status == "divergent"]
    assert (first.decision_class, first.expected, first.recorded) == ("state", "pending_replay True", "False")


def test_a_read_of_a_closed_dispatcher_diverges(tmp_path: Path) -> None:
    """The closing is moved in front of a read that was issued."""
    trace = t.raw(RECORDING)
    line, issued = closing(trace), t.places(trace, "read_issued")[0]
    attempt = max(at for at in t.places(trace, "read_attempt") if at < issued)
    trace.insert(attempt, line | {"t_us": trace[attempt]["t_us"]})
    result = result_of(trace, tmp_path)
    assert result.tally.counts["read"]["divergent"] > 0


def closed_at(behind: int, where: Path) -> Verification:
    """Verify a copy in which the Shared dispatcher is closed right behind a line."""
    trace = t.raw(SHARED)
    at = next(at for at, line in enumerate(trace) if line.get("seq") == CLOSED)
    line = trace.pop(at)
    trace.insert(at + behind - CLOSED, line | {"t_us": trace[at + behind - CLOSED - 1]["t_us"]})
    header = next(at for at, line in enumerate(trace) if line.get("seq") == 1)
    for seq, line in enumerate(trace[header:], 1):
        line["seq"] = seq
    return t.verified(t.copy_with(SHARED, trace, where))


def test_a_round_of_a_closed_shared_dispatcher_sends_nothing() -> None:
    tally = t.verified(SHARED).tally
    assert tally.total("exact") == tally.total("decisions") > 120


def test_a_dispatcher_that_is_closed_within_a_round_may_send_nothing(tmp_path: Path) -> None:
    found = t.decided(closed_at(ROUND_END - 1, tmp_path))
    assert {(finding.status, finding.racing_seq) for finding in found} == {("uncertain", ROUND_END - 1)}


def test_a_dispatcher_that_is_closed_later_sends_what_it_has_read(tmp_path: Path) -> None:
    found = t.decided(closed_at(ROUND_END, tmp_path))
    assert (found[0].status, found[0].seq) == ("divergent", ROUND_END - 1)


@pytest.mark.parametrize(("folder", "exact"), [(LATE, 160), (TOO_LATE, 170), (IN_PARTS, 200)], ids=str)
def test_a_consumer_that_was_removed_acknowledges(folder: Path, exact: int) -> None:
    tally = t.verified(folder).tally
    assert tally.total("divergent") == 0
    assert tally.total("exact") > exact


def test_a_dispatcher_that_a_consumer_joins_was_not_closed(tmp_path: Path) -> None:
    """Without the join nothing shows that the dispatcher is open, and the rate is not needed to explain the attempts."""
    tally = t.verified(RATED).tally
    assert (tally.total("divergent"), tally.not_judged) == (0, {REASON_OF_RATE: {"read": 2}})
    trace = t.raw(RATED)
    join = next(at for at, line in enumerate(trace) if line.get("kind") == "rewind" and line["seq"] > 800)
    assert t.verified(t.copy_with(RATED, trace[:join], tmp_path)).tally.total("divergent") == 0


@pytest.mark.parametrize("position", ["272:0", "272:9"])
def test_only_what_it_held_and_acknowledges_leaves_its_pending_acks(position: str, tmp_path: Path) -> None:
    """272:0 was acknowledged before, 272:9 is acknowledged later."""
    trace = t.raw(LATE)
    (line,) = [line for line in trace if line.get("seq") == 48]
    assert line["positions"] == ["272:1"]
    line["positions"] = [position]
    found = t.verified(t.copy_with(LATE, trace, tmp_path)).tally.findings
    assert 48 in {finding.seq for finding in found if finding.status == "divergent"}


def test_an_acknowledgement_reaches_a_cursor_that_is_open(tmp_path: Path) -> None:
    """Line 61 shows mark-delete as of before the acknowledgements of 56 and 58, which is right if the cursor was closed."""
    trace = [line for line in t.raw(TOO_LATE) if line.get("kind") != "all_disconnecting"]
    first = next(at for at, line in enumerate(trace) if line.get("seq") == 1)
    for seq, line in enumerate(trace[first:], 1):
        line["seq"] = seq
    found = t.verified(t.copy_with(TOO_LATE, trace, tmp_path)).tally.findings
    assert "position" in {finding.decision_class for finding in found if finding.status == "divergent"}


BROKEN_OFF: Final = RECORDING.with_name("soak-81661-second-sticky-racing")
CLOSING, READ_DONE = 26, 35


@pytest.mark.parametrize(
    ("shown", "status"), [("20:8", "uncertain"), ("20:6", "divergent"), ("20:9", "divergent")]
)
def test_the_close_of_a_topic_breaks_a_read_off(shown: str, status: str, tmp_path: Path) -> None:
    trace = t.raw(BROKEN_OFF)
    t.line_of(trace, READ_DONE)["read_position"] = shown
    found = t.found_at(BROKEN_OFF, trace, tmp_path, READ_DONE)
    racing = CLOSING if status == "uncertain" else None
    assert (status, racing) in {(f.status, f.racing_seq) for f in found}


def test_a_topic_that_goes_on_breaks_no_read_off(tmp_path: Path) -> None:
    trace = [line for line in t.raw(BROKEN_OFF) if line.get("seq") != CLOSING]
    for number, line in enumerate((line for line in trace if "seq" in line), 1):
        line["seq"] = number
    assert READ_DONE - 1 in {finding.seq for finding in t.divergent(BROKEN_OFF, trace, tmp_path)}


def broken_off(shown: int, where: Path, *, closed: bool = True) -> Verification:
    """Verify a read of three entries that returns two and shows ``shown``, when the third is acknowledged."""
    trace = SingleActiveTrace(kind="Exclusive", entries=3)
    trace.first(1, "a")
    trace.flow(1, 6)
    trace("flow_applied", consumer=1)
    trace.reads(1, 6)
    trace.done(1, [0, 1, 2])
    trace.round(1, [0, 1, 2], 6)
    trace("ack", consumer=1, ack_type="Individual", positions=[2])
    trace("redeliver", consumer=1, positions=None)
    trace("rewind", read_position=0)
    trace.reads(1, 3)
    trace("all_disconnecting" if closed else "step")
    trace("read_done", type="Normal", consumer=1, positions=[0, 1], read_position=shown)
    return trace.verified(where)


@pytest.mark.parametrize(
    ("shown", "status"),
    [(2, ["uncertain"]), (3, []), (1, ["divergent"])],
    ids=["broken off", "whole", "no end"],
)
def test_the_close_of_a_topic_breaks_a_read_for_one_consumer_off(
    shown: int, status: list[str], tmp_path: Path
) -> None:
    found = broken_off(shown, tmp_path).tally.findings
    assert [finding.status for finding in found if finding.decision_class == "position"] == status


def test_a_read_for_one_consumer_goes_on_to_the_end_if_the_topic_stays(tmp_path: Path) -> None:
    found = broken_off(2, tmp_path, closed=False).tally.findings
    assert [finding.status for finding in found if finding.decision_class == "position"] == ["divergent"]
