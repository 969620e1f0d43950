"""What every fold of a log of level E shares: a stretch of the log in, a judgement per sending out.

Control plane. A *stretch* is a run of operations with the entries that they name; the dispatcher goes on from stretch to
stretch (``extend``), so that memory follows the entries that can still matter.

A difference is *uncertain* where something raced with it that the log shows on arrival only: a membership change or a
redelivery request within ``races.RACE_US``. A sending without permits races only with what could have given its consumer
some: events of that consumer itself. Anything else is *divergent*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries.operations import SENT
from dispatch_core.audit.waits.tracker import SampledWait, WaitTracker, Window
from dispatch_core.broker.cursor import acknowledge
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.ownership import OwnershipSpans
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.selectors.selector import Announced
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.state import NOBODY, State
from dispatch_core.verify.tally import Finding
from dispatch_core.verify.without_trace.races import RACE_US, Racing, may_race

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

#: Hash of an entry that the message log does not hold.
NOT_STORED: Final = -1

EXACT: Final = 0
UNCERTAIN: Final = 1
DIVERGENT: Final = 2
NOT_JUDGED: Final = 3
JUDGEMENTS: Final = ("exact", "uncertain", "divergent", "not_judged")


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
class CheckpointOperations:
    """``joins`` of the ``count`` operations add who is connected. ``ends``: where each one's range ends, if known."""

    joins: int
    count: int
    ends: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class OperationBatch:
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
    ahead: Racing  # operations behind this stretch that may race with it
    #: What the entries that are retained, and the new ones, are called; only where waits are looked at.
    window: Window | None = None
    #: The log begins with a checkpoint of a dispatcher at work, of which more had happened: whatever differs is uncertain.
    after_checkpoint: bool = False
    #: Of a stretch that begins with a checkpoint's state: how many of its operations make it, first the joins.
    checkpoint: CheckpointOperations | None = None


@dataclass(frozen=True, slots=True)
class BatchJudgement:
    """Per sent entry of a stretch, in order: its judgement (an index of ``JUDGEMENTS``), and who should have got it.

    ``expected`` holds the log's numbers of consumers; -1 = nobody.
    """

    judgement: npt.NDArray[np.int8]
    expected: Ints
    findings: list[Finding]


