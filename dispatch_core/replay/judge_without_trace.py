"""Judge the deliveries of a log without a trace: would the broker's rule have sent each entry to its consumer?

Such a log does not show reads and rounds; ``verify.without_trace`` infers them. It gets each batch of operations with the
entries that are new in the audit's window, so both work on one window of the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints
from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.audit.deliveries.operations import ACK, ADDED, SENT, Lines, Operations
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.subscription_start import begins_at_checkpoint, for_subscription
from dispatch_core.audit.deliveries.window import LogWindow
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.sentences.names import ConsumerNames
from dispatch_core.audit.waits.dropped import NO_CONSUMER, NO_PERMITS, NOT_WRITABLE, dropped_finding
from dispatch_core.audit.waits.findings import End
from dispatch_core.audit.waits.held_by_limits import HeldByLimits
from dispatch_core.audit.waits.never_sent import SkippedEntries
from dispatch_core.audit.waits.tracker import MOST_POSITIONS, Key, SampledWait, tracker_for
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.non_persistent import NonPersistentDispatcher
from dispatch_core.broker.ownership import OwnershipSpans
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.errors import ProfileError, SnapshotError, UnsupportedRuleError
from dispatch_core.recording import stream
from dispatch_core.recording.checkpoint import Position, joins
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, subscription_type
from dispatch_core.replay.checkpoint_statistics import determined
from dispatch_core.replay.judge import DispatcherPosition, Judge, Judged, LogLines, shown_position
from dispatch_core.replay.statistics import WhenJoining, clients_of, subscription_stats
from dispatch_core.verify.without_trace.base import BatchJudgement
from dispatch_core.verify.without_trace.key_shared import (
    JUDGEMENTS,
    NOT_JUDGED,
    NOT_STORED,
    RACE_US,
    CheckpointOperations,
    DispatcherFold,
    Ints,
    OperationBatch,
    fold_of,
)
from dispatch_core.verify.without_trace.non_persistent import NonPersistentFold, Place
from dispatch_core.verify.without_trace.possible_owners import Member
from dispatch_core.verify.without_trace.races import Racing

_NOTHING: Final = np.empty(0, np.int64)
_JUDGEMENTS: Final = pa.array(JUDGEMENTS)
_DROP_REASONS: Final = {
    Place.NO_CONSUMER: NO_CONSUMER,
    Place.NO_PERMITS: NO_PERMITS,
    Place.NO_RULE: NOT_WRITABLE,
}


@dataclass(frozen=True, slots=True)
class InferredDispatcher:
    """A dispatcher as the rules make it from a log without a trace.

    ``owned``: who owned what until then. ``statistics``: see ``statistics.subscription_stats``, without what a checkpoint
    at the log's beginning leaves open.
    """

    core: KeySharedDispatcher | SingleActiveDispatcher
    entries: WindowEntries
    owned: OwnershipSpans
    statistics: dict[str, Any]


class WithoutTraceJudge(Judge):
    """One incarnation of one dispatcher, batch by batch."""

    def __init__(
        self,
        head: DispatcherLog,
        limits: Limits,
        *,
        start_us: int,
        tick_us: int | None = None,
        follows: bool = False,
    ) -> None:
        """Begin before the first line.

        Args:
            head: the log's identity and header; its ``events`` hold the rare lines of the whole log (joins, leaves).
            limits: how long is too long.
            start_us: start of the interval.
            tick_us: how often to look at what waits, 0 = at every line; by default as often as the limits need it.
            follows: another load of the topic comes before.
        """
        self._head = head
        self._follows = follows
        self._start_us = start_us
        self._members = _members(head.events)
        self.profile, self._fold, self._no_rules = self._rules()
        if self._fold is not None:
            self._fold.wait_tracker = tracker_for(limits, inferred=True, start_us=start_us, tick_us=tick_us)
        self._ended_waits: list[SampledWait] = []
        self._entries = 0  # in the window
        self._seen = 0  # consumers whose arrival the rules know
        self._begun = False  # something was sent
        self._when_joining = WhenJoining()
        self._pending_messages: dict[int, int] = {}  # by consumer, of what a checkpoint names as pending
        self._judgements = np.zeros(len(JUDGEMENTS), np.int64)  # of the interval

    def go_on(self, head: DispatcherLog, start_us: int) -> None:
        """See ``Judge``."""
        try:
            profile = profile_of(head)
        except ProfileError:
            profile = None
        if profile != self.profile:
            raise SnapshotError("the log has other rules now")
        self._head, self._start_us = head, start_us
        self._members = _members(head.events)
        self._ended_waits = []
        self._judgements = np.zeros(len(JUDGEMENTS), np.int64)
        if self._fold is not None and self._fold.wait_tracker is not None:
            self._fold.wait_tracker.begin_interval(start_us)

    @property
    def not_judged(self) -> str | None:
        """See ``Judge``."""
        return self._no_rules if self._fold is None else self._fold.not_judged

    @property
    def knows_stalls(self) -> bool:
        """See ``Judge``."""
        return self._fold is not None and self._fold.knows_stalls

    def never_sent(self, *, single_active: bool) -> SkippedEntries | None:
        """See ``Judge``: the rules of Key_Shared say of an entry that was skipped that it was, where they are replayed.

        Of a non-persistent topic none is: what was not sent was dropped (``dropped``).
        """
        if isinstance(self._fold, NonPersistentFold):
            return None
        by_rules = self._fold is not None and not single_active and not self._is_shared
        return SkippedEntries(certain=single_active or by_rules, by_rules=by_rules)

    def take(self, audit: AuditFold, lines: LogLines, deliveries: pa.Table) -> Judged | None:
        """See ``Judge``."""
        if self._fold is None:
            return None
        judged = self._of_log(audit, self._fold.feed(self._batch(audit, lines)))
        self._fold.not_owed = self._not_owed(audit)
        self._fold.begins_at_checkpoint = begins_at_checkpoint(audit.window)
        if self._is_shared:
            if self._fold.wait_tracker is not None:
                self._ended_waits += self._fold.wait_tracker.take()
            return None
        if self._begun and not isinstance(self._fold, NonPersistentFold):
            self._when_joining.note(self._fold.core, WindowEntries(audit.window, audit.scan))
        inside = ints(deliveries["t_us"]) >= self._start_us
        self._judgements += np.bincount(judged.judgement[inside], minlength=len(JUDGEMENTS))
        if self._fold.wait_tracker is not None:
            self._ended_waits += self._fold.wait_tracker.take()
        nobody = (judged.expected < 0) | (judged.judgement == NOT_JUDGED)
        return Judged(
            _JUDGEMENTS.take(pa.array(judged.judgement)),
            pa.array(judged.expected, mask=nobody),
            judged.findings,
        )

    def droppable(self) -> int | None:
        """See ``Judge``: none before the first batch of an incarnation, whose rules know no entry yet."""
        if self._fold is None or not self._entries or isinstance(self._fold, NonPersistentFold):
            return None  # what is not persistent comes in one batch
        return self._fold.core.droppable()

    def take_limits(self, held_by: HeldByLimits, not_replayed_from_us: int) -> None:
        """See ``Judge``."""
        if self._fold is not None:
            self._fold.leave_open(not_replayed_from_us)
            if self._fold.wait_tracker is not None:
                self._fold.wait_tracker.held_by = held_by

    def waits(self, seq: int, as_of_us: int) -> list[SampledWait]:
        """See ``Judge``: waits that ended, those that go on, and the sum of those too short to be reported one by one."""
        return [] if self._fold is None else self._ended_waits + self._fold.waits(seq, as_of_us)

    def dropped(self, audit: AuditFold, end: End, names: Mapping[int, str], *, closed: bool) -> list[Finding]:
        """See ``Judge``."""
        if not isinstance(self._fold, NonPersistentFold):
            return []
        position, shown_names = audit.window.position, ConsumerNames(names)
        return [
            dropped_finding(
                _DROP_REASONS[drop.place],
                [position(entry) for entry in drop.entries[:MOST_POSITIONS].tolist()],
                entries=len(drop.entries),
                messages=drop.messages,
                consumers={number: shown_names.of(number) for number in drop.consumers},
                seq=end.seq,
                t_us=end.as_of_us,
            )
            for drop in self._fold.dropped(self._start_us, end.as_of_us, closed=closed)
        ]

    def beyond(self) -> Position | None:
        """See ``Judge``."""
        tracker = None if self._fold is None else self._fold.wait_tracker
        return None if tracker is None else tracker.beyond

    def ownership(self) -> OwnershipSpans:
        """See ``Judge``."""
        return OwnershipSpans() if self._fold is None else self._fold.owned

    def counts(self) -> dict[str, int]:
        """See ``Judge``: every delivery is a decision; rounds are unseen."""
        exact, uncertain, divergent = (int(count) for count in self._judgements[:NOT_JUDGED])
        return {
            "rounds": 0,
            "decisions": exact + uncertain + divergent,
            "exact": exact,
            "uncertain": uncertain,
            "divergent": divergent,
        }

    def position(self, audit: AuditFold) -> DispatcherPosition:
        """See ``Judge``."""
        if self._fold is None or not self._begun:
            return DispatcherPosition()
        core = self._fold.core
        if isinstance(core, SharedDispatcher | NonPersistentDispatcher):
            return DispatcherPosition()  # what is read is not known, or there is no cursor
        entries, scalars = WindowEntries(audit.window, audit.scan), self._fold.state.s
        state_json = json.dumps(self._statistics(core, audit, ranges=False), sort_keys=True)
        return shown_position(
            entries, int(scalars[st_.MARK_DELETE]), int(scalars[st_.READ_POSITION]), state_json
        )

    def dispatcher(self, audit: AuditFold) -> InferredDispatcher | None:
        """Return the dispatcher after the lines that were fed; ``None`` where no rules are replayed."""
        if self._fold is None or self._fold.not_judged is not None:
            return None
        core = self._fold.core
        if isinstance(core, SharedDispatcher | NonPersistentDispatcher):
            return None
        entries = WindowEntries(audit.window, audit.scan)
        return InferredDispatcher(core, entries, self._fold.owned, self._statistics(core, audit, ranges=True))

    def _statistics(
        self, core: KeySharedDispatcher | SingleActiveDispatcher, audit: AuditFold, *, ranges: bool
    ) -> dict[str, Any]:
        """Write down the dispatcher, as far as a log that begins with a checkpoint determines it."""
        entries = WindowEntries(audit.window, audit.scan)
        shown = subscription_stats(
            core, entries, clients_of(self._head), ranges=ranges, when_joining=self._when_joining
        )
        if audit.window.checkpoint_state is None:
            return shown
        return determined(shown, audit.window.checkpoint_state, self._pending_messages)

    def _not_owed(self, audit: AuditFold) -> Ints | None:
        """Return the entries that are not owed if this load of the topic sends nothing; ``None`` = that is not known.

        Earlier loads, or the checkpoint of a new dispatcher, show where the subscription begins and what it acknowledged.
        """
        window, scan = audit.window, audit.scan
        if not self._follows and not begins_at_checkpoint(window):
            return None
        sent = np.flatnonzero(scan.times_sent)
        lowest = int(sent[0]) if len(sent) else len(window)
        past = np.flatnonzero(~for_subscription(window, scan, lowest))
        acknowledged = np.flatnonzero(scan.acknowledged)
        return np.union1d(np.union1d(past, acknowledged), audit.acked_before).astype(np.int64)

    def _rules(self) -> tuple[Profile | None, DispatcherFold | None, str | None]:
        """Profile, fold, and why there is none."""
        try:
            profile = profile_of(self._head)
        except ProfileError as error:
            return None, None, str(error)
        try:
            return profile, fold_of(profile, self._head.topic, subscription_type(self._head)), None
        except UnsupportedRuleError as error:
            return profile, None, str(error)

    def _batch(self, audit: AuditFold, lines: LogLines) -> OperationBatch:
        """Return the operations of the last batch, with the entries that are new in the window."""
        window, taken = audit.window, audit.operations
        assert taken is not None
        # Of a whole log, earlier loads of the topic come first; of any, the state that a checkpoint begins it with.
        before = audit.new_ops.start
        first = max(window.first_op_of_state - before, 0)
        of_log = max(window.first_op_of_last_log - before, 0)
        # To the rules of this incarnation all entries of the window are new at first.
        dropped = 0 if audit.begins else audit.dropped
        new = slice(self._entries - dropped, len(window))
        self._entries = len(window)
        published, known = window.publish_time_ms
        settled = _NOTHING
        sent = taken.code[first:] == SENT
        if not self._begun and (sent.any() or of_log > first):
            settled = self._settled_before(audit, taken, of_log)
            self._begun = True
        if of_log > first:
            first_consumer = window.first_consumer_of_last_log
            connected = window.consumers[first_consumer:]
            numbers = {at: consumer.number for at, consumer in enumerate(connected, first_consumer)}
            self._pending_messages = _messages_sent(taken, slice(first, of_log), window.num_messages, numbers)
        self._seen = max(self._seen, window.first_consumer_of_last_log)
        members = {
            at: self._members.get(consumer.number, Member(consumer.number, consumer.name or ""))
            for at, consumer in enumerate(window.consumers[self._seen :], self._seen)
            if consumer.number in self._members
        }
        self._seen = len(window.consumers)
        ahead = _near(lines.ahead, int(taken.t_us[-1]) if len(taken.t_us) else 0)
        return OperationBatch(
            dropped=dropped,
            hashes=self._hashes(window, new),
            num_messages=window.num_messages[new].astype(np.int64),
            stored_us=np.where(known[new], published[new] * 1000, 0),
            due_us=window.due_us if window.any_delayed else None,
            transaction=window.transaction if window.any_transactions else None,
            settled=settled,
            op_code=taken.code[first:],
            op_consumer=taken.consumer[first:],
            op_value=taken.value[first:],
            op_seq=taken.seq[first:],
            op_t_us=taken.t_us[first:],
            op_start=taken.start[first:],
            op_ordinals=taken.ordinals,
            members=members,
            ahead=ahead,
            members_ahead={
                number: self._members[number]
                for number in ahead.consumer[ahead.code == ADDED].tolist()
                if number in self._members
            },
            stored_until_us=lines.stored_until_us,
            window=WindowEntries(window, audit.scan),
            after_checkpoint=window.checkpoint_state is not None
            and not window.checkpoint_state.of_a_new_dispatcher,
            checkpoint=_checkpoint_operations(window.checkpoint_state, of_log - first)
            if window.checkpoint_state is not None and audit.begins
            else None,
        )

    def _hashes(self, window: LogWindow, new: slice) -> Ints:
        """Return the sticky key hashes of new entries.

        Of Shared, which has none, and of Failover on a non-persistent topic: 0 for each entry that is stored.
        """
        unhashed = (
            self.profile is not None and self.profile.dispatcher is Dispatcher.NON_PERSISTENT_SINGLE_ACTIVE
        )
        if self._is_shared or unhashed:
            return np.where(window.stored[new], np.int64(0), np.int64(NOT_STORED))
        return window.entry_hash[new].copy()

    def _of_log(self, audit: AuditFold, judged: BatchJudgement) -> BatchJudgement:
        """Leave out what a checkpoint says was sent before the log begins."""
        window, taken = audit.window, audit.operations
        assert taken is not None
        if window.checkpoint_state is None or not audit.begins:
            return judged
        before = audit.new_ops.start
        of_checkpoint = slice(window.first_op_of_state - before, window.first_op_of_last_log - before)
        skip = int(np.diff(taken.start)[of_checkpoint][taken.code[of_checkpoint] == SENT].sum())
        findings = [finding for finding in judged.findings if finding.seq != window.checkpoint_state.seq]
        return BatchJudgement(judged.judgement[skip:], judged.expected[skip:], findings)

    def _settled_before(self, audit: AuditFold, taken: Operations, first: int) -> Ints:
        """Entries that are nobody's business any more when the first one is sent: before the subscription, or acked.

        A subscription may begin anywhere in the topic; nothing before what is sent first was for it, but for what was
        stored when somebody had joined already. What an earlier incarnation acknowledged stays so. The lines at the log's
        beginning are looked at, those that any batches bring together (``stream.BEGINNING_LINES``).
        """
        code, start, ordinals = taken.code, taken.start, taken.ordinals
        lengths = np.diff(start)
        checkpoint_state = audit.window.checkpoint_state
        if checkpoint_state is not None and checkpoint_state.checkpoint.mark_delete is not None:
            acked = (code == ACK) & (np.arange(len(code)) < first)
            return _union(len(audit.window), ordinals[np.repeat(acked, lengths)], audit.acked_before)
        sent = code == SENT
        sent[:first] = False
        if sent.any():
            sent &= taken.seq <= taken.seq[int(np.argmax(sent))] + stream.BEGINNING_LINES
        of_sent = np.repeat(sent, lengths)
        of_sent[: start[first]] = False
        before = np.repeat((code == ACK) & (np.arange(len(code)) < first), lengths)
        lowest = int(ordinals[of_sent].min()) if of_sent.any() else 0
        past = np.flatnonzero(~for_subscription(audit.window, audit.scan, lowest))
        return _union(len(audit.window), past, ordinals[before], audit.acked_before)


def _union(count: int, *ordinals: npt.NDArray[Any]) -> Ints:
    """Return the ordinals of ``count`` entries that are in any of the arrays, ascending."""
    there = np.zeros(count, np.bool_)
    for these in ordinals:
        there[these] = True
    return np.flatnonzero(there)


class WindowEntries:
    """The entries of an audit's window, as statistics and waits ask for them."""

    def __init__(self, window: LogWindow, scan: Scan) -> None:
        self._window, self._scan = window, scan
        self.ledger_ids, self.entry_ids = window.ledger, window.entry
        self.dropped_to = window.dropped_to

    def __len__(self) -> int:
        return len(self._window)

    def position(self, ordinal: int) -> str:
        """``"L:E"`` of an ordinal."""
        return str(self._window.position(ordinal)) if 0 <= ordinal < len(self) else "unknown"

    def key(self, ordinal: int) -> Key | None:
        """See ``audit.waits.tracker.Window``."""
        key = int(self._window.entry_key[ordinal])
        return None if key < 0 else (self._window.keys.text(key), bool(self._window.keys.base64[key]))

    def producer(self, ordinal: int) -> int:
        """See ``audit.waits.tracker.Window``."""
        return int(self._window.producer[ordinal])

    def key_ids(self) -> npt.NDArray[np.int32]:
        """See ``audit.waits.tracker.Window``."""
        return self._window.entry_key

    def times_sent(self) -> npt.NDArray[np.int32]:
        """See ``audit.waits.tracker.Window``."""
        return self._scan.times_sent


