"""Run of a simulated Shared dispatcher: membership changes, read attempts, and rounds in which consumers take turns.

Clients, permits and acknowledgements are those of the compiled loop (``key_shared_loop``). It stops at read attempts and
read results: the methods of the dispatcher decide these, in Python. No lines of a trace are written.

With ``preciseDispatcherFlowControl`` the broker divides the permits by the average batch of a consumer that it picks at
random. A simulated read asks for as many entries as there are permits, which is the most that it may ask for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import read_loop
from dispatch_core.broker.profiles import Dispatcher
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.simulation import key_shared_loop as loop
from dispatch_core.simulation import kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.multiple_consumers_run import MultipleConsumersRun
from dispatch_core.simulation.publishing import Published

_STEPPED = (w_.ATTEMPT, w_.READ, w_.REPLAY)


class SharedRun(MultipleConsumersRun):
    """The run of a Shared dispatcher. Raises ``UnsupportedRuleError`` for rules that cannot be simulated."""

    core: SharedDispatcher

    def _new_core(self, first: Published) -> SharedDispatcher:
        return SharedDispatcher(self.profile, self._hashes(first), first.num_messages, self._connections)

    def _new_world(self) -> w_.World:
        world = super()._new_world()
        w = world.w
        classic = self.profile.dispatcher is Dispatcher.SHARED_CLASSIC
        w[w_.RETRY_BACK_OFF] = "retry_backoff" in self.profile.changes and not classic
        w[w_.UNBLOCK_AT] = w_.NEVER  # Key_Shared's timer: as if it were running already
        w[w_.STEPPED] = sum(1 << kind for kind in _STEPPED)
        return world

    def _hashes(self, published: Published) -> npt.NDArray[np.int64]:
        return np.zeros(len(published), np.int64)

    def _step_in(self, reason: int) -> None:
        what = int(self._world.w[w_.NEXT_STEP])
        kind, number = w_.kind_of(what), w_.number_of(what)
        if reason != w_.STEP_DUE or kind not in _STEPPED:
            super()._step_in(reason)
            return
        w = self._world.w
        if kind == w_.ATTEMPT:
            if w[w_.ATTEMPT_AT] == w[w_.NOW]:
                w[w_.ATTEMPT_AT] = w_.NEVER
                self._attempt()
        elif kind == w_.REPLAY or number == w[w_.READ_NUMBER]:
            self._read_done(number, is_replay=kind == w_.REPLAY)

    # --- membership ------------------------------------------------------------------------------------------

    def _join(self, change: Change) -> None:
        """Connect a client; its first permits arrive a little later."""
        self._note_sent()
        number = self._number(change)
        if not self._admits(change, number):
            return
        connecting = self._clients.connecting(change, self._now)
        self.core.join(number, connecting.client.name, connecting.client.priority_level)
        self._added_line(number, connecting.client)
        self._connect(change, self.core.slot(number), number, connecting)

    def _leave(self, change: Change) -> None:
        """Disconnect a client. Its entries are sent to others, unless it acknowledges them before."""
        self._note_sent()
        number = self._numbers.pop(change.who, None)
        self._clients.left(change)
        if number is None:
            return  # the broker had refused it
        if change.finishes:
            self._finish(number)
        pending = self.core.pending_on(number)
        self.core.leave(number)
        if not self.core.connected():
            self._nobody_left()
        self._line(kinds.CONSUMER_REMOVED, number, *self._cursor())
        if self.core.read_follows(pending):
            w_.attempt_at(self._world, int(w_.hop_over(self._world)))

    # --- reads and rounds ------------------------------------------------------------------------------------

    def _attempt(self) -> None:
        """Attempt a read, and issue it to the storage."""
        self._make_room()
        st, world = self.core.state, self._world
        world.w[w_.CALLS] += 1
        planned = self.core.plan_read()
        entries = int(planned[1]) if planned[0] == read_loop.REPLAY_READ else 0
        world.plan[: 2 + entries] = planned[: 2 + entries]
        loop.issue(st, world, self._lines)

    def _read_done(self, number: int, *, is_replay: bool) -> None:
        """Pass a read result to the dispatcher, and run its round."""
        self._make_room()
        st, world = self.core.state, self._world
        count = int(loop.replayed(world, number) if is_replay else loop.read_on(st, world))
        entries = world.entries[:count].copy()
        kind = "Replay" if is_replay else "Normal"
        if not self.core.read_done(kind, entries.tolist()):
            w_.attempt_at(world, int(w_.hop_over(world)))
            return
        result = self.core.round(kind, entries.tolist())
        for turn in result.turns:
            slot = self.core.slot(turn.consumer)
            world.permits_before[slot] = turn.permits_before
            loop.deliver_turn(st, world, self._lines, slot, np.array(turn.entries, np.int64))
        self.core.finish_round(result)
        longer_us = count * int(world.w[w_.WRITE_ENTRY_US])
        loop.reads_again(world, len(result.sent), result.retry, False, longer_us)
