"""Parse and name data intervals ``[start, end)``. All times are UTC.

Tables are partitioned by the start of an interval; landing folders have its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from dispatch_core.errors import DispatchAuditError
from dispatch_core.times import from_micros, micros

DEFAULT_LENGTH: Final = timedelta(days=1)
#: Clocks of producers may be ahead of the broker's by so much, microseconds: an entry that was stored before an interval's
#: end may have a publish time up to so long behind it.
CLOCKS_AHEAD_US: Final = 60_000_000


#: The balance of a shorter interval is judged together with that of earlier ones: it rarely has enough messages.
BALANCE_WINDOW: Final = timedelta(hours=24)


class IntervalError(DispatchAuditError):
    """A text is no time, or an interval ends before it starts."""


@dataclass(frozen=True, slots=True)
class Interval:
    """One data interval ``[start, end)``, both aware datetimes in UTC."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.microsecond or self.end.microsecond:
            raise IntervalError(f"the interval {self.start.isoformat()} must start and end at a whole second")
        if self.end <= self.start:
            raise IntervalError(
                f"the interval ends at {self.end.isoformat()}, not after its start {self.start.isoformat()}; "
                "give an end later than the start"
            )

    @property
    def name(self) -> str:
        """Name for people and paths: ``2026-11-21`` for a start at midnight, else ``2026-11-21T06-30-00Z``."""
        if self.start == self.start.replace(hour=0, minute=0, second=0, microsecond=0):
            return self.start.strftime("%Y-%m-%d")
        return self.start.strftime("%Y-%m-%dT%H-%M-%SZ")

    @property
    def start_us(self) -> int:
        """Start in microseconds since the epoch."""
        return micros(self.start)

    @property
    def end_us(self) -> int:
        """End, exclusive, in microseconds since the epoch."""
        return micros(self.end)

    @property
    def messages_until_us(self) -> int:
        """Publish time from which on no message is read for the interval, microseconds since the epoch."""
        return self.end_us + CLOCKS_AHEAD_US


def is_short(span: Interval) -> bool:
    """Check whether the balance of an interval is judged together with that of earlier ones."""
    return span.end - span.start < BALANCE_WINDOW


def parse_moment(text: str | datetime) -> datetime:
    """Parse a day (``2026-11-21``) or an ISO 8601 time into an aware UTC datetime; a time without an offset is UTC."""
    if isinstance(text, datetime):
        moment = text
    else:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise IntervalError(
                f"{text[:80]!r} is neither a day nor an ISO 8601 time ({str(error)[:80]}); "
                "write 2026-11-21 or 2026-11-21T06:00:00+00:00"
            ) from None
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise IntervalError(f"{moment.isoformat()} is outside the years 1 to 9999 in UTC") from None


def interval(start: str | datetime, end: str | datetime | None = None) -> Interval:
    """Make the interval from ``start`` to ``end``, or of one day if there is no end."""
    first = parse_moment(start)
    try:
        return Interval(first, parse_moment(end) if end else first + DEFAULT_LENGTH)
    except OverflowError:
        raise IntervalError(f"a day from {first.isoformat()} ends after the year 9999; give an end") from None


def day_of(t_us: int) -> str:
    """Return the UTC day (``2026-11-21``) of a log's ``t_us``."""
    return from_micros(t_us).strftime("%Y-%m-%d")
