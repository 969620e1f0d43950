"""The window of an hour has the intervals that were audited within its 24 hours, from the runs that were recorded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.intervals import Interval, is_short
from spark_jobs.warehouse.balance_window import BalanceWindow, outdated_windows
from spark_jobs.warehouse.delta_tables import record_run
from spark_jobs.warehouse.run_ledger import Ledger

HOUR = timedelta(hours=1)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
LAST = Interval(NOON, NOON + HOUR)
SUMS = {"rows": {"key_totals": 7}}

Record = Callable[..., None]


def hours_before(count: int, length: timedelta = HOUR) -> Interval:
    """The interval of this length that begins so many hours before noon."""
    return Interval(NOON - count * HOUR, NOON - count * HOUR + length)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    def write(stage: str, span: Interval, **summary: Any) -> None:
        bounds = {"interval_start": span.start.isoformat(), "interval_end": span.end.isoformat()}
        record_run(tmp_path, stage, span, NOON, bounds | summary)

    return write


def audited(record: Record, span: Interval, history: str = "h", **summary: Any) -> None:
    record("ingest", span, inputs_digest="d", logs_go_on=True)
    record("replay", span, history_digest=history, **(SUMS | summary))


def window(warehouse: Path) -> BalanceWindow:
    return BalanceWindow.of(Ledger(warehouse), LAST)


def test_only_intervals_of_less_than_24_hours_have_a_window() -> None:
    assert is_short(LAST)
    assert is_short(hours_before(30, timedelta(hours=23, minutes=59)))
    assert not is_short(hours_before(30, timedelta(hours=24)))


def test_it_has_the_audited_intervals_within_24_hours_and_itself(tmp_path: Path, record: Record) -> None:
    inside = [hours_before(23), hours_before(2), hours_before(1)]
    for span in (hours_before(24), *inside, LAST, Interval(LAST.end, LAST.end + HOUR)):
        audited(record, span)
    found = window(tmp_path)
    assert found.intervals == (*inside, LAST)
    assert found.left_out_s == 0, "hours without rows are not missing"
    assert found.start == LAST.end - timedelta(hours=24)


def test_what_it_leaves_out_is_counted(tmp_path: Path, record: Record) -> None:
    record("ingest", hours_before(3), inputs_digest="d", as_history=True)
    audited(record, hours_before(36, timedelta(hours=15)))  # reaches two hours into the window
    audited(record, hours_before(1), rows={"balance": 3})  # by an earlier version, which kept no sums
    record("ingest", hours_before(2), inputs_digest="")  # without rows, or given way to another interval
    audited(record, LAST)
    found = window(tmp_path)
    assert found.intervals == (LAST,)
    assert found.left_out_s == 3600 * (1 + 2 + 1)
    assert found.in_words == (
        "over the 24 h to 2026-11-21 13:00 UTC, without 4 h that were not audited in intervals within them"
    )


def test_it_is_out_of_date_when_others_are_audited(tmp_path: Path, record: Record) -> None:
    audited(record, hours_before(1))
    audited(record, LAST)
    record("aggregates", LAST, window_digest=window(tmp_path).digest)
    assert outdated_windows(Ledger(tmp_path)) == []

    audited(record, hours_before(1), "h-to-last-line")
    assert outdated_windows(Ledger(tmp_path)) == [], "the moment of the verdict changes no sum"
    audited(record, Interval(LAST.end, LAST.end + HOUR))
    assert outdated_windows(Ledger(tmp_path)) == [], "a later interval"
    audited(record, hours_before(1), "other rows")
    assert outdated_windows(Ledger(tmp_path)) == [LAST]
    record("aggregates", LAST, window_digest=window(tmp_path).digest)
    assert outdated_windows(Ledger(tmp_path)) == []
    audited(record, hours_before(5))
    assert outdated_windows(Ledger(tmp_path)) == [LAST]
