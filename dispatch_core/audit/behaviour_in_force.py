"""Times at which a log shows a policy or property in force that holds deliveries back or leaves entries out (``limit``).

Example: a line at 12:00:00 says that a dispatch rate of 15 messages per second is in force, and one at 12:01:00 that it is
not any more. What waits in that minute may wait for the rate; what still waits at 12:02:00 does not.

The lines are rare, so those of a whole log are read before its first batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import has
from dispatch_core.arrays.line_kinds import rows_of_kind

_EVER_US: Final = np.iinfo(np.int64).max
#: A recorder looks at policies so often: a policy may be in force for so long before its line, microseconds.
POLLED_US: Final = 1_000_000
#: Behaviour that a recorder sees by looking at policies, not by an event.
POLLED: Final = (
    "dispatch_rate",
    "entry_filter",
    "replicated_subscription",
    "unacked_namespace",
    "unacked_topic",
)


@dataclass(frozen=True, slots=True)
class InForce:
    """One behaviour in force. ``value``: its number, where it has one. Times: microseconds since the epoch."""

    what: str
    from_us: int
    until_us: int = _EVER_US
    value: int | None = None

    @property
    def perhaps_from_us(self) -> int:
        """The earliest time at which it may have come into force: its line may be late."""
        return self.from_us - POLLED_US if self.what in POLLED else self.from_us


@dataclass(frozen=True, slots=True)
class BehaviourInForce:
    """The behaviours of one log, in the order in which they came into force."""

    times: tuple[InForce, ...] = ()

    @classmethod
    def of(cls, tables: Iterable[pa.Table]) -> BehaviourInForce:
        """Read the ``limit`` lines of a log's parts, in order."""
        begun: dict[str, InForce] = {}
        ended: list[InForce] = []
        for row in _limit_lines(tables):
            before = begun.pop(row["what"], None)
            if before is not None:
                if row["limit_active"] and row["value"] == before.value:
                    begun[row["what"]] = before  # said again
                    continue
                ended.append(InForce(before.what, before.from_us, row["t_us"], before.value))
            if row["limit_active"]:
                begun[row["what"]] = InForce(row["what"], row["t_us"], value=row["value"])
        return cls(tuple(sorted([*ended, *begun.values()], key=lambda time: (time.from_us, time.what))))

    def without(self, names: Collection[str]) -> BehaviourInForce:
        """Return the others."""
        return BehaviourInForce(tuple(time for time in self.times if time.what not in names))

    def at_the_earliest(self) -> BehaviourInForce:
        """Return the same behaviours, each in force as early as it may have been."""
        return BehaviourInForce(tuple(replace(time, from_us=time.perhaps_from_us) for time in self.times))

    def named(self) -> frozenset[str]:
        """Return the behaviours that were in force at any time."""
        return frozenset(time.what for time in self.times)

    def during(self, what: str, from_us: int, until_us: int) -> InForce | None:
        """Return the last time in which a behaviour was in force between two moments; ``None`` = it was not."""
        found = [
            time
            for time in self.times
            if time.what == what and time.from_us <= until_us and from_us < time.until_us
        ]
        return found[-1] if found else None


#: Of a log without such lines.
NOTHING_IN_FORCE: Final = BehaviourInForce()


def _limit_lines(tables: Iterable[pa.Table]) -> Iterator[dict[str, Any]]:
    for events in tables:
        if not events.num_rows or not has(events, "what"):
            continue
        rows = rows_of_kind(events, "limit")
        if len(rows):
            columns = ["t_us", "what", "value", "limit_active"]
            yield from events.select(columns).take(pa.array(rows)).to_pylist()
