"""Fold a log of level E through the rules, stretch by stretch: what each sending looks like to the rule that decides it.

Control plane. A *stretch* is a run of operations with the entries that they name; the dispatcher goes on from stretch to
stretch (``extend``), so that memory follows the entries that can still matter. Joins and leaves are the dispatcher's;
everything else is ``rounds`` (Key_Shared) or ``positions`` (Failover, Exclusive).

A difference is *uncertain* where something raced with it that the log shows on arrival only: a membership change or a
redelivery request within ``RACE_US``. Anything else is *divergent*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.operations import ADDED, REDELIVER, REDELIVER_ALL, REMOVED, SENT
from dispatch_core.cursor import acknowledge
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError, UnsupportedRuleError
from dispatch_core.history import WHOLE_TOPIC
from dispatch_core.key_shared import KeySharedDispatcher
from dispatch_core.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.ordering.draining_hashes import give_up
from dispatch_core.ownership import OwnershipSpans
from dispatch_core.profiles import Dispatcher, Profile
from dispatch_core.selectors.assignments import Impacted
from dispatch_core.selectors.selector import Announced
from dispatch_core.single_active import SingleActiveDispatcher
from dispatch_core.single_active_rules import ConsumerBusyError
from dispatch_core.state import MARK_DELETE, NO_HASH, NOBODY, READ_POSITION, STORED_HASH, State
from dispatch_core.user_level import positions, rounds
from dispatch_core.verify.tally import Finding

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

#: Hash of an entry that the message log does not hold.
NOT_STORED: Final = -1

#: How far apart the arrival of an event and its effect may lie, either way. The slowest membership change in recordings
#: of real brokers took effect 35 ms after its line.
RACE_US: Final = 50_000

EXACT: Final = 0
UNCERTAIN: Final = 1
DIVERGENT: Final = 2
NOT_JUDGED: Final = 3
JUDGEMENTS: Final = ("exact", "uncertain", "divergent", "not_judged")

_EVERYTHING: Final = 1 << 62
_RACING: Final = (ADDED, REMOVED, REDELIVER, REDELIVER_ALL)


@dataclass(frozen=True, slots=True)
class Member:
    """What a consumer brings when it joins."""

    number: int
    name: str
    priority_level: int = 0
    ranges: Announced = None
    mode: str = "AUTO_SPLIT"
    allow_out_of_order: bool = False


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of operations (codes: ``audit.operations``) and the entries that are new in it.

    Ordinals of ``op_ordinals`` count from the first entry that is retained; ``dropped`` entries before it have left since
    the last stretch. ``op_start`` has one element more than there are operations and begins anywhere.
    """

    dropped: int
    hashes: Ints  # sticky key hash of the new entries
    num_messages: Ints
    settled: Ints  # ordinals that are acknowledged before anything of this stretch
    stored_us: Ints  # when they were stored, by the producers' clocks (ascending enough to be searched)
    op_code: Array
    op_consumer: Array
    op_value: Array
    op_seq: Ints
    op_t_us: Ints
    op_start: Ints
    op_ordinals: Array
    #: By the number in ``op_consumer``: who is new, and joins in this stretch or later.
    members: Mapping[int, Member]
    racing_t_us: Ints  # of operations behind this stretch that may race with it: times and seqs, ascending
    racing_seq: Ints


@dataclass(frozen=True, slots=True)
class Judged:
    """Per sent entry of a stretch, in order: its judgement (an index of ``JUDGEMENTS``), and who should have got it.

    ``expected`` holds the log's numbers of consumers; -1 = nobody.
    """

    judgement: npt.NDArray[np.int8]
    expected: Ints
    findings: list[Finding]


