"""Dispatchers whose rows changed when an interval was ingested again, and the ledger's earlier states. No Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.intervals import interval
from spark_jobs.warehouse import inputs
from spark_jobs.warehouse.delta_tables import publishing, record_run
from spark_jobs.warehouse.inputs import Group, changed, digests_of, stage, state_of
from spark_jobs.warehouse.run_ledger import Change, Ledger

DAYS = [interval(f"2026-11-{day}") for day in (21, 22, 23)]
A, B, TOPIC = ("c", "t", "a"), ("c", "t", "b"), ("c", "t")


class Home:
    """Ingests as the stage would record them."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse

    def ingest(self, day: int, digests: dict[Group, str], *, recorded: bool = True) -> None:
        span = DAYS[day]
        digest = repr(sorted(digests.items())) if digests else ""
        with publishing(self.warehouse, span, [inputs.TABLE]) as run:
            run.replace(inputs.TABLE, stage(run, state_of((span.end_us, digest)), digests))
        if recorded:
            bounds = {"interval_start": span.start.isoformat(), "interval_end": span.end.isoformat()}
            record_run(self.warehouse, "ingest", span, datetime.now(UTC), bounds | {"inputs_digest": digest})

    def rows(self, day: int) -> str:
        return Ledger(self.warehouse).rows_until(DAYS[day])

    def changed(self, rows: str, day: int) -> frozenset[Group] | None:
        span = DAYS[day]
        return changed(self.warehouse, span, Ledger(self.warehouse).changes_since(rows, span))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Two dispatchers of a topic, two days."""
    made = Home(tmp_path)
    for day in (0, 1):
        made.ingest(day, {A: "1", B: "1", TOPIC: "1"})
    return made


def test_only_those_changed_that_have_other_files(home: Home) -> None:
    first, second = home.rows(0), home.rows(1)
    assert home.changed(second, 1) == set()
    home.ingest(1, {A: "1", B: "2", TOPIC: "1"})
    assert (home.changed(first, 0), home.changed(second, 1)) == (set(), {B})
    then = home.rows(1)
    home.ingest(0, {A: "2", TOPIC: "1"})
    assert home.changed(first, 0) == {A, B}, "of one all rows are gone"
    assert (home.changed(second, 1), home.changed(then, 1)) == ({A, B}, {A, B})
    home.ingest(0, {A: "1", B: "1", TOPIC: "1"})
    assert (home.changed(first, 0), home.changed(second, 1), home.changed(then, 1)) == (set(), {B}, set())


def test_an_interval_that_had_no_rows_changed_for_all_that_it_has_rows_of(home: Home) -> None:
    assert home.rows(2) == ""
    home.ingest(2, {A: "1"})
    then = home.rows(2)
    home.ingest(1, {})
    assert home.changed(then, 2) == {A, B, TOPIC}
    home.ingest(1, {B: "3"})
    assert home.changed(then, 2) == {A, B, TOPIC}
    now = home.rows(2)
    home.ingest(0, {})
    assert home.changed(now, 2) == {A, B, TOPIC}


def test_what_is_not_known_is_not_guessed(home: Home) -> None:
    then = home.rows(1)
    assert home.changed("of another home", 1) is None
    home.ingest(1, {A: "2"}, recorded=False)  # the run died before it was recorded
    assert home.changed(then, 1) == set(), "nobody knows yet, and the next run ingests it again"
    home.ingest(1, {A: "3"})
    assert home.changed(then, 1) == {A, B, TOPIC}
    home.ingest(1, {A: "4"}, recorded=False)
    assert home.changed(then, 1) is None, "the table is ahead of the ledger"
    home.ingest(1, {A: "3"})
    assert home.changed(then, 1) == {A, B, TOPIC}
    for number in range(inputs._MOST_STATES):
        home.ingest(1, {A: f"{number} more"})
    assert home.changed(then, 1) is None, "too many states ago"


def test_a_run_that_was_recorded_late_is_no_state_of_then(home: Home) -> None:
    now = Ledger(home.warehouse)
    assert now.changes_since(now.rows_until(DAYS[1]), DAYS[1]) == {}
    home.ingest(0, {A: "2"})
    then = home.rows(1)
    home.ingest(1, {A: "2"})
    ledger = Ledger(home.warehouse)
    assert set(ledger.changes_since(then, DAYS[1]) or {}) == {DAYS[1].start_us}
    assert ledger.changes_since(then, DAYS[0]) is None, "a digest of another interval"


states = st.dictionaries(st.sampled_from([A, B, TOPIC]), st.sampled_from("12"), max_size=3)


@pytest.mark.slow
@given(st.lists(states, min_size=2, max_size=6))
def test_each_earlier_state_is_compared_with_now(
    tmp_path_factory: pytest.TempPathFactory, history: list[dict[Group, str]]
) -> None:
    warehouse, span = tmp_path_factory.mktemp("home"), DAYS[0]
    named = [(span.end_us, repr(sorted(digests.items())) if digests else "") for digests in history]
    for state, digests in zip(named, history, strict=True):
        with publishing(warehouse, span, [inputs.TABLE]) as run:
            run.replace(inputs.TABLE, stage(run, state_of(state), digests))
    now = history[-1]
    for state, digests in zip(named, history, strict=True):
        then, last = (made if made[1] else None for made in (state, named[-1]))
        differ = {group for group in {*digests, *now} if digests.get(group) != now.get(group)}
        changes = {} if then == last else {span.start_us: Change(then, last)}
        assert changed(warehouse, span, changes) == differ


def test_a_digest_names_the_files_and_what_is_in_them() -> None:
    groups = [("one", [A, B]), ("two", [A]), ("three", [TOPIC])]
    marks = {"one": ["x"], "two": ["y"], "three": ["z"]}
    digests = digests_of(groups, marks, {TOPIC: "rows", ("c", "other"): "rows"})
    assert set(digests) == {A, B, TOPIC, ("c", "other")}
    assert len(set(digests.values())) == 4
    assert digests_of(reversed(groups), marks, {TOPIC: "rows", ("c", "other"): "rows"}) == digests
    later = digests_of(groups, marks | {"two": ["other"]}, {TOPIC: "others"})
    assert {group for group in digests if digests[group] != later.get(group)} == {A, TOPIC, ("c", "other")}
