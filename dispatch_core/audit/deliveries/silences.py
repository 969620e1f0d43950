"""The silences of a log: times from one line to the next.

A clock that jumps forward makes a silence of at least the jump. So a wait is too long by a jump only if a silence in it is
long enough. The longest silences are kept, so the memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

#: Silences that are remembered one by one; of more the shorter half is forgotten.
_MOST: Final = 4_096
#: Silences up to this length are not remembered, microseconds: no limit of a wait is that short by default.
_SHORTEST_US: Final = 500_000


class Silences:
    """The longest silences of one log, batch by batch."""

    def __init__(self) -> None:
        self._ends_us = np.empty(0, np.int64)
        self._lengths_us = np.empty(0, np.int64)
        self._forgotten_us = 0  # the longest of those that were forgotten

    def take(self, t_us: npt.NDArray[np.int64]) -> None:
        """Take the times of the next lines; the first one is that of the last line before them."""
        lengths_us = np.diff(t_us)
        long = lengths_us > max(_SHORTEST_US, self._forgotten_us)
        if not long.any():
            return
        self._ends_us = np.append(self._ends_us, t_us[1:][long])
        self._lengths_us = np.append(self._lengths_us, lengths_us[long])
        if len(self._lengths_us) > _MOST:
            self._forgotten_us = int(np.median(self._lengths_us))
            kept = self._lengths_us > self._forgotten_us
            self._ends_us, self._lengths_us = self._ends_us[kept], self._lengths_us[kept]

    def between(self, from_us: int, until_us: int) -> Iterator[tuple[int, int]]:
        """Yield end and length of the silences that end in ``(from_us, until_us]``, microseconds.

        A silence that was forgotten counts as one at the end.
        """
        inside = (self._ends_us > from_us) & (self._ends_us <= until_us)
        yield from zip(self._ends_us[inside].tolist(), self._lengths_us[inside].tolist(), strict=True)
        if self._forgotten_us:
            yield until_us, self._forgotten_us
