"""Times of a log (microseconds since the epoch, UTC), and their texts for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

#: The end of the year 9999: later times fit no calendar.
LAST_US: Final = 253_402_300_799_999_999
#: The forms in which a user may give a time, as help and errors name them.
TIME_FORMS: Final = "08:21:07.355, 2026-11-21T08:21:07Z, or microseconds"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    """Microseconds since the epoch, exact (``datetime.timestamp`` is a float)."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(t_us: int) -> datetime:
    """The UTC moment of a log's ``t_us``. Raises ``OverflowError`` for a time that no calendar has."""
    return _EPOCH + t_us * _MICROSECOND


def clock(t_us: int) -> str:
    """``HH:MM:SS.mmm`` in UTC.

    >>> clock(1795249461936412)
    '08:24:21.936'
    """
    try:
        return from_micros(t_us).strftime("%H:%M:%S.") + f"{t_us % 1_000_000 // 1000:03d}"
    except (OverflowError, ValueError):
        return f"{t_us} us"  # a time no calendar has; the number is what the log says


def date_and_clock(t_us: int) -> str:
    """``YYYY-MM-DD HH:MM:SS.mmm`` in UTC.

    >>> date_and_clock(1795249461936412)
    '2026-11-21 08:24:21.936'
    """
    try:
        return f"{from_micros(t_us):%Y-%m-%d} {clock(t_us)}"
    except (OverflowError, ValueError):
        return clock(t_us)