class UserLevelFold(ABC):
    """One dispatcher of a level-E log. ``not_judged``: why nothing is compared (any more); None = it is."""

    #: What the codes of the data plane mean.
    reasons: ClassVar[Mapping[int, str]]
    core: KeySharedDispatcher | SingleActiveDispatcher

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.not_judged: str | None = None
        self.owned = OwnershipSpans()
        self._members: dict[int, Member] = {}  # by the number in ``op_consumer``
        self._numbers: dict[int, int] = {}  # as in ``op_consumer`` → the log's

    def feed(self, stretch: Stretch) -> Judged:
        """Take the next stretch."""
        first, last = int(stretch.op_start[0]), int(stretch.op_start[-1])
        expected = np.full(last, NOBODY, np.int64)
        reason = np.zeros(last, np.int8)
        self._members.update(stretch.members)
        self._numbers.update({at: member.number for at, member in stretch.members.items()})
        self._advance(stretch, expected, reason)
        lengths = np.diff(stretch.op_start)
        of_sent = np.repeat(stretch.op_code == SENT, lengths)
        owner = np.repeat(np.arange(len(lengths)), lengths)[of_sent]
        expected, reason = expected[first:][of_sent], reason[first:][of_sent]
        judgement = np.where(reason == 0, EXACT, DIVERGENT).astype(np.int8)
        judgement[np.isin(reason, self._unknown())] = NOT_JUDGED
        findings = []
        if self.not_judged is not None:
            judgement[:] = NOT_JUDGED
        else:
            findings = self._explain(stretch, owner, expected, reason, judgement)
        return Judged(judgement, expected, findings)

    @property
    def state(self) -> State:
        """The dispatcher's state; ordinals count from the first entry that is retained."""
        return self.core.state

    def _settle(self, stretch: Stretch) -> None:
        """Entries that were settled before the stretch are acknowledged."""
        if len(stretch.settled):
            self.state.deleted[stretch.settled] = 1
            acknowledge(self.state, int(stretch.settled[0]))

    @abstractmethod
    def _advance(self, stretch: Stretch, expected: Ints, reason: npt.NDArray[np.int8]) -> None:
        """Take the stretch; fill in what the rule says per element of ``op_ordinals``, expected as the log's number."""

    @abstractmethod
    def _unknown(self) -> list[int]:
        """Reasons that are none: the log does not hold what the rule needs."""

    @abstractmethod
    def _undecided(self) -> list[int]:
        """Reasons that only a trace could decide: uncertain, whatever races."""

    def _explain(
        self,
        stretch: Stretch,
        owner: Ints,
        expected: Ints,
        reason: npt.NDArray[np.int8],
        judgement: npt.NDArray[np.int8],
    ) -> list[Finding]:
        """A finding for every sending that the rule would not have made; marks those that race as uncertain."""
        differing = np.flatnonzero(judgement == DIVERGENT)
        if not len(differing):
            return []
        undecided = self._undecided()
        racing = np.isin(stretch.op_code, _RACING)
        times = np.concatenate([stretch.op_t_us[racing], stretch.racing_t_us])
        seqs = np.concatenate([stretch.op_seq[racing], stretch.racing_seq])
        findings = []
        for at in differing.tolist():
            op = int(owner[at])
            t_us = int(stretch.op_t_us[op])
            near = _nearest(times, t_us)
            uncertain = near is not None or int(reason[at]) in undecided
            if uncertain:
                judgement[at] = UNCERTAIN
            who = self._numbers.get(int(stretch.op_consumer[op]), -1)
            findings.append(
                Finding(
                    int(stretch.op_seq[op]),
                    t_us,
                    "dispatch",
                    JUDGEMENTS[int(judgement[at])],
                    "nobody" if expected[at] < 0 else f"consumer {expected[at]}",
                    f"consumer {who}",
                    None if near is None else int(seqs[near]),
                    self.reasons[int(reason[at])],
                )
            )
        return findings


def _nearest(times: Ints, t_us: int) -> int | None:
    """The place of the time nearest to ``t_us`` that is not further away than ``RACE_US``."""
    if not len(times):
        return None
    at = int(np.argmin(np.abs(times - t_us)))
    return at if abs(int(times[at]) - t_us) <= RACE_US else None


def _grown(values: Array, count: int, value: int) -> Array:
    """``values``, behind them ``value`` until there are at least ``count``."""
    return np.concatenate([values, np.full(max(count - len(values), 0), value, values.dtype)])


