"""Plan the intervals to ingest first, and the intervals to compute again because rows before their end have changed.

Replay folds every log from its beginning, so the results of an interval rest on the rows of all intervals up to it. They are
right in whatever order intervals are run, if two things hold:

1. *Before an interval is replayed, all earlier rows are in the tables.* Earlier rows that no run has brought are cut into
   intervals of the same length, back from the start of this one, and ingested first; so are earlier intervals
   whose files are others now (a late segment).
2. *Where rows come in before an interval that is done, it is done again.* Each replay keeps the digest of all it rests on;
   where that is another one now, the interval is ``stale``.

Pure planning over small values: the landing's intervals (``spark_jobs.pull.segments``), the surveys of its files, and what
``run_metadata`` says of earlier runs (``spark_jobs.warehouse.run_ledger``). Nothing here reads or writes anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dispatch_core.errors import DispatchAuditError
from dispatch_core.times import from_micros
from spark_jobs.intervals import Interval
from spark_jobs.pull.hours_survey import HOUR_US
from spark_jobs.pull.segment_surveys import Surveyed
from spark_jobs.pull.segments import LandedInterval, Segment, Sources
from spark_jobs.warehouse.run_ledger import Ingested, history_digests

#: More intervals than this are not ingested for the sake of one: their number points to a mistake.
MOST_INTERVALS: Final = 10_000


class HistoryError(DispatchAuditError):
    """A history that cannot be cut into intervals of the length asked for."""


def of_interval(surveyed: Iterable[Surveyed], span: Interval) -> list[Segment]:
    """The segments that can hold rows of the interval, and those whose rows belong to every interval; by name."""
    first, last = _hours(span)
    return [
        segment
        for segment, survey in surveyed
        if (not survey.hours and (survey.carries or survey.untimed or not survey.complete))
        or any(first <= hour <= last for hour, _rows, _mark in survey.hours)
    ]


def inputs_digest(surveyed: Iterable[Surveyed], span: Interval) -> str:
    """Digest of the files that an interval's rows come from: equal for equal rows, "" for none.

    A file that has grown by rows of other hours counts as it was. One of which not one row could be read counts for nothing:
    it has a place in the quarantine of the intervals that are run while it is there, and makes none of them outdated.
    """
    first, last = _hours(span)
    made_of = []
    for segment, survey in surveyed:
        marks = sorted({mark for hour, _rows, mark in survey.hours if first <= hour <= last})
        if marks:
            made_of.append([segment.name, *marks])
        elif not survey.hours and survey.carries:
            made_of.append([segment.name, segment.sha256])
    return _digest(sorted(made_of)) if made_of else ""


def _hours(span: Interval) -> tuple[int, int]:
    """The first and the last hour that the interval has part of."""
    return span.start_us // HOUR_US, (span.end_us - 1) // HOUR_US


def _digest(held: object) -> str:
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()[:32]


def missing_intervals(
    span: Interval, known: Sequence[LandedInterval], surveyed: Sequence[Surveyed]
) -> list[Interval]:
    """The intervals to add, oldest first, so that all rows before ``span`` stand in one.

    They have the length of ``span`` and meet it, one after the other; where another interval is in the way they take what it
    leaves. Only those are made that can have rows. Raises ``HistoryError`` for more than ``MOST_INTERVALS``.
    """
    hours = {hour for _segment, survey in surveyed for hour, _rows, _mark in survey.hours}
    length_us = span.end_us - span.start_us
    covered = _joined(one.span for one in known if one.role != "retired")
    steps: set[int] = set()
    for hour in hours:
        until = min((hour + 1) * HOUR_US, span.start_us)
        for begin, end in _uncovered(hour * HOUR_US, until, covered):
            # Step k stands for [start - (k + 1) lengths, start - k lengths).
            steps.update(range((span.start_us - end) // length_us, -((begin - span.start_us) // length_us)))
        if len(steps) > MOST_INTERVALS:
            raise HistoryError(
                f"the logs hold rows in more than {MOST_INTERVALS} intervals of {length_us // 1_000_000} s before "
                f"{span.start.isoformat()}; nothing was ingested. Take longer intervals, or look for times that are wrong"
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
    for begin, end in sorted((one.start_us, one.end_us) for one in spans):
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
    """The intervals that get their rows from ``sources`` from now on: those that were landed from a part of them."""
    return [
        replace(one, sources=sources)
        for one in known
        if one.sources != sources and set(one.sources) <= set(sources)
    ]


@dataclass(frozen=True, slots=True)
class Expected:
    """An interval and the digest of what its rows should be made of."""

    span: Interval
    digest: str


def outdated(expected: Iterable[Expected], ingested: Ingested) -> list[Expected]:
    """The intervals whose rows in the tables are not made of what they should be, oldest first."""
    wrong = []
    for one in expected:
        end_us, digest = ingested.get(one.span.start_us, (one.span.end_us, ""))
        if digest != one.digest or (digest and end_us != one.span.end_us):
            wrong.append(one)
    return sorted(wrong, key=lambda one: one.span.start)


def as_expected(expected: Iterable[Expected], ingested: Ingested) -> Ingested:
    """``ingested`` as it will be once nothing is outdated."""
    return {**ingested, **{one.span.start_us: (one.span.end_us, one.digest) for one in expected}}


def stale(replayed: Mapping[int, tuple[Interval, str]], ingested: Ingested) -> list[Interval]:
    """The intervals that were replayed on another history than ``ingested``, oldest first.

    ``replayed``: by start, each interval with the history digest that its replay kept. One that has no rows left is not
    among them: there is nothing to replay.
    """
    now = history_digests(ingested)
    changed = [span for start, (span, kept) in replayed.items() if start in now and kept != now[start]]
    return sorted(changed, key=lambda span: span.start)
