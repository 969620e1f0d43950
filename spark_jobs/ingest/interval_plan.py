"""Plan the intervals to ingest first, and the intervals to compute again because rows before their end have changed.

Replay folds every log from its beginning, so the results of an interval depend on the rows of all intervals up to it.
Intervals may be run in any order because of two rules:

1. *Before an interval is replayed, all earlier rows are in the tables.* Earlier rows that no run has ingested are divided
   into intervals of the same length, counted back from the start of this one, and ingested first. Earlier intervals whose
   files have changed (a late segment) are ingested again.
2. *An interval is computed again when rows before its end have changed.* Each replay records the digest of all rows that it
   depends on. If that digest is another one now, the interval is ``stale``. Of the dispatchers only those are replayed again
   whose own rows have changed (``spark_jobs.replay.kept_results``).

Example: the log has rows of the 19th, 20th and 21st, and the first run is for the 21st. The 19th and the 20th are ingested
first. If a segment with rows of the 20th arrives later, the 20th is ingested again, and the 21st is stale.

The functions are pure: they take the landing's intervals (``spark_jobs.pull.segments``), the surveys of its files, and the
earlier runs in ``run_metadata`` (``spark_jobs.warehouse.run_ledger``), and read or write nothing themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.files import file_format
from dispatch_core.times import from_micros
from spark_jobs.intervals import Interval
from spark_jobs.pull.hours_survey import HOUR_US, Survey
from spark_jobs.pull.segment_surveys import Surveyed
from spark_jobs.pull.segments import LandedInterval, Segment, Sources
from spark_jobs.warehouse.run_ledger import Ingested, history_digests, with_ahead, without_ahead

#: More intervals than this are not ingested before one: such a number points to a mistake.
MOST_INTERVALS: Final = 10_000


class HistoryError(DispatchAuditError):
    """Earlier rows would fill too many intervals of this length."""


def of_interval(surveyed: Iterable[Surveyed], span: Interval) -> list[Segment]:
    """Choose the segments that can have rows of the interval, and those whose rows belong to every interval."""
    first, last = _hours(span)
    return [
        segment
        for segment, survey in surveyed
        if (not survey.hours and (survey.carries or survey.untimed or not survey.complete))
        or any(first <= hour <= last for hour, _rows, _mark in survey.hours)
    ]


def read_ahead_of_interval(surveyed: Iterable[Surveyed], span: Interval) -> list[Segment]:
    """Choose the segments without rows of the interval that can have messages shortly behind its end."""
    surveyed = list(surveyed)
    chosen = set(of_interval(surveyed, span))
    return [segment for segment, survey in surveyed if segment not in chosen and _marks_ahead(survey, span)]


def has_messages_ahead(surveyed: Iterable[Surveyed], span: Interval) -> bool:
    """Check whether message files can have rows shortly behind the interval's end."""
    ends_in_an_hour = _hours(span)[1] == _last_hour_ahead(span)
    return ends_in_an_hour or any(_marks_ahead(survey, span) for _segment, survey in surveyed)


def _marks_ahead(survey: Survey, span: Interval) -> set[str]:
    """Return the marks of the rows shortly behind the interval's end, where these are of a later hour than its last."""
    last = _hours(span)[1]
    return {mark for hour, _rows, mark in survey.first_minutes if last < hour <= _last_hour_ahead(span)}


def _last_hour_ahead(span: Interval) -> int:
    """Return the last hour (since the epoch) of which messages are read for the interval."""
    return (span.messages_until_us - 1) // HOUR_US


def inputs_digest(surveyed: Iterable[Surveyed], span: Interval) -> str:
    """Compute the digest of the files that an interval's rows come from: equal for equal rows, "" for none.

    A file that has grown by rows of other hours does not change the digest. A file without a readable row does not count:
    it is quarantined in the intervals that are run while it is there, and makes none of them outdated.
    """
    made_of = []
    for segment, survey in surveyed:
        marks = _marks(survey, span)
        if marks:
            made_of.append([segment.name, *marks])
        elif not survey.hours and survey.carries:
            made_of.append([segment.name, segment.sha256])
    return _digest(sorted(made_of)) if made_of else ""


def file_marks(surveyed: Iterable[Surveyed], span: Interval) -> dict[str, list[str]]:
    """Return by file what tells its rows of the interval from those of another version of it."""
    return {segment.name: _marks(survey, span) or [segment.sha256] for segment, survey in surveyed}


def _marks(survey: Survey, span: Interval) -> list[str]:
    first, last = _hours(span)
    return sorted({mark for hour, _rows, mark in survey.hours if first <= hour <= last})


def ahead_inputs_digest(surveyed: Iterable[Surveyed], span: Interval) -> str:
    """Compute the digest of the rows among which messages behind an interval's end are looked for, "" for none.

    Only those of a later hour than the interval's last count, as the others are part of ``inputs_digest``.
    """
    made_of = [[segment.name, *sorted(_marks_ahead(survey, span))] for segment, survey in surveyed]
    made_of = sorted(of_file for of_file in made_of if len(of_file) > 1)
    return _digest(made_of) if made_of else ""


def logs_go_on(surveyed: Iterable[Surveyed], span: Interval) -> bool:
    """Check whether event files have rows behind the interval's end: of a later hour than its last one."""
    _first, last = _hours(span)
    return any(
        hour > last
        for segment, survey in surveyed
        if (file_format(segment.name) or ("",))[0] == "events"
        for hour, _rows, _mark in survey.hours
    )


