"""An entry may be pending on two consumers at once (``several_holders``).

Of Shared, a made trace of the classic dispatcher, as its source has it (sendInProgress, havePendingReplayRead).
Consumer 1 asks for entry 0 again. Its replay read and a normal read end one after the other, so that two rounds wait.
The first round clears ``sendInProgress``; entry 0 is still in the replay set, so it is read once more before the second
round sends it. Consumer 1 gets it from the first replay read, consumer 2 from the second. Each of them acknowledges it.

Of Key_Shared, ``4.0.0/soak-84912-range-quiet`` (tests/data/races), whose clients allow deliveries out of order. Line
711 sends entries to consumer 4. They are read again by a replay read in flight, and stay in the replay set. Consumer 6
joins and gets five of them in line 867. Both acknowledge them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.shared_trace import SharedTrace, normal_read, places, replay_read, verified


def sent_twice(
    first_ack: int = 1, second_ack: int = 2, second_holder: int | None = None
) -> list[dict[str, Any]]:
    """Make the trace; both consumers acknowledge entry 0 in this order."""
    trace = SharedTrace()
    trace.add("rewind", read_position=True, mark_delete=True)
    trace.join(1, 5)
    trace.attempt([[1, 5, 5, 0]], normal_read(5), normal=True, replay=False)
    trace.done("Normal", 0)
    trace.round("Normal", 0, 1, 5, 0)
    trace.attempt([[1, 4, 4, 1]], normal_read(4), normal=True, replay=False)
    trace.join(2, 5)
    trace.attempt([[1, 4, 4, 1], [2, 5, 5, 0]], normal=True, replay=False)
    trace.add("pending_ack_removed", 1, positions=places(0), hash=0)
    trace.add("redeliver", 1, positions=places(0))
    trace.attempt([[1, 4, 4, 0], [2, 5, 5, 0]], replay_read(0), normal=True, replay=True)
    trace.done("Normal", 1)
    trace.done("Replay", 0)
    trace.round("Normal", 1, 2, 5, 1)
    trace.attempt([[1, 4, 4, 0], [2, 4, 4, 1]], replay_read(0), normal=False, replay=True)
    trace.round("Replay", 0, 1, 4, 0)
    trace.attempt([[1, 3, 3, 1], [2, 4, 4, 1]], normal=False, replay=True)
    trace.done("Replay", 0)
    trace.round("Replay", 0, 2, 4, 0)
    trace.attempt([[1, 3, 3, 1], [2, 3, 3, 2]], normal_read(6), normal=True, replay=False)
    trace.ack(first_ack, 0, first_ack)
    trace.mark_delete = 0
    trace.add("mark_delete", mark_delete=True)
    trace.ack(second_ack, 0, second_ack if second_holder is None else second_holder)
    trace.add("flow", 1, permits=1, blocked=False)
    trace.add("flow_counted", 1, permits_after=4, blocked_after=False)
    trace.add("flow_applied", 1, permits=1)
    trace.attempt([[1, 4, 4, 0], [2, 3, 3, 1]], normal=True, replay=False)
    return trace.lines


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_each_of_two_consumers_acknowledges_the_entry(first: int, second: int, tmp_path: Path) -> None:
    tally = verified(sent_twice(first, second), tmp_path).tally
    assert tally.total("exact") == tally.total("decisions") > 80


def test_the_second_acknowledgement_is_of_the_other_pending_ack(tmp_path: Path) -> None:
    """Consumer 1 acknowledges twice: the second time it has none, so that of consumer 2 goes."""
    assert verified(sent_twice(1, 1, second_holder=2), tmp_path).tally.total("divergent") == 0
    assert verified(sent_twice(1, 1, second_holder=1), tmp_path / "1").tally.total("divergent") > 0


@pytest.mark.parametrize(("place", "unacked"), [(3, 1), (7, 0), (7, 3)])
def test_another_counter_diverges(place: int, unacked: int, tmp_path: Path) -> None:
    trace = sent_twice()
    usable = trace[-1]["usable"]
    row = usable[place // 4]
    assert row[place % 4] != unacked
    row[place % 4] = unacked
    findings = verified(trace, tmp_path).tally.findings
    assert trace[-1]["seq"] in {finding.seq for finding in findings if finding.status == "divergent"}


KEY_SHARED: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "soak-84912-range-quiet"
)


def test_each_consumer_of_key_shared_acknowledges_the_entry() -> None:
    result = t.verified(KEY_SHARED)
    assert result.tally.total("divergent") == 0
    trace = t.raw(KEY_SHARED)
    entry = t.line_of(trace, 883)["positions"]
    assert [t.line_of(trace, seq)["consumer"] for seq in (711, 867, 883)] == [4, 6, 4]
    assert all(entry[0] in t.line_of(trace, seq)["positions"] for seq in (711, 867))


@pytest.mark.parametrize("seq", [883, 886, 892, 895, 907])
def test_an_acknowledgement_removes_the_pending_ack_of_its_own_consumer(seq: int, tmp_path: Path) -> None:
    trace = t.raw(KEY_SHARED)
    t.line_of(trace, seq)["consumer"] = 6
    assert seq in {finding.seq for finding in t.divergent(KEY_SHARED, trace, tmp_path)}
