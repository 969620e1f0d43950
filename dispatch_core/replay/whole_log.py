"""Audit one log as a whole: deliveries, findings, ownership, waits and balance in one call.

The command line, ``explain``, ``what_if`` and ``report`` share it. It is ``replay`` over the whole log, and gives the tables
that the pipeline writes for an interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core import tables
from dispatch_core.audit.active_topics import ACTIVE_TIMES, CONNECTED, active_times, failover_imbalances
from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.catalogue import BY_BEHAVIOUR, BY_LINES, BY_MOVE
from dispatch_core.audit.deliveries.earlier_loads import EarlierLoads
from dispatch_core.audit.deliveries.findings import CURSOR_MAY_HAVE_MOVED
from dispatch_core.audit.deliveries.whole_log import audit_log
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.audit.promises.counts import Counts
from dispatch_core.audit.unsent_entries import unsent_of
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.recording.checkpoint import joins
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.recording.resumed_parts import parts_of
from dispatch_core.replay.continued_fold import ContinuedFold
from dispatch_core.replay.interval_totals import with_totals
from dispatch_core.replay.replay_log import line_before, replay
from dispatch_core.times import from_micros
from dispatch_core.verify import divergence_findings
from dispatch_core.verify.trace.runner import is_trace

#: Comparing a trace decision by decision takes a second per 1,400 deliveries; longer traces are judged as logs without a
#: trace: by the consumer that each entry was sent to.
LARGEST_TRACE: Final = 20_000

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_ALWAYS_US: Final = (-(1 << 62), 1 << 62)
_NO_EVENT: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class WholeAudit:
    """Result tables of one log (schemas of ``dispatch_core.tables``).

    ``sampled_waits``: the waits behind ``blocked`` that are reported one by one. ``doubted``: decisions that differ from the
    rules and are no findings, because of what may explain them, ``doubted_by``.

    ``level``: "T" if every recorded decision was compared, "E" if deliveries were (docs/logs-without-trace.md), "" if the
    rules were not asked for. ``shortened``: the log is a trace, and too long for "T".
    """

    deliveries: pa.Table = field(repr=False)
    anomalies: pa.Table = field(repr=False)
    ownership: pa.Table = field(repr=False)
    blocked: pa.Table = field(repr=False)
    divergences: pa.Table = field(repr=False)
    state: pa.Table = field(repr=False)
    balance: pa.Table = field(repr=False)
    waits: pa.Table = field(repr=False)
    sampled_waits: tuple[SampledWait, ...] = field(repr=False)
    doubted: int
    doubted_by: tuple[str, ...]
    level: str
    shortened: bool


def audit_whole(
    log: DispatcherLog,
    *,
    earlier: Sequence[DispatcherLog] = (),
    fold: ContinuedFold | None = None,
    limits: Limits = DEFAULT_LIMITS,
    from_us: int | None = None,
    as_of_us: int | None = None,
    closed: bool = True,
    rules: bool = True,
    last: bool = True,
    largest_trace: int = LARGEST_TRACE,
    tick_us: int | None = None,
) -> WholeAudit:
    """Audit one incarnation of one dispatcher over its whole log.

    Args:
        log: the incarnation to judge, of level E or a trace.
        earlier: the incarnations of the same dispatcher before it, oldest first.
        fold: the fold of ``earlier``, see ``replay``; not with ``as_of_us``.
        limits: how long is too long.
        from_us: judge only what happened from this time on; lines before it count as history. ``None`` = all of it.
        as_of_us: judge only what happened up to this time, as of then if the log goes on; ``None`` = all of it, as of the
            last line.
        closed: the log is all there is; nothing that still waits at its end will ever be sent. Otherwise what waits there
            for less than the limits is not finished.
        rules: replay the broker's rules. Without, only order, duplicates and the log itself are looked at.
        last: no incarnation follows: entries that none of them has sent are counted.
        largest_trace: deliveries above which a trace is judged as the log without a trace that it contains.
        tick_us: how often to look at what waits, 0 = at every line; by default as often as the limits need it.

    Never raises for what a log may hold: where the rules cannot be replayed, ``state`` says why.
    """
    goes_on = False
    if as_of_us is not None:
        until = pc.less_equal(log.events["t_us"], as_of_us)
        goes_on = not pc.all(until, min_count=0).as_py()
        log = replace(log, events=log.events.filter(until), end_lost=log.end_lost and not goes_on)
    start, end = _span(log.events)
    if as_of_us is not None and goes_on:
        end = _moment(as_of_us + 1)
    if from_us is not None:
        start = max(start, _moment(from_us))
    trace = is_trace(log)
    waits: list[SampledWait] = []
    doubted, doubted_by = 0, tuple[str, ...]()
    shortened = rules and trace and _deliveries(log.events) > largest_trace
    if rules:
        found = replay(
            log,
            interval_start=start,
            interval_end=end,
            earlier=earlier,
            fold=fold,
            limits=limits,
            closed=closed,
            last=last,
            without_trace=shortened,
            reported_waits=waits,
            tick_us=tick_us,
        )
        doubted, doubted_by = _doubted(found, Assumptions.of(log, limits.assume_absent))
    else:
        found = _without_rules(log, start, earlier, limits, last=last)
    return WholeAudit(
        deliveries=found["deliveries"],
        anomalies=found["anomalies"],
        ownership=found["ownership"],
        blocked=found["blocked"],
        divergences=found["divergences"],
        state=found["dispatcher_state"],
        balance=found["balance"],
        waits=found["waits"],
        sampled_waits=tuple(waits),
        doubted=doubted,
        doubted_by=doubted_by,
        level=("T" if trace and not shortened else "E") if rules else "",
        shortened=shortened,
    )


def _doubted(found: Mapping[str, pa.Table], assumptions: Assumptions) -> tuple[int, tuple[str, ...]]:
    """Count the decisions that differ from the rules and prove nothing, and say what may explain them."""
    count = divergence_findings.doubted(found["divergences"], found["anomalies"])
    because = [BY_LINES] if count else []
    divergent = found["dispatcher_state"]["divergent"][0].as_py()
    if CURSOR_MAY_HAVE_MOVED in found["anomalies"]["reason"].to_pylist():
        because.append(BY_MOVE)
    if assumptions.doubts("divergence", None):
        because.append(BY_BEHAVIOUR)
    if because and because != [BY_LINES]:
        count = divergent
    return count, tuple(because) if count else ()


def _without_rules(
    log: DispatcherLog,
    start: datetime,
    earlier: Sequence[DispatcherLog],
    limits: Limits,
    *,
    last: bool,
) -> dict[str, pa.Table]:
    """Return the tables of an audit of order, duplicates and the log itself."""
    parts = [log] if is_trace(log) else parts_of(log)
    audits = [
        audit_log(
            part,
            interval_start=start,
            earlier=() if number else EarlierLoads.of(earlier),
            last_line=line_before(parts, number),
        )
        for number, part in enumerate(parts)
    ]
    found = {name: schema.empty_table() for name, schema in tables.REPLAY_TABLES.items()}
    found |= {
        "deliveries": pa.concat_tables([audit.deliveries for audit in audits]),
        "anomalies": pa.concat_tables([audit.anomalies for audit in audits]),
    }
    never_delivered = unsent_of(log, earlier) if last else 0
    return with_totals(log, found, start, limits, never_delivered=never_delivered)


def add_to(counts: Counts, log: DispatcherLog, audit: WholeAudit) -> None:
    """Add the audit of a dispatcher's incarnation to the counts of its earlier ones."""
    counts.add_load(
        log.incarnation,
        deliveries=audit.deliveries,
        anomalies=audit.anomalies,
        state=audit.state,
        waits=audit.waits,
        balance=audit.balance,
        doubted=audit.doubted,
        doubted_by=audit.doubted_by,
    )


