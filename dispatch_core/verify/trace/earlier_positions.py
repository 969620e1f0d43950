"""Positions of the cursor that a line may show although they have changed before it.

Whoever writes such a line reads the positions first, and writes the line later. With a line of the dispatcher's own thread
nothing comes in between. The thread of a cumulative acknowledgement, or of a request for statistics of the cursor, may be
held up.

Up to line 7 the read position was 5, and from then on 3. A line behind it that was begun before it may show 5:

>>> earlier = EarlierPositions()
>>> earlier.left(7, 1_000, {5}, 2)
>>> earlier.read_position(5, Begun(seq=6)), earlier.read_position(5, Begun(seq=7)), earlier.read_position(4, Begun(seq=6))
(7, None, None)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

#: A thread may be held up so long between a line and what it does, microseconds. The longest time in a recording, of a
#: machine with two processors and fourteen brokers, was 283 ms: a connection broke, then its consumer was removed.
HELD_UP_US: Final = 500_000
#: Changes that are kept.
_KEPT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Begun:
    """The moment since which the positions of a line may have been read: behind line ``seq``, and not before ``t_us``."""

    seq: int
    t_us: int = 0


class _Left(NamedTuple):
    """Positions in force until line ``seq``."""

    seq: int
    t_us: int
    read_positions: frozenset[int]
    mark_delete: int


class EarlierPositions:
    """Positions that the cursor has left."""

    def __init__(self) -> None:
        self._left: deque[_Left] = deque(maxlen=_KEPT)

    def left(self, seq: int, t_us: int, read_positions: Set[int], mark_delete: int) -> None:
        """Take the positions that line ``seq`` has changed; a read may have set several read positions in turn."""
        self._left.append(_Left(seq, t_us, frozenset(read_positions), mark_delete))

    def read_position(self, at: int, begun: Begun) -> int | None:
        """Return the line that changed this read position after a moment; ``None`` = it was not in force since then."""
        return next((left.seq for left in self._since(begun) if at in left.read_positions), None)

    def mark_delete(self, at: int, begun: Begun) -> int | None:
        """Return the same for mark-delete."""
        return next((left.seq for left in self._since(begun) if at == left.mark_delete), None)

    def drop(self, count: int) -> None:
        """Lower the positions; the first ``count`` entries are dropped."""
        lowered = [
            _Left(
                left.seq,
                left.t_us,
                frozenset(at - count for at in left.read_positions),
                left.mark_delete - count,
            )
            for left in self._left
        ]
        self._left = deque(lowered, maxlen=_KEPT)

    def _since(self, begun: Begun) -> Iterator[_Left]:
        for left in reversed(self._left):
            if left.seq <= begun.seq or left.t_us < begun.t_us:
                return
            yield left
