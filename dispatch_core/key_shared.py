"""A Key_Shared dispatcher of 4.x: events in, decisions out (PersistentStickyKeyDispatcherMultipleConsumers).

Control plane, plain Python: joins and leaves recompute who owns which hash and what that moved (one *epoch*); every
other event is handed to the data plane (``dispatch_loop`` and its neighbours). The object knows no clock, no file and
no recorded decision; its state is a function of the events given to it.

>>> import numpy as np
>>> from dispatch_core import profiles
>>> d = KeySharedDispatcher(profiles.resolve("4.2.4"), np.array([11858, 51461, 11858]), np.ones(3, np.int64), 3)
>>> d.join(1, "c1"); d.flow(1, 2); d.flow_applied(1, 2)
([], [])
>>> d.attempt_read()
Read(kind='Normal', max_entries=2, entries=(), refused=())
>>> d.read_done("Normal", [0, 1]); d.round("Normal", [0, 1]).sent
{1: [0, 1]}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dispatch_core import cursor, dispatch_loop, pending_acks, permits, replay_set
from dispatch_core import state as st_
from dispatch_core.errors import IllegalTransitionError, UnsupportedRuleError
from dispatch_core.ordering import draining_hashes
from dispatch_core.profiles import Dispatcher, OrderingRule, Profile
from dispatch_core.selectors import assignments
from dispatch_core.selectors.consistent_hashing import ConsistentHashingSelector

#: (consumer, hash) pairs of the log: who, and which sticky key hash.
Pairs = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Read:
    """Outcome of one read attempt. ``kind``: ``None``, ``Normal``, ``Replay`` or ``Backoff``."""

    kind: str
    max_entries: int = 0
    entries: tuple[int, ...] = ()
    refused: tuple[tuple[int, int], ...] = ()  # (consumer, hash) that draining held back during the scan


@dataclass(slots=True)
class Round:
    """Outcome of one dispatch round."""

    sent: dict[int, list[int]] = field(default_factory=dict)  # consumer → entries, in order
    to_replay: list[int] = field(default_factory=list)
    untouched: list[int] = field(default_factory=list)  # a replay result dropped by R1
    refused: Pairs = field(default_factory=list)  # (consumer, hash) held back by draining
    permits_before: dict[int, int] = field(default_factory=dict)
    wants_look_ahead: bool = False
    in_replay: int = 0


@dataclass(frozen=True, slots=True)
class Released:
    """A pending ack went away: consumer, hash, and the draining reference count before it (0 = not draining)."""

    consumer: int
    hash: int
    ref_count_before: int


@dataclass(frozen=True, slots=True)
class Leave:
    """What a removal did: releases of the closed pending acks, then hashes that began or ceased to drain."""

    closed: list[Released]
    draining: Pairs
    returned: list[Released]
    cleared: bool  # the last consumer has gone


class KeySharedDispatcher:
    """One dispatcher from its first consumer on. Consumers are the log's numbers, entries ordinals of its messages."""

    def __init__(
        self,
        profile: Profile,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int,
    ) -> None:
        """``hashes``, ``num_messages``: sticky key hash and batch size of each entry. ``max_consumers``: ever connected.

        Raises ``UnsupportedRuleError`` for profiles whose rule this core version does not replay.
        """
        if (
            profile.dispatcher is not Dispatcher.KEY_SHARED
            or profile.ordering is not OrderingRule.DRAINING_HASHES
            or not profile.consistent_hashing
            or not {"added_ranges", "remaining_unacked_count", "look_ahead_needs_more"} <= profile.changes
            or profile.settings["preciseDispatcherFlowControl"]
        ):
            raise UnsupportedRuleError(
                f"{profile.name}: this core version replays Key_Shared with consistent hashing and draining hashes "
                "as 4.0.13+ and 4.2.4+ do, and Failover/Exclusive; order and duplicates are audited all the same"
            )
        self.profile = profile
        values, ids = np.unique(hashes, return_inverse=True)
        self._hash_values = values.astype(np.int64)
        self.state = st_.new_state(
            ids.astype(np.int32), num_messages.astype(np.int32), len(values), max(max_consumers, 1)
        )
        self._selector = ConsistentHashingSelector(
            profile.number("subscriptionKeySharedConsistentHashingReplicaPoints"), profile.hash_space
        )
        self._slots: dict[int, int] = {}
        self._numbers: list[int] = []
        self._levels: dict[int, int] = {}  # slot → priority level
        self._names: dict[int, str] = {}
        self._last_read = -1  # highest entry ever handed to a consumer
        n = len(hashes)
        self._plan = np.zeros(n + 3, np.int64)
        self._attempts = np.zeros(1 + 2 * (n + 1), np.int64)
        self._outcome = np.zeros(n + 1, np.int64)
        self._held = np.zeros(n + 1, np.int64)
        self._configure()

    def _configure(self) -> None:
        s, number = self.state.s, self.profile.number
        s[st_.READ_BATCH_SIZE] = s[st_.MAX_READ_BATCH_SIZE] = number("dispatcherMaxReadBatchSize")
        s[st_.MAX_UNACKED_CONSUMER] = number("maxUnackedMessagesPerConsumer")
        s[st_.MAX_UNACKED_SUBSCRIPTION] = number("maxUnackedMessagesPerSubscription")
        s[st_.LOOK_AHEAD_PER_CONSUMER] = number("keySharedLookAheadMsgInReplayThresholdPerConsumer")
        s[st_.LOOK_AHEAD_PER_SUBSCRIPTION] = number("keySharedLookAheadMsgInReplayThresholdPerSubscription")
        s[st_.IN_ORDER] = s[st_.TRACK_DRAINING] = s[st_.LAZY_RELEASE_COUNTS] = 1
        s[st_.BLOCKED_HASH_MEMORY] = int("blocked_hash_memory" in self.profile.changes)

    # --- membership: a new epoch -----------------------------------------------------------------------------

    def join(self, consumer: int, name: str, priority_level: int = 0) -> None:
        """The base dispatcher has the consumer in its list; the selector follows with ``join_selector``."""
        if consumer in self._slots:
            raise IllegalTransitionError(
                f"consumer {consumer} was added twice", rule="one add per connection"
            )
        s = self.state.s
        slot = len(self._numbers)
        if slot >= len(self.state.permits):
            raise IllegalTransitionError(
                f"consumer {consumer}: more consumers than announced", rule="capacity"
            )
        self._slots[consumer] = slot
        self._numbers.append(consumer)
        self._levels[slot] = priority_level
        if s[st_.N_CONSUMERS] == 0:
            if s[st_.PENDING_READ] or s[st_.PENDING_REPLAY]:
                s[st_.REWIND_DUE] = 1
            else:
                cursor.rewind(self.state)
            replay_set.clear_replay(self.state)
        connected = [*self._connected_slots(), slot]
        if len(connected) > 1 and self._levels[slot] < self._levels[connected[-2]]:
            connected.sort(key=lambda item: self._levels[item])
        self._set_connected(connected)
        self.state.connected[slot] = 1
        self._names[consumer] = name

    def join_selector(self, consumer: int) -> tuple[Pairs, list[Released]]:
        """The selector has the consumer. Returns hashes that began to drain, and releases by hashes that came back."""
        moved = self._selector.add(consumer, self._names[consumer])
        self._own_hashes()
        return self._register(moved, skip=consumer)

    def leave(self, consumer: int) -> Leave:
        """The consumer is gone: selector first, then its pending entries, then the hashes that moved."""
        slot = self.slot(consumer)
        if not self.state.connected[slot]:
            raise IllegalTransitionError(f"consumer {consumer} left twice", rule="one removal per connection")
        st, s = self.state, self.state.s
        moved = self._selector.remove(consumer)
        self._own_hashes()
        remaining = [other for other in self._connected_slots() if other != slot]
        self._set_connected(remaining)
        st.connected[slot] = 0
        held = self._held_by(slot)
        closed: list[Released] = []
        if not remaining:
            closed = [self._let_go(slot, entry) for entry in held]
            draining_hashes.clear_draining(st)
            replay_set.clear_replay(st)
            st.redelivery_count[:] = 0
            s[st_.TOTAL_PERMITS] = s[st_.TOTAL_UNACKED] = s[st_.BLOCKED_ON_UNACKED] = 0
            return Leave(closed, [], [], cleared=True)
        permits.add_unacked(st, slot, -int(st.unacked[slot]))
        for entry in held:
            replay_set.add_to_replay(st, entry, int(st.pending_hash[entry]))
            closed.append(self._let_go(slot, entry))
        s[st_.TOTAL_PERMITS] -= st.permits[slot]
        draining, returned = self._register(moved, skip=consumer)
        return Leave(closed, draining, returned, cleared=False)

    def _register(self, moved: assignments.Impacted, skip: int) -> tuple[Pairs, list[Released]]:
        draining: Pairs = []
        returned: list[Released] = []
        for consumer, ranges in moved.removed.items():
            if consumer == skip:
                continue
            for entry in self._held_by(self.slot(consumer)):
                hash_id = int(self.state.pending_hash[entry])
                if assignments.contains(ranges, int(self._hash_values[hash_id])):
                    if not draining_hashes.drain(self.state, self.slot(consumer), hash_id):
                        raise IllegalTransitionError(
                            f"hash {self._hash_values[hash_id]} drains for another consumer than {consumer}",
                            rule="at most one owner per draining hash",
                        )
                    draining.append((consumer, int(self._hash_values[hash_id])))
        for consumer, ranges in moved.added.items():
            if consumer == skip:
                continue
            slot = self.slot(consumer)
            for entry in self._held_by(slot):
                hash_id = int(self.state.pending_hash[entry])
                if self.state.drain_owner[hash_id] == slot and assignments.contains(
                    ranges, int(self._hash_values[hash_id])
                ):
                    before = draining_hashes.release(self.state, slot, hash_id)
                    returned.append(Released(consumer, int(self._hash_values[hash_id]), int(before)))
        return draining, returned

    def _own_hashes(self) -> None:
        owners = self._selector.select_array(self._hash_values)
        self.state.hash_owner[:] = [self._slots.get(int(owner), st_.NOBODY) for owner in owners]

    # --- flow, acks, redelivery ------------------------------------------------------------------------------

    def flow(self, consumer: int, count: int) -> bool:
        """A client's permits are counted; returns whether the dispatcher will be told."""
        return bool(permits.count_flow(self.state, self.slot(consumer), count))

    def flow_applied(self, consumer: int, count: int) -> None:
        """Permits have reached the dispatcher; unknown consumers are ignored."""
        if consumer in self._slots and self.state.connected[self._slots[consumer]]:
            self.state.s[st_.TOTAL_PERMITS] += count

    def pending_ack_removed(self, entry: int) -> Released:
        """A pending ack takes its effect: removed from whoever holds it, and released from draining."""
        self._check_stored(entry)
        slot = int(self.state.holder[entry])
        if slot == st_.NOBODY:
            raise IllegalTransitionError(
                f"entry {entry} is pending on nobody", rule="only a pending ack is removed"
            )
        return self._let_go(slot, entry)

    def acked(self, consumer: int, messages: int) -> bool:
        """The owner's counters after one of its pending entries was acknowledged; returns whether parked permits flow."""
        slot = self.slot(consumer)
        permits.add_unacked(self.state, slot, -messages)
        return bool(permits.unblock_after_ack(self.state, slot))

    def acknowledge(self, entry: int) -> None:
        """The cursor deletes an entry."""
        cursor.acknowledge(self.state, entry)
        self.state.redelivery_count[entry] = 0

    def redeliver(self, consumer: int, entries: Sequence[int]) -> None:
        """Entries that the consumer asked for again, already off its pending acks, go to the replay set without hash."""
        slot = self.slot(consumer)
        for entry in entries:
            if replay_set.add_to_replay(self.state, entry, st_.NO_HASH):
                self.state.redelivery_count[entry] += 1
        permits.add_unacked(self.state, slot, -int(self.state.num_messages[list(entries)].sum()))
        permits.unblock(self.state, slot)

    # --- reads and rounds ------------------------------------------------------------------------------------

    def attempt_read(self) -> Read:
        """``readMoreEntries``."""
        dispatch_loop.plan_read(self.state, self._plan, self._attempts)
        kind, count = int(self._plan[0]), int(self._plan[1])
        refused = tuple(self._refused())
        if kind == dispatch_loop.REPLAY_READ:
            entries = tuple(int(entry) for entry in self._plan[2 : 2 + count])
            for entry in entries:
                if self.state.deleted[entry]:
                    replay_set.remove_from_replay(self.state, entry)
            if all(self.state.deleted[entry] for entry in entries):
                self.state.s[st_.PENDING_REPLAY] = 0
            return Read("Replay", entries=entries, refused=refused)
        if kind == dispatch_loop.NORMAL_READ:
            return Read("Normal", max_entries=count, refused=refused)
        return Read("Backoff" if kind == dispatch_loop.BACK_OFF else "None", refused=refused)

    def read_cancelled(self) -> None:
        """A waiting normal read was cancelled."""
        self.state.s[st_.PENDING_READ] = 0

    def read_done(self, kind: str, entries: Sequence[int]) -> bool:
        """A read result reaches the dispatcher. Returns False when it is dropped and the cursor rewound instead."""
        s = self.state.s
        if kind == "Normal":
            s[st_.PENDING_READ] = 0
            if entries:
                cursor.moved_by_read(self.state, max(entries))
            if s[st_.REWIND_DUE]:
                s[st_.REWIND_DUE] = 0
                cursor.rewind(self.state)
                return False
        else:
            s[st_.PENDING_REPLAY] = 0
        s[st_.SEND_IN_PROGRESS] = 1
        return True

    def round(self, kind: str, entries: Sequence[int]) -> Round:
        """Dispatch one read result. ``finish_round`` follows when the log says whether there is more to read."""
        st = self.state
        array = np.asarray(entries, dtype=np.int64)
        before = {number: int(st.permits[slot]) for number, slot in self._slots.items() if st.connected[slot]}
        wants = bool(dispatch_loop.dispatch(st, kind == "Replay", array, self._outcome, self._attempts))
        result = Round(wants_look_ahead=wants, refused=self._refused(), permits_before=before)
        for entry, outcome in zip(entries, self._outcome.tolist(), strict=False):
            if outcome >= 0:
                result.sent.setdefault(self._numbers[outcome], []).append(entry)
                self._last_read = max(self._last_read, entry)
            elif outcome == dispatch_loop.NOT_TOUCHED:
                result.untouched.append(entry)
            else:
                result.to_replay.append(entry)
        result.in_replay = int(st.s[st_.N_REPLAY])
        return result

    def finish_round(self, outcome: Round, *, has_more: bool) -> bool:
        """End of a round; returns whether the next replay scan is skipped once to look ahead."""
        self.state.s[st_.SEND_IN_PROGRESS] = 0
        if outcome.wants_look_ahead and has_more:
            self.state.s[st_.SKIP_NEXT_REPLAY] = 1
            return True
        return False

    def no_look_ahead(self) -> None:
        """Take back the look-ahead of the last round: the cursor had nothing more when it was decided."""
        self.state.s[st_.SKIP_NEXT_REPLAY] = 0

    # --- what others may ask ---------------------------------------------------------------------------------

    def slot(self, consumer: int) -> int:
        """The consumer's slot; raises ``IllegalTransitionError`` for a consumer that was never added."""
        if consumer not in self._slots:
            raise IllegalTransitionError(
                f"consumer {consumer} was never added", rule="events come from known consumers"
            )
        return self._slots[consumer]

    def connected(self) -> list[int]:
        """Connected consumers in the dispatcher's order."""
        return [self._numbers[slot] for slot in self._connected_slots()]

    def holder(self, entry: int) -> int | None:
        """Who holds a sent entry."""
        self._check_stored(entry)
        slot = int(self.state.holder[entry])
        return None if slot == st_.NOBODY else self._numbers[slot]

    def held(self, consumer: int) -> list[int]:
        """Entries pending on a consumer, in position order."""
        return self._held_by(self.slot(consumer))

    def assignments(self) -> assignments.Assignments:
        """The selector's range report."""
        return self._selector.assignments()

    def drains_for(self, sticky_hash: int) -> int | None:
        """Whom a hash drains for; None when it does not drain."""
        at = int(np.searchsorted(self._hash_values, sticky_hash))
        if at == len(self._hash_values) or self._hash_values[at] != sticky_hash:
            return None
        slot = int(self.state.drain_owner[at])
        return None if slot == st_.NOBODY else self._numbers[slot]

    def stats(self) -> dict[str, object]:
        """The dispatcher as ``pulsar-admin topics stats`` would show it, as far as this first cut knows it."""
        s, draining = self.state.s, self.draining()
        consumers = []
        for number in self.connected():
            slot = self._slots[number]
            own = [
                (h, refs, attempts)
                for h, (owner, refs, attempts) in sorted(draining.items())
                if owner == number
            ]
            consumers.append(
                {
                    "consumer": number,
                    "consumerName": self._names[number],
                    "availablePermits": int(self.state.permits[slot]),
                    "unackedMessages": int(self.state.unacked[slot]),
                    "blockedConsumerOnUnackedMsgs": bool(self.state.blocked[slot]),
                    "drainingHashesCount": len(own),
                    "drainingHashesClearedTotal": int(self.state.cleared_total[slot]),
                    "drainingHashesUnackedMessages": sum(refs for _, refs, _ in own),
                    "drainingHashes": [{"hash": h, "unackMsgs": r, "blockedAttempts": a} for h, r, a in own],
                }
            )
        return {"msgInReplay": int(s[st_.N_REPLAY]), "consumers": consumers}

    def draining(self) -> dict[int, tuple[int, int, int]]:
        """Hash → (owner, reference count, blocked attempts)."""
        ids = np.flatnonzero(self.state.drain_owner != st_.NOBODY)
        return {
            int(self._hash_values[i]): (
                self._numbers[self.state.drain_owner[i]],
                int(self.state.drain_refs[i]),
                int(self.state.drain_attempts[i]),
            )
            for i in ids
        }

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the state breaks an invariant of any room; for tests and strict runs."""
        st, s = self.state, self.state.s
        assert s[st_.N_REPLAY] == st.in_replay.sum(), "replay count"
        known = st.replay_hash[st.replay_hash != st_.NO_HASH]
        assert (np.bincount(known, minlength=len(st.replay_count)) == st.replay_count).all(), (
            "replay hash counts"
        )
        assert st.deleted[: s[st_.MARK_DELETE] + 1].all(), "mark-delete covers acknowledged entries only"
        assert s[st_.READ_POSITION] > s[st_.MARK_DELETE], "read position behind mark-delete"
        pending: dict[tuple[int, int], int] = {}
        for entry in np.flatnonzero(st.holder != st_.NOBODY):
            pair = (int(st.holder[entry]), int(st.pending_hash[entry]))
            pending[pair] = pending.get(pair, 0) + 1
        for hash_id in np.flatnonzero(st.drain_owner != st_.NOBODY):
            pair = (int(st.drain_owner[hash_id]), int(hash_id))
            assert 1 <= st.drain_refs[hash_id] <= pending.get(pair, 0), (
                "draining references without pending entries"
            )

    # --- inside ----------------------------------------------------------------------------------------------

    def _check_stored(self, entry: int) -> None:
        if not 0 <= entry < len(self.state.holder):
            raise IllegalTransitionError(
                "an entry that was never stored", rule="only stored entries are sent"
            )

    def _connected_slots(self) -> list[int]:
        return [int(slot) for slot in self.state.order[: self.state.s[st_.N_CONSUMERS]]]

    def _set_connected(self, slots: list[int]) -> None:
        self.state.order[: len(slots)] = slots
        self.state.s[st_.N_CONSUMERS] = len(slots)

    def _held_by(self, slot: int) -> list[int]:
        first = int(self.state.s[st_.MARK_DELETE]) + 1
        count = pending_acks.held_by(self.state, slot, first, self._last_read + 1, self._held)
        return [int(entry) for entry in self._held[:count]]

    def _let_go(self, slot: int, entry: int) -> Released:
        hash_value = int(self._hash_values[self.state.pending_hash[entry]])
        before = int(pending_acks.let_go(self.state, slot, entry))
        if before < 0:
            raise IllegalTransitionError(
                f"hash {hash_value} drains for another consumer than {self._numbers[slot]}",
                rule="only its owner releases a draining hash",
            )
        return Released(self._numbers[slot], hash_value, before)

    def _refused(self) -> Pairs:
        count = int(self._attempts[0])
        pairs = self._attempts[1 : 1 + 2 * count].reshape(-1, 2)
        return [(self._numbers[slot], int(self._hash_values[hash_id])) for slot, hash_id in pairs.tolist()]
