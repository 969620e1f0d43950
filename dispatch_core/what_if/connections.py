"""Connections of consumers, and those that a broker refuses.

An Exclusive subscription takes one consumer at a time, any other ``maxConsumersPerSubscription``, and STICKY no ranges that
overlap. A log may have a ``consumer_added`` line of a connection that the broker then refused: it never was a consumer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.selectors import factory
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.single_active_rules import ConsumerBusyError, check_consumer_limit
from dispatch_core.errors import SelectorRefusedError


@dataclass(frozen=True, slots=True)
class Join:
    """A connection that was made. ``number``: the log's. ``ranges``: those it announced (STICKY).

    ``like``: the connection whose answers it gives; ``None`` = it answers as recorded.
    """

    at_us: int
    number: int
    name: str
    consumer_id: int
    address: str | None
    priority_level: int
    ranges: tuple[tuple[int, int], ...]
    like: int | None = None


def refused(
    profile: Profile, topic: str, subscription_type: str, changes: Iterable[Join | int]
) -> frozenset[int]:
    """Return the numbers of the connections that these rules refuse.

    ``changes``: joins, and numbers of connections that leave, in their order. A number that is not connected changes
    nothing.
    """
    if profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
        dispatcher = SingleActiveDispatcher(
            profile, topic, profile.partition_index, exclusive=subscription_type == "Exclusive"
        )
        return _refused_by_dispatcher(dispatcher, changes)
    limit = profile.number("maxConsumersPerSubscription")
    sticky = profile.key_shared_mode == "STICKY" and not profile.is_shared
    if limit <= 0 and not sticky:
        return frozenset()
    selector = factory.build(profile) if sticky else None
    found, connected = set(), set()
    for change in changes:
        if isinstance(change, int):
            if selector is not None:
                selector.remove(change)
            connected.discard(change)
            continue
        try:
            check_consumer_limit(change.number, len(connected), limit)
            if selector is not None:
                selector.add(change.number, change.name, list(change.ranges) or None)
            connected.add(change.number)
        except (ConsumerBusyError, SelectorRefusedError):
            found.add(change.number)
    return frozenset(found)


def _refused_by_dispatcher(
    dispatcher: SingleActiveDispatcher, changes: Iterable[Join | int]
) -> frozenset[int]:
    found: set[int] = set()
    connected: set[int] = set()
    for change in changes:
        if isinstance(change, int):
            if change in connected:
                connected.remove(change)
                dispatcher.leave(change)
            continue
        try:
            dispatcher.join(change.number, change.name, change.priority_level, change.ranges)
            connected.add(change.number)
        except ConsumerBusyError:
            found.add(change.number)
    return frozenset(found)
