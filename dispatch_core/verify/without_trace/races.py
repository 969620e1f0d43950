"""Find operations that may race with a delivery in a log that shows events on arrival: near in time, able to cause it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.operations import (
    ADDED,
    FLOW,
    MOVED_SOMEWHERE,
    REDELIVER,
    REDELIVER_ALL,
    REMOVED,
)

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

#: Longest time between the arrival of an event and its effect, either way, microseconds. The slowest membership change in
#: recordings of real brokers took effect 35 ms after its line.
RACE_US: Final = 50_000

#: Membership changes and redelivery requests.
_CHANGES: Final = (ADDED, REMOVED, REDELIVER, REDELIVER_ALL)
#: Operations that give their consumer permits: new ones, and those that were kept back while it was blocked.
_GIVES: Final = (FLOW, REDELIVER, REDELIVER_ALL)
#: By code of an operation.
_MAY_RACE: Final = np.isin(np.arange(MOVED_SOMEWHERE + 1), (*_CHANGES, FLOW))


def may_race(codes: Array) -> npt.NDArray[np.bool_]:
    """Mask the operations (codes: ``audit.operations``) that may race with deliveries."""
    return _MAY_RACE[codes]


@dataclass(frozen=True, slots=True)
class Racing:
    """Operations that may race with deliveries, in order. ``consumer``: the log's number, -1 = of none that was added."""

    code: Array
    consumer: Ints
    seq: Ints
    t_us: Ints

    @classmethod
    def none(cls) -> Racing:
        """No operation."""
        nothing = np.empty(0, np.int64)
        return cls(nothing, nothing, nothing, nothing)

    @classmethod
    def joined(cls, *runs: Racing) -> Racing:
        """Join several runs in order."""
        return cls(
            np.concatenate([run.code for run in runs]),
            np.concatenate([run.consumer for run in runs]),
            np.concatenate([run.seq for run in runs]),
            np.concatenate([run.t_us for run in runs]),
        )

    def changes(self) -> Racing:
        """Select those that race with all deliveries."""
        return self._where(np.isin(self.code, _CHANGES))

    def memberships(self) -> Racing:
        """Select joins and leaves."""
        return self._where(np.isin(self.code, (ADDED, REMOVED)))

    def giving_permits(self, consumer: int) -> Racing:
        """Select those that may give ``consumer`` permits, and the lines that add it."""
        return self._where((self.consumer == consumer) & np.isin(self.code, (*_GIVES, ADDED)))

    def not_counted(self, seq: int) -> Racing:
        """Select those that give permits to one consumer and may not have been counted by line ``seq``.

        These stand behind it, or before the consumer's own add, whose line may be late itself.
        """
        added = self.seq[self.code == ADDED]
        begins = int(added[0]) if len(added) else 0
        return self._where((self.code != ADDED) & ((self.seq > seq) | (self.seq < begins)))

    def since(self, t_us: int) -> Racing:
        """Select those from a time on."""
        return self._where(self.t_us >= t_us)

    def nearest(self, t_us: int) -> int | None:
        """Return the ``seq`` of the operation nearest to ``t_us``; None if none is within ``RACE_US``."""
        if not len(self.t_us):
            return None
        at = int(np.argmin(np.abs(self.t_us - t_us)))
        return int(self.seq[at]) if abs(int(self.t_us[at]) - t_us) <= RACE_US else None

    def _where(self, wanted: npt.NDArray[np.bool_]) -> Racing:
        return Racing(self.code[wanted], self.consumer[wanted], self.seq[wanted], self.t_us[wanted])
