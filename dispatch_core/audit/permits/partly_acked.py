"""Keep which messages of a batch are acknowledged already: a consumer that is sent the batch again is not charged for them.

The cursor keeps a set of indexes for each batch that is acknowledged in part, and forgets it when the whole entry is
acknowledged (ManagedCursorImpl, batchDeletedIndexes). A line ``ack`` stands where the acknowledgement arrived; it reaches
the cursor up to ``ACK_RACE_US`` later, so right behind it both sets are possible.

A batch of three messages, of which the second and the third are acknowledged at 0 s:

>>> acked = PartlyAcked(keeps_indexes=True)
>>> acked.acknowledge((21, 105), [0b001], 0, cumulative=False)
>>> acked.counts((21, 105), 3, 10_000), acked.counts((21, 105), 3, 2_000_000)
((0, 2), (2,))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatch_core.audit.deliveries.findings import ACK_RACE_US
from dispatch_core.broker.cursor import EVERY_INDEX, indexes_left, indexes_left_by_cumulative
from dispatch_core.recording.checkpoint import Position

#: Of larger batches nothing is said.
LARGEST_BATCH: Final = 4096
#: Entries that are acknowledged as a whole are forgotten when so many are kept.
_KEPT: Final = 4096


class PartlyAcked:
    """The batches that are acknowledged in part, by position.

    Args:
        keeps_indexes: the broker keeps indexes (``acknowledgmentAtBatchIndexLevelEnabled``); ``None`` = not known.
    """

    def __init__(self, *, keeps_indexes: bool | None) -> None:
        self._keeps_indexes = keeps_indexes
        #: By position the times from which on these indexes were left, as bits.
        self._left: dict[Position, list[tuple[int, int]]] = {}
        #: False behind lost lines: any messages of a batch may be acknowledged.
        self._is_known = True
        self._room = _KEPT

    def __len__(self) -> int:
        return len(self._left)

    @property
    def is_known(self) -> bool:
        """True if all acknowledgements so far are in the log."""
        return self._is_known

    def lose(self) -> None:
        """Take note that lines are missing."""
        self._is_known = False

    def acknowledge(self, position: Position, words: Sequence[int], t_us: int, *, cumulative: bool) -> None:
        """Take an acknowledgement; ``words``: its set, of which 1 bits stay unacknowledged, empty = the whole entry.

        A cumulative one also acknowledges every entry before.
        """
        if cumulative:
            for earlier in [known for known in self._left if known < position]:
                since_us, left = self._left[earlier][-1]
                if left != EVERY_INDEX:
                    self._set(earlier, EVERY_INDEX, t_us)
                elif t_us - since_us > ACK_RACE_US:
                    del self._left[earlier]
        if not words:
            if position in self._left:
                self._set(position, EVERY_INDEX, t_us)
            return
        if self._keeps_indexes is False:
            return
        before = self._left[position][-1][1] if position in self._left else EVERY_INDEX
        rule = indexes_left_by_cumulative if cumulative else indexes_left
        # An entry of which nothing is left is deleted, and its set with it.
        self._set(position, rule(before, words) or EVERY_INDEX, t_us)

    def reset(self, t_us: int) -> None:
        """Forget all sets: the cursor was reset."""
        for position in list(self._left):
            self._set(position, EVERY_INDEX, t_us)

    def counts(self, position: Position, messages: int, t_us: int) -> tuple[int, ...]:
        """Return how many of an entry's messages may count as acknowledged when it is sent, the likeliest number last.

        Empty = there are too many possible numbers.
        """
        if messages <= 1:
            return (0,)
        if messages > LARGEST_BATCH:
            return ()
        if not self._is_known:
            return tuple(range(messages, -1, -1))
        known = self._left.get(position)
        if known is None:
            return (0,)
        every = (1 << messages) - 1
        found = [0]
        for since_us, left in known:
            if t_us - since_us > ACK_RACE_US:
                found.clear()
            found.append(messages - (left & every).bit_count())
        if self._keeps_indexes is None:
            found.insert(0, 0)
        return tuple(dict.fromkeys(reversed(found)))[::-1]

    def _set(self, position: Position, left: int, t_us: int) -> None:
        times = self._left.setdefault(position, [])
        while times and t_us - times[0][0] > ACK_RACE_US and len(times) > 1:
            del times[0]
        times.append((t_us, left))
        if len(self._left) > self._room:
            self._left = {
                of: times
                for of, times in self._left.items()
                if times[-1][1] != EVERY_INDEX or t_us - times[-1][0] <= ACK_RACE_US
            }
            self._room = 2 * len(self._left) + _KEPT
