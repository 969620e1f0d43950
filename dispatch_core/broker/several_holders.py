"""Entries that are pending on several consumers at once.

Theory of operation
-------------------
Each consumer of the broker has pending acks of its own, and nothing keeps an entry out of two of them. It gets there when it
is read a second time before it is sent or acknowledged:

* A replay read and a normal read end one after the other, so that two rounds wait. The end of the first one clears
  sendInProgress, and no replay read is in flight (havePendingReplayRead). So the dispatcher reads the replay set again, in
  which the entries of the second round still are.
* In the same way a replay read that was asked for before a round sent its entries returns them behind that round. They go
  back into the replay set, and to another consumer if their hash has moved. Of Key_Shared, draining hashes prevent it, but
  clients may allow deliveries out of order, which turns them off.
* All consumers leave while a replay read is in flight, and the first one that comes back finds a rewound cursor. Only a
  normal read is dropped then (``commands.read_done``).

The state has one holder of an entry (``pending_acks``): the consumer it was sent to last. The others are here.

* An acknowledgement removes the pending ack of the consumer that sends it, if this one has the entry, else that of the first
  consumer in the list that has it. The others stay.
* A request for redelivery, and a consumer that leaves, put the entry into the replay set; the others stay, too.

So a pending ack may be of an entry that is deleted. The counter of its consumer (``unackedMessages``) stays raised until
it is acknowledged again, asked for, or the consumer leaves.

Source: Consumer.individualAckNormal, Consumer.getAckOwnerConsumerAndBatchSize (4.0.0 to 4.2.4),
PersistentDispatcherMultipleConsumers(Classic).addConsumer, .readEntriesComplete and .sendMessagesToConsumers.

Entry 0 is sent to consumer 0, then to consumer 1. The second one's pending ack goes first:

>>> from dispatch_core.broker.pending_acks import let_go
>>> from dispatch_core.broker.state import example_state
>>> st, several = example_state(consumers=2), SeveralHolders()
>>> hold(st, 0, 0, 0)
>>> several.sent(st, 1, [0])
[0]
>>> hold(st, 1, 0, 0)
>>> several.pending_on(0), several.holders(st, 0)
([0], [1, 0])
>>> before = let_go(st, 1, 0)
>>> several.gone(st, 0, messages=1)
>>> int(st.holder[0]), several.pending_on(0)
(0, [])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dispatch_core.broker.pending_acks import hold
from dispatch_core.broker.state import NOBODY, State


class SeveralHolders:
    """Consumers, by their slots, that have a pending ack of an entry besides the holder of the state.

    ``others``: entry → slots, the last one it was sent to first.
    """

    def __init__(self, others: dict[int, tuple[int, ...]] | None = None) -> None:
        self.others = others or {}

    def __bool__(self) -> bool:
        return bool(self.others)

    def copy(self) -> SeveralHolders:
        """Return a copy."""
        return SeveralHolders(dict(self.others))

    def drop(self, entries: int) -> None:
        """Lower the ordinals of entries by ``entries``."""
        self.others = {entry - entries: slots for entry, slots in self.others.items()}

    def holders(self, st: State, entry: int) -> list[int]:
        """Return the slots of all consumers that have a pending ack of an entry."""
        slot = int(st.holder[entry])
        return [] if slot == NOBODY else [slot, *self.others.get(entry, ())]

    def pending_on(self, slot: int) -> list[int]:
        """Return the entries, ascending, that a consumer holds besides the holder of the state."""
        return sorted(entry for entry, slots in self.others.items() if slot in slots)

    def sent(self, st: State, slot: int, entries: Iterable[int]) -> list[int]:
        """Note, before entries are sent to a consumer, who has them already; returns those that another one has."""
        again = []
        for entry in entries:
            slots = tuple(other for other in self.holders(st, entry) if other != slot)
            if slots:
                self.others[entry] = slots
                again.append(entry)
        return again

    def turn_to(self, st: State, entry: int, slot: int) -> None:
        """Make a consumer that has a pending ack of an entry the holder of the state."""
        if slot in self.others.get(entry, ()):
            self.others[entry] = tuple(other for other in self.holders(st, entry) if other != slot)
            st.holder[entry] = slot

    def gone(self, st: State, entry: int, messages: int) -> None:
        """Make the next one the holder of the state when its pending ack has gone; ``messages``: not acknowledged yet."""
        slots = self.others.pop(entry, ())
        if not slots:
            return
        hold(st, slots[0], entry, st.hash_id[entry])
        st.pending_count[entry] = messages
        if slots[1:]:
            self.others[entry] = slots[1:]


def owner_of_ack(holders: Sequence[int], by: int | None, listed: Sequence[int]) -> int | None:
    """Return whose pending ack an acknowledgement removes; ``None`` = nobody's.

    ``holders``: who has one; ``by``: the consumer that acknowledges, ``None`` = unknown; ``listed``: the dispatcher's list.

    >>> owner_of_ack([3, 1], 1, [1, 2, 3]), owner_of_ack([3, 1], 2, [1, 2, 3]), owner_of_ack([], 2, [1, 2, 3])
    (1, 1, None)
    """
    if by in holders:
        return by
    return next((slot for slot in listed if slot in holders), holders[0] if holders else None)
