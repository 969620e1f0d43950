"""The interface of selectors and ordering rules that no release has: built in here, or installed as plug-ins.

A plug-in is a function that is given a ``View`` of the dispatcher and returns a *selector* (``selectors.selector.Selector``;
``RangesSelector`` is a base for one) or an *ordering rule* (``OrderingRule``). It is plain Python, asked outside of the
compiled loops:

* a selector at every join and leave. It answers for slots 0 to 65535 of the hash space (``hash % 65536``);
* an ordering rule for each entry that a read brings or that waits in the replay set, before the release's own gates. It
  takes the place of the release's ordering rule.

What an ordering rule cannot do: give an entry to another consumer than the selector's, reorder a read result, or hold an
entry back where the release's gates do not let it wait. An entry that is refused holds back the later entries of its hash in
the same read result or scan (R2), joins the replay set (R0 and R1 hold for it), and is asked about again at the next read:
after every acknowledgement, by ``keySharedUnblockingIntervalMs``, while anything is held back.

>>> class Halves(RangesSelector):
...     def ranges(self, consumers):
...         first, last = consumers[0][0], consumers[-1][0]
...         return [(0, 32767, first), (32768, 65535, last)]
>>> selector = Halves()
>>> _ = selector.add(1, "a"), selector.add(2, "b")
>>> selector.select(40000), selector.add(3, "c")
(2, Impacted(removed={2: ((32768, 65535),)}, added={3: ((32768, 65535),)}))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.assignments import Assignments, Impacted, impacted
from dispatch_core.broker.selectors.selector import Announced, Selector

I64 = npt.NDArray[np.int64]


class View(Protocol):
    """All that a plug-in may know of the dispatcher. Consumers are numbers, entries are numbers in the order of the log."""

    def consumers(self) -> list[int]:
        """List the connected consumers as they joined."""
        ...

    def name(self, consumer: int) -> str:
        """Return the name of a consumer."""
        ...

    def rate(self, consumer: int) -> float:
        """Return the messages per second that a consumer was sent between the last two membership changes, as measured."""
        ...

    def owner(self, sticky_hash: int) -> int | None:
        """Return the consumer that the selector chooses for a hash; None = nobody, or the hash never occurred."""
        ...

    def holder(self, entry: int) -> int | None:
        """Return the consumer on which an entry is pending; None = on nobody."""
        ...

    def mark_delete(self) -> int:
        """Return the last entry up to which everything is acknowledged; -1 = nothing is."""
        ...

    def pending(self, consumer: int) -> list[int]:
        """List the entries that are pending on a consumer."""
        ...


class OrderingRule(ABC):
    """A rule that decides whether an entry may be sent to the owner of its hash now. Only ``may_send`` is required."""

    @abstractmethod
    def may_send(self, consumer: int, sticky_hash: int, entry: int, ahead: int) -> bool:
        """True if ``entry`` of this hash may be sent to ``consumer``, its owner.

        It is asked about all entries of a read result before any of them is sent. ``ahead``: how many of the same hash it
        has let pass before in this result or scan.
        """

    def joined(self, consumer: int) -> None:  # noqa: B027  # may be left out
        """Note that a consumer has joined; the selector knows it by now."""

    def left(self, consumer: int) -> None:  # noqa: B027
        """Note that a consumer has left; its pending entries are in the replay set by now."""

    def sent(self, consumer: int, sticky_hash: int, entry: int) -> None:  # noqa: B027
        """Note that an entry was sent."""

    def tracked(self) -> int:
        """Return how many things the rule keeps now, for the memory it takes."""
        return 0


SelectorFactory = Callable[[View], Selector]
OrderingFactory = Callable[[View], OrderingRule]


class RangesSelector(ABC):
    """A selector that divides the slots anew at every join and leave."""

    def __init__(self) -> None:
        self._consumers: list[tuple[int, str]] = []
        self._now = Assignments()

    @abstractmethod
    def ranges(self, consumers: Sequence[tuple[int, str]]) -> Sequence[tuple[int, int, int]]:
        """Return (start, end, consumer) of closed ranges, ascending and disjoint. ``consumers``: (number, name) as joined.

        Slots in no range belong to nobody. Never called without consumers.
        """

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """See ``Selector``."""
        self._consumers.append((consumer, name))
        return self._divide()

    def remove(self, consumer: int) -> Impacted:
        """See ``Selector``."""
        self._consumers = [member for member in self._consumers if member[0] != consumer]
        return self._divide()

    def _divide(self) -> Impacted:
        before = self._now
        self._now = Assignments(tuple(self.ranges(self._consumers)) if self._consumers else ())
        return impacted(before, self._now)

    def select(self, sticky_hash: int) -> int | None:
        """See ``Selector``."""
        owner = int(self.select_array(np.array([sticky_hash]))[0])
        return None if owner < 0 else owner

    def select_array(self, sticky_hashes: I64) -> I64:
        """See ``Selector``."""
        slots = self.places(sticky_hashes)
        starts, ends, owners = (
            np.array([bounds[at] for bounds in self._now.ranges], np.int64) for at in range(3)
        )
        if not len(starts):
            return np.full(len(slots), -1, np.int64)
        at = np.searchsorted(ends, slots)
        inside = at < len(ends)
        at = np.minimum(at, len(ends) - 1)
        return np.where(inside & (starts[at] <= slots), owners[at], -1)

    def places(self, sticky_hashes: I64) -> I64:
        """See ``Selector``."""
        return sticky_hashes % hashing.DEFAULT_RANGE_SIZE

    def assignments(self) -> Assignments:
        """See ``Selector``."""
        return self._now
