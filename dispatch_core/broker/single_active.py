"""Failover and Exclusive: one active consumer at a time (PersistentDispatcherSingleActiveConsumer).

Theory of operation
-------------------
Every membership change that leaves a consumer connected chooses the active consumer again (``selectors.failover``). When
the choice changes, an *active-consumer change* begins:

1. a waiting read is cancelled, if that is still possible;
2. after ``activeConsumerFailoverDelayTimeMillis`` (Failover only) the cursor rewinds to mark-delete;
3. all consumers are notified who is active, and reading goes on for the new one.

So all entries that were sent and not acknowledged are sent again, in order. A read that was already running when the choice
changed completes for the wrong consumer: its entries are dropped and the cursor rewinds at once, whatever the delay.

While the delay runs, flow and redelivery requests trigger nothing. The delay does *not* hold the other path to a read: after
a batch is written, the next read is for the consumer that is active *then*, from a cursor that is not rewound yet.

Invariants: the active consumer is connected; at most one read is pending; entries go to the active consumer only.
The object knows no clock and no thread: the caller says when a delay has run out (``delay_over``), whether a cancel
succeeded, and when a read is attempted.

Entries are ordinals of the message log, consumers its numbers.
Source: AbstractDispatcherSingleActiveConsumer, PersistentDispatcherSingleActiveConsumer; PIP-392 (#23584), #26174.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.broker import cursor, cursor_moves, hashing
from dispatch_core.broker import single_active_rules as rules
from dispatch_core.broker.permits import average_after, messages_per_entry
from dispatch_core.broker.profiles import FailoverRule, Profile
from dispatch_core.broker.selectors import factory, failover
from dispatch_core.broker.selectors.selector import Selector
from dispatch_core.broker.single_active_rules import (
    ActiveChange,
    ConsumerBusyError,
    Notified,
    Pick,
    ReadResult,
    check_consumer_limit,
)
from dispatch_core.broker.state import MARK_DELETE, NOBODY, READ_POSITION, State, extended, new_state
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError

#: Reads that may wait for entries at a cursor at the same time (asyncReadEntriesOrWait).
MOST_WAITING: Final = 1


#: How well a result fits a read in flight, best first.
_START_FITS, _START_UNKNOWN, _ANY_START = range(3)


@dataclass(frozen=True, slots=True)
class _Read:
    consumer: int  # NOBODY = not known, of one that a log shows later
    epoch: int
    size: int
    start: int | None  # read position when it was issued; None = not known
    waits: bool = False  # at the end of the log, for entries to come


@dataclass(slots=True)
class ReadsToCome:
    """The reads in flight at a moment, oldest first, then those that are issued later, until the former have ended."""

    _reads: list[_Read]
    _read_of: Callable[..., int]
    _epoch: int  # of the next read
    left: int = field(init=False)  # reads of the first moment that have not ended

    def __post_init__(self) -> None:
        self.left = len(self._reads)

    def issued(self, size: int, start: int | None) -> None:
        """Take a later read; ``start``: the read position, ``None`` = not known."""
        self._reads.append(_Read(NOBODY, self._epoch, size, start))

    def ends_first(self, entries: Sequence[int], reader: int | None, *, dispatched: bool) -> bool:
        """Take a result (``SingleActiveDispatcher.read_of_result``); True if it ends a read of the first moment."""
        if not self._reads:
            return False
        read = self._read_of(self._reads, entries, reader, dispatched=dispatched)
        del self._reads[read]
        is_first = read < self.left
        self.left -= is_first
        return is_first


# --- the dispatcher --------------------------------------------------------------------------------------------------


class SingleActiveDispatcher:
    """A Failover or Exclusive dispatcher, from its first consumer on.

    ``num_messages``: messages per entry of the log. ``hashes``: sticky key hash per entry, needed only where an Exclusive
    consumer subscribes to key hash ranges.
    """

    def __init__(
        self,
        profile: Profile,
        topic: str,
        partition_index: int,
        *,
        exclusive: bool,
        num_messages: npt.NDArray[np.int64] | None = None,
        hashes: Sequence[int] | None = None,
    ) -> None:
        sizes = np.zeros(0, np.int64) if num_messages is None else num_messages
        self.profile = profile
        self.active: int | None = None
        self.permits: dict[int, int] = {}  # of every consumer that ever was added
        self.delay_running = False  # readOnActiveConsumerTask
        self.pending = False  # havePendingRead
        #: Only the cursor's part of it is used: mark-delete, read position, acknowledged entries.
        self.state: State = new_state(
            np.zeros(len(sizes), np.int32), sizes.astype(np.int32), n_hashes=1, n_consumers=1
        )
        self._sizes: list[int] = sizes.tolist()
        self._hashes = hashes
        self._topic = topic
        self._exclusive = exclusive
        self._partition_index = 0 if exclusive else partition_index
        self._delayed = not exclusive and profile.number("activeConsumerFailoverDelayTimeMillis") > 0
        self._limit = profile.number("maxConsumersPerSubscription")
        self._batch_size = profile.number("dispatcherMaxReadBatchSize")
        self._precise = bool(profile.settings.get("preciseDispatcherFlowControl", False))
        self._batch_index_acks = bool(
            profile.settings.get(
                "acknowledgmentAtBatchIndexLevelEnabled", "batch_index_ack_default" in profile.changes
            )
        )
        self._epochs = "failover_read_epoch" in profile.changes
        self._waiting_read_gets_entries = "waiting_read_gets_entries" in profile.changes
        self._members: list[failover.Candidate] = []
        self._selector: Selector | None = None  # of an Exclusive consumer with key hash ranges
        self._average: dict[int, float] = {}
        self._unwritable: set[int] = set()
        self._reads: deque[_Read] = (
            deque()
        )  # in flight, oldest first; more than one after a redelivery request
        self._epoch = 0
        self._closing = False  # closeFuture: from then on nobody is chosen
        self._position_sure = True  # nothing in flight may move the read position any more
        self._reads_overlap = False  # two reads were in flight at the same time, since none was
        self._unacked_indexes: dict[
            int, int
        ] = {}  # entry -> bits of its batch indexes that are not acknowledged

    # --- membership ----------------------------------------------------------------------------------------------

    def join(
        self,
        consumer: int,
        name: str,
        priority_level: int = 0,
        ranges: Sequence[tuple[int, int]] = (),
    ) -> Pick:
        """Add a consumer, and choose the active one again.

        ``ranges``: key hash ranges of an Exclusive consumer (closed); entries outside are read and skipped. Ranges that
        the selector refuses hold no entry: the broker does not look at its answer.
        Raises ``ConsumerBusyError`` for a second consumer of an Exclusive subscription and one above
        ``maxConsumersPerSubscription`` of a Failover one, ``IllegalTransitionError`` for a second add.
        """
        if consumer in self.permits:
            raise IllegalTransitionError(
                f"consumer {consumer} was added twice", rule="one add per connection"
            )
        if self._exclusive and self._members:
            raise ConsumerBusyError(
                f"consumer {consumer}: consumer {self.active} holds the Exclusive subscription; it has to leave first"
            )
        if not self._exclusive:
            check_consumer_limit(consumer, len(self._members), self._limit)
        self.permits[consumer] = 0
        if self._exclusive:
            self._selector = factory.sticky_ranges(self.profile).new() if ranges else None
            if self._selector is not None:
                with suppress(SelectorRefusedError):
                    self._selector.add(consumer, name, ranges)
        self._members.append(failover.Candidate(consumer, name, priority_level))
        return self._pick(joining=consumer)

    def leave(self, consumer: int, *, by_reset: bool = False) -> Pick | None:
        """Remove a consumer, and choose the active one again; None: it was the last, or a reset disconnects it.

        Then a pending read is to be cancelled, as in an active-consumer change: see ``cancel_read``. ``by_reset``: the next
        consumer that joins or leaves has the active one chosen, see ``cursor_moves.chooses_active_consumer``.
        """
        if all(member.consumer != consumer for member in self._members):
            raise IllegalTransitionError(
                f"consumer {consumer} is not connected", rule="one removal per connection"
            )
        self._members = [member for member in self._members if member.consumer != consumer]
        self._unwritable.discard(consumer)
        if not self._members:
            self.active = None
            return None
        chooses = cursor_moves.chooses_active_consumer(by_reset) and not self._closing
        return self._pick() if chooses else None

    def disconnect_all(self) -> None:
        """Begin to disconnect all consumers: when they leave, none of those that are still connected becomes active.

        The topic is unloaded or the subscription deleted (disconnectAllConsumers). Each removal, and then the disconnecting
        itself, cancels a pending read.
        """
        self._closing = True

    def _pick(self, joining: int | None = None) -> Pick:
        choice = failover.pick(
            self._members,
            partition_index=self._partition_index,
            topic=self._topic,
            ring=self.profile.failover is FailoverRule.RING,
        )
        rank = {consumer: at for at, consumer in enumerate(choice.order)}
        self._members.sort(key=lambda member: rank[member.consumer])
        if choice.active == self.active:
            notified = () if joining is None else ((joining, choice.active),)
            return Pick(choice.active, False, choice.order, notified)
        self.active = choice.active
        return Pick(choice.active, True, choice.order)

    @property
    def candidates(self) -> tuple[failover.Candidate, ...]:
        """The connected consumers in the dispatcher's order, with what the choice among them depends on."""
        return tuple(self._members)

    @property
    def members(self) -> tuple[int, ...]:
        """The connected consumers in the dispatcher's order."""
        return tuple(member.consumer for member in self._members)

    def is_connected(self, consumer: int) -> bool:
        """True if the consumer is in the dispatcher's list."""
        return any(member.consumer == consumer for member in self._members)

    # --- active-consumer change ----------------------------------------------------------------------------------

    def cancel_read(self, *, cancelled: bool) -> None:
        """Cancel the pending read. ``cancelled``: it was still waiting, and is gone; else it will complete."""
        if not self.pending:
            raise IllegalTransitionError(
                "a read is cancelled though none is pending", rule="only a pending read is cancelled"
            )
        if cancelled:
            self._forget_waiting_read()
            self.pending = False

    def _forget_waiting_read(self) -> None:
        """Forget the read that was cancelled: it waited. Where none is known to wait, it is the newest one."""
        del self._reads[next((at for at, read in enumerate(self._reads) if read.waits), len(self._reads) - 1)]

    def begin_active_change(self) -> tuple[ActiveChange, Notified]:
        """Begin an active-consumer change, after trying to cancel a pending read; returns the notices sent at once."""
        step = ActiveChange(rules.step_of_change(self.pending, self._delayed, self.delay_running))
        if step is ActiveChange.DELAY_STARTS:
            self.delay_running = True
        return step, self._rewind_and_notify() if step is ActiveChange.AT_ONCE else ()

    def delay_over(self) -> Notified:
        """Rewind the cursor when the failover delay has run out; returns the notices of the active consumer."""
        if not self.delay_running:
            raise IllegalTransitionError(
                "the cursor rewinds and no active-consumer change is under way", rule="a rewind has a cause"
            )
        self.delay_running = False
        return self._rewind_and_notify()

    def delay_never_began(self) -> None:
        """Take back a delay: the change found the task of an earlier delay not yet finished, which had rewound already."""
        self.delay_running = False

    def notices_of_change(self, active: int | None, connected: Sequence[int]) -> Notified:
        """Return the notices of a change to ``active``: one for each connected consumer of a Failover subscription."""
        if active is None or self._exclusive:
            return ()
        return tuple((consumer, active) for consumer in connected)

    def _rewind_and_notify(self) -> Notified:
        self._rewind()
        return self.notices_of_change(self.active, self.members)

    def _rewind(self) -> None:
        cursor.rewind(self.state)
        self._position_sure = not self._reads

    # --- operations on the cursor --------------------------------------------------------------------------------

    def move_forward(self, target: int) -> None:
        """Move the cursor forward: every entry up to ``target`` is deleted."""
        cursor_moves.move_forward(self.state, target)
        for entry in [known for known in self._unacked_indexes if known <= self.state.s[MARK_DELETE]]:
            del self._unacked_indexes[entry]

    def reset(self, entry: int) -> None:
        """Reset the cursor to ``entry``; the active consumer was disconnected before, the others stay."""
        cursor_moves.reset(self.state, entry)
        self._unacked_indexes.clear()
        self._position_sure = not self._reads

    # --- permits, reads, sends -----------------------------------------------------------------------------------

    def flow(self, consumer: int, count: int) -> None:
        """Count a client's permits, active or not."""
        if consumer not in self.permits:
            raise IllegalTransitionError(
                f"consumer {consumer} was never added", rule="events come from known consumers"
            )
        self.permits[consumer] += count

    def flow_reads(self, consumer: int) -> bool:
        """True if a flow command that reaches the dispatcher makes it attempt a read."""
        return not self.pending and rules.is_heard(consumer, self.active, self.delay_running)

    def set_writable(self, consumer: int, *, writable: bool) -> None:
        """Note whether the consumer's connection takes data, or its buffer is full."""
        if not self.is_connected(consumer):
            raise IllegalTransitionError(f"consumer {consumer} is not connected", rule="a connection exists")
        (self._unwritable.discard if writable else self._unwritable.add)(consumer)

    def would_read(self, consumer: int | None, permits: int | None = None) -> int | None:
        """Return the number of entries that a read attempt for ``consumer`` would ask for now; None for no read.

        ``permits``: counted instead of those that the consumer has.
        """
        if consumer is None:
            return None
        permits = self.permits.get(consumer, 0) if permits is None else permits
        if not rules.may_read(consumer, self.active, self.pending, self.delay_running, permits):
            return None
        per_entry = self.messages_per_entry(consumer)
        return rules.read_size(
            permits,
            self._batch_size,
            consumer not in self._unwritable,
            max(per_entry, 1) if self._precise else 0,
        )

    def attempt_read(
        self, consumer: int | None, at_most: int | None = None, start: int | None = None
    ) -> int | None:
        """Issue a read for ``consumer`` if the rules allow it now; returns its size, or None for no read.

        ``at_most``: entries that a dispatch rate allows; ``None`` = there is no rate. ``start``: the read position, from
        one who knows it where reads that overlap leave it open.
        """
        size = self.would_read(consumer)
        if size is None or consumer is None:
            return None
        size = size if at_most is None else min(size, at_most)
        self._epoch += 1
        start = int(self.state.s[READ_POSITION]) if self._position_sure else start
        self._reads_overlap = bool(self._reads)
        self._reads.append(_Read(consumer, self._epoch, size, start))
        self.pending = True
        return size

    def fail_read(self) -> None:
        """Drop the newest read: it failed, because an older one waits at the end of the log.

        A cursor lets one read wait (ConcurrentWaitCallbackException). The dispatcher has no pending read then, and issues
        none by itself (readEntriesFailed).
        """
        if not self.pending or len(self._reads) < MOST_WAITING + 1:
            raise IllegalTransitionError(
                "a read fails though no other waits", rule="a read fails only where another one waits"
            )
        self._reads.pop()
        self.pending = False

    @property
    def reads_in_flight(self) -> int:
        """The number of reads in flight. More than one after a redelivery request, which disowns a running read."""
        return len(self._reads)

    def size_of_read(self, read: int = 0) -> int:
        """Return the entries that a read in flight asked for, the oldest is 0; 0 = there is no such read."""
        return self._reads[read].size if read < len(self._reads) else 0

    def reader_of(self, read: int = 0) -> int | None:
        """Return the consumer for whom a read in flight was issued, the oldest is 0."""
        return self._reads[read].consumer if read < len(self._reads) else None

    def read_of_result(self, entries: Sequence[int], reader: int | None, *, dispatched: bool) -> int:
        """Return which read in flight a result is of, the oldest is 0.

        Reads that overlap complete in any order, and one that waits at the end of the log starts from where the read
        position is when entries come. So it is a read for ``reader`` (``None``: not known) that asked for so many entries:
        one that can have this result from where it started, else one whose start is not known, else any. Of these it is
        the one that asked for the fewest entries, because another would rather have more; then the oldest. A result of
        nothing is of the read that started last: entries lie behind the start of an earlier one. ``dispatched``: a round
        follows, so it is rather none that a redelivery request has disowned.
        """
        return self._read_of(self._reads, entries, reader, dispatched=dispatched)

    def _read_of(
        self, reads: Sequence[_Read], entries: Sequence[int], reader: int | None, *, dispatched: bool
    ) -> int:
        possible = [
            at
            for at, read in enumerate(reads)
            if (reader is None or read.consumer in (NOBODY, reader)) and len(entries) <= read.size
        ]
        return min(possible, key=lambda at: self._unlike(reads[at], entries, dispatched), default=0)

    def reads_to_come(self) -> ReadsToCome:
        """Return a copy of the reads in flight, on which what a log shows later can be tried."""
        return ReadsToCome([*self._reads], self._read_of, self._epoch + 1)

    def _unlike(self, read: _Read, entries: Sequence[int], dispatched: bool) -> tuple[int, bool, int]:
        """Rank how little a result looks like that of a read; see ``read_of_result``.

        A disowned read that others have passed need not wait for entries: it may just take long.
        """
        disowned = rules.disowned(read.epoch, self._epoch, self._epochs)
        is_dropped = dispatched and disowned
        if not entries:
            return _ANY_START, is_dropped, 0 if read.start is None else -read.start
        if read.waits and not disowned:
            return _ANY_START, is_dropped, read.size
        if read.start is None or entries[0] < 0:
            return _START_UNKNOWN, is_dropped, read.size
        first_left = cursor.first_left(self.state, read.start)
        fits = read.start <= entries[0] <= first_left
        return _START_FITS if fits else _ANY_START, is_dropped, read.size

    def read_done(
        self, entries: Sequence[int], maybe_acked: frozenset[int] = frozenset(), read: int = 0
    ) -> ReadResult:
        """Complete a read in flight with ``entries``; ``read``: which, the oldest is 0 (see ``read_of_result``).

        ``maybe_acked``: acknowledged entries that the read may have met before they were acknowledged. Raises
        ``IllegalTransitionError`` for a result that no read of this cursor can have.
        """
        if not self._reads:
            raise IllegalTransitionError(
                "a read completes that was never issued", rule="one result per issued read"
            )
        done = self._reads[read]
        self._check_result(done, entries, maybe_acked)
        for earlier in range(read):
            self._reads[earlier] = replace(self._reads[earlier], waits=True)
        del self._reads[read]
        if rules.disowned(done.epoch, self._epoch, self._epochs):
            self._position_sure = False
            return ReadResult(None)
        self.pending = False
        stored = [entry for entry in entries if entry >= 0]
        start = done.start if self._waiting_read_gets_entries and done.start is not None else -1
        cursor.moved_by_result(self.state, stored[-1] if stored else -1, len(entries), done.size, start)
        if stored:
            self._position_sure = not self._reads and not self._reads_overlap
        if rules.is_read_for_another(done.consumer, self.active):
            return ReadResult(None, True, self._rewind_and_notify())
        return ReadResult(tuple(entry for entry in entries if self._in_ranges(entry)))

    def _check_result(self, read: _Read, entries: Sequence[int], maybe_acked: frozenset[int]) -> None:
        if len(entries) > read.size:
            raise IllegalTransitionError(
                f"a read of at most {read.size} entries returns {len(entries)}", rule="a read keeps its size"
            )
        if read.start is None or read.waits or not self._position_sure or -1 in entries:
            return
        deleted, expected = self.state.deleted, read.start
        for entry in entries:
            if entry < expected and not (entry in maybe_acked or deleted[entry]):
                raise IllegalTransitionError(
                    f"a read from entry {read.start} on returns entry {entry} after {expected - 1}",
                    rule="a normal read goes forward from the read position",
                )
            if deleted[entry] and entry not in maybe_acked:
                raise IllegalTransitionError(
                    f"a read returns entry {entry}, which is acknowledged",
                    rule="a read skips what is acknowledged",
                )
            if entry > expected and not deleted[expected:entry].all():
                skipped = expected + int(np.argmin(deleted[expected:entry]))
                raise IllegalTransitionError(
                    f"a read returns entry {entry} and skips {skipped}, which is not acknowledged",
                    rule="a normal read skips only what is acknowledged",
                )
            expected = max(expected, entry + 1)

    def _in_ranges(self, entry: int) -> bool:
        """True if an entry's key lies in the key hash ranges of the Exclusive consumer (isKeyHashRangeFiltered)."""
        if self._selector is None or self._hashes is None or entry < 0:
            return True
        return self._selector.select(self._hashes[entry]) == self.active

    def send(self, entries: Sequence[int]) -> tuple[int, int]:
        """Send the entries of a read result to the active consumer; returns (consumer, permits before)."""
        if self.active is None:
            raise IllegalTransitionError("nobody is active", rule="entries go to the active consumer")
        consumer, before = self.active, self.permits[self.active]
        self.charge(consumer, entries)
        return consumer, before

    def charge(self, consumer: int, entries: Sequence[int]) -> None:
        """Charge a consumer for what it was sent: its permits and its average batch; -1 = an entry that is not stored."""
        stored = [entry for entry in entries if entry >= 0]
        total = sum(self._sizes[entry] for entry in stored)
        if total:
            acked = sum(self.acked_indexes(entry) for entry in stored)
            average = self._average.get(consumer, 0.0)
            self._average[consumer] = average_after(average, total, len(stored))
            self.permits[consumer] += acked - total

    def charge_less(self, consumer: int, permits: int) -> None:
        """Give a consumer permits back: acks of batch indexes and a send came in another order than applied."""
        self.permits[consumer] += permits

    def redeliver(self, consumer: int, *, cancelled: bool) -> bool:
        """Handle a redelivery request: the whole subscription rewinds, whatever positions it names.

        Returns whether it does: only requests of the active consumer count, and none while the failover delay runs.
        ``cancelled``: a waiting read was cancelled. A running one is disowned; see ``ReadResult``.
        """
        if not self.hears_redelivery(consumer):
            return False
        if cancelled and self._reads:
            self._forget_waiting_read()
        self.pending = False
        self._rewind()
        return True

    def hears_redelivery(self, consumer: int) -> bool:
        """True if a redelivery request of this consumer would take effect now."""
        return rules.is_heard(consumer, self.active, self.delay_running)

    # --- the window of the log -----------------------------------------------------------------------------------

    def extend(self, drop: int, num_messages: npt.NDArray[np.int64], hashes: Sequence[int] = ()) -> None:
        """Move the window along the log: forget its first ``drop`` entries, all acknowledged, and append the next ones.

        ``hashes``: sticky key hashes of the new entries, if the dispatcher has them (``is_hashed``).
        """
        if drop > self.droppable():
            raise IllegalTransitionError(
                f"{drop} entries were to be forgotten, not all of them are acknowledged",
                rule="only what is acknowledged is forgotten",
            )
        new = num_messages.astype(np.int32)
        self.state = extended(self.state, drop, np.zeros(len(new), np.int32), new, 1, 1)
        self._sizes = self._sizes[drop:] + num_messages.tolist()
        if self._hashes is not None:
            self._hashes = [*self._hashes[drop:], *hashes]
        self._unacked_indexes = {entry - drop: left for entry, left in self._unacked_indexes.items()}
        self._reads = deque(
            read if read.start is None else replace(read, start=max(read.start - drop, 0))
            for read in self._reads
        )

    def droppable(self) -> int:
        """Count the entries at the front that can be forgotten: those up to mark-delete."""
        return int(self.state.s[MARK_DELETE]) + 1

    # --- acknowledgements ----------------------------------------------------------------------------------------

    def acknowledge(self, entry: int, ack_set: Sequence[int] = ()) -> None:
        """Apply an individual ack of any consumer: the broker does not check that it is active.

        ``ack_set``: 64-bit words whose 1 bits are the batch indexes that stay unacknowledged; empty = the whole entry.
        Without ``acknowledgmentAtBatchIndexLevelEnabled`` such an ack changes nothing.
        """
        self._check_stored(entry)
        if ack_set:
            if not self._batch_index_acks:
                return
            left = cursor.indexes_left(self.unacked_indexes(entry), ack_set)
            if left:
                self._unacked_indexes[entry] = left
                return
        self._unacked_indexes.pop(entry, None)
        cursor.acknowledge(self.state, entry)

    def acknowledge_up_to(self, entry: int, ack_set: Sequence[int] = ()) -> None:
        """Apply a cumulative ack of everything up to ``entry``; with ``ack_set`` that entry only in part."""
        self._check_stored(entry)
        last = entry - 1 if ack_set and cursor.ack_set_bits(ack_set) else entry
        for earlier in [known for known in self._unacked_indexes if known <= last]:
            del self._unacked_indexes[earlier]
        cursor.acknowledge_up_to(self.state, last)
        if last < entry and self._batch_index_acks and not self.state.deleted[entry]:
            left = cursor.indexes_left_by_cumulative(self.unacked_indexes(entry), ack_set)
            self._unacked_indexes[entry] = left

    def _check_stored(self, entry: int) -> None:
        if not 0 <= entry < len(self._sizes):
            raise IllegalTransitionError(
                "an ack of a position that was never stored", rule="what is acknowledged was stored"
            )

    def unacked_indexes(self, entry: int) -> int:
        """Return the batch indexes of an entry that the cursor does not have as acknowledged, as a bit set."""
        if self.state.deleted[entry]:
            return 0
        return self._unacked_indexes.get(entry, (1 << self._sizes[entry]) - 1)

    def set_unacked_indexes(self, entry: int, left: int) -> None:
        """Set the batch indexes that are not acknowledged, as a bit set: acks came in another order than applied."""
        if not left:
            self.acknowledge(entry)
            return
        self._unacked_indexes[entry] = left
        self.state.deleted[entry] = 0
        self.state.s[MARK_DELETE] = min(self.state.s[MARK_DELETE], entry - 1)

    def acked_indexes(self, entry: int) -> int:
        """Count the batch indexes of an entry that the cursor has as acknowledged; 0 if it has the whole entry."""
        if entry not in self._unacked_indexes:
            return 0
        return self._sizes[entry] - self._unacked_indexes[entry].bit_count()

    # --- queries -------------------------------------------------------------------------------------------------

    def messages_of(self, entry: int) -> int:
        """Return the number of messages of an entry."""
        return self._sizes[entry]

    @property
    def is_hashed(self) -> bool:
        """True if sticky key hashes of the entries are needed: a consumer subscribed to key hash ranges."""
        return self._hashes is not None

    @property
    def is_exclusive(self) -> bool:
        """True for Exclusive, False for Failover."""
        return self._exclusive

    def name_of(self, consumer: int) -> str:
        """Return the name a connected consumer subscribed with."""
        for member in self._members:
            if member.consumer == consumer:
                return member.name
        raise IllegalTransitionError(f"consumer {consumer} is not connected", rule="a connection exists")

    def messages_per_entry(self, consumer: int) -> int:
        """Return ``avgMessagesPerEntry``: the smoothed average, rounded half up; 0 before the first delivery."""
        return messages_per_entry(self._average.get(consumer, 0.0))


def sticky_hashes(messages: pa.Table, profile: Profile) -> list[int]:
    """Return the sticky key hash of every row of a ``MESSAGES`` table, as the selector of key hash ranges makes it."""
    space = hashing.RANGE_4X if profile.fallback_key else hashing.MURMUR_31
    hashes: list[int] = space.sticky_array(
        hashing.entry_h31(messages, fallback=profile.fallback_key)
    ).tolist()
    return hashes
