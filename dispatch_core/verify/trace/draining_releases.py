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

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dispatch_core.broker.multiple_consumers import Released

#: Deadline of a release that a client's thread makes: not a line of the dispatcher's, but one of its connection.
_NO_LINE: Final = 1 << 62


@dataclass(slots=True, eq=False)
class _Due:
    released: Released
    connection: int | None  # whose next line shows it missing
    until: int  # index of the last line before the one that shows it missing
    met: bool = False

    def is_like(self, consumer: int, hash_value: int) -> bool:
        return (self.released.consumer, self.released.hash) == (consumer, hash_value)


class Releases:
    """Releases whose lines are to come, and those met whose thread has not gone on yet.

    ``tracked``: hashes drain under the rules in force. Where they do not, no release is logged and none is expected.
    """

    def __init__(self, *, tracked: bool = True) -> None:
        self._tracked = tracked
        self._due: list[_Due] = []

    def expect(
        self, released: Iterable[Released], *, connection: int | None = None, until: int = _NO_LINE
    ) -> None:
        """Expect the lines of releases before the next line of ``connection``, or by the line with index ``until``."""
        if self._tracked:
            self._due += [_Due(item, connection, until) for item in released]

    def meet(self, consumer: int, hash_value: int) -> int | None:
        """Take a logged release. Returns the core's reference count before it; None = no such release is expected."""
        for due in self._due:
            if not due.met and due.is_like(consumer, hash_value):
                due.met = True
                return due.released.ref_count_before
        return None

    def unmet(self) -> list[Released]:
        """Return the releases that are expected and not logged yet."""
        return [due.released for due in self._due if not due.met]

    def missing(self, *, connection: int | None = None, at: int = -1) -> list[Released]:
        """Return the releases missing before this line: the next of ``connection``, or the one with index ``at``."""
        late: list[_Due] = []
        for due in self._due:
            if due.until < at or (connection is not None and due.connection == connection):
                late.append(due)
        return self._gone(late) if late else []

    def missing_at_end(self) -> list[Released]:
        """Return the releases that are missing at the end of the log."""
        return self._gone(self._due)

    def _gone(self, late: list[_Due]) -> list[Released]:
        """Forget releases whose time is over; returns those whose line did not come."""
        if not late:
            return []
        self._due = [due for due in self._due if due not in late]
        missing = []
        for due in late:
            if due.met:
                continue
            twin = next(
                (o for o in self._due if o.met and o.is_like(due.released.consumer, due.released.hash)), None
            )
            if twin is None:
                missing.append(due.released)
            else:
                twin.met = False
        return missing
