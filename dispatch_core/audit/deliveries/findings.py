"""Describe findings about deliveries: key, positions, consumers, the lines that prove each finding, and one sentence.

Names, positions and clock times (UTC) stand in every sentence; ``seqs`` name the lines of the log that prove it, the
proving line last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.assumptions import UNLOGGED
from dispatch_core.audit.catalogue import (
    DOCUMENTED,
    HANDOVER,
    INFO,
    KIND_ORDER,
    KINDS,
    MAJOR,
    MAYBE_HANDOVER,
    MINOR,
    ORDER_NOT_PROMISED,
)
from dispatch_core.audit.deliveries import layout
from dispatch_core.audit.deliveries.applied_acks import AppliedAcks
from dispatch_core.audit.deliveries.evidence import Line, Sent, lines_of, sent_of
from dispatch_core.audit.deliveries.layout import (
    ALL_LEFT,
    DISCONNECTED,
    ENTRY,
    MOVED,
    NACKED,
    NACKED_ALL,
    RELOADED,
    REWOUND,
)
from dispatch_core.audit.deliveries.log_finding import LogFinding
from dispatch_core.audit.deliveries.missing_lines import Gaps
from dispatch_core.audit.deliveries.scan import Scanned
from dispatch_core.audit.deliveries.window import LogWindow
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.names import shown
from dispatch_core.audit.sentences.order_faults import OF_EARLIER_RULES, OrderFault, order_fault
from dispatch_core.audit.sentences.reasons import ORDERING_RULES
from dispatch_core.broker.profiles import Profile

#: Without a trace an ack is seen on arrival only. The slowest of 150,000 recorded acks was applied after 15 ms; a delivery
#: that follows an ack within this time may have overtaken it.
ACK_RACE_US: Final = 20_000

#: Why a finding that rests on a checkpoint is uncertain.
BEFORE_CHECKPOINT: Final = "before_checkpoint"
#: Lines of the log are missing.
LOG_GAP: Final = "log_gap"
#: Rows of the log behind its last line could not be read (``recording.lost_rows``).
ROWS_LOST: Final = "rows_lost"
ACK_RACING: Final = "ack_racing"
#: Likewise of a redelivery request and a delivery that follows it (``kernel.REQUEST_RACE_US``).
REQUEST_RACING: Final = "request_racing"
#: An entry of a non-persistent topic was sent more than once.
SENT_TWICE: Final = "sent_twice"
#: Entries of a non-persistent topic that several producers published: no order between them is kept.
SEVERAL_PRODUCERS: Final = "several_producers"
#: An administrator or a client may have moved the cursor; no line would say so.
CURSOR_MAY_HAVE_MOVED: Final = "cursor_may_have_moved"
#: A repeated delivery whose cause the log does not show.
UNEXPLAINED: Final = "unexplained"
#: The log's clock may have jumped forward.
CLOCK_JUMPED: Final = "clock_jumped"
_SEEK: Final = "a seek or a reset of the cursor may explain it"
_DELETION: Final = "the subscription may have been deleted and made again"
DOUBTS: Final = {
    BEFORE_CHECKPOINT: "; but what happened before the checkpoint is unknown, and may explain it",
    LOG_GAP: "; but lines of the log are missing",
    ROWS_LOST: "; but rows of the log behind its last line could not be read, and may explain it",
    CLOCK_JUMPED: "; but the log's clock may have jumped forward by as much: all later entries come as late as that",
    ACK_RACING: "; the checkpoint was made less than 20 ms before, an acknowledgement may have been on its way",
}

#: Cause of a repeated delivery, by the end of the delivery before it.
CAUSE_OF: Final = {
    NACKED: "nack",
    NACKED_ALL: "nack",
    DISCONNECTED: "disconnect",
    ALL_LEFT: "all_left",
    RELOADED: "topic_reload",
    REWOUND: "rewind",
    MOVED: "cursor_moved",
}

_EXPLAINED_BY: Final = {layout.HANDOVER: HANDOVER, layout.MAYBE_HANDOVER: MAYBE_HANDOVER}
_MAYBE_A_CHANGE: Final = (
    "; consumers had joined or left before, and one of them may have changed the active consumer late"
)
_NO_CHANGE: Final = "; no change of the active consumer explains it"

#: What draining hashes mean for a finding, where no fault of the release explains it.
_BROKER_BUG: Final = "keep the log, a broker that does it has a bug"
#: The same where a move of the cursor frees a key whose entries a consumer still has.
_BUG_OR_MOVE: Final = (
    "keep the log: unless entries were skipped or expired without a line, the broker has a bug"
)

#: Findings that are described at a time; as objects of Python they take several times the memory of their rows.
_AT_ONCE: Final = 5_000


class Finding(NamedTuple):
    """One row of the anomalies table, without the dispatcher's identity."""

    kind: str
    severity: str
    key: str | None
    key_b64: bool
    hash: int | None
    positions: list[str]
    consumers: list[int]
    seqs: list[int]
    t_us: int
    cause: str | None
    reason: str | None
    uncertain: bool
    explanation: str
    place: int  # order within the proving line
    #: Number of entries of this finding that were never sent, listed or not; each is counted in one finding only.
    unsent: int | None = None

    @classmethod
    def without_key(
        cls,
        kind: str,
        positions: list[str],
        consumers: list[int],
        seqs: list[int],
        t_us: int,
        explanation: str,
        *,
        cause: str | None = None,
        unsent: int | None = None,
    ) -> Finding:
        """Make a certain finding that is about no single key."""
        return cls(
            kind=kind,
            severity=KINDS[kind].severity,
            key=None,
            key_b64=False,
            hash=None,
            positions=positions,
            consumers=consumers,
            seqs=seqs,
            t_us=t_us,
            cause=cause,
            reason=None,
            uncertain=False,
            explanation=explanation,
            place=0,
            unsent=unsent,
        )

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: proving line, place in the line, kind."""
        return self.seqs[-1], self.place, KIND_ORDER[self.kind]


def unlogged_move(explanation: str, may: str) -> str:
    """Return the sentence of a finding with what an unlogged move of the cursor may have done.

    >>> unlogged_move("5:1 was sent to nobody", "a move may have passed it")
    '5:1 was sent to nobody; but a move may have passed it, of which this log would have no line'
    """
    return f"{explanation}; but {may}, of which this log would have no line"


def perhaps_by_a_move(finding: Finding, may: str) -> Finding:
    """Make a finding uncertain that an unlogged move of the cursor may explain; ``may``: see ``unlogged_move``."""
    return finding._replace(
        uncertain=True,
        reason=finding.reason or CURSOR_MAY_HAVE_MOVED,
        explanation=unlogged_move(finding.explanation, may),
    )


class Findings:
    """Describe the findings of one pass over a dispatcher's operations.

    Args:
        window: the window of the log.
        names: display names of the connections, by index (``display_names``).
        profile: the rules in force; ``None`` = unknown.
        state: deliveries of the window, one row each (``Scan.deliveries``).
        scanned: the result of the pass.
        gaps: gaps of the log up to these operations.
        applied: what the log shows of when acks took effect; ``None`` = nothing.
        earlier_lost: lines of earlier loads of the topic are missing.
        transactions_from_seq: from this line on acknowledgements may be part of transactions; ``None`` = none may.
        perhaps_deleted: the subscription may have been deleted unseen; else the cursor may have been moved.
        requests_traced: lines of redelivery requests stand where the requests took effect, as in a trace that shows removals
            of pending acks.
    """

    def __init__(
        self,
        window: LogWindow,
        names: Sequence[str],
        profile: Profile | None,
        state: npt.NDArray[np.int32],
        scanned: Scanned,
        gaps: Gaps,
        applied: AppliedAcks | None,
        *,
        earlier_lost: bool = False,
        transactions_from_seq: int | None = None,
        perhaps_deleted: bool = False,
        requests_traced: bool = False,
    ) -> None:
        self._window = window
        self._names = names
        self._profile = profile
        self._state = state
        self._first = scanned.first
        self._ended = scanned.ended
        self._gaps = gaps
        self._applied = applied
        self._earlier_lost = earlier_lost
        self._transactions_from_seq = transactions_from_seq
        self._may_explain = _DELETION if perhaps_deleted else _SEEK
        self._requests_traced = requests_traced
        self._sent: dict[int, Sent] = {}
        self._lines: dict[int, Line] = {}

    def of_log(self, finding: LogFinding) -> Finding:
        """Describe a finding about the log itself."""
        return Finding(
            kind=finding.kind,
            severity=KINDS[finding.kind].severity,
            key=None,
            key_b64=False,
            hash=None,
            positions=list(finding.positions),
            consumers=[] if finding.consumer is None else [finding.consumer],
            seqs=list(finding.seqs),
            t_us=finding.t_us,
            cause=None,
            reason=finding.reason,
            # the line that added the connection may be one of those that are missing
            uncertain=finding.uncertain
            or (finding.kind == "unknown_consumer" and self._gaps.before(finding.seqs[-1])),
            explanation=finding.explanation,
            place=-1,
        )

    def of_deliveries(self, found: npt.NDArray[np.int32]) -> Iterator[list[Finding]]:
        """Describe the findings of the pass, some at a time.

        ``found``: rows ``(delivery, kind, other delivery, other operation, hand-over)``.
        """
        for start in range(0, len(found), _AT_ONCE):
            yield self._described(found[start : start + _AT_ONCE])

    def _described(self, found: npt.NDArray[np.int32]) -> list[Finding]:
        self._sent = sent_of(self._window, self._state, found)
        self._lines = lines_of(self._window, self._sent, found)
        make = (
            *(self._order, self._overtaken, self._split, self._double, self._after_ack, self._redelivered),
            *(self._after_a_move, self._order_after_a_move),
        )
        return [
            make[kind](delivery, other, op, handover)
            for delivery, kind, other, op, handover in found.tolist()
        ]

    def _after_a_move(self, delivery: int, other: int, op: int, handover: int) -> Finding:
        return perhaps_by_a_move(self._after_ack(delivery, other, op, handover), self._may_explain)

    def _order_after_a_move(self, delivery: int, other: int, op: int, handover: int) -> Finding:
        return perhaps_by_a_move(self._order(delivery, other, op, handover), self._may_explain)

    # one method per kind -------------------------------------------------------------------------------------------

    def _order(self, delivery: int, other: int, op: int, _handover: int) -> Finding:
        to, entry, when = self._to(delivery), self._position(delivery), self._when(delivery)
        before_to, later, before_when = self._to(other), self._position(other), self._when(other)
        earlier = self._sent[delivery].before
        cause = self._cause(delivery)
        if earlier < 0:
            text = (
                f"{self._key(delivery)} went backwards: {entry} was sent for the first time, to {to} at {when}, "
                f"after the later {later} had gone to {before_to} at {before_when}"
            )
        else:
            text = (
                f"{self._key(delivery)} went backwards at {to}: it got {later} at {before_when} "
                f"and then {entry} at {when}{self._which_had(earlier, delivery, cause)}"
            )
        racing = op >= 0 and not self._requests_traced
        if racing:
            lag = duration(max(self._lines[self._sent[other].op].t_us - self._lines[op].t_us, 0))
            text += (
                f"; but the request of {to} for its redelivery, which arrived only {lag} before {later} was sent, may have "
                "taken effect only after that"
            )
        else:
            text += self._rule(delivery)
        reason = REQUEST_RACING if racing else None
        if self._window.non_persistent and not self._of_one_producer(delivery, other):
            reason = SEVERAL_PRODUCERS
            text += "; but the log does not say that one producer published both, and no order is kept between producers"
        return self._finding(
            "out_of_order",
            delivery,
            [other],
            text,
            cause=cause,
            reason=reason,
            proof=[op] if racing else [],
            uncertain=reason is not None,
            first=earlier < 0,
        )

    def _of_one_producer(self, delivery: int, other: int) -> bool:
        """Check whether the log names one producer for the entries of two deliveries."""
        producer = self._window.producer[[self._state[delivery, ENTRY], self._state[other, ENTRY]]]
        return bool(
            producer[0] == producer[1] and producer[0] >= 0 and self._window.is_named(int(producer[0]))
        )

    def _overtaken(self, delivery: int, other: int, op: int, _handover: int) -> Finding:
        to, entry = self._to(delivery), self._position(delivery)
        text = (
            f"{self._key(delivery)}: {to} got {self._position(other)} at {self._when(other)} before {entry} came again at "
            f"{self._when(delivery)}, because {to} had itself requested its redelivery at {self._at(op)}; this is allowed"
        )
        return self._finding("overtaken_redelivery", delivery, [other], text, cause="nack", proof=[op])

    def _split(self, delivery: int, other: int, _op: int, handover: int) -> Finding:
        text = (
            f"{self._key(delivery)} was at two consumers at once: {self._to(delivery)} got {self._position(delivery)} at "
            f"{self._when(delivery)} while {self._to(other)} still held {self._position(other)}, "
            f"sent to it at {self._when(other)}"
        )
        reason = _EXPLAINED_BY.get(handover)
        if handover == layout.MAYBE_HANDOVER:
            text += _MAYBE_A_CHANGE
        elif self._window.single_active and handover == layout.NO_HANDOVER:
            text += _NO_CHANGE
        else:
            text += self._rule(delivery, _BUG_OR_MOVE)
        return self._finding(
            "split_key",
            delivery,
            [other],
            text,
            cause=self._cause(delivery),
            reason=reason,
            uncertain=reason == MAYBE_HANDOVER,
        )

    def _double(self, delivery: int, other: int, _op: int, handover: int) -> Finding:
        text = (
            f"{self._position(delivery)}{self._of_key(delivery)} was at two consumers at once: {self._to(delivery)} got it "
            f"at {self._when(delivery)} while {self._to(other)} still held it, sent to it at {self._when(other)}"
        )
        cause, reason = self._cause(delivery), _EXPLAINED_BY.get(handover)
        if handover == layout.MAYBE_HANDOVER:
            text += _MAYBE_A_CHANGE
        elif handover == layout.HANDOVER and cause == "rewind":
            text += "; the change of the active consumer rewound the cursor to the mark-delete position"
        elif handover == layout.HANDOVER:
            text += "; it held it since before the change of the active consumer"
        elif self._window.single_active:
            text += _NO_CHANGE
        return self._finding(
            "double_outstanding",
            delivery,
            [other],
            text,
            cause=cause,
            reason=reason,
            uncertain=reason == MAYBE_HANDOVER,
        )

    def _sent_twice(self, delivery: int) -> Finding:
        """Describe a further delivery of an entry of a non-persistent topic, which nothing explains."""
        earlier = self._sent[delivery].before
        return self._finding(
            "redelivered",
            delivery,
            [earlier],
            f"{self._position(delivery)}{self._of_key(delivery)} was sent again, to {self._to(delivery)} at "
            f"{self._when(delivery)}, which had gone to {self._to(earlier)} at {self._when(earlier)}; the broker sends an "
            "entry of a non-persistent topic once",
            reason=SENT_TWICE,
        )

    def _after_ack(self, delivery: int, other: int, op: int, handover: int) -> Finding:
        if self._window.non_persistent:
            return self._sent_twice(delivery)
        acked, sent = self._lines[op], self._sent[delivery]
        by_checkpoint = self._window.is_of_checkpoint(op)
        by = self._window.moved_by.get(op)
        acked_by = (
            f"the cursor had passed it ({by})"
            if by is not None
            else "it was acknowledged"
            if by_checkpoint
            else f"{self._names[acked.consumer]} had acknowledged it"
        )
        state = None if by_checkpoint or by is not None else self._was_applied(sent, acked)
        lag_us = self._lines[sent.op].t_us - acked.t_us
        racing = state is None and lag_us < ACK_RACE_US
        text = (
            f"{self._position(delivery)}{self._of_key(delivery)} was sent to {self._to(delivery)} at {self._when(delivery)} "
            f"although {acked_by} at {self._at(op)}"
        )
        reason = None
        if self._read_before_its_ack(handover, lag_us, state):
            reason = HANDOVER
            text += (
                f"; the active consumer had changed, and the ack arrived only {duration(lag_us)} before: "
                "the entry had been read for the new one by then, or the ack had not been applied yet"
            )
        elif state is False or racing:
            reason = ACK_RACING
            text += (
                "; the trace does not show that the ack had been applied by then"
                if state is False
                else f"; that was only {duration(lag_us)} before, and it may have been read already"
                if by is not None
                else f"; the ack had arrived only {duration(lag_us)} before and may not have been applied yet"
                if lag_us >= 0
                else "; that state was read after it was sent"
            )
        elif state is None and not by_checkpoint and by is None and self._may_be_of_a_part(delivery, acked):
            reason = "part_of_batch"
            text += "; the log does not say whether that ack was for the whole batch"
        elif handover in _EXPLAINED_BY:
            reason = MAYBE_HANDOVER
            text += "; the active consumer had changed before that ack, and the entry may have been read for the new one"
        elif self._transactions_from_seq is not None and by is None:
            line = self._lines[sent.op]
            if line.seq >= self._transactions_from_seq:
                reason = UNLOGGED
                text += "; entries of transactions were sent before, and the ack may have been part of one that was aborted"
        return self._finding(
            "duplicate_after_ack",
            delivery,
            [other] if other >= 0 else [],
            text,
            proof=[op],
            reason=reason,
            uncertain=reason is not None and reason != HANDOVER,
        )

    def _read_before_its_ack(self, handover: int, lag_us: int, applied: bool | None) -> bool:
        """Check whether a hand-over explains an acknowledged entry: it was read for the new consumer as the ack came.

        ``applied``: the trace shows that the ack had taken effect before (``_was_applied``). Then the change must have come
        before the ack.
        """
        if lag_us >= ACK_RACE_US:
            return False
        return handover == layout.HANDOVER or (handover == layout.HANDOVER_LATE and applied is not True)

    def _may_be_of_a_part(self, delivery: int, acked: Line) -> bool:
        """Check whether an ack may cover only some messages of a batch, in a log without ``ack_sets``."""
        of_each = self._profile is not None and self._profile.settings.get(
            "acknowledgmentAtBatchIndexLevelEnabled"
        )
        since = self._window.ack_sets_from_seq
        if not of_each or (since is not None and since <= acked.seq):
            return False
        return bool(self._window.num_messages[self._state[delivery, ENTRY]] > 1)

    def _redelivered(self, delivery: int, other: int, op: int, _handover: int) -> Finding:
        cause = self._cause(delivery)
        text = (
            f"{self._position(delivery)}{self._of_key(delivery)} was sent again, to {self._to(delivery)} at "
            f"{self._when(delivery)}{self._which_had(other, delivery, cause)}"
        )
        if cause is None:
            text += "; nothing in the log explains why"
        return self._finding(
            "redelivered",
            delivery,
            [other],
            text,
            cause=cause,
            reason=None if cause else UNEXPLAINED,
            proof=[op] if op >= 0 else [],
        )

    # words ---------------------------------------------------------------------------------------------------------

    def _which_had(self, earlier: int, delivery: int, cause: str | None) -> str:
        holder = self._to(earlier)
        sent = f", which had gone to {holder} at {self._when(earlier)}"
        if cause == "disconnect":
            return f", which {holder} still held when it disconnected"
        if cause == "all_left":
            return f", which {holder} still held when it left as the last consumer"
        if cause == "nack":
            return f", after {holder} had requested its redelivery"
        if cause == "rewind":
            return f"{sent}; the cursor had been rewound to the mark-delete position"
        if cause == "cursor_moved":
            return f"{sent}; the cursor had been moved since"
        if cause == "topic_reload":
            return f"{sent}, in an earlier load of the topic"
        return sent

    def _rule(self, delivery: int, bug: str = _BROKER_BUG) -> str:
        if self._window.single_active:
            return "; a change of Failover's active consumer does not wait for entries that are pending on the old one"
        if self._window.non_persistent:
            return "; the dispatcher of a non-persistent topic sends the entries of a producer in the order of publishing"
        if self._window.consumers[self._sent[delivery].consumer].allow_out_of_order:
            return f"; {OrderFault.ALLOWED}"
        if self._profile is None:
            return ""
        fault = order_fault(self._profile)
        if fault in OF_EARLIER_RULES:
            return f"; {fault}, {ORDERING_RULES['draining_hash']} would not"
        if fault in (None, OrderFault.TWO_REPLAY_READS):
            return f"; {ORDERING_RULES['draining_hash']} are there to prevent this; {fault or bug}"
        return f"; {fault}"

    def _cause(self, delivery: int) -> str | None:
        """Return the cause of a repeated delivery; ``None`` if nothing explains it."""
        return CAUSE_OF.get(int(self._ended[delivery - self._first]))

    def _was_applied(self, sent: Sent, acked: Line) -> bool | None:
        """Check in a trace whether an ack took effect before the entry was sent; ``None`` if it does not show."""
        if self._applied is None:
            return None
        ledger, entry = int(self._window.ledger[sent.ordinal]), int(self._window.entry[sent.ordinal])
        return self._applied.between(ledger, entry, acked.seq, self._lines[sent.op].seq)

    def _key(self, delivery: int) -> str:
        key = self._sent[delivery].key
        return "a key-less entry" if key is None else f"key {shown(key)}"

    def _of_key(self, delivery: int) -> str:
        key = self._sent[delivery].key
        return "" if key is None else f" (key {shown(key)})"

    def _to(self, delivery: int) -> str:
        return self._names[self._sent[delivery].consumer]

    def _position(self, delivery: int) -> str:
        return self._sent[delivery].position

    def _at(self, op: int) -> str:
        return self._lines[op].at

    def _when(self, delivery: int) -> str:
        return self._lines[self._sent[delivery].op].at

    def _finding(
        self,
        kind: str,
        delivery: int,
        others: list[int],
        text: str,
        *,
        cause: str | None = None,
        reason: str | None = None,
        proof: list[int] | None = None,
        uncertain: bool = False,
        first: bool = False,
    ) -> Finding:
        window, sent = self._window, self._sent[delivery]
        line = self._lines[sent.op]
        seq = line.seq
        evidence = {self._sent[other].op for other in others}
        evidence.update(proof or ())
        if sent.before >= 0 and kind != "split_key":
            evidence.add(self._sent[sent.before].op)
        # an earlier load of the topic numbers its lines by itself: only this one's can be named
        seqs = sorted({self._lines[op].seq for op in evidence if window.is_of_last_log(op)} - {seq})
        severity = KINDS[kind].severity
        if kind in ("out_of_order", "split_key") and window.consumers[sent.consumer].allow_out_of_order:
            severity, reason = INFO, ORDER_NOT_PROMISED
        elif reason in DOCUMENTED:
            severity = INFO
        elif reason == UNEXPLAINED:
            severity = MINOR
        elif reason == SENT_TWICE:
            severity = MAJOR
        if not uncertain and self._gaps:
            # lines that are missing between the evidence and the proof may hold what explains it;
            # whether something was sent for the first time cannot be said behind any gap
            uncertain = self._gaps.before(seq) if first else self._gaps.between(min([*seqs, seq]), seq)
            if uncertain:
                reason = reason or LOG_GAP
                text += "; but lines of the log are missing in between"
        if not uncertain and first and self._earlier_lost:
            # The later entry was sent in an earlier load: so may this one have been, in its lost lines.
            uncertain = any(not window.is_of_last_log(self._sent[other].op) for other in others)
            if uncertain:
                reason = reason or LOG_GAP
                text += "; but lines of an earlier load of the topic are missing"
        # What a checkpoint says of a non-persistent topic is who is connected: nothing before it can explain anything.
        if not uncertain and window.checkpoint_state is not None and not window.non_persistent:
            doubt = self._doubt(kind, sent, others, cause)
            uncertain = doubt is not None
            if doubt is not None:
                reason = reason or doubt
                text += DOUBTS[doubt]
        named = [sent, *(self._sent[other] for other in others)]
        return Finding(
            kind=kind,
            severity=severity,
            key=sent.key,
            key_b64=sent.key_b64,
            hash=sent.hash if sent.hash >= 0 else None,
            positions=list(dict.fromkeys([s.position for s in named])),
            consumers=list(dict.fromkeys([window.consumers[s.consumer].number for s in named])),
            seqs=[*seqs, seq],
            t_us=line.t_us,
            cause=cause,
            reason=reason,
            uncertain=uncertain,
            explanation=text,
            place=delivery,
        )

    def _doubt(self, kind: str, sent: Sent, others: list[int], cause: str | None) -> str | None:
        """Return why a finding is uncertain after a checkpoint; ``None`` if nothing before it can explain the finding."""
        window = self._window
        pending = [self._sent[other] for other in others if window.is_of_checkpoint(self._sent[other].op)]
        checkpoint_lines = [self._lines[delivery.op] for delivery in pending]
        if kind == "out_of_order":
            # A redelivery request or a rewind before the checkpoint may excuse it, or what the consumer got before that.
            return BEFORE_CHECKPOINT if window.may_have_been_sent(sent.ordinal) else None
        if kind == "redelivered":
            return BEFORE_CHECKPOINT if checkpoint_lines and cause is None else None
        if kind in ("split_key", "double_outstanding"):
            if any(window.was_acknowledged(delivery.ordinal) for delivery in pending):
                return BEFORE_CHECKPOINT  # sent again behind its acknowledgement, or read while it came
            in_part = window.ack_sets_from_seq is not None
            if in_part and any(window.num_messages[delivery.ordinal] > 1 for delivery in pending):
                return BEFORE_CHECKPOINT  # some of the batch's messages may have been acknowledged before
            lags_us = [self._lines[sent.op].t_us - line.t_us for line in checkpoint_lines]
            return ACK_RACING if any(lag_us < ACK_RACE_US for lag_us in lags_us) else None
        return None
