"""Key_Shared dispatcher of 4.x and 4.0.0-preview.1: events in, decisions out.

Adds to ``multiple_consumers`` a selector (``selectors``), an ordering rule (``ordering``) and the read loop (``read_loop``).
A join or a leave recomputes who owns which hash and what that moved: one *epoch*. ``key_shared_classic`` is the variant of
3.x and of the classic dispatcher of 4.x.

Source: PersistentStickyKeyDispatcherMultipleConsumers (4.x).

>>> import numpy as np
>>> from dispatch_core.broker import profiles
>>> d = KeySharedDispatcher(profiles.resolve("4.2.4"), np.array([11858, 51461, 11858]), np.ones(3, np.int64), 3)
>>> d.join(1, "c1")
>>> d.join_selector(1)
([], [])
>>> d.flow(1, 2)
True
>>> d.flow_applied(1, 2)
>>> d.attempt_read().max_entries
2
>>> d.read_done("Normal", [0, 1])
True
>>> d.round("Normal", [0, 1]).sent
{1: [0, 1]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import commands, cursor, membership, read_loop, replay_set
from dispatch_core.broker import state as st_
from dispatch_core.broker.gates import replay_set_is_full
from dispatch_core.broker.multiple_consumers import (
    Between,
    MultipleConsumersDispatcher,
    Pairs,
    Released,
    Round,
    nothing_between,
)
from dispatch_core.broker.ordering import draining_hashes, last_sent_position, recently_joined
from dispatch_core.broker.profiles import Dispatcher, OrderingRule, Profile
from dispatch_core.broker.selectors import assignments, factory
from dispatch_core.broker.selectors.auto_split import AutoSplitSelector
from dispatch_core.broker.selectors.hashes_by_place import HashesByPlace
from dispatch_core.broker.selectors.selector import Announced, Selector
from dispatch_core.errors import IllegalTransitionError, UnsupportedRuleError


@dataclass(frozen=True, slots=True)
class Leave:
    """Effect of a removal. When the last consumer leaves, draining is cleared as a whole and the lists are empty."""

    closed: list[Released]  # releases of the pending acks that were closed
    draining: Pairs  # hashes that began to drain, one pair per pending entry
    returned: list[Released]  # releases by hashes that came back to the consumer they drained for
    cleared: bool  # the last consumer has gone


class KeySharedDispatcher(MultipleConsumersDispatcher):
    """A Key_Shared dispatcher; see ``MultipleConsumersDispatcher`` for what consumers and entries are.

    Raises ``UnsupportedRuleError`` for profiles of other dispatchers, and for ``preciseDispatcherFlowControl``: there the
    broker sizes a read by a consumer that it picks at random.
    """

    _dispatcher = Dispatcher.KEY_SHARED
    _is_classic = False
    #: The lowest position that may be remembered for a joining consumer; -1 = before the first entry.
    _lowest_when_joining = -1

    def __init__(
        self,
        profile: Profile,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int,
    ) -> None:
        if profile.dispatcher is not self._dispatcher or profile.settings["preciseDispatcherFlowControl"]:
            raise UnsupportedRuleError(
                f"{profile.name}: not a Key_Shared dispatcher of 4.x whose reads are determined "
                "(preciseDispatcherFlowControl takes a random consumer); order and duplicates are audited all the same"
            )
        super().__init__(profile, hashes, num_messages, max_consumers)
        self._selector: Selector = self._new_selector(profile)
        self._by_place = HashesByPlace(self._selector.places)
        self._slot_of_hash = np.empty(0, np.int32)  # scratch of one step; NOBODY between them
        self._when_joining: dict[int, int] = {}  # consumer → position that its rule remembered when it joined
        s, number = self.state.s, profile.number
        s[st_.LOOK_AHEAD_PER_CONSUMER] = number("keySharedLookAheadMsgInReplayThresholdPerConsumer")
        s[st_.LOOK_AHEAD_PER_SUBSCRIPTION] = number("keySharedLookAheadMsgInReplayThresholdPerSubscription")
        s[st_.IN_ORDER] = int(not profile.allow_out_of_order)
        s[st_.TRACK_DRAINING] = int(profile.ordering is OrderingRule.DRAINING_HASHES)
        s[st_.TRACK_LAST_SENT] = int(profile.ordering is OrderingRule.LAST_SENT_POSITION)
        s[st_.LAZY_RELEASE_COUNTS] = int("added_ranges" in profile.changes)
        s[st_.BLOCKED_HASH_MEMORY] = int("blocked_hash_memory" in profile.changes)
        s[st_.REPLAY_BY_PERMITS] = int("out_of_order_by_permits" in profile.changes)
        needs_more = "look_ahead_needs_more" if s[st_.IN_ORDER] else "out_of_order_by_permits"
        s[st_.LOOK_AHEAD_NEEDS_MORE] = int(needs_more in profile.changes)

    def _new_selector(self, profile: Profile) -> Selector:
        """Make the selector."""
        return factory.build(profile)

    # --- membership: a new epoch -----------------------------------------------------------------------------

    def join(self, consumer: int, name: str, priority_level: int = 0) -> None:
        """Add a consumer to the list of the dispatcher; the selector follows with ``join_selector``."""
        self._add_member(consumer, name, priority_level)

    def join_selector(self, consumer: int, ranges: Announced = None) -> tuple[Pairs, list[Released]]:
        """Add a consumer to the selector; returns hashes that began to drain, and releases by hashes that came back.

        ``ranges``: those the consumer announced (STICKY). Raises ``SelectorRefusedError``; ``refuse`` follows then.
        """
        return self.register(self.select_in(consumer, ranges), skip=consumer)

    def refuse(self, consumer: int) -> None:
        """Take a consumer that the selector refused off the list again."""
        self._drop_member(consumer)

    def select_in(self, consumer: int, ranges: Announced = None) -> assignments.Impacted:
        """First step of ``join_selector``: add the consumer to the selector. Returns what moved, for ``register``."""
        self._check_connected(consumer)
        moved = self._selector.add(consumer, self._names[consumer], ranges)
        self._own_moved(moved)
        position = self._remember_position(self.slot(consumer))
        if position is not None:
            self._when_joining[consumer] = position
        return moved

    def _remember_position(self, slot: int) -> int | None:
        """Apply the rule of recently joined consumers to one that joins; returns the position, None without such a rule."""
        if not self.state.s[st_.TRACK_LAST_SENT]:
            return None
        return int(last_sent_position.consumer_joined(self.state, slot))

    def restore_ranges(self, ends: Mapping[int, int]) -> bool:
        """Set the ends of split ranges, by consumer, to those that a checkpoint of the dispatcher has; nothing drains.

        Returns False, with nothing changed, for a selector whose ranges follow from who is connected, and for ends that
        cannot be.
        """
        if not isinstance(self._selector, AutoSplitSelector):
            return False
        try:
            self._own_moved(self._selector.restore(ends))
        except IllegalTransitionError:
            return False
        return True

    def leave(self, consumer: int) -> Leave:
        """Remove a consumer: from the selector, then its pending entries, then what is known of the hashes that moved."""
        left = self.drop(consumer, self.select_out(consumer))
        self.forget(consumer)
        return left

    def select_out(self, consumer: int) -> assignments.Impacted:
        """First step of ``leave``: remove the consumer from the selector. Returns what moved, for ``drop``."""
        self._check_connected(consumer)
        moved = self._selector.remove(consumer)
        self._own_moved(moved)
        return moved

    def drop(self, consumer: int, moved: assignments.Impacted, between: Between = nothing_between) -> Leave:
        """Second step of ``leave``: take back the consumer's pending entries, and register what moved.

        ``between(step)`` is called before each of its steps 0, 1, 2 (close, hashes lost, hashes won).
        """
        st = self.state
        between(0)
        slot, pending = self._drop_member(consumer)
        if not st.s[st_.N_CONSUMERS]:
            self._let_go_all(slot, pending, closing=False)
            draining_hashes.clear_draining(st)
            replay_set.clear_replay(st)
            return Leave([], [], [], cleared=True)
        membership.replay_pending(st, np.asarray(pending, dtype=np.int64))
        released = self._let_go_all(slot, pending, closing=True)
        closed = released if st.s[st_.TRACK_DRAINING] else []
        draining, returned = self.register(moved, consumer, lambda step: between(step + 1))
        if st.s[st_.TRACK_DRAINING]:
            draining_hashes.forget_consumer(st, slot)
        return Leave(closed, draining, returned, cleared=False)

    def forget(self, consumer: int) -> bool:
        """Last step of ``leave``, after the read attempt of the second: forget what its rule remembers of the consumer.

        Returns whether the broker attempts another read: recently joined consumers were freed, or there is something to
        replay. Under draining hashes there is nothing to forget.
        """
        if not self.state.s[st_.TRACK_LAST_SENT]:
            return False
        freed = bool(last_sent_position.consumer_left(self.state, self.slot(consumer)))
        return freed or self.state.s[st_.N_REPLAY] > 0

    def register(
        self, moved: assignments.Impacted, skip: int, between: Between = nothing_between
    ) -> tuple[Pairs, list[Released]]:
        """Let hashes that moved away drain for who holds entries of them, and release those that came back.

        Args: ``moved``: what a join or a leave moved; ``skip``: the consumer that joins or leaves, whose entries do not
        count; ``between(step)``: called before its steps 0 and 1 (hashes lost, hashes won). Returns a (consumer, hash) pair
        per pending entry that was counted, and the releases. Source: registerDrainingHashes (PIP-379; #24736).
        """
        between(0)
        draining: Pairs = []
        returned: list[Released] = []
        if not self.state.s[st_.TRACK_DRAINING]:
            return draining, returned
        st = self.state
        entries = self._pending_among(moved.lost, skip)
        drained = int(membership.drain_all(st, entries)) if len(entries) else 0
        if drained < len(entries):
            hash_id = st.pending_hash[entries[drained]]
            raise IllegalTransitionError(
                f"hash {self._hash_ids.values[hash_id]} drains for another consumer than "
                f"{self._numbers[st.holder[entries[drained]]]}",
                rule="at most one owner per draining hash",
            )
        draining.extend(self._holders_and_hashes(entries))
        between(1)
        if (
            "added_ranges" not in self.profile.changes
        ):  # #24736: before, nothing is released for hashes that come back
            return draining, returned
        entries = self._pending_among(moved.won, skip)
        if not len(entries):
            return draining, returned
        before = np.empty(len(entries), np.int64)
        count = int(membership.release_returned(st, entries, before))
        pairs = self._holders_and_hashes(entries[:count])
        returned.extend(Released(*pair, n) for pair, n in zip(pairs, before[:count].tolist(), strict=True))
        return draining, returned

    def _pending_among(self, ranges: assignments.OwnedRanges, skip: int) -> st_.I64:
        """List the entries pending on the owners of ``ranges``, of hashes in these: consumer by consumer, ascending."""
        overtaken = np.asarray(self.overtaken(), dtype=np.int64)
        first = int(self.state.s[st_.MARK_DELETE]) + 1
        if not len(overtaken) and first > self._last_sent:
            return np.empty(0, np.int64)
        owners = [consumer for consumer in dict.fromkeys(ranges.owners.tolist()) if consumer != skip]
        rank = {self.slot(consumer): at for at, consumer in enumerate(owners)}
        others = ranges.owners != skip
        bounds = np.stack([ranges.starts[others], ranges.ends[others]])
        slots = np.array([self._slots[consumer] for consumer in ranges.owners[others].tolist()], np.int32)
        ids, which = self._by_place.within(*bounds)
        if not len(ids):
            return np.empty(0, np.int64)
        if len(self._slot_of_hash) < len(self._hash_ids):
            self._slot_of_hash = np.full(len(self._hash_ids), st_.NOBODY, np.int32)
        self._slot_of_hash[ids] = slots[which]
        count = membership.pending_among(
            self.state, self._slot_of_hash, overtaken, first, self._last_sent + 1, self._pending
        )
        self._slot_of_hash[ids] = st_.NOBODY
        entries = self._pending[:count]
        order = [rank[slot] for slot in self.state.holder[entries].tolist()]
        return entries[np.argsort(np.asarray(order, dtype=np.int64), kind="stable")]

    def _holders_and_hashes(self, entries: st_.I64) -> Pairs:
        """Return for each pending entry its consumer and its hash."""
        if not len(entries):
            return []
        slots = self.state.holder[entries].tolist()
        hashes = self._hash_ids.values[self.state.pending_hash[entries]].tolist()
        return [(self._numbers[slot], value) for slot, value in zip(slots, hashes, strict=True)]

    def _own_moved(self, moved: assignments.Impacted) -> None:
        """Look up the owners of the hashes that a membership change touched."""
        self._by_place.extend(self._hash_ids.values)
        if moved.touched is None:
            self._own_hashes(np.arange(len(self._hash_ids)))
        else:
            self._own_hashes(self._by_place.within(*moved.touched)[0])

    def _own_hashes(self, ids: st_.I64) -> None:
        """Look up the owners of these hash ids in the selector."""
        if not len(ids):
            return
        self.state.hash_owner[ids] = self._slots_of(self._selector.select_array(self._hash_ids.values[ids]))

    # --- the window of the log -------------------------------------------------------------------------------

    def _new_hashes(self, known: int) -> None:
        self._own_hashes(np.arange(known, len(self._hash_ids)))

    def extend(
        self,
        drop: int,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int = 0,
    ) -> None:
        """See ``MultipleConsumersDispatcher.extend``."""
        super().extend(drop, hashes, num_messages, max_consumers)
        lowest = self._lowest_when_joining
        self._when_joining = {
            consumer: position if position < lowest else max(position - drop, lowest)
            for consumer, position in self._when_joining.items()
        }

    # --- reads and rounds ------------------------------------------------------------------------------------

    def _plan_normal(self) -> None:
        read_loop.plan_normal(self.state, self._plan)

    def replay_positions(self, sticky_hash: int) -> list[int]:
        """Return the entries of the replay set that have this hash stored, ascending."""
        hash_id = self.id_of_hash(sticky_hash)
        if hash_id is None:
            return []
        st = self.state
        first, last = int(st.s[st_.REPLAY_LOW]), int(st.s[st_.REPLAY_HIGH])
        waiting = (st.in_replay[first:last] == 1) & (st.replay_hash[first:last] == hash_id)
        positions: list[int] = (np.flatnonzero(waiting) + first).tolist()
        return positions

    def remembers_blocked_hashes(self) -> bool:
        """True if a hash that a scan or a round has held back stays so for the rest of it (#23874)."""
        return bool(self.state.s[st_.BLOCKED_HASH_MEMORY])

    def round(
        self,
        kind: str,
        entries: Sequence[int],
        between: Between = nothing_between,
        within: Callable[[], None] | None = None,
    ) -> Round:
        """Dispatch one read result. ``finish_round`` follows when the log says whether there is more to read.

        ``between(step)`` is called before each of its steps 0, 1, 2 (choose, send, what is next). ``within()``: called when
        a consumer is chosen for the first entry, for what another thread does then. Entries of a round that begins when all
        consumers have left are dropped; the first consumer that comes back finds a rewound cursor.
        """
        return self._round(kind, entries, between, partial(self._choose, within=within))

    def _round(
        self,
        kind: str,
        entries: Sequence[int],
        between: Between,
        choose: Callable[[Round, bool, st_.I64], int],
    ) -> Round:
        """Dispatch one read result (``round``); ``choose``: its first step, as ``_choose``."""
        if entries:
            self._check_stored(min(entries))
            self._check_stored(max(entries))
        st, is_replay = self.state, kind == "Replay"
        array, result = np.asarray(entries, dtype=np.int64), Round()
        between(0)
        if entries and not st.s[st_.N_CONSUMERS]:
            cursor.rewind(st)
            between(1)
            between(2)
            result.dropped, result.in_replay = True, int(st.s[st_.N_REPLAY])
            return result
        chosen = choose(result, is_replay, array)
        between(1)
        permits = st.permits.tolist()
        result.permits_before = {self._numbers[slot]: permits[slot] for slot in self._connected_slots()}
        if self._unacked_indexes:
            result.already_acked = self._already_acked(array)
        self._note_several_holders(array)
        read_loop.send_groups(st, is_replay, array, self._outcome)
        between(2)
        self._collect(result, entries)
        self._conclude(result, array, chosen)
        result.in_replay = int(st.s[st_.N_REPLAY])
        return result

    def _choose(
        self, result: Round, is_replay: bool, entries: st_.I64, within: Callable[[], None] | None = None
    ) -> int:
        """First step of a round: choose a consumer for each entry. Returns a number for ``_conclude``."""
        if within is None:
            chosen = commands.choose(
                self.state, self._is_classic, is_replay, entries, self._outcome, self._attempts
            )
        else:
            chosen = self._choose_in_parts(is_replay, entries, within)
        result.refused = self._refused()
        return int(chosen)

    def _choose_in_parts(self, is_replay: bool, entries: st_.I64, within: Callable[[], None]) -> bool:
        """Choose as ``read_loop.group`` does, with a call of ``within`` behind the first entry."""
        st, outcome, attempts = self.state, self._outcome, self._attempts
        if not read_loop.begin_group(st, is_replay, entries, outcome, attempts):
            return False
        look = not replay_set_is_full(st, 0)
        read_loop.group_part(st, is_replay, entries, 0, 1, look, outcome, attempts)
        within()
        read_loop.group_part(st, is_replay, entries, 1, len(entries), look, outcome, attempts)
        read_loop.end_group(st, entries)
        return bool(look)

    def _note_several_holders(self, entries: st_.I64) -> None:
        """Note, before entries are sent, which of them another consumer than the chosen one has (``several_holders``)."""
        chosen, holders = self._outcome[: len(entries)], self.state.holder[entries]
        again = (chosen >= 0) & (holders != st_.NOBODY) & (holders != chosen)
        for slot, entry in zip(chosen[again].tolist(), entries[again].tolist(), strict=True):
            self._sent_deleted.update(self._several.sent(self.state, slot, [entry]))

    def _conclude(self, result: Round, entries: st_.I64, chosen: int) -> None:
        """Last step of a round: say what follows it, as far as that is decided by now."""
        looks = read_loop.wants_look_ahead(self.state, entries, self._outcome) if chosen else False
        result.wants_look_ahead = bool(looks)

    def _collect(self, result: Round, entries: Sequence[int]) -> None:
        """Sort the entries of a round by their outcome."""
        for entry, outcome in zip(entries, self._outcome[: len(entries)].tolist(), strict=True):
            if outcome >= 0:
                result.sent.setdefault(self._numbers[outcome], []).append(entry)
                self._note_sent(entry)
            elif outcome == read_loop.NOT_TOUCHED:
                result.untouched.append(entry)
            elif outcome == read_loop.REFUSED:
                result.not_taken.append(entry)
            else:
                result.to_replay.append(entry)

    def finish_round(self, outcome: Round, *, has_more: bool) -> bool:
        """End a round; returns whether the next scan of the replay set is skipped once to look ahead."""
        if outcome.dropped:
            return self._end_dropped(outcome)
        answer = int(commands.end_round(self.state, outcome.wants_look_ahead, has_more, len(outcome.sent)))
        outcome.retry = bool(answer & commands.RETRIES)
        outcome.look_ahead_due = bool(self.state.s[st_.SKIP_NEXT_REPLAY])
        return bool(answer & commands.LOOKS_AHEAD)

    def _end_dropped(self, outcome: Round) -> bool:
        """End a round whose entries were dropped: nothing follows."""
        commands.finish_round(self.state, False)
        outcome.look_ahead_due = bool(self.state.s[st_.SKIP_NEXT_REPLAY])
        return False

    def look_ahead_needs_more(self) -> bool:
        """True if a round looks ahead only if the cursor has more entries (#26236; out of order: #26268)."""
        return bool(self.state.s[st_.LOOK_AHEAD_NEEDS_MORE])

    def no_look_ahead(self) -> None:
        """Take back the look-ahead of the last round: the cursor had nothing more when it was decided."""
        self.state.s[st_.SKIP_NEXT_REPLAY] = 0

    # --- queries ---------------------------------------------------------------------------------------------

    @property
    def selector(self) -> Selector:
        """The selector. Only the dispatcher itself changes it."""
        return self._selector

    def assignments(self) -> assignments.Assignments:
        """Return the selector's range report."""
        return self._selector.assignments()

    def owner_of(self, sticky_hash: int) -> int | None:
        """Return the consumer that the selector chooses for a hash; None = nobody."""
        return self._selector.select(sticky_hash)

    def drains_for(self, sticky_hash: int) -> int | None:
        """Return the consumer that a hash drains for; None when it does not drain."""
        at = self.id_of_hash(sticky_hash)
        if at is None:
            return None
        slot = int(self.state.drain_owner[at])
        return None if slot == st_.NOBODY else self._numbers[slot]

    def read_when_joining(self, consumer: int) -> int | None:
        """Return ``readPositionWhenJoining``, which only the dispatchers of 3.x and classic keep; here None."""
        return None

    def sent_when_joining(self, consumer: int) -> int | None:
        """Return ``lastSentPositionWhenJoining`` (PIP-282): an entry, -1 = before the first; None = not known then."""
        position = self._when_joining.get(consumer, st_.NOT_TRACKED)
        return None if position == st_.NOT_TRACKED else position

    def recently_joined(self) -> dict[int, int]:
        """Return ``consumersAfterMarkDeletePosition``: consumer → position that its rule remembered, in the broker's order.

        The position is the last sent entry (PIP-282) or the entry at the read position (3.x, classic) when it joined.
        """
        return {self._numbers[slot]: entry for slot, entry in recently_joined.positions(self.state).items()}

    def draining(self) -> dict[int, tuple[int, int, int]]:
        """Return hash → (consumer it drains for, reference count, blocked attempts)."""
        ids = np.flatnonzero(self.state.drain_owner != st_.NOBODY)
        return {
            int(self._hash_ids.values[i]): (
                self._numbers[self.state.drain_owner[i]],
                int(self.state.drain_refs[i]),
                int(self.state.drain_attempts[i]),
            )
            for i in ids
        }

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the state breaks an invariant; for tests and strict runs."""
        super().check_invariants()
        st = self.state
        pending: dict[tuple[int, int], int] = {}
        for entry in np.flatnonzero(st.holder != st_.NOBODY):
            pair = (int(st.holder[entry]), int(st.pending_hash[entry]))
            pending[pair] = pending.get(pair, 0) + 1
        for hash_id in np.flatnonzero(st.drain_owner != st_.NOBODY):
            pair = (int(st.drain_owner[hash_id]), int(hash_id))
            # Before #24736 a hash that comes and goes again is counted twice.
            most = pending.get(pair, 0) if "added_ranges" in self.profile.changes else st.drain_refs[hash_id]
            assert 1 <= st.drain_refs[hash_id] <= most, "draining references without pending entries"
