"""Common base of the dispatchers with several consumers at a time (PersistentDispatcherMultipleConsumers).

Members in list order, permits and unacked counters, pending acks, acknowledgements and redelivery requests, and read
attempts. The Key_Shared dispatchers (``key_shared``, ``key_shared_classic``) add selector, ordering rule and rounds. The
Shared dispatcher (``shared``) adds rounds in which consumers take turns.

Control plane, plain Python over one ``state.State``; joins and leaves are handled here, every other event is passed on to
the data plane (``commands``, ``read_loop`` and their neighbours). The object knows no clock, no file and no recorded
decision: its state is a function of the events given to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import (
    commands,
    cursor,
    cursor_moves,
    membership,
    pending_acks,
    permits,
    read_loop,
    replay_set,
)
from dispatch_core.broker import state as st_
from dispatch_core.broker.hash_ids import HashIds
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.several_holders import SeveralHolders, owner_of_ack
from dispatch_core.errors import IllegalTransitionError

#: (consumer, sticky key hash) pairs.
Pairs = list[tuple[int, int]]

#: No entry is behind this one.
_UNBOUNDED: Final = 1 << 62

#: Called with the number of each step of an attempt or a round before it, for what other threads do in between.
Between = Callable[[int], None]


def nothing_between(_step: int) -> None:
    """Do nothing between two steps: no other thread comes in between."""


class Read(NamedTuple):
    """Outcome of one read attempt. ``kind``: ``None``, ``Normal``, ``Replay`` or ``Backoff``."""

    kind: str
    max_entries: int = 0
    entries: tuple[int, ...] = ()
    already_deleted: tuple[int, ...] = ()  # of a replay read's entries: acknowledged already, not read
    refused: tuple[tuple[int, int], ...] = ()  # (consumer, hash) that draining held back during the scan


class Turn(NamedTuple):
    """One turn of a round of Shared: what a consumer was sent at once, and its values before."""

    consumer: int
    entries: list[int]
    messages: int
    already_acked: int  # batch indexes of the entries that are acknowledged already
    permits_before: int
    average_before: float  # messages per entry
    blocks: bool  # the consumer is blocked on unacknowledged messages by it


@dataclass(slots=True)
class Round:
    """Outcome of one dispatch round. ``turns``: of Shared, where a consumer may be served several times."""

    sent: dict[int, list[int]] = field(default_factory=dict)  # consumer → entries, in order
    to_replay: list[int] = field(default_factory=list)
    untouched: list[int] = field(default_factory=list)  # a replay result dropped by R1
    not_taken: list[int] = field(default_factory=list)  # chosen, but refused by the last check at send time
    dropped: bool = False  # all consumers have left: the entries are dropped, and the cursor is rewound
    refused: Pairs = field(default_factory=list)  # (consumer, hash) held back by draining
    permits_before: dict[int, int] = field(default_factory=dict)
    already_acked: dict[int, int] = field(
        default_factory=dict
    )  # consumer → batch indexes, where there are any
    wants_look_ahead: bool = False
    look_ahead: bool = False  # this round looks ahead: the next replay scan is skipped once
    retry: bool = False  # read again at once; known when the round has ended (3.x, classic: before)
    waits_for_writes: bool = False  # it reads again at once only if all is written by then (3.x, classic)
    #: By this round, or by an earlier one that no scan has followed yet; ``None`` = the dispatcher never looks ahead.
    look_ahead_due: bool | None = False
    in_replay: int = 0
    turns: list[Turn] = field(default_factory=list)

    def acked_in_send(self, nth: int, consumer: int) -> int:
        """Count the acknowledged batch indexes of the ``nth`` send of the round, which goes to ``consumer``."""
        if self.turns:
            return self.turns[nth].already_acked if nth < len(self.turns) else 0
        return self.already_acked.get(consumer, 0)


class Released(NamedTuple):
    """A removed pending ack: consumer, hash, and the draining reference count before it (0 = not draining)."""

    consumer: int
    hash: int
    ref_count_before: int


class Acked(NamedTuple):
    """Effect of an ack on the consumer that held the entry. ``messages``: by how many its counter is lowered."""

    consumer: int
    messages: int
    released: Released
    notices: int
    permits: int

    @property
    def flows(self) -> commands.Flows:
        """The permits that flow."""
        return commands.Flows(self.notices, self.permits)


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Effect of a redelivery request: a release per entry, and the permits that flow."""

    released: list[Released]
    flows: commands.Flows


def _in_one_ledger(_entry: int) -> int:
    """Return the first entry of the ledger of an entry, where all entries are in one ledger."""
    return 0


class Saved(NamedTuple):
    """A copy of a dispatcher, to go back to while orders of racing events are tried."""

    state: st_.Saved
    unacked_indexes: dict[int, int]
    counted_twice: dict[int, int]
    broken: frozenset[int]
    several: SeveralHolders


