"""Acknowledgements of indexes of one batch by two connections that overlap: both may count the same messages.

A consumer whose redelivery request has sent a batch to another one may still acknowledge indexes of it. Such an ack lowers
the counter of the consumer that has the batch now, by what the cursor does not have as acknowledged yet; then it reaches
the cursor. So if two connections acknowledge indexes of a batch at one moment, neither has to see the other's, and indexes
that are in both count twice (Consumer.individualAckNormal, getAckedCountForBatchIndexLevelEnabled). In the plain order each
counts once. That they count twice is an open fact (``races``), until a shown counter or a decision tells.

The thread of such an ack lowers the counter some time behind its line. Until its connection goes on, a decision may come
before that, and allow the consumer less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dispatch_core.broker import cursor
from dispatch_core.broker.state import BLOCKED_ON_UNACKED, COUNTS_REMAINING, MAX_UNACKED_CONSUMER
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.races import Command, CountedTwice
from dispatch_core.verify.trace.redelivery_requests import RedeliveryRequestsDriver

#: Number of open facts: each is tried with each decision, until a line shows the counters.
_MAX_OPEN: Final = 8


@dataclass(frozen=True, slots=True)
class _IndexAck:
    """An ack that may not have reached the cursor: the indexes, as a bit set, that no earlier one acknowledges."""

    entry: int
    connection: int
    newly: int


@dataclass(frozen=True, slots=True)
class CountedLater:
    """The later part of an ack of indexes: it lowers the counter of the consumer that has the batch."""

    consumer: int
    messages: int


class IndexAcksDriver(RedeliveryRequestsDriver):
    """Keep open what overlapping acks of batch indexes count."""

    def __init__(self, entries: Entries, facts: TraceFacts, *, tracked: bool) -> None:
        super().__init__(entries, facts, tracked=tracked)
        self._index_acks: list[_IndexAck] = []
        self._unacked_before = 0  # unacknowledged indexes of the entry of the present ack, before it

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """See ``Driver``. What is pending on nobody any more counts no acks."""
        super()._change_ordinals(change)
        pending = [ack for ack in self._index_acks if self.core.holder(ack.entry) is not None]
        self._index_acks = [_IndexAck(change(ack.entry), ack.connection, ack.newly) for ack in pending]
        self._facts = [fact for fact in self._facts if self._is_pending(fact)]
        for fact in self._facts:
            if fact.counted_twice is not None:
                fact.counted_twice.entry = change(fact.counted_twice.entry)

    def _is_pending(self, fact: Command) -> bool:
        """Check whether a fact is about an entry that is still pending, or about no acks of indexes."""
        return fact.counted_twice is None or self.core.holder(fact.counted_twice.entry) is not None

    def _connection_goes_on(self, line: Line) -> None:
        """See ``RedeliveryRequestsDriver``: its acks have reached the cursor."""
        super()._connection_goes_on(line)
        self._reached_cursor(line)

    def _on_redeliver(self, line: Line) -> None:
        """See ``RedeliveryRequestsDriver``."""
        self._reached_cursor(line)
        super()._on_redeliver(line)

    def _reached_cursor(self, line: Line) -> None:
        if not self._index_acks:
            return
        self._index_acks = [ack for ack in self._index_acks if ack.connection != line.consumer]
        for fact in self._facts:
            if fact.counted_twice is not None and line.consumer is not None:
                fact.counted_twice.under_way.discard(line.consumer)

    def _acknowledge_indexes(self, command: Command) -> None:
        """See ``PendingAcksDriver``."""
        self._unacked_before = self.core.unacked_indexes(command.entry)
        super()._acknowledge_indexes(command)

    def _acknowledged_now(self, command: Command, holder: int | None, messages: int) -> None:
        """See ``PendingAcksDriver``."""
        super()._acknowledged_now(command, holder, messages)
        if not command.words or holder is None:
            return
        entry, acked = command.entry, ~cursor.ack_set_bits(command.words)
        for other in self._index_acks:
            twice = (other.newly & acked).bit_count()
            if other.entry == entry and other.connection != command.connection and twice:
                what = f"the ack of indexes of {self._entries.position(entry)}"
                fact = CountedTwice(entry, twice, {command.connection, other.connection})
                self._facts.append(Command(command.seq, holder, what, counted_twice=fact))
                known = [fact for fact in self._facts if fact.counted_twice is not None]
                self._facts = [fact for fact in self._facts if fact not in known[:-_MAX_OPEN]]
        if messages and self._bounded_by_counter(holder):
            self.core.count_unacked(holder, messages)
            what = f"ack of indexes of {self._entries.position(entry)}"
            later = Command(command.seq, command.connection, what, result=CountedLater(holder, messages))
            self.connection(command.connection).late.append(later)
        newly = self._unacked_before & acked
        if newly and messages:  # none if the broker does not acknowledge indexes
            self._index_acks.append(_IndexAck(entry, command.connection, newly))

    def _bounded_by_counter(self, consumer: int) -> bool:
        """Check whether a consumer, blocked or not, may be sent less while its counter is higher: it has a limit."""
        return (
            self.core.state.s.item(MAX_UNACKED_CONSUMER) > 0
            and not self.core.state.s.item(BLOCKED_ON_UNACKED)
            and consumer in self.core.connected()
        )

    def finish_command(self, command: Command) -> None:
        """See ``PendingAcksDriver``."""
        counted = command.result
        if not isinstance(counted, CountedLater):
            super().finish_command(command)
        elif counted.consumer in self.core.connected():
            self.core.count_unacked(counted.consumer, -counted.messages)

    def apply_fact(self, fact: Command) -> None:
        """See ``RacingDriver``."""
        super().apply_fact(fact)
        twice = fact.counted_twice
        if twice is not None and fact.connection in self.core.connected():
            self.core.count_twice(fact.connection, twice.entry, twice.messages)

    def _is_refuted(self, fact: Command) -> bool:
        """See ``RedeliveryRequestsDriver``."""
        twice = fact.counted_twice
        return super()._is_refuted(fact) or (twice is not None and not twice.under_way)

    def _adds(self, fact: Command) -> int:
        """See ``RedeliveryRequestsDriver``."""
        twice = fact.counted_twice
        if twice is None or self._is_over(fact.connection, twice):
            return super()._adds(fact)
        return super()._adds(fact) - twice.messages

    def _is_over(self, consumer: int, twice: CountedTwice) -> bool:
        """Check whether the counter is as in the plain order again: since #25592, once the pending ack has gone."""
        return bool(self.core.state.s[COUNTS_REMAINING]) and self.core.holder(twice.entry) != consumer
