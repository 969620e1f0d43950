"""Key_Shared dispatcher of 3.x, and the classic one of 4.x: order by read position.

Members, selector, acks and redelivery are those of ``key_shared``. Reads, rounds and the ordering rule differ
(``read_loop_classic``, ``ordering.read_position``). Differences between releases are flags of the profile:

* 4.x keeps hash 0 with every pending ack, 3.x the entry's own. A leaving consumer's entries enter the replay set with it;
* since #22245 a replay read leaves out what cannot be sent;
* since #23795 recently joined consumers are sorted by position;
* until #20335 consumers without permits are remembered for one round.

Source: PersistentStickyKeyDispatcherMultipleConsumers (3.x), PersistentStickyKeyDispatcherMultipleConsumersClassic (4.x).

Two entries of one key, and a consumer with one permit: the second entry waits in the replay set. A consumer that joins now
and takes the key over gets it while the first entry is still with the older consumer. That is the defect of this rule.

>>> import numpy as np
>>> from dispatch_core.broker import profiles
>>> profile = profiles.resolve("3.0.17", {"subscriptionKeySharedUseConsistentHashing": False})
>>> d = ClassicKeySharedDispatcher(profile, np.array([40000, 40000]), np.ones(2, np.int64), 2)
>>> d.join(1, "c1")
>>> _ = d.join_selector(1)
>>> d.flow(1, 1)
True
>>> d.flow_applied(1, 1)
>>> d.attempt_read().kind
'Normal'
>>> d.read_done("Normal", [0, 1])
True
>>> first = d.round("Normal", [0, 1])
>>> first.sent, first.to_replay
({1: [0]}, [1])
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import commands, gates, read_loop, read_loop_classic
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher, Leave
from dispatch_core.broker.multiple_consumers import Between, Round, nothing_between
from dispatch_core.broker.ordering import read_position, recently_joined
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.selectors import assignments

#: The hash that the classic dispatcher of 4.x keeps with every pending ack.
UNKNOWN_HASH = 0


class ClassicKeySharedDispatcher(KeySharedDispatcher):
    """A Key_Shared dispatcher that orders by read position."""

    _dispatcher = Dispatcher.KEY_SHARED_CLASSIC
    _is_classic = True
    counts_entries = False
    _lowest_when_joining = 0

    def __init__(
        self,
        profile: Profile,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int,
    ) -> None:
        super().__init__(profile, hashes, num_messages, max_consumers)
        s = self.state.s
        s[st_.TRACK_LAST_SENT] = s[st_.TRACK_DRAINING] = s[st_.REPLAY_BY_PERMITS] = 0
        s[st_.PRE_FILTERS_REPLAY] = int("replay_pre_filter" in profile.changes)
        s[st_.SORTS_RECENT] = int("recently_joined_sorted" in profile.changes)
        s[st_.STUCK_MEMORY] = int(
            "stuck_consumers" in profile.changes and "no_stuck_consumers" not in profile.changes
        )
        s[st_.NO_REPLAY_ORDER] = int("replay_order" not in profile.changes)
        s[st_.NO_MIN_REPLAY] = int("min_replay" not in profile.changes)
        s[st_.NEVER_STUCK] = int("looks_past_stuck" not in profile.changes)
        unknown = self.id_of_hash(UNKNOWN_HASH)
        s[st_.STORED_HASH] = st_.NO_HASH if keeps_pending_hash(profile) or unknown is None else unknown

    def _other_hashes(self, profile: Profile) -> list[int]:
        return [] if keeps_pending_hash(profile) else [UNKNOWN_HASH]

    # --- membership ------------------------------------------------------------------------------------------

    def _remember_position(self, slot: int) -> int | None:
        if "read_position" not in self.profile.changes:
            return None
        return int(read_position.consumer_joined(self.state, slot))

    def drop(self, consumer: int, moved: assignments.Impacted, between: Between = nothing_between) -> Leave:
        """Second step of ``leave``: take back the consumer's pending entries, to be redelivered. ``forget`` follows."""
        between(0)
        self._requeue_member(consumer)
        between(1)
        between(2)
        return Leave([], [], [], cleared=not self.state.s[st_.N_CONSUMERS])

    def forget(self, consumer: int) -> bool:
        """See ``KeySharedDispatcher.forget``."""
        freed = bool(read_position.consumer_left(self.state, self.slot(consumer)))
        return bool(self.state.s[st_.IN_ORDER]) and (freed or bool(self.state.s[st_.N_REPLAY] > 0))

    def prune(self) -> bool:
        """Free recently joined consumers that mark-delete has reached; returns whether that causes a read attempt."""
        return bool(read_position.prune(self.state))

    # --- reads and rounds ------------------------------------------------------------------------------------

    def reads_ahead(self) -> bool:
        """True if a normal read is in flight: it may have moved the cursor's read position already."""
        return bool(self.state.s[st_.PENDING_READ])

    def read_position_seen(self, entry: int) -> None:
        """Raise the read position to ``entry``, where a read that is in flight has moved the cursor already."""
        s = self.state.s
        s[st_.READ_POSITION] = max(s[st_.READ_POSITION], entry)

    def remember_beginning(self) -> None:
        """Have all consumers remember the present read position: nothing was read since they joined.

        For logs that show only by their first delivery where the subscription begins.
        """
        self._when_joining = dict.fromkeys(self._when_joining, int(self.state.s[st_.READ_POSITION]))

    def pre_filters(self) -> bool:
        """True if a replay read leaves out what cannot be sent (#22245)."""
        return bool(read_loop_classic.pre_filters(self.state))

    def first_held_back(self, entries: Sequence[int]) -> list[int]:
        """Return the first entry that is held back from each recently joined consumer; ``entries``: of the replay set."""
        first: dict[int, int] = {}
        for entry in entries:
            owner = self._owner_of_replay(entry)
            if owner == st_.NOBODY or owner in first:
                continue
            if gates.joined_too_late(self.state, True, owner, entry, True):
                first[owner] = entry
        return list(first.values())

    def may_be_held_back(self) -> bool:
        """True if a consumer that joins now is held back, provided that the read position is far enough."""
        return bool(read_position.holds_back_who_joins(self.state))

    def hold_back_from(self, consumer: int, position: int) -> None:
        """Hold back a consumer that joined when the read position was at ``position``, instead of where it is now held."""
        st, slot = self.state, self.slot(consumer)
        recently_joined.forget(st, slot)
        recently_joined.hold_back(st, slot, position)
        if st.s[st_.SORTS_RECENT]:
            read_position.sort_last(st)
        else:  # in the order in which they joined
            count = int(st.s[st_.N_RECENT])
            st.recent[:count] = np.sort(st.recent[:count])

    def _plan_replay(self) -> None:
        read_loop_classic.plan_replay(self.state, self._plan)

    def _plan_replay_in_parts(self, between: Between, pauses: Sequence[int]) -> None:
        """Plan a replay as ``_plan_replay`` does, with a step before each owner of the entries ``pauses``.

        The pre-filter looks at the other owners first. Mark-delete may move meanwhile, and free recently joined consumers.
        """
        st, plan = self.state, self._plan
        undecided = plan[0] == read_loop.UNDECIDED and not read_loop_classic.takes_stuck_flag(st)
        found = int(read_loop_classic.first_positions(st, plan[1], plan)) if undecided else 0
        entries = plan[2 : 2 + found].copy()
        owners = np.array([self._owner_of_replay(entry) for entry in entries.tolist()])
        last = [self._owner_of_replay(entry) for entry in pauses]
        kept: list[int] = []
        for step, owned in enumerate([~np.isin(owners, last), *(owners == owner for owner in last)], 1):
            if step > 1:
                between(step)
            count = int(owned.sum())
            plan[2 : 2 + count] = entries[owned]
            count = int(read_loop_classic.leave_out_unsendable(st, plan, count))
            kept += plan[2 : 2 + count].tolist()
        plan[2 : 2 + len(kept)] = sorted(kept)
        read_loop_classic.plan_found(st, plan, len(kept))

    def _owner_of_replay(self, entry: int) -> int:
        """Return the slot that owns the hash which the replay set has with an entry; NOBODY = it has none."""
        hash_id = self.state.replay_hash.item(entry)
        return st_.NOBODY if hash_id == st_.NO_HASH else self.state.hash_owner.item(hash_id)

    def _plan_normal(self) -> None:
        read_loop_classic.plan_normal(self.state, self._plan)

    def round_in_turns(
        self, kind: str, entries: Sequence[int], later: Sequence[Collection[int]], between: Between
    ) -> Round:
        """Dispatch one read result as ``round`` does, with a step before the turns of each set of consumers in ``later``.

        The broker gives each consumer its turn, and looks right then at how much it may take, and at mark-delete. What
        other threads do in between, only the turns to come see. ``between(step)`` is called before the turns of all other
        consumers (0), of each set (1, …), and before the last two steps of ``round``. Source: sendMessagesToConsumers.
        """

        def choose(_result: Round, is_replay: bool, array: st_.I64) -> int:
            return self._choose_in_turns(is_replay, array, later, between)

        return self._round(kind, entries, lambda step: between(step + len(later) if step else 0), choose)

    def _choose_in_turns(
        self, is_replay: bool, entries: st_.I64, later: Sequence[Collection[int]], between: Between
    ) -> int:
        """Choose as ``read_loop_classic.group`` does, in turns."""
        st, outcome = self.state, self._outcome[: len(entries)]
        owners = int(read_loop_classic.begin_group(st, is_replay, entries, outcome)) if len(entries) else -1
        turn_of = {
            self.slot(consumer): turn for turn, consumers in enumerate(later, 1) for consumer in consumers
        }
        turn_of_entry = np.array([turn_of.get(slot, 0) for slot in outcome.tolist()], np.int64)
        for turn in range(len(later) + 1):
            if turn:
                between(turn)
            if owners < 0:
                continue
            for slot in self._connected_slots():
                if turn_of.get(slot, 0) == turn:
                    read_loop_classic.allow_owner(st, slot, is_replay)
            in_turn = turn_of_entry == turn
            chosen = outcome[in_turn]
            read_loop_classic.take_allowed(st, entries[in_turn], chosen)
            outcome[in_turn] = chosen
        return owners

    def _conclude(self, result: Round, entries: st_.I64, chosen: int) -> None:
        answer = int(commands.classic_goes_on(self.state, chosen, len(result.sent)))
        result.wants_look_ahead = bool(answer & commands.LOOKS_AHEAD)
        result.retry = bool(answer & commands.RETRIES)
        result.waits_for_writes = bool(answer & commands.WAITS_FOR_WRITES)

    def finish_round(self, outcome: Round, *, has_more: bool) -> bool:
        """End a round; returns whether it was stuck, so that the next scan of the replay set is skipped once."""
        if outcome.dropped:
            return self._end_dropped(outcome)
        commands.finish_round(self.state, outcome.wants_look_ahead)
        outcome.look_ahead_due = bool(self.state.s[st_.SKIP_NEXT_REPLAY])
        return outcome.wants_look_ahead

    def refused_before_move(self, outcome: Round, entries: Sequence[int]) -> None:
        """Add entries of a round to the replay set that were refused before mark-delete moved over them.

        Such a move may come between two turns of the round, so that what is refused behind it is not added.
        """
        s = self.state.s
        moved_to = s.item(st_.MARK_DELETE)
        s[st_.MARK_DELETE] = min(entries, default=moved_to + 1) - 1
        for entry in entries:
            read_loop.requeue(self.state, entry, int(self.state.hash_id[entry]))
        s[st_.MARK_DELETE] = moved_to
        outcome.in_replay = int(s[st_.N_REPLAY])

    def all_written(self, outcome: Round) -> None:
        """Have a round read again at once: all its writes were complete before the last consumer without entries came."""
        if outcome.waits_for_writes:
            outcome.retry = True

    # --- queries ---------------------------------------------------------------------------------------------

    def read_when_joining(self, consumer: int) -> int | None:
        """Return ``readPositionWhenJoining``: the entry a normal read would have begun with; None = never selected."""
        return self._when_joining.get(consumer)

    def sent_when_joining(self, consumer: int) -> int | None:
        """Return ``lastSentPositionWhenJoining``, which this dispatcher does not keep: None."""
        return None

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the state breaks an invariant; for tests and strict runs."""
        super().check_invariants()
        st, waiting = self.state, self.recently_joined()
        assert (st.joined_at != st_.NOT_TRACKED).sum() == len(waiting), (
            "each recently joined consumer has its place"
        )
        if st.s[st_.SORTS_RECENT]:
            assert list(waiting.values()) == sorted(waiting.values()), "recently joined consumers by position"


def keeps_pending_hash(profile: Profile) -> bool:
    """True if pending acks keep the hash of their entry: 3.x does, the classic dispatcher of 4.x keeps 0."""
    return "classic_dispatchers" not in profile.changes
