"""The moment as of which an interval is judged: its end, or the last line of a log that is not known to go on behind it.

What waits, is not acknowledged or was not sent by the interval's end is judged as of then if logs are known to go on: they
have rows behind the end. Otherwise each log is judged as of its last line, and what goes on there is not finished. When the
logs go on later, the interval is stale and is judged again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

#: Columns that a dispatcher's row carries to the task that replays it.
COLUMNS: Final = (
    pa.field("to_last_line", pa.bool_()),
    pa.field("until_us", pa.int64()),
    pa.field("complete", pa.bool_()),
    pa.field("messages_cut", pa.bool_()),
)


@dataclass(frozen=True, slots=True)
class AsOf:
    """The moment that was asked for; by default the interval's end or the last line.

    ``until_us``: lines later than it are not used; ``None`` = all of the interval's are. ``complete``: where logs are not
    known to go on, nothing will ever follow them.
    """

    until_us: int | None = None
    complete: bool = False

    @property
    def mark(self) -> str:
        """Text that tells results of this moment from those that a scheduled run makes."""
        until = "" if self.until_us is None else f"@{self.until_us}"
        return until + ("+complete" if self.complete else "")

    def columns(self, *, goes_on: bool, messages_go_on: bool, end_us: int) -> dict[str, Any]:
        """Return the values of ``COLUMNS`` for an interval that ends at ``end_us``.

        ``goes_on``: logs have later rows; ``messages_go_on``: message logs may have rows that are not read for the interval.
        """
        inside = self.until_us is not None and self.until_us < end_us
        return {
            "to_last_line": not goes_on and not inside,
            "until_us": self.until_us if inside else None,
            "complete": self.complete and not goes_on,
            "messages_cut": not self.complete or goes_on or messages_go_on,
        }

    def judged(self, *, goes_on: bool) -> str:
        """Return how the moment was chosen, as the run's summary names it."""
        if self.until_us is not None:
            return str(self.until_us)
        return INTERVAL_END if goes_on else LAST_LINE


INTERVAL_END: Final = "interval_end"
LAST_LINE: Final = "last_line"
#: The interval's end, or the last line.
DEFAULT: Final = AsOf()
