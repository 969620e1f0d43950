"""Bounds on how far the clock of each producer may be behind the broker's.

A message log has the publish times of producers, and a wait begins when the entry was stored. So a wait is as long as it
looks only if the producer's clock agrees with the broker's. An entry that was sent soon after its publish time shows that it
is not far behind: the shortest time from publishing to the first delivery (*lag*) is the most by which it can be.

Example: a producer's entries are all sent 2 h and some milliseconds after their publish times. Its clock may be 2 h behind,
and nothing waited; or all of them waited. One entry that is sent after 5 ms shows that the others did wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.layout import ENTRY, OPERATION
from dispatch_core.audit.deliveries.scan import Scanned
from dispatch_core.audit.deliveries.window import LogWindow

_UNKNOWN: Final = np.iinfo(np.int64).max


class ProducerClocks:
    """The shortest lag of each producer in one log, batch by batch."""

    def __init__(self) -> None:
        self._least_us: npt.NDArray[np.int64] = np.empty(0, np.int64)  # by number of the producer

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

    @property
    def behind_us(self) -> Mapping[int, int]:
        """By number of the producer: the most by which its clock may be behind, microseconds; only where it may be."""
        behind = np.flatnonzero((self._least_us > 0) & (self._least_us < _UNKNOWN)).tolist()
        return {number: int(self._least_us[number]) for number in behind}
