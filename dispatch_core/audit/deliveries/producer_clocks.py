"""Bounds on how far the clock of each producer may be behind the broker's.

A message log has the publish times of producers, and a wait begins when the entry was stored. So a wait is as long as it
looks only if the producer's clock agrees with the broker's. An entry that was sent soon after its publish time shows that it
is not far behind: the shortest time from publishing to the first delivery (*lag*) is the most by which it can be.

The broker's clock may also jump forward. Then all later lags are longer by the jump, and what was on its way seems to have
waited for so long. A later entry with a short lag shows that the clock did not jump.

Example: a producer's entries are all sent 2 h and some milliseconds after their publish times. Its clock may be 2 h behind,
and nothing waited; or all of them waited. One entry that is sent after 5 ms shows that the others did wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.layout import ENTRY, OPERATION
from dispatch_core.audit.deliveries.scan import Scanned
from dispatch_core.audit.deliveries.window import LogWindow

#: Lags are compared in steps of so much, microseconds: few of them need to be remembered.
_STEP_US: Final = 100_000
_UNKNOWN: Final = np.iinfo(np.int64).max


class ProducerClocks:
    """The shortest lag of each producer in one log, batch by batch."""

    def __init__(self) -> None:
        self._least_us: npt.NDArray[np.int64] = np.empty(0, np.int64)  # by number of the producer
        # By producer: times of deliveries with the shortest lag from then on, both ascending; and the last delivery.
        self._least_since: dict[int, list[tuple[int, int]]] = {}
        self._last_us: dict[int, int] = {}
        self._last_published_us: dict[int, int] = {}

    def take(self, window: LogWindow, deliveries: npt.NDArray[np.int32], scanned: Scanned) -> None:
        """Take the new deliveries of the last log. ``deliveries``: those of the window (``Scan.deliveries``)."""
        new = deliveries[scanned.first :][scanned.number == 1]
        new = new[new[:, OPERATION] >= window.first_op_of_last_log]
        more = window.producers - len(self._least_us)
        self._least_us = np.append(self._least_us, np.full(max(more, 0), _UNKNOWN))
        published, known = window.publish_time_ms
        entry = new[:, ENTRY]
        entry_known = known[entry] & (window.producer[entry] >= 0) & (window.due_us[entry] == 0)
        lag_us = window.op_t_us[new[:, OPERATION]] - 1000 * published[entry]
        np.minimum.at(self._least_us, window.producer[entry][entry_known], lag_us[entry_known])
        self._note_later(
            window.producer[entry][entry_known],
            window.op_t_us[new[:, OPERATION]][entry_known],
            lag_us[entry_known],
        )

    def _note_later(
        self, producers: npt.NDArray[np.int32], t_us: npt.NDArray[np.int64], lags_us: npt.NDArray[np.int64]
    ) -> None:
        for producer in np.unique(producers).tolist():
            chosen = producers == producer
            times, lags = t_us[chosen], lags_us[chosen]
            # of this batch, those with the shortest lag of all that follow, in steps of ``_STEP_US``
            shortest = np.minimum.accumulate(lags[::-1])[::-1] // _STEP_US
            kept = np.append(shortest[1:] > shortest[:-1], True)
            least = self._least_since.setdefault(producer, [])
            while least and least[-1][1] >= int(shortest[0]) * _STEP_US:
                least.pop()
            least += zip(times[kept].tolist(), (shortest[kept] * _STEP_US).tolist(), strict=True)
            self._last_us[producer] = int(times[-1])
            published_us = int((times - lags).max())
            self._last_published_us[producer] = max(
                published_us, self._last_published_us.get(producer, published_us)
            )

    def jumped_us(self, from_us: int, until_us: int) -> int:
        """Return by how much the broker's clock may have jumped forward in a silence, by the lags behind it.

        Entries that were published before the silence say nothing: they may have waited in it. So it is 0 where no entry
        was published later, and where fewer than two deliveries follow.

        Args:
            from_us: the last line before the silence.
            until_us: the first line behind it.
        """
        jumps = []
        for producer, least in self._least_since.items():
            at = bisect_left(least, (until_us, -_UNKNOWN))
            least_us = int(self._least_us[producer])
            goes_on = self._last_published_us[producer] + least_us > from_us + _STEP_US
            if at < len(least) and self._last_us[producer] > until_us and goes_on:
                jumps.append(least[at][1] - least_us)
        return max(min(jumps, default=0), 0)

    def is_shown(self, producer: int) -> bool:
        """Check whether an entry of a producer was sent: its clock is behind by no more than that lag."""
        return producer < len(self._least_us) and bool(self._least_us[producer] < _UNKNOWN)

    @property
    def behind_us(self) -> Mapping[int, int]:
        """By number of the producer: the most by which its clock may be behind, microseconds; only where it may be."""
        behind = np.flatnonzero((self._least_us > 0) & (self._least_us < _UNKNOWN)).tolist()
        return {number: int(self._least_us[number]) for number in behind}
