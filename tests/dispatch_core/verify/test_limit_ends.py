"""A policy's limit of unacknowledged messages may begin and end before its line in the log.

In ``4.2.4/soak-5269-range-racing`` (tests/data/races) a namespace's limit of 8 ends. Consumer 1 is blocked, with a parked
permit. Its acknowledgement at line 385 unblocks it, although it still has 7 unacknowledged messages: the limit has ended. A
recorder asks for policies once a second, and its line is 418. Line 424 shows what the consumer may take.

In ``4.0.0/soak-5619-first-sticky-racing`` such a limit begins: line 264 shows a consumer without usable permits, 266 is its
line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dispatch_core.verify.trace.shown_state import POLICIES_ASKED_EVERY_US
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
            line["t_us"] += 2 * POLICIES_ASKED_EVERY_US
    result = t.verified(t.copy_with(BEGINS, trace, tmp_path))
    assert NO_PERMITS in {finding.seq for finding in result.tally.findings if finding.status == "divergent"}
