"""Everything that one log says, in one call: deliveries, findings, ownership, stalls, balance and waits.

What command line, ``explain``, ``what-if`` and ``report`` share. It is ``replay`` over the whole log: the same tables, with
the same columns, that the pipeline writes for an interval, and the two tables that the pipeline aggregates with Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core import tables
from dispatch_core.audit.balance import ActiveTime, failover_imbalances, imbalances
from dispatch_core.audit.deliveries.rows import Rows
from dispatch_core.audit.deliveries.whole_log import audit_log
from dispatch_core.audit.deliveries.window import SINGLE_ACTIVE
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.audit.totals import balance_table, waits_table
from dispatch_core.audit.waits.tracker import Hold
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.recording.resumed_parts import parts_of
from dispatch_core.replay import result_rows
from dispatch_core.replay.replay_log import replay
from dispatch_core.times import from_micros
from dispatch_core.verify import divergence_findings
from dispatch_core.verify.trace.runner import is_trace

#: Comparing a trace decision by decision takes a second per 1,400 sendings; longer traces are judged as a user-level log
#: is: by who was sent each entry.
LARGEST_TRACE: Final = 20_000

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_NO_EVENT: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class WholeAudit:
    """The result tables of one log (schemas of ``dispatch_core.tables``).

    ``holds``: the waits behind ``blocked`` that are told one by one. ``doubted``: decisions that differ from the rules
    behind lines that are missing or cannot be; they are no findings.

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
    holds: tuple[Hold, ...] = field(repr=False)
    doubted: int
    level: str
    shortened: bool


def audit_whole(
    log: DispatcherLog,
    *,
    earlier: Sequence[DispatcherLog] = (),
    limits: Limits = DEFAULT_LIMITS,
    as_of_us: int | None = None,
    closed: bool = True,
    rules: bool = True,
    largest_trace: int = LARGEST_TRACE,
    tick_us: int | None = None,
) -> WholeAudit:
    """Audit one incarnation of one dispatcher over its whole log.

    Args:
        log: the incarnation to judge, of level E or a trace.
        earlier: the incarnations of the same dispatcher before it, oldest first.
        limits: how long is too long.
        as_of_us: judge only what happened up to this time; ``None`` = all of it.
        closed: the log is all there is; nothing that still waits at its end will ever be sent.
        rules: replay the broker's rules. Without, only order, duplicates and the log itself are looked at.
        largest_trace: sendings above which a trace is judged as a user-level log.
        tick_us: how often to look at what waits, 0 = at every line; by default as often as the limits need it.

    Never raises for what a log may hold: where the rules cannot be replayed, ``state`` says why.
    """
    if as_of_us is not None:
        log = replace(log, events=log.events.filter(pc.less_equal(log.events["t_us"], as_of_us)))
    start, end = _span(log.events)
    found = {name: schema.empty_table() for name, schema in tables.REPLAY_TABLES.items()}
    trace = is_trace(log)
    holds: list[Hold] = []
    doubted = 0
    shortened = rules and trace and _sendings(log.events) > largest_trace
    if not rules:
        parts = [log] if trace else parts_of(log)
        audits = [
            audit_log(part, interval_start=start, earlier=() if number else earlier)
            for number, part in enumerate(parts)
        ]
        found |= {
            "deliveries": pa.concat_tables([one.deliveries for one in audits]),
            "anomalies": pa.concat_tables([one.anomalies for one in audits]),
        }
    else:
        found |= replay(
            log,
            interval_start=start,
            interval_end=end,
            earlier=earlier,
            limits=limits,
            closed=closed,
            user_level=shortened,
            holds=holds,
            tick_us=tick_us,
        )
        doubted = divergence_findings.doubted(found["divergences"], found["anomalies"])
    balance = _balance(log, found, start)
    uneven = imbalances(found["deliveries"], found["ownership"], balance, limits)
    found["anomalies"] = pa.concat_tables([found["anomalies"], Rows(log, start).anomalies(uneven)])
    identity = result_rows.identity_of(log, start)
    return WholeAudit(
        deliveries=found["deliveries"],
        anomalies=found["anomalies"],
        ownership=found["ownership"],
        blocked=found["blocked"],
        divergences=found["divergences"],
        state=found["dispatcher_state"],
        balance=balance,
        waits=waits_table(found["deliveries"], log.messages, found["blocked"], identity),
        holds=tuple(holds),
        doubted=doubted,
        level=("T" if trace and not shortened else "E") if rules else "",
        shortened=shortened,
    )


def across(
    audits: Iterable[tuple[DispatcherLog, WholeAudit]], limits: Limits = DEFAULT_LIMITS
) -> list[dict[str, Any]]:
    """Findings over many topics of a subscription (``failover_imbalances``): rows of ``anomalies``."""
    times: list[ActiveTime] = []
    for log, audit in audits:
        if subscription_type(log) == "Failover":
            times += active_times(log, audit.ownership)
    return failover_imbalances(times, limits)


def active_times(log: DispatcherLog, ownership: pa.Table) -> list[ActiveTime]:
    """Compute for how long each consumer of a Failover topic was active; ``ownership`` as ``audit_whole`` gives it."""
    last_us = int(pc.max(log.events["t_us"]).as_py() or 0)
    active_us = dict.fromkeys(result_rows.names_of(log.events).values(), 0)
    for span in ownership.select(["from_t_us", "until_t_us", "consumer_name"]).to_pylist():
        until_us = last_us if span["until_t_us"] is None else span["until_t_us"]
        name = span["consumer_name"]  # in a log that gives a number twice, one that is nobody's any more
        active_us[name] = active_us.get(name, 0) + max(until_us - span["from_t_us"], 0)
    where = log.cluster, log.topic, log.subscription
    return [ActiveTime(*where, name or "", us) for name, us in active_us.items()]


def _balance(log: DispatcherLog, found: dict[str, pa.Table], start: datetime) -> pa.Table:
    return balance_table(
        found["deliveries"],
        found["ownership"],
        result_rows.identity_of(log, start),
        key_shared=subscription_type(log) not in (*SINGLE_ACTIVE, "Shared"),
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


def _sendings(events: pa.Table) -> int:
    sent = events.filter(pc.equal(events["kind"], "sent"))["positions"]
    return int(pc.sum(pc.list_value_length(sent)).as_py() or 0)
