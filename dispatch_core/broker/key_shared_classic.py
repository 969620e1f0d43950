"""The Key_Shared dispatcher of 3.x, and the classic one of 4.x: order by read position.

Members, selector, acks and redelivery are those of ``key_shared``; reads, rounds and the ordering rule are not
(``dispatch_loop_classic``, ``ordering.read_position``). What differs between releases are flags of the profile:

* 4.x keeps hash 0 with every pending ack, 3.x the entry's own. What a leaving consumer held enters the replay set with it;
* a replay read leaves out what cannot be sent since #22245; newcomers are sorted since #23795; consumers without permits
  are remembered for one round until #20335.

Source: PersistentStickyKeyDispatcherMultipleConsumers (3.x), PersistentStickyKeyDispatcherMultipleConsumersClassic (4.x).

Two entries of one key, and a consumer that may take one of them: the other waits in the replay set. A newcomer takes the
key over and gets the second entry while the first one is still with the older consumer. That is the defect of this rule.

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

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import commands, membership, read_loop, read_loop_classic, replay_set
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher, Leave
from dispatch_core.broker.multiple_consumers import Between, Read, Round, nothing_between
from dispatch_core.broker.ordering import read_position
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.selectors import assignments
from dispatch_core.broker.selectors.selector import Announced

#: The hash that the classic dispatcher of 4.x keeps with every pending ack.
UNKNOWN_HASH = 0


class ClassicKeySharedDispatcher(KeySharedDispatcher):
    """One dispatcher from its first consumer on. Consumers are the log's numbers, entries ordinals of its messages."""

    _dispatcher = Dispatcher.KEY_SHARED_CLASSIC

    def __init__(
        self,
        profile: Profile,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int,
    ) -> None:
        """As for ``KeySharedDispatcher``; raises ``UnsupportedRuleError`` for profiles of other dispatchers."""
        super().__init__(profile, hashes, num_messages, max_consumers)
        self._read_when_joining: dict[int, int] = {}  # consumer → readPositionWhenJoining
        s = self.state.s
        s[st_.TRACK_LAST_SENT] = s[st_.TRACK_DRAINING] = 0
        s[st_.TRIMS_TO_MARK_DELETE] = s[st_.REPLAY_BY_PERMITS] = 0
        s[st_.PRE_FILTERS_REPLAY] = int("replay_pre_filter" in profile.changes)
        s[st_.SORTS_RECENT] = int("recently_joined_sorted" in profile.changes)
        s[st_.STUCK_MEMORY] = int("no_stuck_consumers" not in profile.changes)
        unknown = self.id_of_hash(UNKNOWN_HASH)
        s[st_.STORED_HASH] = st_.NO_HASH if keeps_pending_hash(profile) or unknown is None else unknown

    def _other_hashes(self, profile: Profile) -> list[int]:
        return [] if keeps_pending_hash(profile) else [UNKNOWN_HASH]

    # --- membership ------------------------------------------------------------------------------------------

    def reads_ahead(self) -> bool:
        """Whether a normal read is in flight: it may have moved the cursor's read position already."""
        return bool(self.state.s[st_.PENDING_READ])

    def read_position_seen(self, entry: int) -> None:
        """The cursor's read position is at ``entry``: a read that is in flight has moved it already."""
        s = self.state.s
        s[st_.READ_POSITION] = max(s[st_.READ_POSITION], entry)

    def select_in(self, consumer: int, ranges: Announced = None) -> assignments.Impacted:
        """First step of ``join_selector``: the selector has the consumer, its read position is remembered."""
        moved = super().select_in(consumer, ranges)
        joined_at = read_position.consumer_joined(self.state, self.slot(consumer))
        self._read_when_joining[consumer] = int(joined_at)
        return moved

    def drop(self, consumer: int, moved: assignments.Impacted, between: Between = nothing_between) -> Leave:
        """Second step of ``leave``: what the consumer held is to be sent again. ``forget`` follows."""
        st = self.state
        between(0)
        slot, held = self._drop_member(consumer)
        if not st.s[st_.N_CONSUMERS]:
            replay_set.clear_replay(st)
        if st.s[st_.N_CONSUMERS]:
            membership.requeue_held(st, np.asarray(held, dtype=np.int64))
        self._let_go_all(slot, held, closing=False)
        between(1)
        between(2)
        return Leave([], [], [], cleared=not st.s[st_.N_CONSUMERS])

    def forget(self, consumer: int) -> bool:
        """Last step of ``leave``, after the read attempt of the second one: the consumer is no newcomer any more.

        Returns whether the broker attempts another read: newcomers were freed, or there is something to replay.
        """
        freed = bool(read_position.consumer_left(self.state, self.slot(consumer)))
        return bool(self.state.s[st_.IN_ORDER]) and (freed or bool(self.state.s[st_.N_REPLAY] > 0))

    # --- the stretch of the log ------------------------------------------------------------------------------

    def extend(
        self,
        drop: int,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int = 0,
    ) -> None:
        """See ``MultipleConsumersDispatcher.extend``."""
        super().extend(drop, hashes, num_messages, max_consumers)
        self._read_when_joining = {
            consumer: max(position - drop, 0) for consumer, position in self._read_when_joining.items()
        }

    # --- acks ------------------------------------------------------------------------------------------------

    def prune(self) -> bool:
        """Mark-delete has moved: newcomers that it has reached are free. Returns whether that causes a read attempt."""
        return bool(read_position.prune(self.state))

    # --- reads and rounds ------------------------------------------------------------------------------------

    def attempt_read(self, between: Between = nothing_between) -> Read:
        """``readMoreEntries``. ``between(step)`` is called before each of its steps 0, 1, 2 (size, replay, normal)."""
        st = self.state
        between(0)
        read_loop.plan_size(st, self._plan, self._attempts)
        between(1)
        read_loop_classic.plan_replay(st, self._plan)
        between(2)
        read_loop_classic.plan_normal(st, self._plan)
        return self._planned()

    def round(self, kind: str, entries: Sequence[int], between: Between = nothing_between) -> Round:
        """Dispatch one read result. ``between(step)``: before its steps 0, 1, 2 (group, send, what is next)."""
        st = self.state
        if entries:
            self._check_stored(min(entries))
            self._check_stored(max(entries))
        array = np.asarray(entries, dtype=np.int64)
        is_replay = kind == "Replay"
        result = Round()
        between(0)
        owners = 0
        if entries:
            owners = int(read_loop_classic.group(st, is_replay, array, self._outcome))
        between(1)
        result.permits_before = {
            number: int(st.permits[slot]) for number, slot in self._slots.items() if st.connected[slot]
        }
        if entries:
            read_loop.send_groups(st, is_replay, array, self._outcome)
        between(2)
        self._collect(result, entries)
        self._go_on(result, owners if entries else -1)
        result.in_replay = int(st.s[st_.N_REPLAY])
        return result

    def _go_on(self, result: Round, owners: int) -> None:
        """What follows the round: stuck, read again at once, or when what was sent is written.

        ``owners``: consumers that own entries of the result; -1 = nothing was looked at. Where some were sent entries and
        others not, it reads again at once only if all is written before the turn of the last one that gets nothing.
        """
        answer = int(commands.classic_goes_on(self.state, owners, len(result.sent)))
        result.wants_look_ahead = bool(answer & commands.LOOKS_AHEAD)
        result.retry = bool(answer & commands.RETRIES)
        result.waits_for_writes = bool(answer & commands.WAITS_FOR_WRITES)

    def finish_round(self, outcome: Round, *, has_more: bool) -> bool:
        """End of a round; returns whether it was stuck, so that the next look at the replay set is skipped once."""
        commands.finish_round(self.state, outcome.wants_look_ahead)
        outcome.look_ahead_due = bool(self.state.s[st_.SKIP_NEXT_REPLAY])
        return outcome.wants_look_ahead

    def all_written(self, outcome: Round) -> None:
        """All writes of a round were complete before the turn of the last consumer that got nothing: it reads on itself."""
        if outcome.waits_for_writes:
            outcome.retry = True

    # --- what others may ask ---------------------------------------------------------------------------------

    def read_when_joining(self, consumer: int) -> int | None:
        """``readPositionWhenJoining``: the entry that a normal read would have begun with; None = never selected."""
        return self._read_when_joining.get(consumer)

    def newcomers(self) -> dict[int, int]:
        """``consumersAfterMarkDeletePosition``: consumer → read position when it joined, in the broker's order."""
        return {self._numbers[slot]: entry for slot, entry in read_position.newcomers(self.state).items()}

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the state breaks an invariant of any room; for tests and strict runs."""
        super().check_invariants()
        st, waiting = self.state, self.newcomers()
        assert (st.joined_at != st_.NOT_TRACKED).sum() == len(waiting), "every newcomer has its place"
        if st.s[st_.SORTS_RECENT]:
            assert list(waiting.values()) == sorted(waiting.values()), "newcomers by position"


def keeps_pending_hash(profile: Profile) -> bool:
    """Whether pending acks keep the hash of their entry: 3.x does, the classic dispatcher of 4.x keeps 0."""
    return "classic_dispatchers" not in profile.changes
