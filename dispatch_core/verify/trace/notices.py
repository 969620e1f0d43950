"""Who is still to be told who is active, and what membership changes in between may make of it.

Under a lock (a hand-over without delay, a dropped read, an add that changes nothing) notices follow from the choice at once.
The failover delay's task holds no lock: it takes the active consumer, rewinds, then tells those who are connected by then; a
membership change can fall between any two of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dispatch_core.broker.single_active_rules import Pick

#: How long after its rewind the delay's task may not be through: it tells, reads, and only then says that it is done.
DELAY_TAIL_US: Final = 10_000
#: The task takes the active consumer, then rewinds at once; a change is no part of it if it was over so long before.
_TASK_BEGINS_US: Final = 2_000
_OVERTAKEN: Final = "the membership changed while the failover delay's task ran"


class Sender(Enum):
    """Which thread tells."""

    SECTION = "an add or a removal, under the lock"
    EXECUTOR = "the dispatcher's executor, under the lock"
    DELAY_TASK = "the failover delay's task, without it"


@dataclass(frozen=True, slots=True)
class Change:
    """A membership change: line, and who was active and connected before it."""

    seq: int
    t_us: int
    active_before: int | None
    members_before: tuple[int, ...]


@dataclass(slots=True)
class Notices:
    """Notices due since line ``since``: (consumer who is told, consumer who is active)."""

    since: int = 0
    since_us: int = 0
    due: list[tuple[int, int]] = field(default_factory=list)
    sender: Sender = Sender.SECTION
    plain: tuple[tuple[int, int], ...] = ()  # all of them, also those that have been sent
    attempt_due: bool = False  # the rewind's own read attempt is still to come

    def racing(self, changes: Sequence[Change]) -> list[Change]:
        """The changes that may have fallen into the sending, latest first."""
        if self.sender is not Sender.DELAY_TASK:
            return []
        first, last = self.since_us - _TASK_BEGINS_US, self.since_us + DELAY_TAIL_US
        return [change for change in reversed(changes) if first <= change.t_us <= last]

    def overtaken_by(self, changes: Sequence[Change]) -> tuple[int, str] | None:
        """A membership change, with the reason, after which those told may be others than those due."""
        return next(((change.seq, _OVERTAKEN) for change in self.racing(changes)), None)

    def otherwise(
        self,
        told: tuple[int, int],
        changes: Sequence[Change],
        active: int | None,
        members: Sequence[int],
        tell: Callable[[int | None, Sequence[int]], Sequence[tuple[int, int]]],
    ) -> tuple[int, str] | None:
        """Whether ``told`` is right if one of the latest changes came at another moment of the delay's task.

        Then what is due becomes what that order makes due. ``active`` and ``members``: now; ``tell``: the core's rule.
        """
        racing = self.racing(changes)
        views = (active, *(change.active_before for change in racing))
        for change in racing:
            for view in views:
                for among in (members, change.members_before):
                    notices = tell(view, among)
                    if told in notices and set(notices) != set(self.plain):
                        waiting = {consumer for consumer, _ in self.due} - {told[0]}
                        self.due = [notice for notice in notices if notice[0] in waiting]
                        return change.seq, _OVERTAKEN
        return None


def described(active: int | None, changed: bool | None, order: Sequence[int]) -> str:
    """A choice of the active consumer, for people."""
    return f"active {active}, {'changed' if changed else 'unchanged'}, order {list(order)}"


def described_pick(pick: Pick | None) -> str:
    """The core's choice, for people."""
    return "no choice" if pick is None else described(pick.active, pick.changed, pick.order)
