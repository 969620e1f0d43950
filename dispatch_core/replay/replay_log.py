"""Replay one dispatcher's log for one interval: the fold, the comparison and the audit, as result tables.

The state at the start of an interval is the fold of everything before it, so the whole log up to the interval's end is
folded and only rows of the interval are kept: a row belongs to the interval of the event that proves it. The result
depends on the log and the interval alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core import tables
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.audit.waits.findings import LEFT_WAITING
from dispatch_core.audit.waits.tracker import Hold
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.resumed_parts import parts_of
from dispatch_core.replay.assembler import Replay
from dispatch_core.replay.divergence_anomalies import with_divergences
from dispatch_core.replay.join_parts import joined
from dispatch_core.times import micros
from dispatch_core.verify.trace.runner import is_trace


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
    trace = is_trace(log) and not user_level
    found = by_sending = _in_one_batch(log, asked, waited, trace=trace)
    if trace and any(found["dispatcher_state"]["divergent"].to_pylist()):
        waited_then: list[Hold] = []
        by_sending = _in_one_batch(log, asked, waited_then)
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


def _in_one_batch(
    log: DispatcherLog, asked: _Asked, reported_waits: list[Hold], *, trace: bool = False
) -> dict[str, pa.Table]:
    """Return the tables of a log, but for its divergences as findings. ``trace``: compare every decision."""
    replay = Replay(
        log if trace else replace(log, messages=log.messages.slice(0, 0)),
        interval_start=asked.interval_start,
        interval_end=asked.interval_end,
        earlier=asked.earlier,
        whole=True,
        trace=trace,
        limits=asked.limits,
        closed=asked.closed,
        tick_us=asked.tick_us,
    )
    batch = replay.feed(log.messages, log.events)
    rest = replay.finish(reported_waits)
    anomalies = pa.concat_tables([batch["anomalies"], rest["anomalies"]])
    empty = {name: schema.empty_table() for name, schema in tables.REPLAY_TABLES.items()}
    return empty | batch | rest | {"anomalies": anomalies}
