"""Run of a simulated dispatcher and its recorded clients under PIP-493: negative acknowledgements in order."""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import commands, pending_acks, replay_set
from dispatch_core.simulation import key_shared_loop as loop
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.dispatcher_run import Given
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.sink import Sink
from dispatch_core.what_if.clients import Deliveries
from dispatch_core.what_if.proposals.ack_order import acknowledged_behind
from dispatch_core.what_if.proposals.retrying_hashes import RetryingHashes
from dispatch_core.what_if.proposals.stepped_run import SteppedRun
from dispatch_core.what_if.recorded import RecordedLoad

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: The longest delay that is assumed: the default of negativeAckRedeliveryDelay.
LONGEST_DELAY_US: Final = 60_000_000


def nack_delay_us(load: RecordedLoad, deliveries: Deliveries | None) -> int:
    """Return the delay of the clients' negative acknowledgements: the longest that all their requests allow.

    A client nacks an entry when it has it, so no delay is longer than the time from a delivery to its request, less the way
    to the client and back. ``deliveries``: as under the recorded rules; None = not known: there is no delay.
    """
    wanted = {(request.consumer, entry) for request in load.requests for entry in request.entries or ()}
    if deliveries is None or not wanted:
        return 0
    sent: dict[tuple[int, int], list[int]] = {}
    columns = (deliveries.at_us, deliveries.consumer, deliveries.entry)
    for at_us, consumer, entry in zip(*(column.tolist() for column in columns), strict=True):
        if (consumer, entry) in wanted:
            sent.setdefault((consumer, entry), []).append(at_us)
    delay = LONGEST_DELAY_US
    for request in load.requests:
        for entry in request.entries or ():
            before = [at for at in sent.get((request.consumer, entry), ()) if at <= request.at_us]
            if before:
                delay = min(delay, request.at_us - max(before))
    return max(delay - 2 * deliveries.delays.network_us, 0)


