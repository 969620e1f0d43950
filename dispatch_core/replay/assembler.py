"""Replay one dispatcher's log for one interval: log in, result tables out, batch by batch.

Every log takes this way, with a trace or without. Each batch goes through the audit (who holds what, what went wrong) and
to the judge (would the broker's rule have done so); the rows that a batch proves are returned with it, and ``finish``
returns what only the whole log says. Memory follows the audit's window: the entries between mark-delete and read position,
and some behind them.

A log that a window cannot judge raises ``NotStreamableError``; with ``whole`` everything comes in one batch, and any log
can be judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core import tables
from dispatch_core.arrays.batches import no_rows
from dispatch_core.arrays.columns import ints
from dispatch_core.audit.assumptions import not_of_type
from dispatch_core.audit.behaviour_in_force import BehaviourInForce
from dispatch_core.audit.deliveries.delayed_delivery import DelayedDelivery
from dispatch_core.audit.deliveries.findings import Finding as StallFinding
from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.audit.deliveries.missing_lines import LastLine
from dispatch_core.audit.deliveries.mixed_keys import MixedKeys
from dispatch_core.audit.deliveries.operations import SENT
from dispatch_core.audit.deliveries.producer_clocks import ProducerClocks
from dispatch_core.audit.deliveries.rows import Rows
from dispatch_core.audit.key_totals import Pairs
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.audit.permits.checkpoint_ledger import shows_permits
from dispatch_core.audit.permits.choose_ledger import Ledger, choose_ledger
from dispatch_core.audit.permits.findings import Moment, permit_findings
from dispatch_core.audit.unsent_entries import (
    NOTHING_UNFINISHED,
    Unfinished,
    UnsentEntries,
    positions_of,
)
from dispatch_core.audit.waits.ack_holes import ack_holes, filled_holes
from dispatch_core.audit.waits.findings import End, but_for, never_delivered, stalls
from dispatch_core.audit.waits.held_by_limits import HeldByLimits
from dispatch_core.audit.waits.left_out import COMPACTED_READ, LEAVE_OUT, left_out, with_cause
from dispatch_core.audit.waits.never_sent import SkippedEntries
from dispatch_core.audit.waits.no_read_part import with_no_read_apart
from dispatch_core.audit.waits.passed_entries import Overtaken, PassedEntries, passed_us
from dispatch_core.audit.waits.possible_moves import PossibleMoves
from dispatch_core.audit.waits.tracker import SampledWait, grace_of
from dispatch_core.broker.ownership import OwnershipSpans
from dispatch_core.broker.profiles import is_non_persistent
from dispatch_core.errors import NotStreamableError, SnapshotError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.resumed_parts import is_deleted
from dispatch_core.recording.schema import EVENTS, MESSAGES
from dispatch_core.recording.stream import EVERY_ENTRY_US
from dispatch_core.replay import result_rows
from dispatch_core.replay.incarnation_ends import StoredEntries
from dispatch_core.replay.judge import Judge, LogLines
from dispatch_core.replay.judge_trace import TraceJudge
from dispatch_core.replay.judge_without_trace import WithoutTraceJudge
from dispatch_core.times import micros
from dispatch_core.verify.tally import Finding
from dispatch_core.verify.trace.facts import TraceFacts

#: Stands for the time of a line that has none.
_BEFORE_ALL_US: Final = np.iinfo(np.int64).min
#: Behaviour whose effect on single decisions the rules do not replay.
_NOT_REPLAYED: Final = frozenset((*LEAVE_OUT, "delayed_delivery"))


class Replay:
    """One incarnation of one dispatcher. Feed it the batches of its log in order, then ``finish``."""

    def __init__(
        self,
        head: DispatcherLog,
        *,
        interval_start: datetime,
        interval_end: datetime,
        earlier: Sequence[DispatcherLog] = (),
        after: Replay | None = None,
        resumes: bool = False,
        stored: StoredEntries | None = None,
        whole: bool = False,
        trace: TraceFacts | None = None,
        removals_logged: bool | None = None,
        limits: Limits = DEFAULT_LIMITS,
        closed: bool = False,
        to_last_line: bool = False,
        ended: bool = False,
        tick_us: int | None = None,
        in_force: BehaviourInForce | None = None,
        last_line: LastLine | None = None,
    ) -> None:
        """Begin before the first line.

        Args:
            head: the log's identity and header; its ``events`` hold the rare lines of the whole log (joins, leaves).
            interval_start: a row belongs to the interval of the event that proves it; UTC.
            interval_end: events from then on are ignored.
            earlier: incarnations before this one, oldest first; see ``AuditFold``.
            after: the replay of the lines before these, finished: of the incarnation before, or of this one before lines
                were lost (``resumes``).
            resumes: the log goes on from a checkpoint behind lost lines.
            stored: counts the entries of the topic for all incarnations; by default this replay counts for itself.
            whole: one batch will bring everything.
            trace: compare every decision of a dispatcher trace, of which these are the facts.
            removals_logged: see ``AuditFold``.
            limits: how long is too long.
            closed: the log is complete: what waits at its end will never be sent.
            to_last_line: the log is known up to its last line. What waits is judged as of then, not as of the interval's
                end.
            ended: another load of the topic follows. This one may have ended with its last line, so what waits is judged as
                of then; the broker may have been away until the next one began.
            tick_us: how often to look at what waits, 0 = at every line; by default as often as the limits need it.
            in_force: behaviours that ``limit`` lines show, of the whole log; by default those in the events of ``head``.
            last_line: the line before, of a subscription that is made again; of ``after`` by default.
        """
        self._non_persistent = is_non_persistent(head.topic)
        if self._non_persistent and not whole:
            raise NotStreamableError(f"{head.topic}: the log of a non-persistent topic is judged as a whole")
        if after is not None and after._deleted and resumes:
            last_line = after._audit.last_line
        self._head = head
        self._judge: Judge
        self._span(interval_start, interval_end)
        if trace is not None:
            self._judge = TraceJudge(head, limits, trace, start_us=self._start_us, tick_us=tick_us)
        else:
            self._judge = WithoutTraceJudge(
                head,
                limits,
                start_us=self._start_us,
                tick_us=tick_us,
                follows=_goes_on(earlier, after) and not resumes,
            )
        self._audit: AuditFold = AuditFold(
            head,
            interval_start=interval_start,
            earlier=earlier,
            after=None if after is None else after._audit,
            resumes=resumes or (after is not None and after._deleted),
            last_line=last_line,
            whole=whole,
            flows=trace is None,
            profile=self._judge.profile,
            removals_logged=removals_logged if trace is None else trace.removals_logged,
            cursor_ops_logged=trace is not None and trace.cursor_ops_logged,
        )
        self._held_by = HeldByLimits(
            BehaviourInForce(), (), pending_by_holder=not self._audit.window.single_active
        )
        self._know(BehaviourInForce.of([head.events]) if in_force is None else in_force)
        self._delays = DelayedDelivery.of(head)
        self._limits = limits
        self._end_is(closed=closed, to_last_line=to_last_line, ended=ended)
        self._unfinished = NOTHING_UNFINISHED
        self._unsent: UnsentEntries = UnsentEntries()
        if after is not None:
            self._unsent = after._unsent.made_again() if after._deleted else after._unsent
            if after._deleted:
                self._audit.clocks = ProducerClocks()
        self._is_first = after is None and not earlier
        self._permits: Ledger | None = None
        if not self._non_persistent:
            self._permits = choose_ledger(
                head,
                self._judge.profile,
                single_active=self._audit.window.single_active,
                is_trace=trace is not None,
                is_first=self._is_first,
            )
        made_again = after is not None and after._deleted
        self._later_load: bool = not (self._is_first or resumes or made_again)
        self._loads_ended_us: int = _last_us(earlier) if after is None else after._last_line[1] or 0
        self._skipped: SkippedEntries | None = None
        self._passed = PassedEntries()
        #: Only Key_Shared keeps order by key.
        self._mixed_keys = MixedKeys() if self._audit.window.subscription_type == "Key_Shared" else None
        moves_logged, deletions_logged = self._audit.moves_logged, self._audit.deletions_logged
        self._possible_moves = (
            None if moves_logged and deletions_logged else PossibleMoves(only_deletions=moves_logged)
        )
        #: The first line behind a move of the cursor of which the log may have no line; known after ``finish``.
        self.moved_before_seq: int | None = None
        self._first_line: tuple[int, int] | None = None  # seq and time
        self._last_line: tuple[int, int | None] = (0, None)
        self._stored = StoredEntries(self._start_us, [self._end_us]) if stored is None else stored
        #: Connection and key of each delivery of the last batch, where they are known.
        self.pairs: Pairs | None = None

    def go_on(
        self,
        head: DispatcherLog,
        *,
        interval_start: datetime,
        interval_end: datetime,
        stored: StoredEntries,
        in_force: BehaviourInForce,
        closed: bool = False,
        to_last_line: bool = False,
        ended: bool = False,
    ) -> None:
        """Go on with the lines behind those that were fed, in a later interval: as if all had been fed in one replay of it.

        All lines that were fed lie before the interval. The arguments are those of ``__init__``. Raises ``SnapshotError``
        where more of the log changes what was judged already.
        """
        same = ("cluster", "topic", "subscription", "broker", "incarnation", "header")
        changed = [name for name in same if getattr(head, name) != getattr(self._head, name)]
        if changed:
            raise SnapshotError(f"the log has another {changed[0]} now")
        if self._permits is not None:
            self._permits.forget_ended()
        elif shows_permits(head.events):
            raise SnapshotError("the log shows permits now, and its first lines were not read for them")
        self._head = head
        self._judge.go_on(head, micros(interval_start))
        self._audit.go_on(head, interval_start)
        self._span(interval_start, interval_end)
        self._know(in_force)
        self._end_is(closed=closed, to_last_line=to_last_line, ended=ended)
        self._stored = stored
        self.pairs = None

    def _span(self, interval_start: datetime, interval_end: datetime) -> None:
        """Begin an interval, of which nothing is counted yet."""
        self._start_us, self._end_us = micros(interval_start), micros(interval_end)
        self._identity = result_rows.identity_of(self._head, interval_start)
        self._names = result_rows.names_of(self._head.events)
        self._anomaly_rows = Rows(self._head, interval_start)
        self._counted = dict.fromkeys(("events", "entries_sent"), 0)

    def _know(self, in_force: BehaviourInForce) -> None:
        """Take the behaviours that the ``limit`` lines of the log show."""
        records = self._head.header.get("records") or ()
        self._in_force = in_force.without(not_of_type(self._audit.window.subscription_type))
        # Messages of transactions are marked: no other one is left out.
        self._leaves_out = self._in_force.without(("transactions",) if "txn" in records else ())
        self._held_by.know(self._in_force, records)
        self._judge.take_limits(self._held_by, _not_replayed_from(self._in_force))

    def _end_is(self, *, closed: bool, to_last_line: bool, ended: bool) -> None:
        """Take what is known of the log's end; see ``__init__``."""
        #: The subscription is deleted at the end of the log: what waits then is not owed any more.
        self._deleted: bool = is_deleted(self._head.events)
        self._closed, self._to_last_line, self._ended = closed and not self._deleted, to_last_line, ended

    def feed(
        self,
        messages: pa.Table,
        events: pa.Table,
        ahead: pa.Table | None = None,
        stored_until_us: int = EVERY_ENTRY_US,
    ) -> dict[str, pa.Table]:
        """Take the next batch; returns the rows of ``deliveries``, ``divergences`` and ``anomalies`` that it proves.

        Anomalies without divergences: ``divergence_anomalies`` makes these when all else is known.

        Args:
            messages: the next entries of the topic.
            events: the next lines of the log; every position that they name has been fed by then.
            ahead: the events that follow, as far as they may race with the last ones of this batch. Of a trace
                ``lines_ahead.LOOK_AHEAD`` or more, or all there are, and the entries they name have been fed too.
            stored_until_us: see ``stream.LogBatch``.
        """
        first = self._first_line is None
        self._stored.add(messages)
        self._unsent.add(messages, self._delays)
        if self._permits is not None:
            self._permits.take(events)
        audit = self._audit.feed(messages, events, self._judge.droppable())
        self._count(events)
        checkpoint_state = self._audit.window.checkpoint_state
        if self._is_first and self._audit.begins and checkpoint_state is not None:
            self._unsent.begin(checkpoint_state.checkpoint)
        deliveries = audit.deliveries
        self._unsent.sent(*positions_of(deliveries))
        self._note_sent()
        judged = self._judge.take(self._audit, LogLines(messages, events, ahead, stored_until_us), deliveries)
        # A table at once: as objects of Python the differences of a log that differs everywhere take much memory.
        divergences = self._divergences(() if judged is None else judged.findings)
        if judged is not None:
            deliveries = result_rows.judged(deliveries, judged.judgement, judged.expected)
        judged = None
        if first and self._skipped is None:
            self._skipped = self._judge.never_sent(single_active=self._audit.window.single_active)
            if self._skipped is not None:
                named = None if checkpoint_state is None else checkpoint_state.checkpoint.mark_delete
                self._skipped.later_load = self._later_load and named is None
                self._skipped.loads_ended_us = self._loads_ended_us
        if self._skipped is not None:
            single_active = self._audit.window.single_active
            self._skipped.explained = self._judge.tells_of_skipped(single_active=single_active)
            self._skipped.compacted = COMPACTED_READ in self._in_force.named()
            self._skipped.overtaken = self._passed.overtaken = self._overtaken_by(self._skipped)
        if self._mixed_keys is not None:
            self._mixed_keys.add(messages, audit.deliveries)
        self._passed.look(self._audit.window, self._audit.scan)
        if self._possible_moves is not None:
            assert self._audit.operations is not None
            self._possible_moves.look(
                self._audit.window, self._audit.scan, self._audit.dropped, self._audit.operations
            )
        if self._skipped is not None:
            self._skipped.look(self._audit.window, self._audit.scan, self._audit.dropped)
        count, deliveries = deliveries.num_rows, result_rows.within(deliveries, self._start_us)
        # A batch with deliveries of an earlier interval is rare: its pairs are found anew.
        self.pairs = audit.pairs if deliveries.num_rows == count else None
        self._counted["entries_sent"] += deliveries.num_rows
        window = self._audit.window
        holes = []
        if not self._non_persistent:
            holes = filled_holes(
                self._audit.scan,
                window,
                max(self._audit.new_ops.start, window.first_op_of_last_log),
                self._limits,
                gap=self._audit.has_gaps,
                in_force=self._in_force,
            )
        return {
            "deliveries": deliveries,
            "divergences": divergences,
            "anomalies": pa.concat_tables(
                [
                    result_rows.within(audit.anomalies, self._start_us),
                    result_rows.within(self._anomaly_rows.anomalies(holes), self._start_us),
                ]
            ),
        }

    @property
    def head(self) -> DispatcherLog:
        """The log's identity and header, with its rare lines."""
        return self._head

    @property
    def audit(self) -> AuditFold:
        """The audit of the lines that were fed."""
        return self._audit

    @property
    def judge(self) -> Judge:
        """The judge of the lines that were fed."""
        return self._judge

    @property
    def last_line(self) -> tuple[int, int | None]:
        """``seq`` and time (microseconds) of the last line that was fed."""
        return self._last_line

    @property
    def can_forget(self) -> bool:
        """True if the replay holds many more settled entries than a saved one needs."""
        return self._audit.can_forget(self._judge.droppable())

    def forget_settled(self) -> dict[str, pa.Table]:
        """Forget the entries that are settled, but for the latest, so that a saved replay holds what can still matter.

        Call it between two feeds. It is a feed of nothing, and returns what such a feed does.
        """
        self._audit.forget_settled()
        return self.feed(no_rows(MESSAGES), no_rows(EVENTS))

    def pass_over(self, messages: pa.Table) -> None:
        """Count entries that no event names: those before the first that one does, or behind the last line."""
        self._stored.add(messages)
        if not self._deleted:
            until_us = self._finished_until_us()
            self._unsent.add_behind(messages, until_us, self._as_of_us(), self._delays)

    @property
    def owned(self) -> OwnershipSpans:
        """Return who owned what."""
        return self._judge.ownership()

    @property
    def ownership_changes(self) -> npt.NDArray[np.int64]:
        """Lines that changed ownership by now, ascending."""
        return self._judge.ownership().changes

    @property
    def acks_stay(self) -> bool:
        """True if all entries that were acknowledged individually are so still, of a log that came in one batch."""
        audit = self._audit
        if audit.operations is None:
            return True
        return audit.scan.acks_stay(audit.window, audit.operations, audit.acked_before)

    def never_delivered(self) -> int:
        """Return how many entries were not sent by the lines that were fed, here and to ``after`` (``UnsentEntries``).

        Those that are not finished are not counted. Call it after ``finish``.
        """
        nothing_owed = (
            self._deleted or self._non_persistent
        )  # what a non-persistent topic drops is counted by itself
        return 0 if nothing_owed else self._unsent.count(unfinished=self._unfinished)

    @property
    def first_gap(self) -> int | None:
        """See ``AuditFold``: of the lines that were fed by now."""
        return self._audit.first_gap

    @property
    def unfinished(self) -> Unfinished:
        """The entries that need not have been sent by the moment of the verdict; known after ``finish``."""
        return self._unfinished

    def finish(self, reported_waits: list[SampledWait] | None = None) -> dict[str, pa.Table]:
        """Return what the log as a whole says: ``ownership``, ``blocked``, ``dispatcher_state``, and the last rows of
        ``anomalies`` and ``divergences``.

        ``reported_waits``: gets every wait that is reported one by one.
        """
        divergences = self._divergences(self._judge.finish())
        sampled = self._judge.waits(self._last_line[0], self._as_of_us())
        names, limits, end = self._names, self._limits, self._end()
        waits = with_no_read_apart(sampled, limits, closed=end.closed)
        if reported_waits is not None:
            reported_waits.extend(waits)
        skipped: list[SampledWait] = []
        if self._first_line is not None and self._skipped is not None:
            skipped += self._skipped.waits(*self._first_line, end.as_of_us, self._leaves_out)
        every = list(skipped)
        # Of these it is known until when a behaviour would have had to be in force.
        skipped, found = _without_left_out(skipped, end)
        # Of a deleted subscription nothing will ever be sent; what was passed over need not have been for that.
        end_of_skipped = replace(end, closed=end.closed or end.deleted)
        found += stalls(skipped, names, limits, end)
        found += never_delivered(skipped, names, limits, end_of_skipped)
        if self._judge.knows_waits:
            others = but_for(waits, found)
            every += others
            others = with_cause(others, self._leaves_out, limits, end, self._passed_us)
            others, left = _without_left_out(others, end)
            found += left
            found += stalls(others, names, limits, end) + never_delivered(others, names, limits, end)
        elif self._judge.knows_stalls:
            explained = [wait for wait in but_for(waits, found) if wait.reason is not None]
            explained = with_cause(explained, self._leaves_out, limits, end, self._passed_us)
            found += stalls([wait for wait in explained if wait.left_out_by is None], names, limits, end)
        self._unfinished = self._not_finished(every, found)
        found += self._passed.findings()
        if self._mixed_keys is not None:
            consumers = self._audit.window.consumers
            free = {consumer.number for consumer in consumers if consumer.allow_out_of_order}
            mixed = self._mixed_keys.findings(names)
            found += [finding for finding in mixed if free.isdisjoint(finding.consumers)]
        if self._non_persistent:
            found += self._judge.dropped(self._audit, end, names, closed=self._closed)
        else:
            found += ack_holes(self._audit.scan, self._audit.window, limits, end, self._in_force)
        if self._permits is not None:
            self._permits.finish()
            found += permit_findings(
                self._permits.off_for_good(), names, Moment(end.as_of_us, self._audit.doubt)
            )
        if self._possible_moves is not None:
            found, self.moved_before_seq = self._possible_moves.doubted(
                found, self._audit.window, self._audit.scan, [*sampled, *skipped]
            )
        spans = self._judge.ownership()
        return {
            "divergences": divergences,
            "ownership": result_rows.ownership(spans, self._identity, names, self._start_us),
            "blocked": self._rows(
                "blocked", [*result_rows.blocked(waits, names)] if self._judge.knows_stalls else []
            ),
            "dispatcher_state": self._rows("dispatcher_state", [self._state()]),
            "anomalies": result_rows.within(self._anomaly_rows.anomalies(found), self._start_us),
        }

    # -----------------------------------------------------------------------------------------------------------------

    def _overtaken_by(self, skipped: SkippedEntries) -> Overtaken:
        """Return which entries behind an unsent one show that it was passed over."""
        profile = self._judge.profile
        if skipped.explained or (profile is not None and profile.allow_out_of_order):
            return Overtaken.NEVER
        return Overtaken.BY_ITS_KEY if skipped.by_rules else Overtaken.BY_ANY

    def _note_sent(self) -> None:
        """Report the deliveries of this batch to the limits in force."""
        window, operations = self._audit.window, self._audit.operations
        assert operations is not None
        sent = np.flatnonzero(operations.code == SENT)
        sent = sent[sent >= max(window.first_op_of_last_log - self._audit.new_ops.start, 0)]
        if self._in_force.times and len(sent):
            sums = np.concatenate([[0], np.cumsum(window.num_messages[operations.ordinals], dtype=np.int64)])
            start = operations.start - operations.start[0]
            self._held_by.sent(operations.t_us[sent], sums[start[sent + 1]] - sums[start[sent]])

    def _passed_us(self, wait: SampledWait) -> int:
        position = wait.first_position or wait.positions[0]
        return passed_us(self._audit.window, self._audit.scan, position, wait.from_t_us)

    def _as_of_us(self) -> int:
        """Return the moment as of which waits are judged: the end of a closed log, else of the interval."""
        last_us = self._last_line[1] or self._start_us
        if self._closed or self._ended or self._deleted:
            return last_us
        # What waited before the interval waits at its start still.
        return max(self._start_us if self._to_last_line else self._end_us - 1, last_us)

    def _finished_until_us(self) -> int:
        """Return the time until which entries should have been sent, or wait: a moment before the verdict's."""
        if self._closed:
            return NOTHING_UNFINISHED.since_us
        young_us = (
            grace_of(self._limits) if self._judge.knows_waits else 1000 * self._limits.never_delivered_ms
        )
        return self._as_of_us() - young_us

    def _not_finished(self, waits: Sequence[SampledWait], found: Sequence[StallFinding]) -> Unfinished:
        """Return what need not have been sent by now: ``waits`` that are no finding among ``found`` yet."""
        if self._closed:
            limited = sum(wait.never_sent for wait in waits if wait.limited and wait.left_out_by is None)
            return replace(
                NOTHING_UNFINISHED, waiting=limited, backlog=limited > 0, due_by_us=self._as_of_us()
            )
        going_on = sum(wait.never_sent for wait in waits if wait.until_seq is None)
        return Unfinished(
            self._finished_until_us(),
            max(0, going_on - sum(finding.unsent or 0 for finding in found)),
            backlog=going_on > 0,
            beyond=self._judge.beyond() if going_on else None,
            due_by_us=self._as_of_us(),
        )

    def _end(self) -> End:
        return End(
            self._last_line[0],
            self._as_of_us(),
            self._closed,
            deleted=self._deleted,
            doubt=self._audit.doubt,
            behind_us=self._audit.clocks.behind_us,
            stepped_back_us=self._audit.stepped_back_us,
            jumped_us=self._audit.jumped_us,
            highest_sent=self._unsent.highest_sent,
            clock_shown=self._audit.clocks.is_shown,
            known_until_us=self._last_line[1] if self._head.end_lost else None,
        )

    def _count(self, events: pa.Table) -> None:
        if not events.num_rows:
            return
        t_us = ints(events["t_us"], _BEFORE_ALL_US)
        self._counted["events"] += int(np.count_nonzero((t_us >= self._start_us) & (t_us < self._end_us)))
        self._last_line = events["seq"][-1].as_py(), events["t_us"][-1].as_py()
        if self._first_line is None:
            self._first_line = events["seq"][0].as_py(), events["t_us"][0].as_py() or 0

    def _state(self) -> dict[str, Any]:
        position = self._judge.position(self._audit)
        return result_rows.state(
            self._head,
            self._judge.profile,
            last_seq=self._last_line[0],
            last_t_us=self._last_line[1],
            not_judged_reason=self._judge.not_judged,
            counts=self._counted | {"entries_stored": self._stored.count(0)} | self._judge.counts(),
            mark_delete=position.mark_delete,
            read_position=position.read_position,
            state_json=position.state_json,
        )

    def _divergences(self, findings: Sequence[Finding]) -> pa.Table:
        inside = (finding for finding in findings if self._start_us <= finding.t_us < self._end_us)
        return self._rows("divergences", map(result_rows.difference, inside))

    def _rows(self, table: str, found: Iterable[Mapping[str, Any]]) -> pa.Table:
        return result_rows.rows(tables.REPLAY_TABLES[table], self._identity, found)


def _goes_on(earlier: Sequence[DispatcherLog], after: Replay | None) -> bool:
    """Check whether an incarnation goes on with the subscription of the one before it."""
    if after is not None:
        return not after._deleted
    return bool(earlier) and not is_deleted(earlier[-1].events)


def _without_left_out(waits: Sequence[SampledWait], end: End) -> tuple[list[SampledWait], list[StallFinding]]:
    """Return waits without those whose entries a behaviour in force left out, and the findings of these."""
    return [wait for wait in waits if wait.left_out_by is None], left_out(waits, end)


def _last_us(logs: Sequence[DispatcherLog]) -> int:
    """Return the time of the last line of logs, microseconds; 0 if they have none."""
    return max((int(ints(log.events["t_us"], 0).max(initial=0)) for log in logs), default=0)


def _not_replayed_from(in_force: BehaviourInForce) -> int:
    """Return from when on a behaviour is in force that the rules do not replay, microseconds; far away if none is."""
    times = in_force.at_the_earliest().times
    return min((time.from_us for time in times if time.what in _NOT_REPLAYED), default=1 << 62)
