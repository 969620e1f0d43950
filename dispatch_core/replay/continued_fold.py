"""Go on from the fold of one load of a topic with the log of the next, so that no load reads the lines of those before it.

Each load of a dispatcher is judged with what the loads before it sent and had acknowledged. A topic that was loaded a
thousand times would otherwise have each of its lines read five hundred times. The pipeline does the same with the batches of
its files (``log_files``).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import Ints, ints
from dispatch_core.audit.unsent_entries import published_us
from dispatch_core.recording.checkpoint import checkpoints, upto
from dispatch_core.recording.load_order import named_extent
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.stream import moved_to
from dispatch_core.replay.assembler import Replay

#: Entries that were published so long after the last line of a load come with a later load, microseconds.
_BEHIND_US: Final = 60_000_000


class ContinuedFold:
    """The fold of the loads of a dispatcher so far. Take the entries of each load, oldest first, then its replay.

    ``replay``: of the last part that was fed; ``None`` before the first load.
    """

    def __init__(self, messages: pa.Table) -> None:
        """Begin before the first load; ``messages``: the entries of the topic, sorted by position."""
        self.replay: Replay | None = None
        self._messages = messages
        self._ledger, self._entry = ints(messages["ledger_id"]), ints(messages["entry_id"])
        published = published_us(messages)
        #: The earliest time at which this entry or a later one was published; ascending.
        self._published_from_us: Ints = np.minimum.accumulate(published[::-1])[::-1]
        self._fed = 0
        self._ended = False

    def goes_on_with(self, log: DispatcherLog) -> bool:
        """Check whether the next log, with the same entries, can be fed behind the loads so far.

        Not behind a load in which what was acknowledged did not stay so, as where the cursor moved backwards.
        """
        acks_stay = self.replay is None or self.replay.acks_stay
        return not self._ended and acks_stay and log.messages is self._messages

    def end(self) -> None:
        """Give the fold up: a window cannot judge the log that was fed, and the state is void."""
        self._ended, self.replay = True, None

    def entries(self, log: DispatcherLog, *, last: bool) -> pa.Table:
        """Return the next entries: all that the log of this load names, and all that were published by its end.

        Those published within a minute of its end come too. ``last``: no load follows; all that are left.
        """
        until = len(self._ledger) if last else max(self._named_by(log), self._published_by_end(log))
        first, self._fed = self._fed, max(self._fed, until)
        return self._messages.slice(first, self._fed - first)

    def _named_by(self, log: DispatcherLog) -> int:
        """Return the number of entries up to the last one that a log names."""
        positions = [named_extent(log.events)[1], moved_to(log.events)]
        for checkpoint in checkpoints(log.events):
            positions += checkpoint.named
            positions += [at for at in (checkpoint.mark_delete, checkpoint.read_position) if at is not None]
        return upto(self._ledger, self._entry, max(positions))

    def _published_by_end(self, log: DispatcherLog) -> int:
        """Return the number of entries up to the last one that was published by the end of a log."""
        times = ints(log.events["t_us"])
        until_us = int(times.max(initial=0)) + _BEHIND_US
        return int(np.searchsorted(self._published_from_us, until_us, side="right"))
