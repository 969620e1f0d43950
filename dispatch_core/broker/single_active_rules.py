"""Rules of Failover and Exclusive dispatch, one function each, and the outcomes of decisions.

The choice of the active consumer is in ``selectors.failover``; the rules here apply after it. Each function states one rule
of the broker, and nothing else decides it: a rule can be read, tested and, in a test, replaced by a wrong one.

Source: PersistentDispatcherSingleActiveConsumer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil

from dispatch_core.errors import DispatchAuditError

Notified = tuple[tuple[int, int], ...]  # (consumer that is notified, consumer that is active)


class ConsumerBusyError(DispatchAuditError):
    """The broker refuses the subscribe (ConsumerBusyException); nothing has changed."""


@dataclass(frozen=True, slots=True)
class Pick:
    """Outcome of a choice. ``changed``: an active-consumer change begins. ``notified``: notices that are sent at once."""

    active: int
    changed: bool
    order: tuple[int, ...]
    notified: Notified = ()


class ActiveChange(Enum):
    """The first step of an active-consumer change."""

    WAITS_FOR_READ = "a running read will complete for the wrong consumer"
    AT_ONCE = "rewinds now"
    DELAY_STARTS = "the failover delay starts"
    DELAY_RUNS = "a delay is running already and will find the new consumer"


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


def delay_holds_flow() -> bool:
    """True: while the failover delay runs, flow and redelivery requests trigger nothing (internalConsumerFlow)."""
    return True


def delay_holds_reads() -> bool:
    """False: the failover delay does not hold the read after a written batch (dispatchEntriesToConsumer)."""
    return False


def is_read_for_another(reader: int, active: int | None) -> bool:
    """True if a read completes for another than the active consumer: it is dropped (readEntriesComplete).

    >>> is_read_for_another(1, 1), is_read_for_another(1, 2)
    (False, True)
    """
    return reader != active


def only_the_active_is_served(consumer: int, active: int | None) -> bool:
    """True if a consumer's flow, redelivery requests and reads count: those of the active consumer only.

    Source: consumerFlow, redeliverUnacknowledgedMessages, readMoreEntries.

    >>> only_the_active_is_served(1, 1), only_the_active_is_served(2, 1)
    (True, False)
    """
    return consumer == active


def disowned(epoch: int, newest_epoch: int, *, epochs: bool) -> bool:
    """True if a redelivery request has replaced a read by a newer one: its completion is ignored (``epochs``: #26174).

    >>> disowned(1, 2, epochs=True), disowned(1, 2, epochs=False), disowned(2, 2, epochs=True)
    (True, False, False)
    """
    return epochs and epoch != newest_epoch


def read_size(permits: int, batch_size: int, *, writable: bool = True, per_entry: int = 0) -> int:
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
