"""Base of the folds of a log without a trace: a batch of operations in, a judgement per delivery out.

Control plane. A batch holds consecutive operations and the entries that are new in them. The dispatcher goes on from batch
to batch (``extend``), so that memory follows the entries that can still matter.

A difference is *uncertain* if an event raced with it that the log shows on arrival only: a membership change or a redelivery
request within ``races.RACE_US``. A delivery without permits races only with events of its own consumer, which could have
given it permits. A delivery to a consumer that is not the owner races only with membership changes that could make it the
owner (``possible_owners``), in an order that agrees with the deliveries before it. Any other difference is *divergent*.

Example: key k belongs to consumer 1 by the rules, and the log shows its entry sent to consumer 2. If consumer 2 joined 20 ms
later and owns the key then, the difference is uncertain. If nobody joined or left within 50 ms, or no order of those who did
makes consumer 2 the owner, it is divergent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.operations import (
    ADDED,
    FLOW,
    PASSED,
    REDELIVER,
    REDELIVER_ALL,
    REMOVED,
    SENT,
)
from dispatch_core.audit.waits.sampling import BatchSamples, next_look
from dispatch_core.audit.waits.tracker import CURSOR_PASSED, LastSent, SampledWait, WaitTracker, Window
from dispatch_core.broker.cursor import acknowledge
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.ownership import OwnershipSpans
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.state import NOBODY, State
from dispatch_core.recording.stream import EVERY_ENTRY_US
from dispatch_core.verify.tally import Finding
from dispatch_core.verify.without_trace import rounds
from dispatch_core.verify.without_trace.cursor_moves import MovesNotJudged, move
from dispatch_core.verify.without_trace.possible_owners import (
    Change,
    Deliveries,
    Member,
    Place,
    PossibleOwners,
    Roster,
)
from dispatch_core.verify.without_trace.races import RACE_US, Racing, may_race

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

#: Hash of an entry that the message log does not hold.
NOT_STORED: Final = -1
#: Commands that make the broker attempt a read, whatever the subscription type.
_ATTEMPT_A_READ: Final = (ADDED, FLOW, REDELIVER, REDELIVER_ALL, REMOVED)

EXACT: Final = 0
UNCERTAIN: Final = 1
DIVERGENT: Final = 2
NOT_JUDGED: Final = 3
JUDGEMENTS: Final = ("exact", "uncertain", "divergent", "not_judged")


def grown(values: Array, count: int, value: int) -> Array:
    """Append ``value`` until there are at least ``count`` values."""
    return np.concatenate([values, np.full(max(count - len(values), 0), value, values.dtype)])


@dataclass(frozen=True, slots=True)
class CheckpointOperations:
    """The first operations of a log, made from its checkpoint.

    The first ``joins`` of the ``count`` operations add the connected consumers. ``ends``: the last hash of each consumer's
    range, by the log's number; None = not known.
    """

    joins: int
    count: int
    ends: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class OperationBatch:
    """Consecutive operations (codes: ``audit.operations``) and the entries that are new in them.

    Ordinals of ``op_ordinals`` count from the first retained entry; ``dropped`` entries before it have left since the last
    batch. ``op_start`` has one element more than there are operations and begins anywhere.
    """

    dropped: int
    hashes: Ints  # sticky key hash of the new entries; of Shared 0, or NOT_STORED
    num_messages: Ints
    settled: Ints  # ordinals that are acknowledged before the batch
    stored_us: Ints  # publish times of the new entries (ascending enough to be searched)
    op_code: Array
    op_consumer: Array
    op_value: Array
    op_seq: Ints
    op_t_us: Ints
    op_start: Ints
    op_ordinals: Array
    #: New consumers by the number in ``op_consumer``; they join in this batch or later.
    members: Mapping[int, Member]
    ahead: Racing  # operations behind this batch that may race with it
    #: The consumers that join in ``ahead``, by the log's number.
    members_ahead: Mapping[int, Member] = field(default_factory=dict)
    #: All entries that were stored before this time are there.
    stored_until_us: int = EVERY_ENTRY_US
    #: Until when each of the retained and the new entries may be delayed, 0 = it is not; None = none is.
    due_us: Ints | None = None
    #: Number of the transaction of each of them, -1 = none; None = there are no transactions.
    transaction: Array | None = None
    #: Positions and keys of the retained and the new entries; only needed where waits are sampled.
    window: Window | None = None
    #: The log begins with a checkpoint of a dispatcher at work, whose past is unknown: all differences are uncertain.
    after_checkpoint: bool = False
    #: The operations of a checkpoint at the begin of the batch; None = there are none.
    checkpoint: CheckpointOperations | None = None

    def arrays(
        self, slot_of: Array, stored_at_join: Ints, expected: Ints, reason: npt.NDArray[np.int8]
    ) -> rounds.BatchArrays:
        """Return what ``rounds.fold`` reads of the batch, and what it fills in; see ``BatchArrays``."""
        lengths = np.diff(self.op_start)[self.op_code == SENT]
        return rounds.BatchArrays(
            self.op_code,
            self.op_consumer,
            self.op_value,
            self.op_start,
            self.op_ordinals,
            slot_of,
            stored_at_join,
            rounds.scratch(max(rounds.MOST_OF_SEVERAL_LINES, int(lengths.max(initial=0)))),
            np.zeros(3, np.int64),
            expected,
            reason,
        )


@dataclass(frozen=True, slots=True)
class BatchJudgement:
    """Judgement of each delivery of a batch, in order, and the findings.

    ``judgement``: index of ``JUDGEMENTS``. ``expected``: the log's number of the consumer by the rules; -1 = nobody.
    """

    judgement: npt.NDArray[np.int8]
    expected: Ints
    findings: list[Finding]


class NotJudgedFrom:
    """The first operation from which on differences are not judged, because an entry was delayed or of a transaction.

    Such entries are left out of reads that the rules replay: nothing shows when the broker takes them up again.
    """

    def __init__(self) -> None:
        self.from_us = 1 << 62
        self._begun = False

    def look(self, batch: OperationBatch) -> int | None:
        """Return the first such operation of a batch; ``None`` = all are judged."""
        if self._begun:
            return 0
        ops = [int(np.searchsorted(np.maximum.accumulate(batch.op_t_us), self.from_us))]
        firsts = []
        if batch.due_us is not None and batch.due_us.any():
            firsts.append(int(np.argmax(batch.due_us > 0)))
        if batch.transaction is not None and (batch.transaction >= 0).any():
            firsts.append(int(np.argmax(batch.transaction >= 0)))
        if firsts:
            first = min(firsts)
            ordinals = batch.op_ordinals[batch.op_start[0] : batch.op_start[-1]]
            owner = np.repeat(np.arange(len(batch.op_code)), np.diff(batch.op_start))
            reached = owner[(ordinals >= first) & (batch.op_code[owner] == SENT)]
            ops += [int(reached[0])] if len(reached) else []
        op = min(ops)
        self._begun = op < len(batch.op_code)
        return op if self._begun else None


class DispatcherFold(ABC):
    """Replay of one dispatcher without a trace.

    ``not_judged``: the reason why nothing is compared (any more); None = deliveries are compared.
    """

    #: Text of each code of the data plane.
    reasons: ClassVar[Mapping[int, str]]
    core: KeySharedDispatcher | SharedDispatcher | SingleActiveDispatcher

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.not_judged: str | None = None
        self.owned = OwnershipSpans()
        #: Samples waits while the log is folded; None = waits are not sampled. Set it before the first batch.
        self.wait_tracker: WaitTracker | None = None
        self._sampler: WaitSampler | None = None  # of the batch
        #: Entries that are not owed if nothing is sent; None = that is not known. Set it after each batch.
        self.not_owed: Ints | None = None
        self.begins_at_checkpoint = False  # which says where the cursor stood
        self._stored_us: Ints = np.empty(0, np.int64)  # of the entries that are retained
        self._ends_with_sent = False  # the last batch
        self._latest_us = 0  # the latest time of an operation
        self._begins_us: int | None = None  # the log
        self.looks_us = 0  # time of the sample that is taken
        self._sends = False  # something was sent
        self._before = Racing.none()  # at the end of the last batch
        self._moves = MovesNotJudged()
        self._not_judged_from = NotJudgedFrom()
        self._members: dict[int, Member] = {}  # by the number in ``op_consumer``
        self._numbers: dict[int, int] = {}  # as in ``op_consumer`` → the log's
        self._possible_owners = PossibleOwners()
        self._delivered = Deliveries.none()  # before this batch, from the first change that may race on

    @property
    def knows_stalls(self) -> bool:
        """True if the state says of everything that waits together why it does."""
        return self.not_judged is None

    def leave_open(self, from_us: int) -> None:
        """Do not judge differences from a moment on: a behaviour is in force that the rules do not replay."""
        self._not_judged_from.from_us = from_us

    def feed(self, batch: OperationBatch) -> BatchJudgement:
        """Take the next batch and judge its deliveries."""
        first, last = int(batch.op_start[0]), int(batch.op_start[-1])
        expected = np.full(last, NOBODY, np.int64)
        reason = np.zeros(last, np.int8)
        self._moves.drop(batch.dropped)
        self._members.update(batch.members)
        self._numbers.update({at: member.number for at, member in batch.members.items()})
        self._advance(batch, expected, reason)
        if self._sampler is not None:
            self._sampler.report_sent(len(batch.op_code))
            self._sampler = None  # it has the whole batch
        lengths = np.diff(batch.op_start)
        of_sent = np.repeat(batch.op_code == SENT, lengths)
        owner = np.repeat(np.arange(len(lengths)), lengths)[of_sent]
        expected, reason = expected[first:][of_sent], reason[first:][of_sent]
        judgement = np.where(reason == 0, EXACT, DIVERGENT).astype(np.int8)
        for unknown in self._unknown():
            judgement[reason == unknown] = NOT_JUDGED
        touched = self._moves.touched(
            batch.op_code, batch.op_consumer, batch.op_start, batch.op_ordinals, batch.op_t_us
        )
        if touched is not None:
            judgement[(judgement == DIVERGENT) & touched[of_sent]] = NOT_JUDGED
        later = self._not_judged_from.look(batch)
        if later is not None:
            judgement[(judgement == DIVERGENT) & (owner >= later)] = NOT_JUDGED
        findings = []
        ordinals = batch.op_ordinals[first:last][of_sent]
        if self.not_judged is not None:
            judgement[:] = NOT_JUDGED
        else:
            findings = self._explain(batch, owner, ordinals, expected, reason, judgement)
        if len(batch.op_t_us):
            since_us = int(batch.op_t_us[-1]) - RACE_US
            self._before = Racing.joined(self._before.since(since_us), self._racing(batch, since_us))
            self._possible_owners.forget(since_us - RACE_US)
            self._delivered = self._deliveries(batch, owner, ordinals)
        return BatchJudgement(judgement, expected, findings)

    def waits(self, seq: int, t_us: int) -> list[SampledWait]:
        """Return the waits that go on at the end of the log (line ``seq``, time ``t_us``), and the sums of short ones.

        Waits that ended since the last sample, which this one finds, are among them.
        """
        if self.wait_tracker is None or self._begins_us is None:
            return []  # without an event there is no subscription that anything could wait for
        first = 0
        if not self._sends and self.not_owed is not None:
            self._settle(self.not_owed)
        elif not self._sends:
            # nothing was sent: entries stored since the log began were for the consumers that are there
            first = int(np.searchsorted(self._stored_us, self._begins_us))
        self.sample_begin(first)
        self.looks_us = t_us
        self.wait_tracker.sample(
            self.core,
            seq,
            t_us,
            reason=self.reason_of_all(),
            first=first,
            again_below=self.again_below(),
            # Before the first delivery no samples are taken: since when nothing has held the entries is not known.
            changed_us=self._latest_us if self._sends else None,
        )
        waits = self.wait_tracker.take() + self.wait_tracker.finish(self.core)
        if self._sends or self.not_owed is None or self.begins_at_checkpoint:
            return waits
        return [self._perhaps_passed(wait, self._begins_us) for wait in waits]

    def _perhaps_passed(self, wait: SampledWait, begins_us: int) -> SampledWait:
        """Doubt a wait of entries from before this load of the topic: the cursor may have passed them between two loads."""
        listed = wait.entries <= len(wait.positions) or self._stored_us.max(initial=0) < begins_us
        if wait.until_seq is None and listed and all(us < begins_us for _, us in wait.published):
            return replace(wait, uncertain=True, doubt=CURSOR_PASSED)
        return wait

    def reason_of_all(self) -> int | None:
        """Return the gate that has held all waiting entries since the last sample; None = there is no single one."""
        return None

    def sample_begin(self, first: int = 0) -> bool:
        """Sample what has held the entries before the first delivery; False = that is not known, or was done.

        ``first``: entries before it were not for the subscription.
        """
        return False

    def again_below(self) -> int:
        """Return the entry below which all unacknowledged ones are to be sent again; 0 = none is."""
        return 0

    @property
    def state(self) -> State:
        """The dispatcher's state; ordinals count from the first entry that is retained."""
        return self.core.state

    def _move(self, batch: OperationBatch, at: int, consumer_of_slot: Mapping[int, int]) -> None:
        """Apply a move of the cursor; ``consumer_of_slot``: as numbered in ``op_consumer``."""
        st, code, upto = self.state, int(batch.op_code[at]), int(batch.op_value[at])
        upto = min(upto, len(st.deleted) - 1)
        pending: dict[int, int] = {}
        if code == PASSED:
            entries = np.flatnonzero(st.holder[: upto + 1] != NOBODY)
            slots = st.holder[entries].tolist()
            pending = {
                entry: consumer_of_slot.get(slot, -1)
                for entry, slot in zip(entries.tolist(), slots, strict=True)
            }
        self._moves.note(at, code, upto, int(batch.op_t_us[at]), pending)
        move(st, code, upto)

    def _settle(self, settled: Ints) -> None:
        """Acknowledge the entries that were settled before the batch."""
        if len(settled):
            self.state.deleted[settled] = 1
            acknowledge(self.state, int(settled[0]))

    def _retain(self, batch: OperationBatch) -> WaitSampler | None:
        """Take the new entries; returns the sampler of the batch, None if waits are not sampled."""
        self._sampler = None
        self._stored_us = np.concatenate([self._stored_us[batch.dropped :], batch.stored_us])
        if self.wait_tracker is None or batch.window is None:
            return None
        self.wait_tracker.go_on(batch.dropped, batch.window, self._stored_us, batch.due_us, batch.transaction)
        if not len(batch.op_code):
            return None
        if self._begins_us is None:
            self._begins_us = int(batch.op_t_us[0])
            self.wait_tracker.begin(int(batch.op_seq[0]), self._begins_us)
        # Where the subscription begins is known from what it is sent first.
        sent = batch.op_code == SENT
        begin = 0 if self._sends else int(np.argmax(sent)) if sent.any() else len(sent)
        self._sampler = WaitSampler(
            self.wait_tracker,
            self.core,
            batch,
            begin,
            numbers=self._numbers,
            inside_run=self._ends_with_sent,
            since_us=self._latest_us,
        )
        self._latest_us = max(self._latest_us, int(batch.op_t_us.max()))
        self._sends = self._sends or bool(sent.any())
        self._ends_with_sent = bool(sent[-1])
        return self._sampler

    @abstractmethod
    def _advance(self, batch: OperationBatch, expected: Ints, reason: npt.NDArray[np.int8]) -> None:
        """Take the batch; fill in consumer (the log's number) and reason by the rule for each element of ``op_ordinals``."""

    @abstractmethod
    def _unknown(self) -> list[int]:
        """Return the reason codes for deliveries that are not judged: the log does not hold what the rule needs."""

    @abstractmethod
    def _undecided(self) -> list[int]:
        """Return the reason codes that only a trace could decide: uncertain, unless ``_surely`` says otherwise."""

    def _surely(self, batch: OperationBatch, op: int, place: int, reason: int) -> bool:
        """Check whether an undecided reason is certain for entry ``place`` of a ``sent`` line."""
        return False

    def _lacks_permits(self) -> int | None:
        """Return the reason code of missing permits; None = permits are not judged."""
        return None

    @abstractmethod
    def _not_the_owner(self) -> tuple[int, ...]:
        """Return the reason codes for deliveries to a consumer that is not the one by membership."""

    @abstractmethod
    def _roster(self) -> Roster:
        """Return the present roster; the caller does not change it."""

    @abstractmethod
    def _hashes_of(self, entries: Array) -> Ints:
        """Return the sticky key hashes of entries, as far as the roster needs them; ``NOT_STORED`` if one is unknown."""

    def _note_change(self, batch: OperationBatch, at: int) -> None:
        """Note the membership change at an operation before it is applied."""
        code, consumer = int(batch.op_code[at]), int(batch.op_consumer[at])
        place = int(batch.op_seq[at]), int(batch.op_t_us[at])
        if code == ADDED and consumer in self._members:
            self._possible_owners.before(Change(*place, self._members[consumer]), self._roster())
        elif code == REMOVED and consumer in self._numbers:
            self._possible_owners.before(Change(*place, leaves=self._numbers[consumer]), self._roster())

    def _deliveries(self, batch: OperationBatch, owner: Ints, ordinals: Array) -> Deliveries:
        """Return what was delivered up to the end of a batch, from the first change that is remembered on.

        ``owner``: the operation of each delivered entry; ``ordinals``: the entries.
        """
        begins_seq = self._possible_owners.begins_seq
        if begins_seq is None:
            return Deliveries.none()
        first = int(np.searchsorted(batch.op_seq, begins_seq))
        delivered = slice(int(np.searchsorted(owner, first)), None)
        ops = owner[delivered]
        of_batch = Deliveries(
            batch.op_seq[ops],
            batch.op_t_us[ops],
            self._numbers_of(batch.op_consumer[ops]),
            self._hashes_of(ordinals[delivered]),
        )
        return self._delivered.between(begins_seq, 1 << 62).followed_by(of_batch)

    def _numbers_of(self, consumers: Array) -> Ints:
        """Return the log's numbers of consumers as numbered in ``op_consumer``; -1 for one that was never added."""
        numbers = np.full(max(self._numbers, default=-1) + 2, -1, np.int64)  # the last one: never added
        numbers[list(self._numbers)] = list(self._numbers.values())
        found: Ints = numbers[np.clip(consumers, -1, len(numbers) - 1)]
        return found

    def _changes_ahead(self, batch: OperationBatch) -> list[Change]:
        """Return the membership changes behind a batch that may race with it."""
        ahead = []
        membership = batch.ahead.memberships()
        columns = membership.code, membership.consumer, membership.seq, membership.t_us
        for code, number, seq, at_us in zip(*(column.tolist() for column in columns), strict=True):
            if code == REMOVED:
                ahead.append(Change(seq, at_us, leaves=number))
            elif number in batch.members_ahead:
                ahead.append(Change(seq, at_us, batch.members_ahead[number]))
        return ahead

    def _racing(self, batch: OperationBatch, since_us: int | None = None) -> Racing:
        """Return the operations of a batch that may race with deliveries, from ``since_us`` on."""
        wanted = may_race(batch.op_code)
        if since_us is not None:
            wanted &= batch.op_t_us >= since_us
        chosen = np.flatnonzero(wanted)
        return Racing(
            batch.op_code[chosen],
            self._numbers_of(batch.op_consumer[chosen]),
            batch.op_seq[chosen],
            batch.op_t_us[chosen],
        )

    def _explain(
        self,
        batch: OperationBatch,
        owner: Ints,
        ordinals: Array,
        expected: Ints,
        reason: npt.NDArray[np.int8],
        judgement: npt.NDArray[np.int8],
    ) -> list[Finding]:
        """Make a finding for each delivery that differs from the rule; marks those with a race as uncertain."""
        differing = np.flatnonzero(judgement == DIVERGENT)
        if not len(differing):
            return []
        undecided, permits, elsewhere = self._undecided(), self._lacks_permits(), self._not_the_owner()
        near_by = Racing.joined(self._before, self._racing(batch), batch.ahead)
        changes, memberships, own = near_by.changes(), near_by.memberships(), dict[int, Racing]()
        roster, ahead = self._roster(), self._changes_ahead(batch)
        delivered: Deliveries | None = None
        named: dict[int, str] = {}  # a log that differs everywhere names few consumers often
        findings = []
        for at in differing.tolist():
            op = int(owner[at])
            t_us = int(batch.op_t_us[op])
            seq = int(batch.op_seq[op])
            who = self._numbers.get(int(batch.op_consumer[op]), -1)
            by_rule = int(expected[at])
            racing = changes
            if int(reason[at]) == permits:
                if who not in own:
                    own[who] = near_by.giving_permits(who)
                racing = own[who].not_counted(seq)
            elif int(reason[at]) in elsewhere:
                racing = memberships
            near = racing.nearest(t_us)
            if near is not None and racing is memberships and who >= 0:
                if delivered is None:
                    delivered = self._deliveries(batch, owner, ordinals)
                hash_value = int(self._hashes_of(ordinals[at : at + 1])[0])
                place = Place(seq, t_us)
                if not self._possible_owners.may_own(who, hash_value, place, roster, delivered, ahead):
                    near = None
            in_line = at - int(np.searchsorted(owner, op))
            unseen = int(reason[at]) in undecided and not self._surely(batch, op, in_line, int(reason[at]))
            uncertain = near is not None or unseen or batch.after_checkpoint
            if uncertain:
                judgement[at] = UNCERTAIN
            findings.append(
                Finding(
                    seq,
                    t_us,
                    "dispatch",
                    JUDGEMENTS[int(judgement[at])],
                    "nobody" if by_rule < 0 else named.setdefault(by_rule, f"consumer {by_rule}"),
                    named.setdefault(who, f"consumer {who}"),
                    near,
                    self.reasons[int(reason[at])],
                )
            )
        return findings