class KeySharedFold(UserLevelFold):
    """Key_Shared: owner of the hash, ordering rule, permits."""

    core: KeySharedDispatcher
    reasons: ClassVar = {
        rounds.NOT_CONNECTED: "the consumer is not connected",
        rounds.OTHER_OWNER: "the key's hash belongs to another consumer",
        rounds.DRAINING: "the key's hash drains for another consumer",
        rounds.NEWCOMER: "the consumer joined later and must wait for what was handed out before",
        rounds.WAITS_IN_REPLAY: "an earlier entry of the key's hash waits to be sent",
        rounds.NO_PERMITS: "the consumer has no permits left",
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
        self._stored_us = nothing  # of the entries that are retained
        self._stored_at_join = nothing  # by slot, as an ordinal
        self._contradicted = False  # since the last membership change something was sent as no rule would
        self._batches = False  # some entry holds more than one message
        self._slot_of = np.empty(0, np.int32)  # by the number in ``op_consumer``

    def _unknown(self) -> list[int]:
        return [rounds.NOT_JUDGED]

    def _undecided(self) -> list[int]:
        undecided = [rounds.MAYBE_READ]
        if self._batches:
            # Acknowledgements of single messages of a batch move the permits, and need not be in the log.
            undecided.append(rounds.NO_PERMITS)
        if self.state.s[STORED_HASH] != NO_HASH:
            # Classic 4.x: what comes back waits under hash 0 until a replay read, which is unseen, puts it back.
            undecided.append(rounds.WAITS_IN_REPLAY)
        return undecided

    def _advance(self, stretch: Stretch, expected: Ints, reason: npt.NDArray[np.int8]) -> None:
        self.core.extend(stretch.dropped, stretch.hashes, stretch.num_messages, len(self._numbers))
        self._settle(stretch)
        self._stored_us = np.concatenate([self._stored_us[stretch.dropped :], stretch.stored_us])
        self._stored_at_join = _grown(self._stored_at_join - stretch.dropped, len(self.core.state.permits), 0)
        self._batches = self._batches or bool((stretch.num_messages > 1).any())
        most = int(stretch.op_consumer.max(initial=-1)) + 1
        self._slot_of = _grown(self._slot_of, most, NOBODY)
        lengths = np.diff(stretch.op_start)[stretch.op_code == SENT]
        scratch = rounds.scratch(max(1024, int(lengths.max(initial=0))))
        attempts = np.zeros(3, np.int64)
        at, end = 0, len(stretch.op_code)
        while True:
            begun = at
            at = rounds.fold(
                self.core.state,
                self._classic,
                stretch.op_code,
                stretch.op_consumer,
                stretch.op_value,
                stretch.op_start,
                stretch.op_ordinals,
                self._slot_of,
                at,
                end,
                self._stored_at_join,
                scratch,
                attempts,
                expected,
                reason,
            )
            if at >= end:
                break
            if at > begun:
                differs = reason[stretch.op_start[begun] : stretch.op_start[at]].any()
                self._contradicted = self._contradicted or bool(differs)
                self._tell_what_was_sent()
            try:
                self._membership(at, stretch)
            except IllegalTransitionError as error:
                # Only a log that broke the rules before brings the dispatcher to this.
                self.not_judged = self.not_judged or f"at seq {stretch.op_seq[at]}: {error}"
            at += 1
        numbers = np.array([*map(self.core.number_of, range(self.core.known())), -1], np.int64)
        expected[:] = numbers[np.maximum(expected, -1)]
        unknown = self.core.id_of_hash(NOT_STORED)
        if unknown is not None:
            reason[self.core.state.hash_id[stretch.op_ordinals[: len(reason)]] == unknown] = rounds.NOT_JUDGED

    def _tell_what_was_sent(self) -> None:
        """The rounds were folded by the data plane alone."""
        st = self.core.state
        acknowledged = np.flatnonzero(st.holder[: st.s[MARK_DELETE] + 1] != NOBODY)
        self.core.sent_alone(int(st.s[READ_POSITION]) - 1, acknowledged.tolist())
        if self._contradicted:
            self._give_up_contradicted()
            self._contradicted = False

    def _give_up_contradicted(self) -> None:
        """Hashes that drain for one consumer though another was sent entries of them too: they were reported by then."""
        st = self.core.state
        held = np.flatnonzero(st.holder[: st.s[READ_POSITION]] != NOBODY)
        hashes = st.pending_hash[held]
        owners = st.drain_owner[hashes]
        for hash_id in np.unique(hashes[(owners != NOBODY) & (owners != st.holder[held])]).tolist():
            give_up(st, hash_id)

    def _membership(self, at: int, stretch: Stretch) -> None:
        code, consumer = int(stretch.op_code[at]), int(stretch.op_consumer[at])
        if code == ADDED and consumer in self._members:
            self._join(consumer, self._members[consumer], stretch, at)
        elif code == REMOVED and consumer >= 0 and self._slot_of[consumer] != NOBODY:
            number = self._numbers[consumer]
            if number in self.core.connected():
                moved = self.core.select_out(number)
                self._moved(stretch, at, moved)
                self.core.drop(number, moved)
                self.core.forget(number)

    def _join(self, consumer: int, member: Member, stretch: Stretch, at: int) -> None:
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
        stored = int(np.searchsorted(self._stored_us, stretch.op_t_us[at] + RACE_US, side="right"))
        # Behind the entries that are known by now others may have been stored as well.
        self._stored_at_join[slot] = stored if stored < len(self._stored_us) else _EVERYTHING
        try:
            moved = self.core.select_in(member.number, member.ranges)
        except SelectorRefusedError:
            self.core.refuse(member.number)
            return
        self._moved(stretch, at, moved)
        self.core.register(moved, skip=member.number)

    def _moved(self, stretch: Stretch, at: int, moved: Impacted) -> None:
        """Who owns what now. The ring of 3.0 to 3.3.1 does not report what a change moved: its whole report is taken."""
        reported = len(moved.lost) or len(moved.won)
        told = reported or (moved.touched is not None and not len(moved.touched[0]))
        seq, t_us = int(stretch.op_seq[at]), int(stretch.op_t_us[at])
        if told:
            self.owned.changed(seq, t_us, moved.lost, moved.won)
        else:
            self.owned.reported(seq, t_us, self.core.assignments().ranges)


class SingleActiveFold(UserLevelFold):
    """Failover and Exclusive: who is active, and position order."""

    core: SingleActiveDispatcher
    reasons: ClassVar = {
        positions.NOT_ACTIVE: "another consumer is active",
        positions.GOES_BACK: "nothing made the cursor go back",
        positions.SKIPS: "an entry before it is neither acknowledged nor sent",
    }

    def __init__(self, profile: Profile, topic: str, *, exclusive: bool) -> None:
        super().__init__(profile)
        self.core = SingleActiveDispatcher(profile, topic, profile.partition_index, exclusive=exclusive)
        self._index: dict[int, int] = {}  # the log's number → as in ``op_consumer``
        self._rewind_due = False

    def _unknown(self) -> list[int]:
        return []

    def _undecided(self) -> list[int]:
        return []

    def _advance(self, stretch: Stretch, expected: Ints, reason: npt.NDArray[np.int8]) -> None:
        self.core.extend(stretch.dropped, stretch.num_messages)
        self._settle(stretch)
        at, end = 0, len(stretch.op_code)
        while True:
            active = NOBODY if self.core.active is None else self._index[self.core.active]
            at, self._rewind_due = positions.fold(
                self.core.state,
                stretch.op_code,
                stretch.op_consumer,
                stretch.op_start,
                stretch.op_ordinals,
                active,
                self._rewind_due,
                at,
                end,
                expected,
                reason,
            )
            if at >= end:
                break
            self._membership(int(stretch.op_code[at]), int(stretch.op_consumer[at]), stretch)
            owned = () if self.core.active is None else ((*WHOLE_TOPIC, self.core.active),)
            self.owned.reported(int(stretch.op_seq[at]), int(stretch.op_t_us[at]), owned)
            at += 1
        numbers = np.full(max(self._numbers, default=0) + 2, -1, np.int64)
        numbers[list(self._numbers)] = list(self._numbers.values())
        expected[:] = numbers[np.maximum(expected, -1)]

    def _membership(self, code: int, consumer: int, stretch: Stretch) -> None:
        before = self.core.active
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
        self._rewind_due = self._rewind_due or self.core.active != before


def fold_of(profile: Profile, topic: str, subscription_type: str) -> UserLevelFold:
    """The fold for a profile; raises ``UnsupportedRuleError`` for a rule that is not replayed."""
    if profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
        return SingleActiveFold(profile, topic, exclusive=subscription_type == "Exclusive")
    if profile.dispatcher is Dispatcher.SHARED:
        raise UnsupportedRuleError(
            f"{profile.name}: Shared subscriptions are audited for duplicates and loss only, not replayed"
        )
    return KeySharedFold(profile)
