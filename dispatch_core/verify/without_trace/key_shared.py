"""Fold a log without a trace through the rules of Key_Shared, batch by batch, and judge each delivery.

Control plane. The dispatcher takes joins and leaves; ``rounds`` takes everything else. Failover and Exclusive:
``single_active``. Base of all folds: ``base``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.operations import ADDED, FLOW, PASSED, REMOVED, SENT
from dispatch_core.audit.waits.sampling import no_samples
from dispatch_core.broker import gates
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.membership import drain_all, pending_elsewhere
from dispatch_core.broker.ordering.draining_hashes import give_up
from dispatch_core.broker.ownership import OwnershipSpans
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.selectors.assignments import Impacted
from dispatch_core.broker.state import (
    MARK_DELETE,
    NO_HASH,
    NOBODY,
    READ_POSITION,
    STORED_HASH,
    TRACK_DRAINING,
)
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError
from dispatch_core.verify.without_trace import rounds
from dispatch_core.verify.without_trace.base import (
    DIVERGENT,
    EXACT,
    JUDGEMENTS,
    NOT_JUDGED,
    NOT_STORED,
    UNCERTAIN,
    CheckpointOperations,
    DispatcherFold,
    Ints,
    OperationBatch,
    grown,
)
from dispatch_core.verify.without_trace.non_persistent import NonPersistentFold
from dispatch_core.verify.without_trace.possible_owners import Member, SelectorRoster
from dispatch_core.verify.without_trace.races import RACE_US, Racing
from dispatch_core.verify.without_trace.shared import SharedFold
from dispatch_core.verify.without_trace.single_active import SingleActiveFold

__all__ = [
    "DIVERGENT",
    "EXACT",
    "JUDGEMENTS",
    "NOT_JUDGED",
    "NOT_STORED",
    "RACE_US",
    "UNCERTAIN",
    "CheckpointOperations",
    "DispatcherFold",
    "Ints",
    "KeySharedFold",
    "Member",
    "OperationBatch",
    "Racing",
    "SingleActiveFold",
    "fold_of",
]

Array = npt.NDArray[Any]

_EVERYTHING: Final = 1 << 62
_JOINED_LATER: Final = "the consumer joined later and must wait for what was handed out before"


def _spares(batch: OperationBatch) -> Ints:
    """Return the change of its consumer's permits by each operation, counting every entry as one message."""
    spares: Ints = np.where(batch.op_code == SENT, -np.diff(batch.op_start), 0)
    flows = batch.op_code == FLOW
    spares[flows] = batch.op_value[flows]
    return spares


