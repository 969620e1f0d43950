"""The dispatcher's total falls by a whole batch if it was written before, by what is left of it if not.

``4.2.4/random-2019-classic-range-racing`` (tests/data/races): 24 of 96 messages that the consumer is sent at line 88 are
acknowledged. The call returns with the write done, and the total falls by 96. The normal read at 125 asks for 94, which
shows it: with a total that is 24 higher it would ask for 100.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dispatch_core.verify.tally import Finding
from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "random-2019-classic-range-racing"
)
RETURNED, READ = 89, 125

Trace = list[dict[str, Any]]


def findings_of(trace: Trace, where: Path) -> list[Finding]:
    """Verify a changed copy of the recording."""
    return t.verified(t.copy_with(RECORDING, trace, where)).tally.findings


def test_the_line_that_says_written_determines_the_total(tmp_path: Path) -> None:
    assert findings_of(t.raw(RECORDING), tmp_path) == []


def test_a_write_may_be_done_after_its_line_and_before_the_total_falls(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    trace[RETURNED]["written"] = False
    found = findings_of(trace, tmp_path)
    assert {(f.status, f.racing_seq) for f in found} == {("uncertain", RETURNED)}


def test_no_order_of_the_write_gives_another_total(tmp_path: Path) -> None:
    for size in (93, 95, 99, 101):
        trace = t.raw(RECORDING)
        trace[READ]["max_entries"] = size
        assert (READ, "divergent") in {(f.seq, f.status) for f in findings_of(trace, tmp_path)}


def test_the_other_order_is_still_possible_but_only_for_the_acknowledged_indexes(tmp_path: Path) -> None:
    """The total may be 24 higher: a read of at most 100 can only be the other order of that send, and is uncertain."""
    trace = t.raw(RECORDING)
    trace[READ]["max_entries"] = 100
    found = [f for f in findings_of(trace, tmp_path) if f.seq == READ]
    assert [(f.status, f.racing_seq) for f in found] == [("uncertain", RETURNED)]
