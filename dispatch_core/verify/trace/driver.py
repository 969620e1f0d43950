"""Base of the verification drivers: one handler per kind of line, and the report of differences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.errors import IllegalTransitionError
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.tally import SHOWN_CLASSES, Fields, Finding, Tally
from dispatch_core.verify.trace.lines_ahead import LinesAhead
from dispatch_core.verify.trace.work_after_divergence import (
    PER_DIVERGENCE,
    PER_ILLEGAL_LINE,
    WorkAfterDivergence,
)

MAX_SHOWN_POSITIONS = 8
#: A deadline that no line is behind.
NEVER: Final = 1 << 62


class Driver(ABC):
    """Feed a trace to a core. A subclass has methods that are named by the kind of line they take, where it needs them.

    ``_on_<kind>`` gives a line to the core and compares the answer. ``_judged_<kind>`` takes its place for a line that was
    compared ahead, with the first line of its window. ``_before_<kind>`` is called first, for both. ``_ahead_<kind>`` is
    called long before, when the line becomes known, with its index.
    """

    #: Recorded fields that are compared in the classes ``state`` and ``position``, see ``tally.Tally``.
    state_fields: ClassVar[Fields] = {}
    position_fields: ClassVar[Fields] = {}
    #: Kinds that are written under the dispatcher's lock: what a later one shows was sampled after them.
    section_kinds: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, entries: Entries) -> None:
        self.tally = Tally(self.state_fields, self.position_fields)
        self._entries = entries
        self._lines = LinesAhead()
        self._at = -1  # index of the line being fed
        self._line = Line(0, 0, "", None, {}, {})
        #: The reason why nothing is judged from some line on, and the ``seq`` of that line.
        self.stopped: tuple[str, int] | None = None
        self._work = WorkAfterDivergence()
        #: Called with every line that no legal history has here, before it is counted; may raise to stop.
        self.on_illegal: Callable[[Line, IllegalTransitionError], None] | None = None
        self._handlers: dict[str, Callable[[Line], None]] = self._named("_on_")
        self._handlers_of_judged: dict[str, Callable[[Line], None]] = self._named("_judged_")
        self._before: dict[str, Callable[[Line], None]] = self._named("_before_")
        self._ahead: dict[str, Callable[[int, Line], None]] = self._named("_ahead_")
        self._judged: set[int] = set()  # indexes of lines ahead that have been compared
        self._deadline = NEVER  # index of the last line in front of which nothing is overdue
        self._counted_behind = NEVER  # index of the first line behind which decisions are counted
        self._section_at = 0  # seq of the last line of ``section_kinds`` before the present one

    def _named(self, prefix: str) -> dict[str, Any]:
        """Return the methods whose name begins with ``prefix``, by the kind of line that follows in it."""
        names = [name for name in dir(type(self)) if name.startswith(prefix)]
        return {name.removeprefix(prefix): getattr(self, name) for name in names}

    def look_ahead(self, lines: Sequence[Line]) -> None:
        """Note the next lines of the log before they are fed: decisions may need up to ``HORIZON`` lines."""
        for at, line in enumerate(lines, len(self._lines)):
            if line.kind in self._ahead:
                self._ahead[line.kind](at, line)
        self._lines.add(lines)

    @abstractmethod
    def extend(self, drop: int, messages: pa.Table) -> None:
        """Forget the first ``drop`` entries, at most ``droppable()``, and take the next ones of the topic."""

    @abstractmethod
    def _settled(self) -> int:
        """Count the entries at the front that the core can forget."""

    def droppable(self) -> int:
        """Count the entries at the front that neither the core nor anything under way refers to."""
        lowest = self._settled()

        def note(entry: int) -> int:
            nonlocal lowest
            lowest = min(lowest, entry)
            return entry

        self._change_ordinals(note)
        return lowest

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """Replace every ordinal that is kept outside the core. A subclass with further ones extends this."""
        self._lines.change_ordinals(change)

    def findings_to_come(self) -> list[Finding]:
        """Return the findings about lines that were fed, as far as they are known, that later lines will bring."""
        return []

    def _later_lines(self) -> Iterator[Line]:
        """Yield the known lines behind the present one, as far as anything may look ahead (``LinesAhead.horizon``)."""
        for _at, line in self._lines.between(self._at + 1, self._lines.horizon(self._at)):
            yield line

    def forget_lines(self) -> None:
        """Forget the lines that no decision will look at any more."""
        self._lines.forget(self._at + 1)

    def feed(self, line: Line) -> None:
        """Take one line. A line that no legal history has here is a divergence, and the core stays as it was."""
        kind = line.kind
        self._at += 1
        self._line = line
        if self._at > self._deadline:
            self._overdue(line)
        before = self._before.get(kind)
        if before is not None:
            before(line)
        self.tally.expect(line)
        if self._at in self._judged:
            self._judged.remove(self._at)
            handler = self._handlers_of_judged.get(kind)
        elif self.stopped is not None:
            self._leave(line)
            handler = None
        else:
            handler = self._handlers.get(kind)
        if handler is not None:
            try:
                handler(line)
            except IllegalTransitionError as error:
                self._illegal(line, error)
            self._after(line)
        if kind in self.section_kinds:
            self._section_at = line.seq
        if self._at >= self._counted_behind:
            self._count_due()

    def _overdue(self, _line: Line) -> None:
        """Report what should have come in front of a line, the first one behind the deadline; sets the next deadline."""
        self._deadline = NEVER

    @abstractmethod
    def _after(self, line: Line) -> None:
        """Take note of what a line has changed."""

    def _count_due(self) -> None:
        """Count decisions that the lines so far prove; sets the next line behind which there are some."""
        self._counted_behind = NEVER

    def _stop_judging(self, reason: str) -> None:
        """Judge no later line: nothing in the log determines what the broker's state is from here on."""
        self.stopped = reason, self._line.seq

    def _count(self, finding: Finding, decisions: int) -> None:
        """Count a finding. If nothing is left of the work that a diverged log may take, no later line is judged."""
        self.tally.differ(finding, decisions)
        if finding.status != "divergent" or self.stopped is not None:
            return
        if self._work.diverged_at is None and finding.decision_class not in SHOWN_CLASSES:
            self._work.diverged_at = finding.seq
        self._take_work(PER_DIVERGENCE)

    def _take_work(self, work: int) -> bool:
        """Take work that follows from a divergence; returns False, and judges no later line, if none is left."""
        if self._work.take(work, self._at + 1):
            return True
        self._give_up()
        return False

    def _give_up(self) -> None:
        """Judge no later line: the log takes too much work since it has parted from the rules."""
        if self.stopped is None:
            self.stopped = self._work.reason, self._line.seq + 1

    def _leave(self, line: Line) -> None:
        """Count the decisions of a line as not judged."""
        reason = "" if self.stopped is None else self.stopped[0]
        for decision_class, decisions in self.tally.decisions_of(line):
            self.tally.leave_unjudged(decision_class, decisions, reason)

    def refuse(self, line: Line, error: IllegalTransitionError) -> None:
        """Count a line as a divergence without giving it to the core."""
        self.tally.expect(line)
        self._line = line
        self._illegal(line, error)

    def _illegal(self, line: Line, error: IllegalTransitionError) -> None:
        if self.on_illegal is not None:
            self.on_illegal(line, error)
        self._take_work(PER_ILLEGAL_LINE)
        self._differ(self.class_of(line.kind), "no such event", f"{line.kind}: {error}", decisions=0)

    @abstractmethod
    def class_of(self, kind: str) -> str:
        """Return the class of decision under which an illegal line of this kind is counted."""

    def _differ(
        self,
        decision_class: str,
        expected: str,
        recorded: str,
        decisions: int = 1,
        racing: tuple[int, str] | None = None,
    ) -> None:
        """Count a difference at the present line; ``racing`` = (seq of the line that shows the race, why)."""
        status = "divergent" if racing is None else "uncertain"
        seq, reason = racing or (None, None)
        finding = Finding(
            self._line.seq, self._line.t_us, decision_class, status, expected, recorded, seq, reason
        )
        self._count(finding, decisions)

    def _compare_permits(self, line: Line, consumer: int, before: int | None) -> None:
        """Compare the permits of a consumer before a send, if the line has them."""
        recorded = line.recorded["permits_before"]
        if recorded is None:
            return
        if before == recorded:
            self.tally.exact("permits")
        else:
            self._differ("permits", f"consumer {consumer}: {before}", str(recorded))

    def _compare_hashes(
        self, positions: Sequence[int], hashes: npt.NDArray[np.int64], recorded: Sequence[int]
    ) -> None:
        """Compare the sticky key hash of each entry read; -1 in ``positions`` = not in the message log."""
        expected = [int(hashes[entry]) if entry >= 0 else None for entry in positions]
        if expected == recorded:
            self.tally.exact("hash", len(recorded))
            return
        for entry, own, other in zip_longest(positions, expected, recorded):
            if own is not None and own == other:
                self.tally.exact("hash")
            elif entry is None or entry < 0:
                self._differ(
                    "hash", "an entry of the message log", f"an entry it does not hold, hash {other}"
                )
            else:
                position = self._entries.position(entry)
                self._differ("hash", f"{position} hash {own}", f"hash {other}", int(other is not None))

    def _positions(self, entries: Sequence[int], first: int = 0) -> str:
        """Describe entries: a few positions from index ``first`` on, and the number of all."""
        if not entries:
            return "nothing"
        some = entries[first : first + MAX_SHOWN_POSITIONS]
        shown = [self._entries.position(entry) for entry in some]
        shown = [*(["…"] if first else []), *shown, *(["…"] if len(entries) > first + len(some) else [])]
        return f"[{', '.join(shown)}] ({len(entries)})"


def first_shown(expected: Sequence[int], recorded: Sequence[int]) -> int:
    """Return the index from which to show two runs of entries, so that their first difference is shown."""
    pairs = enumerate(zip(expected, recorded, strict=False))
    at = next((number for number, (own, other) in pairs if own != other), 0)
    return at if at >= MAX_SHOWN_POSITIONS else 0


def who(line: Line) -> int:
    """Return the consumer of a line; raises ``IllegalTransitionError`` if it has none."""
    if line.consumer is None:
        raise IllegalTransitionError(f"{line.kind} names no consumer", rule="the event needs a consumer")
    return line.consumer


def acknowledged_by(ack: Line) -> list[tuple[int, tuple[int, ...]]]:
    """Return the entries of an ack, each with the words of the batch indexes that it leaves; none = it leaves nothing."""
    positions, sets = ack.inputs["positions"], ack.inputs["ack_sets"] or ()
    return [(entry, tuple(words or ())) for entry, words in zip_longest(positions, sets[: len(positions)])]
