"""Who is still to be told who is active, and what a membership change in between may make of it.

Under a lock (a hand-over without delay, a dropped read, an add that changes nothing) notices follow from the choice at once.
The failover delay's task holds no lock: it takes the active consumer, rewinds, then tells those who are connected by then; a
membership change can fall between any two of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

#: The task takes the active consumer, then rewinds at once; a change is no part of it if it was over so long before.
_TASK_BEGINS_US: Final = 2_000
_OVERTAKEN: Final = "the membership changed while the failover delay's task ran"


@dataclass(frozen=True, slots=True)
class Change:
    """The latest membership change: line, and who was active and connected before it."""

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
    by_delay: bool = False  # sent by the delay's task
    plain: tuple[tuple[int, int], ...] = ()  # all of them, also those that have been sent

    def overtaken_by(self, change: Change | None) -> tuple[int, str] | None:
        """The membership change, with the reason, after which those told may be others than those due."""
        if change is None or not self.by_delay or change.seq < self.since:
            return None
        return change.seq, _OVERTAKEN

    def otherwise(
        self,
        told: tuple[int, int],
        change: Change | None,
        views: Sequence[int | None],
        members: Sequence[int],
        tell: Callable[[int | None, Sequence[int]], Sequence[tuple[int, int]]],
    ) -> tuple[int, str] | None:
        """Whether ``told`` is right if the latest change came at another moment of the delay's task.

        Then what is due becomes what that order makes due. ``views``: who was active before and after the change,
        ``members``: connected now, ``tell``: the core's rule.
        """
        if change is None or not self.by_delay or change.t_us < self.since_us - _TASK_BEGINS_US:
            return None
        for view in views:
            for among in (members, change.members_before):
                notices = tell(view, among)
                if told in notices and set(notices) != set(self.plain):
                    waiting = {consumer for consumer, _ in self.due} - {told[0]}
                    self.due = [notice for notice in notices if notice[0] in waiting]
                    return change.seq, _OVERTAKEN
        return None
