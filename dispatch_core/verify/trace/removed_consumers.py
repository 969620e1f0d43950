"""Pending acks that stay in a consumer that was removed, until its connection lets go of them or is gone.

A classic dispatcher leaves them there, and so does one of 4.x when the last consumer leaves; else it closes them
(PersistentDispatcherMultipleConsumers(Classic).removeConsumer: ``forEach``, ``forEachAndClose``). Where the broker
disconnects consumers, as it does when a topic is unloaded, their clients may still send acknowledgements and redelivery
requests. Each removes pending acks, and the trace has their lines.

Entries are known by their positions, so that nothing here keeps them in memory.

>>> removed = RemovedConsumers()
>>> removed.add(1, 0, {"3:7": 500})
>>> removed.let_go(1, ["3:7"], 10)
>>> removed.take(1, "3:7"), removed.take(1, "3:7")
(500, None)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dispatch_core.audit.deliveries.log_checks import HANDLED_LATE_US


@dataclass(slots=True)
class _Left:
    """Pending acks of a consumer that was removed at ``t_us``: position → hash; and what it has let go of since."""

    t_us: int
    pending: dict[str, int | None]
    let_go: set[str] = field(default_factory=set)


class RemovedConsumers:
    """The pending acks of consumers that were removed a moment ago."""

    def __init__(self) -> None:
        self._left: dict[int, _Left] = {}

    def __contains__(self, consumer: int) -> bool:
        return consumer in self._left

    def add(self, consumer: int, t_us: int, pending: Mapping[str, int | None]) -> None:
        """Add a consumer that is removed at ``t_us``, with its pending acks: position → hash."""
        self._left[consumer] = _Left(t_us, dict(pending))

    def let_go(self, consumer: int, positions: Iterable[str], t_us: int) -> None:
        """Take what a removed consumer acknowledges or asks for again; too late, it ends what is known of the consumer."""
        left = self._left[consumer]
        if t_us - left.t_us > HANDLED_LATE_US:
            del self._left[consumer]
        else:
            left.let_go.update(positions)

    def take(self, consumer: int, position: str) -> int | None:
        """Remove a pending ack that the consumer has let go of; returns its hash, ``None`` if there is none."""
        left = self._left[consumer]
        return left.pending.pop(position, None) if position in left.let_go else None
