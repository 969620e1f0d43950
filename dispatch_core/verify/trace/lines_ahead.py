"""Keep the lines of a trace that a decision may look at: the one being fed, and those that follow it.

Example: a round begins at line 100, and the core decides it there. It has to know which lines belong to the round, so it
searches the next ``HORIZON`` lines for the ``round_end``. Lines behind that are not looked at, whatever is known of them:
the result does not depend on how many lines come at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Final

from dispatch_core.verify.inputs import Line

#: Number of following lines that a decision may look at. The longest round of the recordings has 83 lines.
HORIZON: Final = 4_096
#: Number of lines that must be known behind a line before it is fed, unless the log ends before. Lines that no legal
#: history has do not count for ``HORIZON``, so there are more of them.
LOOK_AHEAD: Final = 2 * HORIZON


class LinesAhead:
    """Lines by index, counted from the first line of the log; the oldest are forgotten.

    ``last_kind``: kind of the last line; ``None`` = there is none.
    """

    def __init__(self) -> None:
        self.last_kind: str | None = None
        self._lines: list[Line] = []
        self._first = 0  # index of the first line that is kept

    def __len__(self) -> int:
        """Count all lines that were added, also those that are forgotten."""
        return self._first + len(self._lines)

    def __getitem__(self, at: int) -> Line:
        return self._lines[at - self._first]

    @property
    def kept(self) -> int:
        """Number of lines in memory."""
        return len(self._lines)

    def add(self, lines: Sequence[Line]) -> None:
        """Add the next lines."""
        self._lines += lines
        if lines:
            self.last_kind = lines[-1].kind

    def forget(self, before: int) -> None:
        """Forget the lines before an index."""
        count = before - self._first
        if count > 0:
            del self._lines[:count]
            self._first = before

    def change_ordinals(self, change: Callable[[int], int]) -> None:
        """Replace the ordinals of all lines."""
        for line in self._lines:
            line.change_ordinals(change)

    def horizon(self, at: int) -> int:
        """Return the index behind the last line that a decision at line ``at`` may look at."""
        return min(len(self), at + 1 + HORIZON)

    def of_window(self, start: int, stop: int) -> list[tuple[int, Line]]:
        """Return the lines from index ``start`` to below ``stop``, with their indexes."""
        return list(enumerate(self._lines[start - self._first : stop - self._first], start))

    def first_of(self, kinds: Container[str], start: int, stop: int) -> int:
        """Return the index of the first line of one of some kinds, from index ``start`` to below ``stop``; else ``stop``."""
        lines, first = self._lines, self._first
        for at in range(start - first, stop - first):
            if lines[at].kind in kinds:
                return at + first
        return stop

    def between(self, start: int, stop: int) -> Iterator[tuple[int, Line]]:
        """Yield the same one by one, for a search that may end early."""
        lines, first = self._lines, self._first
        for at in range(start, stop):
            yield at, lines[at - first]
