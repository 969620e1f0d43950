"""Lines of the incarnations before the one that is audited, read once for all incarnations after them.

Each incarnation of a dispatcher is audited with all lines of those before it. Without this, a topic that was loaded a
thousand times would have each of its lines read five hundred times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.line_kinds import has_kind
from dispatch_core.audit.assumptions import CURSOR_MOVED
from dispatch_core.audit.deliveries.lost_state import loses_lines
from dispatch_core.audit.deliveries.operations import (
    Connections,
    Consumer,
    CursorOperations,
    Lines,
    resets_shown_until,
)
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.resumed_parts import is_deleted, made_again


class EarlierLines:
    """Operations of several incarnations, one after the other, with a ``RELOAD`` between them."""

    def __init__(self, runs: Iterable[pa.Table] = (), *, flows: bool) -> None:
        """Begin with ``runs``, the events of each incarnation. ``flows``: as in ``Lines.of``."""
        self._flows = flows
        self._of_each: list[Lines] = []
        self._consumer: list[npt.NDArray[np.int32]] = []
        self._consumers: list[Consumer] = []
        self._runs = 0
        for events in runs:
            self.add(events)

    def __len__(self) -> int:
        return self._runs

    def add(self, events: pa.Table) -> None:
        """Add the lines of the next incarnation."""
        cursor_ops = None if has_kind(events, CURSOR_MOVED) else CursorOperations(resets_shown_until(events))
        lines = Lines.of(events, flows=self._flows, cursor_ops=cursor_ops)
        connections = Connections(self._consumers)
        connections.meet(events)
        if self._runs:
            self._of_each.append(Lines.reload())
            self._consumer.append(np.array([-1], dtype=np.int32))
        self._of_each.append(lines)
        self._consumer.append(connections.of(lines))
        self._runs += 1

    def lines(self) -> Lines:
        """Return the lines of all incarnations."""
        if len(self._of_each) > 1:
            self._of_each = [Lines.joined(self._of_each)]
            self._consumer = [np.concatenate(self._consumer)]
        return self._of_each[0]

    def connections(self, consumers: list[Consumer]) -> npt.NDArray[np.int32]:
        """Add the connections to ``consumers``; returns that of each operation of ``lines`` there, -1 = none."""
        self.lines()
        first = len(consumers)
        consumers += self._consumers
        index = self._consumer[0]
        return np.where(index >= 0, index + np.int32(first), index).astype(np.int32)


class EarlierLoads(Sequence[DispatcherLog]):
    """The incarnations of a dispatcher before one, oldest first, since its subscription was made; more may be added."""

    def __init__(self, logs: Iterable[DispatcherLog] = ()) -> None:
        #: Those of subscriptions of the same name that were deleted, too.
        self.every: list[DispatcherLog] = []
        #: Lines of these incarnations are missing. A checkpoint in one of them is not used, so it does not help.
        self.lines_lost = False
        self._deleted = False  # at the end of the last log
        self._logs: list[DispatcherLog] = []
        self._until_us: list[int | None] = []
        self._lines: dict[bool, EarlierLines] = {}
        for log in logs:
            self.add(log)

    @classmethod
    def of(cls, logs: Sequence[DispatcherLog]) -> EarlierLoads:
        """Return ``logs`` with their lines; what was read before is not read again."""
        return logs if isinstance(logs, EarlierLoads) else cls(logs)

    def add(self, log: DispatcherLog) -> None:
        """Add the next incarnation. What stands before the last deletion of the subscription is left out."""
        self.every.append(log)
        if "kind" not in log.events.column_names:  # nothing but the time of its last line is known
            self._append(log)
            return
        again = made_again(log.events, after_deletion=self._deleted)
        self._deleted = is_deleted(log.events, before=self._deleted)
        if again or self._deleted:
            self._logs, self._until_us, self._lines = [], [], {}
            self.lines_lost = False
        if self._deleted:
            return
        self.lines_lost = self.lines_lost or loses_lines(log)
        if again:
            log = replace(log, events=log.events.slice(again[-1]), repeats=())
        self._append(log)

    def _append(self, log: DispatcherLog) -> None:
        self._logs.append(log)
        self._until_us.append(pc.max(log.events["t_us"]).as_py())

    def lines(self, *, flows: bool) -> EarlierLines:
        """Return the lines of all incarnations. ``flows``: as in ``Lines.of``."""
        lines = self._lines.setdefault(flows, EarlierLines(flows=flows))
        for log in self._logs[len(lines) :]:
            lines.add(log.events)
        return lines

    def reaching(self, t_us: int) -> Iterator[tuple[DispatcherLog, int]]:
        """Yield the incarnations that have a line at ``t_us`` or later, each with the time of its last line."""
        for log, until_us in zip(self._logs, self._until_us, strict=True):
            if until_us is not None and until_us >= t_us:
                yield log, until_us

    def __len__(self) -> int:
        return len(self._logs)

    @overload
    def __getitem__(self, at: int) -> DispatcherLog: ...

    @overload
    def __getitem__(self, at: slice) -> list[DispatcherLog]: ...

    def __getitem__(self, at: int | slice) -> DispatcherLog | list[DispatcherLog]:
        return self._logs[at]
