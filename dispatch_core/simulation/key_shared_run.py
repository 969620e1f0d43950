"""Run of a simulated Key_Shared dispatcher: its membership changes.

Control plane around ``key_shared_loop``; the methods of the dispatcher make all decisions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.multiple_consumers import Pairs, Released
from dispatch_core.broker.profiles import Dispatcher, OrderingRule, Profile
from dispatch_core.errors import SelectorRefusedError
from dispatch_core.simulation import key_shared_loop as loop
from dispatch_core.simulation import kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.dispatcher_run import Given
from dispatch_core.simulation.multiple_consumers_run import MultipleConsumersRun
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.sink import Sink


class KeySharedRun(MultipleConsumersRun):
    """The run of a Key_Shared dispatcher. Raises ``UnsupportedRuleError`` for rules that cannot be simulated."""

    core: KeySharedDispatcher

    def __init__(self, given: Given, sink: Sink) -> None:
        self._classic = given.profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
        super().__init__(given, sink)

    def _new_core(self, first: Published) -> KeySharedDispatcher:
        return core_of(self.profile)(self.profile, self._hashes(first), first.num_messages, self._connections)

    def _new_world(self) -> w_.World:
        world, profile = super()._new_world(), self.profile
        w = world.w
        w[w_.CLASSIC] = self._classic
        w[w_.RETRY_BACK_OFF] = "retry_backoff" in profile.changes and not self._classic
        w[w_.REMOVALS_SHOWN] = "last_sent_position" not in profile.changes
        w[w_.RELEASES_SHOWN] = profile.ordering is OrderingRule.DRAINING_HASHES
        return world

    def _hashes(self, published: Published) -> npt.NDArray[np.int64]:
        return self.profile.hash_space.sticky_array(published.h31)

    def _drained(self, draining: Pairs, returned: list[Released]) -> None:
        for consumer, hash_value in draining:
            self._line(kinds.DRAINING_ADD, consumer, hash_value)
        for item in returned:
            self._line(kinds.DRAINING_RELEASE, item.consumer, item.hash, 0, item.ref_count_before)

    # --- membership ------------------------------------------------------------------------------------------

    def _join(self, change: Change) -> None:
        """Connect a client; its first permits arrive a little later."""
        self._note_sent()
        s = self.core.state.s
        number = self._number(change)
        if not self._admits(change, number):
            return
        connecting = self._clients.connecting(change, self._now)
        first = int(s[st_.N_CONSUMERS]) == 0
        self.core.join(number, connecting.client.name, connecting.client.priority_level)
        if first and not s[st_.REWIND_DUE]:
            self._line(kinds.REWIND, 0, *self._cursor())
        self._added_line(number, connecting.client)
        try:
            moved = self.core.select_in(number, list(connecting.client.ranges) or None)
        except SelectorRefusedError as error:
            self._clients.refused(change, error)
            self.core.refuse(number)
            self._line(kinds.CONSUMER_REMOVED, number, *self._cursor())
            return
        self._line(kinds.SELECTOR_ADDED, number)
        self._drained(*self.core.register(moved, skip=number))
        self._world.w[w_.WATCHES_RECENT] = bool(self.core.recently_joined())
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
        self._line(kinds.CONSUMER_REMOVING, number)
        pending = self.core.pending_on(number)
        moved = self.core.select_out(number)
        self._line(kinds.SELECTOR_REMOVED, number)
        left = self.core.drop(number, moved)
        for item in left.closed:
            self._line(kinds.DRAINING_RELEASE, number, item.hash, 1, item.ref_count_before)
        self._drained(left.draining, left.returned)
        if left.cleared:
            self._nobody_left()
        reads, late = self.core.read_follows(pending), bool(self.core.state.s[st_.READS_WHEN_ADDED])
        if reads and not late:
            self._attempt()
        again = self.core.forget(number) and not left.cleared
        if again and not late:
            self._attempt()
        self._world.w[w_.WATCHES_RECENT] = bool(self.core.recently_joined())
        self._line(kinds.CONSUMER_REMOVED, number, *self._cursor())
        loop.unblocked(self.core.state, self._world)
        if (reads or again) and late:
            w_.attempt_at(self._world, int(w_.hop_over(self._world)))

    def _attempt(self) -> None:
        """Attempt a read inside a membership change."""
        self._make_room()
        loop.attempt(self.core.state, self._world, self._lines)


def core_of(profile: Profile) -> type[KeySharedDispatcher]:
    """Return the dispatcher class of a profile."""
    classic = profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
    return ClassicKeySharedDispatcher if classic else KeySharedDispatcher