def messages_go_on(surveyed: Iterable[Surveyed], span: Interval) -> bool:
    """Check whether message files may have rows behind those that are read for the interval."""
    last = _last_hour_ahead(span)
    for segment, survey in surveyed:
        if (file_format(segment.name) or ("",))[0] != "messages":
            continue
        read = {hour: rows for hour, rows, _mark in survey.first_minutes if hour == last}
        if any(hour > last or (hour == last and rows > read.get(hour, 0)) for hour, rows, _ in survey.hours):
            return True
    return False


def _hours(span: Interval) -> tuple[int, int]:
    """Return the first and the last hour (since the epoch) that overlap the interval."""
    return span.start_us // HOUR_US, (span.end_us - 1) // HOUR_US


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def missing_intervals(
    span: Interval, known: Sequence[LandedInterval], surveyed: Sequence[Surveyed]
) -> list[Interval]:
    """Plan the intervals to add, oldest first, so that every row before ``span`` belongs to an interval.

    They have the length of ``span`` and end at its start, one after the other; where another interval overlaps, they get
    what it leaves. Only intervals that can have rows are added. Raises ``HistoryError`` for more than
    ``MOST_INTERVALS``.
    """
    hours = {hour for _segment, survey in surveyed for hour, _rows, _mark in survey.hours}
    length_us = span.end_us - span.start_us
    covered = _joined(landed.span for landed in known if landed.role != "retired")
    steps: set[int] = set()
    for hour in hours:
        until = min((hour + 1) * HOUR_US, span.start_us)
        for begin, end in _uncovered(hour * HOUR_US, until, covered):
            # Step k is the interval [start - (k + 1) lengths, start - k lengths).
            steps.update(range((span.start_us - end) // length_us, -((begin - span.start_us) // length_us)))
        if len(steps) > MOST_INTERVALS:
            raise HistoryError(
                f"the logs have rows in more than {MOST_INTERVALS} intervals of {length_us // 1_000_000} s before "
                f"{span.start.isoformat()}; nothing was ingested. Choose longer intervals, or look for wrong times"
            )
    found = []
    for step in sorted(steps, reverse=True):
        first_us = span.start_us - (step + 1) * length_us
        for begin, end in _uncovered(first_us, first_us + length_us, covered):
            if any(hour in hours for hour in range(begin // HOUR_US, (end - 1) // HOUR_US + 1)):
                found.append(Interval(from_micros(begin), from_micros(end)))
    return found


def _joined(spans: Iterable[Interval]) -> list[tuple[int, int]]:
    """Join intervals into disjoint time ranges, in order."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted((span.start_us, span.end_us) for span in spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _uncovered(begin: int, end: int, covered: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of ``[begin, end)`` that ``covered`` (in order) leaves out."""
    left = []
    for start, stop in covered:
        if stop <= begin or start >= end:
            continue
        if start > begin:
            left.append((begin, start))
        begin = max(begin, stop)
    return [*left, (begin, end)] if begin < end else left


def adopted(known: Iterable[LandedInterval], sources: Sources) -> list[LandedInterval]:
    """Change the sources of intervals that were landed from some of ``sources`` to all of them; return these intervals."""
    return [
        replace(landed, sources=sources)
        for landed in known
        if landed.sources != sources and set(landed.sources) <= set(sources)
    ]


@dataclass(frozen=True, slots=True)
class Expected:
    """An interval, the digest of the files that its rows should come from (``inputs_digest``), and ``logs_go_on``.

    ``ahead``: the digest of the rows among which messages behind its end should be looked for (``ahead_inputs_digest``).
    """

    span: Interval
    digest: str
    goes_on: bool = False
    ahead: str = ""


def outdated(
    expected: Iterable[Expected], ingested: Ingested, read_ahead: Mapping[int, str] | None = None
) -> list[Expected]:
    """List the intervals whose rows in the tables come from other files than they should, oldest first.

    ``read_ahead``: by start, the digest of the rows among which messages behind the end were looked for.
    """
    looked_for = {} if read_ahead is None else read_ahead
    wrong = []
    for interval in expected:
        start_us = interval.span.start_us
        end_us, of_rows = ingested.get(start_us, (interval.span.end_us, ""))
        digest, _ahead = without_ahead(of_rows)
        is_other_ahead = looked_for.get(start_us, "") != interval.ahead
        if digest != interval.digest or (digest and (end_us != interval.span.end_us or is_other_ahead)):
            wrong.append(interval)
    return sorted(wrong, key=lambda interval: interval.span.start)


def as_expected(expected: Iterable[Expected], ingested: Ingested) -> Ingested:
    """Return ``ingested`` as it will be when all outdated intervals have been ingested again.

    Of messages behind an interval's end only a new ingest tells which are its own: until then those are that it has.
    """
    ahead = {start: without_ahead(digest)[1] for start, (_end, digest) in ingested.items()}
    found = dict(ingested)
    for interval in expected:
        start_us = interval.span.start_us
        found[start_us] = interval.span.end_us, with_ahead(interval.digest, ahead.get(start_us, ""))
    return found


def stale(
    replayed: Mapping[int, tuple[Interval, str]], ingested: Ingested, open_ends: Collection[int] = ()
) -> list[Interval]:
    """List the intervals that were replayed on another history than ``ingested``, oldest first.

    ``open_ends``: those behind whose end no row is known now; once one is, what went on there is judged again.
    ``replayed``: by start, each interval with the history digest that its replay recorded. An interval that has no rows any
    more is not listed, as there is nothing to replay.
    """
    now = history_digests(ingested, open_ends)
    changed = [span for start, (span, kept) in replayed.items() if start in now and kept != now[start]]
    return sorted(changed, key=lambda span: span.start)
