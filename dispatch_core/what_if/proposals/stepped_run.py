"""Run of a Key_Shared dispatcher with some of its events in plain Python, where a proposal has its say.

The compiled loop stops at the kinds of events in ``World.STEPPED``. Here such an event is handled as the loop handles it, by
the same functions, with hooks of the proposal in between. A proposal steps only through what it needs, and as long as it
needs it: all other events stay in the loop.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import commands, permits, read_loop, replay_set
from dispatch_core.broker import state as st_
from dispatch_core.simulation import key_shared_loop as loop
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.key_shared_run import KeySharedRun
from dispatch_core.simulation.publishing import Published
from dispatch_core.what_if.recorded import RecordedLoad

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_READS: Final = (w_.READ, w_.REPLAY)


class SteppedRun(KeySharedRun):
    """A run with hooks. Without any it is ``KeySharedRun``, only slower."""

    # --- hooks -----------------------------------------------------------------------------------------------

    def before_attempt(self) -> None:
        """Act before a read attempt decides which read is issued."""

    @property
    def withholds(self) -> bool:
        """True if the proposal may keep entries from consumers now."""
        return False

    def withheld(self, entries: Ints) -> Flags:
        """Mark the entries that the proposal keeps from every consumer now."""
        return np.zeros(len(entries), bool)

    def keep_back(self, entries: Ints) -> None:
        """Take entries of a read result that are withheld."""

    def after_answer(self, number: int) -> None:
        """Act after a client has answered the entry with this number."""

    def is_void(self, slot: int, number: int) -> bool:
        """True if a client's answer to an entry does not count any more."""
        return False

    def first_needed(self) -> int:
        """Return the number of the first entry that the proposal has still to do with; NEVER = of none."""
        return w_.NEVER

    def figures(self, acknowledged: Ints, load: RecordedLoad) -> dict[str, float]:
        """Say what the proposal did, by name. ``acknowledged``: entries in the order of their acknowledgements."""
        return {}

    # --- steps -----------------------------------------------------------------------------------------------

    def step_through(self, *events: int) -> None:
        """Handle these kinds of events here from now on, and no others."""
        self._world.w[w_.STEPPED] = sum(1 << kind for kind in events)

    def _step_in(self, reason: int) -> None:
        what = int(self._world.w[w_.NEXT_STEP])
        kind = w_.kind_of(what)
        if reason != w_.STEP_DUE or not int(self._world.w[w_.STEPPED]) >> kind & 1:
            super()._step_in(reason)
            return
        w, number = self._world.w, w_.number_of(what)
        self._make_room()
        if kind == w_.ATTEMPT:
            if w[w_.ATTEMPT_AT] == w[w_.NOW]:
                w[w_.ATTEMPT_AT] = w_.NEVER
                self._attempt()
        elif kind in _READS:
            if kind == w_.REPLAY or number == w[w_.READ_NUMBER]:
                self._read_done(number, is_replay=kind == w_.REPLAY)
        elif kind == w_.ANSWER:
            self._answer(w_.slot_of(what), number)
        else:
            self._act(w_.slot_of(what), number)

    def _attempt(self) -> None:
        """Attempt a read as ``loop.attempt`` does; the scan of the replay set passes over what is withheld."""
        self.before_attempt()
        self.make_room_for_a_round()
        st, world = self.core.state, self._world
        plan, attempts = world.plan, world.attempts
        world.w[w_.CALLS] += 1
        if commands.trim_is_due(st):
            commands.trim(st, 0)
        read_loop.plan_size(st, plan, attempts)
        self._plan_replay(plan, attempts)
        read_loop.plan_normal(st, plan)
        loop.issue(st, world, self._lines)

    def _plan_replay(self, plan: Ints, attempts: Ints) -> None:
        """Plan a replay read of what is not withheld: the scan goes from each withheld position to the next."""
        st = self.core.state
        waiting = self.in_replay() if self.withholds else np.zeros(0, np.int64)
        stops = waiting[self.withheld(waiting)].tolist() if len(waiting) else []
        if not stops:
            read_loop.plan_replay(st, plan, attempts)
            return
        if plan[0] != read_loop.UNDECIDED:
            return
        found, entry = 0, int(read_loop.begin_scan(st))
        if entry >= 0:
            for stop in (*stops, int(st.s[st_.REPLAY_HIGH])):
                found = int(read_loop.scan(st, int(plan[1]), found, entry, stop, plan, attempts))
                entry = int(replay_set.next_in_replay(st, stop + 1))
        read_loop.end_scan(st, found, plan)

    def in_replay(self) -> Ints:
        """Return the positions in the replay set, ascending."""
        st = self.core.state
        replay_set.first_in_replay(st)
        low, high = int(st.s[st_.REPLAY_LOW]), int(st.s[st_.REPLAY_HIGH])
        return np.flatnonzero(st.in_replay[low:high]) + low

    def _read_done(self, number: int, *, is_replay: bool) -> None:
        """Pass a read result to the dispatcher as the loop does, and keep back what is withheld of it."""
        st, world, out = self.core.state, self._world, self._lines
        count = int(loop.replayed(world, number) if is_replay else loop.read_on(st, world))
        entries = world.entries[:count].copy()
        withheld = self.withheld(entries) if self.withholds else np.zeros(count, bool)
        if not withheld.any() or not st.s[st_.N_CONSUMERS]:
            loop.read_done(st, world, out, is_replay, count)
            return
        if not commands.read_done(st, is_replay, int(entries[-1]), count):
            w_.attempt_at(world, self._now + int(world.w[w_.HOP_US]))
            return
        others = entries[~withheld]
        chosen = int(commands.choose(st, False, is_replay, others, world.outcome, world.attempts))
        outcome = np.full(count, read_loop.TO_REPLAY, np.int64)
        outcome[~withheld] = world.outcome[: len(others)]
        world.outcome[:count] = outcome
        self._note_owners(entries[withheld], may_look_ahead=bool(chosen) and not is_replay)
        self.keep_back(entries[withheld])
        loop.send_chosen(st, world, out, is_replay, entries, chosen)

    def _note_owners(self, entries: Ints, *, may_look_ahead: bool) -> None:
        """Note the owners of withheld entries in the round, as the gates of the release do: they may look ahead."""
        st = self.core.state
        for slot in np.unique(st.hash_owner[st.hash_id[entries]]).tolist():
            if slot != st_.NOBODY:
                permits.entries_left(st, slot)
                st.seen_stamp[slot] = st.s[st_.STAMP]
                if may_look_ahead:
                    st.held_stamp[slot] = st.s[st_.STAMP]

    def _answer(self, slot: int, number: int) -> None:
        if self.is_void(slot, number):
            return
        if loop.answer(self.core.state, self._world, self._lines, slot, number):
            self._redeliver_nacked()
        else:
            self.after_answer(number)

    def _act(self, slot: int, row: int) -> None:
        number = int(self._world.act_entry[row])
        if int(self._world.act_kind[row]) == w_.REQUEST:
            super()._act(slot, row)
            return
        if self.is_void(slot, number):
            return
        if int(self._world.act_kind[row]) == w_.WHOLE:
            loop.act(self.core.state, self._world, self._lines, slot, row)
        else:
            super()._act(slot, row)
        self.after_answer(number)

    def make_room_for_a_round(self) -> None:
        """Make room for the events of one more round, and for its lines."""
        self._make_room()
        while int(self._world.w[w_.HEAP]) + len(self._world.entries) + 8 > len(self._world.heap_at):
            self._grow_heap()

    def _extend(self, published: Published) -> int:
        self._note_sent()
        drop = max(min(self.core.droppable(), self.first_needed() - int(self._world.w[w_.BASE])), 0)
        self.core.extend(drop, self._hashes(published), published.num_messages)
        return drop