def _checkpoint_operations(checkpoint_state: CheckpointState, count: int) -> CheckpointOperations | None:
    """Return what a checkpoint says beside its operations: where each consumer's range ends, if each has one."""
    if not count:
        return None
    consumers = checkpoint_state.checkpoint.consumers or ()
    ends = {}
    for consumer in consumers:
        ranges = sorted(consumer.hash_ranges or ())
        if ranges and all(upper + 1 == lower for (_, upper), (lower, _) in pairwise(ranges)):
            ends[consumer.number] = ranges[-1][1]
    return CheckpointOperations(len(consumers), count, ends if len(ends) == len(consumers) else None)


def _messages_sent(
    taken: Operations, which: slice, messages: npt.NDArray[np.int32], numbers: Mapping[int, int]
) -> dict[int, int]:
    """By the log's numbers: the messages of the entries that these operations send."""
    sums: dict[int, int] = {}
    for op in range(which.start, which.stop):
        if taken.code[op] == SENT:
            entries = taken.ordinals[taken.start[op] : taken.start[op + 1]]
            number = numbers[int(taken.consumer[op])]
            sums[number] = sums.get(number, 0) + int(messages[entries].sum())
    return sums


def _members(events: pa.Table) -> dict[int, Member]:
    """Return what each consumer brought when it joined, by its number."""
    names = (
        "consumer",
        "name",
        "priority_level",
        "ranges",
        "key_shared_mode",
        "key_shared_allow_out_of_order",
    )
    members: dict[int, Member] = {}
    for row in joins(events, names):
        ranges = row["ranges"]
        members.setdefault(
            row["consumer"],
            Member(
                row["consumer"],
                row["name"] or "",
                row["priority_level"] or 0,
                None if ranges is None else [(bounds["start"], bounds["end"]) for bounds in ranges],
                row["key_shared_mode"] or "AUTO_SPLIT",
                bool(row["key_shared_allow_out_of_order"]),
            ),
        )
    return members


def _near(ahead: pa.Table | None, last_t_us: int) -> Racing:
    """Return the operations that follow and may race with the events up to ``last_t_us``."""
    if ahead is None or not ahead.num_rows:
        return Racing.none()
    near = ahead.filter(pc.less_equal(ahead["t_us"], last_t_us + RACE_US))
    lines = Lines.of(near, flows=True)
    return Racing(lines.code, lines.number, lines.seq, lines.t_us)
