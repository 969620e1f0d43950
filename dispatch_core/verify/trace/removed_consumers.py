"""Pending acks that stay in a consumer that was removed, until its connection acknowledges them or is gone.

A classic dispatcher leaves them there, and so does one of 4.x when the last consumer leaves; else it closes them
(PersistentDispatcherMultipleConsumers(Classic).removeConsumer: ``forEach``, ``forEachAndClose``). Where the broker
disconnects consumers, as it does when a topic is unloaded, their clients may still send acknowledgements. Each removes a
pending ack, and the trace has its line.

>>> removed = RemovedConsumers()
>>> removed.add(1, 0, {7: 500})
>>> removed.acknowledge(1, [7]), removed.take(1, 7), removed.take(1, 7)
(True, 500, None)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dispatch_core.audit.deliveries.log_checks import HANDLED_LATE_US


@dataclass(slots=True)
class _Left:
    """Pending acks of a consumer that was removed at ``t_us``: entry → hash; and what it has acknowledged since."""

    t_us: int
    pending: dict[int, int | None]
    acked: set[int] = field(default_factory=set)


class RemovedConsumers:
    """The pending acks of consumers that were removed a moment ago."""

    def __init__(self) -> None:
        self._left: dict[int, _Left] = {}

    def __contains__(self, consumer: int) -> bool:
        return consumer in self._left

    def add(self, consumer: int, t_us: int, pending: Mapping[int, int | None]) -> None:
        """Add a consumer that is removed at ``t_us``, with its pending acks: entry → hash."""
        self._left[consumer] = _Left(t_us, dict(pending))

    def acknowledge(self, consumer: int, entries: Sequence[int]) -> bool:
        """Take an acknowledgement; returns False for a consumer that was not removed."""
        left = self._left.get(consumer)
        if left is None:
            return False
        left.acked.update(entries)
        return True

    def take(self, consumer: int, entry: int) -> int | None:
        """Remove a pending ack that was acknowledged; returns its hash, ``None`` if there is none."""
        left = self._left[consumer]
        return left.pending.pop(entry, None) if entry in left.acked else None

    def change_ordinals(self, change: Callable[[int], int], t_us: int) -> None:
        """Change the ordinals of entries, and forget what left long before ``t_us``."""
        self._left = {
            consumer: left for consumer, left in self._left.items() if t_us - left.t_us <= HANDLED_LATE_US
        }
        for left in self._left.values():
            left.pending = {change(entry): hash_value for entry, hash_value in left.pending.items()}
            left.acked = {change(entry) for entry in left.acked if entry >= 0}
