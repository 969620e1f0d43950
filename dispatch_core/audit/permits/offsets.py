"""Decide from a series of shown values whether a count is off for good, and from which line on.

A line that shows a count gives the *differences* that it may have from the ledger: one number, or several where commands
were under way when the count was read. The count is *off* at a line if none of them is the difference known so far. One line
proves nothing, for a value may be read a moment before its line is written. ``PROOFS`` lines that agree do.

>>> series = Offsets()
>>> for seq, differences in ((1, {0}), (2, {-1}), (3, {0}), (7, {-1}), (8, {0, -1}), (9, {-1})):
...     series.show(seq, 1000 * seq, frozenset(differences))
>>> series.offset, [(step.seq, step.right_seq, step.offset) for step in series.steps]
(-1, [(7, 3, -1)])

A count that is right again was not off for good:

>>> for seq in (10, 11):
...     series.show(seq, 1000 * seq, frozenset({0}))
>>> series.offset, series.steps
(0, [])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

#: Lines that must agree on a difference.
PROOFS: Final = 2
#: Steps that are kept of one series; further ones are counted.
MOST_STEPS: Final = 1000

Note = TypeVar("Note")


@dataclass(slots=True)
class Step(Generic[Note]):
    """A line from which on a count was off by another number than before.

    Attributes:
        seq: the first line whose value is off.
        t_us: its time, microseconds.
        right_seq: the last line before it whose value was not; 0 = there is none.
        offset: the difference from then on; ``None`` where that line leaves several open and the count changed again.
        notes: what happened between the two lines.
    """

    seq: int
    t_us: int
    right_seq: int
    offset: int | None
    notes: tuple[Note, ...]


@dataclass(slots=True)
class Offsets(Generic[Note]):
    """The difference between a shown count and the ledger's, line by line.

    Attributes:
        offset: the difference by now; ``None`` = the count at the beginning is not known, and neither is the difference.
        base: the difference that is no fault: 0, or the first one that two lines agree on.
        steps: the lines at which the difference changed, none if it is ``base``.
        more_steps: number of changes that ``steps`` leaves out.
        seq, t_us: the last line that shows that the count is off.
        off: number of lines that show it.
        is_whole: no line that changed the count is missing since the beginning.
    """

    offset: int | None = 0
    base: int = 0
    steps: list[Step[Note]] = field(default_factory=list)
    more_steps: int = 0
    seq: int = 0
    t_us: int = 0
    off: int = 0
    is_whole: bool = field(init=False)
    _right_seq: int = 0
    _first: int | None = None  # the difference that the last line shows, while none is known
    _others: frozenset[int] = frozenset()  # the differences that may hold instead of the known one …
    _proofs: int = 0  # … by so many lines …
    _waiting: list[Step[Note]] = field(default_factory=list)  # … since these

    def __post_init__(self) -> None:
        self.is_whole = self.offset is not None

    @classmethod
    def again(cls, before: Offsets[Note]) -> Offsets[Note]:
        """Return the series behind a change of the count whose size no line gives: it begins with the next lines."""
        made: Offsets[Note] = cls(None)
        made.is_whole = before.is_whole
        return made

    @property
    def is_open(self) -> bool:
        """True if the last lines show another difference than the known one, and do not prove it yet."""
        return bool(self._others)

    @property
    def possible(self) -> frozenset[int]:
        """The differences that may hold now."""
        return self._others if self.offset is None else self._others | {self.offset}

    @property
    def excess(self) -> int:
        """The difference that is a fault; 0 = there is none."""
        return 0 if self.offset is None else self.offset - self.base

    def show(self, seq: int, t_us: int, differences: frozenset[int], notes: tuple[Note, ...] = ()) -> None:
        """Take a line that shows the count.

        Args:
            seq: the line.
            t_us: its time, microseconds.
            differences: those that its value may have from the ledger's.
            notes: what happened since the last line that showed the count.
        """
        if self.offset is None:
            self._begin(differences)
            return
        if self.offset in differences:
            self._others &= differences
            if not self._others:
                self._proofs, self._right_seq = 0, seq
                self._waiting.clear()
            if self.excess:
                self._note_off(seq, t_us)
            return
        left = self._others & differences
        if not left:
            if len(self._waiting) >= MOST_STEPS:
                del self._waiting[-1]
                self.more_steps += 1
            self._waiting.append(Step(seq, t_us, self._right_seq, _one(differences), notes))
            self._proofs = 0
        self._others = left or differences
        self._proofs += 1
        self._waiting[-1].offset = _one(self._others)
        if self._proofs >= PROOFS and self._waiting[-1].offset is not None:
            self._change(seq, t_us)

    def _begin(self, differences: frozenset[int]) -> None:
        """Take the difference at the beginning from two lines that agree and leave no other open."""
        shown = _one(differences)
        if shown is not None and shown == self._first:
            self.offset = self.base = shown
        self._first = shown

    def _change(self, seq: int, t_us: int) -> None:
        for step in self._waiting:
            if len(self.steps) < MOST_STEPS:
                self.steps.append(step)
            else:
                self.more_steps += 1
        self.offset = self._waiting[-1].offset
        if self.excess:
            self.off += self._proofs - 1
            self._note_off(seq, t_us)
        else:
            self.steps.clear()
            self.more_steps = self.off = 0
        self._proofs, self._others, self._right_seq = 0, frozenset(), seq
        self._waiting.clear()

    def _note_off(self, seq: int, t_us: int) -> None:
        self.seq, self.t_us, self.off = seq, t_us, self.off + 1


def _one(differences: frozenset[int]) -> int | None:
    """Return the difference if there is only one."""
    return next(iter(differences)) if len(differences) == 1 else None