class MultipleConsumersDispatcher(ABC):
    """Members, permits, pending acks and reads of one dispatcher, from its first consumer on.

    Consumers are the log's numbers, entries ordinals of its messages. ``hashes``, ``num_messages``: sticky key hash and
    batch size of each entry. ``max_consumers``: how many will ever be connected.
    """

    #: The room below the unacked limit is counted in entries, see ``permits.usable_now``.
    counts_entries = True

    def __init__(
        self,
        profile: Profile,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int,
    ) -> None:
        self.profile = profile
        self._hash_ids = HashIds()
        self._hash_ids.of(np.asarray(self._other_hashes(profile), np.int64))
        self.state = st_.new_state(
            self._hash_ids.of(hashes),
            num_messages.astype(np.int32),
            len(self._hash_ids),
            max(max_consumers, 1),
        )
        self._slots: dict[int, int] = {}
        self._numbers: list[int] = []
        self._names: dict[int, str] = {}
        self._last_sent = -1  # highest entry ever handed to a consumer
        #: Entries that may be pending although deleted: when they were sent, index by index since, or by a moved cursor.
        self._sent_deleted: set[int] = set()
        self._trims_to = _UNBOUNDED  # see ``trim_to``
        self._several = SeveralHolders()  # entries that several consumers hold
        self._unacked_indexes: dict[int, int] = {}  # entry → bit set of its unacknowledged batch indexes
        self._counted_twice: dict[
            int, int
        ] = {}  # entry → messages that its pending ack lacks, see ``count_twice``
        self._broken: frozenset[int] = frozenset()  # slots whose connections are known to have broken
        self._unusable_permits: dict[int, int] = {}  # slot → see ``connection_broke``
        self._ledger_start: Callable[[int], int] = _in_one_ledger
        #: Releases of pending entries that the last attempt dropped because mark-delete had passed them.
        self.trimmed: list[Released] = []
        self._make_room(len(hashes))
        s, number = self.state.s, profile.number
        s[st_.READ_BATCH_SIZE] = s[st_.MAX_READ_BATCH_SIZE] = number("dispatcherMaxReadBatchSize")
        s[st_.MAX_UNACKED_CONSUMER] = number("maxUnackedMessagesPerConsumer")
        s[st_.MAX_UNACKED_SUBSCRIPTION] = number("maxUnackedMessagesPerSubscription")
        s[st_.TRIMS_TO_MARK_DELETE] = int(cursor_moves.trims_in_attempts(profile))
        s[st_.READS_WHEN_ADDED] = int(replay_set.reads_when_added(profile))
        s[st_.COUNTS_REMAINING] = int("remaining_unacked_count" in profile.changes)
        s[st_.REDELIVERS_IN_ONE_BATCH] = int("redeliver_in_one_batch" in profile.changes)
        if "unblock_before_lowering" in profile.changes:
            again = "unblock_again_after_lowering" in profile.changes
            s[st_.UNBLOCK_TEST] = st_.UNBLOCK_BEFORE_AND_AFTER if again else st_.UNBLOCK_BEFORE

    # --- the window of the log -------------------------------------------------------------------------------

    def extend(
        self,
        drop: int,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int = 0,
    ) -> None:
        """Move the window along the log: forget its first ``drop`` entries and append the next ones.

        Ordinals are lowered by ``drop``, which may be at most ``droppable()``. ``hashes``, ``num_messages``: of the next
        entries; ``max_consumers``: ever connected, as far as known by now. Raises ``IllegalTransitionError`` where an
        entry that still matters would be forgotten.
        """
        if drop > self.droppable():
            raise IllegalTransitionError(
                f"{drop} entries were to be forgotten, {self.droppable()} can be",
                rule="only what is acknowledged and nobody holds is forgotten",
            )
        known = len(self._hash_ids)
        ids = self._hash_ids.of(hashes)
        self.state = st_.extended(
            self.state,
            drop,
            ids,
            num_messages.astype(np.int32),
            len(self._hash_ids),
            max(max_consumers, len(self.state.permits)),
        )
        self._last_sent = max(self._last_sent - drop, -1)
        self._sent_deleted = {entry - drop for entry in self._sent_deleted if entry >= drop}
        self._unacked_indexes = {entry - drop: left for entry, left in self._unacked_indexes.items()}
        self._counted_twice = {entry - drop: count for entry, count in self._counted_twice.items()}
        self._several.drop(drop)
        self._make_room(len(self.state.deleted))
        self._new_hashes(known)

    def droppable(self) -> int:
        """Count the entries at the front that can be forgotten: acknowledged, pending on nobody, not to be replayed."""
        st = self.state
        low = int(st.s[st_.MARK_DELETE]) + 1
        waiting = int(replay_set.first_in_replay(st))
        if waiting >= 0:
            low = min(low, waiting)
        low = min(low, int(st.s[st_.LEAKED_LOW]))
        pending = np.flatnonzero(st.holder[:low] != st_.NOBODY)
        return int(pending[0]) if len(pending) else low

    def _make_room(self, entries: int) -> None:
        self._outcome = np.zeros(entries + 1, np.int64)
        self._pending = np.zeros(entries + 1, np.int64)  # scratch: entries that are pending
        self._plan = np.zeros(entries + 3, np.int64)
        self._attempts = np.zeros(1 + 2 * (entries + 1), np.int64)

    @abstractmethod
    def _new_hashes(self, known: int) -> None:
        """Look up the owners of new hashes, those from the id ``known`` on."""

    # --- members ---------------------------------------------------------------------------------------------

    @abstractmethod
    def join(self, consumer: int, name: str, priority_level: int = 0) -> None:
        """Add a consumer to the list of the dispatcher."""

    def _add_member(self, consumer: int, name: str, priority_level: int) -> int:
        """Add the consumer to the list, see ``membership.add_member``; returns its slot."""
        if consumer in self._slots:
            raise IllegalTransitionError(
                f"consumer {consumer} was added twice", rule="one add per connection"
            )
        slot = len(self._numbers)
        if slot >= len(self.state.permits):
            raise IllegalTransitionError(
                f"consumer {consumer}: more consumers than announced", rule="capacity"
            )
        self._slots[consumer] = slot
        self._numbers.append(consumer)
        self._names[consumer] = name
        self.state.level[slot] = priority_level
        membership.add_member(self.state, slot)
        return slot

    def _drop_member(self, consumer: int) -> tuple[int, list[int]]:
        """Take the consumer off the list; returns its slot and the entries still pending on it, in position order.

        The counters of the dispatcher follow. The subclass decides what happens to the entries.
        """
        slot = self._check_connected(consumer)
        pending = self._pending_on(slot)
        membership.drop_member(self.state, slot)
        self._forget_counted_twice(pending)
        return slot, pending

    def _requeue_member(self, consumer: int) -> None:
        """Take the consumer off the list; its pending entries enter the replay set, unless nobody is left."""
        slot, pending = self._drop_member(consumer)
        if self.state.s[st_.N_CONSUMERS]:
            membership.requeue_pending(self.state, np.asarray(pending, dtype=np.int64))
        else:
            replay_set.clear_replay(self.state)
        self._let_go_all(slot, pending, closing=False)

    def read_follows(self, taken_back: Sequence[int], *, was_blocked: bool = False) -> bool:
        """Check whether a read attempt follows a leave or a redelivery request, see ``replay_set.read_follows``.

        ``taken_back``: the entries that were pending, ascending.
        """
        last = taken_back[-1] if taken_back else st_.NOBODY
        return bool(replay_set.read_follows(self.state, last, was_blocked))

    # --- flow, acks, redelivery ------------------------------------------------------------------------------

    def flow(self, consumer: int, count: int) -> bool:
        """Count a client's permits; returns whether the dispatcher will be notified (``flow_applied``)."""
        return bool(permits.count_flow(self.state, self.slot(consumer), count))

    def take_back(self, consumer: int, count: int) -> None:
        """Take back permits that were counted: the flow is now taken to come after the decision."""
        self.state.permits[self.slot(consumer)] -= count

    def flow_applied(self, consumer: int, count: int) -> None:
        """Add permits that have reached the dispatcher; unknown consumers are ignored."""
        if consumer in self._slots:
            commands.apply_flow(self.state, self._slots[consumer], count)

    def ack(self, entry: int, by: int | None = None) -> Acked | None:
        """Acknowledge a whole entry, with all that follows except the flow of permits, which is ``flow_applied``.

        ``by``: the consumer that acknowledges; it matters where several hold the entry. Returns the effect on the consumer
        it was pending on; None where it was pending on nobody.
        """
        return self._ack(entry, by, commands.ack, forget_indexes=True)

    def begin_ack(self, entry: int, by: int | None = None) -> Acked | None:
        """First part of ``ack``: remove the pending ack; ``end_ack`` and ``acknowledge`` follow."""
        return self._ack(entry, by, commands.begin_ack, forget_indexes=False)

    def end_ack(self, consumer: int, messages: int) -> commands.Flows:
        """Second part of ``ack``: lower the unacked counter by ``messages``."""
        return commands.end_ack(self.state, self.slot(consumer), messages)

    def finish_ack(self, entry: int, consumer: int, messages: int) -> None:
        """Apply the second and the last part of ``ack`` (``end_ack``, ``acknowledge``) at once."""
        self._check_stored(entry)
        commands.finish_ack(self.state, entry, self.slot(consumer), messages)
        self._unacked_indexes.pop(entry, None)

    def acknowledge(self, entry: int) -> None:
        """Last part of ``ack``: delete the entry at the cursor."""
        self._check_stored(entry)
        commands.acknowledge(self.state, entry)
        self._unacked_indexes.pop(entry, None)

    def acknowledge_indexes(self, entry: int, words: Sequence[int], by: int | None = None) -> int:
        """Acknowledge messages of a batch: ``words`` have a 1 bit for every index that stays unacknowledged.

        ``by``: see ``ack``. Returns how many indexes are newly acknowledged. Without batch-index acks in the broker nothing
        happens.
        """
        self._check_stored(entry)
        if not self.profile.settings.get("acknowledgmentAtBatchIndexLevelEnabled"):
            return 0
        self._turn_to_owner(entry, by)
        messages = int(self.state.num_messages[entry])
        is_pending = self.state.holder[entry] != st_.NOBODY
        if self.state.deleted[entry] and not is_pending:
            return 0
        all_indexes = (1 << messages) - 1
        left = cursor.indexes_left(self._unacked_indexes.get(entry, all_indexes), words)
        if self.state.deleted[entry]:
            self._unacked_indexes.pop(entry, None)
        elif left:
            self._unacked_indexes[entry] = left
        else:
            self._unacked_indexes.pop(entry, None)
            if is_pending:
                self._sent_deleted.add(entry)
        return int(commands.ack_indexes(self.state, entry, left.bit_count()))

    def unacked_indexes(self, entry: int) -> int:
        """Return the batch indexes of an entry that the cursor does not have as acknowledged, as a bit set."""
        if self.state.deleted[entry]:
            return 0
        return self._unacked_indexes.get(entry, (1 << self.state.num_messages.item(entry)) - 1)

    def count_twice(self, consumer: int, entry: int, messages: int) -> None:
        """Lower the counter of the holder of a batch by messages that two overlapping acks of its indexes count, both.

        Since #25592 the pending ack says how many messages are left, and lacks these, too: when it goes, it lowers the
        counter by so many less. Before, the counter stays too low. Source: Consumer.individualAckNormal,
        PendingAcksMap.updateRemainingUnacked.
        """
        slot = self.slot(consumer)
        if self.state.s[st_.COUNTS_REMAINING]:
            if slot not in self._several.holders(self.state, entry):
                return  # it has gone meanwhile, and has lowered the counter by so many less
            self._counted_twice[entry] = self._counted_twice.get(entry, 0) + messages
        permits.add_unacked(self.state, slot, -messages)

    def unblock(self, consumer: int) -> int:
        """Clear the consumer's block on unacked messages; its parked permits flow. Returns 1 if there are any."""
        slot = self.slot(consumer)
        parked = int(self.state.parked_permits[slot])
        permits.unblock(self.state, slot)
        return int(parked > 0)

    def block_again(self, consumer: int, permits: int) -> None:
        """Take back that a consumer was unblocked: the ack has not come so far. So many ``permits`` are parked again."""
        st, slot = self.state, self.slot(consumer)
        st.blocked[slot] = 1
        st.permits[slot] -= permits
        st.parked_permits[slot] += permits

    def block_subscription(self, *, blocked: bool) -> None:
        """Block the subscription on unacked messages, or clear the block: acks and sends came in another order."""
        self.state.s[st_.BLOCKED_ON_UNACKED] = blocked

    def redeliver(self, consumer: int, entries: Sequence[int], *, everything: bool = False) -> Redelivery:
        """Handle a redelivery request for ``entries`` pending on the consumer, except the flow of permits that follows.

        ``everything``: the request named no entries, these are all. Raises ``IllegalTransitionError`` for an entry that is
        not pending on the consumer.
        """
        slot = self.slot(consumer)
        for entry in entries:
            self._check_stored(entry)
            self._several.turn_to(self.state, entry, slot)
            permits.add_unacked(self.state, slot, self._counted_twice.pop(entry, 0))
            if self.state.holder[entry] != slot:
                raise IllegalTransitionError(
                    f"entry {entry} is not pending on consumer {consumer}",
                    rule="only a pending entry is taken back",
                )
        wanted, before = np.asarray(entries, np.int64), np.zeros(len(entries), np.int64)
        hashes = self._hash_ids.values[self.state.pending_hash[wanted]].tolist()
        flows = commands.redeliver(self.state, slot, wanted, everything, before)
        for value in (hashes[at] for at in np.flatnonzero(before < 0)):
            raise self._not_the_owner(value, slot)
        self._hand_on(entries)
        pairs = zip(hashes, before.tolist(), strict=True)
        return Redelivery([Released(consumer, value, count) for value, count in pairs], flows)

    def pending_ack_removed(self, entry: int, consumer: int | None = None) -> Released:
        """First part of ``redeliver``: remove a pending ack and release its hash from draining.

        ``consumer``: whose; it matters where several hold the entry.
        """
        self._check_stored(entry)
        if consumer is not None:
            self._several.turn_to(self.state, entry, self.slot(consumer))
        slot = int(self.state.holder[entry])
        if slot == st_.NOBODY:
            raise IllegalTransitionError(
                f"entry {entry} is pending on nobody", rule="only a pending ack is removed"
            )
        return self._let_go(slot, entry)

    def add_requested(self, consumer: int, entries: Sequence[int]) -> int:
        """Part of ``redeliver``: add entries, already off the pending acks, to the replay set without their hash.

        Returns the messages by which the unacked counter is to be lowered.
        """
        self.slot(consumer)
        for entry in entries:
            self._check_stored(entry)
        for entry in entries:
            commands.add_requested(self.state, entry)
        messages = sum(self.unacked_messages(entry) for entry in entries)
        self._forget_counted_twice(entries)
        return messages

    def lower_for_redelivery(self, consumer: int, messages: int, *, everything: bool = False) -> None:
        """Part of ``redeliver``: lower the unacked counter and clear the consumer's block."""
        commands.lower_for_redelivery(self.state, self.slot(consumer), messages, everything)

    def count_unacked(self, consumer: int, messages: int) -> None:
        """Raise a consumer's unacked counter by messages that it has not counted yet, or lower it by a negative number."""
        permits.add_unacked(self.state, self.slot(consumer), messages)

    def stay_pending(self, consumer: int, entries: Sequence[int]) -> None:
        """Take entries of a redelivery request back from the replay set: they were sent after it, and stay pending."""
        st, slot = self.state, self.slot(consumer)
        for entry in entries:
            if st.in_replay[entry] and st.holder[entry] == st_.NOBODY:
                replay_set.remove_from_replay(st, entry)
                st.redelivery_count[entry] -= 1
                pending_acks.hold(st, slot, entry, st.hash_id[entry])
                permits.add_unacked(st, slot, self.unacked_messages(entry))
        if permits.at_unacked_limit(st, slot):
            st.blocked[slot] = 1

    def flow_parked(self, consumer: int, *, everything: bool = False) -> commands.Flows:
        """Last part of ``redeliver``: count the permits that were parked while the consumer was blocked."""
        return commands.flow_parked(self.state, self.slot(consumer), everything)

    def unacked_messages(self, entry: int) -> int:
        """Count the messages by which the counter of the holder of an entry falls when its pending ack goes."""
        return int(pending_acks.unacked_messages(self.state, entry)) - self._counted_twice.get(entry, 0)

    def written_first(self, already_acked: int) -> None:
        """Have a send be written before the dispatcher lowered its total (``lower_total``).

        ``already_acked``: batch indexes of what was sent that are acknowledged already.
        """
        permits.lower_total(self.state, already_acked, 0)

    def change_total(self, by: int) -> None:
        """Change the dispatcher's total permits: a send was written before or after it was lowered, contrary to so far."""
        self.state.s[st_.TOTAL_PERMITS] += by

    def count_parked(self, consumer: int, count: int) -> None:
        """Count permits that were parked: their flow is now taken to come before the block."""
        slot = self.slot(consumer)
        self.state.parked_permits[slot] -= count
        self.state.permits[slot] += count

    # --- policies --------------------------------------------------------------------------------------------

    def limit_unacked(self, messages: int | None) -> None:
        """Set the limit of unacknowledged messages per consumer that a policy sets; ``None`` = the broker's setting.

        Blocked consumers stay so until their next ack, others are blocked by their next flow or delivery. Source:
        Consumer.getMaxUnackedMessages, AbstractTopic.getMaxUnackedMessagesOnConsumer.
        """
        own = self.profile.number("maxUnackedMessagesPerConsumer")
        self.state.s[st_.MAX_UNACKED_CONSUMER] = own if messages is None else messages

    # --- operations on the cursor ----------------------------------------------------------------------------

    def move_forward(self, target: int) -> None:
        """Move the cursor forward: every entry up to ``target`` is deleted."""
        if target >= 0:
            self._check_stored(target)
        passed = cursor_moves.move_forward(self.state, target)
        self._sent_deleted.update(passed)
        for entry in passed if self._counted_twice else ():
            twice = self._counted_twice.pop(entry, 0)
            self.state.pending_count[entry] -= twice
            self.state.acked_indexes[entry] += twice  # of a passed entry: what its pending ack lacks
        for entry in [known for known in self._unacked_indexes if known <= self.state.s[st_.MARK_DELETE]]:
            del self._unacked_indexes[entry]

    def reset(self, entry: int) -> None:
        """Reset the cursor to ``entry``, which may be the next one to be stored; all consumers were disconnected before."""
        if self.state.s[st_.N_CONSUMERS]:
            raise IllegalTransitionError(
                "the cursor is reset while consumers are connected", rule="a reset disconnects all consumers"
            )
        cursor_moves.reset(self.state, entry)
        self._unacked_indexes.clear()
        self._counted_twice.clear()
        self._sent_deleted.clear()

    def know_ledgers(self, ledger_start: Callable[[int], int]) -> None:
        """Take a function that returns the first entry of the ledger of an entry; without it, there is one ledger."""
        self._ledger_start = ledger_start

    def _start_of_ledger(self) -> int:
        """Return the first entry of the ledger in which mark-delete is."""
        mark_delete = int(self.state.s[st_.MARK_DELETE])
        return self._ledger_start(mark_delete) if mark_delete >= 0 else 0

    def trims_after_a_move(self) -> bool:
        """True if ``trim_passed`` follows a move of the cursor forward; else a read attempt trims, or nothing does."""
        return cursor_moves.trims_after_a_move(self.profile)

    def trims_in_attempts(self) -> bool:
        """True if a read attempt begins by dropping all that mark-delete has passed (until #25581)."""
        return bool(self.state.s[st_.TRIMS_TO_MARK_DELETE])

    def trim_passed(self) -> list[Released]:
        """Drop everything up to mark-delete from replay set and pending acks, after a move of the cursor (#25581).

        Consumer by consumer, in position order; their unacked counters are lowered, and parked permits may flow. Returns
        the releases.
        """
        st = self.state
        replay_set.remove_up_to(st, int(st.s[st_.MARK_DELETE]), self._start_of_ledger())
        released: list[Released] = []
        for slot, entries in self._passed():
            for entry in entries if self._several else ():
                self._several.turn_to(st, entry, slot)
            passed, before = np.asarray(entries, np.int64), np.zeros(len(entries), np.int64)
            hashes = self._hash_ids.values[st.pending_hash[passed]].tolist()
            commands.trim_pending(st, slot, passed, before)
            for value in (hashes[at] for at in np.flatnonzero(before < 0)):
                raise self._not_the_owner(value, slot)
            self._hand_on(entries)
            number = self._numbers[slot]
            released += [Released(number, value, n) for value, n in zip(hashes, before.tolist(), strict=True)]
        return released

    # --- reads -----------------------------------------------------------------------------------------------

    def attempt_read(
        self, between: Between = nothing_between, at_most: int | None = None, pauses: Sequence[int] = ()
    ) -> Read:
        """Decide which read is issued now (``readMoreEntries``), and issue it; see ``plan_read``."""
        self.plan_read(between, at_most, pauses)
        return self._planned(tuple(self._refused()))

    def plan_read(
        self, between: Between = nothing_between, at_most: int | None = None, pauses: Sequence[int] = ()
    ) -> st_.I64:
        """Decide which read is issued now, and leave it to the caller to issue it.

        Returns the plan (``read_loop``), which holds until the next attempt. ``between(step)`` is called before each of its
        steps 0, 1, 2 (size, replay, normal). ``at_most``: entries that a dispatch rate allows, 0 = no read; ``None`` = there
        is no rate. ``pauses``: entries, ascending, before which the scan of the replay set pauses; each makes a further step
        between 1 and the last.
        """
        between(0)
        trimmed = self._trim()
        self._plan_size()
        if at_most is not None and self._plan[0] == read_loop.UNDECIDED:
            self._plan[1] = min(int(self._plan[1]), at_most)
            self._plan[0] = read_loop.UNDECIDED if at_most else read_loop.NO_READ
        between(1)
        if pauses:
            self._plan_replay_in_parts(between, pauses)
        else:
            self._plan_replay()
        between(2 + len(pauses))
        self._plan_normal()
        self.trimmed = trimmed
        return self._plan

    def may_read(self) -> bool:
        """True between two steps of an attempt that may still issue a read."""
        return bool(self._plan[0] == read_loop.UNDECIDED)

    def _plan_size(self) -> None:
        """Plan the size of a read; if all connections are broken it asks for one entry (isConsumerWritable)."""
        read_loop.plan_size(self.state, self._plan, self._attempts)
        undecided = self._plan[0] == read_loop.UNDECIDED
        if self._broken and undecided and self._broken.issuperset(self._connected_slots()):
            self._plan[1] = 1

    def _plan_replay(self) -> None:
        read_loop.plan_replay(self.state, self._plan, self._attempts)

    def _plan_replay_in_parts(self, between: Between, pauses: Sequence[int]) -> None:
        """Plan a replay as ``_plan_replay`` does, with a step before each of the entries ``pauses``."""
        st, plan = self.state, self._plan
        undecided, found = plan[0] == read_loop.UNDECIDED, 0
        entry = int(read_loop.begin_scan(st)) if undecided else -1
        for step, stop in enumerate((*pauses, int(st.s[st_.REPLAY_HIGH])), 2):
            if entry >= 0:
                entry = int(replay_set.next_in_replay(st, entry))
                found = int(read_loop.scan(st, int(plan[1]), found, entry, stop, plan, self._attempts))
                entry = max(entry, stop)
            if step < 2 + len(pauses):
                between(step)
        if undecided:
            read_loop.end_scan(st, found, plan)

    @abstractmethod
    def _plan_normal(self) -> None:
        """Plan a normal read (third step of ``attempt_read``)."""

    def _planned(self, refused: tuple[tuple[int, int], ...]) -> Read:
        """Issue the read of the plan; entries that are acknowledged already leave the replay set."""
        st = self.state
        kind, count = int(self._plan[0]), int(self._plan[1])
        if kind == read_loop.REPLAY_READ:
            entries = tuple(int(entry) for entry in self._plan[2 : 2 + count])
            gone = tuple(entry for entry in entries if st.deleted[entry])
            commands.issue_replay(st, self._plan)
            return Read("Replay", entries=entries, already_deleted=gone, refused=refused)
        if kind == read_loop.NORMAL_READ:
            return Read("Normal", max_entries=count, refused=refused)
        return Read("Backoff" if kind == read_loop.BACK_OFF else "None", refused=refused)

    def _trim(self) -> list[Released]:
        """Drop all up to mark-delete from replay set and pending acks, where that has moved (until #25581).

        Returns the releases of entries that were still pending; unacked counters are not lowered.
        """
        if not commands.trim_is_due(self.state):
            return []
        s, mark_delete = self.state.s, self.mark_delete()
        s[st_.MARK_DELETE] = min(mark_delete, self._trims_to)
        trimmed = []
        if commands.trim_is_due(self.state):
            commands.trim(self.state, self._start_of_ledger())
            trimmed = [self._let_go(slot, entry) for slot, entries in self._passed() for entry in entries]
        s[st_.MARK_DELETE] = mark_delete
        return trimmed

    def trim_to(self, entry: int | None) -> None:
        """Have attempts trim up to ``entry`` at most: mark-delete was there when they looked; ``None`` = no such bound."""
        self._trims_to = _UNBOUNDED if entry is None else entry

    def _passed(self) -> list[tuple[int, list[int]]]:
        """Return the pending entries that mark-delete has passed: for each connected consumer, by its slot."""
        if not self._sent_deleted:
            return []
        overtaken = self.overtaken()
        holders = [self._several.holders(self.state, entry) for entry in overtaken]
        return [
            (slot, [entry for entry, slots in zip(overtaken, holders, strict=True) if slot in slots])
            for slot in self._connected_slots()
        ]

    def read_cancelled(self) -> None:
        """Cancel a waiting normal read, and forget a replay read with it where ``cancel_clears_replay_read`` says so."""
        self.state.s[st_.PENDING_READ] = 0
        if self.cancel_clears_replay_read():
            self.state.s[st_.PENDING_REPLAY] = 0

    def cancel_clears_replay_read(self) -> bool:
        """Check whether a replay read that is in flight is forgotten when a normal read is cancelled: #23384 to #23855."""
        return "cancel_clears_replay_read" in self.profile.changes

    def read_done(self, kind: str, entries: Sequence[int]) -> bool:
        """Take a read result; returns False when it is dropped and the cursor rewound instead."""
        for entry in (min(entries), max(entries)) if entries else ():
            self._check_stored(entry)
        return bool(commands.read_done(self.state, kind != "Normal", max(entries, default=-1), len(entries)))

    def _note_sent(self, entry: int) -> None:
        """Note a delivery: how far was sent, and that the entry may be pending although it is deleted."""
        self._last_sent = max(self._last_sent, entry)
        if self.state.deleted[entry]:
            self._sent_deleted.add(entry)

    def _already_acked(self, entries: st_.I64) -> dict[int, int]:
        """Count, per chosen consumer, the batch indexes of what it is sent that are acknowledged already."""
        acked: dict[int, int] = {}
        indexes = self.state.acked_indexes[entries].tolist()
        for slot, count in zip(self._outcome[: len(entries)].tolist(), indexes, strict=True):
            if slot >= 0 and count:
                acked[self._numbers[slot]] = acked.get(self._numbers[slot], 0) + count
        return acked

    @abstractmethod
    def round(self, kind: str, entries: Sequence[int], between: Between = nothing_between) -> Round:
        """Dispatch one read result; ``between(step)`` is called before each of its steps. ``finish_round`` follows."""

    @abstractmethod
    def finish_round(self, outcome: Round, *, has_more: bool) -> bool:
        """End a round; returns whether it looks ahead. ``has_more``: the cursor has more entries to read."""

    def sent_alone(self, last_entry: int, already_acknowledged: Iterable[int]) -> None:
        """Note deliveries of rounds that the data plane ran alone: the highest entry, and those of acknowledged entries."""
        self._last_sent = max(self._last_sent, last_entry)
        self._sent_deleted.update(already_acknowledged)

    def close(self) -> None:
        """Close the dispatcher: the topic is unloaded, or the subscription deleted, and its consumers are disconnected.

        Source: close, which sets IS_CLOSED.
        """
        self.state.s[st_.CLOSED] = 1

    def connection_broke(self, consumer: int, *, inactive: bool) -> None:
        """Take a connection that has broken, before its consumer is removed: it is not writable, and soon not active either.

        If no connection is writable, a read asks for one entry (isConsumerWritable). A consumer whose connection is not
        active, either (``inactive``), has no permits until ``connections_return`` (getAvailablePermits, since 4.0.0).
        """
        slot = self.slot(consumer)
        self._broken |= {slot}
        if inactive:
            self._unusable_permits[slot] = self._unusable_permits.get(slot, 0) + int(self.state.permits[slot])
            self.state.permits[slot] = 0

    def connections_return(self) -> None:
        """Give consumers whose connections are not active their permits back: lines show them until they are removed."""
        for slot, count in self._unusable_permits.items():
            self.state.permits[slot] += count
        self._unusable_permits = {}

    # --- copies ----------------------------------------------------------------------------------------------

    def save(self, *, membership: bool = False) -> Saved:
        """Copy everything that a flow, an ack, an attempt or a round may change, or a join or leave (``membership``)."""
        s = self.state.s
        high = max(int(s[st_.READ_POSITION]), int(s[st_.REPLAY_HIGH]), self._last_sent + 1)
        low = min(self._sent_deleted, default=high)
        return Saved(
            st_.save(self.state, low, high, all_hashes=membership),
            dict(self._unacked_indexes),
            dict(self._counted_twice),
            self._broken,
            self._several.copy(),
        )

    def restore(self, saved: Saved) -> None:
        """Restore what was saved."""
        st_.restore(self.state, saved.state)
        self._unacked_indexes = dict(saved.unacked_indexes)
        self._counted_twice = dict(saved.counted_twice)
        self._broken = saved.broken
        self._unusable_permits = {}
        self._several = saved.several.copy()

    # --- queries ---------------------------------------------------------------------------------------------

    def slot(self, consumer: int) -> int:
        """Return the consumer's slot; raises ``IllegalTransitionError`` for a consumer that was never added."""
        if consumer not in self._slots:
            raise IllegalTransitionError(
                f"consumer {consumer} was never added", rule="events come from known consumers"
            )
        return self._slots[consumer]

    def number_of(self, slot: int) -> int:
        """Return the log's number of the consumer in a slot."""
        return self._numbers[slot]

    def known(self) -> int:
        """Count the consumers that were ever added: the slots that have a number."""
        return len(self._numbers)

    def name_of(self, consumer: int) -> str:
        """Return the name a consumer subscribed with."""
        self.slot(consumer)
        return self._names[consumer]

    def connected(self) -> list[int]:
        """Return the connected consumers in the dispatcher's order."""
        return [self._numbers[slot] for slot in self._connected_slots()]

    def unacked(self, consumer: int) -> int:
        """Return the consumer's counter of messages that were sent to it and are not acknowledged."""
        return int(self.state.unacked[self.slot(consumer)])

    def is_blocked(self, consumer: int) -> bool:
        """True if the consumer is blocked on unacked messages."""
        return bool(self.state.blocked[self.slot(consumer)])

    def usable(self, consumer: int) -> int:
        """Return the usable permits of a consumer, as the dispatcher asks for them."""
        return int(permits.usable_now(self.state, self.counts_entries, self.slot(consumer)))

    def consumers_now(self, out: st_.I64) -> None:
        """Write number, usable permits, permits and unacked messages of each connected consumer to ``out``, in order."""
        permits.consumers_now(self.state, self.counts_entries, out)
        for at in range(int(self.state.s[st_.N_CONSUMERS])):
            out[4 * at] = self._numbers[out[4 * at]]

    def blocked_consumers(self) -> set[int]:
        """Return the connected consumers that are blocked on unacked messages."""
        blocked = self.state.blocked.tolist()
        return {self._numbers[slot] for slot in self._connected_slots() if blocked[slot]}

    def holder(self, entry: int, by: int | None = None) -> int | None:
        """Return the consumer that a sent entry is pending on; None = nobody.

        Of several, that whose pending ack an acknowledgement ``by`` a consumer removes.
        """
        self._check_stored(entry)
        slot = self.state.holder.item(entry)
        if entry in self._several.others:
            slot = self._owner_of_ack(entry, by)
        return None if slot == st_.NOBODY else self._numbers[slot]

    def pending_hash(self, entry: int) -> int | None:
        """Return the sticky key hash kept with a pending ack; None = the entry is pending on nobody."""
        if self.holder(entry) is None:
            return None
        return self._hash_ids.value(self.state.pending_hash.item(entry))

    def overtaken(self) -> list[int]:
        """Return the entries up to mark-delete that are pending: sent again although acknowledged meanwhile, or passed."""
        if not self._sent_deleted:
            return []
        mark_delete = self.mark_delete()
        return [
            entry
            for entry in sorted(self._sent_deleted)
            if entry <= mark_delete and self.state.holder[entry] != st_.NOBODY
        ]

    def mark_delete(self) -> int:
        """Return the last entry of the acknowledged prefix; -1 = the position before the first entry."""
        return int(self.state.s[st_.MARK_DELETE])

    def pending_on(self, consumer: int) -> list[int]:
        """Return the entries pending on a consumer, in position order."""
        return self._pending_on(self.slot(consumer))

    def hash_value(self, hash_id: int) -> int:
        """Return the sticky key hash behind an id of the state."""
        return self._hash_ids.value(hash_id)

    def hash_values(self, hash_ids: npt.NDArray[np.integer[Any]]) -> st_.I64:
        """Return the sticky key hashes behind ids of the state."""
        return self._hash_ids.values[hash_ids]

    def id_of_hash(self, sticky_hash: int) -> int | None:
        """Return the id of a sticky key hash, or None where no entry of the log has it."""
        return self._hash_ids.find(sticky_hash)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the state breaks an invariant; for tests and strict runs."""
        st, s = self.state, self.state.s
        assert s[st_.N_REPLAY] == st.in_replay.sum(), "replay count"
        if (
            st.s[st_.STORED_HASH] == st_.NO_HASH
        ):  # else a position may change its hash, and the count does not follow
            known = st.replay_hash[st.replay_hash != st_.NO_HASH]
            assert (np.bincount(known, minlength=len(st.replay_count)) == st.replay_count).all(), (
                "replay hash counts"
            )
        assert st.deleted[: s[st_.MARK_DELETE] + 1].all(), "mark-delete covers acknowledged entries only"
        assert s[st_.READ_POSITION] > s[st_.MARK_DELETE], "read position behind mark-delete"

    # --- inside ----------------------------------------------------------------------------------------------

    def _ack(
        self,
        entry: int,
        by: int | None,
        command: Callable[[st_.State, int], commands.Ack],
        *,
        forget_indexes: bool,
    ) -> Acked | None:
        self._check_stored(entry)
        self._turn_to_owner(entry, by)
        hash_id = self.state.pending_hash.item(entry)
        twice = self._counted_twice.pop(entry, 0)
        if twice and forget_indexes:  # all parts at once
            permits.add_unacked(self.state, int(self.state.holder[entry]), twice)
        effect = command(self.state, entry)
        if twice and not forget_indexes:
            effect = effect._replace(messages=effect.messages - twice)
        done = self._acked(entry, hash_id, effect)
        self._hand_on([entry])
        if forget_indexes:
            self._unacked_indexes.pop(entry, None)
        return done

    def _forget_counted_twice(self, entries: Iterable[int]) -> None:
        """Forget what pending acks lack that have gone."""
        for entry in entries if self._counted_twice else ():
            self._counted_twice.pop(entry, None)

    def _owner_of_ack(self, entry: int, by: int | None) -> int:
        """Return the slot of the consumer whose pending ack an acknowledgement of an entry removes, NOBODY for none."""
        holders = self._several.holders(self.state, entry)
        slot = None if by is None else self._slots.get(by)
        owner = owner_of_ack(holders, slot, self._connected_slots())
        return st_.NOBODY if owner is None else owner

    def _turn_to_owner(self, entry: int, by: int | None) -> None:
        """Make the consumer whose pending ack an acknowledgement removes the holder of the state."""
        if entry in self._several.others:
            self._several.turn_to(self.state, entry, self._owner_of_ack(entry, by))

    def _hand_on(self, entries: Iterable[int]) -> None:
        """Make the next one of several holders that of the state, where its pending ack has gone."""
        for entry in entries if self._several else ():
            if self.state.holder[entry] == st_.NOBODY:
                self._several.gone(self.state, entry, self.unacked_messages(entry))

    def _acked(self, entry: int, hash_id: int, done: commands.Ack) -> Acked | None:
        if done.holder == st_.NOBODY:
            return None
        hash_value = self._hash_ids.value(hash_id)
        if done.ref_count_before < 0:
            raise self._not_the_owner(hash_value, done.holder)
        consumer = self._numbers[done.holder]
        released = Released(consumer, hash_value, done.ref_count_before)
        return Acked(consumer, done.messages, released, done.flows, done.permits)

    def _let_go(self, slot: int, entry: int, *, closing: bool = False) -> Released:
        self._several.turn_to(self.state, entry, slot)
        hash_value = self._hash_ids.value(self.state.pending_hash.item(entry))
        before = int(pending_acks.let_go(self.state, slot, entry, closing))
        if before < 0:
            raise self._not_the_owner(hash_value, slot)
        self._hand_on([entry])
        return Released(self._numbers[slot], hash_value, before)

    def _let_go_all(self, slot: int, entries: list[int], *, closing: bool) -> list[Released]:
        """Remove all pending acks of a consumer that leaves; returns a release per entry."""
        for entry in entries if self._several else ():
            self._several.turn_to(self.state, entry, slot)
        array, count = np.asarray(entries, dtype=np.int64), len(entries)
        hash_ids, before = np.empty(count, np.int64), np.empty(count, np.int64)
        gone = int(membership.let_go_all(self.state, slot, array, closing, hash_ids, before))
        if gone < count:
            raise self._not_the_owner(int(self._hash_ids.values[hash_ids[gone]]), slot)
        hashes = self._hash_ids.values[hash_ids].tolist()
        number = self._numbers[slot]
        self._hand_on(entries)
        return [Released(number, value, n) for value, n in zip(hashes, before.tolist(), strict=True)]

    def _refused(self) -> Pairs:
        """Return the (consumer, hash) pairs that draining has refused in the step before."""
        count = int(self._attempts[0])
        if not count:
            return []
        pairs = self._attempts[1 : 1 + 2 * count].reshape(-1, 2)
        return [(self._numbers[slot], self._hash_ids.value(hash_id)) for slot, hash_id in pairs.tolist()]

    def _not_the_owner(self, hash_value: int, slot: int) -> IllegalTransitionError:
        return IllegalTransitionError(
            f"hash {hash_value} drains for another consumer than {self._numbers[slot]}",
            rule="only its owner releases a draining hash",
        )

    def _other_hashes(self, profile: Profile) -> list[int]:
        """Return sticky key hashes that the rules use although no entry may have them."""
        return []

    def _check_connected(self, consumer: int) -> int:
        slot = self.slot(consumer)
        if not self.state.connected[slot]:
            raise IllegalTransitionError(f"consumer {consumer} left twice", rule="one removal per connection")
        return slot

    def _check_stored(self, entry: int) -> None:
        if not 0 <= entry < len(self.state.holder):
            raise IllegalTransitionError(
                "an entry that was never stored", rule="only stored entries are read, sent, acknowledged"
            )

    def _slots_of(self, consumers: st_.I64) -> st_.I64:
        """Return the slots of many consumers, ``NOBODY`` for a number that is none of theirs."""
        if not self._numbers:
            return np.full(len(consumers), st_.NOBODY)
        numbers = np.array(self._numbers, np.int64)
        order = np.argsort(numbers, kind="stable")
        at = np.minimum(np.searchsorted(numbers, consumers, sorter=order), len(order) - 1)
        slots = order[at]
        slots[numbers[slots] != consumers] = st_.NOBODY
        return slots

    def _connected_slots(self) -> list[int]:
        slots: list[int] = self.state.order[: self.state.s[st_.N_CONSUMERS]].tolist()
        return slots

    def _pending_on(self, slot: int) -> list[int]:
        first = int(self.state.s[st_.MARK_DELETE]) + 1
        count = pending_acks.pending_on(self.state, slot, first, self._last_sent + 1, self._pending)
        pending: list[int] = self._pending[:count].tolist()
        if self._sent_deleted:
            pending = [entry for entry in self.overtaken() if self.state.holder[entry] == slot] + pending
        if self._several:
            pending = sorted([*pending, *self._several.pending_on(slot)])
        return pending
