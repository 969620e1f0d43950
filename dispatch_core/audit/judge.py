"""From the log of one dispatcher to its deliveries and its anomalies.

``audit_log`` is pure: the same log gives the same two tables, whatever ran before and wherever it runs. It needs the
message log and events of level E only; of a trace it uses ``rewind`` (Failover, Exclusive) and, to tell whether an ack
had been applied before a sending, ``pending_ack_removed`` and ``mark_delete``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core import hashing, profiles
from dispatch_core.audit import history as h
from dispatch_core.audit import kernel, log_quality
from dispatch_core.audit.findings import Finding, Findings
from dispatch_core.audit.history import History
from dispatch_core.errors import ProfileError
from dispatch_core.log_profile import profile_of
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.tables import ANOMALIES, DELIVERIES

_CAUSES: Final = {
    kernel.NACKED: "nack",
    kernel.NACKED_ALL: "nack",
    kernel.DISCONNECTED: "disconnect",
    kernel.ALL_LEFT: "all_left",
    kernel.RELOADED: "topic_reload",
    kernel.REWOUND: "rewind",
}


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found: ``deliveries`` (schema ``DELIVERIES``) and ``anomalies`` (schema ``ANOMALIES``)."""

    deliveries: pa.Table
    anomalies: pa.Table


def audit_log(
    log: DispatcherLog, *, interval_start: datetime, earlier: Sequence[DispatcherLog] = ()
) -> Audit:
    """Audit one incarnation of one dispatcher.

    Args:
        log: the incarnation to judge.
        interval_start: written into every row; must know its time zone.
        earlier: the incarnations of the same dispatcher before ``log``, oldest first. What they sent and this one sends
            again is ``redelivered`` with cause ``topic_reload``; without them it counts as sent for the first time.

    Returns:
        Deliveries in the order of the log, anomalies in the order of the events that prove them (then of kind, then of
        position). Deliveries are ``not_judged``: comparing them with the rules is the replay's part.
    """
    if interval_start.tzinfo is None:
        raise ValueError(f"interval_start {interval_start!r} has no time zone: give it in UTC")
    events, repeated = log_quality.without_repeated_rows(log.events)
    log = replace(log, events=events)
    gaps, about_log = log_quality.gaps(events, repeated)
    history = h.build([*earlier, log])
    about_log += log_quality.clock_steps(events)
    about_log += log_quality.unknown_consumers(events, log)
    about_log += log_quality.unknown_positions(history)
    state, number, ended, found = _scan(history)
    profile = _profile(log)
    hashes = _hashes(history, profile)
    first = int(np.searchsorted(state[:, 2], history.first_op_of_last_log))
    causes = _causes(ended)
    deliveries = _deliveries(
        log, history, interval_start, state[first:], number[first:], causes[first:], hashes
    )
    findings = Findings(log, history, profile, hashes, state, causes, gaps)
    rows = [findings.of_log(finding) for finding in about_log]
    rows += findings.of_deliveries(found[found[:, 0] >= first])
    return Audit(deliveries, _anomalies(log, interval_start, rows))


