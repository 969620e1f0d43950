"""What may race with a sending in a log that shows events on arrival: near it in time, and able to have led to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.operations import ADDED, FLOW, REDELIVER, REDELIVER_ALL, REMOVED

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

#: How far apart the arrival of an event and its effect may lie, either way. The slowest membership change in recordings
#: of real brokers took effect 35 ms after its line.
RACE_US: Final = 50_000

#: Who is connected, and what was asked for again.
_CHANGES: Final = (ADDED, REMOVED, REDELIVER, REDELIVER_ALL)
#: What gives a consumer permits, its own alone: those it asks for, and those that were kept back while it was blocked.
_GIVES: Final = (FLOW, REDELIVER, REDELIVER_ALL)


def may_race(codes: Array) -> npt.NDArray[np.bool_]:
    """Which operations (``audit.operations``) race with anything."""
    return np.isin(codes, (*_CHANGES, FLOW))


@dataclass(frozen=True, slots=True)
class Racing:
    """Operations that may race with sendings, in order. ``consumer``: the log's number, -1 = of none that was added."""

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
        """Several runs, one behind the other."""
        return cls(
            np.concatenate([run.code for run in runs]),
            np.concatenate([run.consumer for run in runs]),
            np.concatenate([run.seq for run in runs]),
            np.concatenate([run.t_us for run in runs]),
        )

    def changes(self) -> Racing:
        """Those that race with whatever is sent."""
        return self._where(np.isin(self.code, _CHANGES))

    def giving_permits(self, consumer: int) -> Racing:
        """Those that may give ``consumer`` permits, and the lines that add it."""
        return self._where((self.consumer == consumer) & np.isin(self.code, (*_GIVES, ADDED)))

    def not_counted(self, seq: int) -> Racing:
        """Of those that give permits to one consumer: which were not counted by line ``seq``.

        That is what stands behind it; and what stands before the consumer's own add, whose line may be late itself.
        """
        added = self.seq[self.code == ADDED]
        begins = int(added[0]) if len(added) else 0
        return self._where((self.code != ADDED) & ((self.seq > seq) | (self.seq < begins)))

    def since(self, t_us: int) -> Racing:
        """Those that are not before a time."""
        return self._where(self.t_us >= t_us)

    def nearest(self, t_us: int) -> int | None:
        """The ``seq`` of the one nearest to ``t_us`` that is not further away than ``RACE_US``."""
        if not len(self.t_us):
            return None
        at = int(np.argmin(np.abs(self.t_us - t_us)))
        return int(self.seq[at]) if abs(int(self.t_us[at]) - t_us) <= RACE_US else None

    def _where(self, wanted: npt.NDArray[np.bool_]) -> Racing:
        return Racing(self.code[wanted], self.consumer[wanted], self.seq[wanted], self.t_us[wanted])
