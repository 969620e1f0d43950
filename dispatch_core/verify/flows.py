"""When a client's permits are counted.

``flow`` is the command's arrival, ``flow_counted`` the consumer's booking of it, ``flow_applied`` the dispatcher's. The
booking may be *logged* after the dispatcher's although it always happens before; so it takes effect at the earlier of the
two lines. Lines of one consumer keep the order of its commands.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class FlowQueue:
    """Flow commands of one consumer that have arrived and are not counted yet."""

    waiting: deque[int] = field(default_factory=deque)
    counted_early: int = 0  # by ``applied``; their own ``flow_counted`` is still to come
    untold: int = 0  # counted, and the dispatcher's line is still to come

    def arrived(self, permits: int) -> None:
        """A flow command arrives."""
        self.waiting.append(permits)

    def counted(self) -> int | None:
        """Its ``flow_counted`` line; returns the permits to count now, if they were not counted before."""
        if self.counted_early:
            self.counted_early -= 1
            return None
        return self.waiting.popleft() if self.waiting else None

    def applied(self) -> int | None:
        """A ``flow_applied`` line; returns permits to count first, when the booking must have happened already."""
        if self.untold:
            self.untold -= 1
            return None
        if not self.waiting:
            return None
        self.counted_early += 1
        return self.waiting.popleft()
