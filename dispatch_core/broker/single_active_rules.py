"""The single decisions of Failover and Exclusive dispatch, each by its name, and what a decision says.

The choice of the active consumer is in ``selectors.failover``; here is what follows from it. Each function states one rule
of the broker and nothing else decides it, so that a rule can be read, tested and, in a test, replaced by a wrong one.
Source: PersistentDispatcherSingleActiveConsumer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil

from dispatch_core.errors import DispatchAuditError

Told = tuple[tuple[int, int], ...]  # (consumer who is told, consumer who is active)


class ConsumerBusyError(DispatchAuditError):
    """The broker refuses the subscribe (ConsumerBusyException); nothing has changed."""


@dataclass(frozen=True, slots=True)
class Pick:
    """Outcome of one choice. ``changed``: a hand-over begins. ``told``: who is told at once, and what."""

    active: int
    changed: bool
    order: tuple[int, ...]
    told: Told = ()


class HandOver(Enum):
    """What a hand-over does first."""

    WAITS_FOR_READ = "a running read will complete for the wrong consumer"
    AT_ONCE = "rewinds now"
    DELAY_STARTS = "the failover delay starts"
    DELAY_RUNS = "a delay is running already and will find the new consumer"


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What becomes of a completed read: ``entries`` to dispatch, or None: dropped.

    ``rewound``: dropped because the active consumer changed; the cursor rewound and ``told`` are told. Dropped without
    that: a completion that a redelivery request had disowned (#26174).
    """

    entries: tuple[int, ...] | None
    rewound: bool = False
    told: Told = ()


# --- decisions, by name ----------------------------------------------------------------------------------------------


def delay_holds_flow() -> bool:
    """While the failover delay runs, flow and redelivery requests trigger nothing (internalConsumerFlow)."""
    return True


def delay_holds_reads() -> bool:
    """The failover delay does not hold the read after a written batch (dispatchEntriesToConsumer)."""
    return False


def handed_over_elsewhere(reader: int, active: int | None) -> bool:
    """A read that completes for another than the active consumer is dropped (readEntriesComplete)."""
    return reader != active


def only_the_active_is_served(consumer: int, active: int | None) -> bool:
    """Flow, redelivery requests and reads count for the active consumer only."""
    return consumer == active


def disowned(epoch: int, newest_epoch: int, *, epochs: bool) -> bool:
    """A completion of a read that a redelivery request has replaced by a newer one is ignored (``epochs``: #26174)."""
    return epochs and epoch != newest_epoch


def read_size(permits: int, batch_size: int, *, writable: bool = True, per_entry: int = 0) -> int:
    """Entries that a read asks for (calculateToRead).

    ``per_entry``: average messages per entry with ``preciseDispatcherFlowControl``, 0 without. A connection that is not
    writable gets reads of one entry, which serve to learn of its recovery.

    >>> read_size(250, 100), read_size(30, 100), read_size(30, 100, writable=False)
    (100, 30, 1)
    >>> read_size(30, 100, per_entry=8)
    4
    """
    usable = permits if writable else 1
    wanted = ceil(usable / max(per_entry, 1)) if per_entry else usable
    return max(min(wanted, batch_size), 1)
