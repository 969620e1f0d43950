"""Bound the work that a log takes once it has parted from the rules.

After a decision has diverged (not a value of ``state`` or ``position``) the core goes on from its own answer. If the log
follows other rules for good, most windows differ from then on, and each of them is searched for an order that explains it
(``races``): the comparison would take many times as long as under the right rules, and what it found would be consequences
of the first divergence. So work is counted from there on: each order tried, each command applied in it, each divergence
found. A log is allowed so much of it at first, and some more with every line: divergences here and there stop nothing. When
no work is left, the comparison stops, and the decisions that follow are counted as not judged.

>>> work = WorkAfterDivergence()
>>> work.take(1_000, lines=0), work.left(lines=0) == AT_FIRST  # nothing has diverged
(True, True)
>>> work.diverged_at = 17
>>> work.take(AT_FIRST, lines=0), work.take(1, lines=0), work.take(1, lines=2)
(True, False, True)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Work of one divergence, or of one command applied in a trial; that of a line that agrees is about as much.
PER_DIVERGENCE: Final = 1
PER_COMMAND: Final = 1
#: Work of a line that no legal history has here: it is described for the report.
PER_ILLEGAL_LINE: Final = 10
#: Work of one order: the state is restored, and a window is decided and compared.
PER_ORDER: Final = 6
#: Work that a log may take behind its first divergence, and how much more for each line fed.
AT_FIRST: Final = 500
PER_LINE: Final = 1


@dataclass(slots=True)
class WorkAfterDivergence:
    """Work taken since the first decision that diverged. ``diverged_at``: ``seq`` of its line; ``None`` = none has."""

    diverged_at: int | None = None
    taken: int = 0

    def left(self, lines: int) -> int:
        """Return the work that is left when so many lines have been fed."""
        return AT_FIRST + PER_LINE * lines - self.taken

    def take(self, work: int, lines: int) -> bool:
        """Take work, if anything has diverged; returns False if more was taken than there was."""
        if self.diverged_at is not None:
            self.taken += work
        return self.left(lines) >= 0

    @property
    def reason(self) -> str:
        """The reason why later decisions are not judged."""
        return (
            f"core and log have parted since the divergence at seq {self.diverged_at}, and comparing on was given up: "
            "too much differs, or too many orders would have to be tried to explain it"
        )
