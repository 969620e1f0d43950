"""Find entries that may have been stored between a round's decision and the line of its end.

That line samples ``has_more`` when the round is over; the decision read the cursor a little earlier. The two can differ only
if an unread entry was stored in between. Its publish time in the message log is then at most ``STORED_WITHIN_US`` before the
decision; an older entry was there already.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import ints, valid
from dispatch_core.arrays.growing import Growing
from dispatch_core.broker.state import READ_POSITION, State

#: The longest time from the publish time of an entry to its being readable that is taken for possible, microseconds.
STORED_WITHIN_US: Final = 250_000


class LateEntries:
    """The publish times of a log's entries."""

    def __init__(self, messages: pa.Table) -> None:
        self._unknown = Growing(np.bool_)
        self._published_us = Growing(np.int64)
        self.add(messages)

    def add(self, messages: pa.Table) -> None:
        """Add the next entries."""
        self._unknown.append(~valid(messages["publish_time_ms"]))
        self._published_us.append(ints(messages["publish_time_ms"]) * 1000)

    def drop(self, count: int) -> None:
        """Drop the first ``count`` entries."""
        self._unknown.drop(count)
        self._published_us.drop(count)

    def stored_by(self, t_us: int, read: int) -> tuple[int, int]:
        """Return the lowest and the highest number of entries that were stored at a time.

        ``read``: so many entries had been read by then. An entry is stored after its publish time, ``STORED_WITHIN_US``
        later at most, and after the entry before it.
        """
        published, unknown = self._published_us.values, self._unknown.values
        surely = np.flatnonzero(~unknown & (published <= t_us - STORED_WITHIN_US))
        later = np.flatnonzero(~unknown & (published > t_us))
        low = max(int(surely[-1]) + 1 if len(surely) else 0, read)
        high = int(later[0]) if len(later) else len(published)
        return low, max(low, high)

    def may_have_come(self, state: State, since_us: int) -> bool:
        """Check whether the first unread entry may have been stored after ``since_us``.

        True also if the log has no such entry, or no publish time of it.
        """
        unread = np.flatnonzero(state.deleted[state.s[READ_POSITION] :] == 0)
        if not len(unread):
            return True
        entry = int(state.s[READ_POSITION]) + int(unread[0])
        published_us = self._published_us.values[entry]
        return bool(self._unknown.values[entry] or published_us >= since_us - STORED_WITHIN_US)