def _scan(
    history: History,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    lengths = np.diff(history.op_start)
    asking = history.op_code == h.REDELIVER
    per_ordinal = np.repeat(asking, lengths)
    operations = np.repeat(np.arange(len(lengths)), lengths)[per_ordinal]
    width = max(1, len(history.ledger))
    requests = history.op_consumer[operations].astype(np.int64) * width + history.op_ordinals[per_ordinal]
    order = np.argsort(requests, kind="stable")
    state, number, ended, found = kernel.scan(
        history.op_code,
        history.op_consumer,
        history.op_start,
        history.op_ordinals,
        history.entry_key,
        len(history.key_text),
        len(history.consumers),
        int(lengths[history.op_code == h.SENT].sum()),
        requests[order],
        operations[order].astype(np.int64),
        history.single_active,
        history.subscription_type != "Shared",
    )
    return state, number, ended, found


def _causes(ended: npt.NDArray[np.int8]) -> npt.NDArray[np.object_]:
    """Why each delivery repeats an earlier one; ``None`` for first deliveries and for repeats nothing explains."""
    causes = np.full(len(ended), None, dtype=object)
    for code, cause in _CAUSES.items():
        causes[ended == code] = cause
    return causes


def _profile(log: DispatcherLog) -> profiles.Profile | None:
    """The rules in force, or ``None`` when the header does not say enough; the audit then goes without hashes."""
    try:
        return profile_of(log)
    except ProfileError:
        # Replay and verdict report the profile; what was sent to whom can be judged without it.
        return None


def _hashes(history: History, profile: profiles.Profile | None) -> npt.NDArray[np.int64] | None:
    """Sticky key hash of every row of the message log, ``None`` where dispatch does not hash."""
    if profile is None or history.subscription_type != "Key_Shared":
        return None
    return profile.hash_space.sticky_array(hashing.entry_h31(history.messages, fallback=profile.fallback_key))


def _deliveries(
    log: DispatcherLog,
    history: History,
    interval_start: datetime,
    state: npt.NDArray[np.int32],
    number: npt.NDArray[np.int32],
    causes: npt.NDArray[np.object_],
    hashes: npt.NDArray[np.int64] | None,
) -> pa.Table:
    count = len(number)
    ordinal, consumer, op = state[:, 0], state[:, 1], state[:, 2]
    row = history.entry_row[ordinal]
    stored = pa.array(row, mask=row < 0)
    message = history.messages.select(["num_messages", "size_bytes", "publish_time_ms"]).take(stored)
    key = history.entry_key[ordinal]
    keys = pa.array(key, mask=key < 0)
    names = pa.array([c.name for c in history.consumers], pa.string())
    numbers = np.array([c.number for c in history.consumers], dtype=np.int64)
    binary = np.array([*history.key_b64, False], dtype=np.bool_)  # -1 = no key: the last
    first_of_op = np.searchsorted(op, op) if count else op
    columns = {
        "interval_start": _same(interval_start, count, DELIVERIES.field("interval_start").type),
        "cluster": _same(log.cluster, count),
        "topic": _same(log.topic, count),
        "subscription": _same(log.subscription, count),
        "incarnation": _same(log.incarnation, count, pa.int64()),
        "seq": history.op_seq[op],
        "index_in_send": (np.arange(count) - first_of_op).astype(np.int32),
        "t_us": history.op_t_us[op],
        "consumer": numbers[consumer],
        "consumer_name": names.take(pa.array(consumer)),
        "ledger_id": history.ledger[ordinal],
        "entry_id": history.entry[ordinal],
        "key": pa.array(history.key_text, pa.string()).take(keys),
        "key_b64": binary[key],
        "hash": pa.nulls(count, pa.int64()) if hashes is None else pa.array(hashes).take(stored),
        "num_messages": message["num_messages"],
        "size_bytes": message["size_bytes"],
        "publish_time_ms": message["publish_time_ms"],
        "delivery_number": number,
        "cause": pa.array(causes, pa.string()),
        "judgement": _same("not_judged", count),
        "expected_consumer": pa.nulls(count, pa.int64()),
    }
    return pa.table([columns[name] for name in DELIVERIES.names], schema=DELIVERIES)


def _anomalies(log: DispatcherLog, interval_start: datetime, findings: list[Finding]) -> pa.Table:
    ordered = sorted(findings, key=lambda finding: finding.order)
    columns = {
        name: [getattr(finding, name) for finding in ordered]
        for name in ANOMALIES.names
        if name not in _IDENTITY
    }
    identity = {
        "interval_start": interval_start,
        "cluster": log.cluster,
        "topic": log.topic,
        "subscription": log.subscription,
        "incarnation": log.incarnation,
    }
    return pa.table(
        [
            _same(identity[field.name], len(ordered), field.type)
            if field.name in identity
            else pa.array(columns[field.name], field.type)
            for field in ANOMALIES
        ],
        schema=ANOMALIES,
    )


_IDENTITY: Final = frozenset(("interval_start", "cluster", "topic", "subscription", "incarnation"))


def _same(value: object, count: int, kind: pa.DataType | None = None) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind or pa.string()), count)
