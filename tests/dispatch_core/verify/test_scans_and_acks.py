"""Acks that release a draining hash while a scan of the replay set runs.

In ``4.0.0/random-3012-range-quiet`` (tests/data/races) a scan holds five positions of a hash back; then the last pending
ack of the hash goes, and the scan finds a sixth position that it may read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.multiple_consumers import Read
from dispatch_core.broker.profiles import resolve
from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "random-3012-range-quiet"
)
#: Seq of the ack, of the read, and the hash.
ACK, READ, HASH = 5780, 5911, 41653

Trace = list[dict[str, Any]]


def verified(trace: Trace, where: Path) -> dict[str, dict[str, int]]:
    """Verify a changed copy of the recording; returns the counts per class."""
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    return t.verified(t.copy_with(RECORDING, trace, where)).tally.counts


def test_the_ack_names_the_race() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    assert {finding.racing_seq for finding in tally.findings} == {ACK}
    assert READ in {finding.seq for finding in tally.findings}


def test_a_position_in_front_of_one_that_was_held_back_is_not_read(tmp_path: Path) -> None:
    """The hash was released once: no order explains a position that was read between others that were not."""
    trace = t.raw(RECORDING)
    trace[READ]["positions"] = ["25:164"]
    assert verified(trace, tmp_path)["read"]["divergent"] > 0


def test_a_position_that_is_held_back_after_the_release_diverges(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    last = [at for at in t.places(trace, "draining_blocked") if at < READ][-1]
    trace.insert(last + 1, {**trace[last], "consumer": 6, "hash": HASH})
    counts = verified(trace, tmp_path)
    assert counts["draining"]["divergent"] + counts["read"]["divergent"] > 0


# --- the core --------------------------------------------------------------------------------------------------------


def draining(version: str) -> KeySharedDispatcher:
    """Make a dispatcher with entries of two hashes in the replay set; entry 0 keeps the first hash with consumer 1."""
    hashes = np.array([11858, *[11858, 51461] * 4], np.int64)
    core = KeySharedDispatcher(
        resolve(version, {"subscriptionKeySharedUseConsistentHashing": False}),
        hashes,
        np.ones(9, np.int64),
        3,
    )
    core.join(1, "c1")
    core.join_selector(1)
    core.flow(1, 1)
    core.flow_applied(1, 1)
    core.attempt_read()
    core.read_done("Normal", list(range(9)))
    core.finish_round(core.round("Normal", list(range(9))), has_more=False)
    core.join(2, "c2")
    core.join_selector(2)
    for consumer in (1, 2):
        core.flow(consumer, 9)
        core.flow_applied(consumer, 9)
    return core


@pytest.mark.parametrize("version", ["4.0.0", "4.2.4"])
@given(pauses=st.sets(st.integers(0, 9), max_size=4))
def test_a_scan_in_parts_is_that_of_one_piece(version: str, pauses: set[int]) -> None:
    steps: list[int] = []
    whole, parts = draining(version), draining(version)
    expected = whole.attempt_read()
    assert parts.attempt_read(steps.append, pauses=sorted(pauses)) == expected
    assert steps == list(range(3 + len(pauses)))
    assert expected.refused
    assert parts.state.s.tolist() == whole.state.s.tolist()


def paused(version: str, pause: int) -> Read:
    """Attempt a read, in which entry 0 is acknowledged when the scan is at ``pause``."""
    core = draining(version)

    def between(step: int) -> None:
        if step == 2:
            core.ack(0)

    return core.attempt_read(between, pauses=[pause])


def test_a_hash_that_is_released_during_a_scan_may_be_read_behind() -> None:
    whole = draining("4.0.0").attempt_read()
    released = paused("4.0.0", 4)
    moved = {value for _consumer, value in whole.refused}
    assert len(moved) == 1
    assert 0 < len(released.refused) < len(whole.refused)
    assert set(whole.entries) < set(released.entries)
    # with the memory of #23874 what a scan has held back stays so
    assert paused("4.2.4", 4).entries == draining("4.2.4").attempt_read().entries