class KeySharedFold(DispatcherFold):
    """Key_Shared: owner of the hash, ordering rule, permits."""

    core: KeySharedDispatcher
    reasons: ClassVar = {
        gates.NOT_CONNECTED: "the consumer is not connected",
        gates.OTHER_OWNER: "the key's hash belongs to another consumer",
        gates.DRAINING_HASH: "the key's hash drains for another consumer",
        gates.RECENTLY_JOINED: _JOINED_LATER,
        gates.LAST_SENT_POSITION: _JOINED_LATER,
        gates.REPLAY_ORDER: "an earlier entry of the key's hash waits to be sent",
        gates.NO_PERMITS: "the consumer has no permits left",
        rounds.NOT_JUDGED: "the log does not hold when the consumer joined",
        rounds.MAYBE_READ: "how far was read when the consumer joined is not in the log",
    }

    def __init__(self, profile: Profile) -> None:
        """Raises ``UnsupportedRuleError`` for a rule that is not replayed."""
        super().__init__(profile)
        nothing = np.empty(0, np.int64)
        self._classic = profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
        kind = ClassicKeySharedDispatcher if self._classic else KeySharedDispatcher
        self.core = kind(profile, nothing, nothing, 1)
        self._policy: tuple[str, bool] | None = None
        self._stored_at_join = nothing  # by slot, as an ordinal
        self._behind_us = 0  # largest lag of the clock at the end of the last batch
        self._silence_us = 0  # the longest time without a line by then
        self._last_us: int | None = None  # time of the last operation
        self._unreported = False  # the data plane took operations since the last membership change …
        self._contradicted = False  # … and something was sent as no rule would
        self._batched_entries = False  # some entry holds more than one message
        self._slot_of = np.empty(0, np.int32)  # by the number in ``op_consumer``
        # Where entries hold several messages: requested messages minus sent entries, by the number in ``op_consumer``. A
        # consumer cannot have more permits.
        self._spare = nothing  # when the last batch began
        self._spared = nothing  # by which it changed

    def _unknown(self) -> list[int]:
        return [rounds.NOT_JUDGED]

    def _not_the_owner(self) -> tuple[int, ...]:
        return gates.OTHER_OWNER, gates.NOT_CONNECTED

    def _roster(self) -> SelectorRoster:
        return SelectorRoster(self.core.selector)

    def _hashes_of(self, entries: Array) -> Ints:
        return self.core.hash_values(self.state.hash_id[entries])

    def _undecided(self) -> list[int]:
        undecided = [rounds.MAYBE_READ]
        if self._batched_entries:
            # Acknowledgements of single messages of a batch move the permits, and need not be in the log.
            undecided.append(gates.NO_PERMITS)
        if self.state.s[STORED_HASH] != NO_HASH:
            # Classic 4.x: what comes back waits under hash 0 until a replay read, which is unseen, puts it back.
            undecided.append(gates.REPLAY_ORDER)
        return undecided

    def _lacks_permits(self) -> int:
        return gates.NO_PERMITS

    def _surely(self, batch: OperationBatch, op: int, place: int, reason: int) -> bool:
        if reason != gates.NO_PERMITS:
            return False
        consumer = int(batch.op_consumer[op])
        own = np.flatnonzero(batch.op_consumer[:op] == consumer)
        return int(self._spare[consumer] + _spares(batch)[own].sum()) <= place

    def _count_spare(self, batch: OperationBatch, most: int, *, begins: bool) -> None:
        """Count spare permits up to the batch. ``begins``: no entry held several messages before, so permits are exact."""
        if begins:
            permits = self.state.permits + self.state.parked_permits
            self._spare = np.where(self._slot_of == NOBODY, 0, permits[self._slot_of])
        self._spare = grown(self._spare, most, 0)
        self._spare[: len(self._spared)] += self._spared
        by_consumer = np.bincount(batch.op_consumer + 1, _spares(batch))  # the first: no consumer
        self._spared = by_consumer[1:].astype(np.int64)

    def _advance(self, batch: OperationBatch, expected: Ints, reason: npt.NDArray[np.int8]) -> None:
        self.core.extend(batch.dropped, batch.hashes, batch.num_messages, len(self._numbers))
        self._settle(batch.settled)
        if len(batch.settled) and isinstance(self.core, ClassicKeySharedDispatcher):
            self.core.remember_beginning()
        sampler = self._retain(batch)
        self._stored_at_join = grown(self._stored_at_join - batch.dropped, len(self.core.state.permits), 0)
        batched_before = self._batched_entries
        self._batched_entries = batched_before or bool((batch.num_messages > 1).any())
        if self.wait_tracker is not None:
            self.wait_tracker.joined(self._stored_at_join)
            self.wait_tracker.batched_entries = self._batched_entries
        most = int(batch.op_consumer.max(initial=-1)) + 1
        self._slot_of = grown(self._slot_of, most, NOBODY)
        if self._batched_entries:
            self._count_spare(batch, most, begins=not batched_before)
        behind_us = self._clock_behind(batch.op_t_us)
        arrays = batch.arrays(self._slot_of, self._stored_at_join, expected, reason)
        at, begun, end = 0, 0, len(batch.op_code)
        samples = no_samples(end) if sampler is None else sampler.samples
        checkpoint = batch.checkpoint
        while at < end:
            if checkpoint is not None and at >= checkpoint.joins:
                self._restore(checkpoint, batch, at)
            if checkpoint is not None and at >= checkpoint.count:
                checkpoint = None
            stop = end
            if checkpoint is not None:
                stop = checkpoint.joins if at < checkpoint.joins else checkpoint.count
            at = rounds.fold_while_quiet(self.core.state, self._classic, arrays, samples, at, stop)
            if at < end and sampler is not None and sampler.stop(at) == at:
                sampler.look(self, at)
                continue
            if at == stop:
                continue
            self._note_what_was_sent(batch, begun, at, reason)
            self._report_what_was_sent()
            if sampler is not None:
                last = batch.op_code[at] < PASSED and self._leaves_nobody(batch, at)
                sampler.before_change(self, at, last=last)
            if batch.op_code[at] >= PASSED:
                self._move_cursor(batch, at)
                at += 1
                begun = at
                continue
            self._note_change(batch, at)
            try:
                self._membership(at, batch, int(behind_us[at]))
            except IllegalTransitionError as error:
                # Only a log that broke the rules before brings the dispatcher to this.
                self.not_judged = self.not_judged or f"at seq {batch.op_seq[at]}: {error}"
            at += 1
            begun = at
        if checkpoint is not None:  # nothing comes behind it
            self._restore(checkpoint, batch, end)
        self._note_what_was_sent(batch, begun, end, reason)
        numbers = np.array([*map(self.core.number_of, range(self.core.known())), -1], np.int64)
        expected[:] = numbers[np.maximum(expected, -1)]
        unknown = self.core.id_of_hash(NOT_STORED)
        if unknown is not None:
            reason[self.core.state.hash_id[batch.op_ordinals[: len(reason)]] == unknown] = rounds.NOT_JUDGED

    def _restore(self, checkpoint: CheckpointOperations, batch: OperationBatch, at: int) -> None:
        """Restore ranges and draining hashes of a checkpoint, once its joins and pending entries are in force."""
        st = self.core.state
        if at == checkpoint.joins:
            if checkpoint.ends is not None:
                self.core.restore_ranges(checkpoint.ends)
                self._possible_owners.restart()
            # The joins of a checkpoint are no changes of ownership: report the ranges once.
            self.owned = OwnershipSpans()
            self.owned.reported(int(batch.op_seq[0]), int(batch.op_t_us[0]), self.core.assignments().ranges)
        if at == checkpoint.count and st.s[TRACK_DRAINING]:
            drain_all(st, pending_elsewhere(st))

    def _move_cursor(self, batch: OperationBatch, at: int) -> None:
        consumers = np.flatnonzero(self._slot_of != NOBODY).tolist()
        self._move(batch, at, {int(self._slot_of[consumer]): consumer for consumer in consumers})

    def _note_what_was_sent(
        self, batch: OperationBatch, begun: int, at: int, reason: npt.NDArray[np.int8]
    ) -> None:
        """Note that the data plane took the operations [begun, at)."""
        if at > begun:
            self._unreported = True
            differs = reason[batch.op_start[begun] : batch.op_start[at]].any()
            self._contradicted = self._contradicted or bool(differs)

    def _report_what_was_sent(self) -> None:
        """Report to the dispatcher what the data plane sent and acknowledged."""
        if not self._unreported:
            return
        self._unreported = False
        st = self.core.state
        acknowledged = np.flatnonzero(st.holder[: st.s[MARK_DELETE] + 1] != NOBODY)
        self.core.sent_alone(int(st.s[READ_POSITION]) - 1, acknowledged.tolist())
        if self._contradicted:
            self._give_up_contradicted()
            self._contradicted = False

    def _give_up_contradicted(self) -> None:
        """Free hashes that drain for one consumer although another was sent entries of them, which were reported by then."""
        st = self.core.state
        pending = np.flatnonzero(st.holder[: st.s[READ_POSITION]] != NOBODY)
        hashes = st.pending_hash[pending]
        owners = st.drain_owner[hashes]
        for hash_id in np.unique(hashes[(owners != NOBODY) & (owners != st.holder[pending])]).tolist():
            give_up(st, hash_id)

    def _leaves_nobody(self, batch: OperationBatch, at: int) -> bool:
        """Check whether an operation removes the only consumer."""
        number = self._numbers.get(int(batch.op_consumer[at]))
        return int(batch.op_code[at]) == REMOVED and self.core.connected() == [number]

    def _clock_behind(self, t_us: Ints) -> Ints:
        """Return the largest lag of the clock at each operation, microseconds, after it went back.

        Example: a line at 12:00:10 is followed by one at 12:00:04. The clock went back by 6 s during a silence of unknown
        length, taken for the longest time without a line so far, say 2 s. So the clock is 8 s behind from then on.
        """
        if not len(t_us):
            return t_us
        passed = np.diff(t_us, prepend=t_us[0] if self._last_us is None else self._last_us)
        if passed.min() >= 0:
            behind_us = np.full(len(t_us), self._behind_us)
            silence_us = max(self._silence_us, int(passed.max()))
        else:
            longest = np.maximum(np.maximum.accumulate(passed), self._silence_us)
            behind_us = self._behind_us + np.cumsum(np.where(passed < 0, longest - passed, 0))
            silence_us = int(longest[-1])
        self._last_us, self._behind_us, self._silence_us = int(t_us[-1]), int(behind_us[-1]), silence_us
        return behind_us

    def _membership(self, at: int, batch: OperationBatch, behind_us: int) -> None:
        code, consumer = int(batch.op_code[at]), int(batch.op_consumer[at])
        if code == ADDED and consumer in self._members:
            self._join(consumer, self._members[consumer], batch, at, behind_us)
        elif code == REMOVED and consumer >= 0 and self._slot_of[consumer] != NOBODY:
            number = self._numbers[consumer]
            if number in self.core.connected():
                moved = self.core.select_out(number)
                self._moved(batch, at, moved)
                self.core.drop(number, moved)
                self.core.forget(number)

    def _join(self, consumer: int, member: Member, batch: OperationBatch, at: int, behind_us: int) -> None:
        connected = self.core.connected()
        policy = (member.mode, member.allow_out_of_order)
        if not connected:
            if self._policy not in (None, policy) and self.not_judged is None:
                self.not_judged = (
                    f"consumer {member.number} brought another Key_Shared policy ({member.mode}) to an empty "
                    "subscription: the broker built a new dispatcher; cut the log there"
                )
            self._policy = policy
        try:
            self.core.join(member.number, member.name, member.priority_level)
        except IllegalTransitionError:
            return  # added twice: the audit reports it, the connection is known
        slot = self.core.slot(member.number)
        self._slot_of[consumer] = slot
        joined_us = int(batch.op_t_us[at]) + behind_us
        # Publish times are those of several clocks: what was published earlier may lie behind what was published later.
        by_then = np.flatnonzero(self._stored_us <= joined_us + RACE_US)
        stored = int(by_then[-1]) + 1 if len(by_then) else 0
        # Behind the entries that have come by now others may have been stored as well.
        known = stored < len(self._stored_us) or joined_us + RACE_US < batch.stored_until_us
        self._stored_at_join[slot] = stored if known else _EVERYTHING
        try:
            moved = self.core.select_in(member.number, member.ranges)
        except SelectorRefusedError:
            self.core.refuse(member.number)
            return
        self._moved(batch, at, moved)
        self.core.register(moved, skip=member.number)

    def _moved(self, batch: OperationBatch, at: int, moved: Impacted) -> None:
        """Note the new owners. The ring of 3.0 to 3.3.1 does not report what a change moved: all ranges are taken."""
        reported = len(moved.lost) or len(moved.won)
        known = reported or (moved.touched is not None and not len(moved.touched[0]))
        seq, t_us = int(batch.op_seq[at]), int(batch.op_t_us[at])
        if known:
            self.owned.changed(seq, t_us, moved.lost, moved.won)
        else:
            self.owned.reported(seq, t_us, self.core.assignments().ranges)


def fold_of(profile: Profile, topic: str, subscription_type: str) -> DispatcherFold:
    """Make the fold for a profile; raises ``UnsupportedRuleError`` for a rule that is not replayed."""
    if profile.is_non_persistent:
        return NonPersistentFold(profile, topic, exclusive=subscription_type == "Exclusive")
    if profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
        return SingleActiveFold(profile, topic, exclusive=subscription_type == "Exclusive")
    if profile.is_shared:
        return SharedFold(profile)
    return KeySharedFold(profile)
