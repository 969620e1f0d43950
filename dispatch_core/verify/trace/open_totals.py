"""Total permits that depend on whether a send was written before the dispatcher counted it.

A send lowers the total permits by its messages, without the batch indexes that are acknowledged already. Once the entries
are written these indexes are forgotten, so that all messages count (EntryBatchIndexesAcks.getTotalAckedIndexCount, recycle).
``send_returned`` says whether they were written when its call returned; the total was lowered a moment before. So each send
with acknowledged indexes opens a fact about the total (``races``), until a read attempt or a decision shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, combinations, product
from typing import Final

from dispatch_core.broker.multiple_consumers import Round
from dispatch_core.verify.inputs import Line
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.open_blocks import OpenBlocksDriver
from dispatch_core.verify.trace.races import Command
from dispatch_core.verify.trace.racing import Window

#: Number of sends whose effect on the total permits stays open; of earlier ones the plain order holds. Attempts that have
#: lines show the total, so that more than those of one round are open only without such lines.
_MAX_OPEN: Final = 4


class OpenTotalsDriver(OpenBlocksDriver):
    """Keep open what sends with acknowledged batch indexes lower the total permits by."""

    def apply_fact(self, fact: Command) -> None:
        """See ``RacingDriver``."""
        super().apply_fact(fact)
        if fact.total_by:
            self.core.change_total(fact.total_by)

    def _open_totals(self, window: Window, outcome: Round) -> None:
        """Open a fact for each send of a round with acknowledged indexes: whether it was written before the total fell.

        The plain order takes it as written by then if its ``send_returned`` says so.
        """
        for line, acked in self._sends_with_acked(window, outcome):
            if line.inputs["written"] is not None:
                by = acked if line.inputs["written"] else -acked
                what = f"the write of what consumer {line.consumer} was sent"
                parts = self._parts_of(window, line, acked, written=bool(line.inputs["written"]))
                self._facts.append(Command(line.seq, who(line), what, total_by=by, total_parts=parts))
        totals = [fact for fact in self._facts if fact.total_by]
        self._facts = [fact for fact in self._facts if fact not in totals[:-_MAX_OPEN]]

    def _parts_of(self, window: Window, returned: Line, acked: int, *, written: bool) -> tuple[int, ...]:
        """Return by how many the total may differ if the acknowledged indexes were forgotten while they were counted.

        Both go through the entries of the send in order (EntryBatchIndexesAcks.getTotalAckedIndexCount, recycle). So those
        of the first ones count, if the forgetting overtakes, or those of the last ones, if the counting does.
        """
        sends = [
            line for _at, line in self._within(window.end) if line.kind == "sent" and line.seq < returned.seq
        ]
        entries = [entry for entry in sends[-1].recorded["positions"] if entry >= 0] if sends else []
        counts = [int(count) for count in self.core.state.acked_indexes[entries]]
        if sum(counts) != acked:
            return ()
        first = [*accumulate(counts)]
        parts = {*first, *(acked - count for count in first)} - {0, acked}
        return tuple(sorted(part if written else part - acked for part in parts))

    def _close_totals(self) -> None:
        """Forget the facts about the total permits: a line shows it, or all consumers have left, so that it is 0."""
        self._facts = [fact for fact in self._facts if not fact.total_by]

    def _take_written(self, window: Window, outcome: Round) -> None:
        """Lower the total permits for sends whose lines say that they were written when their call returned."""
        for line, acked in self._sends_with_acked(window, outcome):
            if line.inputs["written"]:
                self.core.written_first(acked)

    def _sends_with_acked(self, window: Window, outcome: Round) -> Iterator[tuple[Line, int]]:
        """Yield the ends of a round's sends with acknowledged batch indexes (``send_returned``), each with their number."""
        if not outcome.already_acked and not any(turn.already_acked for turn in outcome.turns):
            return
        returned = (line for _at, line in self._within(window.end) if line.kind == "send_returned")
        for nth, line in enumerate(returned):
            acked = outcome.acked_in_send(nth, who(line))
            if acked:
                yield line, acked

    def _take_total(self, recorded: int, expected: int) -> int | None:
        """Take a total that a line shows: it decides the open facts. Returns the line of the first that explains it."""
        shown = self._facts_that_give(recorded - expected) if recorded != expected else ()
        if shown:
            self.core.change_total(recorded - expected)
        if shown or recorded == expected:
            self._close_totals()
        return min((fact.seq for fact in shown), default=None)

    def _facts_that_give(self, difference: int) -> tuple[Command, ...]:
        """Return the fewest open facts by which the total may differ so much; none, if it may not."""
        facts = [fact for fact in self._facts if fact.total_by]
        for count in range(1, len(facts) + 1):
            for chosen in combinations(facts, count):
                amounts = product(*((fact.total_by, *fact.total_parts) for fact in chosen))
                if any(sum(amount) == difference for amount in amounts):
                    return chosen
        return ()
