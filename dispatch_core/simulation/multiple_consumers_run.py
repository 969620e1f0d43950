"""Common base of the simulated dispatchers with several consumers at a time: acknowledgements, redelivery, the window.

Control plane around ``key_shared_loop``; the methods of the dispatcher make all decisions. ``key_shared_run`` adds the
membership changes of Key_Shared, ``shared_run`` those of Shared and the rounds in which its consumers take turns.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import state as st_
from dispatch_core.broker.multiple_consumers import MultipleConsumersDispatcher
from dispatch_core.broker.single_active_rules import ConsumerBusyError, check_consumer_limit
from dispatch_core.simulation import key_shared_loop as loop
from dispatch_core.simulation import kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.answers import next_turn
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.dispatcher_run import FINISHED_AT_ONCE, Connecting, DispatcherRun, Given
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.sink import Sink


class MultipleConsumersRun(DispatcherRun):
    """The run of a dispatcher with several consumers. Raises ``UnsupportedRuleError`` for rules that cannot be simulated."""

    core: MultipleConsumersDispatcher

    def __init__(self, given: Given, sink: Sink) -> None:
        super().__init__(given, sink)
        first = self._publishing.take()
        self.core = self._new_core(first)
        self._begin(first)

    @abstractmethod
    def _new_core(self, first: Published) -> MultipleConsumersDispatcher:
        """Make the dispatcher, with the first batch of messages."""

    @property
    def state(self) -> st_.State:
        """The state of the core."""
        return self.core.state

    def _loop(self, until: int) -> int:
        return int(loop.run(self.core.state, self._world, self._lines, until))

    def _limit_unacked(self, messages: int | None) -> None:
        self.core.limit_unacked(messages)

    def _step_in(self, reason: int) -> None:
        if reason == w_.REDELIVERY_REQUESTED:
            self._redeliver_nacked()
            return
        what = int(self._world.w[w_.NEXT_STEP])
        if w_.kind_of(what) == w_.UNBLOCK:
            self._cancel_read()
            return
        self._act(w_.slot_of(what), w_.number_of(what))

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

    # --- membership ------------------------------------------------------------------------------------------

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

    def _admits(self, change: Change, number: int) -> bool:
        """True if the subscription takes one more consumer; otherwise the client is refused, and no line is written."""
        limit = self.profile.number("maxConsumersPerSubscription")
        try:
            check_consumer_limit(number, int(self.core.state.s[st_.N_CONSUMERS]), limit)
        except ConsumerBusyError as error:
            self._clients.refused(change, error)
            return False
        return True

    def _connect(self, change: Change, slot: int, number: int, connecting: Connecting) -> None:
        super()._connect(change, slot, number, connecting)
        self._make_room_in_heap()
        next_turn(self._world, slot)

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
        if self.core.read_follows(entries):
            w_.attempt_at(self._world, int(w_.hop_over(self._world)))

    def _put_back(self, slot: int, entries: list[int]) -> None:
        """Let a recorded client give up entries: they leave its queue, and it grants their permits anew.

        Source: ConsumerImpl.redeliverUnacknowledgedMessages.
        """
        st = self.core.state
        self._make_room_in_heap()
        self._world.ahead[slot] += int((st.num_messages[entries] - st.acked_indexes[entries]).sum())
        loop.take(self._world, slot, 0)

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
                self._put_back(slot, requested)
                self._redeliver(slot, requested, everything=wanted is None)
            return
        entry = int(self._world.act_entry[row]) - base
        words = self._words(row)
        if entry < 0 or words is None:
            return  # forgotten by now; cumulative acks mean nothing to Key_Shared
        self._ack_line(self.core.number_of(slot), entry + base, words)
        before_delete = int(st.s[st_.MARK_DELETE])
        loop.take(self._world, slot, int(self.core.acknowledge_indexes(entry, words)))
        if int(st.s[st_.MARK_DELETE]) != before_delete:
            loop.mark_delete_moved(st, self._world, self._lines)
