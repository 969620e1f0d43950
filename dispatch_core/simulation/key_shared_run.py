"""Run of a simulated Key_Shared dispatcher: membership changes, and redelivery requests.

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
from dispatch_core.simulation.dispatcher_run import FINISHED_AT_ONCE, DispatcherRun, Given
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.sink import Sink


class KeySharedRun(DispatcherRun):
    """The run of a Key_Shared dispatcher. Raises ``UnsupportedRuleError`` for rules that cannot be simulated."""

    def __init__(self, given: Given, sink: Sink) -> None:
        super().__init__(given, sink)
        self._classic = self.profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
        first = self._publishing.take()
        self.core = self._new_core(first)
        self._begin(first)

    def _new_core(self, first: Published) -> KeySharedDispatcher:
        """Make the dispatcher, with the first batch of messages."""
        return core_of(self.profile)(self.profile, self._hashes(first), first.num_messages, self._connections)

    def _new_world(self) -> w_.World:
        world, profile = super()._new_world(), self.profile
        w = world.w
        w[w_.CLASSIC] = self._classic
        w[w_.RETRY_BACK_OFF] = "retry_backoff" in profile.changes and not self._classic
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
        if reason == w_.REDELIVERY_REQUESTED:
            self._redeliver_nacked()
            return
        what = int(self._world.w[w_.NEXT_STEP])
        if w_.kind_of(what) == w_.UNBLOCK:
            self._cancel_read()
            return
        self._act(w_.slot_of(what), w_.number_of(what))

    def _hashes(self, published: Published) -> npt.NDArray[np.int64]:
        return self.profile.hash_space.sticky_array(published.h31)

    def _hash_values(self, published: Published) -> npt.NDArray[np.int64]:
        state = self.core.state
        values = w_.grown(self._world.hash_value, len(state.hash_owner))
        values[state.hash_id[len(state.hash_id) - len(published) :]] = self._hashes(published)
        return values

    def _extend(self, published: Published) -> int:
        self._note_sent()
        drop = self.core.droppable()
        self.core.extend(drop, self._hashes(published), published.num_messages)
        return drop

    def _note_sent(self) -> None:
        """Note the entries that the loop has sent in the fields that the dispatcher keeps outside its state."""
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
        """Connect a client; its first permits arrive a little later."""
        self._note_sent()
        s = self.core.state.s
        number = self._number(change)
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
        self._world.w[w_.WATCHES_RECENT] = bool(self.core.recently_joined())
        self._line(kinds.CONSUMER_REMOVED, number, *self._cursor())
        self.core.state.s[st_.DRAIN_NOTICE] = 0  # the read that follows looks at everything
        w_.attempt_at(self._world, int(w_.hop_over(self._world)))

    def _attempt(self) -> None:
        """Attempt a read inside a membership change."""
        self._make_room()
        loop.attempt(self.core.state, self._world, self._lines)

    def _finish(self, number: int) -> None:
        """Acknowledge all entries of a consumer."""
        slot = self.core.slot(number)
        pending = np.array(self.core.pending_on(number), np.int64)
        for at in range(0, len(pending), FINISHED_AT_ONCE):
            self._make_room()
            some = pending[at : at + FINISHED_AT_ONCE]
            loop.acknowledge_all(self.core.state, self._world, self._lines, slot, some)

    def _cancel_read(self) -> None:
        """Cancel a normal read that waits for entries."""
        self._line(kinds.READ_CANCELLED, 0, 1)
        self._world.w[w_.READ_NUMBER] += 1
        self.core.read_cancelled()

    def _nobody_left(self) -> None:
        """Handle the leave of the last consumer: cancel a read that waits for entries."""
        w, s = self._world.w, self.core.state.s
        if s[st_.PENDING_READ]:
            if int(w[w_.READ_READY_AT]) > self._now:
                self._cancel_read()
            else:
                self._line(kinds.READ_CANCELLED, 0, 0)
        if w[w_.RELEASES_SHOWN]:
            self._line(kinds.DRAINING_CLEAR)

    # --- further commands of clients ---------------------------------------------------------------------------

    def _redeliver_nacked(self) -> None:
        """Request redelivery of a single entry (negative ack)."""
        w = self._world.w
        self._redeliver(int(w[w_.NACKED_SLOT]), [int(w[w_.NACKED_ENTRY]) - int(w[w_.BASE])], everything=False)

    def _redeliver(self, slot: int, entries: list[int], *, everything: bool) -> None:
        """Request redelivery of entries that a consumer holds. ``everything``: of all of them, without naming any."""
        w, number = self._world.w, self.core.number_of(slot)
        base = int(w[w_.BASE])
        done = self.core.redeliver(number, entries, everything=everything)
        for entry, released in zip(entries, done.released, strict=True):
            self._make_room()
            if w[w_.REMOVALS_SHOWN]:
                if self._line(kinds.PENDING_ACK_REMOVED, number, released.hash):
                    w_.item(self._lines, entry + base)
                if w[w_.RELEASES_SHOWN]:
                    self._line(kinds.DRAINING_RELEASE, number, released.hash, 0, released.ref_count_before)
        self._redeliver_line(number, None if everything else [entry + base for entry in entries])
        loop.flows_applied(self.core.state, self._world, self._lines, slot, *done.flows)
        loop.unblocked(self.core.state, self._world)
        w_.attempt_at(self._world, int(w_.hop_over(self._world)))

    def _act(self, slot: int, row: int) -> None:
        """Carry out an act of a recorded client other than the acknowledgement of an entry."""
        st, base = self.core.state, int(self._world.w[w_.BASE])
        if not st.connected[slot]:
            return
        if int(self._world.act_kind[row]) == w_.REQUEST:
            self._note_sent()
            wanted = self._requested(row)
            if wanted is None:
                requested = self.core.pending_on(self.core.number_of(slot))
            else:
                requested = [entry - base for entry in wanted if entry >= base]
                requested = sorted({entry for entry in requested if int(st.holder[entry]) == slot})
            if requested:
                self._redeliver(slot, requested, everything=wanted is None)
            return
        entry = int(self._world.act_entry[row]) - base
        words = self._words(row)
        if entry < 0 or words is None:
            return  # forgotten by now; cumulative acks mean nothing to Key_Shared
        self._ack_line(self.core.number_of(slot), entry + base, words)
        before_delete = int(st.s[st_.MARK_DELETE])
        self.core.acknowledge_indexes(entry, words)
        if int(st.s[st_.MARK_DELETE]) != before_delete:
            loop.mark_delete_moved(st, self._world, self._lines)


def core_of(profile: Profile) -> type[KeySharedDispatcher]:
    """Return the dispatcher class of a profile."""
    classic = profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
    return ClassicKeySharedDispatcher if classic else KeySharedDispatcher
