"""Who is still to be told who is active, and what a membership change in between may make of it.

Under a lock (a hand-over without delay, a dropped read, an add that changes nothing) notices follow from the choice at once.
The failover delay's task holds no lock: it takes the active consumer, rewinds, then tells those who are connected by then; a
membership change can fall between any two of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

#: The task takes the active consumer at once before it rewinds: so many lines before the rewind's may stand between.
_TASK_BEGINS: Final = 12
_OVERTAKEN: Final = "the membership changed while the failover delay's task ran"


@dataclass(frozen=True, slots=True)
class Change:
    """The latest membership change: line, and who was active and connected before it."""

    seq: int
    active_before: int | None
    members_before: tuple[int, ...]


@dataclass(slots=True)
class Notices:
    """Notices due since line ``since``: (consumer who is told, consumer who is active)."""

    since: int = 0
    due: list[tuple[int, int]] = field(default_factory=list)
    by_delay: bool = False  # sent by the delay's task

    def overtaken_by(self, change: Change | None) -> tuple[int, str] | None:
        """The membership change, with the reason, after which those told may be others than those due."""
        if change is None or not self.by_delay or change.seq < self.since:
            return None
        return change.seq, _OVERTAKEN

    def otherwise(
        self, told: tuple[int, int], change: Change | None, active: int | None, members: Sequence[int]
    ) -> tuple[int, str] | None:
        """Whether ``told`` is right if the latest change came at another moment of the delay's task.

        Then what is due becomes what that order makes due. ``active`` and ``members``: now.
        """
        if change is None or not self.by_delay or change.seq < self.since - _TASK_BEGINS:
            return None
        for view in (change.active_before, active):
            for among in (members, change.members_before):
                if view == told[1] and told[0] in among:
                    waiting = {consumer for consumer, _ in self.due} - {told[0]}
                    self.due = [(consumer, view) for consumer in among if consumer in waiting]
                    return change.seq, _OVERTAKEN
        return None