class WaitSampler:
    """Sample the waits of a batch: between rounds, before the first one that begins at a tick or later."""

    def __init__(
        self,
        wait_tracker: WaitTracker,
        core: KeySharedDispatcher | SharedDispatcher | SingleActiveDispatcher,
        batch: OperationBatch,
        begin: int,
        *,
        numbers: Mapping[int, int],
        inside_run: bool,
        since_us: int,
    ) -> None:
        """Begin before the batch.

        Args:
            wait_tracker: takes the samples.
            core: the dispatcher, with the entries of the batch.
            batch: the operations.
            begin: the first operation before which to sample.
            numbers: as in ``op_consumer`` → the log's.
            inside_run: the batch before ends with ``sent``.
            since_us: the latest time of the operations before; a clock that goes back is taken to stand still.
        """
        self._tracker, self._batch, self.begin, self._numbers = wait_tracker, batch, begin, numbers
        self._since_us = since_us
        # Up to where deliveries were reported; what a checkpoint names as pending was sent before the log begins.
        self._reported = 0 if batch.checkpoint is None else batch.checkpoint.count
        self._times = np.maximum(np.maximum.accumulate(batch.op_t_us), since_us)
        sent = np.append(inside_run, batch.op_code == SENT)
        edges = np.flatnonzero(~(sent[1:] & sent[:-1]))
        #: For the samples that the data plane takes.
        self.samples: BatchSamples = wait_tracker.of_batch(
            core, self._times, np.array(batch.op_seq, np.int64), edges, begin
        )

    def stop(self, at: int) -> int:
        """Return the operation up to which to go on from ``at``: there a sample is due, or the batch ends."""
        return next_look(self.samples, at)

    def report_sent(self, until: int) -> None:
        """Report what was sent before the operation ``until`` to the tracker."""
        batch, operations = self._batch, slice(self._reported, until)
        codes = batch.op_code[operations]
        sent = self._reported + np.flatnonzero(codes == SENT)[::-1]
        if len(sent):
            consumers, first = np.unique(batch.op_consumer[sent], return_index=True)
            last = zip(consumers.tolist(), sent[first].tolist(), strict=True)
            self._tracker.sent({self._numbers.get(consumer, -1): self._line(op) for consumer, op in last})
        commands = np.flatnonzero(np.isin(codes, _ATTEMPT_A_READ))
        if len(commands):
            self._tracker.commanded(int(self._times[self._reported + commands[-1]]))
        self._reported = max(self._reported, until)

    def _line(self, op: int) -> LastSent:
        """Return an operation that sends entries."""
        batch, start = self._batch, self._batch.op_start
        assert batch.window is not None
        entries = batch.op_ordinals[start[op] : start[op + 1]]
        ledger, entry = -1, -1
        if len(entries):
            highest = int(entries.max())
            ledger, entry = int(batch.window.ledger_ids[highest]), int(batch.window.entry_ids[highest])
        return LastSent(int(self._times[op]), int(batch.op_seq[op]), ledger, entry)

    def look(self, fold: DispatcherFold, at: int, *, last: bool = False) -> None:
        """Sample before the operation ``at``. ``last``: no consumer is left after it."""
        self.samples.since[0] = at + 1
        self.report_sent(at)
        fold.sample_begin()
        fold.looks_us = int(self._times[at])
        self._tracker.sample(
            fold.core,
            int(self._batch.op_seq[at]),
            int(self._times[at]),
            reason=fold.reason_of_all(),
            last=last,
            again_below=fold.again_below(),
            changed_us=int(self._times[at - 1]) if at else self._since_us,
        )

    def before_change(self, fold: DispatcherFold, at: int, *, last: bool) -> None:
        """Sample before ``at`` changes the connected consumers, unless the last sample was a moment ago."""
        if at >= self.begin and (last or self._tracker.stale(int(self._times[at]))):
            self.look(fold, at, last=last)
