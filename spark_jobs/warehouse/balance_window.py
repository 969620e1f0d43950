"""Choose the intervals over which balance is judged: those of the 24 hours that end with an interval.

An interval of 24 hours or more is judged by itself. A shorter one rarely has enough messages, so the sums of the intervals
before it are added, as long as they lie in the window as a whole.

Example: hourly intervals, of which the one from 13:00 to 14:00 is judged. Its window begins at 14:00 of the day before and
has 24 intervals. If the hours until midnight were audited as part of a whole day, which began before the window, they are
left out: the window has the 14 hours since midnight.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatch_core.times import from_micros
from spark_jobs.intervals import BALANCE_WINDOW, Interval, is_short
from spark_jobs.warehouse.contracts import KINDS_OVER_A_DAY, KINDS_OVER_TOPICS
from spark_jobs.warehouse.run_ledger import Ledger, without_open_end


def added_kinds(span: Interval) -> tuple[str, ...]:
    """Return the kinds of ``anomalies`` that the aggregates of an interval add to those of its replay."""
    return (*KINDS_OVER_TOPICS, *KINDS_OVER_A_DAY) if is_short(span) else KINDS_OVER_TOPICS


def in_words(end: datetime, left_out_s: int) -> str:
    """Name a window.

    >>> in_words(datetime(2026, 11, 21, 14), 0)
    'over the 24 h to 2026-11-21 14:00 UTC'
    >>> in_words(datetime(2026, 11, 21, 14), 5400)
    'over the 24 h to 2026-11-21 14:00 UTC, without 1.5 h that were not audited in intervals within them'
    """
    window = f"over the 24 h to {end:%Y-%m-%d %H:%M} UTC"
    if not left_out_s:
        return window
    return f"{window}, without {left_out_s / 3600:.3g} h that were not audited in intervals within them"


@dataclass(frozen=True, slots=True)
class BalanceWindow:
    """The window of an interval: the intervals whose sums it has, oldest first, the interval itself last.

    ``left_out_s``: seconds of the window that lie in other intervals with rows: not audited, or reaching beyond the window.
    ``digest``: of the replays that made the sums of the earlier intervals; another one means that the window is out of date.
    """

    span: Interval
    intervals: tuple[Interval, ...]
    left_out_s: int
    digest: str

    @property
    def start(self) -> datetime:
        """The beginning of the 24 hours."""
        return self.span.end - BALANCE_WINDOW

    @property
    def in_words(self) -> str:
        """The window as a reason or an explanation names it."""
        return in_words(self.span.end, self.left_out_s)

    @classmethod
    def of(cls, ledger: Ledger, span: Interval) -> BalanceWindow:
        """Return the window of an interval, from the earlier intervals as they are now."""
        start_us = span.end_us - BALANCE_WINDOW // timedelta(microseconds=1)
        replayed, summaries = ledger.replayed(), ledger.newest("replay")
        used, of_replays, left_out_us = [], [], 0
        for earlier_us, (end_us, digest) in sorted(ledger.ingested().items()):
            inside_us = min(end_us, span.start_us) - max(earlier_us, start_us)
            if not digest or earlier_us == span.start_us or inside_us <= 0:
                continue
            earlier = Interval(from_micros(earlier_us), from_micros(end_us))
            audited, history = replayed.get(earlier_us, (None, ""))
            # An earlier version kept no sums.
            has_sums = "key_totals" in summaries.get(earlier_us, {}).get("rows", {})
            within = start_us <= earlier_us and end_us <= span.start_us
            if audited == earlier and history and has_sums and within:
                used.append(earlier)
                of_replays.append([earlier_us, end_us, without_open_end(history)])
            else:
                left_out_us += inside_us
        digest = hashlib.sha256(json.dumps(of_replays).encode()).hexdigest()[:32]
        return cls(span, (*used, span), left_out_us // 1_000_000, digest)


def outdated_windows(ledger: Ledger) -> list[Interval]:
    """List the intervals whose balance was judged with other earlier intervals than there are now, oldest first.

    Each was replayed, and its rows are still in the tables.
    """
    ingested, replayed = ledger.ingested(), ledger.replayed()
    found = []
    for start_us, summary in ledger.newest("aggregates").items():
        span, history = replayed.get(start_us, (None, ""))
        if span is None or not history or "window_digest" not in summary or not is_short(span):
            continue
        end_us, digest = ingested.get(start_us, (0, ""))
        if (
            digest
            and end_us == span.end_us
            and BalanceWindow.of(ledger, span).digest != summary["window_digest"]
        ):
            found.append(span)
    return sorted(found, key=lambda span: span.start)
