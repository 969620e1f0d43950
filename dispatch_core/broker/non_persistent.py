"""Dispatchers of non-persistent topics: each published entry is sent at once or dropped.

Theory of operation
-------------------
A non-persistent topic stores nothing. The thread that takes a publish gives each subscription's dispatcher the entry, after
it has answered the producer (NonPersistentTopic.publishMessage). The dispatcher chooses a consumer. If that consumer has
permits and its connection is *writable* (its buffer is not full), the entry is sent; else it is gone. There is no read, no
replay set, no cursor and no redelivery. Acknowledgements and redelivery requests change nothing
(NonPersistentSubscription.acknowledgeMessage, NonPersistentDispatcher.redeliverUnacknowledgedMessages), and nobody is
blocked on unacknowledged messages: all consumers of such a topic are non-durable.

====================  =========================================================  ==========================================
type                  the consumer that is chosen                                 not sent, and counted as dropped
====================  =========================================================  ==========================================
Shared                the next one by round robin (``round_robin``) that has      always counted, also if nobody is connected
                      permits and is writable, if the total of permits is > 0
Key_Shared            the owner of the entry's hash (``selectors``)               counted, but for an entry without an owner
Failover, Exclusive   the active one (``selectors.failover``)                     always counted
====================  =========================================================  ==========================================

*Counted*: ``msgDropRate`` of the subscription's statistics, in messages. An entry costs as many permits as it has messages,
so one permit is enough for a batch, and permits may go below 0.

Shared asks the *total* of permits first. Both are lowered alike, so a consumer with -9 permits takes 9 from the total, and
entries are dropped although another consumer has permits. Its list is not sorted by priority level, see ``round_robin``.

Key_Shared has no rule of order: when a hash moves to another consumer, the next entry goes there at once. Its selectors are
those of the persistent dispatcher of the release that is not classic, whatever the settings of classic dispatchers say.

Failover takes a topic that is not partitioned for partition 0. A change of the active consumer takes effect at once, without
a delay, and is not notified.

What differs between releases, besides the selectors:

* a consumer that leaves others takes its permits from the total from #24885 on. Before it, permits below 0 stayed in the
  total until nobody was connected;
* the dispatcher takes an entry under its lock in Shared from 4.0.0 on, in Key_Shared, Failover and Exclusive between 4.0.4
  and 4.2.4. Before that, publishes of several producers may run side by side.

Invariants: an entry goes to a connected consumer that had permits; no entry goes to two; the sum of what is sent, counted
and not counted is what was published.

Source: NonPersistentDispatcherMultipleConsumers, NonPersistentStickyKeyDispatcherMultipleConsumers,
NonPersistentDispatcherSingleActiveConsumer, NonPersistentSubscription (3.0.0, 4.0.0, 4.0.4, 4.2.4).

Two consumers of a Shared subscription, with one permit and two. The fourth message finds no permits:

>>> from dispatch_core.broker import profiles
>>> shared = dispatcher(profiles.resolve("4.2.4", subscription_type="Shared", non_persistent=True))
>>> for consumer, permits in ((1, 1), (2, 2)):
...     shared.join(consumer, f"c{consumer}")
...     shared.flow(consumer, permits)
>>> [shared.publish().consumer for _ in range(4)]
[1, 2, 2, None]
>>> shared.publish(messages=3)
Outcome(consumer=None, reason=<DropReason.NO_PERMITS: 'no permits'>, counted=3)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import NamedTuple

from dispatch_core.broker.gates import lacks_permits
from dispatch_core.broker.ownership import WHOLE_TOPIC
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.round_robin import next_consumer
from dispatch_core.broker.selectors import factory
from dispatch_core.broker.selectors.selector import Announced
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.errors import IllegalTransitionError, UnsupportedRuleError


class DropReason(Enum):
    """The reason why an entry was sent to nobody."""

    NO_CONSUMER = "no consumer"  # nobody is connected, or nobody owns the hash
    NO_PERMITS = "no permits"
    TOTAL_USED_UP = (
        "total of permits used up"  # Shared: a consumer has permits, but others have less than none
    )
    NOT_WRITABLE = "connection not writable"
    NOT_FOUND = "not found in the list"  # Shared, with several priority levels: see ``round_robin``


class Outcome(NamedTuple):
    """Outcome of offering an entry to a subscription.

    Attributes:
        consumer: who is sent it; ``None`` = it is dropped.
        reason: why it is dropped; ``None`` = it is sent.
        counted: by how many messages the drop is counted.
    """

    consumer: int | None
    reason: DropReason | None = None
    counted: int = 0


class NonPersistentDispatcher(ABC):
    """A subscription of a non-persistent topic, from its first consumer on. Consumers are numbers."""

    @abstractmethod
    def join(self, consumer: int, name: str, priority_level: int = 0, ranges: Announced = None) -> None:
        """Add a consumer, without permits.

        ``ranges``: the hash ranges that a consumer of Key_Shared STICKY announces. Raises ``IllegalTransitionError`` for a
        second add, ``SelectorRefusedError`` or ``ConsumerBusyError`` where the broker refuses it; nothing has changed then.
        """

    @abstractmethod
    def leave(self, consumer: int) -> None:
        """Remove a consumer. Raises ``IllegalTransitionError`` for one that is not connected."""

    @abstractmethod
    def flow(self, consumer: int, permits: int) -> None:
        """Count a client's flow command; that of a consumer that is not connected is ignored."""

    @abstractmethod
    def set_writable(self, consumer: int, *, writable: bool) -> None:
        """Note whether a connected consumer's connection takes data. It does when it joins."""

    @abstractmethod
    def publish(self, sticky_hash: int = 0, messages: int = 1) -> Outcome:
        """Dispatch an entry of so many messages. ``sticky_hash`` counts in Key_Shared."""

    @abstractmethod
    def sent(self, consumer: int, messages: int) -> None:
        """Charge a consumer for an entry that it was sent, whatever the rule says."""

    @abstractmethod
    def owner(self, sticky_hash: int) -> int | None:
        """Return the only consumer that may get an entry of a hash; ``None`` = nobody, or any one (Shared)."""

    @abstractmethod
    def permits(self, consumer: int) -> int:
        """Return the permits of a connected consumer."""

    @property
    @abstractmethod
    def connected(self) -> tuple[int, ...]:
        """The connected consumers, in list order."""

    @abstractmethod
    def owned_ranges(self) -> tuple[tuple[int, int, int], ...]:
        """Return the ranges (start, end, owner) of hashes; empty for Shared."""

    def _refused_by(self, consumer: int, messages: int, *, writable: bool) -> Outcome | None:
        """Return the drop of an entry whose only possible consumer cannot take it; ``None`` = it can."""
        if lacks_permits(self.permits(consumer)):
            return Outcome(None, DropReason.NO_PERMITS, messages)
        return None if writable else Outcome(None, DropReason.NOT_WRITABLE, messages)


