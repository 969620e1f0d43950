"""Fold a log without a trace through the rules of Failover and Exclusive: active consumer and position order.

Control plane; ``positions`` judges the entries. Permits are counted as flow arrives and entries are sent; acknowledgements
of single messages of a batch free none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.operations import ADDED, FLOW, PASSED, REMOVED, SENT
from dispatch_core.audit.waits.sampling import no_samples
from dispatch_core.broker.gates import first_gate_single_active
from dispatch_core.broker.ownership import WHOLE_TOPIC
from dispatch_core.broker.profiles import FailoverRule, Profile
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.single_active_rules import ConsumerBusyError
from dispatch_core.broker.state import NOBODY, READ_POSITION
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.verify.without_trace import positions
from dispatch_core.verify.without_trace.base import Array, DispatcherFold, Ints, OperationBatch
from dispatch_core.verify.without_trace.possible_owners import ActiveConsumer

#: Operations that may change the gate, besides moves of the cursor.
_MAY_CHANGE_A_GATE: Final = (ADDED, REMOVED, FLOW)


class _Gate(NamedTuple):
    """A gate that held all entries until a line.

    Attributes:
        gate: without the failover delay.
        active: the active consumer then.
        delayed_us: end of the failover delay, if it ran.
        seq: the last line that it is known to have held them until.
        until_us: time of that line.
    """

    gate: int
    active: int | None
    delayed_us: int | None
    seq: int
    until_us: int


class SingleActiveFold(DispatcherFold):
    """Replay of a Failover or Exclusive dispatcher: active consumer and position order."""

    core: SingleActiveDispatcher
    reasons: ClassVar = {
        positions.NOT_ACTIVE: "another consumer is active",
        positions.GOES_BACK: "nothing made the cursor go back",
        positions.SKIPS: "an entry before it is neither acknowledged nor sent",
        positions.ACK_RACES: "it was acknowledged a moment before, when it may have been read already",
    }

    def __init__(self, profile: Profile, topic: str, *, exclusive: bool) -> None:
        super().__init__(profile)
        self.core = SingleActiveDispatcher(profile, topic, profile.partition_index, exclusive=exclusive)
        self._nobody = ActiveConsumer(
            topic=topic,
            partition_index=0 if exclusive else profile.partition_index,
            ring=profile.failover is FailoverRule.RING,
            exclusive=exclusive,
        )
        self._index: dict[int, int] = {}  # the log's number → as in ``op_consumer``
        self._rewind_due = False
        self._delay_us = 0 if exclusive else 1000 * profile.number("activeConsumerFailoverDelayTimeMillis")
        self._changed_us = -(1 << 62)  # when the active consumer changed last
        self._change_pending = False  # nothing was sent since then
        # What a rewind that is due sends again, see ``positions.fold``.
        self._again = np.zeros(2, np.int64)
        self._acked_us = np.empty(0, np.int64)  # when each entry was acknowledged, as far as the log shows
        self._permits = np.empty(0, np.int64)  # as numbered in ``op_consumer``
        # Before the first delivery, which shows where the subscription begins: the gates that have held all entries.
        self._gates: list[_Gate] = []
        self._sampled = False  # these gates

    def _unknown(self) -> list[int]:
        return []

    def _undecided(self) -> list[int]:
        return [positions.ACK_RACES]

    def _not_the_owner(self) -> tuple[int, ...]:
        return (positions.NOT_ACTIVE,)

    def _roster(self) -> ActiveConsumer:
        return replace(self._nobody, candidates=self.core.candidates)

    def _hashes_of(self, entries: Array) -> Ints:
        return np.zeros(len(entries), np.int64)

    def _advance(self, batch: OperationBatch, expected: Ints, reason: npt.NDArray[np.int8]) -> None:
        self.core.extend(batch.dropped, batch.num_messages)
        self._again[positions.BELOW] = max(int(self._again[positions.BELOW]) - batch.dropped, 0)
        kept_us = self._acked_us[batch.dropped :]
        new = np.full(max(len(self.core.state.deleted) - len(kept_us), 0), positions.LONG_AGO_US, np.int64)
        self._acked_us = np.append(kept_us, new)
        self._settle(batch.settled)
        sampler = self._retain(batch)
        room = int(batch.op_consumer.max(initial=-1)) + 1 - len(self._permits)
        self._permits = np.append(self._permits, np.zeros(max(room, 0), np.int64))
        by = self._permits_by(batch) if sampler is not None else np.empty(0, np.int64)
        at, end = 0, len(batch.op_code)
        samples = no_samples(end) if sampler is None else sampler.samples
        changes = np.empty(0, np.int64)  # operations that may change the gate; used before the first sample
        if sampler is not None and not self._sampled:
            changes = np.flatnonzero(np.isin(batch.op_code, _MAY_CHANGE_A_GATE) | (batch.op_code >= PASSED))
        while at < end:
            begun, stop = at, end
            if sampler is not None and not self._sampled:
                # The first sample is that of all gates before it.
                stop = sampler.stop(at)
                if at < sampler.begin:
                    following = int(np.searchsorted(changes, at))
                    if at in changes[following : following + 1]:
                        self._note_gate(batch, at)
                        following += 1
                    stop = min([stop, *changes[following : following + 1].tolist()])
            active = NOBODY if self.core.active is None else self._index[self.core.active]
            at, self._rewind_due = positions.fold_while_quiet(
                self.core.state,
                batch.op_code,
                batch.op_consumer,
                batch.op_start,
                batch.op_ordinals,
                batch.op_t_us,
                active,
                self._rewind_due,
                self._again,
                self._acked_us,
                samples,
                at,
                stop,
                expected,
                reason,
            )
            if (batch.op_code[begun:at] == SENT).any():
                self._change_pending = False
            if sampler is not None:
                counted = batch.op_consumer[begun:at] >= 0
                np.add.at(self._permits, batch.op_consumer[begun:at][counted], by[begun:at][counted])
            if at < end and sampler is not None and sampler.stop(at) == at:
                sampler.look(self, at)
                continue
            if at == stop:
                continue
            if sampler is not None:
                last = int(batch.op_code[at]) == REMOVED and len(self.core.members) == 1
                sampler.before_change(self, at, last=last)
            if batch.op_code[at] >= PASSED:
                self._move(batch, at, {})
                self._rewind_due = self._rewind_due or batch.op_code[at] != PASSED
                at += 1
                continue
            before = self.core.active
            self._note_change(batch, at)
            self._membership(int(batch.op_code[at]), int(batch.op_consumer[at]), batch)
            # The joins of a checkpoint are no changes: the active consumer is so at once.
            to_join = 0 if batch.checkpoint is None else batch.checkpoint.joins - at
            if self.core.active != before:
                self._rewind_due, self._changed_us = True, int(batch.op_t_us[at])
                self._change_pending = self._delay_us > 0 and to_join <= 0
                if to_join <= 0:
                    self._again[:] = self.state.s[READ_POSITION], self._changed_us + self._delay_us
            if to_join <= 1:
                owned = () if self.core.active is None else ((*WHOLE_TOPIC, self.core.active),)
                self.owned.reported(int(batch.op_seq[at]), int(batch.op_t_us[at]), owned)
            at += 1
        expected[:] = self._numbers_of(expected)

    def _membership(self, code: int, consumer: int, batch: OperationBatch) -> None:
        if code == ADDED and consumer in self._members:
            member = self._members[consumer]
            if self.core.is_connected(member.number):
                return
            self._index[member.number] = consumer
            try:
                self.core.join(member.number, member.name, member.priority_level, member.ranges or ())
            except (IllegalTransitionError, ConsumerBusyError):
                return
        elif code == REMOVED and self.core.is_connected(self._numbers.get(consumer, -1)):
            self.core.leave(self._numbers[consumer])

    def _permits_by(self, batch: OperationBatch) -> Ints:
        """Return the change of its consumer's permits by each operation: flow adds, sent messages subtract."""
        messages = np.concatenate([[0], np.cumsum(self.state.num_messages[batch.op_ordinals])])
        taken = messages[batch.op_start[1:]] - messages[batch.op_start[:-1]]
        by: Ints = np.where(batch.op_code == SENT, -taken, 0)
        by[batch.op_code == FLOW] = batch.op_value[batch.op_code == FLOW]
        return by

    def _note_gate(self, batch: OperationBatch, at: int) -> None:
        """Note the gate that holds all entries before the operation ``at``, and when it began to."""
        t_us = int(batch.op_t_us[at])
        active = self.core.active
        permits = 0 if active is None else int(self._permits[self._index[active]])
        gate = first_gate_single_active(active is not None, False, permits)
        delayed_us = self._changed_us + self._delay_us if self._change_pending else None
        before = self._gates[-1] if self._gates else None
        if before is None or (before.gate, before.active, before.delayed_us) != (gate, active, delayed_us):
            self._gates.append(_Gate(gate, active, delayed_us, int(batch.op_seq[at]), t_us))
        else:
            self._gates[-1] = before._replace(seq=int(batch.op_seq[at]), until_us=t_us)

    def sample_begin(self, first: int = 0) -> bool:
        """See ``DispatcherFold``."""
        if self._sampled or self.wait_tracker is None:
            return False
        self._sampled = True
        changed_us: int | None = None
        for gate in self._gates:
            spans = [(gate.until_us, gate.gate)]
            if gate.delayed_us is not None:
                delay = first_gate_single_active(True, True, 0)
                spans = [(min(gate.delayed_us, gate.until_us), delay), *spans]
            for until_us, reason in spans:
                self.wait_tracker.sample(
                    self.core,
                    gate.seq,
                    until_us,
                    reason=reason,
                    slot=NOBODY if gate.active is None else gate.active,
                    first=first,
                    again_below=self.again_below(),
                    changed_us=changed_us,
                )
                changed_us = until_us
        self._gates = []
        return True

    def reason_of_all(self) -> int:
        """Return the gate that holds all entries that were not sent."""
        if self.core.active is None or self.wait_tracker is None:
            return first_gate_single_active(False, False, 0)
        # the delay ends on its own: the time since the last sample lies mostly before its end, or mostly behind it
        delay_runs = self._change_pending and (
            self.wait_tracker.looked_us + self.looks_us < 2 * (self._changed_us + self._delay_us)
        )
        return first_gate_single_active(True, delay_runs, int(self._permits[self._index[self.core.active]]))

    def again_below(self) -> int:
        """See ``DispatcherFold``: from a change of the active consumer, or its redelivery request, on."""
        return int(self._again[positions.BELOW])
