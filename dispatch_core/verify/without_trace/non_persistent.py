"""Fold a log of a non-persistent topic through the rules of its dispatcher: who may get an entry, and what was dropped.

Every delivery is judged by ``broker.non_persistent``: the owner of the hash (Key_Shared) or the active consumer (Failover,
Exclusive), and its permits, which the log determines, as nothing but flow and deliveries moves them. Of Shared no delivery
is judged: whose turn it is depends on connections that were not writable, which no log of level *E* shows.

*Drops.* No line stands for an entry that the broker drops: it is an entry of the message log that nobody was sent. When it
was offered is known by its publish time and by its neighbours, because entries are offered in the order of their numbers. So
before every line that changes the state, the entries are *placed* that were published by then and stand before all that are
sent later; and before a delivery, all that stand before its entry. What the state says then is why an entry was dropped, if
it never is sent. An entry takes a while to the broker, and its publish time is that of the producer's clock. So one that
could have been taken is looked at again at each later state, until a later entry is sent, and a consumer counts as without
permits for ``RACE_US`` after it was.

Example: consumer 1 has one permit, 0:0 to 0:2 are published, 1 is sent 0:0, grants more and is sent 0:3. Before the grant
0:1 and 0:2 are placed: its permits are 0. Neither is sent later, so two entries were dropped for want of permits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.operations import ADDED, FLOW, REMOVED, SENT
from dispatch_core.broker import gates
from dispatch_core.broker.non_persistent import (
    NonPersistentDispatcher,
    NonPersistentKeyShared,
    NonPersistentShared,
    NonPersistentSingleActive,
    dispatcher,
)
from dispatch_core.broker.profiles import FailoverRule, Profile
from dispatch_core.broker.single_active_rules import ConsumerBusyError
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError
from dispatch_core.tables import SHARED_WITHOUT_TRACE
from dispatch_core.verify.without_trace import rounds
from dispatch_core.verify.without_trace.base import (
    NOT_STORED,
    Array,
    DispatcherFold,
    Ints,
    OperationBatch,
)
from dispatch_core.verify.without_trace.possible_owners import ActiveConsumer, Roster, SelectorRoster
from dispatch_core.verify.without_trace.races import RACE_US

#: An entry that is not sent within so long after its publish time was dropped, microseconds.
DROPPED_AFTER_US: Final = 1_000_000
_NEVER_US: Final = -(1 << 62)


class Place(IntEnum):
    """Explanation that the state gave of a drop when the entry was offered."""

    UNPLACED = 0
    PAST = 1  # published before the first consumer of this log joined: not for the subscription
    NO_CONSUMER = 2
    NO_PERMITS = 3
    NO_RULE = 4  # a consumer could take it, as far as the log shows


@dataclass(frozen=True, slots=True)
class Dropped:
    """Entries that were dropped for one reason.

    Attributes:
        place: ``NO_CONSUMER``, ``NO_PERMITS`` or ``NO_RULE``.
        entries: their ordinals, ascending.
        messages: how many messages they hold.
        consumers: by the log's numbers: who had no permits; empty where any consumer would have done.
    """

    place: Place
    entries: Ints
    messages: int
    consumers: tuple[int, ...]


def _lowest_sent_later(batch: OperationBatch, entries: int) -> Ints:
    """Return for each operation the lowest entry that a later one sends for the first time; ``entries`` = none does."""
    lengths = np.diff(batch.op_start)
    op = np.repeat(np.arange(len(lengths)), lengths)
    ordinals = batch.op_ordinals[int(batch.op_start[0]) : int(batch.op_start[-1])]
    of_sent = batch.op_code[op] == SENT
    sent, first = np.unique(ordinals[of_sent], return_index=True)
    lowest = np.full(len(lengths) + 1, entries, np.int64)
    np.minimum.at(lowest, op[of_sent][first], sent)
    return np.minimum.accumulate(lowest[::-1])[::-1][1:]


class NonPersistentFold(DispatcherFold):
    """Replay of a dispatcher of a non-persistent topic. It takes its log in one batch."""

    core: NonPersistentDispatcher  # type: ignore[assignment]
    reasons: ClassVar = {
        gates.NOT_CONNECTED: "the consumer is not connected",
        gates.OTHER_OWNER: "another consumer owns the key's hash, or is active",
        gates.NO_PERMITS: "the consumer has no permits left",
        rounds.NOT_JUDGED: "the log does not hold the entry",
    }

    def __init__(self, profile: Profile, topic: str, *, exclusive: bool) -> None:
        super().__init__(profile)
        self.core = dispatcher(profile, topic, exclusive=exclusive)
        if isinstance(self.core, NonPersistentShared):
            self.not_judged = f"{profile.name}: {SHARED_WITHOUT_TRACE}"
        self._nobody = ActiveConsumer(
            topic=topic,
            partition_index=0 if exclusive else profile.partition_index,
            ring=profile.failover is FailoverRule.RING,
            exclusive=exclusive,
        )
        self._hashes: Ints = np.empty(0, np.int64)
        self._messages: Ints = np.empty(0, np.int64)
        self._sent = np.empty(0, np.bool_)
        self._place = np.empty(0, np.int8)
        self._placed_us: Ints = np.empty(0, np.int64)
        self._waits_for: Ints = np.empty(
            0, np.int64
        )  # the consumer that had to take each entry; -1 = any, or nobody
        self._next = 0  # the first entry that is not placed
        self._open: Ints = np.empty(
            0, np.int64
        )  # entries that could have been taken, until a later one is sent
        self._joined = False  # somebody, by now
        self._short_until_us: dict[int, int] = {}  # by consumer: when it had no permits last
        self._all_short_until_us = _NEVER_US  # when nobody had any

    # --- what DispatcherFold asks for ------------------------------------------------------------------------------

    def _unknown(self) -> list[int]:
        return [rounds.NOT_JUDGED]

    def _undecided(self) -> list[int]:
        return []

    def _lacks_permits(self) -> int:
        return gates.NO_PERMITS

    def _not_the_owner(self) -> tuple[int, ...]:
        return gates.OTHER_OWNER, gates.NOT_CONNECTED

    def _roster(self) -> Roster:
        if isinstance(self.core, NonPersistentKeyShared):
            return SelectorRoster(self.core.selector)
        if isinstance(self.core, NonPersistentSingleActive):
            return replace(self._nobody, candidates=self.core.choice.candidates)
        return self._nobody  # of Shared nothing is judged

    def _hashes_of(self, entries: Array) -> Ints:
        return self._hashes[entries]

    def _advance(self, batch: OperationBatch, expected: Ints, reason: npt.NDArray[np.int8]) -> None:
        self._take_entries(batch)
        later = _lowest_sent_later(batch, len(self._sent))
        for at in range(len(batch.op_code)):
            code, t_us = int(batch.op_code[at]), int(batch.op_t_us[at])
            number = self._numbers.get(int(batch.op_consumer[at]), -1)
            if code == SENT:
                for place in range(int(batch.op_start[at]), int(batch.op_start[at + 1])):
                    entry = int(batch.op_ordinals[place])
                    self._place_before(entry, t_us)
                    expected[place], reason[place] = self._judge(entry, number)
                    self._note_sent(entry, number, t_us)
                continue
            if code not in (ADDED, FLOW, REMOVED):
                continue
            self._place_until(t_us, int(later[at]))
            if code == FLOW:
                self._note_shortage(number, t_us)
                self.core.flow(number, int(batch.op_value[at]))
                continue
            self._note_change(batch, at)
            self._membership(code, int(batch.op_consumer[at]))
            self.owned.reported(int(batch.op_seq[at]), t_us, self.core.owned_ranges())

    # --- deliveries ------------------------------------------------------------------------------------------------

    def _judge(self, entry: int, number: int) -> tuple[int, int]:
        """Return the consumer by the rule (-1 = nobody, or any) and the reason why ``number`` is not it; 0 = it is."""
        if self._hashes[entry] == NOT_STORED:
            return -1, rounds.NOT_JUDGED
        owner = self.core.owner(int(self._hashes[entry]))
        if number not in self.core.connected:
            return -1 if owner is None else owner, gates.NOT_CONNECTED
        if owner != number and not isinstance(self.core, NonPersistentShared):
            return -1 if owner is None else owner, gates.OTHER_OWNER
        if gates.lacks_permits(self.core.permits(number)):
            return -1, gates.NO_PERMITS
        return number, 0

    def _note_sent(self, entry: int, number: int, t_us: int) -> None:
        """Charge the consumer, whatever the rule says. A further delivery of an entry costs permits as well."""
        self._sent[entry] = True
        if self._next == entry:
            self._next = entry + 1
        if number in self.core.connected:
            self.core.sent(number, max(int(self._messages[entry]), 1))
            self._note_shortage(number, t_us)

    def _membership(self, code: int, consumer: int) -> None:
        number = self._numbers.get(consumer, -1)
        if code == ADDED and consumer in self._members and number not in self.core.connected:
            member = self._members[consumer]
            try:
                self.core.join(number, member.name, member.priority_level, member.ranges)
            except (ConsumerBusyError, IllegalTransitionError, SelectorRefusedError):
                return  # the broker refused it; the audit reports a consumer that is added twice
            self._joined = True
        elif code == REMOVED and number in self.core.connected:
            self.core.leave(number)

    # --- drops -----------------------------------------------------------------------------------------------------

    def _take_entries(self, batch: OperationBatch) -> None:
        new = len(batch.hashes)
        self._stored_us = np.concatenate([self._stored_us, batch.stored_us])
        self._hashes = np.concatenate([self._hashes, batch.hashes])
        self._messages = np.concatenate([self._messages, batch.num_messages])
        self._sent = np.concatenate([self._sent, np.zeros(new, np.bool_)])
        self._place = np.concatenate([self._place, np.zeros(new, np.int8)])
        self._placed_us = np.concatenate([self._placed_us, np.zeros(new, np.int64)])
        self._waits_for = np.concatenate([self._waits_for, np.full(new, -1, np.int64)])

    def _note_shortage(self, number: int, t_us: int) -> None:
        """Note that a consumer has no permits at a moment, and whether nobody has."""
        connected = self.core.connected
        if number in connected and gates.lacks_permits(self.core.permits(number)):
            self._short_until_us[number] = t_us
        if isinstance(self.core, NonPersistentShared) and self.core.total <= 0:
            self._all_short_until_us = t_us

    def _place_until(self, t_us: int, before: int) -> None:
        """Place the entries before ``before`` that were published by a moment, as far as all before them were."""
        self._look_again()
        late = np.flatnonzero(self._stored_us[self._next : before] > t_us)
        self._place_all(self._next + int(late[0]) if len(late) else before, t_us)

    def _place_before(self, entry: int, t_us: int) -> None:
        """Place the entries before one that is sent: they were offered before it."""
        self._look_again()
        self._place_all(entry, t_us)
        if len(self._open):
            self._open = self._open[self._open > entry]

    def _look_again(self) -> None:
        """Place anew what could have been taken at the states before, as far as this one explains it."""
        if len(self._open):
            self._place_now(self._open)
            self._open = self._open[self._place[self._open] == Place.NO_RULE]

    def _place_all(self, end: int, t_us: int) -> None:
        if end <= self._next:
            return
        entries = np.arange(self._next, end)
        self._next = end
        known = self._stored_us[entries] > 0
        self._placed_us[entries] = np.where(known, self._stored_us[entries], t_us)
        if not self._joined:
            self._place[entries] = Place.PAST
            return
        self._place_now(entries)
        self._open = np.append(self._open, entries[self._place[entries] == Place.NO_RULE])

    def _place_now(self, entries: Ints) -> None:
        """Place entries by what the state says of them now."""
        if not self.core.connected:
            self._place[entries] = Place.NO_CONSUMER
            return
        if isinstance(self.core, NonPersistentShared):
            lacks = self.core.total <= 0
            near = self._placed_us[entries] <= self._all_short_until_us + RACE_US
            self._place[entries] = np.where(near | lacks, Place.NO_PERMITS, Place.NO_RULE)
            return
        owners = self._owners(entries)
        self._waits_for[entries] = owners
        self._place[entries[owners < 0]] = Place.NO_CONSUMER
        for owner in np.unique(owners[owners >= 0]).tolist():
            of_owner = entries[owners == owner]
            lacks = gates.lacks_permits(self.core.permits(owner))
            near = self._placed_us[of_owner] <= self._short_until_us.get(owner, _NEVER_US) + RACE_US
            self._place[of_owner] = np.where(near | lacks, Place.NO_PERMITS, Place.NO_RULE)

    def _owners(self, entries: Ints) -> Ints:
        """Return the consumers that have to take entries, by the log's numbers; -1 = nobody."""
        if isinstance(self.core, NonPersistentKeyShared):
            return self.core.selector.select_array(self._hashes[entries])
        owner = self.core.owner(0)
        return np.full(len(entries), -1 if owner is None else owner, np.int64)

    def dropped(self, start_us: int, as_of_us: int, *, closed: bool) -> Iterator[Dropped]:
        """Yield what was dropped in an interval, by reason; call it behind the last batch.

        A drop belongs to the interval in which ``DROPPED_AFTER_US`` have passed since the entry was published.

        Args:
            start_us: start of the interval.
            as_of_us: the moment of the verdict.
            closed: no line follows: what was not sent by now is dropped, however young.
        """
        self._place_until(as_of_us, len(self._stored_us))
        if closed:
            self._place_all(len(self._stored_us), as_of_us)
        over_us = self._placed_us + DROPPED_AFTER_US
        over_us = np.minimum(over_us, as_of_us) if closed else over_us
        counted = ~self._sent & (self._hashes != NOT_STORED) & (over_us >= start_us) & (over_us <= as_of_us)
        for place in (Place.NO_CONSUMER, Place.NO_PERMITS, Place.NO_RULE):
            entries = np.flatnonzero(counted & (self._place == place))
            if len(entries):
                consumers = np.unique(self._waits_for[entries])
                yield Dropped(
                    place,
                    entries,
                    int(self._messages[entries].sum()),
                    tuple(consumers[consumers >= 0].tolist()) if place is Place.NO_PERMITS else (),
                )
