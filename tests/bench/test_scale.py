"""Figures of a long log's days are kept, and a stopped run goes on behind them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bench.scale import Done, _checked
from spark_jobs.intervals import Interval

A_DAY = Interval(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=1))


def test_a_stopped_run_knows_the_days_that_were_measured(tmp_path: Path) -> None:
    path = tmp_path / "done.json"
    done = Done(path)
    assert done.days == []
    done.add(10.0, {"dispatchers": 2})
    done.add(11.0, {"dispatchers": 3})
    assert [(day["seconds"], day["dispatchers"]) for day in Done(path).days] == [(10.0, 2), (11.0, 3)]
    assert [left.name for left in tmp_path.iterdir()] == ["done.json"]


def test_a_day_with_a_dispatcher_that_was_not_judged_is_no_measurement() -> None:
    report = {"dispatchers": 2, "dispatchers_failed": 0, "rows": {"deliveries": 7}}
    assert _checked(report, A_DAY) == {"dispatchers": 2, "deliveries": 7}
    with pytest.raises(ValueError, match="1 dispatchers were not judged"):
        _checked({**report, "dispatchers_failed": 1}, A_DAY)
