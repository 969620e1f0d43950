"""Permits that are off are reported in each interval in which they are: as of its end, or as of the leave that ends it.

``3.0.7/random-0003-ch-racing`` (tests/data/races): consumer 6 leaves at line 395 while a flow of 10 permits is on its way.
The total is 10 below the sum from line 399 on, until the last consumer leaves at the end.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.catalogue import COMPLETENESS, KINDS
from dispatch_core.audit.verdict import FAIL, PASS, verdicts
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.replay_log import replay
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.times import from_micros
from tests.dispatch_core.audit.judging import counts_of_audit, rule
from tests.dispatch_core.audit.small_logs import read
from tests.dispatch_core.replay.test_streamed_traces import compare

RACES = Path(__file__).resolve().parents[2] / "data" / "races"
LEFT, OFF, LAST_OFF = 395, 399, 1036


@pytest.fixture(scope="module")
def log() -> DispatcherLog:
    return read(RACES / "3.0.7" / "random-0003-ch-racing")


def at(log: DispatcherLog, seq: int) -> datetime:
    """The time of a line."""
    return from_micros(log.events["t_us"][log.events["seq"].to_pylist().index(seq)].as_py())


def found(log: DispatcherLog, start: datetime, end: datetime) -> list[dict[str, Any]]:
    rows = replay(log, interval_start=start, interval_end=end)["anomalies"].to_pylist()
    return [row for row in rows if row["kind"].startswith("permit_")]


def test_a_drift_is_found_in_each_interval_in_which_it_lasts(log: DispatcherLog) -> None:
    first, last = at(log, 1), from_micros(log.events["t_us"][-1].as_py() + 1)
    before, during = at(log, LEFT), at(log, 700)
    assert found(log, first, before) == []
    (of_one,), (of_next,) = found(log, before, during), found(log, during, last)
    assert of_one["seqs"][:2] == of_next["seqs"][:2] == [LEFT, OFF]
    assert OFF < of_one["seqs"][-1] < 700
    assert of_next["seqs"][-1] == LAST_OFF
    assert of_one["explanation"].startswith("the dispatcher's total is 10 permits below")
    assert of_next["explanation"].startswith("the dispatcher's total was 10 permits below")
    assert found(log, last, from_micros(log.events["t_us"][-1].as_py() + 1_000_000)) == []


def test_a_drift_is_counted_and_breaks_completeness_if_the_policy_says_so(log: DispatcherLog) -> None:
    audit = audit_whole(log, closed=False)
    (row,) = (row for row in audit.anomalies.to_pylist() if row["kind"] == "permit_drift")
    assert (row["reason"], row["consumers"], row["uncertain"]) == ("consumer_removed", [6], False)
    assert row["severity"] == KINDS["permit_drift"].severity
    counts = counts_of_audit(log, audit)
    (counted,) = (promise for promise in verdicts(audit.anomalies, counts) if promise.promise == COMPLETENESS)
    assert counted.verdict == PASS
    judged = verdicts(audit.anomalies, counts, rule=rule(completeness={"permit_drift": 0}))
    (promise,) = (promise for promise in judged if promise.promise == COMPLETENESS)
    assert promise.verdict == FAIL
    assert promise.reason.startswith("times that the dispatcher's total")
    assert promise.top_findings == (row["explanation"],)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [50, 1000])
def test_a_trace_in_batches_has_the_same_findings(
    log: DispatcherLog, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(log, tmp_path, monkeypatch, rows)


def test_a_log_cut_before_the_drift_is_proven_has_no_finding(log: DispatcherLog) -> None:
    """One line shows it: that proves nothing."""
    first = at(log, 1)
    assert found(log, first, at(log, OFF + 1)) == []
