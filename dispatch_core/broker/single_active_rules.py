"""Rules of Failover and Exclusive dispatch, one function each, and the outcomes of decisions.

The choice of the active consumer is in ``selectors.failover``; the rules here apply after it. Each function states one rule
of the broker, and nothing else decides it: a rule can be read, tested and, in a test, replaced by a wrong one.

Source: PersistentDispatcherSingleActiveConsumer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import ceil

from dispatch_core.arrays.jit import compiled_with_caller
from dispatch_core.broker.gates import lacks_permits
from dispatch_core.errors import DispatchAuditError

Notified = tuple[tuple[int, int], ...]  # (consumer that is notified, consumer that is active)


class ConsumerBusyError(DispatchAuditError):
    """The broker refuses the subscribe (ConsumerBusyException); nothing has changed."""


def check_consumer_limit(consumer: int, connected: int, limit: int) -> None:
    """Raise ``ConsumerBusyError`` for a consumer above ``maxConsumersPerSubscription``; 0 or less = no limit.

    Source: isConsumersExceededOnSubscription, which every dispatcher asks but the one of an Exclusive subscription.
    """
    if 0 < limit <= connected:
        raise ConsumerBusyError(
            f"consumer {consumer}: the subscription has {limit} consumers (maxConsumersPerSubscription)"
        )


@dataclass(frozen=True, slots=True)
class Pick:
    """Outcome of a choice. ``changed``: an active-consumer change begins. ``notified``: notices that are sent at once."""

    active: int
    changed: bool
    order: tuple[int, ...]
    notified: Notified = ()


class ActiveChange(IntEnum):
    """The first step of an active-consumer change."""

    WAITS_FOR_READ = 0  # a running read will complete for the wrong consumer
    AT_ONCE = 1  # rewinds now
    DELAY_STARTS = 2
    DELAY_RUNS = 3  # a delay is running already and will find the new consumer


_WAITS_FOR_READ, _AT_ONCE, _DELAY_STARTS, _DELAY_RUNS = map(int, ActiveChange)


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Outcome of a completed read: ``entries`` to dispatch, or None if it is dropped.

    ``rewound``: dropped because the active consumer changed; the cursor rewound, and ``notified`` are the notices sent.
    Dropped without a rewind: a redelivery request has replaced the read (#26174).
    """

    entries: tuple[int, ...] | None
    rewound: bool = False
    notified: Notified = ()


# --- decisions, by name ----------------------------------------------------------------------------------------------


@compiled_with_caller
def delay_holds_flow() -> bool:
    """True: while the failover delay runs, flow and redelivery requests trigger nothing (internalConsumerFlow)."""
    return True


@compiled_with_caller
def delay_holds_reads() -> bool:
    """False: the failover delay does not hold the read after a written batch (dispatchEntriesToConsumer)."""
    return False


@compiled_with_caller
def is_read_for_another(reader: int, active: int | None) -> bool:
    """True if a read completes for another than the active consumer: it is dropped (readEntriesComplete).

    >>> is_read_for_another(1, 1), is_read_for_another(1, 2)
    (False, True)
    """
    return reader != active


@compiled_with_caller
def only_the_active_is_served(consumer: int, active: int | None) -> bool:
    """True if a consumer's flow, redelivery requests and reads count: those of the active consumer only.

    Source: consumerFlow, redeliverUnacknowledgedMessages, readMoreEntries.

    >>> only_the_active_is_served(1, 1), only_the_active_is_served(2, 1)
    (True, False)
    """
    return consumer == active


@compiled_with_caller
def is_heard(consumer: int, active: int | None, delay_runs: bool) -> bool:
    """True if a redelivery request of a consumer takes effect now, and its flow command makes a read if none is pending."""
    return only_the_active_is_served(consumer, active) and not (delay_runs and delay_holds_flow())


@compiled_with_caller
def may_read(consumer: int, active: int | None, pending: bool, delay_runs: bool, permits: int) -> bool:
    """True if a read attempt for a consumer issues a read (readMoreEntries).

    >>> may_read(1, 1, False, False, 5), may_read(1, 1, True, False, 5), may_read(1, 1, False, False, 0)
    (True, False, False)
    """
    if pending or not only_the_active_is_served(consumer, active) or (delay_runs and delay_holds_reads()):
        return False
    return not lacks_permits(permits)


@compiled_with_caller
def step_of_change(pending: bool, delayed: bool, delay_runs: bool) -> int:
    """Return the first step of an active-consumer change, an ``ActiveChange``; ``delayed``: the setting has a delay.

    >>> step_of_change(True, False, False) == ActiveChange.WAITS_FOR_READ
    True
    """
    if pending:
        return _WAITS_FOR_READ
    if not delayed:
        return _AT_ONCE
    return _DELAY_RUNS if delay_runs else _DELAY_STARTS


@compiled_with_caller
def disowned(epoch: int, newest_epoch: int, epochs: bool) -> bool:
    """True if a redelivery request has replaced a read by a newer one: its completion is ignored (``epochs``: #26174).

    >>> disowned(1, 2, True), disowned(1, 2, False), disowned(2, 2, True)
    (True, False, False)
    """
    return epochs and epoch != newest_epoch


@compiled_with_caller
def read_size(permits: int, batch_size: int, writable: bool = True, per_entry: int = 0) -> int:
    """Return the number of entries that a read asks for (calculateToRead).

    ``per_entry``: average messages per entry with ``preciseDispatcherFlowControl``, 0 without. A connection that is not
    writable gets reads of one entry, by which the broker notices that it has recovered.

    >>> read_size(250, 100), read_size(30, 100), read_size(30, 100, writable=False)
    (100, 30, 1)
    >>> read_size(30, 100, per_entry=8)
    4
    """
    usable = permits if writable else 1
    wanted = ceil(usable / max(per_entry, 1)) if per_entry else usable
    return max(min(wanted, batch_size), 1)
