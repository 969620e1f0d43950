"""Audit a log batch by batch, in memory bounded by the window of entries that still matter.

``feed`` takes the next entries of the topic and the next events, and returns what these events prove. The state between two
batches is the ``LogWindow`` (entries and operations), the ``Scan`` (open deliveries) and a few marks for the checks of the
log itself. Before each batch, settled entries at the front of the window (``trim``) are dropped, all but the last
``keep_behind``.

The tables of all feeds together are those of ``audit_log`` over the whole log. Where a window cannot promise that,
``NotStreamableError`` is raised: for positions that the message log lacks or that are sent again when they have left the
window, for lines out of order, for lines of a trace about connections that were never added, and where a later line changes
the text of an earlier finding. The last case has two causes, and a ``head`` that holds the rare lines of the whole log
avoids both: a connection with the same name as one in an earlier finding, and a checkpoint behind lines of a connection it
names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.columns import Ints, encode, ints
from dispatch_core.arrays.line_kinds import has_kind
from dispatch_core.audit.assumptions import CURSOR_MOVED, SUBSCRIPTION_DELETED, TRANSACTIONS_LOGGED
from dispatch_core.audit.deliveries import log_checks, missing_lines
from dispatch_core.audit.deliveries.applied_acks import APPLIED_KINDS, AppliedAcks
from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState
from dispatch_core.audit.deliveries.delayed_delivery import DelayedDelivery
from dispatch_core.audit.deliveries.earlier_loads import EarlierLoads
from dispatch_core.audit.deliveries.findings import BEFORE_CHECKPOINT, LOG_GAP, Findings
from dispatch_core.audit.deliveries.keys import Keys
from dispatch_core.audit.deliveries.layout import CONSUMER, ENTRY, OPERATION
from dispatch_core.audit.deliveries.log_checks import Connected
from dispatch_core.audit.deliveries.log_finding import LogFinding
from dispatch_core.audit.deliveries.lost_state import gives_state
from dispatch_core.audit.deliveries.missing_lines import Gaps, LastLine
from dispatch_core.audit.deliveries.operations import SENT, CursorOperations, Operations, resets_shown_until
from dispatch_core.audit.deliveries.producer_clocks import ProducerClocks
from dispatch_core.audit.deliveries.rows import Audit, Rows
from dispatch_core.audit.deliveries.scan import Scan, Scanned
from dispatch_core.audit.deliveries.silences import Silences
from dispatch_core.audit.deliveries.subscription_start import begins_us, for_subscription
from dispatch_core.audit.deliveries.unknown_consumers import connections_added, in_a_trace
from dispatch_core.audit.deliveries.window import LogWindow
from dispatch_core.audit.sentences.names import display_names
from dispatch_core.broker import profiles
from dispatch_core.broker.hashing import HashSpace
from dispatch_core.errors import NotStreamableError, ProfileError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, subscription_type
from dispatch_core.recording.resumed_parts import is_deleted, resumes_at

#: Entries kept behind the last one that still matters, so that late repetitions find their evidence.
KEEP_BEHIND: Final = 65_536
#: A window of fewer entries is not worth cutting.
TRIM_ABOVE: Final = 131_072
#: Where a replay is saved, so many entries are kept behind at least, and those that were sent within so long, microseconds.
#: What comes again later than that is judged by a replay from the beginning.
KEEP_SAVED: Final = 4_096
SAVED_US: Final = 600_000_000
#: Columns of the message log and of events that a feed must have; others are ignored.
MESSAGE_COLUMNS: Final = (
    *("ledger_id", "entry_id", "key", "key_b64", "ordering_key_b64", "key_h31", "producer", "sequence_id"),
    *("num_messages", "size_bytes", "publish_time_ms", "keys"),
    *("deliver_at_ms", "txn"),
)
EVENT_COLUMNS: Final = (
    *(
        "seq",
        "t_us",
        "kind",
        "consumer",
        "name",
        "key_shared_mode",
        "key_shared_allow_out_of_order",
        "permits",
    ),
    *("positions", "ack_type", "ack_sets", "gap_from_seq", "gap_to_seq", "gap_lines", "checkpoint_json"),
    *("by", "moved_to", "what", "value", "limit_active", "active"),
)
#: Kinds of lines that are rare without a trace, and that ``head`` should hold from the whole log.
RARE_KINDS: Final = (
    *("consumer_added", "consumer_removed", "checkpoint", "active_notified", "limit", "subscription_deleted"),
)
#: Further columns of the events of a trace.
TRACE_COLUMNS: Final = ("mark_delete", "sorted", "op", "target")
#: Lines that bring the Key_Shared policy.
_POLICIES: Final = ("consumer_added", "checkpoint")
_ACTIVE: Final = ("active_picked", "active_notified", "handover_scheduled")


class AuditFold:
    """Audit one incarnation of one dispatcher, batch by batch.

    Attributes (after a feed):
        window: the window of the log.
        scan: deliveries and entries of the window.
        operations: the operations of this feed.
        new_ops: their place among the operations of the window.
        dropped: the number of entries that the feed dropped from the front of the window before it took anything; subtract
            it from ordinals that you keep.
        begins: the feed was the first of the log.
        stepped_back_us: by how much the clock of the log went back so far, all steps together, microseconds.
        silences: the longest times from one line to the next so far.
        clocks: how far behind the clocks of the producers may be, by this log.
        acked_before: ordinals of entries that were acknowledged individually in earlier incarnations.
    """

    def __init__(
        self,
        head: DispatcherLog,
        *,
        interval_start: datetime,
        earlier: Sequence[DispatcherLog] = (),
        whole: bool = False,
        flows: bool = False,
        profile: profiles.Profile | None = None,
        removals_logged: bool | None = None,
        cursor_ops_logged: bool = False,
        after: AuditFold | None = None,
        resumes: bool = False,
        last_line: LastLine | None = None,
        keep_behind: int = KEEP_BEHIND,
        trim_above: int = TRIM_ABOVE,
    ) -> None:
        """Begin before the first line.

        Args:
            head: identity and header of the log. Of its ``events`` only the ``RARE_KINDS`` are read; they may be given for
                the whole log beforehand. Its ``messages`` are not read.
            interval_start: written into every row; must know its time zone.
            earlier: incarnations before this one, oldest first. Without ``whole`` only their identity and the time of
                their last event are read.
            whole: one feed will bring the whole log. It may then hold anything.
            flows: make operations of ``flow`` lines too (``operations.FLOW``); nothing is found in them.
            profile: the result of ``profile_of(head)``, if known.
            removals_logged: the log shows removals of pending acks, in any of its lines; ``None`` = not known. Without
                ``whole`` a log that may show when acks took effect is judged only if it is known.
            cursor_ops_logged: the log is a trace that shows every operation on the cursor.
            after: the audit of the lines before these, not to be used any more: of the incarnation before this one or, with
                ``resumes``, of this one before lines were lost. Only without ``whole``.
            resumes: the log goes on from a checkpoint behind lost lines; only the entries of before are kept.
            last_line: the line before, of a part that begins with a subscription which is made again.
            keep_behind: number of settled entries to keep for late lines.
            trim_above: a window of at most this number of entries is not cut; 0 = cut at every feed.
        """
        if interval_start.tzinfo is None:
            raise ValueError(f"interval_start {interval_start!r} has no time zone: give it in UTC")
        if earlier and after is None and not whole:
            raise NotStreamableError(f"{head.topic}: several incarnations are judged together")
        self._head = head
        self._rows = Rows(head, interval_start)
        self._earlier = EarlierLoads.of(earlier)
        self._whole = whole
        self._flows = flows
        self._keep_behind = keep_behind
        self._trim_above = trim_above
        self._fed = False
        self._forgets = False
        self._deleted = False
        self._last: LastLine | None = last_line
        self._gaps = Gaps(np.empty(0, dtype=np.int64))
        self._removals_logged = removals_logged
        self._cursor_ops_logged = cursor_ops_logged
        self._applied: AppliedAcks | None = None
        self._added = connections_added(head.events)  # in any line, as far as known
        self._checkpoints = has_kind(head.events, "checkpoint")
        self._names: list[str] = []
        self._named = False  # names stand in findings that were returned
        self._profile_settled = False
        self._profile: profiles.Profile | None = None
        self._profile_of_head = profile
        kind = subscription_type(head)
        self._connected = Connected(head.subscription, kind)
        self._connected.meet(head.events)
        self._hashed_by: tuple[HashSpace, bool] | None = None if after is None else after._hashed_by
        # Lines of earlier loads are missing: among those that the window holds, and so that the first state is not known.
        self._earlier_lost = self._state_lost = self._earlier.lines_lost
        self._begins_us: int | None = None  # the subscription, by this log and those before
        #: Entries at the front that are of before the subscription; where it began is known.
        self._past, self._past_known = 0, False
        self.clocks: ProducerClocks = ProducerClocks()
        self.silences = Silences()
        # The first line that sent an entry of a transaction, if acknowledgements in transactions may be unseen.
        self._transactions_from_seq: int | None = None
        self.stepped_back_us = 0
        if after is None:
            delays = DelayedDelivery.of(head)
            self.window = LogWindow(
                kind,
                streaming=not whole,
                flows=flows,
                cursor_ops=self._cursor_operations(),
                delays=delays,
                non_persistent=profiles.is_non_persistent(head.topic),
            )
            self.scan = self._new_scan(kind)
        elif kind != after.window.subscription_type:
            raise NotStreamableError(
                f"{head.topic}: the subscription changed from {after.window.subscription_type} to {kind}"
            )
        elif resumes:
            self.window = after.window.with_entries_alone()
            self.clocks = after.clocks
            self.scan = self._new_scan(kind)
        else:
            self.window, self.scan = after.window, after.scan
            self._begins_us = self.window.begins_us = after._begins_us
            self._transactions_from_seq = None if after._transactions_from_seq is None else 0
            self._earlier_lost = after._earlier_lost or after.has_gaps or after._head.end_lost
            self._state_lost = after.loses_state
            self._past, self._past_known = after._past, after._past_known
            self.window.begin_next_log(flows=flows, cursor_ops=self._cursor_operations())
        self.window.meet(head.events)
        self.begins = False
        self.acked_before: Ints = np.empty(0, dtype=np.int64)
        self.dropped = 0
        self.new_ops = slice(0, 0)
        self.operations: Operations | None = None

    def go_on(self, head: DispatcherLog, interval_start: datetime) -> None:
        """Go on with more lines of the log: ``head`` holds the rare lines of all that is known of it now.

        Findings of an earlier interval may name connections otherwise; those of this one name them as of now.
        """
        self._head = head
        self._rows = Rows(head, interval_start)
        self._names, self._named = [], False
        self._added |= connections_added(head.events)
        self._checkpoints = self._checkpoints or has_kind(head.events, "checkpoint")
        self._connected.meet(head.events)
        self.window.meet(head.events)

    @property
    def profile(self) -> profiles.Profile | None:
        """The rules in force; ``None`` while nothing was fed, and when the header does not say enough."""
        return self._profile

    @property
    def moves_logged(self) -> bool:
        """True if the recorder writes every move of the cursor, or there is no cursor."""
        named = CURSOR_MOVED in self._records or profiles.is_non_persistent(self._head.topic)
        return named or self._moves_are_cursor_ops

    @property
    def _moves_are_cursor_ops(self) -> bool:
        """True if the moves of the cursor are those lines of a trace, and not lines of their own."""
        return self._cursor_ops_logged and CURSOR_MOVED not in self._records

    def _cursor_operations(self) -> CursorOperations | None:
        return CursorOperations(resets_shown_until(self._head.events)) if self._moves_are_cursor_ops else None

    @property
    def deletions_logged(self) -> bool:
        """True if the recorder writes every deletion of the subscription, or nothing depends on it for want of a cursor."""
        return SUBSCRIPTION_DELETED in self._records or profiles.is_non_persistent(self._head.topic)

    @property
    def _records(self) -> Collection[str]:
        return self._head.header.get("records") or ()

    @property
    def room(self) -> int:
        """Rows that the window and its state take in memory, used or not."""
        return self.window.room + self.scan.room

    @property
    def last_line(self) -> LastLine | None:
        """The last line that was fed."""
        return self._last

    @property
    def has_gaps(self) -> bool:
        """True if lines of the log are missing."""
        return bool(self._gaps)

    @property
    def first_gap(self) -> int | None:
        """The line behind which lines are missing for the first time, 0 = before the first; ``None`` = none are."""
        return int(self._gaps.seqs[0]) if self._gaps else None

    @property
    def loses_state(self) -> bool:
        """True if lines are missing, and the state with which the next load of the topic begins is not known."""
        return self.has_gaps or self._head.end_lost or (self._state_lost and self._last is None)

    @property
    def doubt(self) -> str | None:
        """The reason why what waits at the end may wait for a cause that the log does not show; ``None`` = there is none.

        ``log_gap``: lines are missing, or the line that adds a consumer of some delivery. ``before_checkpoint``: the log
        begins with the checkpoint of a dispatcher at work.
        """
        if self.has_gaps or self._sent_to_never_added():
            return LOG_GAP
        checkpoint_state = self.window.checkpoint_state
        at_work = checkpoint_state is not None and not checkpoint_state.of_a_new_dispatcher
        return BEFORE_CHECKPOINT if at_work else None

    def _sent_to_never_added(self) -> bool:
        """Check whether something was sent to a connection that no line adds."""
        never_added = self._connected.never_added
        if not never_added:
            return False
        at = [index for index, c in enumerate(self.window.consumers) if c.number in never_added]
        return bool(np.isin(self.scan.deliveries[:, CONSUMER], at).any())

    def jumped_us(self, from_us: int, until_us: int) -> int:
        """Return by how much the log's clock may have jumped forward, at once, between two moments, microseconds."""
        jumps = (
            min(length_us, self.clocks.jumped_us(end_us - length_us, end_us))
            for end_us, length_us in self.silences.between(from_us, until_us)
        )
        return max(jumps, default=0)

    def feed(self, messages: pa.Table, events: pa.Table, droppable: int | None = None) -> Audit:
        """Take the next entries and the next events; returns the deliveries and the anomalies these events prove.

        ``messages`` (``MESSAGE_COLUMNS``) are sorted by position and all later than those before; every position that
        an event names has been fed by then. ``events`` (``EVENT_COLUMNS``) are sorted by ``seq``, all later than those
        before. Text columns may come dictionary encoded. ``droppable``: the number of entries at the front of the window
        that others can do without; ``None`` = nobody else needs any.

        Raises ``NotStreamableError`` for what a window cannot judge.
        """
        if self._whole and self._fed:
            raise NotStreamableError("the fold was to take the whole log in one feed, and here is another")
        self._trim(droppable)
        events, repeated, dropped = missing_lines.without_repeated_rows(encode(events, "kind"))
        if dropped and not self._whole:
            raise NotStreamableError(
                f"{dropped} lines stand twice, and the files that they are in are not known here"
            )
        self._check_lines(events)
        self._settle_profile(events)
        self._note_applied(events)
        self.window.meet(events)
        self.window.add_messages(messages, self._hashes if self._hashing else None)
        self.begins = not self._fed
        if self.begins and not self._whole:
            self.acked_before = self.scan.note_individual_acks(self.window)
        checkpoint_state = None if self._fed else CheckpointState.of(events, streaming=not self._whole)
        if self._whole:
            before = self._earlier.lines(flows=self._flows)
            self.new_ops, self.operations = self.window.add_whole(before, events, checkpoint_state)
        else:
            self.new_ops, self.operations = self.window.add_log(events, checkpoint_state)
        about_log = self._about_log(events, repeated)
        scanned = self.scan.take(self.window, self.new_ops.start, self.operations)
        self.clocks.take(self.window, self.scan.deliveries, scanned)
        self._note_transactions(self.operations)
        self._note_begin()
        self._note_past()
        audit = self._audit(events, scanned, about_log)
        self._last = LastLine.of(events, self._last)
        self._fed = True
        return audit

    # -----------------------------------------------------------------------------------------------------------------

    def _new_scan(self, kind: str) -> Scan:
        return Scan(
            single_active=self.window.single_active,
            ordered=kind != "Shared",
            moves_logged=self.moves_logged,
            moves_exact=self._moves_are_cursor_ops,
            deletions_logged=self.deletions_logged,
        )

    def can_forget(self, droppable: int | None) -> bool:
        """Check whether many more settled entries are held than ``forget_settled`` leaves; ``droppable``: see ``feed``."""
        if len(self.window) <= KEEP_SAVED:
            return False
        return self._settled(droppable) > self._sent_lately() + KEEP_SAVED // 4

    def forget_settled(self) -> None:
        """Drop the settled entries at the next feed, however few, but for the latest (``KEEP_SAVED``)."""
        self._forgets = True

    def _settled(self, droppable: int | None) -> int:
        """Count the entries at the front that nobody needs any more, but as evidence for late repetitions."""
        settled = self.scan.settled(self._past)
        return settled if droppable is None else min(settled, droppable)

    def _trim(self, droppable: int | None) -> None:
        self.dropped = 0
        above, behind = self._trim_above, self._keep_behind
        if self._forgets:
            above, behind, self._forgets = 0, min(self._sent_lately(), behind), False
        count = len(self.window)
        if self._whole or not count or count <= above:
            return
        spare = max(self._settled(droppable) - behind, 0)
        if spare and (2 * spare > count or not above):
            self.scan.drop(self.window, spare, keys_at_once=not above)
            if self._applied is not None and len(self.window):
                self._applied.forget(int(self.window.ledger[0]), int(self.window.entry[0]))
            self._gaps = self._gaps.since(int(self.window.op_seq[0]) if len(self.window.op_seq) else None)
            self.dropped = spare
            self._past = max(self._past - spare, 0)
            self.acked_before = self.acked_before[self.acked_before >= spare] - spare

    def _sent_lately(self) -> int:
        """Count the entries at the end of the window from the first one on that was sent lately; at least ``KEEP_SAVED``."""
        times, deliveries = np.maximum.accumulate(self.window.op_t_us), self.scan.deliveries
        if not len(times):
            return KEEP_SAVED
        first_op = int(np.searchsorted(times, times[-1] - SAVED_US))
        lately = deliveries[deliveries[:, OPERATION] >= first_op, ENTRY]
        return max(len(self.window) - int(lately.min(initial=len(self.window))), KEEP_SAVED)

    def _note_begin(self) -> None:
        """Keep the time at which the subscription began: a later incarnation no longer shows it."""
        if self._begins_us is None and not self._whole:
            sent = np.flatnonzero(self.scan.times_sent)
            if len(sent):
                self._begins_us = begins_us(self.window, self.scan, int(sent[0]))

    def _note_past(self) -> None:
        """Count the entries at the front that were stored before the subscription began, when it is sent something first.

        A log that begins with a checkpoint says itself what was acknowledged before it.
        """
        if self._past_known or self._whole:
            return
        sent = np.flatnonzero(self.scan.times_sent)
        if len(sent):
            self._past_known = True
            before = int(sent[0])
            if self.window.checkpoint_state is None:
                owed = for_subscription(self.window, self.scan, before)
                self._past = int(np.argmax(owed)) if owed.any() else before

    def _note_transactions(self, operations: Operations) -> None:
        """Keep the first line that sent an entry of a transaction; 0 = one of an earlier load."""
        shown = any(name in self._records for name in TRANSACTIONS_LOGGED)
        if shown or self._transactions_from_seq is not None or not self.window.any_transactions:
            return
        of_one = self.window.transaction[operations.ordinals] >= 0
        of_one &= np.repeat(operations.code == SENT, np.diff(operations.start))
        if of_one.any():
            op = int(np.searchsorted(operations.start, int(np.argmax(of_one)), side="right")) - 1
            of_last = self.window.is_of_last_log(self.new_ops.start + op)
            self._transactions_from_seq = int(operations.seq[op]) if of_last else 0

    def _check_lines(self, events: pa.Table) -> None:
        """Refuse lines that no window can judge; lines of one feed may share a ``seq``, lines of two feeds may not."""
        if self._whole or not events.num_rows:
            return
        seq = ints(events["seq"])
        if np.any(seq[1:] < seq[:-1]):
            row = int(np.argmax(seq[1:] < seq[:-1]))
            raise NotStreamableError(
                f"lines are not in order: seq {seq[row + 1]} stands behind seq {seq[row]}"
            )
        if self._last is not None and int(seq[0]) <= self._last.seq:
            raise NotStreamableError(
                f"lines are not in order: seq {seq[0]} comes after seq {self._last.seq} was taken"
            )
        after_gap = self._last is not None and self._last.is_gap
        if resumes_at(events, after_gap=after_gap, after_deletion=self._deleted):
            raise NotStreamableError(
                "lines are missing, and the log goes on from a checkpoint behind them; or the subscription is made again"
            )
        self._deleted = is_deleted(events, before=self._deleted)
        named = self._head.header.get("subscription_type")
        if named is None and not self.window.single_active and has_kind(events, *_ACTIVE):
            raise NotStreamableError(
                "the log's header names no subscription_type, and its lines speak of an active consumer"
            )

    def _note_applied(self, events: pa.Table) -> None:
        """Note when acks took effect, in a log that shows it."""
        if self._applied is None:
            if not has_kind(events, *APPLIED_KINDS):
                return
            logged = self._removals_logged
            if logged is None and self._whole:
                logged = has_kind(events, "pending_ack_removed")
                self._removals_logged = logged
            if logged is None:
                raise NotStreamableError("the log is a trace: what it says about acks lies anywhere in it")
            self._applied = AppliedAcks(removals_logged=logged)
        self._applied.take(events)

    def _settle_profile(self, events: pa.Table) -> None:
        """Release and settings come with the header, the Key_Shared policy with the first consumer."""
        if self._profile_settled:
            return
        log = self._head
        if not has_kind(log.events, *_POLICIES):
            log = replace(log, events=events)
            self._profile_settled = has_kind(events, *_POLICIES)
            if self._fed and not self._profile_settled:
                return
        else:
            self._profile_settled = True
        try:
            known = self._profile_of_head if log is self._head else None
            profile = known or profile_of(log)
        except ProfileError:
            # Replay and verdict report the profile; what was sent to whom can be judged without it.
            profile = None
        if self._fed and profile != self._profile:
            raise NotStreamableError(
                "the first consumer's policy comes after lines that were judged without it"
            )
        self._profile = profile
        if profile is None or self.window.subscription_type != "Key_Shared":
            return
        hashed_by = profile.hash_space, profile.fallback_key
        if self._hashed_by is not None and self._hashed_by != hashed_by:
            raise NotStreamableError(
                f"{self._head.topic}: the release changed, and with it the hashes of keys"
            )
        self._hashed_by = hashed_by

    @property
    def _hashing(self) -> bool:
        """True if dispatch hashes keys."""
        return self._profile is not None and self.window.subscription_type == "Key_Shared"

    def _hashes(self, messages: pa.Table, keys: Keys, row_key: npt.NDArray[np.int32]) -> Ints:
        assert self._profile is not None
        h31 = keys.h31(messages, row_key, fallback=self._profile.fallback_key)
        return self._profile.hash_space.sticky_array(h31)

    def _about_log(self, events: pa.Table, repeated: list[tuple[int, int]]) -> list[LogFinding]:
        gaps, found = missing_lines.gaps(events, repeated, self._last)
        if self._last is not None and len(gaps.seqs) and int(gaps.seqs[0]) < self._last.seq:
            raise NotStreamableError(
                f"a gap line says that lines behind seq {int(gaps.seqs[0])} are missing, and seq {self._last.seq} was "
                "judged without knowing"
            )
        unknown = self._state_lost and not gives_state(self.window.checkpoint_state)
        if self.begins and unknown and events.num_rows:
            self._gaps, finding = missing_lines.of_earlier_loads(events)
            found.append(finding)
        self._gaps = self._gaps.joined(gaps)
        seq, t_us = log_checks.timed(events, self._last)
        found += log_checks.clock_steps(seq, t_us)
        self.stepped_back_us += log_checks.stepped_back_us(t_us)
        self.silences.take(t_us)
        self._added |= connections_added(events)
        self._checkpoints = self._checkpoints or has_kind(events, "checkpoint")
        found += in_a_trace(
            self._connected.unknown(events),
            events,
            self._head.subscription,
            self._added,
            checkpoints=self._checkpoints,
            streaming=not self._whole,
        )
        found += log_checks.unknown_positions(self.window, messages_cut=self._head.messages_cut)
        found += log_checks.unknown_keys(self.window)
        found += log_checks.unknown_batch_sizes(self.window)
        if self.begins:
            found += log_checks.overlapping(self._head, events, self._earlier)
            found += log_checks.repeated_lines(self._head)
        return found

    def _audit(self, events: pa.Table, scanned: Scanned, about_log: list[LogFinding]) -> Audit:
        window, state = self.window, self.scan.deliveries
        found = scanned.found
        if window.first_op_of_last_log:
            found = found[state[found[:, 0], 2] >= window.first_op_of_last_log]
        if self._named or about_log or len(found):
            self._name_consumers()
        findings = Findings(
            window,
            self._names,
            self._profile,
            state,
            scanned,
            self._gaps,
            self._applied,
            earlier_lost=self._earlier_lost,
            transactions_from_seq=self._transactions_from_seq,
            perhaps_deleted=self.moves_logged and not self.deletions_logged,
            requests_traced=bool(self._removals_logged),
        )
        of_log = [findings.of_log(finding) for finding in about_log]
        self._named = self._named or len(found) > 0
        deliveries, pairs = self._rows.deliveries(window, state, scanned)
        return Audit(
            deliveries, self._rows.anomalies_in_parts(chain([of_log], findings.of_deliveries(found))), pairs
        )

    def _name_consumers(self) -> None:
        """Give each connection of the window a display name. Findings that were returned must not name it otherwise."""
        if len(self.window.consumers) <= len(self._names):
            return
        names = display_names(self.window.consumers)
        if self._named and names[: len(self._names)] != self._names:
            raise NotStreamableError("a connection has the name of one that findings already name by it")
        self._names = names
