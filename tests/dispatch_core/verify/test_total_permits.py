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


def test_the_total_that_is_shown_refutes_the_other_order(tmp_path: Path) -> None:
    """A read of at most 100 would fit a total that is 24 higher, but the attempts before show the lower one."""
    trace = t.raw(RECORDING)
    trace[READ]["max_entries"] = 100
    assert [(f.seq, f.status) for f in findings_of(trace, tmp_path)] == [(READ, "divergent")]


def test_the_other_order_holds_where_the_total_shows_it(tmp_path: Path) -> None:
    """With all totals 24 higher the write was done after the total fell, although its line says it was done."""
    trace = t.raw(RECORDING)
    for line in trace[RETURNED + 1 :]:
        if line["kind"] == "read_attempt_end":
            line["total_permits"] += 24
    trace[READ]["max_entries"] = 100
    found = findings_of(trace, tmp_path)
    assert [(f.decision_class, f.status, f.racing_seq) for f in found] == [("state", "uncertain", RETURNED)]


def test_without_totals_the_next_read_shows_the_order(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    for line in trace[1:]:
        line.pop("total_permits", None)
    trace[READ]["max_entries"] = 100
    found = [f for f in findings_of(trace, tmp_path) if f.decision_class == "read"]
    assert [(f.seq, f.status, f.racing_seq) for f in found] == [(READ, "uncertain", RETURNED)]