class DispatcherFold(ABC):
    """One dispatcher of a level-E log. ``not_judged``: why nothing is compared (any more); None = it is."""

    #: What the codes of the data plane mean.
    reasons: ClassVar[Mapping[int, str]]
    core: KeySharedDispatcher | SingleActiveDispatcher

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.not_judged: str | None = None
        self.owned = OwnershipSpans()
        #: Looks at what waits while the log is folded; None = nobody asks. Set it before the first stretch.
        self.wait_tracker: WaitTracker | None = None
        self._stored_us: Ints = np.empty(0, np.int64)  # of the entries that are retained
        self._ends_with_sent = False  # the last stretch
        self._begins_us: int | None = None  # the log
        self.looks_us = 0  # as of when what waits is looked at
        self._sends = False  # something was sent
        self._before = Racing.none()  # at the end of the last stretch
        self._members: dict[int, Member] = {}  # by the number in ``op_consumer``
        self._numbers: dict[int, int] = {}  # as in ``op_consumer`` → the log's

    def feed(self, batch: OperationBatch) -> BatchJudgement:
        """Take the next stretch."""
        first, last = int(batch.op_start[0]), int(batch.op_start[-1])
        expected = np.full(last, NOBODY, np.int64)
        reason = np.zeros(last, np.int8)
        self._members.update(batch.members)
        self._numbers.update({at: member.number for at, member in batch.members.items()})
        self._advance(batch, expected, reason)
        lengths = np.diff(batch.op_start)
        of_sent = np.repeat(batch.op_code == SENT, lengths)
        owner = np.repeat(np.arange(len(lengths)), lengths)[of_sent]
        expected, reason = expected[first:][of_sent], reason[first:][of_sent]
        judgement = np.where(reason == 0, EXACT, DIVERGENT).astype(np.int8)
        judgement[np.isin(reason, self._unknown())] = NOT_JUDGED
        findings = []
        if self.not_judged is not None:
            judgement[:] = NOT_JUDGED
        else:
            findings = self._explain(batch, owner, expected, reason, judgement)
        if len(batch.op_t_us):
            since_us = int(batch.op_t_us[-1]) - RACE_US
            self._before = Racing.joined(self._before.since(since_us), self._racing(batch, since_us))
        return BatchJudgement(judgement, expected, findings)

    def waits(self, seq: int, t_us: int) -> list[SampledWait]:
        """What waits when the log ends behind the line ``seq``, as of ``t_us``, and what waited too shortly to be told."""
        if self.wait_tracker is None or self._begins_us is None:
            return []  # without an event there is no subscription that anything could wait for
        first = 0
        if not self._sends:
            # nothing was sent: what was stored since the log began was for whoever is there
            first = int(np.searchsorted(self._stored_us, self._begins_us))
        self.looks_us = t_us
        self.wait_tracker.sample(
            self.core, seq, t_us, reason=self.reason_of_all(), first=first, again=self.sends_again()
        )
        return self.wait_tracker.finish(self.core)

    def reason_of_all(self) -> int | None:
        """Why everything that waits has done so since the last look, where that is one reason."""
        return None

    def sends_again(self) -> bool:
        """Whether all that is not acknowledged is to be sent again."""
        return False

    @property
    def state(self) -> State:
        """The dispatcher's state; ordinals count from the first entry that is retained."""
        return self.core.state

    def _settle(self, batch: OperationBatch) -> None:
        """Entries that were settled before the stretch are acknowledged."""
        if len(batch.settled):
            self.state.deleted[batch.settled] = 1
            acknowledge(self.state, int(batch.settled[0]))

    def _retain(self, batch: OperationBatch) -> WaitSampler | None:
        """Which entries there are now; returns when to look at what waits."""
        self._stored_us = np.concatenate([self._stored_us[batch.dropped :], batch.stored_us])
        if self.wait_tracker is None or batch.window is None:
            return None
        self.wait_tracker.go_on(batch.dropped, batch.window, self._stored_us)
        if not len(batch.op_code):
            return None
        if self._begins_us is None:
            self._begins_us = int(batch.op_t_us[0])
            self.wait_tracker.begin(int(batch.op_seq[0]), self._begins_us)
        # Where the subscription begins is known from what it is sent first.
        sent = batch.op_code == SENT
        begin = 0 if self._sends else int(np.argmax(sent)) if sent.any() else len(sent)
        sampler = WaitSampler(self.wait_tracker, batch, begin, inside_run=self._ends_with_sent)
        self._sends = self._sends or bool(sent.any())
        self._ends_with_sent = bool(sent[-1])
        return sampler

    @abstractmethod
    def _advance(self, batch: OperationBatch, expected: Ints, reason: npt.NDArray[np.int8]) -> None:
        """Take the stretch; fill in what the rule says per element of ``op_ordinals``, expected as the log's number."""

    @abstractmethod
    def _unknown(self) -> list[int]:
        """Reasons that are none: the log does not hold what the rule needs."""

    @abstractmethod
    def _undecided(self) -> list[int]:
        """Reasons that only a trace could decide: uncertain, whatever races, but where it is ``_surely`` so."""

    def _surely(self, batch: OperationBatch, op: int, place: int, reason: int) -> bool:
        """Whether a reason that only a trace could decide holds at entry ``place`` of a ``sent`` line whatever it shows."""
        return False

    def _lacks_permits(self) -> int | None:
        """The reason that says that the consumer had no permits; None = permits are not judged."""
        return None

    def _racing(self, batch: OperationBatch, since_us: int | None = None) -> Racing:
        """The operations of a stretch that may race with sendings, from a time on."""
        wanted = may_race(batch.op_code)
        if since_us is not None:
            wanted &= batch.op_t_us >= since_us
        chosen = np.flatnonzero(wanted)
        numbers = [self._numbers.get(consumer, -1) for consumer in batch.op_consumer[chosen].tolist()]
        return Racing(
            batch.op_code[chosen],
            np.array(numbers, np.int64),
            batch.op_seq[chosen],
            batch.op_t_us[chosen],
        )

    def _explain(
        self,
        batch: OperationBatch,
        owner: Ints,
        expected: Ints,
        reason: npt.NDArray[np.int8],
        judgement: npt.NDArray[np.int8],
    ) -> list[Finding]:
        """A finding for every sending that the rule would not have made; marks those that race as uncertain."""
        differing = np.flatnonzero(judgement == DIVERGENT)
        if not len(differing):
            return []
        undecided, permits = self._undecided(), self._lacks_permits()
        near_by = Racing.joined(self._before, self._racing(batch), batch.ahead)
        changes, own = near_by.changes(), dict[int, Racing]()
        findings = []
        for at in differing.tolist():
            op = int(owner[at])
            t_us = int(batch.op_t_us[op])
            seq = int(batch.op_seq[op])
            who = self._numbers.get(int(batch.op_consumer[op]), -1)
            racing = changes
            if int(reason[at]) == permits:
                if who not in own:
                    own[who] = near_by.giving_permits(who)
                racing = own[who].not_counted(seq)
            near = racing.nearest(t_us)
            place = at - int(np.searchsorted(owner, op))
            unseen = int(reason[at]) in undecided and not self._surely(batch, op, place, int(reason[at]))
            uncertain = near is not None or unseen or batch.after_checkpoint
            if uncertain:
                judgement[at] = UNCERTAIN
            findings.append(
                Finding(
                    seq,
                    t_us,
                    "dispatch",
                    JUDGEMENTS[int(judgement[at])],
                    "nobody" if expected[at] < 0 else f"consumer {expected[at]}",
                    f"consumer {who}",
                    near,
                    self.reasons[int(reason[at])],
                )
            )
        return findings


