"""The dispatcher's total falls by a whole batch if it was written before, by what is left of it if not.

``4.2.4/random-2019-classic-range-racing`` (tests/data/races): 24 of 96 messages that the consumer is sent at line 88 are
acknowledged. The call returns with the write done, and the total falls by 96. The normal read at 125 asks for 94, which
shows it: with a total that is 24 higher it would ask for 100.

``4.0.0/soak-81481-ch-racing``: of the 25 messages that consumer 1 is sent at line 413, six of the batch 4:13 and four of
4:18 are acknowledged. The total falls by 19, as line 420 shows: the connection's thread forgot those of 4:18 before they
were counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

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


MEANWHILE: Final = RECORDING.parents[1] / "4.0.0" / "soak-81481-ch-racing"
SEND_RETURNED, SHOWN, TOTAL = 414, 420, 87


@pytest.mark.parametrize("total", [91, 87, 85, 81])
def test_a_write_may_be_done_while_the_acknowledged_messages_are_counted(total: int, tmp_path: Path) -> None:
    """All ten count, or six, or four, or none."""
    trace = t.raw(MEANWHILE)
    assert t.line_of(trace, SHOWN)["total_permits"] == TOTAL
    t.line_of(trace, SHOWN)["total_permits"] = total
    found = t.found_at(MEANWHILE, trace, tmp_path, SHOWN)
    expected = [] if total == 91 else [("uncertain", SEND_RETURNED)]
    assert [(f.status, f.racing_seq) for f in found] == expected


@pytest.mark.parametrize("total", [93, 90, 88, 86, 83, 80])
def test_messages_of_one_batch_count_together(total: int, tmp_path: Path) -> None:
    trace = t.raw(MEANWHILE)
    t.line_of(trace, SHOWN)["total_permits"] = total
    assert SHOWN in {finding.seq for finding in t.divergent(MEANWHILE, trace, tmp_path)}
