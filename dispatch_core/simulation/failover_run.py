"""Run of a simulated Failover dispatcher: reads, rounds, active-consumer changes.

Control plane around ``failover_loop``; the methods of ``SingleActiveDispatcher`` make all decisions. The lines are in the
order in which a broker writes them (the choice of an add before its ``consumer_added``, notices after the rewind).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import state as st_
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.single_active_rules import ActiveChange, ConsumerBusyError, Notified, Pick
from dispatch_core.simulation import failover_loop as loop
from dispatch_core.simulation import kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.dispatcher_run import FINISHED_AT_ONCE, DispatcherRun, Given
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.sink import Sink

#: Time after its rewind at which the delay's task has ended; a membership change before that would race with it.
_TASK_TAIL_US: Final = 11_000


class FailoverRun(DispatcherRun):
    """The run of a Failover dispatcher."""

    def __init__(self, given: Given, sink: Sink) -> None:
        super().__init__(given, sink)
        first = self._publishing.take()
        self.core = SingleActiveDispatcher(
            self.profile,
            given.topic,
            given.partition_index,
            exclusive=given.exclusive,
            num_messages=first.num_messages,
        )
        self._slots: dict[int, int] = {}  # by consumer number
        self._delay_us = self.profile.number("activeConsumerFailoverDelayTimeMillis") * 1000
        self._task_until = 0
        self._begin(first)

    @property
    def state(self) -> st_.State:
        """The state of the core: its cursor."""
        return self.core.state

    def _loop(self, until: int) -> int:
        return int(loop.run(self.core.state, self._world, self._lines, until))

    def _hashes(self, published: Published) -> npt.NDArray[np.int64]:
        return np.zeros(0, np.int64)  # a dispatcher with one active consumer needs none

    def _hash_values(self, published: Published) -> npt.NDArray[np.int64]:
        return np.zeros(0, np.int64)

    def _extend(self, published: Published) -> int:
        drop = int(self.core.state.s[st_.MARK_DELETE]) + 1
        self.core.extend(drop, published.num_messages)
        return drop

    def _step_in(self, reason: int) -> None:
        if reason == w_.REDELIVERY_REQUESTED:
            self._request_redelivery(int(self._world.w[w_.NACKED_SLOT]), int(self._world.w[w_.NACKED_ENTRY]))
            return
        what = int(self._world.w[w_.NEXT_STEP])
        kind, slot, number = w_.kind_of(what), w_.slot_of(what), w_.number_of(what)
        if kind == w_.FLOW:
            self._flow(slot, number)
        elif kind == w_.ATTEMPT:
            if int(self._world.w[w_.ATTEMPT_AT]) == self._now:
                self._world.w[w_.ATTEMPT_AT] = w_.NEVER
                self._attempt()
        elif kind == w_.READ:
            if number == int(self._world.w[w_.READ_NUMBER]):
                self._read_done()
        elif kind == w_.DELAY:
            self._delay_over()
        elif kind == w_.ACT:
            self._act(slot, number)

    def _limit_unacked(self, messages: int | None) -> None:
        """See ``DispatcherRun``: a dispatcher with one active consumer does not count unacknowledged messages."""

    # --- permits and reads -----------------------------------------------------------------------------------

    def _flow(self, slot: int, permits: int) -> None:
        number = int(self._world.number[slot])
        if not number:
            return
        self._line(kinds.FLOW, number, permits)
        self.core.flow(number, permits)
        self._line(kinds.FLOW_COUNTED, number, self.core.permits[number])
        self._line(kinds.FLOW_APPLIED, number, -1)
        if self.core.flow_reads(number):
            self._attempt()

    def _attempt(self) -> None:
        """Attempt a read for the active consumer."""
        active = self.core.active
        self._line(kinds.READ_ATTEMPT, active or 0)
        size = self.core.attempt_read(active)
        if size is None:
            return
        self._line(kinds.READ_ISSUED, 0, size, self._cursor()[0])
        self._issue(size)

    def _issue(self, size: int) -> None:
        """Issue a read at the cursor; where there are no entries, it completes when one is stored."""
        w, world = self._world.w, self._world
        w[w_.READ_NUMBER] += 1
        w[w_.READ_LIMIT] = size
        w[w_.READ_READY_AT] = self._now
        if not loop.read_on(self.core.state, world, 1):
            stored = int(w[w_.STORED])
            if stored == len(world.publish_us):
                w[w_.READ_READY_AT] = w_.NEVER  # all is published and read
                return
            w[w_.READ_READY_AT] = world.publish_us[stored]
        read = w_.event(w_.READ, 0, int(w[w_.READ_NUMBER]))
        w_.push(world, int(w[w_.READ_READY_AT]) + int(w_.lasting(world, int(w[w_.READ_US]))), read)

    def _read_done(self) -> None:
        w = self._world.w
        reader = self.core.reader_of() or 0
        count = int(loop.read_on(self.core.state, self._world, int(w[w_.READ_LIMIT])))
        entries = self._world.entries[:count].copy()
        result = self.core.read_done(entries.tolist())
        read_at, deleted_to = self._cursor()
        if result.rewound:
            read_at = int(entries[-1]) + 1 + int(w[w_.BASE]) if count else read_at
        if self._line(kinds.READ_DONE, reader, 0, read_at):
            loop.items(self._world, self._lines, entries)
        if result.entries is None:
            if result.rewound:
                self._rewound(result.notified)
                self._attempt()
            return
        self._round(entries, read_at, deleted_to)

    def _round(self, entries: npt.NDArray[np.int64], read_at: int, deleted_to: int) -> None:
        """Send the entries read to the active consumer; when they are written, the next read is attempted."""
        active = self.core.active or 0
        if self._line(kinds.ROUND_BEGIN, active, 0, read_at, deleted_to):
            loop.items(self._world, self._lines, entries)
        if len(entries):
            consumer, before = self.core.send(entries.tolist())
            self._line(kinds.SENT, consumer, before)
            loop.deliver(self.core.state, self._world, self._lines, self._slot(consumer), entries)
            self._line(kinds.SEND_RETURNED, consumer, self.core.permits[consumer])
        takes = w_.lasting(self._world, int(self._world.w[w_.WRITE_US]))
        w_.attempt_at(self._world, self._now + int(takes))

    def _slot(self, number: int) -> int:
        return self._slots[number]

    # --- active-consumer changes -----------------------------------------------------------------------------

    def _chosen(self, pick: Pick) -> None:
        """Handle a choice of the active consumer."""
        if pick.changed:
            self._line(kinds.HANDOVER_SCHEDULED, 0, int(self.core.pending))
            if self.core.pending:
                self._cancel()
            step, notified = self.core.begin_active_change()
            if step is ActiveChange.AT_ONCE:
                self._rewound(notified)
                self._attempt()
            elif step is ActiveChange.DELAY_STARTS:
                w_.push(self._world, self._now + self._delay_us, w_.event(w_.DELAY, 0, 0))
        if self._line(kinds.ACTIVE_PICKED, pick.active, int(pick.changed), self._partition):
            for member in pick.order:
                w_.item(self._lines, member)
        if not pick.changed:
            self._notify(pick.notified)

    @property
    def _partition(self) -> int:
        return self._given.partition_index

    def _cancel(self) -> None:
        """Cancel the pending read if it still waits for an entry."""
        w = self._world.w
        waits = int(w[w_.READ_READY_AT]) > self._now
        self._line(kinds.READ_CANCELLED, 0, int(waits))
        self.core.cancel_read(cancelled=waits)
        if waits:
            w[w_.READ_NUMBER] += 1

    def _rewound(self, notified: Notified) -> None:
        self._line(kinds.REWIND, 0, *self._cursor())
        self._notify(notified)

    def _notify(self, notified: Notified) -> None:
        for consumer, active in notified:
            self._line(kinds.ACTIVE_NOTIFIED, consumer, active)

    def _delay_over(self) -> None:
        """Run the failover delay's task: rewind, notify all consumers, attempt a read."""
        notified = self.core.delay_over()
        self._task_until = self._now + _TASK_TAIL_US
        self._rewound(notified)
        self._attempt()

    # --- membership ------------------------------------------------------------------------------------------

    def _not_before(self, at_us: int) -> int:
        """See ``DispatcherRun``: a change must not race with the delay's task, whose end no line shows."""
        over = self._now + self._delay_us if self.core.delay_running else self._task_until
        return max(at_us, self._task_until) if over <= at_us else at_us

    def _join(self, change: Change) -> None:
        """Connect a client; the choice of the active consumer happens inside the add."""
        number = self._number(change)
        connecting = self._clients.connecting(change, self._now)
        self._slots[number] = len(self._slots)
        try:
            self._chosen(
                self.core.join(
                    number, connecting.client.name, connecting.client.priority_level, connecting.client.ranges
                )
            )
        except ConsumerBusyError as error:
            self._clients.refused(change, error)
            return
        self._added_line(number, connecting.client)
        self._connect(change, self._slot(number), number, connecting)

    def _leave(self, change: Change) -> None:
        """Disconnect a client; the consumer that is active then gets the entries it did not acknowledge."""
        number = self._numbers.pop(change.who, None)
        self._clients.left(change)
        if number is None:
            return  # the broker had refused it
        if change.finishes:
            self._finish(number)
        self._line(kinds.CONSUMER_REMOVING, number)
        pick = self.core.leave(number)
        if pick is not None:
            self._chosen(pick)
        elif self.core.pending:
            self._cancel()
        self._world.number[self._slot(number)] = 0
        self._line(kinds.CONSUMER_REMOVED, number, *self._cursor())

    def _finish(self, number: int) -> None:
        """Let the active consumer acknowledge all it was sent since the last rewind."""
        s = self.core.state.s
        if number != self.core.active or self.core.delay_running:
            return
        sent = np.arange(int(s[st_.MARK_DELETE]) + 1, int(s[st_.READ_POSITION]))
        left = sent[self.core.state.deleted[sent] == 0]
        for at in range(0, len(left), FINISHED_AT_ONCE):
            self._make_room()
            some = left[at : at + FINISHED_AT_ONCE]
            loop.acknowledge_all(self.core.state, self._world, self._lines, self._slot(number), some)

    # --- redelivery requests ---------------------------------------------------------------------------------

    def _request_redelivery(self, slot: int, entry: int) -> None:
        """Request redelivery of an entry: if its consumer is the active one, the whole subscription rewinds."""
        w, number = self._world.w, int(self._world.number[slot])
        if self._reading_or_late():  # a client cannot know, but its request may as well come later
            w_.push(self._world, self._now + int(w[w_.READ_US]), w_.event(w_.ANSWER, slot, entry))
            return
        self._rewinds(number, [entry])

    def _reading_or_late(self) -> bool:
        """True if a read or the delay's task is running, with which a request would race."""
        running = self.core.pending and int(self._world.w[w_.READ_READY_AT]) <= self._now
        return running or self._now <= self._task_until

    def _rewinds(self, number: int, entries: Sequence[int] | None) -> None:
        """Handle a redelivery request that reaches the dispatcher; ``entries`` None = of everything."""
        w = self._world.w
        self._redeliver_line(number, entries)
        if not self.core.hears_redelivery(number):
            return
        waits = self.core.pending
        if waits:
            self._line(kinds.READ_CANCELLED, 0, 1)
            w[w_.READ_NUMBER] += 1
        self.core.redeliver(number, cancelled=waits)
        self._rewound(())
        self._attempt()

    def _act(self, slot: int, row: int) -> None:
        """Carry out an act of a recorded client: an individual or cumulative acknowledgement, or a redelivery request."""
        world, st, base = self._world, self.core.state, int(self._world.w[w_.BASE])
        number = int(world.number[slot])
        if not number:
            return  # it has left
        kind, position = int(world.act_kind[row]), int(world.act_entry[row])
        entry, before = position - base, int(st.s[st_.MARK_DELETE])
        if kind == w_.REQUEST:
            if self._reading_or_late():
                w_.push(world, self._now + int(world.w[w_.READ_US]), w_.event(w_.ACT, slot, row))
            else:
                self._rewinds(number, self._requested(row))
        elif kind == w_.WHOLE:
            loop.grant(st, world, slot, entry)
            loop.ack(st, world, self._lines, slot, position)
        elif kind == w_.UP_TO:
            self._ack_line(number, position, self._words(row) or (), up_to=True)
            if entry > before:
                self.core.acknowledge_up_to(entry, self._words(row) or ())
            for acknowledged in range(before + 1, int(st.s[st_.MARK_DELETE]) + 1):
                loop.grant(st, world, slot, acknowledged)
        elif entry > before:
            words = self._words(row) or ()
            self._ack_line(number, position, words)
            self.core.acknowledge(entry, words)
