"""Acks of a consumer that was removed: a classic dispatcher leaves its pending acks in it.

In ``4.2.4/soak-80003-second-classic-range-racing`` (tests/data/races) a topic is unloaded. The dispatcher disconnects
consumer 1 at line 37, and its connection still acknowledges two entries: lines 44 and 47 show that they were pending.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2]
    / "data"
    / "races"
    / "4.2.4"
    / "soak-80003-second-classic-range-racing"
)
FIRST, SECOND = 44, 47


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
