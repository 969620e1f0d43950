"""Replay one dispatcher's log for one interval: the fold, the comparison and the audit, as result tables.

The state at the start of an interval is the fold of everything before it, so the whole log up to the interval's end is
folded and only rows of the interval are kept: a row belongs to the interval of the event that proves it. The result
depends on the log and the interval alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core import CORE_VERSION, tables
from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.audit.deliveries.rows import Rows
from dispatch_core.audit.deliveries.whole_log import all_messages
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.audit.waits.ack_holes import ack_holes, filled_holes
from dispatch_core.audit.waits.findings import LEFT_WAITING, End, but_for, never_delivered, stalls
from dispatch_core.audit.waits.never_sent import Skipped
from dispatch_core.audit.waits.tracker import Hold
from dispatch_core.broker import state as st_
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.resumed_parts import parts_of
from dispatch_core.replay import result_rows
from dispatch_core.replay.assembler import UserLevelReplay
from dispatch_core.replay.divergence_anomalies import with_divergences
from dispatch_core.replay.join_parts import joined
from dispatch_core.replay.ownership_history import History, ownership_alone
from dispatch_core.replay.statistics import clients_of, subscription_stats
from dispatch_core.replay.traced_waits import TracedWaits
from dispatch_core.times import micros
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.key_shared import KeySharedVerifier
from dispatch_core.verify.trace.runner import Verification, Verifier, is_trace, verify

_COUNTS = ("decisions", "exact", "uncertain", "divergent")


@dataclass(slots=True)
class _Watch:
    """Collects what the result tables need while the log is folded."""

    start_us: int
    last_seq_before: int | None  # of the interval; the counts up to it belong to earlier ones
    waits: TracedWaits
    history: History = field(default_factory=History)
    driver: Verifier | None = None
    before: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*_COUNTS, "rounds"), 0))

    def __call__(self, line: Line, driver: Verifier) -> None:
        self.driver = driver
        if line.seq == self.last_seq_before and line.t_us < self.start_us:
            self.before = {name: driver.tally.total(name) for name in _COUNTS} | {
                "rounds": driver.tally.rounds
            }
        if isinstance(driver, KeySharedVerifier):
            self.history.key_shared(line, driver.core)
        else:
            self.history.single_active(line, driver.core)
        self.waits.after(line, driver)


def replay(
    log: DispatcherLog,
    *,
    interval_start: datetime,
    interval_end: datetime,
    earlier: Sequence[DispatcherLog] = (),
    limits: Limits = DEFAULT_LIMITS,
    closed: bool = False,
    user_level: bool = False,
    holds: list[Hold] | None = None,
    tick_us: int | None = None,
) -> dict[str, pa.Table]:
    """Fold ``log`` up to ``interval_end``; return the tables of ``tables.REPLAY_TABLES`` for [start, end), UTC.

    Args:
        log: one incarnation of one dispatcher.
        interval_start: a row belongs to the interval of the event that proves it.
        interval_end: what waits is judged as of then.
        earlier: the incarnations of the same dispatcher before this one, oldest first; what they sent and this one sends
            again is ``redelivered`` with cause ``topic_reload``.
        limits: how long is too long.
        closed: the log is all there is: what waits at its end will never be sent.
        user_level: judge a trace as the user-level log that it contains.
        holds: gets every wait that is told one by one.
        tick_us: how often to look at what waits, 0 = at every line; by default as often as the limits need it.

    A log that goes on from a checkpoint behind lost lines is judged in parts (``resumed``).

    Never raises for what a log may hold: a log that cannot be judged gets a ``dispatcher_state`` row that says why, and
    deliveries and anomalies all the same.
    """
    end_us = micros(interval_end)
    log = replace(log, events=log.events.filter(pc.less(log.events["t_us"], end_us)))
    asked = _Asked(interval_start, interval_end, tuple(earlier), limits, closed, tick_us)
    parts = [log] if is_trace(log) else parts_of(log)
    if len(parts) > 1:
        found_of = [
            replay(
                part,
                interval_start=interval_start,
                interval_end=interval_end,
                earlier=() if number else earlier,
                limits=limits,
                closed=closed or number < len(parts) - 1,
                holds=holds,
                tick_us=tick_us,
            )
            for number, part in enumerate(parts)
        ]
        return joined(parts, found_of, micros(interval_start))
    waited: list[Hold] = []
    if user_level or not is_trace(log):
        found = by_sending = _of_user_level(log, asked, waited)
    else:
        found = by_sending = _of_trace(log, asked, waited)
        if any(found["dispatcher_state"]["divergent"].to_pylist()):
            waited_then: list[Hold] = []
            by_sending = _of_user_level(log, asked, waited_then)
            if by_sending["dispatcher_state"]["not_judged_reason"].null_count:
                waited, found = waited_then, _with_waits(found, by_sending)
    if holds is not None:
        holds.extend(waited)
    return found | {"anomalies": with_divergences(log, interval_start, found, by_sending)}


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of ``replay`` that hold on every level."""

    interval_start: datetime
    interval_end: datetime
    earlier: tuple[DispatcherLog, ...]
    limits: Limits
    closed: bool
    tick_us: int | None


