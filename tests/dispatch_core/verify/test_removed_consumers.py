"""Acks and requests of a consumer that was removed, and its second removal.

A classic dispatcher leaves the pending acks of a consumer that it removes in it. In
``4.2.4/soak-80003-second-classic-range-racing`` (tests/data/races) a topic is unloaded. The dispatcher disconnects consumer
1 at line 37, and its connection still acknowledges two entries: lines 44 and 47 show that they were pending.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatch_core.audit.deliveries.log_checks import HANDLED_LATE_US, unknown_consumers
from dispatch_core.recording.reader import find_recordings, read_recording
from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2]
    / "data"
    / "races"
    / "4.2.4"
    / "soak-80003-second-classic-range-racing"
)
FIRST, SECOND = 44, 47
RACES: Final = RECORDING.parents[1]
#: The topic is unloaded, and consumer 2 is removed. A request of its connection removes two pending acks at 373 and 374, and
#: comes to the dispatcher at 392.
ASKS: Final = RACES / "4.0.0" / "soak-85909-first-classic-range-racing"
ASKED, REQUEST = (373, 374), 392
#: Recording → the lines at which a consumer is removed, and removed again: a subscription is deleted or a topic unloaded,
#: and a client closes its consumer meanwhile.
REMOVED_TWICE: Final = {
    "4.2.4/soak-6012-classic-shared-quiet": (62, 65),
    "4.2.4/soak-81074-first-failover-ring-quiet": (190, 194),
}
#: Recordings of Key_Shared in whose lines a last consumer leaves.
LEFT: Final = (
    "4.0.0/soak-5376-ch-quiet",
    "4.2.4/soak-5261-second-classic-ch-racing",
    "3.0.7/random-0000-ch-quiet",
)


def test_each_ack_removes_what_was_pending() -> None:
    tally = t.verified(RECORDING).tally
    assert (tally.total("divergent"), tally.total("uncertain")) == (0, 0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"positions": ["13:32"]}, "pending ack removed: none"),
        ({"positions": ["13:35"]}, "pending ack removed: none"),  # its ack comes later
        ({"hash": 63679}, "hash 0"),
    ],
    ids=["of another consumer", "before its ack", "another hash"],
)
def test_it_removes_nothing_else(tmp_path: Path, change: dict[str, object], expected: str) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, FIRST).update(change)
    found = {finding.seq: finding.expected for finding in t.divergent(RECORDING, trace, tmp_path)}
    assert found[FIRST] == expected


def test_the_ack_may_have_come_before_the_consumer_left(tmp_path: Path) -> None:
    """Lines 42 to 46 come before the consumer leaves, at 38. The last one acknowledges the entry of line 47."""
    trace = t.raw(RECORDING)
    for seq in range(42, SECOND):
        trace = t.moved(trace, seq, seq - 5)
    assert [t.line_of(trace, seq)["kind"] for seq in (SECOND - 5, SECOND - 4)] == ["ack", "selector_removed"]
    assert t.verified(t.copy_with(RECORDING, trace, tmp_path)).tally.total("divergent") == 0


def test_it_removes_nothing_twice(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, SECOND)["positions"] = ["13:34"]
    assert SECOND in {finding.seq for finding in t.divergent(RECORDING, trace, tmp_path)}


def test_since_4_0_only_the_last_consumer_keeps_them(tmp_path: Path) -> None:
    """Consumer 2 is connected when consumer 1 leaves, so a dispatcher that is not classic closes its pending acks."""
    trace = t.raw(RECORDING)
    trace[0]["config"]["subscriptionKeySharedUseClassicPersistentImplementation"] = False
    found = {finding.seq: finding.expected for finding in t.divergent(RECORDING, trace, tmp_path)}
    assert found[FIRST] == found[SECOND] == "pending ack removed: none"


def test_its_redelivery_request_removes_what_it_names(tmp_path: Path) -> None:
    assert t.verified(ASKS).tally.total("divergent") == 0
    trace = t.raw(ASKS)
    t.line_of(trace, REQUEST)["positions"] = ["25:75"]
    found = {finding.seq: finding.expected for finding in t.divergent(ASKS, trace, tmp_path)}
    assert found == {ASKED[0]: "pending ack removed: none"}


@pytest.mark.parametrize("change", [{"consumer": 1}, {"kind": "step"}], ids=["of another", "none"])
def test_no_request_of_its_connection_removes_nothing(change: dict[str, object], tmp_path: Path) -> None:
    trace = t.raw(ASKS)
    t.line_of(trace, REQUEST).update(change)
    assert {*ASKED} <= {finding.seq for finding in t.divergent(ASKS, trace, tmp_path)}


@pytest.mark.parametrize(("later_us", "found"), [(0, False), (2 * HANDLED_LATE_US, True)])
@pytest.mark.parametrize("name", REMOVED_TWICE)
def test_a_consumer_may_be_removed_a_second_time(
    name: str, later_us: int, found: bool, tmp_path: Path
) -> None:
    """The second removal comes soon after the first one, or the trace contradicts itself."""
    trace = t.raw(RACES / name)
    first, second = REMOVED_TWICE[name]
    assert t.line_of(trace, first)["consumer"] == t.line_of(trace, second)["consumer"]
    assert {t.line_of(trace, seq)["kind"] for seq in (first, second)} == {"consumer_removing"}
    for line in trace:
        if line.get("seq", 0) >= second:
            line["t_us"] += later_us
    copy = t.copy_with(RACES / name, trace, tmp_path)
    assert (t.verified(copy).tally.total("divergent") > 0) == found
    (source,) = find_recordings([copy])
    (log,) = read_recording(source).logs
    assert bool(unknown_consumers(log.events, log)) == found


@pytest.mark.parametrize("name", LEFT)
def test_so_may_one_of_key_shared(name: str, tmp_path: Path) -> None:
    trace = [line for line in t.raw(RACES / name) if line.get("kind") != "end"]
    before = t.verified(RACES / name).tally
    begun = max(at for at, line in enumerate(trace) if line.get("kind") == "consumer_removing")
    again = [
        {**line, "seq": trace[-1]["seq"] + 1 + nth}
        for nth, line in enumerate(
            line
            for line in trace[begun:]
            if line["kind"] in ("consumer_removing", "selector_removed", "draining_clear", "consumer_removed")
        )
    ]
    for line in again:
        line["t_us"] = trace[-1]["t_us"]
    tally = t.verified(t.copy_with(RACES / name, [*trace, *again], tmp_path)).tally
    assert tally.total("divergent") == before.total("divergent") == 0


CLEARED_AGAIN: Final = RACES / "4.0.0" / "soak-82833-ch-racing"
FIRST_REMOVAL, LAST_CLEAR, SECOND_REMOVAL, SECOND_CLEAR = 1827, 1855, 1861, 1862


def test_a_second_removal_with_nobody_connected_clears_the_draining_hashes_again(tmp_path: Path) -> None:
    """A topic is unloaded: consumer 4 is removed before consumer 3, and again behind it (#22270)."""
    assert t.verified(CLEARED_AGAIN).tally.total("divergent") == 0
    trace = t.raw(CLEARED_AGAIN)
    trace.remove(t.line_of(trace, SECOND_CLEAR))
    assert SECOND_CLEAR + 1 in {finding.seq for finding in t.divergent(CLEARED_AGAIN, trace, tmp_path)}


def test_a_removal_with_others_connected_clears_nothing(tmp_path: Path) -> None:
    trace = t.moved(t.raw(CLEARED_AGAIN), LAST_CLEAR, FIRST_REMOVAL)
    found = {finding.expected for finding in t.divergent(CLEARED_AGAIN, trace, tmp_path)}
    assert "the draining hashes stay" in found


GOES_ON: Final = RACES / "4.2.4" / "soak-81385-second-ch-racing"
REMOVED, MOVED = 435, 436


def test_an_ack_of_a_removed_consumer_may_not_have_reached_the_cursor(tmp_path: Path) -> None:
    """The ack of 8:91 moves mark-delete at line 436; the broker disconnects its consumer at line 435."""
    assert t.verified(GOES_ON).tally.total("divergent") == 0
    for shown in ("8:89", "8:92"):
        trace = t.raw(GOES_ON)
        assert t.line_of(trace, MOVED)["mark_delete"] == "8:91"
        t.line_of(trace, REMOVED)["mark_delete"] = shown
        found = t.divergent(GOES_ON, trace, tmp_path / shown.replace(":", "-"))
        assert REMOVED in {finding.seq for finding in found}
