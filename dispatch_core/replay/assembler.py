"""Replay one dispatcher's log of level E for one interval, piece by piece: rules, audit, result tables.

Each piece goes through the audit (who holds what, what went wrong) and through the rules (would the broker's rule have
sent it so); both work on one window of the log, and what a piece proves is returned with it. Memory follows the window:
entries between mark-delete and read position, and some behind them.

A log that a window cannot judge raises ``NotStreamableError``; with ``whole`` everything comes in one piece, and any log
can be judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core import CORE_VERSION, tables
from dispatch_core.audit.deliveries.checkpoint_state import Seed
from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.audit.deliveries.operations import ACK, SENT, Lines, Operations
from dispatch_core.audit.deliveries.rows import Rows
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.subscription_start import for_subscription
from dispatch_core.audit.deliveries.window import History
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.audit.waits.ack_holes import ack_holes, filled_holes
from dispatch_core.audit.waits.findings import End, but_for, never_delivered, stalls
from dispatch_core.audit.waits.never_sent import Skipped
from dispatch_core.audit.waits.tracker import Hold, Key, holds_for
from dispatch_core.broker import state as st_
from dispatch_core.broker.ownership import OwnershipSpans
from dispatch_core.broker.profiles import Profile
from dispatch_core.errors import ProfileError, UnsupportedRuleError
from dispatch_core.recording.checkpoint import joins
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, subscription_type
from dispatch_core.replay import result_rows
from dispatch_core.replay.checkpoint_statistics import determined
from dispatch_core.replay.statistics import clients_of, subscription_stats
from dispatch_core.times import micros
from dispatch_core.verify.without_trace.key_shared import (
    JUDGEMENTS,
    NOT_JUDGED,
    RACE_US,
    Ints,
    Judged,
    Member,
    Racing,
    SeedOperations,
    Stretch,
    UserLevelFold,
    fold_of,
)

_NOTHING: Final = np.empty(0, np.int64)


class UserLevelReplay:
    """One incarnation of one dispatcher. Feed it the pieces of its log in order, then ``finish``."""

    def __init__(
        self,
        head: DispatcherLog,
        *,
        interval_start: datetime,
        interval_end: datetime,
        earlier: Sequence[DispatcherLog] = (),
        whole: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        closed: bool = False,
        tick_us: int | None = None,
    ) -> None:
        """``head``: the log's identity and header; its ``events`` hold the rare lines of the whole log (joins, leaves).

        ``whole``: one piece will bring everything. ``earlier``: incarnations before this one, only with ``whole``. Times
        are UTC; events from ``interval_end`` on are not looked at. ``limits``: how long is too long. ``closed``: the log is
        all there is; else it goes on behind the interval. ``tick_us``: how often to look at what waits, 0 = at every line;
        by default as often as the limits need it.
        """
        self._head = head
        self._start_us, self._end_us = micros(interval_start), micros(interval_end)
        self._identity = result_rows.identity_of(head, interval_start)
        self._names = result_rows.names_of(head.events)
        self._members = _members(head.events)
        self._profile, self._fold, self._not_judged = self._rules()
        self._audit = AuditFold(
            head,
            interval_start=interval_start,
            earlier=earlier,
            whole=whole,
            flows=True,
            profile=self._profile,
        )
        self._limits, self._closed = limits, closed
        self._told = Rows(head, interval_start)
        self._holds: list[Hold] = []  # that have ended
        # What the rules say of an entry that was gone over: nothing where they are not replayed.
        single = self._audit.history.single_active
        by_rules = self._fold is not None and not single
        self._skipped = Skipped(certain=single or by_rules, by_rules=by_rules)
        self._first_line: tuple[int, int] | None = None  # its seq and time
        self._sent_us = _NOTHING  # per consumer of the history: when it was sent something last, -1 = never
        if self._fold is not None:
            self._fold.holds = holds_for(limits, inferred=True, start_us=self._start_us, tick_us=tick_us)
        self._entries = 0  # in the window
        self._seen = 0  # consumers whose arrival the rules know
        self._begun = False  # something was sent
        self._pending_messages: dict[int, int] = {}  # by consumer, of what a checkpoint names as pending
        self._counted = dict.fromkeys(("events", "entries_stored", "entries_sent"), 0)
        self._judgements = np.zeros(len(JUDGEMENTS), np.int64)  # of the interval
        self._last: tuple[int, int | None] = (0, None)  # seq and time of the last event

    def feed(
        self, messages: pa.Table, events: pa.Table, ahead: pa.Table | None = None
    ) -> dict[str, pa.Table]:
        """Take the next piece; returns the rows of ``deliveries``, ``divergences`` and ``anomalies`` that it proves.

        Anomalies without divergences: these are told when all else is known (``audit.told``).

        ``ahead``: the events that follow, as far as they may race with the last ones of this piece.
        """
        self._count_stored(messages)
        audit = self._audit.feed(messages, events)
        self._count(events)
        self._skipped.look(self._audit.history, self._audit.scan, self._audit.dropped)
        deliveries = audit.deliveries
        findings = []
        if self._fold is not None:
            judgement = self._of_log(self._fold.feed(self._stretch(ahead)))
            inside = np.asarray(pc.greater_equal(deliveries["t_us"], self._start_us))
            self._judgements += np.bincount(judgement.judgement[inside], minlength=len(JUDGEMENTS))
            expected = pa.array(
                judgement.expected, mask=(judgement.expected < 0) | (judgement.judgement == NOT_JUDGED)
            )
            texts = pa.array(JUDGEMENTS).take(pa.array(judgement.judgement))
            deliveries = result_rows.judged(deliveries, texts, expected)
            if self._fold.holds is not None:
                self._holds += self._fold.holds.take()
            findings = [found for found in judgement.findings if self._start_us <= found.t_us < self._end_us]
        deliveries = result_rows.within(deliveries, self._start_us)
        self._counted["entries_sent"] += deliveries.num_rows
        holes = filled_holes(
            self._audit.scan,
            self._audit.history,
            max(self._audit.new_ops.start, self._audit.history.first_op_of_last_log),
            self._limits,
            gap=self._audit.has_gaps,
        )
        return {
            "deliveries": deliveries,
            "divergences": self._rows("divergences", [result_rows.difference(one) for one in findings]),
            "anomalies": pa.concat_tables(
                [
                    result_rows.within(audit.anomalies, self._start_us),
                    result_rows.within(self._told.anomalies(holes), self._start_us),
                ]
            ),
        }

    def pass_over(self, messages: pa.Table) -> None:
        """Count entries that no event names."""
        self._count_stored(messages)

    def finish(self, told: list[Hold] | None = None) -> dict[str, pa.Table]:
        """What the log as a whole says: rows of ``ownership``, ``blocked``, ``dispatcher_state``, and more ``anomalies``.

        ``told``: gets every wait that is told one by one.
        """
        holds = self._waits()
        if told is not None:
            told.extend(holds)
        judged = self._fold is not None and self._fold.not_judged is None
        end = End(
            self._last[0],
            self._as_of_us(),
            self._closed,
            last_sent_us=self._last_sent_us(),
            gap=self._audit.in_doubt,
        )
        waited: list[Hold] = []
        if self._first_line is not None:
            waited += self._skipped.holds(*self._first_line, self._as_of_us())
        found = stalls(waited, self._names, self._limits, end)
        found += never_delivered(waited, self._names, self._limits, end)
        if judged:
            others = but_for(holds, found)
            found += stalls(others, self._names, self._limits, end)
            found += never_delivered(others, self._names, self._limits, end)
        found += ack_holes(self._audit.scan, self._audit.history, self._limits, end)
        anomalies = self._told.anomalies(found)
        return {
            "ownership": self._ownership(),
            "blocked": self._rows("blocked", [*result_rows.blocked(holds, self._names)] if judged else []),
            "dispatcher_state": self._rows("dispatcher_state", [self._state()]),
            "anomalies": result_rows.within(anomalies, self._start_us),
        }

    # -----------------------------------------------------------------------------------------------------------------

    def _waits(self) -> list[Hold]:
        """Waits that ended, then those that go on, and what waited too shortly to be told."""
        if self._fold is None:
            return []
        return self._holds + self._fold.waits(self._last[0], self._as_of_us())

    def _as_of_us(self) -> int:
        """When what waits is judged: the end of a closed log, else of the interval."""
        last_us = self._last[1] or self._start_us
        return last_us if self._closed else max(self._end_us - 1, last_us)

    def _last_sent_us(self) -> dict[int, int]:
        """When each consumer was sent something last, by its number."""
        numbers = [consumer.number for consumer in self._audit.history.consumers]
        return {number: int(t_us) for number, t_us in zip(numbers, self._sent_us, strict=False) if t_us >= 0}

    def _ownership(self) -> pa.Table:
        spans = OwnershipSpans() if self._fold is None else self._fold.owned
        return result_rows.ownership(spans, self._identity, self._names, self._start_us)

    def _rules(self) -> tuple[Profile | None, UserLevelFold | None, str | None]:
        """Profile, fold, and why there is none."""
        try:
            profile = profile_of(self._head)
        except ProfileError as error:
            return None, None, str(error)
        try:
            return profile, fold_of(profile, self._head.topic, subscription_type(self._head)), None
        except UnsupportedRuleError as error:
            return profile, None, str(error)

    def _stretch(self, ahead: pa.Table | None) -> Stretch:
        """The operations of the last feed, with what is new in the window."""
        history, taken = self._audit.history, self._audit.operations
        assert taken is not None
        # Of a whole log, earlier loads of the topic come first; of any, the state that a checkpoint begins it with.
        before = self._audit.new_ops.start
        first = max(history.first_op_of_state - before, 0)
        of_log = max(history.first_op_of_last_log - before, 0)
        new = slice(self._entries - self._audit.dropped, len(history))
        self._entries = len(history)
        published, known = history.publish_time_ms
        settled = _NOTHING
        sent = taken.code[first:] == SENT
        if not self._begun and (sent.any() or of_log > first):
            settled = self._settled_before(taken.code, taken.start, taken.ordinals, of_log)
            self._begun = True
        if of_log > first:
            numbers = {at: one.number for at, one in enumerate(history.consumers)}
            self._pending_messages = _messages_sent(
                taken, slice(first, of_log), history.num_messages, numbers
            )
        members = {
            at: self._members.get(consumer.number, Member(consumer.number, consumer.name or ""))
            for at, consumer in enumerate(history.consumers[self._seen :], self._seen)
            if consumer.number in self._members
        }
        self._seen = len(history.consumers)
        self._sent_us = np.append(self._sent_us, np.full(self._seen - len(self._sent_us), -1))
        sent = taken.code[of_log:] == SENT
        np.maximum.at(self._sent_us, taken.consumer[of_log:][sent], taken.t_us[of_log:][sent])
        return Stretch(
            dropped=self._audit.dropped,
            hashes=history.entry_hash[new].copy(),
            num_messages=history.num_messages[new].astype(np.int64),
            stored_us=np.where(known[new], published[new] * 1000, 0),
            settled=settled,
            op_code=taken.code[first:],
            op_consumer=taken.consumer[first:],
            op_value=taken.value[first:],
            op_seq=taken.seq[first:],
            op_t_us=taken.t_us[first:],
            op_start=taken.start[first:],
            op_ordinals=taken.ordinals,
            members=members,
            ahead=_near(ahead, int(taken.t_us[-1]) if len(taken.t_us) else 0),
            window=EntriesOf(history, self._audit.scan),
            seeded=history.seed is not None and not history.seed.of_a_new_dispatcher,
            seed=_seed_operations(history.seed, of_log - first)
            if history.seed is not None and before == 0
            else None,
        )

    def _of_log(self, judged: Judged) -> Judged:
        """Without what a checkpoint says was sent before the log begins."""
        history, taken = self._audit.history, self._audit.operations
        assert taken is not None
        if history.seed is None or self._audit.new_ops.start > 0:
            return judged
        of_seed = slice(history.first_op_of_state, history.first_op_of_last_log)
        skip = int(np.diff(taken.start)[of_seed][taken.code[of_seed] == SENT].sum())
        findings = [one for one in judged.findings if one.seq != history.seed.seq]
        return Judged(judged.judgement[skip:], judged.expected[skip:], findings)

    def _settled_before(self, code: Any, start: Ints, ordinals: Any, first: int) -> Ints:
        """Entries that are nobody's business any more when the first one is sent: before the subscription, or acked.

        A subscription may begin anywhere in the topic; nothing before what is sent first was for it, but for what was
        stored when somebody had joined already. What an earlier incarnation acknowledged stays so.
        """
        lengths = np.diff(start)
        seed = self._audit.history.seed
        if seed is not None and seed.checkpoint.mark_delete is not None:
            acked = (code == ACK) & (np.arange(len(code)) < first)
            return np.unique(ordinals[np.repeat(acked, lengths)]).astype(np.int64)
        of_sent = np.repeat(code == SENT, lengths)
        of_sent[: start[first]] = False
        before = np.repeat((code == ACK) & (np.arange(len(code)) < first), lengths)
        lowest = int(ordinals[of_sent].min()) if of_sent.any() else 0
        past = np.flatnonzero(~for_subscription(self._audit.history, self._audit.scan, lowest))
        return np.union1d(past, ordinals[before]).astype(np.int64)

    def _count_stored(self, messages: pa.Table) -> None:
        time_ms = messages["publish_time_ms"]
        inside = pc.and_(
            pc.greater_equal(time_ms, self._start_us // 1000), pc.less(time_ms, self._end_us // 1000)
        )
        self._counted["entries_stored"] += int(pc.sum(inside).as_py() or 0)

    def _count(self, events: pa.Table) -> None:
        if not events.num_rows:
            return
        inside = pc.and_(
            pc.greater_equal(events["t_us"], self._start_us), pc.less(events["t_us"], self._end_us)
        )
        self._counted["events"] += int(pc.sum(inside).as_py() or 0)
        self._last = events["seq"][-1].as_py(), events["t_us"][-1].as_py()
        if self._first_line is None:
            self._first_line = events["seq"][0].as_py(), events["t_us"][0].as_py() or 0

    def _state(self) -> dict[str, Any]:
        fold, profile = self._fold, self._profile
        reason = self._not_judged if fold is None else fold.not_judged
        exact, uncertain, divergent = (int(count) for count in self._judgements[:NOT_JUDGED])
        mark_delete, read_position, state_json = self._positions()
        return {
            "subscription_type": self._head.header.get("subscription_type"),
            "broker_version": self._head.header.get("broker_version"),
            "profile": profile.name if profile else None,
            "last_seq": self._last[0],
            "last_t_us": self._last[1],
            **self._counted,
            "rounds": 0,  # unseen
            "decisions": exact + uncertain + divergent,
            "exact": exact,
            "uncertain": uncertain,
            "divergent": divergent,
            "not_judged_reason": reason,
            "mark_delete": mark_delete,
            "read_position": read_position,
            "core_version": CORE_VERSION,
            "settings_digest": profile.digest if profile else "",
            "state_json": state_json,
        }

    def _positions(self) -> tuple[str | None, str | None, str | None]:
        """Mark-delete, read position and statistics at the end of the fold."""
        if self._fold is None or not self._begun:
            return None, None, None
        history, scalars = self._audit.history, self._fold.state.s
        shown = subscription_stats(
            self._fold.core, EntriesOf(history, self._audit.scan), clients_of(self._head), ranges=False
        )
        if history.seed is not None:
            shown = determined(shown, history.seed, self._pending_messages)
        mark_delete, read_position = int(scalars[st_.MARK_DELETE]), int(scalars[st_.READ_POSITION])
        return (
            history.position(mark_delete) if mark_delete >= 0 else None,
            history.position(read_position) if read_position < len(history) else None,
            json.dumps(shown, sort_keys=True),
        )

    def _rows(self, table: str, found: Sequence[Mapping[str, Any]]) -> pa.Table:
        return result_rows.rows(tables.REPLAY_TABLES[table], self._identity, found)


class EntriesOf:
    """The entries of an audit's window, as statistics and waits ask for them."""

    def __init__(self, history: History, scan: Scan) -> None:
        self._history, self._scan = history, scan
        self.ledger_ids, self.entry_ids = history.ledger, history.entry

    def __len__(self) -> int:
        return len(self._history)

    def position(self, ordinal: int) -> str:
        """``"L:E"`` of an ordinal."""
        return str(self._history.position(ordinal)) if 0 <= ordinal < len(self) else "unknown"

    def key(self, ordinal: int) -> Key | None:
        """See ``audit.holds.Window``."""
        key = int(self._history.entry_key[ordinal])
        return None if key < 0 else (self._history.keys.text(key), bool(self._history.keys.base64[key]))

    def same_key(self, ordinal: int) -> npt.NDArray[np.intp]:
        """See ``audit.holds.Window``."""
        key = int(self._history.entry_key[ordinal])
        return np.array([ordinal]) if key < 0 else np.flatnonzero(self._history.entry_key == key)

    def times_sent(self) -> npt.NDArray[np.int32]:
        """See ``audit.holds.Window``."""
        return self._scan.times_sent


