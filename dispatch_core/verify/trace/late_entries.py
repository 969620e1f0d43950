"""Find entries that may have been stored between a round's decision and the line of its end.

That line samples ``has_more`` when the round is over; the decision read the cursor a little earlier. The two can differ only
if an unread entry was stored in between. Its publish time in the message log is then at most ``STORED_WITHIN_US`` before the
decision; an older entry was there already.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from dispatch_core.broker.state import READ_POSITION, State

#: The longest time from the publish time of an entry to its being readable that is taken for possible, microseconds.
STORED_WITHIN_US: Final = 250_000


class LateEntries:
    """The publish times of a log's entries."""

    def __init__(self, messages: pa.Table) -> None:
        published = messages["publish_time_ms"].combine_chunks()
        self._unknown = np.asarray(published.is_null())
        self._published_us = np.asarray(published.fill_null(0)).astype(np.int64) * 1000

    def may_have_come(self, state: State, since_us: int) -> bool:
        """Check whether the first unread entry may have been stored after ``since_us``.

        True also if the log has no such entry, or no publish time of it.
        """
        unread = np.flatnonzero(state.deleted[state.s[READ_POSITION] :] == 0)
        if not len(unread):
            return True
        entry = int(state.s[READ_POSITION]) + int(unread[0])
        return bool(self._unknown[entry] or self._published_us[entry] >= since_us - STORED_WITHIN_US)
