"""One simulated Key_Shared dispatcher: membership changes, and requests to send again.

Control plane around ``key_shared_loop``, all by the methods of the dispatcher itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core import state as st_
from dispatch_core.errors import SelectorRefusedError
from dispatch_core.key_shared import KeySharedDispatcher
from dispatch_core.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.multiple_consumers import Pairs, Released
from dispatch_core.profiles import Dispatcher, OrderingRule, Profile
from dispatch_core.selectors.assignments import Range
from dispatch_core.simulation import key_shared_loop as loop
from dispatch_core.simulation import kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.life import FINISHED_AT_ONCE, HOP_US, Common, Life
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.scenario import Scenario, ScenarioError
from dispatch_core.simulation.sink import Sink
from dispatch_core.simulation.tables import Client

_HASH_SLOTS: Final = 65536


class KeySharedRun(Life):
    """The life of one dispatcher."""

    def __init__(self, scenario: Scenario, dispatcher: int, shared: Common, sink: Sink) -> None:
        """Raises ``ProfileError`` or ``UnsupportedRuleError`` for rules that cannot be simulated."""
        super().__init__(scenario, dispatcher, shared, sink)
        self._sticky = self.profile.hash_space.sticky_array(shared.keys.h31)
        self._classic = self.profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
        self._parts: dict[int, int] = {}  # STICKY: number → part of the hash space
        first = self._publishing.take()
        self.core = core_of(self.profile)(
            self.profile, self._hashes(first), np.ones(len(first), np.int64), self._connections
        )
        self._begin(first)

    def _new_world(self) -> w_.World:
        world, profile = super()._new_world(), self.profile
        w = world.w
        w[w_.CLASSIC] = self._classic
        w[w_.RETRY_BACK_OFF] = "retry_backoff" in profile.changes and not self._classic
        w[w_.LOOK_AHEAD_NEEDS_MORE] = self.core.look_ahead_needs_more()
        w[w_.REMOVALS_SHOWN] = "last_sent_position" not in profile.changes
        w[w_.RELEASES_SHOWN] = profile.ordering is OrderingRule.DRAINING_HASHES
        return world

    @property
    def state(self) -> st_.State:
        """The state of the core."""
        return self.core.state

    def _loop(self, until: int) -> int:
        return int(loop.run(self.core.state, self._world, self._lines, until))

    def _step_in(self, reason: int) -> None:
        assert reason == w_.ASKED_AGAIN, "the loop stops for nothing else"
        self._send_again()

    def _hashes(self, published: Published) -> npt.NDArray[np.int64]:
        return self._sticky[published.key]

    def _hash_values(self, published: Published) -> npt.NDArray[np.int64]:
        state = self.core.state
        values = w_.grown(self._world.hash_value, len(state.hash_owner))
        values[state.hash_id[len(state.hash_id) - len(published) :]] = self._hashes(published)
        return values

    def _extend(self, published: Published) -> int:
        self._tell_core()
        drop = self.core.droppable()
        self.core.extend(drop, self._hashes(published), np.ones(len(published), np.int64))
        return drop

    def _tell_core(self) -> None:
        """What the loop has sent, for what the dispatcher keeps outside its state."""
        w = self._world.w
        base, count = int(w[w_.BASE]), int(w[w_.N_SENT_ACKED])
        sent_acked = self._world.sent_acked[:count] - base
        self.core.sent_alone(int(w[w_.LAST_SENT]) - base, sent_acked.tolist())
        w[w_.N_SENT_ACKED] = 0

    def _drained(self, draining: Pairs, returned: list[Released]) -> None:
        for consumer, hash_value in draining:
            self._line(kinds.DRAINING_ADD, consumer, hash_value)
        for item in returned:
            self._line(kinds.DRAINING_RELEASE, item.consumer, item.hash, 0, item.ref_count_before)

    # --- membership ------------------------------------------------------------------------------------------

    def _join(self, change: Change) -> None:
        """A client subscribes; its first permits arrive a little later."""
        self._tell_core()
        s = self.core.state.s
        number = self._connected = self._connected + 1
        first = int(s[st_.N_CONSUMERS]) == 0
        name, ranges = f"consumer-{change.who}", self._ranges(number)
        self.core.join(number, name)
        if first and not s[st_.REWIND_DUE]:
            self._line(kinds.REWIND, 0, *self._cursor())
        self._added(number, Client(name, change.who, ranges or ()))
        try:
            moved = self.core.select_in(number, ranges)
        except SelectorRefusedError as error:
            raise ScenarioError(f"consumer {change.who} of {self._scenario.consumers}: {error}") from error
        self._line(kinds.SELECTOR_ADDED, number)
        self._drained(*self.core.register(moved, skip=number))
        self._world.w[w_.WATCHES_NEWCOMERS] = bool(self.core.newcomers())
        self._connect(change, self.core.slot(number), number)

    def _ranges(self, number: int) -> list[Range] | None:
        """The part of the hash space a consumer announces (STICKY): all have equal parts, it takes the first free one."""
        if self._scenario.key_shared_mode != "STICKY":
            return None
        parts = self._scenario.consumers
        at = next(part for part in range(parts) if part not in self._parts.values())
        self._parts[number] = at
        return [(_HASH_SLOTS * at // parts, _HASH_SLOTS * (at + 1) // parts - 1)]

    def _leave(self, change: Change) -> None:
        """A client disconnects. What it holds is sent to others, unless it is done with it before."""
        self._tell_core()
        number = self._numbers.pop(change.who)
        self._parts.pop(number, None)
        if change.finishes:
            self._finish(number)
        self._line(kinds.CONSUMER_REMOVING, number)
        moved = self.core.select_out(number)
        self._line(kinds.SELECTOR_REMOVED, number)
        left = self.core.drop(number, moved)
        for item in left.closed:
            self._line(kinds.DRAINING_RELEASE, number, item.hash, 1, item.ref_count_before)
        self._drained(left.draining, left.returned)
        if left.cleared:
            self._nobody_left()
        early = self._classic or "last_sent_position" in self.profile.changes
        if early and not left.cleared:
            self._attempt()
        again = self.core.forget(number)
        if early and again and not left.cleared:
            self._attempt()
        self._world.w[w_.WATCHES_NEWCOMERS] = bool(self.core.newcomers())
        self._line(kinds.CONSUMER_REMOVED, number, *self._cursor())
        self.core.state.s[st_.DRAIN_NOTICE] = 0  # the read that follows looks at everything
        w_.attempt_at(self._world, self._now + HOP_US)

    def _attempt(self) -> None:
        """A read attempt inside a membership change."""
        self._make_room()
        loop.attempt(self.core.state, self._world, self._lines)

    def _finish(self, number: int) -> None:
        """All that the consumer holds is acknowledged."""
        slot = self.core.slot(number)
        held = np.array(self.core.held(number), np.int64)
        for at in range(0, len(held), FINISHED_AT_ONCE):
            self._make_room()
            some = held[at : at + FINISHED_AT_ONCE]
            loop.acknowledge_all(self.core.state, self._world, self._lines, slot, some)

    def _nobody_left(self) -> None:
        """The last consumer has left: a read that waits for entries is cancelled."""
        w, s = self._world.w, self.core.state.s
        if s[st_.PENDING_READ]:
            waits = int(w[w_.READ_READY_AT]) > self._now
            self._line(kinds.READ_CANCELLED, 0, int(waits))
            if waits:
                w[w_.READ_NUMBER] += 1
                self.core.read_cancelled()
        if w[w_.RELEASES_SHOWN]:
            self._line(kinds.DRAINING_CLEAR)

    # --- requests to send again ------------------------------------------------------------------------------

    def _send_again(self) -> None:
        """A consumer asks for an entry again (negative ack)."""
        w = self._world.w
        slot, entry = int(w[w_.NACKED_SLOT]), int(w[w_.NACKED_ENTRY]) - int(w[w_.BASE])
        number = self.core.number_of(slot)
        position = int(w[w_.NACKED_ENTRY])
        held_hash = self.core.hash_value(int(self.core.state.pending_hash[entry]))
        released = self.core.pending_ack_removed(entry)
        if w[w_.REMOVALS_SHOWN]:
            if self._line(kinds.PENDING_ACK_REMOVED, number, held_hash):
                w_.item(self._lines, position)
            if w[w_.RELEASES_SHOWN]:
                self._line(kinds.DRAINING_RELEASE, number, released.hash, 0, released.ref_count_before)
        messages = self.core.redeliver(number, [entry])
        self._line(kinds.REDELIVER, number)
        w_.item(self._lines, position)
        parked = int(self.core.state.parked_permits[slot])
        if self.core.redelivered(number, messages):
            loop.permits_applied(self.core.state, self._world, self._lines, slot, parked)
        loop.unblocked(self.core.state, self._world)
        w_.attempt_at(self._world, self._now + HOP_US)


def core_of(profile: Profile) -> type[KeySharedDispatcher]:
    """The dispatcher of a profile."""
    classic = profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
    return ClassicKeySharedDispatcher if classic else KeySharedDispatcher