def _seed_operations(seed: Seed, count: int) -> SeedOperations | None:
    """What a checkpoint says beside its operations: where ranges end, where each consumer has one, if in several pieces."""
    if not count:
        return None
    consumers = seed.checkpoint.consumers or ()
    ends = {}
    for one in consumers:
        ranges = sorted(one.hash_ranges or ())
        if ranges and all(upper + 1 == lower for (_, upper), (lower, _) in pairwise(ranges)):
            ends[one.number] = ranges[-1][1]
    return SeedOperations(len(consumers), count, ends if len(ends) == len(consumers) else None)


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
    """What each consumer brought when it joined, by its number."""
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
                None if ranges is None else [(one["start"], one["end"]) for one in ranges],
                row["key_shared_mode"] or "AUTO_SPLIT",
                bool(row["key_shared_allow_out_of_order"]),
            ),
        )
    return members


def _near(ahead: pa.Table | None, last_t_us: int) -> Racing:
    """What follows and may race with the events up to ``last_t_us``."""
    if ahead is None or not ahead.num_rows:
        return Racing.none()
    near = ahead.filter(pc.less_equal(ahead["t_us"], last_t_us + RACE_US))
    lines = Lines.of(near, flows=True)
    return Racing(lines.code, lines.number, lines.seq, lines.t_us)
