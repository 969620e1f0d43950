"""Find the intervals of a cron expression."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from dispatch_airflow.home import ParameterError

if TYPE_CHECKING:
    from croniter import croniter  # type: ignore[import-untyped]

DAILY: Final = "0 0 * * *"
HOURLY: Final = "0 * * * *"
#: So many intervals of a schedule are looked at, to find the longest.
_LOOKED_AT: Final = 400


def longest_interval(schedule: str) -> timedelta:
    """Return the longest interval between two ticks of a cron expression.

    >>> longest_interval("0 * * * *"), longest_interval("0 8-18 * * *")
    (datetime.timedelta(seconds=3600), datetime.timedelta(seconds=50400))

    Raises ``ParameterError`` for a text that is no cron expression.
    """
    ticks = _ticks(schedule, datetime(2024, 1, 1))
    times = [ticks.get_next(datetime) for _ in range(_LOOKED_AT)]
    return max(after - before for before, after in pairwise(times))


def last_interval(schedule: str, moment: datetime) -> tuple[datetime, datetime]:
    """Return start and end of the last interval of a cron expression that had ended at a moment.

    Airflow's ``CronDataIntervalTimetable`` gives a run that is triggered by hand the same one.

    >>> start, end = last_interval("0 0 * * *", datetime(2026, 11, 22, 9, 30))
    >>> start.isoformat(), end.isoformat()
    ('2026-11-21T00:00:00', '2026-11-22T00:00:00')

    Raises ``ParameterError`` for a text that is no cron expression, and for a moment before its first interval.
    """
    try:
        ticks = _ticks(schedule, moment + timedelta(microseconds=1))
        end = ticks.get_prev(datetime)
        return ticks.get_prev(datetime), end
    except (OverflowError, ValueError) as error:  # croniter's own errors are ValueErrors
        raise ParameterError(
            f"no interval of the schedule {schedule!r} had ended at {moment.isoformat()} ({error}); nothing was done. "
            "Give the data interval"
        ) from None


def _ticks(schedule: str, moment: datetime) -> croniter:
    from croniter import croniter

    try:
        return croniter(schedule, moment)
    except ValueError as error:  # croniter's own errors are ValueErrors
        raise ParameterError(f"the schedule {schedule!r} is no cron expression: {error}") from None