class RetryingHashesRun(SteppedRun):
    """Reads, answers and requests are stepped through while a hash is retrying or returned entries wait."""

    def __init__(self, given: Given, sink: Sink, load: RecordedLoad, delay_us: int) -> None:
        self._retrying = RetryingHashes()
        self._h31 = np.zeros(0, np.int64)  # of the entries of the window: what makes a key
        self._returned: set[int] = set()  # returned entries that were not sent again yet
        self._nacked = self._returns = 0
        super().__init__(given, sink)
        #: Negative acknowledgements to come: time, consumer, entries.
        self._nacks = [
            (request.at_us - delay_us, request.consumer, request.entries)
            for request in load.requests
            if request.entries
        ]
        heapq.heapify(self._nacks)

    def _begin(self, first: Published) -> None:
        self._h31 = first.h31
        super()._begin(first)

    def _extend(self, published: Published) -> int:
        dropped = super()._extend(published)
        self._h31 = np.concatenate([self._h31[dropped:], published.h31])
        return dropped

    def figures(self, acknowledged: Ints, load: RecordedLoad) -> dict[str, float]:
        """Count the entries that were nacked, those that were returned, and those that were acknowledged out of order."""
        keys = load.h31[self.profile.fallback_key]
        return {
            "negatively acknowledged entries": self._nacked,
            "returned entries": self._returns,
            "acknowledged behind a later entry of their key": acknowledged_behind(acknowledged, keys),
            "in the recording": acknowledged_behind(load.acks.entry, keys),
        }

    # --- hooks -----------------------------------------------------------------------------------------------

    @property
    def withholds(self) -> bool:
        """True while a hash is retrying."""
        return len(self._retrying) > 0

    def withheld(self, entries: Ints) -> Flags:
        """Mark what is later than the earliest nacked position of its hash."""
        hashes = self.core.state.hash_id[entries].astype(np.int64)
        return self._retrying.withheld(entries + int(self._world.w[w_.BASE]), hashes)

    def keep_back(self, entries: Ints) -> None:
        """Add entries of a read result to the replay set, with their hash."""
        st = self.core.state
        for entry in entries.tolist():
            replay_set.add_to_replay(st, entry, int(st.hash_id[entry]))

    def is_void(self, slot: int, number: int) -> bool:
        """True for the answer to an entry that the client has returned instead, and does not hold again."""
        if number not in self._returned:
            return False
        entry = number - int(self._world.w[w_.BASE])
        if entry < 0 or int(self.core.state.holder[entry]) == slot:
            self._returned.discard(number)
            return False
        return True

    def after_answer(self, number: int) -> None:
        """Free the hash of an entry that is acknowledged now."""
        entry = number - int(self._world.w[w_.BASE])
        if entry >= 0 and not self.core.state.deleted[entry]:
            return
        if self._retrying.acknowledged(number):
            loop.start_unblock_timer(self.core.state, self._world)
        self._step_as_needed()

    # --- negative acknowledgements -----------------------------------------------------------------------------

    def _loop(self, until: int) -> int:
        """Run as the base does, and let clients nack at their times."""
        while self._nacks and self._nacks[0][0] < until:
            reason = super()._loop(max(self._nacks[0][0], self._now))
            if reason not in (w_.CHANGE_DUE, w_.NOTHING_LEFT):
                return reason
            _, consumer, numbers = heapq.heappop(self._nacks)
            self._nack(consumer, numbers or ())
        return super()._loop(until)

    def _nack(self, consumer: int, numbers: tuple[int, ...]) -> None:
        """Let a client nack those of its entries that it holds."""
        if consumer in self._numbers.values():
            base = int(self._world.w[w_.BASE])
            self._register(self.core.slot(consumer), [number - base for number in numbers if number >= base])

    def _register(self, slot: int, entries: list[int]) -> None:
        """Let the hashes of nacked entries retry, and take back what the client returns of their keys."""
        st, base = self.core.state, int(self._world.w[w_.BASE])
        nacked = [entry for entry in entries if int(st.holder[entry]) == slot]
        new = [entry for entry in nacked if self._retrying.nack(entry + base, int(st.hash_id[entry]))]
        self._nacked += len(new)
        if not new:
            return
        self._note_sent()
        pending = np.array(self.core.pending_on(self.core.number_of(slot)), np.int64)
        later = np.zeros(len(pending), bool)
        for entry in new:
            later |= (pending > entry) & (self._h31[pending] == self._h31[entry])
        # Other nacked entries of the key are with the application; they are requested when their delay is over.
        later &= ~np.isin(pending, nacked)
        self._take_back(slot, pending[later].tolist())
        self._step_as_needed()

    def _take_back(self, slot: int, entries: list[int]) -> None:
        """Move returned entries to the replay set, with their hash; the client grants their permits again."""
        st, base = self.core.state, int(self._world.w[w_.BASE])
        if not entries:
            return
        self._returns += len(entries)
        self._returned.update(entry + base for entry in entries)
        self._redeliver_line(self.core.number_of(slot), [entry + base for entry in entries])
        messages = 0
        for entry in entries:
            hash_id = int(st.pending_hash[entry])
            pending_acks.let_go(st, slot, entry)
            replay_set.add_to_replay(st, entry, hash_id)
            messages += int(pending_acks.unacked_messages(st, entry))
            self._make_room_in_heap()
            loop.grant(st, self._world, slot, entry)
        commands.lower_for_redelivery(st, slot, messages, False)
        loop.flows_applied(st, self._world, self._lines, slot, *commands.flow_parked(st, slot, False))
        loop.unblocked(st, self._world)

    def _redeliver(self, slot: int, entries: list[int], *, everything: bool) -> None:
        """A request for named entries is the end of their delay; what was not nacked before is nacked now."""
        if not everything:
            self._register(slot, entries)
        super()._redeliver(slot, entries, everything=everything)

    def _nobody_left(self) -> None:
        super()._nobody_left()
        self._retrying.clear()
        self._returned.clear()
        self._step_as_needed()

    def _leave(self, change: Change) -> None:
        super()._leave(change)
        self._step_as_needed()

    def _step_as_needed(self) -> None:
        """Step through events only while that can make a difference."""
        busy = len(self._retrying) or self._returned
        self.step_through(*((w_.ATTEMPT, w_.READ, w_.REPLAY, w_.ANSWER, w_.ACT) if busy else ()))
