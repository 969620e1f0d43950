"""The smallest log has the finding, and loses it with any line or entry that is left out as well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from dispatch_core.minimize.reduced_log import ReducibleLog
from dispatch_core.minimize.same_finding import NoSuchFindingError, Wanted, choose, findings_of
from dispatch_core.minimize.search import Search, Smallest
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.whole_log import audit_whole
from tests.dispatch_core.minimize.logs import AT_RISK, AWAY_AND_BACK, LIMIT_OF_1, log_of


def _wanted(log: DispatcherLog, kind: str | None = None) -> Wanted:
    finding = choose(findings_of(audit_whole(log, closed=False)), kind, {})
    assert finding is not None
    return Wanted(finding, log, closed=False)


def _smallest(log: DispatcherLog, wanted: Wanted, budget_s: float = 60) -> Smallest:
    return Search(log, wanted, budget_s=budget_s).run()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("folder", "kind", "most"),
    [(AWAY_AND_BACK, "stuck_key", 9), (AT_RISK, "split_key", 9), (LIMIT_OF_1, "stuck_subscription", 5)],
    ids=("stuck", "split", "blocked"),
)
def test_nothing_more_can_be_left_out(folder: Path, kind: str, most: int) -> None:
    log = log_of(folder)
    wanted = _wanted(log)
    smallest = _smallest(log, wanted)
    assert smallest.minimal
    assert smallest.finding.kind == kind
    assert smallest.log.events.num_rows <= most
    assert wanted.found_in(smallest.log, smallest.line_of) == smallest.finding
    # Each line is one of the log, with at most the same permits.
    for row, number in zip(smallest.log.events.to_pylist(), smallest.line_of.tolist(), strict=True):
        before = log.events.slice(number, 1).to_pylist()[0]
        assert (row["kind"], row["consumer"], row["name"]) == (
            before["kind"],
            before["consumer"],
            before["name"],
        )
        assert (row["permits"] or 0) <= (before["permits"] or 0)
    base = ReducibleLog(smallest.log)
    for at in range(base.entries):
        entries = np.arange(base.entries) != at
        left, rows = base.keep(np.ones(base.lines, bool), entries)
        assert wanted.found_in(left, smallest.line_of[rows]) is None, f"without entry {at}"
    for at, line_kind in enumerate(smallest.log.events["kind"].to_pylist()):
        if line_kind in ("consumer_added", "consumer_removed"):
            continue  # these go with all lines of their connection
        left, rows = base.keep(np.arange(base.lines) != at, np.ones(base.entries, bool))
        assert wanted.found_in(left, smallest.line_of[rows]) is None, f"without line {at}"


def test_what_makes_a_line_legal_is_not_left_out() -> None:
    log = log_of(AT_RISK)
    wanted = _wanted(log)
    flows = pc.equal(log.events["kind"], "flow").to_numpy()
    left, rows = ReducibleLog(log).keep(~flows, np.ones(log.messages.num_rows, bool))
    # The key is still at two consumers at once, but nobody granted the permits.
    assert any(wanted.finding.is_same(other) for other in findings_of(wanted.audit(left)))
    assert wanted.found_in(left, rows) is None


def test_what_the_explanation_rests_on_is_not_left_out() -> None:
    log = log_of(LIMIT_OF_1)
    smallest = _smallest(log, _wanted(log))
    # Without the acknowledgement the consumer would be at its limit, and no fault of the broker would be seen.
    assert "#22657" in smallest.finding.explanation
    assert smallest.log.events["kind"].to_pylist() == [
        "consumer_added",
        "flow",
        "sent",
        "ack",
        "consumer_removed",
    ]


def test_idle_times_are_shortened() -> None:
    log = log_of(AT_RISK)
    smallest = _smallest(log, _wanted(log))
    t_us = smallest.log.events["t_us"].to_numpy()
    assert (np.diff(t_us) >= 0).all()
    assert t_us[-1] - t_us[0] < 200_000 < (log.events["t_us"][-1].as_py() - log.events["t_us"][0].as_py())


def test_a_budget_ends_the_search_with_a_log_that_has_the_finding() -> None:
    log = log_of(AT_RISK)
    wanted = _wanted(log)
    smallest = _smallest(log, wanted, budget_s=0)
    assert not smallest.minimal
    assert wanted.found_in(smallest.log, smallest.line_of) is not None


def test_a_finding_of_another_key_reason_or_entry_is_another() -> None:
    log = log_of(AWAY_AND_BACK)
    first, second = [f for f in findings_of(audit_whole(log, closed=False)) if f.kind == "stuck_key"][:2]
    assert first.is_same(first)
    assert not first.is_same(second)
    for other in (
        replace(first, reason="no_permits"),
        replace(first, uncertain=True),
        replace(first, positions=("1:1",)),
        replace(first, consumers=(9,)),
        replace(first, hash=1),
    ):
        assert not first.is_same(other)
    assert replace(first, uncertain=True).is_same(first)


def test_a_finding_about_the_log_as_a_whole_cannot_be_asked_for() -> None:
    with pytest.raises(NoSuchFindingError, match="about the log as a whole"):
        choose([], "imbalance", {})
    with pytest.raises(NoSuchFindingError, match="there is no such kind"):
        choose([], "stuck", {})
