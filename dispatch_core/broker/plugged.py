"""A Key_Shared dispatcher with a selector or an ordering rule that no release has (``pluggable``).

Everything else is the release's: reads, permits, the replay set, R0, R1, R2. An ordering rule takes the place of the
release's, so draining hashes or sent positions are not tracked.

A rule that never lets entry 1 be sent to anybody: entry 2 of the same hash waits behind it, entry 3 of another does not.

>>> from dispatch_core.broker import profiles
>>> from dispatch_core.broker.pluggable import OrderingRule
>>> class NeverOne(OrderingRule):
...     def may_send(self, consumer, sticky_hash, entry, ahead):
...         return entry != 1
>>> hashes = np.array([7, 7, 7, 8])
>>> d = PluggedDispatcher(profiles.resolve("4.2.4"), hashes, np.ones(4, np.int64), 1, ordering=lambda view: NeverOne())
>>> d.join(1, "c1")
>>> d.join_selector(1)
([], [])
>>> d.flow(1, 10)
True
>>> d.flow_applied(1, 10)
>>> d.attempt_read().kind, d.read_done("Normal", [0, 1, 2, 3])
('Normal', True)
>>> found = d.round("Normal", [0, 1, 2, 3])
>>> found.sent, found.to_replay
({1: [0, 3]}, [1, 2])
>>> d.finish_round(found, has_more=False)
False
>>> d.attempt_read().kind  # nothing of the replay set may be sent
'Normal'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import commands, permits, read_loop, replay_set
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.multiple_consumers import Round
from dispatch_core.broker.pluggable import OrderingFactory, OrderingRule, SelectorFactory
from dispatch_core.broker.profiles import OrderingRule as Rules
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.selectors import assignments
from dispatch_core.broker.selectors.selector import Announced, Selector

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class PluggedDispatcher(KeySharedDispatcher):
    """A dispatcher of 4.x with rules of its own; it is also the ``View`` that they have of it.

    Attributes:
        ordering: the ordering rule; None = the release's.
        most_tracked: the most that the ordering rule has kept at a time.
        held_back: the ordering rule has refused an entry since this was last set to False.
        rates: messages per second of each consumer, for selectors; who runs the dispatcher measures them.
    """

    def __init__(
        self,
        profile: Profile,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int,
        *,
        selector: SelectorFactory | None = None,
        ordering: OrderingFactory | None = None,
    ) -> None:
        self._make_selector = selector
        self._base = 0
        self.rates: Mapping[int, float] = {}
        self.most_tracked = 0
        self.held_back = False
        if ordering is not None:
            profile = replace(profile, ordering=Rules.NONE)
        super().__init__(profile, hashes, num_messages, max_consumers)
        self.ordering: OrderingRule | None = None if ordering is None else ordering(self)

    def _new_selector(self, profile: Profile) -> Selector:
        return super()._new_selector(profile) if self._make_selector is None else self._make_selector(self)

    # --- the view of plug-ins --------------------------------------------------------------------------------

    def consumers(self) -> list[int]:
        """See ``View``."""
        return self.connected()

    def name(self, consumer: int) -> str:
        """See ``View``."""
        return self.name_of(consumer)

    def rate(self, consumer: int) -> float:
        """See ``View``."""
        return self.rates.get(consumer, 0.0)

    def owner(self, sticky_hash: int) -> int | None:
        """See ``View``."""
        hash_id = self.id_of_hash(sticky_hash)
        slot = st_.NOBODY if hash_id is None else int(self.state.hash_owner[hash_id])
        return None if slot == st_.NOBODY else self.number_of(slot)

    def holder(self, entry: int, by: int | None = None) -> int | None:
        """See ``View``: an entry that is forgotten by now is pending on nobody."""
        return None if entry < self._base else super().holder(entry - self._base, by)

    def mark_delete(self) -> int:
        """See ``View``."""
        return int(self.state.s[st_.MARK_DELETE]) + self._base

    def pending(self, consumer: int) -> list[int]:
        """See ``View``."""
        return [entry + self._base for entry in self.pending_on(consumer)]

    def ranges(self) -> assignments.Assignments:
        """Return the range report of the selector."""
        return self._selector.assignments()

    # --- what the ordering rule is told ----------------------------------------------------------------------

    def select_in(self, consumer: int, ranges: Announced = None) -> assignments.Impacted:
        """See ``KeySharedDispatcher``."""
        moved = super().select_in(consumer, ranges)
        if self.ordering is not None:
            self.ordering.joined(consumer)
            self._count_tracked()
        return moved

    def forget(self, consumer: int) -> bool:
        """See ``KeySharedDispatcher``; whatever the rule has freed by that is read at the next attempt."""
        again = super().forget(consumer)
        if self.ordering is None:
            return again
        self.ordering.left(consumer)
        return bool(self.state.s[st_.N_REPLAY] > 0)

    def extend(
        self,
        drop: int,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int = 0,
    ) -> None:
        """See ``MultipleConsumersDispatcher``."""
        super().extend(drop, hashes, num_messages, max_consumers)
        self._base += drop

    def note_delivery(self, entry: int) -> None:
        """Tell the ordering rule that an entry of the window was sent."""
        slot = int(self.state.holder[entry])
        if self.ordering is not None and slot != st_.NOBODY:
            self.ordering.sent(self.number_of(slot), self._hash_of(entry), entry + self._base)
            self._count_tracked()

    def _count_tracked(self) -> None:
        assert self.ordering is not None
        self.most_tracked = max(self.most_tracked, self.ordering.tracked())

    # --- reads and rounds ------------------------------------------------------------------------------------

    def withheld(self, entries: I64) -> Flags:
        """Mark the entries, ascending, that the ordering rule holds back now, and those of their hashes behind them (R2)."""
        found = np.zeros(len(entries), np.bool_)
        if self.ordering is None:
            return found
        closed: set[int] = set()
        ahead: dict[int, int] = {}
        for at, entry in enumerate(entries.tolist()):
            hash_id = int(self.state.hash_id[entry])
            slot = int(self.state.hash_owner[hash_id])
            if slot == st_.NOBODY:
                continue
            if hash_id in closed or not self.ordering.may_send(
                self.number_of(slot), self._hash_of(entry), entry + self._base, ahead.get(hash_id, 0)
            ):
                closed.add(hash_id)
                found[at] = self.held_back = True
            else:
                ahead[hash_id] = ahead.get(hash_id, 0) + 1
        return found

    def keep_back(self, entries: I64) -> None:
        """Put withheld entries of a read result into the replay set; those of a replay read are in it."""
        for entry in entries.tolist():
            read_loop.requeue(self.state, entry, int(self.state.hash_id[entry]))

    def _plan_replay(self) -> None:
        st, plan = self.state, self._plan
        replay_set.first_in_replay(st)
        low = int(st.s[st_.REPLAY_LOW])
        waiting = np.flatnonzero(st.in_replay[low : int(st.s[st_.REPLAY_HIGH])]) + low
        stops = waiting[self.withheld(waiting)].tolist()
        if not stops:
            super()._plan_replay()
            return
        if plan[0] != read_loop.UNDECIDED:
            return
        found, entry = 0, int(read_loop.begin_scan(st))
        if entry >= 0:
            for stop in (*stops, int(st.s[st_.REPLAY_HIGH])):
                found = int(read_loop.scan(st, int(plan[1]), found, entry, stop, plan, self._attempts))
                entry = int(replay_set.next_in_replay(st, stop + 1))
        read_loop.end_scan(st, found, plan)

    def _choose(
        self, result: Round, is_replay: bool, entries: I64, within: Callable[[], None] | None = None
    ) -> int:
        refused = self.withheld(entries)
        if not refused.any():
            return super()._choose(result, is_replay, entries, within)
        assert within is None, "nothing comes within a round of a rule that no release has"
        st, others = self.state, entries[~refused]
        chosen = int(commands.choose(st, False, is_replay, others, self._outcome, self._attempts))
        outcome = np.full(len(entries), read_loop.TO_REPLAY, np.int64)
        outcome[~refused] = self._outcome[: len(others)]
        self._outcome[: len(entries)] = outcome
        for slot in np.unique(st.hash_owner[st.hash_id[entries[refused]]]).tolist():
            permits.entries_left(st, slot)
            st.seen_stamp[slot] = st.s[st_.STAMP]
            if chosen and not is_replay:
                st.held_stamp[slot] = st.s[st_.STAMP]
        self.keep_back(entries[refused])
        result.refused = self._refused()
        return chosen

    def _note_sent(self, entry: int) -> None:
        super()._note_sent(entry)
        self.note_delivery(entry)

    def _hash_of(self, entry: int) -> int:
        return int(self._hash_ids.values[self.state.hash_id[entry]])