def _with_waits(found: dict[str, pa.Table], by_sending: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The tables of a trace whose decisions differ from the rules, with what waited by what was sent.

    What follows the rules sent what the broker left out, so that to them nothing waits.
    """
    waits = pa.array(LEFT_WAITING)
    ours, others = (pc.is_in(one["anomalies"]["kind"], value_set=waits) for one in (by_sending, found))
    anomalies = [found["anomalies"].filter(pc.invert(others)), by_sending["anomalies"].filter(ours)]
    return found | {"blocked": by_sending["blocked"], "anomalies": pa.concat_tables(anomalies)}


def _of_trace(log: DispatcherLog, asked: _Asked, holds: list[Hold]) -> dict[str, pa.Table]:
    """The tables of a trace, compared decision by decision, but for its divergences as findings."""
    interval_start, earlier, limits = asked.interval_start, asked.earlier, asked.limits
    start_us, end_us = micros(interval_start), micros(asked.interval_end)
    audited = AuditFold(log, interval_start=interval_start, earlier=earlier, whole=True)
    audit = audited.feed(all_messages([*earlier, log]), log.events)
    before = log.events.filter(pc.less(log.events["t_us"], start_us))["seq"]
    waits = TracedWaits(log, audited, limits, start_us=start_us, tick_us=asked.tick_us)
    watch = _Watch(start_us, before[-1].as_py() if len(before) else None, waits)
    # What the interval's end cuts through is judged with the interval in which it ends.
    verification = verify(log, watch=watch, before=waits.before, goes_on=True)
    if watch.driver is None and verification.profile is not None:
        watch.history.ownership = ownership_alone(log, verification.profile)
    names = result_rows.names_of(log.events)
    shared = result_rows.identity_of(log, interval_start)
    findings = [f for f in verification.tally.findings if start_us <= f.t_us < end_us]
    deliveries = _judged(result_rows.within(audit.deliveries, start_us), verification)
    waited, end = waits.finish(end_us, closed=asked.closed)
    holds.extend(waited)
    rows = {
        "blocked": result_rows.blocked(waited, names),
        "divergences": map(result_rows.difference, findings),
        "dispatcher_state": [_state(log, verification, watch, deliveries.num_rows, (start_us, end_us))],
    }
    found = {name: result_rows.rows(tables.REPLAY_TABLES[name], shared, rows[name]) for name in rows}
    found["ownership"] = result_rows.ownership(watch.history.ownership, shared, names, start_us)
    gone_over = _gone_over(log, audited, verification, end)
    left_out = never_delivered(gone_over, names, limits, end)
    others = but_for(waited, left_out)
    told = [
        *stalls([*others, *gone_over], names, limits, end),
        *left_out,
        *never_delivered(others, names, limits, end),
        *filled_holes(
            audited.scan, audited.history, audited.history.first_op_of_last_log, limits, gap=audited.has_gaps
        ),
        *ack_holes(audited.scan, audited.history, limits, end),
    ]
    found["anomalies"] = pa.concat_tables(
        [
            result_rows.within(audit.anomalies, start_us),
            result_rows.within(Rows(log, interval_start).anomalies(told), start_us),
        ]
    )
    return {"deliveries": deliveries, **found}


def _gone_over(log: DispatcherLog, audited: AuditFold, verification: Verification, end: End) -> list[Hold]:
    """What was left out where that is not for the rules of Key_Shared to say."""
    single = audited.history.single_active
    if not log.events.num_rows or (verification.not_judged is None and not single):
        return []
    skipped = Skipped(certain=single)
    skipped.look(audited.history, audited.scan, 0)
    return skipped.holds(log.events["seq"][0].as_py(), log.events["t_us"][0].as_py() or 0, end.as_of_us)


def _of_user_level(log: DispatcherLog, asked: _Asked, holds: list[Hold]) -> dict[str, pa.Table]:
    """The tables of a log without a trace, taken in one piece."""
    replay = UserLevelReplay(
        replace(log, messages=log.messages.slice(0, 0)),
        interval_start=asked.interval_start,
        interval_end=asked.interval_end,
        earlier=asked.earlier,
        whole=True,
        limits=asked.limits,
        closed=asked.closed,
        tick_us=asked.tick_us,
    )
    found = replay.feed(log.messages, log.events)
    told = replay.finish(holds)
    anomalies = pa.concat_tables([found["anomalies"], told["anomalies"]])
    empty = {name: schema.empty_table() for name, schema in tables.REPLAY_TABLES.items()}
    return empty | found | told | {"anomalies": anomalies}


def _judged(deliveries: pa.Table, verification: Verification) -> pa.Table:
    """Fill in how the comparison judged each delivery: by the ``sent`` line that carried it."""
    if verification.not_judged is not None:
        return deliveries
    seqs = np.asarray(deliveries["seq"].combine_chunks())
    judgement = np.full(deliveries.num_rows, "exact", dtype=object)
    for status in ("uncertain", "divergent"):
        marked = [
            f.seq
            for f in verification.tally.findings
            if f.status == status and f.decision_class == "dispatch"
        ]
        judgement[np.isin(seqs, marked)] = status
    expected = pc.if_else(pa.array(judgement == "exact"), deliveries["consumer"].combine_chunks(), None)
    return result_rows.judged(deliveries, judgement, expected.cast(pa.int64()))


def _state(
    log: DispatcherLog, verification: Verification, watch: _Watch, sent: int, span_us: tuple[int, int]
) -> dict[str, Any]:
    tally, profile = verification.tally, verification.profile
    in_span = pc.and_(
        pc.greater_equal(log.events["t_us"], span_us[0]), pc.less(log.events["t_us"], span_us[1])
    )
    stored_ms = log.messages["publish_time_ms"]
    stored = pc.sum(
        pc.and_(pc.greater_equal(stored_ms, span_us[0] // 1000), pc.less(stored_ms, span_us[1] // 1000))
    ).as_py()
    last = log.events.slice(max(log.events.num_rows - 1, 0))
    mark_delete, read_position, state_json = _positions(log, watch)
    return {
        "subscription_type": log.header.get("subscription_type"),
        "broker_version": log.header.get("broker_version"),
        "profile": profile.name if profile else None,
        "last_seq": last["seq"][0].as_py() if last.num_rows else 0,
        "last_t_us": last["t_us"][0].as_py() if last.num_rows else None,
        "events": int(pc.sum(in_span).as_py() or 0),
        "entries_stored": int(stored or 0),
        "entries_sent": sent,
        "rounds": tally.rounds - watch.before["rounds"],
        **{name: tally.total(name) - watch.before[name] for name in _COUNTS},
        "not_judged_reason": verification.not_judged,
        "mark_delete": mark_delete,
        "read_position": read_position,
        "core_version": CORE_VERSION,
        "settings_digest": profile.digest if profile else "",
        "state_json": state_json,
    }


def _positions(log: DispatcherLog, watch: _Watch) -> tuple[str | None, str | None, str | None]:
    """Mark-delete, read position and statistics of the state at the end of the fold."""
    driver = watch.driver
    if driver is None:
        return None, None, None
    entries = Entries(log.messages)
    # Everybody's hash ranges are a table of their own.
    shown = subscription_stats(driver.core, entries, clients_of(log), ranges=False)
    stats = json.dumps(shown, sort_keys=True)
    scalars = driver.core.state.s
    mark_delete, read_position = int(scalars[st_.MARK_DELETE]), int(scalars[st_.READ_POSITION])
    return (
        entries.position(mark_delete) if mark_delete >= 0 else None,
        entries.position(read_position) if read_position < len(entries) else None,
        stats,
    )
