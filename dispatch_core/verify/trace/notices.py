"""Track the notices of the active consumer that are due, and the effect of membership changes on them.

Under the lock (an active-consumer change without delay, a dropped read, an add that changes nothing) notices follow at once.
The failover delay's task holds no lock: it takes the active consumer, rewinds, then notifies the consumers that are
connected by then. A membership change can fall between any two of these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dispatch_core.broker.single_active_rules import Pick

#: Longest time from its rewind to the end of the delay's task, which notifies and reads in between, microseconds.
DELAY_TAIL_US: Final = 10_000
#: The task takes the active consumer, then rewinds at once; a change races with it only if it is no older, microseconds.
_TASK_BEGINS_US: Final = 2_000
#: As long as that if a notice shows the active consumer before the change. A busy machine held the task up for 7 ms.
_TASK_IS_HELD_UP_US: Final = 10_000
_OVERTAKEN: Final = "the membership changed while the failover delay's task ran"


class Sender(Enum):
    """The thread that sends notices."""

    SECTION = "an add or a removal, under the lock"
    EXECUTOR = "the dispatcher's executor, under the lock"
    DELAY_TASK = "the failover delay's task, without it"


@dataclass(slots=True)
class Change:
    """A membership change: its line, when it came, and the active and connected consumers on the other side of it.

    The other side of a change that the core has made is the one before it, of a join to come the one behind it. The line of
    a join is behind its effect. That of a removal is in front of it: ``until_us`` is when a later line showed it, if any.
    """

    seq: int
    t_us: int
    other_active: int | None
    other_members: tuple[int, ...]
    until_us: int | None

    def overlaps(self, first_us: int, last_us: int) -> bool:
        """Check whether the change may have had its effect in this time."""
        return self.t_us <= last_us and (self.until_us is None or self.until_us >= first_us)


@dataclass(slots=True)
class Notices:
    """Notices due since line ``since``, each (notified consumer, active consumer)."""

    since: int = 0
    since_us: int = 0
    due: list[tuple[int, int]] = field(default_factory=list)
    sender: Sender = Sender.SECTION
    plain: tuple[tuple[int, int], ...] = ()  # all of them, also those that have been sent
    attempt_due: bool = False  # the rewind's own read attempt is still to come

    def racing(self, changes: Sequence[Change], before_us: int = _TASK_BEGINS_US) -> list[Change]:
        """Return the changes that may have come while the task ran, latest first.

        ``before_us``: so long before its rewind, microseconds.
        """
        if self.sender is not Sender.DELAY_TASK:
            return []
        first, last = self.since_us - before_us, self.since_us + DELAY_TAIL_US
        return [change for change in reversed(changes) if change.overlaps(first, last)]

    def overtaken_by(self, changes: Sequence[Change]) -> tuple[int, str] | None:
        """Return the line of a membership change after which other notices may be sent than those due, and the reason."""
        return next(((change.seq, _OVERTAKEN) for change in self.racing(changes)), None)

    def otherwise(
        self,
        notice: tuple[int, int],
        changes: Sequence[Change],
        active: int | None,
        members: Sequence[int],
        tell: Callable[[int | None, Sequence[int]], Sequence[tuple[int, int]]],
    ) -> tuple[int, str] | None:
        """Check whether ``notice`` is right if one of the latest changes came at another moment of the delay's task.

        Then ``due`` becomes what that order makes due.

        Args:
            notice: the recorded notice.
            changes: the latest membership changes, oldest first.
            active: the active consumer now.
            members: the connected consumers now.
            tell: the core's rule, from the active consumer and the connected ones to notices.

        Returns:
            Line of the change and reason; ``None`` if no order gives the notice.
        """
        racing = self.racing(changes, _TASK_IS_HELD_UP_US)
        views = (active, *(change.other_active for change in racing))
        for change in racing:
            for view in views:
                for among in (members, change.other_members):
                    notices = tell(view, among)
                    if notice in notices and set(notices) != set(self.plain):
                        waiting = {consumer for consumer, _ in self.due} - {notice[0]}
                        self.due = [item for item in notices if item[0] in waiting]
                        return change.seq, _OVERTAKEN
        return None


def described(active: int | None, changed: bool | None, order: Sequence[int]) -> str:
    """Describe a choice of the active consumer."""
    return f"active {active}, {'changed' if changed else 'unchanged'}, order {list(order)}"


def described_pick(pick: Pick | None) -> str:
    """Describe the core's choice."""
    return "no choice" if pick is None else described(pick.active, pick.changed, pick.order)
