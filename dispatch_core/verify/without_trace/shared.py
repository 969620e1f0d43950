"""Fold a log without a trace through the state of a Shared dispatcher, so that it is known why everything waits.

Deliveries are not judged: who gets an entry depends on the order of reads, which such a log does not show. What it shows is
enough to say what waits, who is connected, who has permits, and which limits of unacknowledged messages are reached. Of
single entries it does not say why they wait while others are sent.

Control plane. ``rounds`` books deliveries, flows, acknowledgements and redelivery requests as for Key_Shared; its judgement
of a delivery, by the owner of a hash that nobody owns, is not used.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.operations import ADDED, PASSED, REMOVED
from dispatch_core.audit.waits.sampling import no_samples
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.state import MARK_DELETE, NOBODY, READ_POSITION
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.tables import SHARED_WITHOUT_TRACE
from dispatch_core.verify.without_trace import rounds
from dispatch_core.verify.without_trace.base import (
    Array,
    DispatcherFold,
    Ints,
    OperationBatch,
    grown,
)
from dispatch_core.verify.without_trace.possible_owners import Change


class _NobodyOwns:
    """The roster of a Shared subscription: no consumer owns a hash."""

    def copy(self) -> _NobodyOwns:
        """See ``Roster``."""
        return self

    def apply(self, change: Change) -> None:
        """See ``Roster``: a join or leave changes nothing."""

    def owner(self, hash_value: int) -> int | None:
        """See ``Roster``."""
        return None


class SharedFold(DispatcherFold):
    """Shared: members, permits, pending entries and the replay set. ``not_judged`` is set from the beginning."""

    core: SharedDispatcher
    reasons: ClassVar = {}

    def __init__(self, profile: Profile) -> None:
        """Raises ``UnsupportedRuleError`` for a profile of another dispatcher."""
        super().__init__(profile)
        nothing = np.empty(0, np.int64)
        self.core = SharedDispatcher(profile, nothing, nothing, 1)
        self.not_judged = f"{profile.name}: {SHARED_WITHOUT_TRACE}"
        self._slot_of = np.empty(0, np.int32)  # by the number in ``op_consumer``
        self._batched_entries = False  # some entry holds more than one message
        self._contradicted = False

    @property
    def knows_stalls(self) -> bool:
        """See ``DispatcherFold``: but for a log that broke the rules of membership."""
        return not self._contradicted

    def _unknown(self) -> list[int]:
        return []

    def _undecided(self) -> list[int]:
        return []

    def _not_the_owner(self) -> tuple[int, ...]:
        return ()

    def _roster(self) -> _NobodyOwns:
        return _NobodyOwns()

    def _hashes_of(self, entries: Array) -> Ints:
        return np.zeros(len(entries), np.int64)

    def _advance(self, batch: OperationBatch, expected: Ints, reason: npt.NDArray[np.int8]) -> None:
        self.core.extend(batch.dropped, batch.hashes, batch.num_messages, len(self._numbers))
        self._settle(batch.settled)
        sampler = self._retain(batch)
        self._batched_entries = self._batched_entries or bool((batch.num_messages > 1).any())
        if self.wait_tracker is not None:
            self.wait_tracker.batched_entries = self._batched_entries
        most = int(batch.op_consumer.max(initial=-1)) + 1
        self._slot_of = grown(self._slot_of, most, NOBODY)
        stored_at_join = np.zeros(len(self.state.permits), np.int64)
        arrays = batch.arrays(self._slot_of, stored_at_join, expected, reason)
        at, end = 0, len(batch.op_code)
        samples = no_samples(end) if sampler is None else sampler.samples
        while at < end:
            at = rounds.fold_while_quiet(self.state, False, arrays, samples, at, end)
            if at == end:
                break
            if sampler is not None and sampler.stop(at) == at:
                sampler.look(self, at)
                continue
            self._report_what_was_sent()
            if sampler is not None:
                sampler.before_change(self, at, last=self._leaves_nobody(batch, at))
            if batch.op_code[at] >= PASSED:
                consumers = np.flatnonzero(self._slot_of != NOBODY).tolist()
                self._move(batch, at, {int(self._slot_of[consumer]): consumer for consumer in consumers})
            else:
                self._membership(batch, at)
            at += 1
        self._report_what_was_sent()

    def _report_what_was_sent(self) -> None:
        """Report to the dispatcher what the data plane sent and acknowledged."""
        st = self.state
        acknowledged = np.flatnonzero(st.holder[: st.s[MARK_DELETE] + 1] != NOBODY)
        self.core.sent_alone(int(st.s[READ_POSITION]) - 1, acknowledged.tolist())

    def _leaves_nobody(self, batch: OperationBatch, at: int) -> bool:
        """Check whether an operation removes the only consumer."""
        number = self._numbers.get(int(batch.op_consumer[at]))
        return int(batch.op_code[at]) == REMOVED and self.core.connected() == [number]

    def _membership(self, batch: OperationBatch, at: int) -> None:
        code, consumer = int(batch.op_code[at]), int(batch.op_consumer[at])
        try:
            if code == ADDED and consumer in self._members:
                member = self._members[consumer]
                if self._slot_of[consumer] == NOBODY:  # else it was added twice, which the audit reports
                    self.core.join(member.number, member.name, member.priority_level)
                    self._slot_of[consumer] = self.core.slot(member.number)
            elif code == REMOVED and consumer >= 0 and self._slot_of[consumer] != NOBODY:
                number = self._numbers[consumer]
                if number in self.core.connected():
                    self.core.leave(number)
        except IllegalTransitionError:
            # Only a log that broke the rules before brings the dispatcher to this.
            self._contradicted = True
