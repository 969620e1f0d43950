"""Rules for what may be removed and what must stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_jobs.intervals import interval
from spark_jobs.maintenance.retention import (
    Checked,
    ChecksumError,
    Pages,
    Retention,
    RetentionError,
    check_sums,
    expired,
    expired_pages,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
OLD, NEW = interval("2026-01-01"), interval("2026-11-21")


def test_an_interval_goes_when_both_its_end_and_the_last_work_on_it_are_old() -> None:
    long_ago = NOW - timedelta(days=200)
    worked = {OLD: long_ago, NEW: NOW - timedelta(hours=1)}
    assert expired(worked, NOW, 30) == [OLD]
    assert expired(worked, NOW, 400) == []
    assert expired({OLD: NOW - timedelta(days=1)}, NOW, 30) == [], (
        "it was run again: somebody wants to see it"
    )
    future = interval("2026-11-22")
    assert expired({future: long_ago}, NOW, 2) == [], "it has not ended"


def test_nothing_goes_where_all_is_kept_for_ever() -> None:
    assert expired({OLD: datetime(2026, 1, 3, tzinfo=UTC)}, NOW, None) == []
    assert expired_pages([Pages(Path("2026-01-01"), datetime(2026, 1, 3, tzinfo=UTC))], NOW, None) == []


@pytest.mark.parametrize(
    "name", ["2026-01-01", "2026-01-01T06-30-00Z", "2026-01-01T06-30-00.000001Z", "0123456789abcdef0123"]
)
def test_old_folders_of_pages_go(name: str) -> None:
    folder = Path("/pages") / name
    assert expired_pages([Pages(folder, NOW - timedelta(days=31))], NOW, 30) == [folder]
    assert expired_pages([Pages(folder, NOW - timedelta(days=29))], NOW, 30) == []


@pytest.mark.parametrize("name", ["keep", "2026-01-01-mine", "index.html", ".2026-01-01.abc", "2026-1-1"])
def test_folders_that_others_made_stay(name: str) -> None:
    assert expired_pages([Pages(Path("/pages") / name, NOW - timedelta(days=9999))], NOW, 30) == []


@pytest.mark.parametrize("days", [-1, 0, 1])
def test_too_few_days_are_refused_before_anything_is_removed(days: int) -> None:
    with pytest.raises(RetentionError, match=rf"pages for {days} days.*at least 2.*Nothing was removed"):
        Retention(pages=days)


def test_files_that_differ_or_are_missing_are_named() -> None:
    good = Checked(Path("/landing/a"), "x/a.jsonl", "aa", "aa")
    assert check_sums([good, good]) == 2
    changed = Checked(Path("/landing/b"), "x/b.jsonl", "bb", "cc")
    missing = Checked(Path("/landing/d"), "x/d.jsonl", "dd", None)
    with pytest.raises(ChecksumError, match="2 of 3 landed files") as failure:
        check_sums([good, changed, missing])
    text = str(failure.value)
    assert "/landing/b: its sha256 is cc, landed was bb as x/b.jsonl" in text
    assert "/landing/d: is missing" in text
    assert "/landing/a" not in text
