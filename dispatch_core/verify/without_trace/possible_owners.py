"""Find who may get an entry while membership changes race with its delivery.

A log without a trace shows a join or a leave when it arrives. It takes effect up to ``races.RACE_US`` earlier or later, and
of several such changes the log does not show the order. So a delivery to another consumer than the rules say is explained
only if its consumer owns the hash (Failover: is active) after some of these changes, in some order.

>>> roster = ActiveConsumer(topic="t", partition_index=0, ring=False, exclusive=False)
>>> near = PossibleOwners()
>>> for t_us, name in ((0, "c2"), (1_000_000, "c1"), (1_010_000, "c3")):
...     join = Change(t_us, Member(int(name[1]), name))
...     near.before(join, roster)
...     roster.apply(join)

At 1.02 s the joins of c1 and c3 race. c2 or c1 may be active, c3 cannot, whichever came first:

>>> [near.may_own(consumer, 0, 1_020_000, roster) for consumer in (1, 2, 3)]
[True, True, False]
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from dispatch_core.broker.selectors import failover
from dispatch_core.broker.selectors.selector import Announced, Selector
from dispatch_core.errors import SelectorRefusedError
from dispatch_core.verify.without_trace.races import RACE_US

Ints = npt.NDArray[np.int64]

_NO_TIMES: Final[Ints] = np.empty(0, np.int64)
#: More changes than these are not tried in every order: then any connected consumer may own any hash.
MOST_CHANGES: Final = 5


@dataclass(frozen=True, slots=True)
class Member:
    """Settings of a consumer when it joins."""

    number: int
    name: str
    priority_level: int = 0
    ranges: Announced = None
    mode: str = "AUTO_SPLIT"
    allow_out_of_order: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A consumer joins (``member``), or the one with the number ``leaves`` leaves."""

    t_us: int
    member: Member | None = None
    leaves: int = -1

    @property
    def consumer(self) -> int:
        """The number of the consumer."""
        return self.leaves if self.member is None else self.member.number


class Roster(Protocol):
    """The connected consumers, as far as they decide who gets a hash."""

    def copy(self) -> Self:
        """Copy it."""
        ...

    def apply(self, change: Change) -> None:
        """Apply a change; one that the broker refuses changes nothing."""
        ...

    def owner(self, hash_value: int) -> int | None:
        """Return the consumer that gets entries of a hash; ``None`` = nobody."""
        ...


class SelectorRoster:
    """The roster of a Key_Shared subscription: its selector."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector

    def copy(self) -> SelectorRoster:
        """See ``Roster``."""
        return SelectorRoster(copy.deepcopy(self._selector))

    def apply(self, change: Change) -> None:
        """See ``Roster``."""
        if change.member is None:
            self._selector.remove(change.leaves)
            return
        with suppress(SelectorRefusedError):
            self._selector.add(change.member.number, change.member.name, change.member.ranges)

    def owner(self, hash_value: int) -> int | None:
        """See ``Roster``."""
        return self._selector.select(hash_value)


@dataclass(slots=True)
class ActiveConsumer:
    """The roster of a Failover or Exclusive subscription: the active consumer gets all hashes."""

    topic: str
    partition_index: int
    ring: bool
    exclusive: bool
    candidates: tuple[failover.Candidate, ...] = ()

    def copy(self) -> ActiveConsumer:
        """See ``Roster``."""
        return copy.copy(self)

    def apply(self, change: Change) -> None:
        """See ``Roster``."""
        others = tuple(known for known in self.candidates if known.consumer != change.consumer)
        if change.member is None:
            self.candidates = others
        elif not (self.exclusive and others):
            member = change.member
            joining = failover.Candidate(member.number, member.name, member.priority_level)
            self.candidates = (*others, joining)

    def owner(self, hash_value: int) -> int | None:
        """See ``Roster``."""
        if not self.candidates:
            return None
        return failover.pick(
            self.candidates, partition_index=self.partition_index, topic=self.topic, ring=self.ring
        ).active


@dataclass(slots=True)
class _Racing:
    """The rosters that the changes [``first``, ``last``) and those ahead may bring about."""

    first: int
    last: int
    rosters: list[Roster]
    owners: dict[int, frozenset[int | None]] = field(default_factory=dict)  # by hash


class PossibleOwners:
    """The latest membership changes of a dispatcher, and the roster before them."""

    def __init__(self) -> None:
        self._base: Roster | None = None  # before ``_changes``; None = there are none
        self._changes: list[Change] = []
        self._times_us: Ints = _NO_TIMES  # of ``_changes``
        self._reached: tuple[int, Roster] | None = None  # so many changes were applied to a copy of the base
        self._racing: _Racing | None = None  # of the last delivery

    def before(self, change: Change, roster: Roster) -> None:
        """Note a change that ``roster``, the present one, is about to take."""
        if self._base is None:
            self._base = roster.copy()
        self._changes.append(change)
        self._times_us = np.append(self._times_us, change.t_us)
        self._racing = None

    def restart(self) -> None:
        """Forget all changes: the present roster did not come about by them."""
        self._base, self._reached, self._racing = None, None, None
        self._changes, self._times_us = [], _NO_TIMES

    def may_own(
        self, consumer: int, hash_value: int, t_us: int, roster: Roster, ahead: Sequence[Change] = ()
    ) -> bool:
        """Tell if a consumer may own a hash at a time.

        ``roster``: the present one, after all changes that were noted; ``ahead``: changes that follow.
        """
        first, last = self._window(t_us)
        following = [change for change in ahead if change.t_us <= t_us + RACE_US]
        if last - first + len(following) > MOST_CHANGES:
            return True
        found = self._racing
        if found is None or (found.first, found.last) != (first, last) or following:
            racing = [*self._changes[first:last], *following]
            found = _Racing(first, last, list(_orders(self._until(first, roster).copy(), racing)))
            self._racing = None if following else found
        if hash_value not in found.owners:
            found.owners[hash_value] = frozenset(known.owner(hash_value) for known in found.rosters)
        return consumer in found.owners[hash_value]

    def forget(self, until_us: int) -> None:
        """Forget the changes that cannot race with a delivery from a time on."""
        first, _last = self._window(until_us)
        self._racing = self._reached = None
        if self._base is None or not first:
            return
        for change in self._changes[:first]:
            self._base.apply(change)
        self._changes, self._times_us = self._changes[first:], self._times_us[first:]
        if not self._changes:
            self._base = None

    def _window(self, t_us: int) -> tuple[int, int]:
        """Return the first change that may race with a delivery, and the one behind the last."""
        racing = np.flatnonzero(np.abs(self._times_us - t_us) <= RACE_US)
        if len(racing):
            return int(racing[0]), int(racing[-1]) + 1
        before = int(np.count_nonzero(self._times_us < t_us))
        return before, before

    def _until(self, first: int, roster: Roster) -> Roster:
        """Return the roster before the change number ``first``."""
        if self._base is None:
            return roster
        if self._reached is None or self._reached[0] > first:
            self._reached = 0, self._base.copy()
        reached, before = self._reached
        for change in self._changes[reached:first]:
            before.apply(change)
        self._reached = first, before
        return before


def _orders(before: Roster, racing: Sequence[Change]) -> Iterator[Roster]:
    """Yield the rosters that some of the changes make in some order; those of one consumer keep theirs."""
    yield before
    for at, change in enumerate(racing):
        if any(earlier.consumer == change.consumer for earlier in racing[:at]):
            continue
        after = before.copy()
        after.apply(change)
        yield from _orders(after, [*racing[:at], *racing[at + 1 :]])