class _MultipleConsumers(NonPersistentDispatcher):
    """List of consumers with their permits, and the dispatcher's total (NonPersistentDispatcherMultipleConsumers)."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.total = 0  # totalAvailablePermits
        self._permits: dict[int, int] = {}  # in the order of joining
        self._levels: dict[int, int] = {}
        self._unwritable: set[int] = set()

    def join(self, consumer: int, name: str, priority_level: int = 0, ranges: Announced = None) -> None:
        """See ``NonPersistentDispatcher``. The list is not sorted."""
        if consumer in self._permits:
            raise IllegalTransitionError(
                f"consumer {consumer} was added twice", rule="one add per connection"
            )
        self._permits[consumer] = 0
        self._levels[consumer] = priority_level

    def leave(self, consumer: int) -> None:
        """See ``NonPersistentDispatcher``: permits below 0 may stay in the total (#24885)."""
        if consumer not in self._permits:
            raise IllegalTransitionError(
                f"consumer {consumer} is not connected", rule="one removal per connection"
            )
        left = self._permits.pop(consumer)
        self._unwritable.discard(consumer)
        if not self._permits:
            self.total = 0
        elif "non_persistent_removal_lowers_total" in self.profile.changes:
            self.total -= left

    def flow(self, consumer: int, permits: int) -> None:
        """See ``NonPersistentDispatcher``."""
        if consumer in self._permits:
            self._permits[consumer] += permits
            self.total += permits

    def set_writable(self, consumer: int, *, writable: bool) -> None:
        """See ``NonPersistentDispatcher``."""
        (self._unwritable.discard if writable else self._unwritable.add)(consumer)

    def sent(self, consumer: int, messages: int) -> None:
        """See ``NonPersistentDispatcher``."""
        self._permits[consumer] -= messages
        self.total -= messages

    def permits(self, consumer: int) -> int:
        """See ``NonPersistentDispatcher``."""
        return self._permits[consumer]

    @property
    def connected(self) -> tuple[int, ...]:
        """See ``NonPersistentDispatcher``."""
        return tuple(self._permits)


class NonPersistentShared(_MultipleConsumers):
    """Shared: round robin over the list in the order of joining."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self._round_robin_index = 0  # currentConsumerRoundRobinIndex

    def publish(self, sticky_hash: int = 0, messages: int = 1) -> Outcome:
        """See ``NonPersistentDispatcher``. Raises ``EndlessSearchError`` where the broker hangs."""
        if self.total <= 0:
            return Outcome(None, self._reason_without_total(), messages)
        consumers = self.connected
        levels = [self._levels[consumer] for consumer in consumers]
        place = next_consumer(levels, lambda at: self._is_available(consumers[at]), self._round_robin_index)
        if place is None:
            return Outcome(None, self._reason_of_nobody(), messages)
        self._round_robin_index = place + 1
        self.sent(consumers[place], messages)
        return Outcome(consumers[place])

    def owner(self, sticky_hash: int) -> int | None:
        """See ``NonPersistentDispatcher``."""
        return None

    def owned_ranges(self) -> tuple[tuple[int, int, int], ...]:
        """See ``NonPersistentDispatcher``."""
        return ()

    def _is_available(self, consumer: int) -> bool:
        return not lacks_permits(self._permits[consumer]) and consumer not in self._unwritable

    def _reason_without_total(self) -> DropReason:
        if not self._permits:
            return DropReason.NO_CONSUMER
        none_has = all(lacks_permits(permits) for permits in self._permits.values())
        return DropReason.NO_PERMITS if none_has else DropReason.TOTAL_USED_UP

    def _reason_of_nobody(self) -> DropReason:
        if not self._permits:
            return DropReason.NO_CONSUMER
        if any(self._is_available(consumer) for consumer in self._permits):
            return DropReason.NOT_FOUND
        none_has = all(lacks_permits(permits) for permits in self._permits.values())
        return DropReason.NO_PERMITS if none_has else DropReason.NOT_WRITABLE


class NonPersistentKeyShared(_MultipleConsumers):
    """Key_Shared: the owner of the hash, without a rule of order (NonPersistentStickyKeyDispatcherMultipleConsumers)."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.selector = factory.build(profile)

    def join(self, consumer: int, name: str, priority_level: int = 0, ranges: Announced = None) -> None:
        """See ``NonPersistentDispatcher``."""
        if consumer not in self._permits:
            self.selector.add(consumer, name, ranges)
        super().join(consumer, name, priority_level, ranges)

    def leave(self, consumer: int) -> None:
        """See ``NonPersistentDispatcher``."""
        super().leave(consumer)
        self.selector.remove(consumer)

    def publish(self, sticky_hash: int = 0, messages: int = 1) -> Outcome:
        """See ``NonPersistentDispatcher``: an entry without an owner is dropped without being counted."""
        consumer = self.owner(sticky_hash)
        if consumer is None:
            return Outcome(None, DropReason.NO_CONSUMER)
        refused = self._refused_by(consumer, messages, writable=consumer not in self._unwritable)
        if refused is not None:
            return refused
        self.sent(consumer, messages)
        return Outcome(consumer)

    def owner(self, sticky_hash: int) -> int | None:
        """See ``NonPersistentDispatcher``."""
        return self.selector.select(sticky_hash)

    def owned_ranges(self) -> tuple[tuple[int, int, int], ...]:
        """See ``NonPersistentDispatcher``."""
        return tuple(self.selector.assignments().ranges)


class NonPersistentSingleActive(NonPersistentDispatcher):
    """Failover and Exclusive: the active consumer (NonPersistentDispatcherSingleActiveConsumer).

    Membership and choice are those of the persistent dispatcher (AbstractDispatcherSingleActiveConsumer).
    """

    def __init__(self, profile: Profile, topic: str, *, exclusive: bool) -> None:
        self.profile = profile
        #: Only its members, their permits and the choice of the active one are used.
        self.choice = SingleActiveDispatcher(profile, topic, profile.partition_index, exclusive=exclusive)
        self._unwritable: set[int] = set()

    @property
    def active(self) -> int | None:
        """The active consumer; ``None`` = nobody is connected."""
        return self.choice.active

    def join(self, consumer: int, name: str, priority_level: int = 0, ranges: Announced = None) -> None:
        """See ``NonPersistentDispatcher``: ranges of an Exclusive consumer are not looked at."""
        self.choice.join(consumer, name, priority_level)

    def leave(self, consumer: int) -> None:
        """See ``NonPersistentDispatcher``."""
        self.choice.leave(consumer)
        self._unwritable.discard(consumer)

    def flow(self, consumer: int, permits: int) -> None:
        """See ``NonPersistentDispatcher``."""
        if self.choice.is_connected(consumer):
            self.choice.flow(consumer, permits)

    def set_writable(self, consumer: int, *, writable: bool) -> None:
        """See ``NonPersistentDispatcher``."""
        (self._unwritable.discard if writable else self._unwritable.add)(consumer)

    def publish(self, sticky_hash: int = 0, messages: int = 1) -> Outcome:
        """See ``NonPersistentDispatcher``."""
        consumer = self.active
        if consumer is None:
            return Outcome(None, DropReason.NO_CONSUMER, messages)
        refused = self._refused_by(consumer, messages, writable=consumer not in self._unwritable)
        if refused is not None:
            return refused
        self.sent(consumer, messages)
        return Outcome(consumer)

    def sent(self, consumer: int, messages: int) -> None:
        """See ``NonPersistentDispatcher``."""
        self.choice.permits[consumer] -= messages

    def owner(self, sticky_hash: int) -> int | None:
        """See ``NonPersistentDispatcher``: the active consumer."""
        return self.active

    def permits(self, consumer: int) -> int:
        """See ``NonPersistentDispatcher``."""
        return self.choice.permits[consumer]

    @property
    def connected(self) -> tuple[int, ...]:
        """See ``NonPersistentDispatcher``."""
        return self.choice.members

    def owned_ranges(self) -> tuple[tuple[int, int, int], ...]:
        """See ``NonPersistentDispatcher``."""
        return () if self.active is None else ((*WHOLE_TOPIC, self.active),)


def dispatcher(profile: Profile, topic: str = "", *, exclusive: bool = False) -> NonPersistentDispatcher:
    """Make the dispatcher of a subscription.

    Args:
        profile: resolved with ``non_persistent``.
        topic: full name; the ring of Failover asks for it.
        exclusive: of the types with one active consumer: Exclusive, not Failover.

    Raises ``UnsupportedRuleError`` for a profile of a persistent topic.
    """
    match profile.dispatcher:
        case Dispatcher.NON_PERSISTENT_SHARED:
            return NonPersistentShared(profile)
        case Dispatcher.NON_PERSISTENT_KEY_SHARED:
            return NonPersistentKeyShared(profile)
        case Dispatcher.NON_PERSISTENT_SINGLE_ACTIVE:
            return NonPersistentSingleActive(profile, topic, exclusive=exclusive)
    raise UnsupportedRuleError(f"{profile.name}: not a dispatcher of a non-persistent topic")
