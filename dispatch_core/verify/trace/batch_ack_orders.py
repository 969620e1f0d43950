"""Acknowledgements of one batch that overlap: what is left of the batch depends on their order.

Acks of batch indexes add up, in any order. A cumulative ack of a part of a batch replaces what was known of it instead, if
it goes further (``broker.cursor.indexes_left_by_cumulative``). The thread of a connection may be held up between the line of
its ack and the cursor, for a while (``HELD_UP_US``). So an ack takes effect at any moment up to the next command of its
connection, and several values may be left. The plain order is that of the lines; a shown mark-delete says whether the batch
is acknowledged.

A batch of two. Consumer 1 acknowledges the first message cumulatively, consumer 2 the second one:

>>> orders = BatchAckOrders()
>>> orders.arrived(BatchAck(10, 1, t_us=100, words=[0b10], cumulative=True), entry=4, left=0b11)
>>> orders.arrived(BatchAck(11, 2, t_us=110, words=[0b01], cumulative=False), entry=4, left=0b10)
>>> orders.over(1)
>>> orders.over(2)

In the plain order nothing is left. If the cumulative one came last, it has replaced the other; the second message is left:

>>> orders.settle(4, t_us=200, acknowledged=False)
(10, 2)

A read that was issued before the acks may still send the batch. What is left then decides what the send is charged. A
cumulative ack of the whole batch moves mark-delete, but the cursor keeps the indexes until mark-delete is stored:

>>> orders.arrived(BatchAck(20, 2, t_us=300, words=[], cumulative=True), entry=4, left=0b10)
>>> orders.forget_up_to(4)
>>> orders.left_in_send(4)
{2: 20}

The dispatcher looks for acknowledged indexes between the read result and the line of the round. An ack that comes between
them may be later than this look:

>>> orders.read([5])
>>> orders.arrived(BatchAck(30, 1, t_us=400, words=[0b10], cumulative=False), entry=5, left=0b11)
>>> orders.over(1)
>>> orders.left_in_send(5)
{3: 30}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dispatch_core.broker.cursor import indexes_left, indexes_left_by_cumulative
from dispatch_core.verify.trace.earlier_positions import HELD_UP_US

#: Number of batches that cumulative acks have passed whose indexes may still be kept.
_MOST_KEPT: Final = 8
#: Number of acks of a batch that may be on their way at once; of more, the earliest has reached the cursor.
_MOST_ON_THEIR_WAY: Final = 6


class BatchAck(NamedTuple):
    """The line of an acknowledgement of a batch; ``words``: its ack set, empty = the whole batch."""

    seq: int
    connection: int
    t_us: int
    words: Sequence[int]
    cumulative: bool

    def applied(self, left: int) -> int:
        """Return the indexes that it leaves, as bits. A batch of which nothing is left stays acknowledged."""
        if not self.words or not left:
            return 0
        return (indexes_left_by_cumulative if self.cumulative else indexes_left)(left, self.words)


class _State(NamedTuple):
    """One possibility: acks that have not reached the cursor, by their lines, and the indexes left, as bits."""

    waiting: frozenset[int]
    left: int


@dataclass(slots=True)
class _Batch:
    entry: int
    acks: dict[int, BatchAck]  # those on their way, by their lines
    states: set[_State]
    plain: int  # the indexes left in the plain order
    overlapping: int | None = None  # seq of the last cumulative one that overlaps another

    def arrived(self, ack: BatchAck) -> None:
        self.acks[ack.seq] = ack
        self.plain = ack.applied(self.plain)
        self.states = {_State(state.waiting | {ack.seq}, state.left) for state in self.states}
        if len(self.acks) > _MOST_ON_THEIR_WAY:
            self.over(min(self.acks))
        cumulative = [other.seq for other in self.acks.values() if other.cumulative]
        if cumulative and len(self.acks) > 1:
            self.overlapping = cumulative[-1]

    def as_of(self, t_us: int) -> None:
        for seq in [ack.seq for ack in self.acks.values() if ack.t_us + HELD_UP_US < t_us]:
            self.over(seq)

    def reachable(self) -> set[_State]:
        """Return the states that the acks on their way may have led to."""
        found, new = set(self.states), list(self.states)
        while new:
            state = new.pop()
            for seq in state.waiting:
                following = _State(state.waiting - {seq}, self.acks[seq].applied(state.left))
                if following not in found:
                    found.add(following)
                    new.append(following)
        return found

    def over(self, seq: int) -> None:
        self.states = {state for state in self.reachable() if seq not in state.waiting}
        del self.acks[seq]

    def is_settled(self) -> bool:
        return not self.acks and len(self.states) == 1


class BatchAckOrders:
    """Batches with acknowledgements that may have reached the cursor in several orders."""

    def __init__(self) -> None:
        self._batches: dict[int, _Batch] = {}
        self._of: dict[
            int, list[tuple[_Batch, int]]
        ] = {}  # connection → lines of its acks that may be on their way
        self._passed = -1  # mark-delete has passed all up to this entry
        self._kept: dict[int, tuple[int, int]] = {}  # entry → see ``passed``: line of the ack, indexes left
        # Entry of the last read result → indexes left before each ack since then, as bits, with its line.
        self._since_read: dict[int, dict[int, int]] = {}
        # Connection → entry → indexes left before its last ack, of indexes, with its line; until the connection goes on.
        self._before_ack: dict[int, dict[int, tuple[int, int]]] = {}

    def __contains__(self, entry: int) -> bool:
        """Check whether several orders are open for an entry."""
        return entry in self._batches or entry in self._kept

    def arrived(self, ack: BatchAck, entry: int, left: int) -> None:
        """Take an acknowledgement; ``left``: the indexes left in the plain order before it, 0 = all are acknowledged."""
        if entry in self._since_read:
            self._since_read[entry][left] = ack.seq
        if ack.words and not ack.cumulative:
            self._before_ack.setdefault(ack.connection, {}).setdefault(entry, (left, ack.seq))
        if ack.cumulative and not ack.words and left:
            self.passed(ack.seq, entry, left)
        batch = self._batches.get(entry)
        if batch is None:
            if not left:
                return
            batch = self._batches[entry] = _Batch(entry, {}, {_State(frozenset(), left)}, left)
        batch.as_of(ack.t_us)
        batch.arrived(ack)
        self._of.setdefault(ack.connection, []).append((batch, ack.seq))

    def passed(self, seq: int, entry: int, left: int) -> None:
        """Take a cumulative ack at line ``seq`` up to a batch of which only the indexes ``left`` were unacknowledged.

        It is the last entry that the ack passes: indexes of earlier ones are forgotten at once, those of this one when
        mark-delete is stored (ManagedCursorImpl.asyncMarkDelete, internalMarkDelete), at most once a second.
        """
        self._kept[entry] = seq, left
        while len(self._kept) > _MOST_KEPT:
            del self._kept[min(self._kept)]

    def read(self, entries: Iterable[int]) -> None:
        """Take a read result. Acks that are on their way then may come behind the look at its entries."""
        self._since_read = {entry: {} for entry in entries}
        for before_ack in self._before_ack.values():
            for entry, (left, seq) in before_ack.items():
                if entry in self._since_read:
                    self._since_read[entry][left] = seq

    def left_in_send(self, entry: int) -> dict[int, int]:
        """Return what may be unacknowledged of an entry when it is sent, other than in the plain order.

        The indexes, as bits, each with the line of an ack. 0 = the entry is acknowledged whole: then the cursor knows no
        indexes of it, and all of it is charged. The dispatcher looks for them between the read result and the line of the
        round (PersistentDispatcherSingleActiveConsumer.internalReadEntriesComplete, filterEntriesForConsumer).
        """
        found = dict(self._since_read.get(entry, ()))
        batch = self._batches.get(entry)
        if batch is not None and batch.acks:
            found |= {state.left: max(batch.acks) for state in batch.reachable() if state.left != batch.plain}
        if entry in self._kept:
            seq, left = self._kept[entry]
            found.setdefault(left, seq)
        return found

    def over(self, connection: int) -> None:
        """Take the next command of a connection, or its end: its acknowledgements have reached the cursor."""
        self._before_ack.pop(connection, None)
        for batch, seq in self._of.pop(connection, ()):
            if seq in batch.acks:
                batch.over(seq)
            if batch.is_settled() and self._batches.get(batch.entry) is batch:
                del self._batches[batch.entry]

    def settle(self, entry: int, t_us: int, *, acknowledged: bool) -> tuple[int, int] | None:
        """Take what the broker shows of an entry: whether it is acknowledged.

        Returns the line of the cumulative ack whose moment explains it, and the indexes that are left then, as bits.
        ``None`` = no order explains it.
        """
        batch = self._batches.get(entry)
        if batch is None or batch.overlapping is None:
            return None
        batch.as_of(t_us)
        states = {state for state in batch.reachable() if (not state.left) == acknowledged}
        if not states:
            return None
        batch.states = states
        return batch.overlapping, min((len(state.waiting), state.left) for state in states)[1]

    def forget_up_to(self, entry: int) -> None:
        """Forget the entries that mark-delete has passed."""
        for passed in range(self._passed + 1, entry + 1):
            self._batches.pop(passed, None)
        self._passed = entry

    def drop(self, count: int) -> None:
        """Lower the ordinals of entries; the first ``count`` entries are dropped."""
        for batch in self._batches.values():
            batch.entry -= count
        self._batches = {batch.entry: batch for batch in self._batches.values() if batch.entry >= 0}
        self._passed -= count
        self._kept = {entry - count: kept for entry, kept in self._kept.items() if entry >= count}
        self._since_read = {entry - count: left for entry, left in self._since_read.items() if entry >= count}
        self._before_ack = {
            connection: {entry - count: left for entry, left in before_ack.items() if entry >= count}
            for connection, before_ack in self._before_ack.items()
        }
