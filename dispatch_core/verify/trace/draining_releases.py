"""Track releases of draining hashes that the core has made and whose lines are to come.

A release is logged by the thread that made it, right after what caused it: the removal of a pending ack on a client's I/O
thread, a membership change under the dispatcher's lock. Other threads' lines may stand in between, a later line of the same
thread may not: where one stands and the release does not, the release is *missing* and that line shows it.

Two releases of one hash by one consumer look alike. If one of them is missing and the other, of a thread that has not gone
on yet, was met, it may be the other way round: then the missing one is taken to be met.

>>> due = Releases()
>>> due.expect([Released(1, 500, 2)], connection=1)
>>> due.meet(1, 500), due.meet(1, 500), due.missing(connection=1)
(2, None, [])
>>> due.expect([Released(1, 500, 1)], connection=1)
>>> due.missing(connection=2), due.missing(connection=1)
([], [Released(consumer=1, hash=500, ref_count_before=1)])
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Final

from dispatch_core.broker.multiple_consumers import Released

#: Deadline of a release that a client's thread makes: not a line of the dispatcher's, but one of its connection.
_NO_LINE: Final = 1 << 62


@dataclass(slots=True, eq=False)
class _Due:
    number: int  # in the order in which releases were expected
    released: Released
    until: int  # index of the last line before the one that shows it missing
    met: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.released.consumer, self.released.hash


class Releases:
    """Releases whose lines are to come, and those met whose thread has not gone on yet.

    ``tracked``: hashes drain under the rules in force. Where they do not, no release is logged and none is expected.
    """

    def __init__(self, *, tracked: bool = True) -> None:
        self._tracked = tracked
        self._expected = 0
        self._of: dict[int, list[_Due]] = {}  # connection → releases that its next line shows missing
        self._others: list[_Due] = []  # of the dispatcher's thread
        self._first_deadline = _NO_LINE  # of ``_others``
        self._unmet: dict[tuple[int, int], list[_Due]] = {}  # (consumer, hash) → those of both, in order

    def expect(
        self, released: Iterable[Released], *, connection: int | None = None, until: int = _NO_LINE
    ) -> None:
        """Expect the lines of releases before the next line of ``connection``, or by the line with index ``until``."""
        if not self._tracked:
            return
        due = self._others if connection is None else self._of.setdefault(connection, [])
        for item in released:
            self._expected += 1
            expected = _Due(self._expected, item, until)
            due.append(expected)
            self._unmet.setdefault(expected.key, []).append(expected)
            self._first_deadline = min(self._first_deadline, until)

    @property
    def deadline(self) -> int:
        """Index of the last line in front of which no release of the dispatcher's thread is missing."""
        return self._first_deadline

    def meet(self, consumer: int, hash_value: int) -> int | None:
        """Take a logged release. Returns the core's reference count before it; None = no such release is expected."""
        unmet = self._unmet.get((consumer, hash_value))
        if unmet is None:
            return None
        due = unmet[0]
        due.met = True
        self._no_longer_unmet(due)
        return due.released.ref_count_before

    def unmet(self) -> list[Released]:
        """Return the releases that are expected and not logged yet."""
        return [due.released for unmet in self._unmet.values() for due in unmet]

    def missing(self, *, connection: int | None = None, at: int = -1) -> list[Released]:
        """Return the releases missing before this line: the next of ``connection``, or the one with index ``at``."""
        late = [] if connection is None else self._of.pop(connection, [])
        if self._first_deadline < at:
            late += [due for due in self._others if due.until < at]
            self._others = [due for due in self._others if due.until >= at]
            self._first_deadline = min((due.until for due in self._others), default=_NO_LINE)
        late = [due for due in late if not due.met]
        return self._gone(late) if late else []

    def missing_at_end(self) -> list[Released]:
        """Return the releases that are missing at the end of the log."""
        late = [due for due in self._all() if not due.met]
        self._of, self._others, self._first_deadline = {}, [], _NO_LINE
        return self._gone(late)

    def _gone(self, late: list[_Due]) -> list[Released]:
        """Take releases that were not met, and are forgotten; returns those whose line did not come."""
        missing = []
        for due in sorted(late, key=lambda due: due.number):
            self._no_longer_unmet(due)
            twin = next((other for other in self._all() if other.met and other.key == due.key), None)
            if twin is None:
                missing.append(due.released)
            else:
                twin.met = False
                unmet = self._unmet.setdefault(twin.key, [])
                insort(unmet, twin, key=lambda due: due.number)
        return missing

    def _no_longer_unmet(self, due: _Due) -> None:
        unmet = self._unmet[due.key]
        unmet.remove(due)
        if not unmet:
            del self._unmet[due.key]

    def _all(self) -> list[_Due]:
        """Return all that is not forgotten, in the order in which it was expected."""
        return sorted(chain(self._others, *self._of.values()), key=lambda due: due.number)
