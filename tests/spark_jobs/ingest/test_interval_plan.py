"""Planning of histories: what is missing, what is outdated, what is stale, as functions of small values."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.ingest.interval_plan import (
    Expected,
    HistoryError,
    Surveyed,
    adopted,
    ahead_inputs_digest,
    as_expected,
    has_messages_ahead,
    history_digests,
    inputs_digest,
    messages_go_on,
    missing_intervals,
    of_interval,
    outdated,
    read_ahead_of_interval,
    stale,
)
from spark_jobs.intervals import Interval, interval
from spark_jobs.pull.hours_survey import HOUR_US, Survey
from spark_jobs.pull.segments import LandedInterval, Segment
from spark_jobs.warehouse.run_ledger import with_ahead

DAY = interval("2026-11-21")
SOURCES = ("/logs",)
DAY_HOURS = 24
FIRST_HOUR = DAY.start_us // HOUR_US


def segment(name: str, *hours: int, carries: bool = False, untimed: int = 0, sha: str = "") -> Surveyed:
    """A file with one row in each of the hours (counted from the start of ``DAY``)."""
    sha256 = sha or name
    marked = tuple((FIRST_HOUR + hour, 1, sha256) for hour in sorted(hours))
    return Segment(name, sha256, 1), Survey(marked, untimed, carries, True)


def days(number: int) -> Interval:
    """The day so many days after ``DAY``."""
    start = DAY.start + timedelta(days=number)
    return Interval(start, start + timedelta(days=1))


def run(span: Interval) -> LandedInterval:
    return LandedInterval(span, "run", SOURCES)


def test_earlier_rows_are_cut_into_intervals_of_the_same_length_and_empty_ones_left_out() -> None:
    logs = [segment("a", -1, -DAY_HOURS - 1, -5 * DAY_HOURS), segment("b", 3, 100)]
    assert missing_intervals(DAY, [run(DAY)], logs) == [days(-5), days(-2), days(-1)]


def test_intervals_that_are_there_stay_and_the_new_ones_take_what_they_leave() -> None:
    half = Interval(DAY.start - timedelta(hours=30), DAY.start - timedelta(hours=18))
    logs = [segment("a", *range(-48, 0))]
    assert missing_intervals(DAY, [run(DAY), run(half)], logs) == [
        Interval(days(-2).start, half.start),
        Interval(half.end, DAY.start),
    ]
    # A retired one is not there.
    gone = replace(run(half), role="retired")
    assert missing_intervals(DAY, [run(DAY), gone], logs) == [days(-2), days(-1)]


def test_too_many_intervals_are_refused() -> None:
    second = Interval(DAY.start, DAY.start + timedelta(seconds=1))
    with pytest.raises(HistoryError, match="more than 10000 intervals of 1 s"):
        missing_intervals(second, [run(second)], [segment("a", *range(-5, 0))])


@settings(max_examples=200, deadline=None)
@given(
    hours=st.sets(st.integers(-200, 200), max_size=20),
    length_hours=st.integers(1, 50),
    others=st.lists(st.tuples(st.integers(-150, 150), st.integers(1, 40)), max_size=4),
)
def test_every_earlier_hour_stands_in_exactly_one_interval(
    hours: set[int], length_hours: int, others: list[tuple[int, int]]
) -> None:
    hour = timedelta(hours=1)
    span = Interval(DAY.start, DAY.start + length_hours * hour)
    known = [run(span)]
    for start, length in others:
        other = Interval(DAY.start + start * hour, DAY.start + (start + length) * hour)
        if all(other.end <= landed.span.start or landed.span.end <= other.start for landed in known):
            known.append(run(other))
    added = missing_intervals(span, known, [segment("a", *hours)])
    assert added == sorted(added, key=lambda found: found.start)
    every = [landed.span for landed in known] + added
    for number in sorted(hours):
        moment = DAY.start + number * hour
        holding = [covered for covered in every if covered.start <= moment < covered.end]
        assert len(holding) == 1 or (number >= 0 and len(holding) == 0)
    for found in added:  # none is made for nothing
        assert any(found.start <= DAY.start + number * hour < found.end for number in hours)
        assert found.end - found.start <= span.end - span.start


def test_an_interval_reads_the_files_with_rows_of_it_and_those_without_any_time() -> None:
    logs = [
        segment("a", -1, 0),
        segment("b", 24),
        segment("header", carries=True),
        segment("bad", untimed=3),
        segment("empty"),
    ]
    assert [segment.name for segment in of_interval(logs, DAY)] == ["a", "header", "bad"]
    assert [segment.name for segment in of_interval(logs, days(1))] == ["b", "header", "bad"]


def test_the_digest_of_an_interval_changes_with_its_rows_and_with_nothing_else() -> None:
    logs = [segment("a", -1, 0), segment("b", 24)]
    before = inputs_digest(logs, DAY)
    assert before != inputs_digest(logs, days(1)) != inputs_digest(logs, days(2)) == ""
    assert inputs_digest([*logs, segment("bad", untimed=3), segment("c", 30)], DAY) == before
    assert inputs_digest(reversed(logs), DAY) == before
    assert inputs_digest([*logs, segment("header", carries=True)], DAY) != before
    assert inputs_digest([*logs, segment("late", 5)], DAY) != before
    assert inputs_digest([segment("a", -1, 0, sha="other"), logs[1]], DAY) != before
    grown = Survey(
        ((FIRST_HOUR - 1, 1, "a"), (FIRST_HOUR, 1, "a"), (FIRST_HOUR + 24, 9, "longer")), 0, False, True
    )
    assert inputs_digest([(Segment("a", "longer", 9, grown_from="a"), grown), logs[1]], DAY) == before


def test_messages_of_the_first_minute_behind_the_end_are_looked_at_too() -> None:
    def of_next_hour(name: str, first_minute: str, *, rows: int = 1) -> Surveyed:
        hour = FIRST_HOUR + DAY_HOURS
        hours, first = ((hour, rows, "any"),), ((hour, 1, first_minute),)
        return Segment(name, "sha", 1), Survey(hours, 0, False, True, first)

    logs = [segment("a", 0), segment("messages-2.jsonl", 24), of_next_hour("messages-3.jsonl", "x")]
    assert [segment.name for segment in read_ahead_of_interval(logs, DAY)] == ["messages-3.jsonl"]
    assert has_messages_ahead(logs, DAY)
    assert not has_messages_ahead(logs[:2], DAY)
    assert inputs_digest(logs, DAY) == inputs_digest(logs[:1], DAY)
    before = ahead_inputs_digest(logs, DAY)
    assert before not in ("", ahead_inputs_digest([of_next_hour("messages-3.jsonl", "y")], DAY))
    assert ahead_inputs_digest(logs[:2], DAY) == ahead_inputs_digest(logs, days(1)) == ""
    assert not messages_go_on(logs[2:], DAY)
    assert messages_go_on([of_next_hour("messages-3.jsonl", "x", rows=2)], DAY)
    assert messages_go_on(logs[1:2], DAY)

    quarter = Interval(DAY.start, DAY.start + timedelta(minutes=15))
    assert has_messages_ahead(logs[:1], quarter), "they are of the hour in which the interval ends"


def test_an_interval_is_stale_when_messages_behind_its_end_turn_out_to_be_its_own() -> None:
    expected = Expected(DAY, "files", ahead="first minute")
    start = DAY.start_us
    ingested = {start: (DAY.end_us, "files")}
    replayed = {start: (DAY, history_digests(ingested)[start])}
    assert outdated([expected], ingested, {start: ""}) == [expected]
    assert stale(replayed, as_expected([expected], ingested)) == []
    assert outdated([expected], ingested, {start: "first minute"}) == []

    named = {start: (DAY.end_us, with_ahead("files", "3:4"))}
    assert outdated([expected], named, {start: "first minute"}) == []
    assert stale(replayed, as_expected([expected], named)) == [DAY]
    assert as_expected([replace(expected, digest="more")], named) == {
        start: (DAY.end_us, with_ahead("more", "3:4"))
    }


def test_what_is_outdated_and_what_that_makes_stale() -> None:
    expected = [Expected(days(number), f"files of {number}") for number in range(4)]
    ingested = as_expected(expected, {})
    assert outdated(expected, ingested) == []
    assert outdated([*expected, Expected(days(7), "")], ingested) == []
    replayed = {
        span.start_us: (span, history_digests(ingested)[span.start_us]) for span in map(days, range(4))
    }
    assert stale(replayed, ingested) == []

    late = [
        interval if number != 1 else replace(interval, digest="more")
        for number, interval in enumerate(expected)
    ]
    assert outdated(late, ingested) == [late[1]]
    assert stale(replayed, as_expected(late, ingested)) == [days(1), days(2), days(3)]
    # The history of an interval ends with it; what has no rows left is not replayed.
    assert stale(replayed, as_expected([Expected(days(3), "")], ingested)) == []
    earlier = as_expected([Expected(days(-3), "found later")], ingested)
    assert stale(replayed, earlier) == [days(0), days(1), days(2), days(3)]
    # An interval that gave way is emptied.
    assert outdated([Expected(days(1), "")], ingested) == [Expected(days(1), "")]


def test_intervals_follow_the_sources_that_hold_all_of_theirs() -> None:
    landed = LandedInterval(DAY, "run", ("/a",))
    both = LandedInterval(days(1), "run", ("/a", "/b"))
    other = LandedInterval(days(2), "run", ("/c",))
    assert adopted([landed, both, other], ("/a", "/b")) == [replace(landed, sources=("/a", "/b"))]


def test_the_epoch_of_a_history_is_utc() -> None:
    assert datetime.fromtimestamp(FIRST_HOUR * HOUR_US // 1_000_000, UTC) == DAY.start
