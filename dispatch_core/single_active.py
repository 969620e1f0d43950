"""Failover and Exclusive: one active consumer at a time (PersistentDispatcherSingleActiveConsumer).

Theory of operation
-------------------
Every membership change chooses the active consumer anew (``selectors.failover``). When the choice changes, a *hand-over*
begins: a waiting read is cancelled if it can be; then, after ``activeConsumerFailoverDelayTimeMillis`` (Failover only),
the cursor rewinds to mark-delete, everybody is told who is active, and reading goes on for the new one. A read that was
already running when the choice changed completes for the wrong consumer: its entries are dropped and the cursor rewinds
at once, whatever the delay. After a batch is written the next read goes to whoever is active *then*, delay or not.

Invariants: the active consumer is connected; at most one read is pending; entries go to the active consumer only.
The object knows no clock: the caller says when a delay has run out (``rewound``).
Source: AbstractDispatcherSingleActiveConsumer, PersistentDispatcherSingleActiveConsumer (§ hand-over; #26174).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch_core.errors import IllegalTransitionError
from dispatch_core.profiles import FailoverRule, Profile
from dispatch_core.selectors import failover


class RefusedError(Exception):
    """The broker refuses the subscribe; nothing has changed."""


@dataclass(frozen=True, slots=True)
class Pick:
    """Outcome of one choice. ``active`` None: nobody is connected. ``told``: who is told at once, and what."""

    active: int | None
    changed: bool
    order: tuple[int, ...]
    told: tuple[tuple[int, int], ...] = ()


class SingleActiveDispatcher:
    """One dispatcher from its first consumer on. Consumers are the log's numbers, entries ordinals of its messages."""

    def __init__(self, profile: Profile, topic: str, partition_index: int, *, exclusive: bool) -> None:
        self.profile = profile
        self.active: int | None = None
        self.permits: dict[int, int] = {}
        self.delay_running = False
        self.rewind_due = False
        self._topic = topic
        self._exclusive = exclusive
        self._partition_index = 0 if exclusive else partition_index
        self._delayed = not exclusive and profile.number("activeConsumerFailoverDelayTimeMillis") > 0
        self._members: list[failover.Candidate] = []
        self._read_batch_size = profile.number("dispatcherMaxReadBatchSize")
        self._read_for: int | None = None  # consumer of the pending read

    # --- membership ----------------------------------------------------------------------------------------------

    def join(self, consumer: int, name: str, priority_level: int = 0) -> Pick:
        """A consumer is added; the choice happens inside the add.

        Raises ``RefusedError`` for a second consumer of an Exclusive subscription.
        """
        if consumer in self.permits:
            raise IllegalTransitionError(
                f"consumer {consumer} was added twice", rule="one add per connection"
            )
        if self._exclusive and self._members:
            raise RefusedError(
                f"consumer {consumer}: the Exclusive subscription has a consumer (ConsumerBusyException)"
            )
        self.permits[consumer] = 0
        self._members.append(failover.Candidate(consumer, name, priority_level))
        return self._pick(joining=consumer)

    def leave(self, consumer: int) -> Pick:
        """A consumer is gone; the rest chooses anew."""
        if all(member.consumer != consumer for member in self._members):
            raise IllegalTransitionError(
                f"consumer {consumer} is not connected", rule="one removal per connection"
            )
        self._members = [member for member in self._members if member.consumer != consumer]
        return self._pick()

    def _pick(self, joining: int | None = None) -> Pick:
        if not self._members:
            changed, self.active = self.active is not None, None
            return Pick(None, changed, ())
        choice = failover.pick(
            self._members,
            partition_index=self._partition_index,
            topic=self._topic,
            ring=self.profile.failover is FailoverRule.RING,
        )
        rank = {consumer: at for at, consumer in enumerate(choice.order)}
        self._members.sort(key=lambda member: rank[member.consumer])
        if choice.active == self.active:
            told = () if joining is None else ((joining, choice.active),)
            return Pick(choice.active, False, choice.order, told)
        self.active = choice.active
        return Pick(choice.active, True, choice.order)

    # --- hand-over -----------------------------------------------------------------------------------------------

    def hand_over(self, *, cancelled: bool) -> None:
        """The choice changed. ``cancelled``: a waiting read was cancelled."""
        if cancelled:
            self._read_for = None
        if self._read_for is not None:
            return  # its completion will find the consumer changed
        if not self._delayed:
            self.rewind_due = True
        else:
            self.delay_running = True

    def rewound(self) -> tuple[tuple[int, int], ...]:
        """The cursor rewinds now: a delay has run out or a rewind was due. Returns who is told who is active."""
        told: tuple[tuple[int, int], ...] = ()
        if (self.delay_running or self.rewind_due) and self.active is not None:
            told = tuple((member.consumer, self.active) for member in self._members)
        self.delay_running = self.rewind_due = False
        return told

    # --- flow, reads, sends --------------------------------------------------------------------------------------

    def flow(self, consumer: int, count: int) -> None:
        """A client's permits are counted, active or not."""
        if consumer not in self.permits:
            raise IllegalTransitionError(
                f"consumer {consumer} was never added", rule="events come from known consumers"
            )
        self.permits[consumer] += count

    def attempt_read(self) -> int | None:
        """Entries of the read that is issued now for the active consumer, or None for no read."""
        if self.active is None or self._read_for is not None or self.permits[self.active] <= 0:
            return None
        self._read_for = self.active
        return max(min(self.permits[self.active], self._read_batch_size), 1)

    def reread(self) -> int | None:
        """The size the pending read would have now: permits counted since it was decided are in."""
        if self.active is None or self._read_for is None:
            return None
        return max(min(self.permits[self.active], self._read_batch_size), 1)

    def read_cancelled(self) -> None:
        """The waiting read was cancelled."""
        self._read_for = None

    def read_done(self) -> bool:
        """A read completes. Returns False when its consumer is not active any more: dropped, rewound at once."""
        reader, self._read_for = self._read_for, None
        if reader is not None and reader == self.active:
            return True
        self.rewind_due = True
        return False

    def send(self, num_messages: Sequence[int]) -> tuple[int, int]:
        """Hand a read result to the active consumer. Returns (consumer, permits before)."""
        if self.active is None:
            raise IllegalTransitionError("nobody is active", rule="entries go to the active consumer")
        before = self.permits[self.active]
        self.permits[self.active] -= sum(num_messages)
        return self.active, before

    def stats(self) -> dict[str, object]:
        """The dispatcher as ``pulsar-admin topics stats`` would show it, as far as this first cut knows it."""
        consumers = [
            {"consumer": m.consumer, "consumerName": m.name, "availablePermits": self.permits[m.consumer]}
            for m in self._members
        ]
        return {"activeConsumer": self.active, "consumers": consumers}