def across(
    audits: Iterable[tuple[DispatcherLog, WholeAudit]], limits: Limits = DEFAULT_LIMITS
) -> list[dict[str, Any]]:
    """Findings over many topics of a subscription (``failover_imbalances``): rows of ``anomalies``."""
    times = [
        active_times_of(log, audit.ownership) for log, audit in audits if subscription_type(log) == "Failover"
    ]
    return failover_imbalances(pa.concat_tables([ACTIVE_TIMES.empty_table(), *times]), limits)


def active_times_of(log: DispatcherLog, ownership: pa.Table) -> pa.Table:
    """Compute for how long each consumer of a Failover topic was active: rows of ``active_topics.ACTIVE_TIMES``.

    ``ownership`` is as ``audit_whole`` gives it.
    """
    topic = {"cluster": log.cluster, "topic": log.topic, "subscription": log.subscription}
    first_us = int(pc.min(log.events["t_us"]).as_py() or 0)
    removed = log.events.filter(pc.equal(log.events["kind"], "consumer_removed"))
    until = dict(zip(removed["consumer"].to_pylist(), removed["t_us"].to_pylist(), strict=True))
    connected = [
        {**topic, "consumer_name": row["name"] or "", "priority_level": row["priority_level"]}
        | {"from_t_us": row.get("t_us") or first_us, "until_t_us": until.get(row["consumer"])}
        for row in joins(log.events, ("consumer", "name", "priority_level", "t_us"))
    ]
    last = [{**topic, "last_t_us": int(pc.max(log.events["t_us"]).as_py() or 0)}]
    return active_times(
        ownership,
        pa.Table.from_pylist(connected, schema=CONNECTED),
        pa.Table.from_pylist(last),
        *_ALWAYS_US,
    )


def _span(events: pa.Table) -> tuple[datetime, datetime]:
    """From the first to just behind the last event, as far as there is a calendar for it."""
    times = events["t_us"]
    if times.null_count == len(times):
        return _NO_EVENT, _LAST
    ends = pc.min_max(times).as_py()
    return _moment(ends["min"]), _moment(ends["max"] + 1)


def _moment(t_us: int) -> datetime:
    try:
        return from_micros(t_us)
    except OverflowError:
        return _FIRST if t_us < 0 else _LAST


def _deliveries(events: pa.Table) -> int:
    sent = events.filter(pc.equal(events["kind"], "sent"))["positions"]
    return int(pc.sum(pc.list_value_length(sent)).as_py() or 0)