class WaitSampler:
    """Where in a stretch what waits is looked at: between rounds, at the first one that begins at a tick or later."""

    def __init__(
        self, wait_tracker: WaitTracker, batch: OperationBatch, begin: int, *, inside_run: bool
    ) -> None:
        """``begin``: the first operation before which to look."""
        self._tracker, self._batch, self._begin = wait_tracker, batch, begin
        self._looked = 0  # operations up to which it was looked: never twice before one
        self._times = np.maximum.accumulate(batch.op_t_us)
        sent = np.append(inside_run, batch.op_code == SENT)
        self._edges = np.flatnonzero(~(sent[1:] & sent[:-1]))

    def stop(self, at: int) -> int:
        """Up to which operation to go on from ``at``: there a sample is due, or the stretch ends."""
        due = max(int(np.searchsorted(self._times, self._tracker.next_us)), at, self._begin, self._looked)
        place = int(np.searchsorted(self._edges, due))
        return int(self._edges[place]) if place < len(self._edges) else len(self._times)

    def look(self, fold: DispatcherFold, at: int, *, last: bool = False) -> None:
        """Look at what waits before the operation ``at``. ``last``: it leaves nobody."""
        self._looked = at + 1
        fold.looks_us = int(self._times[at])
        self._tracker.sample(
            fold.core,
            int(self._batch.op_seq[at]),
            int(self._times[at]),
            reason=fold.reason_of_all(),
            last=last,
            again=fold.sends_again(),
        )

    def before_change(self, fold: DispatcherFold, at: int, *, last: bool) -> None:
        """The same before ``at`` changes who is connected, if the last look is not a moment ago."""
        if at >= self._begin and (last or self._tracker.stale(int(self._times[at]))):
            self.look(fold, at, last=last)
