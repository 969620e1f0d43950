"""A policy's limit of unacknowledged messages may begin and end before its line in the log.

In ``4.2.4/soak-5269-range-racing`` (tests/data/races) a namespace's limit of 8 ends. Consumer 1 is blocked, with a parked
permit. Its acknowledgement at line 385 unblocks it, although it still has 7 unacknowledged messages: the limit has ended. A
recorder asks for policies once a second, and its line is 418. Line 424 shows what the consumer may take.

In ``4.0.0/soak-5619-first-sticky-racing`` such a limit begins: line 264 shows a consumer without usable permits, 266 is its
line. In ``4.0.0/soak-5665-range-racing`` the flow of line 354 finds its consumer blocked by a limit whose line is 572.

A limit may also begin after its mark: in ``4.0.0/soak-70025-ch-racing`` the mark of a namespace's limit of 8 is line 325.
The attempts of the next 15 ms still read for consumer 1, which has 9 unacknowledged messages and a permit, and line 359
delivers. It may end after its mark, too: in ``4.2.4/soak-81744-range-quiet`` that is line 579, and the ends of the attempts
at lines 583 and 587 show a consumer that may take one message under the limit of 8, and 43 without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatch_core.verify.trace.limits_in_force import REACHES_WITHIN_US, SEEN_WITHIN_US
from tests.dispatch_core.verify import tampering as t

RECORDING: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-5269-range-racing"
LIMIT_ENDS, READ = 418, 424


def test_the_end_of_the_limit_names_the_race() -> None:
    result = t.verified(RECORDING)
    assert result.tally.total("divergent") == 0
    (found,) = [finding for finding in t.decided(result) if finding.seq == READ]
    assert (found.status, found.racing_seq) == ("uncertain", LIMIT_ENDS)
    assert found.reason is not None
    assert "the end of a policy's limit" in found.reason


def test_a_limit_that_goes_on_explains_nothing(tmp_path: Path) -> None:
    """Without the line, the consumer stays blocked until it is down to half of the limit."""
    trace = t.raw(RECORDING)
    del trace[LIMIT_ENDS]
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    result = t.verified(t.copy_with(RECORDING, trace, tmp_path))
    assert result.tally.counts["read"]["divergent"] > 0


BEGINS: Final = RECORDING.parents[1] / "4.0.0" / "soak-5619-first-sticky-racing"
NO_PERMITS, LIMIT_BEGINS = 264, 266


def test_the_beginning_of_the_limit_names_the_race() -> None:
    result = t.verified(BEGINS)
    assert result.tally.total("divergent") == 0
    (found,) = [finding for finding in result.tally.findings if finding.seq == NO_PERMITS]
    assert (found.status, found.racing_seq) == ("uncertain", LIMIT_BEGINS)


def test_a_limit_that_begins_much_later_explains_nothing(tmp_path: Path) -> None:
    trace = t.raw(BEGINS)
    for line in trace[1:]:
        if line.get("seq", 0) >= LIMIT_BEGINS:
            line["t_us"] += 2 * SEEN_WITHIN_US
    result = t.verified(t.copy_with(BEGINS, trace, tmp_path))
    assert NO_PERMITS in {finding.seq for finding in result.tally.findings if finding.status == "divergent"}


BLOCKS: Final = BEGINS.parent / "soak-5665-range-racing"
FLOW, COUNTED, LIMIT_LINE = 354, 355, 572


def test_a_flow_shows_that_the_limit_is_in_force() -> None:
    result = t.verified(BLOCKS)
    assert result.tally.total("divergent") == 0
    (found,) = [
        finding for finding in result.tally.findings if finding.status == "uncertain" and finding.seq == FLOW
    ]
    assert found.racing_seq == LIMIT_LINE


@pytest.mark.parametrize("change", ["no limit", "not blocked"])
def test_a_flow_that_is_parked_needs_the_limit(tmp_path: Path, change: str) -> None:
    trace = t.raw(BLOCKS)
    for line in trace[1:]:
        if change == "no limit" and line.get("seq") == LIMIT_LINE:
            line["value"] = 10_000
        if change == "not blocked" and line.get("seq") == COUNTED:
            line["blocked_after"] = False
    result = t.verified(t.copy_with(BLOCKS, trace, tmp_path))
    assert COUNTED in {finding.seq for finding in result.tally.findings if finding.status == "divergent"}


MARKED: Final = BEGINS.parent / "soak-70025-ch-racing"
MARK = 325


def test_a_limit_begins_after_its_mark() -> None:
    assert t.verified(MARKED).tally.total("divergent") == 0


@pytest.mark.parametrize(
    ("before_us", "divergent"), [(REACHES_WITHIN_US // 2, False), (2 * REACHES_WITHIN_US, True)]
)
def test_a_mark_is_in_force_some_time_later(tmp_path: Path, before_us: int, divergent: bool) -> None:
    """With all lines up to the mark earlier, what was read after it is wrong if the limit must have reached the broker."""
    trace = t.raw(MARKED)
    for line in trace[1:]:
        if 0 < line.get("seq", 0) <= MARK:
            line["t_us"] -= before_us
    result = t.verified(t.copy_with(MARKED, trace, tmp_path))
    assert (result.tally.total("divergent") > 0) == divergent


@pytest.mark.parametrize(
    ("kinds", "divergent"),
    [(("limit",), False), (("limit", "step"), True)],
    ids=["the mark alone", "neither mark nor line"],
)
def test_a_delivery_blocks_by_the_limit_of_a_mark(
    tmp_path: Path, kinds: tuple[str, ...], divergent: bool
) -> None:
    """Line 457 shows that the eighth delivery has blocked consumer 3. The mark explains that without the recorder's line."""
    trace = [line for line in t.raw(MARKED) if line.get("kind") not in kinds]
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    result = t.verified(t.copy_with(MARKED, trace, tmp_path))
    assert (result.tally.total("divergent") > 0) == divergent


GOES_ON: Final = RECORDING.parent / "soak-81744-range-quiet"
MARK_OF_THE_END, STILL_LIMITED = 579, (583, 587)


def test_a_limit_may_end_after_its_mark() -> None:
    result = t.verified(GOES_ON)
    assert result.tally.total("divergent") == 0
    found = [(finding.seq, finding.status, finding.racing_seq) for finding in result.tally.findings]
    assert found == [(seq, "uncertain", MARK_OF_THE_END) for seq in STILL_LIMITED]


def test_a_limit_that_ended_long_ago_explains_nothing(tmp_path: Path) -> None:
    trace = t.raw(GOES_ON)
    for line in trace[1:]:
        if line.get("seq", 0) <= MARK_OF_THE_END and "t_us" in line:
            line["t_us"] -= 2 * REACHES_WITHIN_US
    result = t.verified(t.copy_with(GOES_ON, trace, tmp_path))
    assert {finding.seq for finding in result.tally.findings if finding.status == "divergent"} >= {
        STILL_LIMITED[0]
    }
