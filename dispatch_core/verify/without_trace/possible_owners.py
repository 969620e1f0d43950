"""Find who may get an entry while membership changes race with its delivery.

A log without a trace shows a join or a leave when it arrives. It takes effect up to ``races.RACE_US`` earlier or later, and
of several such changes the log does not show the order. So a delivery to another consumer than the rules say is explained
only if its consumer owns the hash (Failover: is active) after some of these changes, in some order.

The broker dispatches one round after the other, and its interceptor sees the deliveries in that order. So a change that an
earlier delivery shows to be in force stays in force.

>>> roster = ActiveConsumer(topic="t", partition_index=0, ring=False, exclusive=False)
>>> near = PossibleOwners()
>>> for seq, (t_us, name) in enumerate(((0, "c2"), (1_000_000, "c1"), (1_010_000, "c3"))):
...     join = Change(seq, t_us, Member(int(name[1]), name))
...     near.before(join, roster)
...     roster.apply(join)

At 1.02 s the joins of c1 and c3 race. c2 or c1 may be active, c3 cannot, whichever came first:

>>> [near.may_own(consumer, 0, Place(4, 1_020_000), roster, Deliveries.none()) for consumer in (1, 2, 3)]
[True, True, False]

Once c1 got an entry, c2 cannot be active any more:

>>> to_c1 = Deliveries(*(np.array([value]) for value in (5, 1_015_000, 1, 0)))
>>> [near.may_own(consumer, 0, Place(6, 1_020_000), roster, to_c1) for consumer in (1, 2, 3)]
[True, False, False]
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from dispatch_core.broker.selectors import failover
from dispatch_core.broker.selectors.selector import Announced, Selector
from dispatch_core.errors import SelectorRefusedError
from dispatch_core.verify.without_trace.races import RACE_US

Ints = npt.NDArray[np.int64]

_NOTHING: Final[Ints] = np.empty(0, np.int64)
#: More changes than these are not tried in every order: then any connected consumer may own any hash.
MOST_CHANGES: Final = 5
#: So many entries that were delivered before, from the first racing change on, are looked at.
MOST_DELIVERED: Final = 1000
#: More contradictions than there can be.
_IMPOSSIBLE: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Member:
    """Settings of a consumer when it joins."""

    number: int
    name: str
    priority_level: int = 0
    ranges: Announced = None
    mode: str = "AUTO_SPLIT"
    allow_out_of_order: bool = False


class Place(NamedTuple):
    """A line of the log: its number and its time."""

    seq: int
    t_us: int


class Deliveries(NamedTuple):
    """Delivered entries in the order of the log: their line, its time, the consumer, the sticky key hash.

    ``consumer``: the log's number, -1 = never added; ``hash_value``: -1 = the entry is not in the message log.
    """

    seq: Ints
    t_us: Ints
    consumer: Ints
    hash_value: Ints

    @classmethod
    def none(cls) -> Deliveries:
        """No delivery."""
        return cls(_NOTHING, _NOTHING, _NOTHING, _NOTHING)

    def followed_by(self, later: Deliveries) -> Deliveries:
        """Append later ones."""
        return Deliveries(*(np.concatenate(columns) for columns in zip(self, later, strict=True)))

    def between(self, after_seq: int, before_seq: int) -> Deliveries:
        """Select those of the lines between two lines, without these."""
        first, last = np.searchsorted(self.seq, (after_seq + 1, before_seq))
        return Deliveries(*(column[first:last] for column in self))


@dataclass(frozen=True, slots=True)
class Change:
    """A consumer joins (``member``), or the one with the number ``leaves`` leaves; ``seq``, ``t_us``: its line."""

    seq: int
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


class _Racing:
    """The rosters that racing changes may have made, each with the number of earlier deliveries that contradict it.

    A roster comes about from the one before (its parent) by one change. So what contradicts the parent contradicts it as
    well, as far as it was delivered before the change took effect.
    """

    def __init__(self, before: Roster, changes: Sequence[Change], settled_us: int) -> None:
        """``settled_us``: time of the latest change that does not race, with which earlier deliveries may race still."""
        self._changes_us = np.array([change.t_us for change in changes], np.int64)
        self._alone_from_us = settled_us + RACE_US + 1
        self._rosters: list[Roster] = []
        self._parents: list[int] = []
        made: list[tuple[int, ...]] = []
        for parent, numbers, roster in _orders(before, changes):
            self._parents.append(parent)
            self._rosters.append(roster)
            made.append(numbers)
        self._made = np.zeros((len(made), len(changes)), np.bool_)  # by roster, by change
        for at, numbers in enumerate(made):
            self._made[at, list(numbers)] = True
        self._contradicting = np.zeros(len(made), np.int64)  # by roster
        self._owners: dict[int, Ints] = {}  # by hash: the owner by roster, -1 = nobody
        self._taken_until = changes[0].seq if changes else 0  # the last line that was looked at
        self._left = MOST_DELIVERED if changes else 0

    def take(self, deliveries: Deliveries, before_seq: int) -> None:
        """Look at the deliveries that stand before a line and behind the first racing change."""
        if not self._left or before_seq <= self._taken_until:
            return
        earlier = deliveries.between(self._taken_until, before_seq)
        self._taken_until = before_seq - 1
        for t_us, consumer, hash_value in zip(*(column.tolist() for column in earlier[1:]), strict=True):
            if consumer < 0 or hash_value < 0 or t_us < self._alone_from_us:
                continue
            if not self._left:
                return
            self._left -= 1
            self._take(t_us, consumer, hash_value)

    def may_own(self, consumer: int, hash_value: int) -> bool:
        """Tell if some roster makes the consumer the owner and is contradicted no more than any other."""
        owned = self._contradicting[self._owners_of(hash_value) == consumer]
        return bool(len(owned)) and int(owned.min()) == int(self._contradicting.min())

    def _take(self, t_us: int, consumer: int, hash_value: int) -> None:
        made_too_early = self._made[:, self._changes_us > t_us + RACE_US].any(axis=1)
        missing = ~self._made[:, self._changes_us < t_us - RACE_US].all(axis=1)
        self._contradicting += self._owners_of(hash_value) != consumer
        self._contradicting[made_too_early | missing] = _IMPOSSIBLE
        # From now on any further change may take effect.
        for at, parent in enumerate(self._parents):
            self._contradicting[at] = min(self._contradicting[at], self._contradicting[parent])

    def _owners_of(self, hash_value: int) -> Ints:
        if hash_value not in self._owners:
            owners = [roster.owner(hash_value) for roster in self._rosters]
            self._owners[hash_value] = np.array(
                [-1 if owner is None else owner for owner in owners], np.int64
            )
        return self._owners[hash_value]


class PossibleOwners:
    """The latest membership changes of a dispatcher, and the roster before them."""

    def __init__(self) -> None:
        self._base: Roster | None = None  # before ``_changes``; None = there are none
        self._changes: list[Change] = []
        self._times_us: Ints = _NOTHING  # of ``_changes``
        self._reached: tuple[int, Roster] | None = None  # so many changes were applied to a copy of the base
        #: Of the last delivery: the first of ``_changes``, the one behind the last, how many follow, and what they may make.
        self._racing: tuple[int, int, int, _Racing] | None = None

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
        self._changes, self._times_us = [], _NOTHING

    @property
    def begins_seq(self) -> int | None:
        """The line of the first change that is remembered; ``None`` = there is none."""
        return self._changes[0].seq if self._changes else None

    def may_own(
        self,
        consumer: int,
        hash_value: int,
        place: Place,
        roster: Roster,
        deliveries: Deliveries,
        ahead: Sequence[Change] = (),
    ) -> bool:
        """Tell if a consumer may own a hash when an entry is delivered.

        Args:
            consumer: the log's number.
            hash_value: the sticky key hash.
            place: the line of the delivery; asked in the order of the log.
            roster: the present one, after all changes that were noted.
            deliveries: what was delivered from ``begins_seq`` on; those before the line are looked at.
            ahead: changes that follow those that were noted.
        """
        first, last = self._window(place.t_us)
        following = [change for change in ahead if change.t_us <= place.t_us + RACE_US]
        if last - first + len(following) > MOST_CHANGES:
            return True
        found = self._racing
        if found is None or found[:3] != (first, last, len(following)):
            settled_us = self._changes[first - 1].t_us if first else -(1 << 62)
            changes = [*self._changes[first:last], *following]
            racing = _Racing(self._until(first, roster).copy(), changes, settled_us)
            found = self._racing = first, last, len(following), racing
        found[3].take(deliveries, place.seq)
        return found[3].may_own(consumer, hash_value)

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


def _orders(before: Roster, changes: Sequence[Change]) -> Iterator[tuple[int, tuple[int, ...], Roster]]:
    """Yield the rosters that some of the changes make in some order; those of one consumer keep theirs.

    Each comes with the place of its parent in this order, which is its own for the first, and the numbers of its changes.
    """
    found: list[tuple[tuple[int, ...], Roster]] = [((), before)]
    yield 0, (), before
    for parent, (made, roster) in enumerate(found):
        left = [number for number in range(len(changes)) if number not in made]
        for at, number in enumerate(left):
            if any(changes[earlier].consumer == changes[number].consumer for earlier in left[:at]):
                continue
            after = roster.copy()
            after.apply(changes[number])
            found.append(((*made, number), after))
            yield parent, (*made, number), after
